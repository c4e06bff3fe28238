//! `/check`: what is judged, what is answered, and what a refused call leaves.

use super::*;

const SMS: &str =
    "limits: { sms: { key: account, rate: 10/1h, burst: 10 }, all: { key: global, rate: 4/1h, burst: 4 } }";

#[test]
fn a_named_limit_answers_as_the_contract_says() {
    let gateway = start(SMS);
    let acme = json!({ "limits": ["sms"], "key": { "account": "acme" }, "cost": 3 });
    let first = check(&gateway, &acme).expect(200);
    let answer = first.json();
    assert_eq!(answer["verdict"], "admit");
    assert_eq!(answer["limit"], "sms");
    assert_eq!(answer["remaining"], 7);
    assert_eq!(answer["retry_after_ms"], 0);
    assert_eq!(answer["waited_ms"], 0);
    assert_eq!(answer["lease"], Value::Null);
    assert!(answer["reset_ms"].as_u64().is_some(), "{answer}");
    let members: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    assert_eq!(
        members,
        ["verdict", "limit", "remaining", "reset_ms", "retry_after_ms", "waited_ms", "lease"]
    );
    check(&gateway, &acme).expect(200);
    check(&gateway, &acme).expect(200);
    let refused = check(&gateway, &acme).expect(429);
    let answer = refused.json();
    assert_eq!(answer["verdict"], "reject");
    assert_eq!(answer["limit"], "sms");
    assert_eq!(answer["remaining"], 1);
    assert_eq!(answer["status"], 429);
    // Two units are missing, and one comes each 6 minutes.
    assert_between_ms(&answer["retry_after_ms"], 700_000, 720_000);
    assert_eq!(answer["reset_ms"], answer["retry_after_ms"]);
    assert!(refused.header("retry-after").is_some());
    // One unit is still there, and another key has its own.
    check(&gateway, &json!({ "limits": "sms", "key": { "account": "acme" } })).expect(200);
    check(&gateway, &json!({ "limits": "sms", "key": { "account": "b" }, "cost": 10 })).expect(200);
}

fn assert_between_ms(value: &Value, least: u64, most: u64) {
    let ms = value.as_u64().expect("milliseconds");
    assert!((least..=most).contains(&ms), "{ms}");
}

#[test]
fn several_limits_are_one_transaction() {
    let gateway = start(SMS);
    let both = |cost: u64| json!({ "limits": ["sms", "all"], "key": { "account": "acme" }, "cost": cost });
    let admitted = check(&gateway, &both(3)).expect(200).json();
    assert_eq!((admitted["limit"].as_str(), admitted["remaining"].as_u64()), (Some("all"), Some(1)));
    let refused = check(&gateway, &both(2)).expect(429).json();
    assert_eq!(refused["limit"], "all");
    // The refused call took nothing from the other limit.
    let left = check(&gateway, &json!({ "limits": "sms", "key": { "account": "acme" } })).expect(200).json();
    assert_eq!(left["remaining"], 6);
}

/// The parts of keys are named as in the file, and count as those of requests do.
#[test]
fn every_part_of_a_key_can_be_stated() {
    let gateway = Gateway::start(
        "service: { listen: 127.0.0.1:0 }\naccount: { jwt: { secret: \"0123456789abcdef0123456789abcdef\" } }\n\
         limits:\n  many:\n    key: [ip, account, host, method, uri, location, header:X-A, cookie:b, query:c, jwt:sub, json:/d/e]\n\
         \x20   rate: 1/1h\n    burst: 1\n\
         locations: [{ path: /x, name: here, respond: { status: 200 } }]\n",
    );
    let parts = json!({
        "ip": "192.0.2.1", "account": "acme", "host": "a.test", "method": "POST", "uri": "/x/y", "location": "here",
        "header:X-A": "1", "cookie:b": "2", "query:c": "3 &", "jwt:sub": "alice", "json:/d/e": 5,
    });
    let body = |parts: &Value| json!({ "limits": "many", "key": parts });
    check(&gateway, &body(&parts)).expect(200);
    check(&gateway, &body(&parts)).expect(429);
    for (name, value) in parts.as_object().expect("an object") {
        let mut other = parts.clone();
        other[name] = match (name.as_str(), value.as_str()) {
            ("ip", _) => json!("192.0.2.2"),
            ("method", _) => json!("GET"),
            ("location", _) => continue,
            (_, Some(text)) => json!(format!("{text}x")),
            (_, None) => json!(6),
        };
        check(&gateway, &body(&other)).expect(200);
        check(&gateway, &body(&other)).expect(429);
        let mut missing = parts.clone();
        missing.as_object_mut().expect("an object").remove(name);
        let fault = check(&gateway, &body(&missing)).expect(400).json();
        assert_eq!(
            fault["field"].as_str().map(str::to_lowercase),
            Some(format!("key.{}", name.to_lowercase()))
        );
    }
}

