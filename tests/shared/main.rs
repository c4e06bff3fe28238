//! Limits that gateways share, against a real Redis.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, reason = "shared by several test binaries")]
#[path = "../../crates/admission/tests/limits/support.rs"]
mod limits;
use sluicegate_testkit as support;

mod bans;
mod chain_slots;
mod departures;
mod explain;
mod faults;
mod fleet;
mod floods;
mod key_resets;
mod link;
mod node_reports;
mod operator_entries;
mod operator_script;
mod operators;
mod outages;
mod outages_fleet;
mod reject_cache;
mod script;
mod server;
mod settled;
mod slots;
mod trials;
mod upstream_stops;
mod views;
