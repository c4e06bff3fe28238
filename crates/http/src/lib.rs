//! HTTP on both sides of the gateway: client sockets, the facts of a request, servers, the usage of a response.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

/// The atomic types of the files that `tests/interleavings` compiles with those of loom.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
}

// Client sockets, TLS, the PROXY protocol, RESP, deadlines.
pub mod net;

// Facts about a request: client, location, account, key, access, headers, body.
pub mod request;

// The usage that a response reports, read from its body while it passes.
pub mod response;

// Upstreams: groups of servers, balancing, health, connection pools, HTTP/1 and HTTP/2 towards servers.
pub mod upstream;