#[test]
fn a_described_request_is_judged_by_its_location() {
    let upstream = Upstream::new(|_| Reply::with(200, &[], "forwarded"));
    let gateway = Gateway::start(&format!(
        "listen: 127.0.0.1:0\nservice: {{ listen: 127.0.0.1:0 }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\n\
         access: {{ deny: 192.0.2.66 }}\n\
         limits: {{ per-ip: {{ key: ip, rate: 3/1h, burst: 3 }} }}\n\
         locations: [{{ path: /api/, name: api, upstream: \"{}\", limits: per-ip, methods: [GET, POST] }}]\n",
        upstream.url()
    ));
    let request = |ip: &str, path: &str| json!({ "request": { "ip": ip, "path": path, "host": "a.test" } });
    check(&gateway, &request("192.0.2.1", "/api/x?y=1")).expect(200);
    // The same counters as those of forwarded requests.
    gateway.ask(&get("/api/").header("X-Forwarded-For", "192.0.2.1")).expect(200);
    gateway.ask(&get("/api/").header("X-Forwarded-For", "192.0.2.1")).expect(200);
    let refused = check(&gateway, &request("192.0.2.1", "/api/x")).expect(429).json();
    assert_eq!((refused["limit"].as_str(), refused["remaining"].as_u64()), (Some("per-ip"), Some(0)));
    check(&gateway, &request("192.0.2.2", "/api/x")).expect(200);
    assert_eq!(
        check(&gateway, &request("192.0.2.1", "/elsewhere")).expect(404).json()["error"],
        "no_location"
    );
    assert_eq!(check(&gateway, &request("192.0.2.66", "/api/")).expect(403).json()["error"], "access_denied");
    assert_eq!(upstream.count(), 2, "calls are not forwarded");
    let lines = gateway.wait_log(7);
    // Lines of two workers come in any order.
    let is_first =
        |line: &&Value| line["protocol"] == "check" && line["ip"] == "192.0.2.1" && line["status"] == 200;
    let first = lines.iter().find(is_first).expect("a line of a call");
    assert_eq!(first["location"], "api");
    assert_eq!(first["ip"], "192.0.2.1");
    assert_eq!(first["path"], "/api/x");
    assert_eq!(first["method"], "GET");
    assert_eq!(lines.iter().filter(|line| line.get("protocol").is_none()).count(), 2);
}

/// The location is chosen by the headers and the query of the described request.
#[test]
fn a_described_request_meets_conditions() {
    let gateway = Gateway::start(
        "listen: 127.0.0.1:0\nservice: { listen: 127.0.0.1:0 }\n\
         limits: { canary: { key: global, rate: 1/1h, burst: 1 } }\nlocations:\n  \
           - { path: /, upstream: demo }\n  \
           - { path: /, when: { \"cookie:beta\": \"*\", \"query:v\": 2 }, upstream: demo, limits: canary }\n",
    );
    let call = |path: &str, cookie: &str| {
        let headers = json!({ "Cookie": cookie });
        check(&gateway, &json!({ "request": { "ip": "192.0.2.1", "path": path, "headers": headers } }))
    };
    call("/?v=2", "beta=1").expect(200);
    call("/?v=2", "beta=1").expect(429);
    call("/?v=2", "beta=1; beta=2").expect(200);
    call("/?v=1", "beta=1").expect(200);
}

