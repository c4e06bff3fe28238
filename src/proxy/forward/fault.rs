//! Why a request that was admitted got no answer from its upstream.

use crate::observe::metrics::Answered;
use crate::request::body::BodyFault;
use crate::upstream::Trouble;

/// The reason of a request that took longer than its location allows.
pub const LOCATION_TIMEOUT: &str = "location timeout";

/// The cause, with its source: the client, the upstream, or the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client broke its own request body.
    Client(BodyFault),
    /// No server could be connected to.
    Unreachable(Trouble),
    ConnectTimeout,
    /// Every server is at `max_connections`.
    Full,
    /// Every server is down or draining.
    Down,
    /// The upstream closed or reset the exchange before its answer's head was complete.
    Broken(Trouble),
    /// What came is no HTTP, or not a head that may be passed on.
    BadAnswer,
    ResponseTimeout,
    LocationTimeout,
}

impl Fault {
    /// What it says of the server; `None` when it says nothing.
    pub fn trouble(self) -> Option<Trouble> {
        Some(match self {
            Fault::Unreachable(trouble) | Fault::Broken(trouble) => trouble,
            Fault::ConnectTimeout => Trouble::ConnectTimeout,
            Fault::ResponseTimeout => Trouble::Timeout,
            Fault::BadAnswer => Trouble::BadAnswer,
            Fault::Client(_) | Fault::Full | Fault::Down | Fault::LocationTimeout => return None,
        })
    }

    /// Why the upstream gave no answer, in a closed set of words; `None` when that is not why there is none.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Fault::LocationTimeout => Some(LOCATION_TIMEOUT),
            other => other.trouble().map(Trouble::as_str),
        }
    }

    /// How it is counted; `None` when no server was asked.
    pub fn answered(self) -> Option<Answered> {
        Some(match self {
            Fault::Unreachable(_) => Answered::Unreachable,
            Fault::ConnectTimeout | Fault::ResponseTimeout | Fault::LocationTimeout => Answered::Timeout,
            Fault::Client(_) => Answered::Abandoned,
            Fault::BadAnswer => Answered::BadAnswer,
            Fault::Broken(_) => Answered::Broke,
            Fault::Full | Fault::Down => return None,
        })
    }
}
