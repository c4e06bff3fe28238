//! The typed model of the log and the access log.

use std::path::PathBuf;

use http::HeaderName;

use crate::value::scalars::Secret;
use sluicegate_base::labelled::labelled_enum;

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub level: LogLevel,
    pub format: LogFormat,
}

labelled_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogLevel: as_str -> &'static str {
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogFormat: as_str -> &'static str {
        Auto = "auto",
        Pretty = "pretty",
        Json = "json",
    }

    /// A field that lines of the access log have only if it is configured.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogField: as_str -> &'static str {
        UserAgent = "user_agent",
        /// The referer without its query.
        Referer = "referer",
        /// Attempts to get a response from the upstream.
        Tries = "tries",
        /// The time from sending the request to the head of the response.
        UpstreamMs = "upstream_ms",
        Scheme = "scheme",
        /// The version of HTTP.
        Proto = "proto",
    }
}

#[derive(Debug, Clone)]
pub struct AccessLogConfig {
    pub output: AccessLogOutput,
    /// Share of requests logged, in percent, 0 to 100.
    pub sample: f64,
    pub headers: Vec<HeaderName>,
    pub fields: Vec<LogField>,
    pub hash_keys: bool,
    /// `None` = each process makes its own.
    pub hash_secret: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogOutput {
    Stdout,
    None,
    File(PathBuf),
}
