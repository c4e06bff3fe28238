//! The location that tells callers what is left.

use serde_json::{Value, json};
use sluicegate_testkit::{Ask, Client, Gateway, Reply, Scratch, Upstream, get, post};

use crate::{as_account, ask, names, numbers, of};

/// A year is long enough for the test to cross no border.
const FILE: &str = "account: { from: header:x-account, tier: { members: { acme: gold, staff: staff } } }
limits:
  plan: { key: account, rate: 5/year, zone: Europe/Berlin, tiers: { gold: { rate: 8/year }, staff: none } }
  two: { key: [tier, ip], rate: [100/1h, 20/year], missing_key: skip }
  bucket: { key: ip, rate: 1/h, burst: 7 }
  leaky: { key: ip, algorithm: leaky_bucket, rate: 1/h, burst: 2, queue: 9 }
  slots: { key: account, missing_key: reject, algorithm: concurrency, max_concurrent: 4 }
  posts: { key: ip, rate: 9/year, methods: POST }
  strangers: { key: account, missing_key: shared, rate: 50/year }
  here: { key: ip, rate: 60/year, bypass: [127.0.0.1] }
  trial: { key: ip, rate: 3/year, dry_run: true }
  by-uri: { key: [uri, ip], rate: 3/year }
  by-tier: { key: tier, rate: 300/year }
