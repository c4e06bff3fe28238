//! Keys of limits over the admin API: shown, reset, and granted other numbers for a while.

use serde_json::Value;

use super::events::EventReader;
use crate::support::*;

const FILE: &str = "account: { from: header:x-account }
limits:
  per-ip: { rate: 3/h }
  slots: { algorithm: concurrency, max_concurrent: 5 }
  per-account: { key: account, rate: 2/h, tiers: { gold: { rate: 5/h } } }
  by-uri: { key: [ip, uri], rate: 100/h }
locations:
  - { path: /, respond: { body: ok }, limits: [per-ip, slots] }
  - { path: /a, respond: { body: ok }, limits: [per-account, by-uri] }
";

fn json_of(gateway: &Gateway, target: &str) -> Value {
    gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
}

fn change(gateway: &Gateway, method: &str, target: &str, body: &str) -> Response {
    let ask = Ask::new(method, target).header("Content-Type", "application/json").body(body.as_bytes());
    gateway.ask_admin(&ask)
}

fn audits(gateway: &Gateway) -> Vec<Value> {
    let lines = gateway.stderr();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "audit").collect()
}

#[test]
fn the_keys_of_a_limit_are_listed() {
    let gateway = Gateway::start(FILE);
    (0..3).for_each(|_| drop(gateway.get("/").expect(200)));
    (0..2).for_each(|_| drop(gateway.get("/").expect(429)));
    Client::connect_from("127.0.0.2", gateway.addr()).ask(&get("/")).expect(200);
    let list = json_of(&gateway, "/limits/per-ip/keys");
    assert_eq!((&list["limit"], &list["by"]), (&"per-ip".into(), &"refused".into()));
    assert_eq!(list["keys"].as_array().map(Vec::len), Some(1), "{list:#}");
    let key = &list["keys"][0];
    assert_eq!((&key["key"], &key["ban"]), (&"ip=127.0.0.1".into(), &"127.0.0.1".into()));
    assert_eq!((&key["remaining"], &key["waiting"], &key["grant"]), (&0.into(), &0.into(), &Value::Null));
    assert!((1100.0..1200.1).contains(&key["reset_s"].as_f64().expect("a time")), "{key:#}");
    assert!(key["asked_per_s"].as_f64() > key["refused_per_s"].as_f64(), "{key:#}");
    let asked = json_of(&gateway, "/limits/per-ip/keys?by=asked");
    assert_eq!(asked["keys"].as_array().map(Vec::len), Some(2), "{asked:#}");
    assert_eq!(asked["keys"][1]["remaining"], 2);
    let one = json_of(&gateway, "/limits/per-ip/keys?by=asked&top=1");
    assert_eq!(one["keys"].as_array().map(Vec::len), Some(1));
    let text = gateway.admin_get("/limits/per-ip/keys").expect(200).text();
    assert!(text.starts_with("key           asked/s") && text.contains("ip=127.0.0.1  "), "{text}");
    let none = gateway.admin_get("/limits/per-account/keys").expect(200).text();
    assert_eq!(none, "no key of per-account was refused lately\n");
    let refused = gateway.admin_get("/limits/nowhere/keys").expect(404);
    assert_eq!(refused.text(), "no limit is called `nowhere`\n");
    let slots = json_of(&gateway, "/limits/slots/keys/ip=127.0.0.1");
    assert_eq!((&slots["remaining"], &slots["reset_s"]), (&5.into(), &Value::Null));
}

#[test]
fn one_key_is_found_by_its_name() {
    let gateway = Gateway::start(FILE);
    for account in ["acme", "acme", "acme", "other"] {
        gateway.ask(&get("/a").header("X-Account", account));
    }
    let key = json_of(&gateway, "/limits/per-account/keys/account=acme");
    assert_eq!(key["remaining"], 0, "{key:#}");
    let gold = json_of(&gateway, "/limits/per-account/keys/account=acme?tier=gold");
    assert_eq!(gold["remaining"], 5, "{gold:#}");
    // An account is shown as a hash, by which it is found, but not banned.
    let shown = key["key"].as_str().expect("a name");
    assert!(shown.starts_with("account=#") && key["ban"].is_null(), "{key:#}");
    let by_hash = json_of(&gateway, &format!("/limits/per-account/keys/{}", shown.replace('#', "%23")));
    assert_eq!((&by_hash["key"], &by_hash["remaining"]), (&key["key"], &0.into()));
    let compound = json_of(&gateway, "/limits/by-uri/keys/ip=127.0.0.1,uri=/a");
    assert_eq!((&compound["remaining"], &compound["ban"]), (&97.into(), &"127.0.0.1".into()));
    let wrong = gateway.admin_get("/limits/per-ip/keys/account=acme").expect(400);
    assert_eq!(wrong.text(), "limit per-ip counts by ip: write ip=ADDRESS\n");
    gateway.admin_get("/limits/nowhere/keys/ip=127.0.0.1").expect(404);
    let fresh = json_of(&gateway, "/limits/per-ip/keys/ip=192.0.2.9");
    assert_eq!((&fresh["remaining"], &fresh["key"]), (&3.into(), &"ip=192.0.2.9".into()));
}

