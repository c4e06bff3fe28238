//! Limits that many gateways share: against a real Redis.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

mod link_access;
mod link_cluster;
mod link_fake;
mod link_liar;
mod link_log;
mod link_sentinel;
mod link_single;
mod link_support;
mod link_unready;
mod server;
