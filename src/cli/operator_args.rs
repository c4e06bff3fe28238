//! The arguments of the commands that show and steer limits, keys and bans.

use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Subcommand)]
pub(super) enum OperatorVerb {
    /// List the keys of a limit that are refused most, or that ask most
    Keys {
        /// The name of the limit
        #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
        limit: String,
        /// The order: most refused or most asked units first
        #[arg(long, value_name = "ORDER", default_value = "refused", value_parser = ["refused", "asked"])]
        by: String,
        /// The most keys to list, at most 100
        #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
        top: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one key of a limit
    Show {
        #[command(flatten)]
        key: KeyArgs,
        /// The tier of the client, where the limit has other numbers for it
        #[arg(long, value_name = "TIER", value_hint = ValueHint::Other)]
        tier: Option<String>,
    },
    /// List what all keys of a limit have used in a window of the calendar, as JSON
    Usage {
        /// The name of the limit
        #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
        limit: String,
        /// The present window of each key, or the one before
        #[arg(long, value_name = "WINDOW", default_value = "current", value_parser = ["current", "last"])]
        window: String,
        /// Print CSV
        #[arg(long)]
        csv: bool,
    },
    /// Forget what a key of a limit has used
    Reset {
        #[command(flatten)]
        key: KeyArgs,
        /// Reset only the numbers of this tier
        #[arg(long, value_name = "TIER", value_hint = ValueHint::Other)]
        tier: Option<String>,
        /// Why, for the audit line
        #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
        reason: Option<String>,
    },
    /// Count a key of a limit by other numbers for a while
    Grant {
        #[command(flatten)]
        key: KeyArgs,
        /// The rate, e.g. 100/s; may be given several times
        #[arg(long, value_name = "RATE", required_unless_present = "max_concurrent", value_hint = ValueHint::Other)]
        rate: Vec<String>,
        /// Units that pass at once; one for each rate
        #[arg(long, value_name = "COUNT")]
        burst: Vec<u64>,
        /// Requests that may wait; one for each rate
        #[arg(long, value_name = "COUNT")]
        queue: Vec<u64>,
        /// The longest wait in the queue, e.g. 5s
        #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
        max_wait: Option<String>,
        /// Requests in flight, for a limit of concurrency
        #[arg(long, value_name = "COUNT")]
        max_concurrent: Option<u64>,
        /// How long, e.g. 1h
        #[arg(long = "for", value_name = "DURATION", value_hint = ValueHint::Other)]
        length: String,
        /// Why, for the audit line
        #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
        reason: Option<String>,
    },
    /// End the grant of a key of a limit
    Revoke {
        #[command(flatten)]
        key: KeyArgs,
        /// Why, for the audit line
        #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
        reason: Option<String>,
    },
    /// Let limits judge and count without acting for a while
    Pause {
        #[command(flatten)]
        limits: LimitArgs,
        /// How long, e.g. 1h; 10 minutes without, at most 30 days
        #[arg(long = "for", value_name = "DURATION", value_hint = ValueHint::Other)]
        length: Option<String>,
    },
    /// Let paused limits act again
    Resume {
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Set other numbers for a limit, in place of all that were set before
    Set {
        /// The name of the limit
        #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
        limit: String,
        /// The numbers, e.g. rate=20/s burst=40, or rate=20/s,600/m
        #[arg(value_name = "FIELD=VALUE", required = true, value_hint = ValueHint::Other)]
        numbers: Vec<String>,
        /// How long, e.g. 2h; until unset without it
        #[arg(long = "for", value_name = "DURATION", value_hint = ValueHint::Other)]
        length: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Put the numbers of the file in force again
    Unset {
        /// The name of the limit
        #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
        limit: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// List the bans in force
    Bans(JsonArgs),
    /// Ban an address, a network or an account
    Ban {
        /// An address, a network, or account=NAME
        #[arg(value_name = "WHOM", value_hint = ValueHint::Other)]
        whom: String,
        /// How long, e.g. 1h; 10 minutes without
        #[arg(long = "for", value_name = "DURATION", value_hint = ValueHint::Other)]
        length: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// End a ban
    Unban {
        /// An address, a network, or account=NAME, as `bans` lists it
        #[arg(value_name = "WHOM", value_hint = ValueHint::Other)]
        whom: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
}

/// The arguments of a command that only shows something.
#[derive(Debug, Args)]
pub(super) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One limit or more.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// The names of the limits
    #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub limits: Vec<String>,
    /// All limits
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// The options of a change.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// Why, for the audit line
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A key of a limit.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The name of the limit
    #[arg(value_name = "LIMIT", value_hint = ValueHint::Other)]
    pub limit: String,
    /// The key as `keys` lists it, e.g. ip=192.0.2.7 or account=acme
    #[arg(value_name = "KEY", value_hint = ValueHint::Other)]
    pub key: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl OperatorVerb {
    pub(super) fn wants_json(&self) -> bool {
        match self {
            OperatorVerb::Show { key, .. }
            | OperatorVerb::Reset { key, .. }
            | OperatorVerb::Grant { key, .. }
            | OperatorVerb::Revoke { key, .. } => key.json,
            OperatorVerb::Usage { .. } => true,
            OperatorVerb::Pause { limits, .. } | OperatorVerb::Resume { limits, .. } => limits.change.json,
            OperatorVerb::Set { change, .. }
            | OperatorVerb::Unset { change, .. }
            | OperatorVerb::Ban { change, .. }
            | OperatorVerb::Unban { change, .. } => change.json,
            OperatorVerb::Bans(JsonArgs { json }) | OperatorVerb::Keys { json, .. } => *json,
        }
    }
}