/// Accounts are hashes for those who may not see them, and in the log.
#[test]
fn accounts_are_shown_by_name_to_tokens_that_may_see_them() {
    let tokens = "[{ name: ops, token: one }, { name: eye, token: two, allow: read }, \
                  { name: desk, token: three, allow: read, names: true }]";
    let file =
        format!("admin: {{ listen: \"127.0.0.1:0\", tokens: {tokens} }}\nlog: {{ format: json }}\n{FILE}");
    let gateway = Gateway::start(&file);
    (0..3).for_each(|_| drop(gateway.ask(&get("/a").header("X-Account", "acme"))));
    let with = |token: &str, ask: Ask| {
        gateway.ask_admin(&ask.header("Authorization", format!("Bearer {token}"))).expect(200)
    };
    let read = |token, target: &str| with(token, get(target).header("Accept", "application/json")).json();
    for (token, sees) in [("one", true), ("two", false), ("three", true)] {
        let list = read(token, "/limits/per-account/keys");
        let key = list["keys"][0]["key"].as_str().expect("a name");
        assert_eq!(key == "account=acme", sees, "{token}: {list:#}");
        assert_eq!(key.starts_with("account=#"), !sees, "{token}: {list:#}");
        assert_eq!(list["keys"][0]["ban"], if sees { "account=acme".into() } else { Value::Null });
        let one = read(token, "/limits/per-account/keys/account=acme");
        assert_eq!((&one["key"], &one["remaining"]), (&key.into(), &0.into()));
        let mut events = EventReader::open_with(&gateway, &format!("Authorization: Bearer {token}\r\n"));
        for _ in 0..2 {
            let event = events.next_event();
            assert_eq!(event["refusals"][0]["key"], key, "{token}: {event:#}");
        }
    }
    let reset = Ask::new("POST", "/limits/per-account/keys/account=acme/reset");
    gateway.ask_admin(&reset.clone().header("Authorization", "Bearer two")).expect(403);
    with("one", reset.header("Content-Type", "application/json").body(b"{}"));
    eventually("two audit lines", || audits(&gateway).len() == 2);
    let targets: Vec<String> = audits(&gateway).iter().map(|line| line["target"].to_string()).collect();
    assert_eq!(targets[0], "\"limit per-account, key of an account\"");
    assert!(targets[1].contains("key account=#") && !gateway.stderr().contains("acme"), "{targets:?}");
}

