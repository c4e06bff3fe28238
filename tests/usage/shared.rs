//! Limits that are counted in Redis.

use std::collections::HashMap;

use serde_json::Value;
use sluicegate_testkit::{Cluster, Gateway, Redis, eventually, get};

use crate::{admin_json, as_account, ask, numbers, of};

fn file(url: &str) -> String {
    format!(
        "account: {{ from: header:x-account }}
access_log: {{ hash_keys: false }}
state: {{ store: redis, redis: {{ url: {url}, timeout: 200ms }} }}
limits:
  plan: {{ key: account, rate: 9/year }}
  bucket: {{ key: account, rate: 1/1h, burst: 30 }}
  slots: {{ key: account, algorithm: concurrency, max_concurrent: 3 }}
locations:
  - {{ path: = /usage, usage: {{}} }}
  - {{ path: /, respond: {{ body: ok }}, limits: [plan, bucket, slots] }}
"
    )
}

fn start(url: &str) -> Gateway {
    let gateway = Gateway::start(&file(url));
    let is_enforcing = || !gateway.admin_get("/readyz").text().contains("degraded");
    eventually("a gateway that uses Redis", is_enforcing);
    gateway
}

fn call(gateway: &Gateway, account: &str, times: usize) {
    for _ in 0..times {
        gateway.ask(&as_account("/", account)).expect(200);
    }
}

/// The units that each key has used.
fn listed(gateway: &Gateway) -> HashMap<String, i64> {
    let list = admin_json(gateway, "/limits/plan/usage");
    let keys = list["keys"].as_array().expect("keys");
    let named = keys.iter().map(|one| (one["key"].as_str().expect("a name").to_owned(), numbers(one).0));
    let all: HashMap<String, i64> = named.collect();
    assert_eq!(all.len(), keys.len(), "each key once: {list:#}");
    all
}

#[test]
fn gateways_tell_the_same_in_one_question() {
    let redis = Redis::start();
    let url = format!("\"{}\"", redis.url());
    let [one, other] = [(); 2].map(|()| start(&url));
    call(&one, "acme", 2);
    call(&other, "acme", 3);
    // A slot is given back a moment after its response.
    let free = || numbers(of(&ask(&one, "/usage", "acme"), "slots")) == (0, 3, 3);
    eventually("free slots", free);
    let before = redis.judgements();
    let told = ask(&one, "/usage", "acme");
    assert_eq!(redis.judgements() - before, 1);
    assert_eq!(numbers(of(&told, "plan")), (5, 4, 9));
    assert_eq!((numbers(of(&told, "bucket")), numbers(of(&told, "slots"))), ((5, 25, 30), (0, 3, 3)));
    assert_eq!(told, ask(&other, "/usage", "acme"));
    let shown = admin_json(&other, "/limits/plan/keys/account=acme");
    assert_eq!(shown["usage"][0], *of(&told, "plan"));
    // A used-up quota hides no other limit.
    call(&one, "acme", 4);
    one.ask(&as_account("/", "acme")).expect(429);
    assert_eq!(numbers(of(&ask(&one, "/usage", "acme"), "plan")), (9, 0, 9));
    eventually("free slots", free);
}

#[test]
fn without_an_answer_the_use_is_unknown() {
    let redis = Redis::start();
    let gateway = start(&format!("\"{}\"", redis.url()));
    call(&gateway, "acme", 1);
    redis.pause();
    let told = ask(&gateway, "/usage", "acme");
    for limit in ["plan", "bucket", "slots"] {
        for member in ["used", "reserved", "left", "step"] {
            assert_eq!(of(&told, limit)[member], Value::Null, "{limit} {member}");
        }
    }
    let plan = of(&told, "plan");
    assert!(plan["quota"] == 9 && plan["begins"].is_string() && plan["ends"].is_string(), "{plan}");
    gateway.admin_get("/limits/plan/usage").expect(503);
    redis.resume();
}

