//! Faults of forwarding: why an admitted request got no response from its upstream.

use http::StatusCode;

use crate::reject::Fault;
use sluicegate_http::request::body::BodyFault;
use sluicegate_http::upstream::{ExchangeFault, NoServer, ServerFault};
use sluicegate_observe::metrics::UpstreamOutcome;

/// The log's reason for a request that took longer than its location allows.
pub(super) const LOCATION_TIMEOUT: &str = "location timeout";

/// The result of an exchange: the status of its response, or the fault.
pub(super) type ExchangeResult = Result<StatusCode, ForwardFault>;

/// The cause, which lies with the client, the upstream, or the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardFault {
    /// The client broke its own request body.
    Client(BodyFault),
    /// The server tried last could not be connected to.
    Unreachable(ServerFault),
    /// The connection to the server tried last was not made in time.
    ConnectTimeout,
    /// The server tried last, or every server, is at `max_connections`.
    Full,
    /// No server became free in the longest wait of the upstream's queue.
    QueueTimeout,
    /// The upstream is full, and as many requests wait in the process as may.
    TooManyWaiting,
    /// Every server is down or draining.
    Down,
    /// The upstream closed or reset the exchange before the head of its response was complete.
    Broken(ServerFault),
    /// The response is not valid HTTP, or its head must not be passed on.
    BadResponse,
    /// The head of the response did not come in the time that the upstream allows.
    ResponseTimeout,
    /// The request took longer than its location allows.
    LocationTimeout,
}

impl ForwardFault {
    /// The fault to record for the server; `None` if it says nothing about the server.
    pub fn server_fault(self) -> Option<ServerFault> {
        Some(match self {
            ForwardFault::Unreachable(fault) | ForwardFault::Broken(fault) => fault,
            ForwardFault::ConnectTimeout => ServerFault::ConnectTimeout,
            ForwardFault::ResponseTimeout => ServerFault::Timeout,
            ForwardFault::BadResponse => ServerFault::BadResponse,
            ForwardFault::Client(_)
            | ForwardFault::Full
            | ForwardFault::QueueTimeout
            | ForwardFault::TooManyWaiting
            | ForwardFault::Down
            | ForwardFault::LocationTimeout => return None,
        })
    }

    /// The reason for the access log, from a closed set of words; `None` if the upstream is not the cause.
    pub fn log_reason(self) -> Option<&'static str> {
        match self {
            ForwardFault::LocationTimeout => Some(LOCATION_TIMEOUT),
            other => other.server_fault().map(ServerFault::as_str),
        }
    }

    /// The outcome to count; `None` if no server was tried.
    pub fn metric_outcome(self) -> Option<UpstreamOutcome> {
        Some(match self {
            ForwardFault::Unreachable(_) => UpstreamOutcome::Unreachable,
            ForwardFault::ConnectTimeout | ForwardFault::ResponseTimeout | ForwardFault::LocationTimeout => {
                UpstreamOutcome::Timeout
            }
            ForwardFault::Client(_) => UpstreamOutcome::Abandoned,
            ForwardFault::BadResponse => UpstreamOutcome::BadResponse,
            ForwardFault::Broken(_) => UpstreamOutcome::Broken,
            ForwardFault::Full
            | ForwardFault::QueueTimeout
            | ForwardFault::TooManyWaiting
            | ForwardFault::Down => return None,
        })
    }
}

impl From<NoServer> for ForwardFault {
    fn from(reason: NoServer) -> ForwardFault {
        match reason {
            NoServer::Full => ForwardFault::Full,
            NoServer::Down => ForwardFault::Down,
        }
    }
}

impl From<ForwardFault> for Fault {
    fn from(fault: ForwardFault) -> Fault {
        use ForwardFault as Forward;
        match fault {
            Forward::Client(fault) => fault.into(),
            Forward::Unreachable(_) => Fault::Unreachable,
            Forward::Full => Fault::NoServer,
            Forward::QueueTimeout => Fault::ServerQueueTimeout,
            Forward::TooManyWaiting => Fault::TooManyWaiting,
            Forward::Down => Fault::ServersDown,
            Forward::Broken(_) => Fault::UpstreamBroke,
            Forward::BadResponse => Fault::BadResponse,
            Forward::ConnectTimeout | Forward::ResponseTimeout => Fault::UpstreamTimeout,
            Forward::LocationTimeout => Fault::LocationTimeout,
        }
    }
}

/// Why a response body was cut off.
#[derive(Debug, thiserror::Error)]
pub enum ResponseBodyFault {
    #[error("the response body of the upstream broke off: {0}")]
    Upstream(ExchangeFault),
    /// The upstream sent nothing for `timeouts.body`.
    #[error("the response body of the upstream stalled")]
    Stalled,
    /// `location.timeout` passed.
    #[error("the location's timeout passed")]
    TimedOut,
    /// The response used more than a limit has left, and the limit cuts such responses.
    #[error("a limit is used up")]
    LimitUsedUp,
}
