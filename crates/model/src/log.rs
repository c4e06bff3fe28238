//! The typed model of the log and the access log.

use std::path::PathBuf;

use http::HeaderName;

use super::log_field::LogField;
use crate::value::scalars::Secret;

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub level: LogLevel,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Auto,
    Pretty,
    Json,
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
