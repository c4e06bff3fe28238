//! The client's side: accepted, counted, unwrapped from PROXY and TLS, then served over HTTP/1 or HTTP/2.

pub(crate) mod accept;
pub(crate) mod connection;
pub(crate) mod connection_limits;
pub(crate) mod h2_guard;
pub(crate) mod handshake;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod listener_protocol;
