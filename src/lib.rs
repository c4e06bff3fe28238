//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The program around the gateway. Requests are handled in `crates/proxy`, on the crates beside it;
//! `ARCHITECTURE.md` tells the life of a request and the purpose of each crate.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

// The command line: arguments, commands, exit codes.
pub mod cli;

// The process: start, worker threads, listeners, signals, reloads, hot upgrades.
pub mod process;

// The tools of an operator: the admin API, `explain`, traffic.
pub mod operate;

// Simulations of limits before they are deployed: `test`, `replay` and `recommend`.
pub mod simulate;
