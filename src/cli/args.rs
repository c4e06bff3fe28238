//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use super::api_key::ApiKeyVerb;
use super::operator_args::{JsonArgs, OperatorVerb};

/// A reverse-proxy gateway with built-in throttling.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, allow_external_subcommands = true)]
pub(super) struct CommandLine {
    /// The file to read or write [default: ./gateway.yaml]; check and explain read stdin for `-`
    #[arg(short, long, value_name = "FILE", global = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Check the file, as `check` does
    #[arg(short, long)]
    pub test: bool,
    #[command(subcommand)]
    pub verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Serve (the default without a verb)
    Run {
        /// The file, instead of -c FILE
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Check the file and report every problem
    Check(CheckArgs),
    /// Explain the decision on a request
    Explain(ExplainArgs),
    /// Run scenario files: traffic on a virtual clock, and what the limits must do with it
    Test(TestArgs),
    /// Judge the requests of a log by the file
    Replay(ReplayArgs),
    /// Recommend a limit by a log
    Recommend(RecommendArgs),
    /// Make the running gateway reload its file
    Reload,
    /// Show the status of the running gateway
    Status(JsonArgs),
    /// Show limits, keys and upstreams of the running gateway, live
    Top(TopArgs),
    #[command(flatten)]
    Operator(OperatorVerb),
    /// Make, list and disable API keys
    ApiKey {
        #[command(subcommand)]
        verb: ApiKeyVerb,
    },
    /// Serve in front of one upstream, without a file
    Proxy(ProxyArgs),
    /// Write a working gateway.yaml to start from
    Init {
        /// Overwrite an existing file
        #[arg(long)]
        force: bool,
    },
    /// Write a gateway.yaml from the configuration of nginx, ingress-nginx or envoyproxy/ratelimit, or from OpenAPI
    Import(ImportArgs),
    /// Print the JSON Schema of gateway.yaml, or the reference of its fields
    Schema {
        /// JSON Schema (draft 2020-12), or the reference of every field in Markdown
        #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["json", "markdown"])]
        format: String,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Print the manual page
    Man {
        /// Write one file per command into this folder, instead of one page to stdout
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
    /// Print the version
    Version,
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

#[derive(Debug, Default, Args)]
pub(super) struct CheckArgs {
    /// The file, instead of -c FILE; `-` = stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    pub strict: bool,
    /// Another file, to tell what changes from it
    #[arg(long, value_name = "OLD", value_hint = ValueHint::FilePath)]
    pub against: Option<PathBuf>,
    /// Fetch the keys of the issuers of tokens, and show them
    #[arg(long)]
    pub fetch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The method, e.g. GET
    #[arg(value_parser = MethodParser, hide_possible_values = true)]
    #[arg(required_unless_present = "limits", conflicts_with = "limits")]
    pub method: Option<String>,
    /// A path or a URL, e.g. /api/ or http://example.com/api/
    #[arg(value_hint = ValueHint::Url, required_unless_present = "limits", conflicts_with = "limits")]
    pub url: Option<String>,
    /// Limits that a call of the rate-limit service names, e.g. sms,mail; in place of METHOD and URL
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_hint = ValueHint::Other)]
    pub limits: Vec<String>,
    /// A part of the key of the call, e.g. account=acme or header:x-user=bob; may be given several times
    #[arg(long = "key", value_name = "PART=VALUE", value_hint = ValueHint::Other)]
    pub keys: Vec<String>,
    /// The units that the call takes, in place of the cost of each limit
    #[arg(long, value_name = "UNITS", value_hint = ValueHint::Other)]
    pub cost: Option<u64>,
    /// The longest wait that the call accepts, e.g. 2s; without it it never waits
    #[arg(long, value_name = "TIME", value_hint = ValueHint::Other)]
    pub wait: Option<String>,
    /// Address of the peer [default: 127.0.0.1]: the client, or the proxy in front; with --limits the key part ip
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Other)]
    pub ip: Option<String>,
    /// A header of the request, e.g. 'X-Account-Id: acme'; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_hint = ValueHint::Other)]
    #[arg(conflicts_with = "limits")]
    pub headers: Vec<String>,
    /// A header of the auth service's answer, e.g. 'X-User: joe'; may be given several times. It admits the request
    #[arg(long, value_name = "NAME: VALUE", value_hint = ValueHint::Other, conflicts_with = "limits")]
    pub auth: Vec<String>,
    /// The body, for limits that read it; @FILE reads it from a file, @- from stdin
    #[arg(short = 'd', long, value_name = "BODY", conflicts_with = "limits", value_hint = ValueHint::Other)]
    pub data: Option<String>,
    /// Name of the listener; without it the first one that serves the scheme of the URL
    #[arg(long, value_name = "NAME", conflicts_with = "limits")]
    pub listener: Option<String>,
    /// Use the counters of the running gateway, by the admin address of the file; nothing is charged
    #[arg(long)]
    pub live: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// Scenario files; without one every *_test.yaml beside gateway.yaml, or beside the file of -c
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Run only the scenarios with this text in their names
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub filter: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a report in the form of JUnit as well
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub junit: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Access logs, plain or packed by gzip; `-` = stdin
    #[arg(value_name = "LOG", required = true, value_hint = ValueHint::FilePath)]
    pub logs: Vec<PathBuf>,
    /// Format of the logs: json, combined, common, haproxy, or an nginx log_format; guessed without it
    #[arg(long, value_name = "FORMAT", value_hint = ValueHint::Other)]
    pub format: Option<String>,
    /// Another file, to tell what changes from it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub against: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV: every limit and key
    #[arg(long)]
    pub csv: bool,
    /// Write a page with plots, which needs nothing else
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RecommendArgs {
    /// Access logs, plain or packed by gzip; `-` = stdin
    #[arg(value_name = "LOG", required = true, value_hint = ValueHint::FilePath)]
    pub logs: Vec<PathBuf>,
    /// What to count by: ip, account, uri, host, method, global or header:NAME
    #[arg(long, value_name = "KEY", default_value = "ip", value_hint = ValueHint::Other)]
    pub key: String,
    /// Share of the keys of which no request may be rejected
    #[arg(long, value_name = "PERCENT", default_value = "99.9%", value_hint = ValueHint::Other)]
    pub spare: String,
    /// Periods of the rates to try, e.g. 1s,1m; or, for a quota, hour, day, week, month, quarter or year
    #[arg(long, value_name = "PERIODS", default_value = "1s,1m", value_hint = ValueHint::Other)]
    pub period: String,
    /// Time zone of a quota, e.g. Europe/Berlin; UTC without it
    #[arg(long, value_name = "ZONE", value_hint = ValueHint::Other)]
    pub zone: Option<String>,
    /// Format of the logs: json, combined, common, haproxy, or an nginx log_format; guessed without it
    #[arg(long, value_name = "FORMAT", value_hint = ValueHint::Other)]
    pub format: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a page with the curve, which needs nothing else
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Print once and exit, as without a terminal
    #[arg(long)]
    pub once: bool,
    /// Draw without colours, as with NO_COLOR set
    #[arg(long)]
    pub no_color: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Upstream of all requests, e.g. http://127.0.0.1:9000 or unix:/run/app.sock
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub to: String,
    /// Rate per client, e.g. 10/s; may be given several times
    #[arg(long, value_name = "RATE", required = true, value_hint = ValueHint::Other)]
    pub limit: Vec<String>,
    /// Port, address or unix:/path to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "8080", value_hint = ValueHint::Other)]
    pub listen: String,
    /// Address of the admin listener, or none
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9901", value_hint = ValueHint::Other)]
    pub admin: String,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// An nginx.conf, whose includes are read too, or Ingress objects or an OpenAPI document in a .yaml, .yml or .json
    /// file, or several files or a folder of envoyproxy/ratelimit; `-` = YAML from stdin
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// Write the gateway.yaml into this file instead of stdout
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Form of the report on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub report: String,
    /// Exit with 0 although something that limits, denies or answers was lost
    #[arg(long)]
    pub partial: bool,
}

/// Takes any method; shells complete the usual ones.
#[derive(Debug, Clone)]
struct MethodParser;

impl TypedValueParser for MethodParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        Some(Box::new(methods.into_iter().map(PossibleValue::new)))
    }
}
