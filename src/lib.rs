//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms, in the order a request meets them, are told in `ARCHITECTURE.md`.

#![forbid(unsafe_code)]

pub mod account;
pub mod client;
pub mod clock;
pub mod config;
pub mod forwarded;
pub mod hop_by_hop;
pub mod key;
pub mod location;
pub mod source;
pub mod table;
