//! The examples of the rate-limit service, each asked by its door.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;

use crate::examples::example;
use crate::support::*;

/// The listener of the service, which is the last one.
fn service(gateway: &Gateway) -> SocketAddr {
    *gateway.addrs().last().expect("a listener of the service")
}

/// A call of a proxy about a request of this client.
fn auth(target: &str) -> Ask {
    let described = [("Method", "GET"), ("Uri", target), ("Host", "shop.test"), ("Proto", "http")];
    let ask =
        get("/auth").header("X-Forwarded-For", "192.0.2.1").header("Sluicegate-Token", "change-this-token");
    described.iter().fold(ask, |ask, (name, value)| ask.header(&format!("X-Forwarded-{name}"), value))
}

fn statuses(gateway: &Gateway, ask: &Ask, calls: usize) -> Vec<u16> {
    let mut client = Client::connect(service(gateway));
    (0..calls).map(|_| client.ask(ask).status).collect()
}

#[test]
fn beside_nginx() {
    let gateway = example("beside_nginx", "");
    let seen = statuses(&gateway, &auth("/a"), 25);
    assert!((20..=24).contains(&seen.iter().filter(|status| **status == 200).count()), "{seen:?}");
    let refused =
        Client::connect(service(&gateway)).ask(&auth("/a").header("X-Auth-Status", "403")).expect(403);
    assert_eq!(refused.header("x-ratelimit-status"), Some("429".to_owned()));
}

#[test]
fn beside_traefik() {
    let gateway = example("beside_traefik", "");
    let seen = statuses(&gateway, &auth("/a"), 25);
    assert!((20..=24).contains(&seen.iter().filter(|status| **status == 200).count()), "{seen:?}");
    let stranger = auth("/a").header("Sluicegate-Token", "another");
    Client::connect(service(&gateway)).ask(&stranger).expect(400);
}

#[test]
fn envoy_rate_limit() {
    let gateway = example("envoy_rate_limit", "");
    let ask = |entries: serde_json::Value| {
        let call = json!({ "domain": "shop", "descriptors": [{ "entries": entries }] }).to_string();
        Client::connect(service(&gateway)).ask(&post("/json", call.as_bytes())).status
    };
    let login =
        json!([{ "key": "path", "value": "/login" }, { "key": "remote_address", "value": "192.0.2.1" }]);
    let seen: Vec<u16> = (0..6).map(|_| ask(login.clone())).collect();
    assert_eq!(seen, [200, 200, 200, 200, 200, 429]);
    assert_eq!(ask(json!([{ "key": "remote_address", "value": "192.0.2.1" }])), 200);
    assert_eq!(ask(json!([{ "key": "account", "value": "internal-1" }])), 200);
}

#[test]
fn redis_throttle() {
    let gateway = example("redis_throttle", "");
    let mut connection = BufReader::new(TcpStream::connect(service(&gateway)).expect("the gateway accepts"));
    connection.get_ref().set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut throttle = || {
        connection.get_mut().write_all(b"CL.THROTTLE user123 15 30 60\r\n").expect("a command");
        let mut lines = (&mut connection).lines().map(|line| line.expect("a reply"));
        lines.by_ref().take(6).collect::<Vec<String>>()
    };
    assert_eq!(throttle()[..4], ["*5", ":0", ":16", ":15"]);
    (0..15).for_each(|_| assert_eq!(throttle()[1], ":0"));
    assert_eq!(throttle()[1], ":1");
    gateway.get("/health").expect(200);
    gateway.get("/").expect(404);
}

#[test]
fn sms_sender() {
    let gateway = example("sms_sender", "");
    let call = json!({ "limits": ["per-customer", "provider"], "key": { "account": "acme" }, "wait": "2s" })
        .to_string();
    let verdicts: Vec<u16> = (0..10)
        .map(|_| Client::connect(service(&gateway)).ask(&post("/check", call.as_bytes())).status)
        .collect();
    assert_eq!(verdicts, [200; 10]);
    let call = json!({ "limits": "per-customer", "key": { "account": "acme" } }).to_string();
    Client::connect(service(&gateway)).ask(&post("/check", call.as_bytes())).expect(429);
}
