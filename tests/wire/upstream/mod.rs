//! The ways to reach a server: HTTP/2, TLS, unix sockets, the PROXY protocol.

mod announced;
mod http2;
mod refusals;
mod tls;
mod unix;
