//! Why a request that was admitted got no answer from its upstream.

use crate::body::BodyFault;

/// The cause, with its source: the client, the upstream, or the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client broke its own request body.
    Client(BodyFault),
    /// No server could be connected to.
    Unreachable,
    ConnectTimeout,
    /// Every server is at `max_connections`.
    Full,
    /// The upstream closed or garbled the exchange before its answer's head was complete.
    Broken,
    /// The answer's head is not one that may be passed on.
    BadAnswer,
    ResponseTimeout,
    LocationTimeout,
}
