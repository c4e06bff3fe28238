//! The typed model of `reload`, `admin`, `log`, `access_log` and `tracing`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;

use crate::value::scalars::Secret;
use sluicegate_base::labelled::labelled_enum;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    pub listen: SocketAddr,
    /// Empty = requests from this host need none. `token: T` is one named `admin` that allows all.
    pub tokens: Vec<AdminToken>,
    /// Host names, beside addresses and `localhost`, that requests without a token may use.
    pub hosts: Vec<String>,
}

/// A token of the admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminToken {
    /// Unique; audit lines name the caller by it.
    pub name: String,
    /// Unique.
    pub token: Secret,
    pub allow: AdminRights,
}

/// The rights of the holder of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRights {
    All,
    /// Everything that changes nothing.
    Read,
}

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorConfig {
    pub tls: bool,
    /// The host without brackets.
    pub host: String,
    pub port: u16,
    /// The text of a `Host` field.
    pub authority: String,
    pub path: String,
    /// Request headers of each export.
    pub headers: Vec<(HeaderName, Secret)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TracingConfig {
    /// `None` = no spans are made.
    pub otlp: Option<CollectorConfig>,
    /// Share of the requests without a trace that begin a sampled one, in percent, 0 to 100.
    pub sample: f64,
}

#[derive(Debug, Clone)]
pub struct ReloadConfig {
    /// The interval between checks of the files for changes; `None` = never.
    pub watch: Option<Duration>,
}
