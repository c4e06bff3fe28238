//! Limits that many gateways share: against a real Redis.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

mod bans_announced;
mod bans_script;
mod bans_support;
mod link_single;
mod link_support;
mod server;
