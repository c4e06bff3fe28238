//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms, in the order a request meets them, are told in `ARCHITECTURE.md`.

#![forbid(unsafe_code)]

pub mod body;
pub mod chain;
pub mod clock;
pub mod config;
pub mod deadline;
pub mod escape;
pub mod limit;
pub mod record;
pub mod reject;
pub mod request_id;
pub mod socket;
pub mod table;
pub mod upstream;
pub mod wall;
