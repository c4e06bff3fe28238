//! Client sockets, TLS towards clients, the PROXY protocol, and the deadlines of connections.

pub mod deadline;
pub mod proxy_protocol;
pub mod socket;
pub mod tls;
