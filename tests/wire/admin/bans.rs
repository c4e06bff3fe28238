//! Bans over the admin API: shown, started and lifted.

use serde_json::Value;

use crate::support::*;

const FILE: &str = "log: { format: json }
account: { from: header:x-account }
bans: { after: 2/1m, for: 1h }
locations:
  - { path: /login, respond: { body: ok }, limits: 1/h }
  - { path: /, respond: { body: ok } }
";

fn bans(gateway: &Gateway) -> Value {
    gateway.ask_admin(&get("/bans").header("Accept", "application/json")).expect(200).json()
}

fn change(gateway: &Gateway, method: &str, target: &str, body: &str) -> Response {
    let ask = Ask::new(method, target).header("Content-Type", "application/json").body(body.as_bytes());
    gateway.ask_admin(&ask)
}

#[test]
fn a_banned_network_is_turned_away_until_it_is_unbanned() {
    let gateway = Gateway::start(FILE);
    let from = |ip: &str| Client::connect_from(ip, gateway.addr()).ask(&get("/"));
    from("127.0.7.9").expect(200);
    assert_eq!(gateway.admin_get("/bans").expect(200).text(), "nobody is banned\n");
    let body = r#"{"ip": "127.0.7.0/24", "reason": "scraping"}"#;
    let ban = change(&gateway, "POST", "/bans", body).expect(200).json();
    assert_eq!((&ban["banned"], &ban["by"]), (&"127.0.7.0/24".into(), &"loopback".into()));
    assert!((590.0..=600.0).contains(&ban["left_s"].as_f64().expect("a time")), "{ban}");
    let turned_away = from("127.0.7.9").expect(429);
    assert_eq!(turned_away.json()["detail"], "banned by an operator");
    assert!(!turned_away.text().contains("scraping") && !turned_away.text().contains("loopback"));
    let lines = gateway.wait_log(2);
    let logged = lines.iter().find(|line| line["verdict"] == "ban").expect("the line of the ban");
    assert_eq!(logged["error"], "banned by an operator");
    from("127.0.8.9").expect(200);
    let list = bans(&gateway);
    assert_eq!((&list["active"], &list["bans"][0]["reason"]), (&1.into(), &"scraping".into()));
    assert!(gateway.admin_get("/bans").expect(200).text().contains("127.0.7.0/24  loopback"));
    let part = change(&gateway, "DELETE", "/bans/127.0.7.9", "").expect(409).json();
    assert!(part["error"].as_str().expect("a text").contains("127.0.7.0/24"), "{part}");
    let ended = change(&gateway, "DELETE", "/bans/127.0.7.0/24", "").expect(200).json();
    assert_eq!(ended["ended"][0]["banned"], "127.0.7.0/24");
    from("127.0.7.9").expect(200);
    change(&gateway, "DELETE", "/bans/127.0.7.0%2F24", "").expect(404);
    eventually("the audit lines", || gateway.stderr().matches("\"message\":\"audit\"").count() == 4);
    let lines = gateway.stderr();
    let line = lines.lines().find(|line| line.contains("ban_client")).expect("an audit line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["target"], &line["before"]), (&"127.0.7.0/24".into(), &"null".into()));
    assert!(line["after"].as_str().expect("a text").contains("scraping") && line["reason"] == "scraping");
}

/// A ban does not refill the counter, so its end tells what the client still has to wait for.
#[test]
fn an_ended_ban_tells_what_the_counters_have_left() {
    let gateway = Gateway::start(
        "access_log: { hash_keys: false }\nlimits:\n  hourly: { rate: 2/h, burst: 2 }\n  \
         paths: { key: [ip, uri], rate: 9/h }\nlocations: [{ path: /, respond: { body: ok }, limits: [hourly, paths] }]\n",
    );
    (0..2).for_each(|_| drop(gateway.get("/").expect(200)));
    change(&gateway, "POST", "/bans", r#"{"ip": "127.0.0.1"}"#).expect(200);
    let left = &change(&gateway, "DELETE", "/bans/127.0.0.1", "").expect(200).json()["left"];
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    assert_eq!((&left[0]["limit"], &left[0]["key"]), (&"hourly".into(), &"ip=127.0.0.1".into()));
    assert_eq!(left[0]["remaining"], 0, "{left}");
    assert!((1_700.0..=1_800.0).contains(&left[0]["reset_s"].as_f64().expect("a time")), "{left}");
    gateway.get("/").expect(429);
}

#[test]
fn an_account_is_banned_and_bodies_are_checked() {
    let gateway = Gateway::start(FILE);
    let as_account = |name: &str| gateway.ask(&get("/").header("X-Account", name));
    change(&gateway, "POST", "/bans", r#"{"account": "acme", "for": "1h"}"#).expect(200);
    as_account("acme").expect(429);
    as_account("other").expect(200);
    change(&gateway, "DELETE", "/bans/account=acme", "").expect(200);
    as_account("acme").expect(200);
    for (body, error) in [
        ("{}", "either an `ip` or an `account`"),
        (r#"{"ip": "192.0.2.7", "account": "a"}"#, "either an `ip` or an `account`"),
        (r#"{"ip": "0.0.0.0/0"}"#, "0.0.0.0/0 is too large"),
        (r#"{"ip": "2000::/8"}"#, "at least /16"),
        (r#"{"ip": "example.com"}"#, "neither an address nor a network"),
        (r#"{"ip": "192.0.2.7", "for": "0s"}"#, "at least a moment"),
        (r#"{"ip": "192.0.2.7", "for": "ten"}"#, "`for`: "),
        (r#"{"ip": "192.0.2.7", "until": "1h"}"#, "unknown field `until`"),
        (r#"{"ip": 7}"#, "`ip` is not a text"),
    ] {
        let refused = change(&gateway, "POST", "/bans", body).expect(400).json();
        assert!(refused["error"].as_str().expect("a text").contains(error), "{body}: {refused}");
    }
    change(&gateway, "DELETE", "/bans/nobody", "").expect(400);
    assert_eq!(bans(&gateway)["bans"], Value::Array(vec![]));
}

#[test]
fn an_automatic_ban_is_lifted() {
    let gateway = Gateway::start(FILE);
    let from = |target: &str| Client::connect_from("127.0.0.5", gateway.addr()).ask(&get(target));
    from("/login").expect(200);
    (0..2).for_each(|_| drop(from("/login").expect(429)));
    assert_eq!(from("/").expect(429).json()["detail"], "banned for repeated rejections");
    assert!(gateway.wait_log(4)[3]["error"].is_null());
    eventually("the name of the ban", || bans(&gateway)["bans"][0]["banned"] == "127.0.0.5");
    assert_eq!(bans(&gateway)["bans"][0]["by"], "automatic");
    change(&gateway, "DELETE", "/bans/127.0.0.5", r#"{"reason": "an office"}"#).expect(200);
    from("/").expect(200);
    assert_eq!(bans(&gateway)["active"], 0);
}
