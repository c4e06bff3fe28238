//! The client's side of a connection: accept, count, handshake, then HTTP/1 or HTTP/2.
//!
//! [`bind`] opens the listening sockets, [`worker_thread`] runs a worker with its own. [`accept`] takes a connection
//! from there. [`connection_limits`] counts it against
//! `max_connections` and `connections_per_ip`. [`connection`] serves it on this worker, or hands it over before its
//! first byte is read to a worker that clearly has fewer; from then on it never changes thread. Where its listener asks
//! for it ([`listener_protocol`]), [`handshake`] reads a PROXY header and performs TLS on the worker that serves it,
//! both under one deadline. Then hyper parses the head and calls the service of the connection
//! ([`crate::service`]).
//!
//! The task of an idle connection waits on the bare socket and detects the protocol from the first bytes. hyper and its
//! buffers exist only while requests are served; after two ticks without one they are freed. Over HTTP/2 each stream
//! has a task and a `RequestWatch` of its own beside the `ConnectionWatch`. A protocol switch hands the connection to a
//! `Takeover`, which for all upgrades is the tunnel of [`crate::forward`].
//!
//! A listener for Redis clients has neither: [`resp`] reads their commands, which never wait, and writes the replies of
//! all that have come together.
//!
//! A connection holds the `ListenerTerms` of its listener: when a reload tightens these terms or removes the listener,
//! the connection ends after its requests in flight.

pub mod accept;
pub mod bind;
pub mod connection;
pub mod connection_limits;
pub(crate) mod h2_guard;
pub(crate) mod handshake;
pub(crate) mod http1;
pub(crate) mod http2;
pub mod listener_protocol;
pub(crate) mod resp;
pub mod worker_thread;
