//! The rate-limit service from outside: calls of applications to the real binary.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod attack;
mod auth;
mod callers;
mod check;
mod explain;
mod leases;
mod listeners;
mod operators;
mod page;
mod resp;
mod rls;
mod shared_limits;
mod shares;
mod storm;
mod waits;

use std::net::SocketAddr;

use serde_json::{Value, json};
use support::*;

/// The listener of the service, which is the last one.
fn service(gateway: &Gateway) -> SocketAddr {
    *gateway.addrs().last().expect("a listener of the service")
}

fn call(gateway: &Gateway, path: &str, body: &Value) -> Response {
    Client::connect(service(gateway)).ask(&post(path, body.to_string().as_bytes()))
}

fn check(gateway: &Gateway, body: &Value) -> Response {
    call(gateway, "/check", body)
}

/// A gateway with the service and these top-level lines; nothing is forwarded.
fn start(lines: &str) -> Gateway {
    Gateway::start(&format!("service: {{ listen: 127.0.0.1:0 }}\n{lines}\nlocations: []\n"))
}

fn lease_of(response: &Response) -> String {
    response.json()["lease"].as_str().unwrap_or_else(|| panic!("no lease: {}", response.text())).to_owned()
}

fn release(gateway: &Gateway, lease: &str) -> Response {
    call(gateway, "/release", &json!({ "lease": lease }))
}
