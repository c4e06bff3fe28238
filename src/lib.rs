//! Sluicegate: a reverse-proxy gateway with built-in throttling.
//!
//! The rooms, in the order a request meets them, are told in `ARCHITECTURE.md`.

#![forbid(unsafe_code)]

pub mod access;
pub mod access_log;
pub mod account;
pub mod admin;
pub mod ban;
pub mod bandwidth;
pub mod banner;
pub mod body;
pub mod chain;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod deadline;
pub mod escape;
pub mod explain;
pub mod forward;
pub mod forwarded;
pub mod gateway;
pub mod glance;
pub mod hop_by_hop;
pub mod ip_set;
pub mod key;
pub mod limit;
pub mod location;
pub mod logging;
pub mod metrics;
pub mod proxy_protocol;
pub mod record;
pub mod reject;
pub mod request_id;
pub mod server;
pub mod snapshot;
pub mod socket;
pub mod source;
pub mod state;
pub mod table;
pub mod throttle;
pub mod tls;
pub mod underscores;
pub mod upstream;
pub mod visit;
pub mod wall;
pub mod worker;
