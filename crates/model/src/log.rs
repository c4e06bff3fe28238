//! The typed model of the log and the access log.

use std::path::PathBuf;

use http::HeaderName;

use crate::value::scalars::Secret;
use sluicegate_base::labelled::labelled_enum;

/// The `log` section: the log of the program itself, on stderr.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// The least severe messages that are written.
    pub level: LogLevel,
    /// The form of a message.
    pub format: LogFormat,
}

labelled_enum! {
    /// The severity of a message; each level includes those before it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogLevel: as_str -> &'static str {
        /// Failures that an operator must act on.
        Error = "error",
        /// Trouble that the gateway gets over.
        Warn = "warn",
        /// The normal course: starts, reloads and stops.
        Info = "info",
        /// Details for the search of errors.
        Debug = "debug",
        /// Every detail.
        Trace = "trace",
    }

    /// The form of messages in the log, and of the lines of the access log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogFormat: as_str -> &'static str {
        /// Pretty on a terminal, else JSON.
        Auto = "auto",
        /// Lines for people.
        Pretty = "pretty",
        /// One JSON object for each line.
        Json = "json",
    }

    /// A field that lines of the access log have only if it is configured.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogField: as_str -> &'static str {
        /// The `User-Agent` of the request.
        UserAgent = "user_agent",
        /// The referer without its query.
        Referer = "referer",
        /// Attempts to get a response from the upstream.
        Tries = "tries",
        /// The time from sending the request to the head of the response.
        UpstreamMs = "upstream_ms",
        /// The scheme by which the client reached the gateway, or the proxy in front of it.
        Scheme = "scheme",
        /// The version of HTTP.
        Proto = "proto",
    }
}

/// The `access_log` section: the log of requests, one line each.
#[derive(Debug, Clone)]
pub struct AccessLogConfig {
    /// The destination of the lines.
    pub output: AccessLogOutput,
    /// The form of a line; `auto` is pretty where the output is a terminal.
    pub format: LogFormat,
    /// Share of requests logged, in percent, 0 to 100.
    pub sample: f64,
    /// Request headers that each line repeats.
    pub headers: Vec<HeaderName>,
    /// The further fields of each line.
    pub fields: Vec<LogField>,
    /// True if accounts and keys are written as 64-bit hashes instead of their text.
    pub hash_keys: bool,
    /// `None` = each process makes its own.
    pub hash_secret: Option<Secret>,
}

/// The destination of the access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogOutput {
    /// The standard output.
    Stdout,
    /// No access log.
    None,
    /// A file, which SIGUSR1 opens again.
    File(PathBuf),
}