#[test]
fn all_primaries_are_listed() {
    let cluster = Cluster::start();
    let gateway = start(&cluster.url());
    for number in 0..300 {
        call(&gateway, &format!("account-{number}"), 1 + usize::from(number == 7));
    }
    let listed = listed(&gateway);
    assert_eq!((listed.len(), listed["account=account-7"]), (300, 2));
    let owners = cluster.primaries().filter(|primary| !primary.counters().is_empty()).count();
    assert!(owners > 1, "the keys are on one primary");
}

#[test]
fn a_server_that_allows_no_scan_gives_an_error_and_no_list() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "limited", "on", ">pw", "~sg:*", "+@all", "-scan"]);
    let gateway = start(&format!("\"{}\"", redis.url().replace("redis://", "redis://limited:pw@")));
    call(&gateway, "acme", 1);
    let refused =
        gateway.ask_admin(&get("/limits/plan/usage").header("Accept", "application/json")).expect(503);
    assert!(refused.json()["error"].as_str().is_some_and(|why| why.contains("+scan")), "{}", refused.text());
    redis.command(&["ACL", "SETUSER", "limited", "+scan"]);
    assert_eq!(listed(&gateway).len(), 1);
}

/// A counter of a year as Redis keeps it, with the numbers that `change` leaves.
fn rewrite(redis: &Redis, change: impl Fn(&mut [f64])) {
    let names = redis.keys().into_iter().map(|(name, _)| name);
    let name = names.into_iter().find(|name| name.windows(3).any(|part| part == b":W:")).expect("a counter");
    let mut connection = redis.connect();
    let value: Vec<u8> = ::redis::cmd("GET").arg(&name).query(&mut connection).expect("a value");
    let (numbers, text) = value.split_at(96);
    let mut numbers: Vec<f64> =
        numbers.chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().expect("eight"))).collect();
    change(&mut numbers);
    let value = [numbers.iter().flat_map(|number| number.to_le_bytes()).collect(), text.to_vec()].concat();
    ::redis::cmd("SET").arg(&name).arg(value).arg("KEEPTTL").exec(&mut connection).expect("a write");
}

#[test]
fn the_last_window_is_listed_with_its_own_numbers() {
    let redis = Redis::start();
    let gateway = start(&format!("\"{}\"", redis.url()));
    call(&gateway, "acme", 2);
    let last = || admin_json(&gateway, "/limits/plan/usage?window=last")["keys"].clone();
    assert_eq!(last().as_array().map(Vec::len), Some(0), "nothing was counted in it");
    let current = &admin_json(&gateway, "/limits/plan/usage")["keys"][0];
    let year: i64 = current["begins"].as_str().expect("a time")[..4].parse().expect("a year");
    let days = |year: i64| if year % 4 == 0 { 366.0 } else { 365.0 };
    let before = days(year - 1) * 86_400.0;
    rewrite(&redis, |numbers| {
        (numbers[4], numbers[5], numbers[6], numbers[11]) = (numbers[0] - before, 7.0, 3.0, 8.0)
    });
    let entry = last()[0].clone();
    assert_eq!(
        (numbers(&entry), &entry["rate"], &entry["reserved"]),
        ((7, 1, 8), &"8/year".into(), &3.into())
    );
    assert_eq!((&entry["ends"], &entry["key"]), (&current["begins"], &"account=acme".into()));
    // A key that has counted nothing in it is not listed.
    rewrite(&redis, |numbers| numbers[5] = 0.0);
    assert_eq!(last().as_array().map(Vec::len), Some(0));
    rewrite(&redis, |numbers| numbers[5] = 7.0);
    // A year that is further back is not the last one.
    let earlier = before + days(year - 2) * 86_400.0;
    rewrite(&redis, |numbers| numbers[4] = numbers[0] - earlier);
    assert_eq!(last().as_array().map(Vec::len), Some(0));
    // Nothing was counted since the border: the window of the counter is the last one.
    rewrite(&redis, |numbers| (numbers[0], numbers[1]) = (numbers[0] - before, numbers[0]));
    assert_eq!(numbers(&last()[0]), (2, 7, 9));
    assert_eq!(listed(&gateway).len(), 0);
}
