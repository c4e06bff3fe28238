//! Redis and the gateways that share it, as operators see them at any of them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::fleet::counting_on;
use crate::support::*;

/// Two gateways with one limit by account; `extra` is added to the file of the second.
fn two(redis: &Redis, extra: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(2, |place, upstream| {
        let extra = if place == 1 { extra } else { "" };
        format!(
            "{head}{extra}account: {{ from: header:x-account }}\n\
             limits:\n  shared: {{ key: account, rate: 6/h, burst: 6 }}\n  \
             own: {{ key: ip, rate: 6/h, state: local }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: shared }}\n  \
             - {{ path: /own, upstream: \"{upstream}\", limits: own }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    fleet
}

fn json(gateway: &Gateway, target: &str) -> Value {
    gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
}

fn ask(gateway: &Gateway, account: &str, count: usize) {
    for _ in 0..count {
        gateway.ask(&get("/").header("X-Account", account));
    }
}

/// The account as the access log of this gateway shows it now.
fn logged_account(gateway: &Gateway, account: &str) -> String {
    let before = gateway.log_lines().len();
    ask(gateway, account, 1);
    let lines = gateway.wait_log(before + 1);
    lines[before]["account"].as_str().expect("an account").to_owned()
}

#[test]
fn one_account_has_one_hash_on_all_gateways_and_after_a_restart() {
    let redis = Redis::start();
    let fleet = two(&redis, "");
    let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
    eventually("equal hashes", || logged_account(one, "acme") == logged_account(other, "acme"));
    let hash = logged_account(one, "acme");
    assert_ne!(hash, logged_account(one, "other"));
    // The names of keys, and the log of a gateway that was reloaded.
    let name = format!("account=#{}", hash.trim_start_matches('#'));
    let is_listed = |gateway| {
        let list = json(gateway, "/limits/shared/keys?by=asked");
        list["keys"].as_array().is_some_and(|keys| keys.iter().any(|key| key["key"] == *name))
    };
    eventually("the name of the key", || is_listed(one) && is_listed(other));
    let file = std::fs::read_to_string(one.file()).expect("the file");
    one.change(&file.replace("6/h, burst: 6 }", "7/h, burst: 7 }"));
    assert_eq!(logged_account(one, "acme"), hash, "after a reload");
    // A process that knows nothing but the store.
    let late = Gateway::start(&file);
    eventually("the hash again", || logged_account(&late, "acme") == hash);
    let own = Gateway::start(&format!("{file}access_log: {{ hash_secret: own }}\n"));
    ask(&own, "acme", 3);
    std::thread::sleep(ms(1_000));
    assert_ne!(logged_account(&own, "acme"), hash, "a secret of the file is not replaced");
}

#[test]
fn the_heaviest_keys_of_a_shared_limit_are_those_of_the_fleet() {
    let redis = Redis::start();
    let fleet = two(&redis, "access_log: { hash_keys: false }\n");
    let plain = std::fs::read_to_string(fleet.gateways[1].file()).expect("the file");
    fleet.gateways[0].change(&plain.replace("server: {", "server: { max_waiting: 100,"));
    let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
    let find = |gateway: &Gateway, by: &str, account: &str| -> Option<Value> {
        let list = json(gateway, &format!("/limits/shared/keys?by={by}&top=5"));
        assert!(list["gateways"].as_u64().is_some_and(|count| (1..=2).contains(&count)), "{list:#}");
        let keys = list["keys"].as_array().expect("keys").clone();
        keys.into_iter().find(|key| key["key"] == format!("account={account}"))
    };
    ask(one, "both", 20);
    ask(other, "both", 40);
    ask(other, "there", 9);
    for _ in 0..3 {
        one.get("/own");
    }
    let rate = |key: &Value, field: &str| key[field].as_f64().unwrap_or_default();
    let local = |gateway: &Gateway| {
        let key = json(gateway, "/limits/shared/keys/account=both");
        (rate(&key, "asked_per_s"), rate(&key, "refused_per_s"))
    };
    for gateway in [one, other] {
        eventually("the sum of both", || {
            let Some(key) = find(gateway, "asked", "both") else { return false };
            let sum = (local(one).0 + local(other).0, local(one).1 + local(other).1);
            let is_near = |found: f64, sum: f64| (0.85 * sum..1.15 * sum).contains(&found);
            is_near(rate(&key, "asked_per_s"), sum.0) && is_near(rate(&key, "refused_per_s"), sum.1)
        });
        let refused = json(gateway, "/limits/shared/keys");
        assert_eq!((&refused["keys"][0]["key"], &refused["gateways"]), (&"account=both".into(), &2.into()));
        let key = find(gateway, "refused", "both").expect("the key of both");
        assert_eq!(key["remaining"], 0, "known to each of them: {key:#}");
    }
    let there = find(one, "asked", "there").expect("a key that only the other has seen");
    assert!(there["remaining"].is_null() && rate(&there, "refused_per_s") > 0.0, "{there:#}");
    let text = one.admin_get("/limits/shared/keys").expect(200).text();
    assert!(text.ends_with("added up over 2 gateways\n"), "{text}");
    // A limit that each counts alone, on one of them.
    let own = json(one, "/limits/own/keys?by=asked");
    assert_eq!((own["keys"].as_array().map(Vec::len), &own["gateways"]), (Some(1), &1.into()), "{own:#}");
    std::thread::sleep(ms(4_500));
    let own = json(other, "/limits/own/keys?by=asked");
    assert_eq!((own["keys"].as_array().map(Vec::len), &own["gateways"]), (Some(0), &1.into()), "{own:#}");
}

#[test]
fn the_status_lists_the_gateways_with_their_files() {
    let redis = Redis::start();
    let mut fleet = two(&redis, "# another file\n");
    let nodes = |gateway: &Gateway| -> Vec<Value> {
        let status = json(gateway, "/status");
        status["redis"]["nodes"].as_array().expect("nodes").clone()
    };
    eventually("both", || fleet.gateways.iter().all(|gateway| nodes(gateway).len() == 2));
    for gateway in &fleet.gateways {
        let nodes = nodes(gateway);
        let of = |own: bool| nodes.iter().find(|node| node["own"] == own).expect("a node");
        assert_eq!((&of(true)["file_differs"], &of(false)["file_differs"]), (&false.into(), &true.into()));
        assert_eq!(of(true)["version"], env!("CARGO_PKG_VERSION"));
        assert!(!of(true)["name"].as_str().expect("a name").is_empty());
        let sum = std::process::Command::new("sha256sum").arg(gateway.file()).output().expect("sha256sum");
        let sum = String::from_utf8_lossy(&sum.stdout)[..12].to_owned();
        assert_eq!(of(true)["file_hash"], sum, "the beginning of what sha256sum writes");
        let started = of(true)["started_at_ms"].as_u64().expect("a time");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time").as_millis() as u64;
        assert!((now - 60_000..=now).contains(&started), "{started} {now}");
    }
    let text = fleet.gateways[0].admin_get("/status").expect(200).text();
    assert!(text.contains("\nredis       reachable; "), "{text}");
    assert!(text.contains(&format!("\n{}  -     up     closed ", redis.addr())), "{text}");
    assert!(text.contains("this one\n") && text.contains("its file differs\n"), "{text}");
    // The file in force counts, not an invalid one.
    let before = nodes(&fleet.gateways[0]);
    fleet.gateways[0].write("limits: 7\n");
    assert_eq!(fleet.gateways[0].reload().status, 422);
    std::thread::sleep(ms(4_500));
    let hashes = |nodes: &[Value]| nodes.iter().map(|node| node["file_hash"].clone()).collect::<Vec<_>>();
    assert_eq!(hashes(&nodes(&fleet.gateways[0])), hashes(&before));
    let same = std::fs::read_to_string(fleet.gateways[1].file()).expect("the file");
    fleet.gateways[0].change(&same.replace(&fleet.gateways[1].addr().to_string(), "127.0.0.1:0"));
    let left = &mut fleet.gateways[1];
    left.signal(Signal::TERM);
    left.wait_exit();
    // A report lasts for ten seconds.
    std::thread::sleep(ms(8_000));
    eventually("one gateway", || nodes(&fleet.gateways[0]).len() == 1);
}

#[test]
fn an_outage_is_shown_and_holds_up_no_answer() {
    let redis = Redis::start();
    let fleet = two(&redis, "");
    let one = &fleet.gateways[0];
    eventually("both", || {
        json(one, "/status")["redis"]["nodes"].as_array().is_some_and(|all| all.len() == 2)
    });
    eventually("keys of both", || {
        ask(one, "acme", 1);
        json(one, "/limits/shared/keys?by=asked")["gateways"] == 2
    });
    let store = json(one, "/status")["redis"].clone();
    // A machine that is too busy is an outage, too.
    let before = store["outages"].as_u64().expect("a count");
    assert!(store["reachable"] == true && store["unreachable_since_ms"].is_null(), "{store:#}");
    assert_eq!(store["last_outage"].is_null(), before == 0, "{store:#}");
    let server = &store["servers"][0];
    assert_eq!((&server["server"], &server["role"]), (&redis.addr().to_string().into(), &Value::Null));
    assert_eq!((&server["up"], &server["breaker"]), (&true.into(), &"closed".into()));
    assert!(server["calls"].as_u64() > Some(0) && server["mean_ms"].as_f64() > Some(0.0), "{server:#}");
    // It accepts calls and answers none, at first unnoticed.
    redis.pause();
    for target in ["/limits/shared/keys?by=asked", "/status"] {
        std::thread::sleep(ms(2_100));
        let began = Instant::now();
        let answer = json(one, target);
        assert!(began.elapsed() < ms(1_000), "{target} took {:?}", began.elapsed());
        match target {
            "/status" => assert!(answer["redis"]["nodes"].is_null(), "{answer:#}"),
            _ => assert_eq!(
                (&answer["gateways"], &answer["keys"][0]["remaining"].is_null()),
                (&1.into(), &false)
            ),
        }
    }
    fleet.wait_degraded();
    eventually("an outage", || json(one, "/status")["redis"]["reachable"] == false);
    let status = json(one, "/status");
    let outages = status["redis"]["outages"].as_u64().expect("a count");
    assert!(outages > before, "{status:#}");
    let since = status["redis"]["unreachable_since_ms"].as_u64().expect("a time");
    assert_eq!(status["redis"]["servers"][0]["breaker"], "open");
    let text = one.admin_get("/status").expect(200).text();
    assert!(text.contains("\nredis       unreachable for "), "{text}");
    let event = one_event(one);
    assert_eq!((&event["reachable"], &event["outages"]), (&false.into(), &outages.into()));
    redis.resume();
    fleet.wait_enforcing();
    eventually("the end of the outage", || json(one, "/status")["redis"]["reachable"] == true);
    let last = json(one, "/status")["redis"]["last_outage"].clone();
    assert!(last["began_at_ms"].as_u64() >= Some(since), "{last:#}");
    assert!(last["lasted_s"].as_f64().is_some_and(|length| (0.1..60.0).contains(&length)), "{last:#}");
    let event = one_event(one);
    assert!(event["outages"].as_u64() >= Some(outages) && event["nodes"] == 2, "{event:#}");
}

/// What the next event tells about Redis.
fn one_event(gateway: &Gateway) -> Value {
    let mut stream = TcpStream::connect(gateway.admin()).expect("the admin listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let data = lines.take(100).find_map(|line| Some(line.strip_prefix("data: ")?.to_owned())).expect("data");
    serde_json::from_str::<Value>(&data).expect("JSON")["redis"].clone()
}
