//! Limits that gateways share: the real program, against a real Redis.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, reason = "shared with the tests of the store")]
#[path = "../../crates/store/tests/store/link/support.rs"]
mod link;
use sluicegate_testkit as support;

mod bans;
mod certificates;
mod departures;
mod explain;
mod faults;
mod fleet;
mod floods;
mod lease_faults;
mod lease_windows;
mod leases;
mod operators;
mod outages;
mod outages_fleet;
mod regions;
mod settled;
mod shares;
mod slots;
mod trials;
mod turns;
mod upstream_stops;
mod views;
