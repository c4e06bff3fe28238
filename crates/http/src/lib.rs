//! HTTP on both sides of the gateway: client sockets, the facts of a request, servers, the usage of a response.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

// Client sockets, TLS, the PROXY protocol, RESP, deadlines.
pub mod net;

// Facts about a request: client, location, account, key, access, headers, body.
pub mod request;

// The usage that a response reports, read from its body while it passes.
pub mod response;

// Upstreams: groups of servers, balancing, health, connection pools, HTTP/1 and HTTP/2 towards servers.
pub mod upstream;
