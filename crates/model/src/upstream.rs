//! The typed model of servers' addresses, retries, health checks and ejection.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::key::KeyPart;
use sluicegate_base::labelled::labelled_enum;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// The host is a name or a literal address, IPv6 without brackets.
    Tcp {
        /// The name or the literal address.
        host: String,
        /// The port, that of the scheme unless the file has one.
        port: u16,
    },
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// `host:port` or `unix:/path`, the form of logs, metrics and the admin API.
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

/// Status codes as ranges, both ends included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRanges(pub Vec<(u16, u16)>);

impl From<Vec<(u16, u16)>> for StatusRanges {
    fn from(ranges: Vec<(u16, u16)>) -> StatusRanges {
        StatusRanges(ranges)
    }
}

impl StatusRanges {
    /// True if the status is in one of the ranges.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

/// The `timeouts` section of an upstream.
#[derive(Debug, Clone)]
pub struct UpstreamTimeouts {
    /// The time to connect, TLS included; then 502, or a retry.
    pub connect: Duration,
    /// The time from the request to the head of its response; then 504, or a retry.
    pub response: Duration,
    /// The longest gap in the body of a response, after which it is cut.
    pub body: Duration,
    /// The time after which an unused connection or a silent tunnel is closed.
    pub idle: Duration,
}

/// The queue in front of the servers of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerQueueConfig {
    /// Requests that may wait at once.
    pub size: usize,
    /// The longest wait; then 503.
    pub max_wait: Duration,
}

/// The `retries` section of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryConfig {
    /// Tries after the first; 0 = off.
    pub attempts: u32,
    /// The failures that are tried again.
    pub when: RetryReasons,
    /// Percent of the upstream's requests that may be retries; `None` = any number.
    pub budget: Option<f64>,
    /// The deadline of one try, from the connect to the head of the response.
    pub per_try: Option<Duration>,
    /// The deadline of all tries together.
    pub total: Option<Duration>,
}

labelled_enum! {
    /// A reason to try a request again.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RetryReason: as_str -> &'static str {
        /// The connect failed.
        Connect = "connect",
        /// The server did not accept the request.
        Refused = "refused",
        /// The response did not come in time.
        Timeout = "timeout",
        /// The response was 502, or the connection broke before a response.
        BadGateway = "502",
        /// The response was 503.
        Unavailable = "503",
        /// The response was 504.
        GatewayTimeout = "504",
    }
}

impl RetryReason {
    /// `None` for a status that is never retried.
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
    /// The set of these reasons.
    pub fn from_reasons(reasons: &[RetryReason]) -> RetryReasons {
        RetryReasons(reasons.iter().fold(0, |set, reason| set | 1 << *reason as u8))
    }

    /// True if the reason is in the set.
    pub fn contains(self, reason: RetryReason) -> bool {
        self.0 & 1 << reason as u8 != 0
    }
}

impl RetryConfig {
    /// No retries.
    pub const OFF: RetryConfig =
        RetryConfig { attempts: 0, when: RetryReasons(0), budget: None, per_try: None, total: None };
}

/// Active health checks.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthConfig {
    /// The path and query of the GET request of a check.
    pub path: PathAndQuery,
    /// The time from the start of one check to the start of the next.
    pub interval: Duration,
    /// The time of one check, after which it has failed.
    pub timeout: Duration,
    /// The statuses of a healthy server.
    pub status: StatusRanges,
    /// Consecutive passed checks that bring a server up.
    pub rise: u32,
    /// Consecutive failed checks that take a server down.
    pub fall: u32,
}

/// Passive ejection: after failed requests, a server gets none for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct EjectConfig {
    /// Consecutive errors: a failed connect, a late or a broken response.
    pub errors: u32,
    /// `for`: the time without requests.
    pub span: Duration,
    /// Percent of an upstream's servers that may be ejected at once; at least one always may.
    pub max: f64,
    /// Statuses that also count as errors.
    pub status: StatusRanges,
}

/// The `sticky` section of an upstream: a cookie that leads a client to the same server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StickyConfig {
    /// The name of the cookie.
    pub cookie: String,
    /// `for`: the time until the cookie ends.
    pub span: Duration,
    /// The secret that seals cookies; `None` = one that the gateway chooses.
    pub secret: Option<Secret>,
}

/// The `obey` section of an upstream: responses that stop further requests.
#[derive(Debug, Clone, PartialEq)]
pub struct ObeyConfig {
    /// Statuses of 400 to 599 that begin a stop; without a time it lasts a second.
    pub status: StatusRanges,
    /// The longest stop.
    pub at_most: Duration,
    /// The key that separates stops from each other.
    pub key: Vec<KeyPart>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_reasons() {
        for (word, reason) in RetryReason::WORDS {
            for (other, another) in RetryReason::WORDS {
                assert_eq!(
                    RetryReasons::from_reasons(&[reason]).contains(another),
                    word == other,
                    "{word} and {other}"
                );
            }
        }
    }
}
