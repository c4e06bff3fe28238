//! The arguments of `replay` and `recommend`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

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
    /// Periods of the rates to try, e.g. 1s,1m
    #[arg(long, value_name = "PERIODS", default_value = "1s,1m", value_hint = ValueHint::Other)]
    pub period: String,
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
