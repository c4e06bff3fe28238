//! Client sockets, TLS towards clients, the PROXY protocol, RESP, the deadlines of connections, and failures of a bind.

pub mod acme_challenges;
pub mod bind_fault;
pub mod deadline;
pub mod proxy_protocol;
pub mod resp;
pub mod socket;
pub mod tls;
