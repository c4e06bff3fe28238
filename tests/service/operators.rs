//! What operators see of calls, and how they steer the keys that only calls touch.

use super::*;

fn ask_admin(gateway: &Gateway, method: &str, target: &str, body: &str) -> Value {
    let ask = Ask::new(method, target).header("Accept", "application/json");
    let ask = match method {
        "GET" => ask,
        _ => ask.header("Content-Type", "application/json").body(body.as_bytes()),
    };
    gateway.ask_admin(&ask).expect(200).json()
}

#[test]
fn keys_that_only_calls_touch_are_seen_reset_and_banned() {
    let gateway =
        start("access_log: { hash_keys: false }\nlimits: { sms: { key: account, rate: 5/1h, burst: 5 } }");
    let of = |account: &str| json!({ "limits": "sms", "key": { "account": account } });
    check(&gateway, &of("quiet")).expect(200);
    (0..5).for_each(|_| drop(check(&gateway, &of("acme")).expect(200)));
    (0..20).for_each(|_| drop(check(&gateway, &of("acme")).expect(429)));
    let keys = ask_admin(&gateway, "GET", "/limits/sms/keys", "");
    let worst = &keys["keys"][0];
    let name = worst["key"].as_str().expect("a name").to_owned();
    assert_eq!(name, "account=acme", "{keys:#}");
    assert_eq!(ask_admin(&gateway, "GET", &format!("/limits/sms/keys/{name}"), "")["remaining"], 0);
    ask_admin(&gateway, "POST", &format!("/limits/sms/keys/{name}/reset"), "{ \"reason\": \"test\" }");
    assert_eq!(check(&gateway, &of("acme")).expect(200).json()["remaining"], 4);
    ask_admin(&gateway, "POST", "/bans", "{ \"account\": \"acme\", \"for\": \"1m\", \"reason\": \"test\" }");
    let banned = check(&gateway, &of("acme")).expect(429).json();
    assert_eq!((banned["verdict"].as_str(), banned["limit"].as_str()), (Some("ban"), None));
    check(&gateway, &of("quiet")).expect(200);
    ask_admin(&gateway, "DELETE", "/bans/account=acme", "{ \"reason\": \"test\" }");
    check(&gateway, &of("acme")).expect(200);
}

#[test]
fn the_log_shows_calls_and_no_lease() {
    let gateway = start(
        "access_log: { hash_keys: false }\nlimits:\n  sms: { algorithm: leaky_bucket, key: account, rate: 1/2s, burst: 1, queue: 5 }\n\
         \x20 jobs: { algorithm: concurrency, key: account, max_concurrent: 1 }",
    );
    let of = |more: Value| {
        let mut body = json!({ "limits": ["sms", "jobs"], "key": { "account": "acme" }, "wait": "5s" });
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    let first = lease_of(&check(&gateway, &of(json!({}))).expect(200));
    release(&gateway, &first).expect(200);
    let second = lease_of(&check(&gateway, &of(json!({}))).expect(200));
    check(&gateway, &of(json!({ "limits": "jobs", "wait": "0s" }))).expect(429);
    let lines = gateway.wait_log(4);
    assert!(lines.iter().all(|line| line["protocol"] == "check"), "{lines:#?}");
    let waited = lines.iter().find(|line| line["verdict"] == "wait").expect("a call that waited");
    assert_eq!(waited["limit"], "sms");
    assert!(waited["wait_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{waited}");
    let refused = lines.iter().find(|line| line["verdict"] == "reject").expect("a refused call");
    assert_eq!((refused["limit"].as_str(), refused["status"].as_u64()), (Some("jobs"), Some(429)));
    assert_eq!(refused["account"], "acme");
    let text: String = lines.iter().map(Value::to_string).collect();
    for lease in [first, second] {
        assert!(!text.contains(&lease) && !gateway.stderr().contains(&lease), "{text}");
    }
}