#[test]
fn bad_calls_name_the_member_and_change_nothing() {
    let gateway = start(&format!("{SMS}\nserver: {{ max_waiting: 10 }}"));
    for (body, field) in [
        (json!({ "limits": "smss", "key": { "account": "a" } }), "limits"),
        (json!({ "limits": "sms" }), "key.account"),
        (json!({ "limits": "sms", "key": { "account": "a", "ip": "x" } }), "key.ip"),
        (json!({ "limits": "sms", "key": { "account": "a", "acount": "x" } }), "key.acount"),
        (json!({ "limits": "sms", "key": { "account": "a", "location": "x" } }), "key.location"),
        (json!({ "limits": "sms", "key": { "account": "a", "method": "get" } }), "key.method"),
        (json!({ "limits": "sms", "key": { "account": "a", "cookie:x": "a;b" } }), "key.cookie:x"),
        (json!({ "limits": "sms", "key": { "account": "a", "header:x": "a\nb" } }), "key.header:x"),
        (json!({ "limits": "sms", "key": { "account": "a", "tier": "a b" } }), "key.tier"),
        (json!({ "limits": "sms", "key": { "account": "a" }, "cost": 0 }), "cost"),
        (json!({ "limits": "sms", "key": { "account": "a" }, "wait": "soon" }), "wait"),
        (json!({ "request": { "ip": "192.0.2.1", "path": "x" } }), "request.path"),
    ] {
        let fault = check(&gateway, &body).expect(400).json();
        assert_eq!(fault["error"], "bad_call", "{body}");
        assert_eq!(fault["field"], field, "{body}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    let left = check(&gateway, &json!({ "limits": "sms", "key": { "account": "a" } })).expect(200).json();
    assert_eq!(left["remaining"], 9);
    let mut client = Client::connect(service(&gateway));
    client.ask(&get("/check")).expect(405);
    client.ask(&post("/other", b"{}")).expect(404);
    client.ask(&post("/check", b"not json")).expect(400);
    assert_eq!(client.ask(&post("/check", &[b' '; 70_000])).expect(413).json()["error"], "body_too_large");
    let mut chunked = Client::connect(service(&gateway));
    chunked.send("POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    chunked.send(format!("11170\r\n{}\r\n0\r\n\r\n", " ".repeat(70_000)));
    chunked.response().expect(413);
    assert_eq!(gateway.metric("sluicegate_service_calls_total", &["result=\"admit\""]), 1.0);
    assert_eq!(
        gateway.metric("sluicegate_service_calls_total", &["call=\"check\"", "result=\"bad_call\""]),
        15.0
    );
    assert_eq!(gateway.metric("sluicegate_service_calls_total", &["result=\"no_call\""]), 2.0);
}

/// A limit that counts methods cannot be asked without one, or it would admit what it should count.
#[test]
fn a_limit_of_methods_needs_the_method() {
    let gateway = start("limits: { writes: { key: global, rate: 1/1h, burst: 1, methods: [POST] } }");
    let fault = check(&gateway, &json!({ "limits": "writes" })).expect(400).json();
    assert_eq!(fault["field"], "key.method");
    let post = json!({ "limits": "writes", "key": { "method": "POST" } });
    check(&gateway, &post).expect(200);
    check(&gateway, &post).expect(429);
    check(&gateway, &json!({ "limits": "writes", "key": { "method": "GET" } })).expect(200);
}

#[test]
fn tiers_follow_from_the_account_or_are_stated() {
    let gateway = start(
        "account: { from: header:X-Account, tier: { members: { acme: gold } } }\n\
         limits: { calls: { key: account, rate: 1/1h, burst: 1, tiers: { gold: { rate: 5/1h, burst: 5 } } } }",
    );
    let of = |account: &str| json!({ "limits": "calls", "key": { "account": account } });
    assert_eq!(check(&gateway, &of("acme")).expect(200).json()["remaining"], 4);
    assert_eq!(check(&gateway, &of("other")).expect(200).json()["remaining"], 0);
    let stated = json!({ "limits": "calls", "key": { "account": "third", "tier": "gold" } });
    assert_eq!(check(&gateway, &stated).expect(200).json()["remaining"], 4);
}

#[test]
fn strikes_of_calls_are_counted_and_bans_are_applied() {
    let gateway = start(
        "bans: { after: 3/1m, for: 1m }\nlimits: { few: { key: ip, rate: 1/1h, burst: 1 }, many: { key: ip, rate: 100/1s } }",
    );
    let of = |limit: &str, ip: &str| json!({ "limits": limit, "key": { "ip": ip } });
    check(&gateway, &of("few", "192.0.2.1")).expect(200);
    for _ in 0..3 {
        assert_eq!(check(&gateway, &of("few", "192.0.2.1")).expect(429).json()["verdict"], "reject");
    }
    let banned = check(&gateway, &of("many", "192.0.2.1")).expect(429).json();
    assert_eq!(banned["verdict"], "ban");
    assert_between_ms(&banned["retry_after_ms"], 50_000, 60_000);
    check(&gateway, &of("many", "192.0.2.2")).expect(200);
    assert_eq!(gateway.metric("sluicegate_service_calls_total", &["result=\"ban\""]), 1.0);
}

#[test]
fn requests_in_flight_are_bounded_for_calls_as_well() {
    let gateway = start(
        "server: { max_in_flight: 1 }\n\
         limits: { slow: { algorithm: leaky_bucket, key: global, rate: 1/1s, burst: 1, queue: 5 }, free: { key: global, rate: 99/1s } }",
    );
    let slow = json!({ "limits": "slow", "wait": "5s" });
    check(&gateway, &slow).expect(200);
    let mut waiting = Client::connect(service(&gateway));
    waiting.send(post("/check", slow.to_string().as_bytes()).bytes());
    gateway.wait_queued(1);
    let refused = check(&gateway, &json!({ "limits": "free" })).expect(503).json();
    assert_eq!(refused["error"], "too_many_in_flight");
    waiting.response().expect(200);
    check(&gateway, &json!({ "limits": "free" })).expect(200);
}

#[test]
fn a_dry_run_admits_and_is_logged() {
    let gateway = start("limits: { trial: { key: global, rate: 1/1h, burst: 1, dry_run: true } }");
    let call = json!({ "limits": "trial" });
    check(&gateway, &call).expect(200);
    let answer = check(&gateway, &call).expect(200).json();
    assert_eq!((answer["verdict"].as_str(), answer["limit"].as_str()), (Some("admit"), None));
    let lines = gateway.wait_log(2);
    let refused = lines.iter().filter(|line| line["dry_run"] == "trial=reject");
    assert_eq!(refused.count(), 1, "{lines:?}");
}

#[test]
fn the_status_of_on_reject_is_told() {
    let gateway =
        start("limits: { busy: { key: global, rate: 1/1h, burst: 1, on_reject: { status: 503 } } }");
    check(&gateway, &json!({ "limits": "busy" })).expect(200);
    let refused = check(&gateway, &json!({ "limits": "busy" })).expect(429).json();
    assert_eq!(refused["status"], 503);
}
