//! The gateway from outside: the real binary between raw-socket clients and a recording upstream.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

mod access_lists;
mod access_log;
mod accounts;
mod adaptive;
mod admin_bans;
mod admin_calls;
mod admin_changes;
mod admin_events;
mod admin_keys;
mod admin_limits;
mod adversity;
mod bandwidth;
mod bans;
mod commands;
mod connections;
mod cors;
mod degrade;
mod deploy;
mod drain_time;
mod dry_run;
mod examples;
mod explain;
mod explain_all;
mod forwarding;
mod framing_replies;
mod framing_requests;
mod harness;
mod header_edits;
mod hostile_files;
mod hostile_replies;
mod hostile_requests;
mod identity;
mod metrics;
mod missing_key;
mod operations;
mod operator_commands;
mod origins;
mod proxy_protocol;
mod rejection;
mod resting;
mod routing;
mod secrets;
mod servers_drain;
mod servers_eject;
mod servers_health;
mod servers_reasons;
mod servers_retry;
mod snapshot;
mod systemd;
mod throttle_chain;
mod throttle_concurrency;
mod throttle_fair;
mod throttle_queue;
mod throttle_rates;
mod throttle_windows;
mod timeouts;
mod tls;
mod tls_adversity;
mod traces;
mod underscores;
mod upstream_http2;
mod upstream_refusals;
mod upstream_tls;
mod upstream_unix;
mod wall_clock;
