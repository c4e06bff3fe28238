//! The store on a real Redis: its scripts, its connections, and what gateways share through it.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[path = "../../../admission/tests/limits/crowd.rs"]
mod crowd;
#[allow(dead_code, reason = "shared with the limit tests")]
#[path = "../../../admission/tests/limits/support.rs"]
mod limits;
use sluicegate_testkit as support;

mod bans;
mod chain_slots;
mod departures;
mod key_resets;
mod link;
mod node_reports;
mod operator_entries;
mod operator_script;
mod reject_cache;
mod script;
mod server;
mod settled;
mod views;
