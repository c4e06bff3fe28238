//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// A reverse-proxy gateway with built-in throttling.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, allow_external_subcommands = true, disable_help_subcommand = true)]
pub(super) struct CommandLine {
    /// The file to read or write [default: ./gateway.yaml]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Serve (the default without a verb)
    Run,
    /// Check the file and report every problem
    Check(CheckArgs),
    /// Explain the decision on a request
    Explain(ExplainArgs),
    /// Make the running gateway reload its file
    Reload,
    /// Show the status of the running gateway
    Status(StatusArgs),
    /// Serve in front of one upstream, without a file
    Proxy(ProxyArgs),
    /// Write a working gateway.yaml to start from
    Init(InitArgs),
    /// Print the version
    Version,
    /// Print this help
    Help,
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Treat warnings as errors
    #[arg(long)]
    pub strict: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The method, e.g. GET
    pub method: String,
    /// A path or a URL, e.g. /api/ or http://example.com/api/
    pub url: String,
    /// Address of the peer: the client, or the proxy in front
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub ip: String,
    /// A header of the request, e.g. 'X-Account-Id: acme'; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Name of the listener; without it the first one that serves the scheme of the URL
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Use the counters of the running gateway, by the admin address of the file; nothing is charged
    #[arg(long)]
    pub live: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Upstream of all requests, e.g. http://127.0.0.1:9000 or unix:/run/app.sock
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Rate per client, e.g. 10/s; may be given several times
    #[arg(long, value_name = "RATE", required = true)]
    pub limit: Vec<String>,
    /// Port, address or unix:/path to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "8080")]
    pub listen: String,
    /// Address of the admin listener, or none
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9901")]
    pub admin: String,
}

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
}

/// Planned verbs that do not work yet.
pub(super) const PLANNED_VERBS: [&str; 10] =
    ["top", "keys", "reset", "bans", "ban", "unban", "replay", "schema", "completions", "man"];

/// The verbs that work, for suggestions.
pub(super) const VERBS: [&str; 9] =
    ["run", "check", "explain", "reload", "status", "proxy", "init", "version", "help"];
