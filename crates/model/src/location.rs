//! The typed model of `bandwidth`, `cors`, `when` and `rewrite` of a location.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, Method};

use super::key::{KeyPart, ValueSource};
use crate::value::path_regex::PathRegex;
use crate::value::scalars::Rate;

/// The pace of response bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BandwidthConfig {
    /// The units are bytes.
    pub rate: Rate,
    /// Bytes that an idle bucket passes at once; the minimum is those of 10 ms.
    pub burst: u64,
    /// A missing part falls back to the client's address.
    pub key: Vec<KeyPart>,
}

/// The `cors` of a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsConfig {
    /// The origins with scripts that may use the location.
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

/// The origins that are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Every origin.
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
    Subdomains {
        /// The scheme with `://`.
        scheme: String,
        /// The domain with the dot in front of it, and the port unless it is that of the scheme.
        suffix: String,
    },
}

/// A condition of `when`.
#[derive(Debug, Clone)]
pub struct ConditionConfig {
    /// A header, a cookie or a query parameter.
    pub source: ValueSource,
    /// The test that its value must pass.
    pub test: ValueTest,
    /// The value as written, because a replaced one may be a secret.
    pub written: String,
}

/// A test of a value; one that is given twice passes none.
#[derive(Debug, Clone)]
pub enum ValueTest {
    /// Exactly this text, which is not empty.
    Equals(String),
    /// Any value.
    Present,
    /// No value.
    Absent,
    /// A match somewhere in the value.
    Matches(PathRegex),
}

impl ConditionConfig {
    /// A text that is equal for conditions that the same requests meet.
    pub fn identity(&self) -> String {
        format!("{:?} {:?}", self.source.folded_words(), self.test)
    }
}

/// "header:x-env=canary"
impl fmt::Display for ConditionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = self.source.words();
        write!(f, "{kind}{name}={}", self.written)
    }
}

/// Another path in place of those that match.
#[derive(Debug, Clone)]
pub struct RewriteConfig {
    /// Compiled with its groups.
    pub from: PathRegex,
    /// The whole path: `$1` to `$9` are groups of `from`, `$$` is a dollar, and nothing else follows a `$`.
    pub to: String,
}
