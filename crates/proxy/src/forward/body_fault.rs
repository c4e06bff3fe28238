//! Why the body of a response was cut off.

use std::fmt;

use sluicegate_http::upstream::ExchangeFault;

/// Why a response body was cut off.
#[derive(Debug)]
pub enum ResponseBodyFault {
    Upstream(ExchangeFault),
    /// The upstream sent nothing for `timeouts.body`.
    Stalled,
    /// `location.timeout` passed.
    TimedOut,
    /// The response used more than a limit has left, and the limit cuts such responses.
    LimitUsedUp,
}

impl fmt::Display for ResponseBodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseBodyFault::Upstream(error) => {
                write!(f, "the response body of the upstream broke off: {error}")
            }
            ResponseBodyFault::Stalled => f.write_str("the response body of the upstream stalled"),
            ResponseBodyFault::TimedOut => f.write_str("the location's timeout passed"),
            ResponseBodyFault::LimitUsedUp => f.write_str("a limit is used up"),
        }
    }
}

impl std::error::Error for ResponseBodyFault {}
