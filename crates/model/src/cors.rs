//! The typed model of `cors`: the scripts of other origins that browsers let use a location.

use std::time::Duration;

use http::{HeaderName, Method};

/// The `cors` of a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsConfig {
    pub origins: CorsOrigins,
    /// Empty = any.
    pub methods: Vec<Method>,
    /// Request headers that scripts may set; `None` = any.
    pub headers: Option<Vec<HeaderName>>,
    /// Scripts may use cookies and other credentials; never together with [`CorsOrigins::Any`].
    pub credentials: bool,
    /// The time for which a browser may remember the answer to a preflight.
    pub max_age: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigins {
    Any,
    /// One or more.
    Listed(Vec<OriginRule>),
}

/// An origin as browsers write it: in lower case, without a default port and without a slash at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginRule {
    /// `https://app.example.com`
    Exact(String),
    /// `https://*.example.com:8443` is stored as `https://` and `.example.com:8443`.
    Subdomains { scheme: String, suffix: String },
}
