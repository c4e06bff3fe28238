//! The typed model of where servers are, and of what is done about those that fail: retries, health checks, ejection.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;

/// Where a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// The host is a name or a literal address, IPv6 without brackets.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// `host:port` or `unix:/path`, as it stands in logs, in metrics and on the admin API.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ServerAddress::Tcp { host, port } => match host.parse() {
                Ok(IpAddr::V6(_)) => write!(f, "[{host}]:{port}"),
                _ => write!(f, "{host}:{port}"),
            },
        }
    }
}

/// Status codes, as ranges of which each has both ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusRanges(pub Vec<(u16, u16)>);

impl StatusRanges {
    #[inline]
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

/// Further tries of a request, after the first.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryConfig {
    /// Tries after the first; 0 = off.
    pub attempts: u32,
    pub when: RetryReasons,
    /// Percent of the upstream's requests that may be retries; `None` = any number.
    pub budget: Option<f64>,
    /// One try, connecting included, up to the head of its answer.
    pub per_try: Option<Duration>,
    /// All tries together.
    pub total: Option<Duration>,
}

/// Why a request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryReason {
    /// No connection came about.
    Connect,
    /// The server did not take the request.
    Refused,
    /// No answer in time.
    Timeout,
    /// The answer was 502, or the connection broke before an answer.
    BadGateway,
    /// The answer was 503.
    Unavailable,
    /// The answer was 504.
    GatewayTimeout,
}

impl RetryReason {
    pub const WORDS: [(&'static str, RetryReason); 6] = [
        ("connect", RetryReason::Connect),
        ("refused", RetryReason::Refused),
        ("timeout", RetryReason::Timeout),
        ("502", RetryReason::BadGateway),
        ("503", RetryReason::Unavailable),
        ("504", RetryReason::GatewayTimeout),
    ];

    /// `None` for an answer that is always passed on.
    pub fn from_status(status: u16) -> Option<RetryReason> {
        match status {
            502 => Some(RetryReason::BadGateway),
            503 => Some(RetryReason::Unavailable),
            504 => Some(RetryReason::GatewayTimeout),
            _ => None,
        }
    }
}

/// A set of reasons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryReasons(u8);

impl RetryReasons {
    pub fn from_reasons(reasons: &[RetryReason]) -> RetryReasons {
        RetryReasons(reasons.iter().fold(0, |set, reason| set | 1 << *reason as u8))
    }

    #[inline]
    pub fn contains(self, reason: RetryReason) -> bool {
        self.0 & 1 << reason as u8 != 0
    }
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig {
            attempts: 1,
            when: RetryReasons::from_reasons(&[RetryReason::Connect, RetryReason::Refused]),
            budget: Some(20.0),
            per_try: None,
            total: None,
        }
    }
}

/// Requests of the gateway's own that find out whether a server works.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthConfig {
    pub path: PathAndQuery,
    /// From the beginning of one check to the next.
    pub interval: Duration,
    pub timeout: Duration,
    /// Of a server that works.
    pub status: StatusRanges,
    /// Checks in a row that must pass before a server that was down is up.
    pub rise: u32,
    /// Checks in a row that must fail before a server is down.
    pub fall: u32,
}

/// When a server gets no requests for a while, because those it got went wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct EjectConfig {
    /// Errors in a row: no connection, no answer in time, a broken answer.
    pub errors: u32,
    pub span: Duration,
    /// Percent of an upstream's servers that may be ejected at once; one always may.
    pub max: f64,
    /// Answers that count as errors, too.
    pub status: StatusRanges,
}

impl Default for EjectConfig {
    fn default() -> EjectConfig {
        EjectConfig { errors: 5, span: Duration::from_secs(10), max: 50.0, status: StatusRanges::default() }
    }
}
