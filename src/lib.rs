//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms, in the order a request meets them, are told in `ARCHITECTURE.md`.

#![forbid(unsafe_code)]

pub mod access_log;
pub mod admin;
pub mod banner;
pub mod body;
pub mod chain;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deadline;
pub mod escape;
pub mod limit;
pub mod logging;
pub mod metrics;
pub mod record;
pub mod reject;
pub mod request_id;
#[path = "server_standin.rs"]
pub mod server;
pub mod socket;
pub mod table;
pub mod upstream;
pub mod wall;
