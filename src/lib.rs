//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms stand in the order a request meets them; each imports only from rooms below it. `ARCHITECTURE.md` tells
//! the life of a request.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used)]

/// Admission: the limits of a request as one transaction, and bans.
pub mod admission;
/// The clock, the time of day, sets of networks, escaping.
pub mod base;
/// The command line: arguments, commands, exit codes.
pub mod cli;
/// `gateway.yaml`: read, typed, checked, described.
pub mod config;
/// The client's side of a connection: accepting, connection limits, handshake, HTTP/1 and HTTP/2.
pub mod downstream;
/// The algorithms of limits, the bounded table under them, snapshots, bandwidth.
pub mod limit;
/// Client sockets, TLS, the PROXY protocol, deadlines.
pub mod net;
/// Metrics, the access log, the program's own log, the start-up banner.
pub mod observe;
/// The tools of an operator: the admin listener and `explain`.
pub mod operate;
/// The process: start, worker threads, listeners, signals, reloads, hot upgrades.
pub mod process;
/// A request from its head to its last byte: judged, queued, rejected or forwarded.
pub mod proxy;
/// Facts about a request: client, location, account, key, access, headers, body.
pub mod request;
/// Counters that gateways share through Redis or Valkey.
pub mod shared;
/// Upstreams: groups of servers, balancing, health, connection pools, HTTP/1 and HTTP/2 towards servers.
pub mod upstream;
