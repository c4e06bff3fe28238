//! Limits that gateways share, against a real Redis.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, reason = "shared by several test binaries")]
#[path = "../limits/support.rs"]
mod limits;
use sluicegate_testkit as support;

mod bans_announced;
mod bans_gateways;
mod bans_lifted;
mod bans_script;
mod bans_support;
mod chain_slots;
mod departures;
mod explain;
mod faults_groups;
mod faults_network;
mod faults_server;
mod faults_support;
mod fleet_adversity;
mod fleet_exact;
mod fleet_failures;
mod fleet_groups;
mod fleet_harness;
mod fleet_keys;
mod fleet_seen;
mod fleet_slots;
mod floods;
mod key_resets;
mod link_access;
mod link_cluster;
mod link_fake;
mod link_liar;
mod link_log;
mod link_sentinel;
mod link_single;
mod link_support;
mod link_unready;
mod node_reports;
mod operator_entries;
mod operator_script;
mod operators;
mod outages;
mod outages_fleet;
mod reject_cache;
mod script_clock;
mod script_give;
mod script_model;
mod script_settle;
mod script_slots;
mod script_state;
mod script_support;
mod script_vectors;
mod server;
mod settled_charges;
mod settled_cuts;
mod settled_handovers;
mod settled_state;
mod slot_queue_outages;
mod slot_queues;
mod slot_turns;
mod trials;
mod upstream_stops;
mod views;
