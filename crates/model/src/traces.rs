//! The model of `tracing`.

use http::HeaderName;

use crate::value::scalars::Secret;

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
