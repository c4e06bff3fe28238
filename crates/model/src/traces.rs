//! The model of `tracing`.

use http::HeaderName;

use crate::value::scalars::Secret;

/// The collector that spans are sent to, by OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorConfig {
    /// True for `https://`.
    pub tls: bool,
    /// The host without brackets.
    pub host: String,
    /// The port, that of the scheme unless the URL has one.
    pub port: u16,
    /// The text of a `Host` field.
    pub authority: String,
    /// The path of the URL, `/v1/traces` unless it has one.
    pub path: String,
    /// Request headers of each export.
    pub headers: Vec<(HeaderName, Secret)>,
}

/// The `tracing` section.
#[derive(Debug, Clone, PartialEq)]
pub struct TracingConfig {
    /// `None` = no spans are made.
    pub otlp: Option<CollectorConfig>,
    /// Share of the requests without a trace that begin a sampled one, in percent, 0 to 100.
    pub sample: f64,
}