#[test]
fn a_refused_key_is_reset() {
    let gateway = Gateway::start(&format!("log: {{ format: json }}\n{FILE}"));
    (0..3).for_each(|_| drop(gateway.get("/").expect(200)));
    gateway.get("/").expect(429);
    let reset = "/limits/per-ip/keys/ip=127.0.0.1/reset";
    let after = change(&gateway, "POST", reset, r#"{"reason": "a false alarm"}"#).expect(200).json();
    assert_eq!(after["remaining"], 3, "{after:#}");
    gateway.get("/").expect(200);
    eventually("the audit line", || !audits(&gateway).is_empty());
    let line = audits(&gateway).remove(0);
    for (field, value) in [
        ("call", "reset_key"),
        ("target", "limit per-ip, key ip=127.0.0.1"),
        ("before", r#"{"remaining":0,"waiting":0}"#),
        ("after", r#"{"remaining":3,"waiting":0}"#),
        ("reason", "a false alarm"),
        ("result", "ok"),
    ] {
        assert_eq!(line[field], value, "{field} in {line:#}");
    }
    let refused = change(&gateway, "POST", "/limits/slots/keys/ip=127.0.0.1/reset", "").expect(409).json();
    assert!(
        refused["error"].as_str().expect("a text").starts_with("a concurrency limit counts"),
        "{refused}"
    );
    change(&gateway, "POST", "/limits/per-ip/keys/host=a/reset", "").expect(400);
    change(&gateway, "POST", "/limits/nowhere/keys/ip=127.0.0.1/reset", "").expect(404);
    let tier = "/limits/per-account/keys/account=acme/reset";
    change(&gateway, "POST", tier, r#"{"tier": "gold"}"#).expect(200);
    change(&gateway, "POST", tier, r#"{"tier": "silver"}"#).expect(400);
    change(&gateway, "POST", tier, r#"{"tiers": "gold"}"#).expect(400);
}

#[test]
fn a_grant_admits_until_it_ends() {
    let gateway = Gateway::start(&format!("log: {{ format: json }}\n{FILE}"));
    (0..3).for_each(|_| drop(gateway.get("/").expect(200)));
    gateway.get("/").expect(429);
    let grant = "/limits/per-ip/keys/ip=127.0.0.1/grant";
    let body = r#"{"rate": "100/s", "burst": 5000, "for": "2s", "reason": "a demo"}"#;
    let after = change(&gateway, "POST", grant, body).expect(200).json();
    assert_eq!(after["grant"]["numbers"], "100 requests per second, burst 5000", "{after:#}");
    assert_eq!((&after["grant"]["by"], &after["grant"]["reason"]), (&"loopback".into(), &"a demo".into()));
    assert_eq!(after["remaining"], 5000);
    (0..20).for_each(|_| drop(gateway.get("/").expect(200)));
    let key = || json_of(&gateway, "/limits/per-ip/keys/ip=127.0.0.1");
    eventually("the end of the grant", || key()["grant"].is_null());
    gateway.get("/").expect(429);
    assert_eq!(key()["remaining"], 0);
    change(&gateway, "DELETE", grant, "").expect(404);
    change(&gateway, "POST", grant, &body.replace("2s", "1h")).expect(200);
    gateway.get("/").expect(200);
    change(&gateway, "DELETE", grant, r#"{"reason": "over"}"#).expect(200);
    gateway.get("/").expect(429);
    for (body, error) in [
        ("{}", "a grant needs an end: `for`"),
        (r#"{"for": 5, "rate": "1/s"}"#, "`for` is not a text"),
        (r#"{"for": "5", "rate": "1/s"}"#, "the duration `5` has no unit"),
        (r#"{"for": "31d", "rate": "1/s"}"#, "at most 30 days"),
        (r#"{"for": "5s"}"#, "other numbers are missing"),
        (r#"{"for": "5s", "rate": "fast"}"#, "fast"),
        (r#"{"for": "5s", "rats": "1/s"}"#, "rats"),
    ] {
        let refused = change(&gateway, "POST", grant, body).expect(400).json();
        assert!(refused["error"].as_str().expect("a text").contains(error), "{body}: {refused}");
    }
    eventually("the audit lines", || audits(&gateway).len() == 11);
    let lines = audits(&gateway);
    assert_eq!((&lines[0]["before"], &lines[3]["after"]), (&"null".into(), &"null".into()));
    assert!(lines[0]["after"].as_str().expect("a text").contains("100 requests per second"), "{}", lines[0]);
}

#[test]
fn without_redis_a_grant_holds_here_and_a_reset_fails() {
    let gateway = Gateway::start(
        "state: { redis: { url: \"redis://127.0.0.1:9\" } }
limits: { everywhere: { rate: 2/h, state: redis } }
locations: [{ path: /, respond: { body: ok }, limits: everywhere }]
",
    );
    let key = "/limits/everywhere/keys/ip=127.0.0.1";
    assert_eq!(json_of(&gateway, key)["remaining"], Value::Null);
    let refused = change(&gateway, "POST", &format!("{key}/reset"), "").expect(503).json();
    let why = "Redis does not answer, so the key may not be reset there; try again";
    assert_eq!(refused["error"], why);
    change(&gateway, "POST", &format!("{key}/grant"), r#"{"rate": "4/h", "for": "1h"}"#).expect(200);
    (0..4).for_each(|_| drop(gateway.get("/").expect(200)));
    gateway.get("/").expect(429);
    let ended = change(&gateway, "DELETE", &format!("{key}/grant"), "").expect(200).json();
    assert_eq!(ended["grant"], Value::Null);
}
