//! The words of the command line.

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
    /// Serve (also without a verb)
    Run,
    /// Check the file and tell every problem
    Check(CheckArgs),
    /// Tell what would become of a request, and why
    Explain(ExplainArgs),
    /// Have the running gateway read its file again
    Reload,
    /// Tell how the running gateway is
    Status(StatusArgs),
    /// Serve in front of one upstream, without a file
    Proxy(ProxyArgs),
    /// Write a working gateway.yaml to start from
    Init(InitArgs),
    /// Tell the version
    Version,
    /// Print this help
    Help,
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Warnings are errors
    #[arg(long)]
    pub strict: bool,
    /// Tell it as JSON
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
    /// Ask the running gateway for its counters, by the admin address of the file; nothing is charged
    #[arg(long)]
    pub live: bool,
    /// Tell it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Tell it as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Where requests are forwarded to, e.g. http://127.0.0.1:9000 or unix:/run/app.sock
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Requests of one client, e.g. 10/s; may be given several times
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
    /// Write over an existing file
    #[arg(long)]
    pub force: bool,
}

/// Verbs that are promised but do not work yet.
pub(super) const PLANNED_VERBS: [&str; 10] =
    ["top", "keys", "reset", "bans", "ban", "unban", "replay", "schema", "completions", "man"];

/// The verbs that work, for suggestions.
pub(super) const VERBS: [&str; 9] =
    ["run", "check", "explain", "reload", "status", "proxy", "init", "version", "help"];
