//! Why a request that was admitted got no answer from its upstream.

use crate::observe::metrics::UpstreamOutcome;
use crate::request::body::BodyFault;
use crate::upstream::ServerFault;

/// The reason of a request that took longer than its location allows.
pub const LOCATION_TIMEOUT: &str = "location timeout";

/// The cause, with its source: the client, the upstream, or the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardFault {
    /// The client broke its own request body.
    Client(BodyFault),
    /// No server could be connected to.
    Unreachable(ServerFault),
    ConnectTimeout,
    /// Every server is at `max_connections`.
    Full,
    /// Every server is down or draining.
    Down,
    /// The upstream closed or reset the exchange before its answer's head was complete.
    Broken(ServerFault),
    /// What came is no HTTP, or not a head that may be passed on.
    BadResponse,
    ResponseTimeout,
    LocationTimeout,
}

impl ForwardFault {
    /// What it says of the server; `None` when it says nothing.
    pub fn server_fault(self) -> Option<ServerFault> {
        Some(match self {
            ForwardFault::Unreachable(trouble) | ForwardFault::Broken(trouble) => trouble,
            ForwardFault::ConnectTimeout => ServerFault::ConnectTimeout,
            ForwardFault::ResponseTimeout => ServerFault::Timeout,
            ForwardFault::BadResponse => ServerFault::BadResponse,
            ForwardFault::Client(_)
            | ForwardFault::Full
            | ForwardFault::Down
            | ForwardFault::LocationTimeout => return None,
        })
    }

    /// Why the upstream gave no answer, in a closed set of words; `None` when that is not why there is none.
    pub fn log_reason(self) -> Option<&'static str> {
        match self {
            ForwardFault::LocationTimeout => Some(LOCATION_TIMEOUT),
            other => other.server_fault().map(ServerFault::as_str),
        }
    }

    /// How it is counted; `None` when no server was asked.
    pub fn metric_outcome(self) -> Option<UpstreamOutcome> {
        Some(match self {
            ForwardFault::Unreachable(_) => UpstreamOutcome::Unreachable,
            ForwardFault::ConnectTimeout | ForwardFault::ResponseTimeout | ForwardFault::LocationTimeout => {
                UpstreamOutcome::Timeout
            }
            ForwardFault::Client(_) => UpstreamOutcome::Abandoned,
            ForwardFault::BadResponse => UpstreamOutcome::BadResponse,
            ForwardFault::Broken(_) => UpstreamOutcome::Broken,
            ForwardFault::Full | ForwardFault::Down => return None,
        })
    }
}