locations:
  - { path: = /usage, usage: {}, limits: [plan, 100/s] }
  - { path: = /plan, usage: { limits: [two, plan] }, limits: [{ rate: 100000/year, key: account }],
      cors: { origins: https://app.test } }
  - { path: /, respond: { body: ok }, limits: [plan, two, bucket, leaky, slots, posts, strangers, here, trial,
      by-uri, by-tier] }
";

#[test]
fn a_caller_is_told_of_its_own_counters_in_the_order_of_the_file() {
    let gateway = Gateway::start(FILE);
    for _ in 0..2 {
        gateway.ask(&as_account("/", "acme")).expect(200);
    }
    let told = ask(&gateway, "/usage", "acme");
    assert_eq!((&told["account"], &told["tier"]), (&"acme".into(), &"gold".into()));
    let shown = ["plan", "two", "two", "bucket", "leaky", "slots", "posts", "strangers"];
    assert_eq!(names(&told), shown, "{told:#}");
    let year = of(&told, "plan");
    let members: Vec<&String> = year.as_object().expect("an entry").keys().collect();
    let order =
        ["limit", "key", "rate", "unit", "quota", "used", "reserved", "left", "begins", "ends", "step"];
    assert_eq!(members, order);
    assert_eq!((&year["key"], &year["rate"]), (&"account=acme".into(), &"8/year".into()));
    assert_eq!((&year["unit"], &year["reserved"]), (&"request".into(), &0.into()));
    for (border, offset) in [("begins", "-01-01T00:00:00+01:00"), ("ends", "-01-01T00:00:00+01:00")] {
        assert!(year[border].as_str().expect("a time").ends_with(offset), "{year}");
    }
    assert_eq!(numbers(year), (2, 6, 8));
    let two: Vec<&Value> =
        told["limits"].as_array().expect("entries").iter().filter(|one| one["limit"] == "two").collect();
    assert_eq!((numbers(two[0]), numbers(two[1])), ((2, 98, 100), (2, 18, 20)));
    assert_eq!((&two[0]["key"], &two[0]["rate"]), (&"tier=gold,ip=127.0.0.1".into(), &"100/3600s".into()));
    assert_eq!(numbers(of(&told, "bucket")), (2, 5, 7));
    assert_eq!(numbers(of(&told, "leaky")), (2, 0, 2));
    assert_eq!((numbers(of(&told, "slots")), numbers(of(&told, "posts"))), ((0, 4, 4), (0, 9, 9)));
    for limit in ["bucket", "slots"] {
        assert_eq!((&of(&told, limit)["begins"], &of(&told, limit)["ends"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(of(&told, "slots")["rate"], "4 in flight");
}

#[test]
fn who_is_left_out_of_a_limit_is_told_nothing_of_it() {
    let gateway = Gateway::start(FILE);
    let staff = ask(&gateway, "/usage", "staff");
    assert!(!names(&staff).contains(&"plan") && names(&staff).contains(&"strangers"), "{staff:#}");
    let stranger = ask(&gateway, "/usage", "");
    assert_eq!((&stranger["account"], &stranger["tier"]), (&Value::Null, &"default".into()));
    let shown = ["plan", "two", "two", "bucket", "leaky", "posts"];
    assert_eq!(names(&stranger), shown, "counted by its address alone");
    assert_eq!(of(&stranger, "plan")["key"], "missing:account=127.0.0.1");
    let mut other = Client::connect_from("127.0.0.2", gateway.addr());
    let there = other.ask(&get("/usage")).expect(200).json();
    assert!(names(&there).contains(&"here"), "{there:#}");
    // Bytes that are no text could be told what another account has used.
    let garbled = Ask::new("GET", "/usage").header("X-Account", "\u{fffd}");
    assert_eq!(gateway.ask(&garbled).expect(200).json()["account"], Value::Null);
    let bypassed = gateway.change(&format!("access: {{ bypass: [127.0.0.1] }}\n{FILE}"));
    assert_eq!(ask(&gateway, "/usage", "acme")["limits"], json!([]), "{bypassed}");
}

#[test]
fn asking_uses_up_no_quota_and_is_limited_as_any_request() {
    let gateway = Gateway::start(&FILE.replace("limits: [plan, 100/s] }", "limits: [plan, 5/1h] }"));
    for _ in 0..5 {
        assert_eq!(numbers(of(&ask(&gateway, "/usage", "acme"), "plan")), (0, 8, 8));
    }
    gateway.ask(&as_account("/usage", "acme")).expect(429);
    assert_eq!(numbers(of(&ask(&gateway, "/plan", "acme"), "plan")), (0, 8, 8));
}

#[test]
fn an_answer_that_did_not_change_is_not_sent_again() {
    let gateway = Gateway::start(FILE);
    let first = gateway.ask(&as_account("/plan", "acme").header("Origin", "https://app.test")).expect(200);
    assert_eq!(
        names(&first.json()),
        ["plan", "two", "two"],
        "those that are listed, in the order of the file"
    );
    assert_eq!(first.header("cache-control").as_deref(), Some("private, no-cache"));
    assert_eq!(first.header("access-control-allow-origin").as_deref(), Some("https://app.test"));
    assert_eq!(first.header("content-type").as_deref(), Some("application/json"));
    let tag = first.header("etag").expect("a tag");
    let again = |tags: &str| gateway.ask(&as_account("/plan", "acme").header("If-None-Match", tags));
    for tags in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
        let same = again(&tags).expect(304);
        assert_eq!((same.text().as_str(), same.header("etag")), ("", Some(tag.clone())), "{tags}");
        assert_eq!(same.header("cache-control").as_deref(), Some("private, no-cache"));
    }
    again("\"x\"").expect(200);
    gateway.ask(&as_account("/", "acme")).expect(200);
    assert_ne!(again(&tag).expect(200).header("etag"), Some(tag));
}

#[test]
fn it_can_only_be_read() {
    let gateway = Gateway::start(FILE);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = gateway.ask(&Ask::new(method, "/usage").header("Content-Length", 0)).expect(405);
        assert_eq!(answer.header("allow").as_deref(), Some("GET, HEAD"), "{method}");
    }
    let mut client = gateway.client();
    client.send(Ask::new("HEAD", "/usage").bytes());
    let head = client.head_response().expect(200);
    assert!(head.header("etag").is_some() && head.header("content-length").is_some_and(|size| size != "0"));
}

#[test]
fn each_limit_has_its_unit() {
    let folder = Scratch::new();
    let prices = folder.file("prices.yaml", "small*: { input: 1000, output: 2000 }\n");
    let used = r#"{"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}"#;
    let upstream = Upstream::new(move |_| Reply::with(200, &[("Content-Type", "application/json")], used));
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}
limits:
  budget: {{ key: account, rate: 50.25 USD/year, charge: {{ units: money, prices: {} }} }}
  traffic: {{ key: account, rate: 1MiB/year, charge: {{ units: bytes }} }}
  tokens: {{ key: account, rate: 100/year, charge: {{ units: llm }} }}
  weighted: {{ key: account, rate: 100/year, cost: 5 }}
locations:
  - {{ path: = /usage, usage: {{}} }}
  - {{ path: /, upstream: \"{}\", limits: [budget, traffic, tokens, weighted] }}
",
        prices.display(),
        upstream.url()
    ));
    let call = post("/", br#"{"model":"small"}"#).header("Content-Type", "application/json");
    gateway.ask(&call.header("X-Account", "acme")).expect(200);
    let told = ask(&gateway, "/usage", "acme");
    let unit = |limit: &str| of(&told, limit)["unit"].as_str().expect("a unit").to_owned();
    let units = ["budget", "traffic", "tokens", "weighted"].map(unit);
    assert_eq!(units, ["USD", "KiB", "token", "unit"]);
    let budget = of(&told, "budget");
    assert_eq!(
        (&budget["rate"], &budget["quota"], &budget["used"], &budget["left"]),
        (&"50.25 USD/year".into(), &50.25.into(), &0.007.into(), &50.243.into())
    );
    assert_eq!((numbers(of(&told, "tokens")), numbers(of(&told, "weighted"))), ((4, 96, 100), (5, 95, 100)));
    assert_eq!(of(&told, "traffic")["rate"], "1MiB/year");
}

#[test]
fn windows_with_steps_alone_count_the_question_and_have_no_list() {
    let gateway = Gateway::start(
        "limits:\n  pace: { key: ip, algorithm: fixed_window, rate: 2/3600s, steps: [{ at: 50%, then: warn }] }\n\
         locations:\n  - { path: = /usage, usage: {}, limits: [pace] }\n",
    );
    let statuses: Vec<u16> = (0..3).map(|_| gateway.get("/usage").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    gateway.admin_get("/limits/pace/usage").expect(409);
}
