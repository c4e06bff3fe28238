//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms stand in the order a request meets them; the crates below them are in `crates/`. `ARCHITECTURE.md` tells
//! the life of a request and which room may import which.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

// The command line: arguments, commands, exit codes.
pub mod cli;

// The process: start, worker threads, listeners, signals, reloads, hot upgrades.
pub mod process;

// The client's side of a connection: accepting, connection limits, handshake, HTTP/1 and HTTP/2.
pub mod downstream;

// The tools of an operator: the admin listener and `explain`.
pub mod operate;

// Logs of the past against limits of the future: `replay` and `recommend`.
pub mod proof;

// The phases of a request, one after the other; the calls of the rate-limit service.
pub mod service;

// Admitted requests to upstreams and back.
pub mod forward;

// The decision about a request, from its head alone; its state until its last byte.
pub mod judge;

// The immutable snapshot of one configuration, and what a worker thread keeps for it.
pub mod gateway;

// Answers to requests that are not forwarded.
pub mod reject;
