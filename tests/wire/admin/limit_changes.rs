//! Pauses of limits and numbers in place of those of the file, by the admin API and by commands.

use serde_json::{Value, json};

use crate::support::*;

const FILE: &str = "limits:
  all: { rate: 1/h }
  per-ip: { rate: 2/h, burst: 2 }
  queue: { algorithm: leaky_bucket, key: global, rate: 1/h, queue: 9, max_wait: none }
locations:
  - { path: /, respond: { body: ok }, limits: per-ip }
  - { path: /all, respond: { body: ok }, limits: all }
  - { path: /queue, respond: { body: ok }, limits: queue }
";

fn change(gateway: &Gateway, method: &str, target: &str, token: &str, body: &str) -> Response {
    let ask = Ask::new(method, target).header("Content-Type", "application/json").body(body.as_bytes());
    gateway.ask_admin(
        &ask.header("Accept", "application/json").header("Authorization", format!("Bearer {token}")),
    )
}

fn ask(gateway: &Gateway, path: &str) -> Response {
    gateway.client().ask(&get(path))
}

fn of_limit(gateway: &Gateway, name: &str) -> Value {
    let limits = gateway.ask_admin(&get("/limits").header("Accept", "application/json")).expect(200).json();
    let limits = limits["limits"].as_array().expect("limits").clone();
    limits.into_iter().find(|limit| limit["limit"] == name).expect("the limit")
}

#[test]
fn a_pause_is_seen_everywhere_and_lets_waiters_go() {
    let gateway = Gateway::start(FILE);
    assert_eq!([1, 2, 3].map(|_| ask(&gateway, "/").status), [200, 200, 429]);
    ask(&gateway, "/queue").expect(200);
    let waits = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ask(&gateway, "/queue").status);
        eventually("a waiter", || gateway.metric("sluicegate_queue_depth", &["limit=\"queue\""]) == 1.0);
        let paused = change(&gateway, "POST", "/pause", "", r#"{"for": "1h", "reason": "an incident"}"#)
            .expect(200)
            .json();
        assert_eq!(paused.as_array().map(Vec::len), Some(3), "{paused}");
        waiter.join().expect("a response")
    });
    assert_eq!(waits, 200);
    let shown = ask(&gateway, "/").expect(200);
    let field = shown.header("sluicegate-dry-run").expect("a field");
    assert!(
        field.starts_with("\"per-ip\";would=reject;retry_after_ms=") && field.ends_with(";paused"),
        "{field}"
    );
    let paused = of_limit(&gateway, "per-ip")["paused"].clone();
    assert_eq!((&paused["by"], &paused["reason"]), (&json!("loopback"), &json!("an incident")));
    assert!(paused["left_s"].as_f64().is_some_and(|left| left > 3500.0 && left <= 3600.0), "{paused}");
    assert_eq!(gateway.metric("sluicegate_limit_paused", &["limit=\"per-ip\""]), 1.0);
    let verdict = |verdict: &str| {
        gateway.metric("sluicegate_decisions_total", &["limit=\"per-ip\"", &format!("verdict=\"{verdict}\"")])
    };
    assert_eq!((verdict("paused_reject"), verdict("reject")), (1.0, 1.0));
    let status = gateway.ask_admin(&get("/status")).expect(200).text();
    let line =
        "paused      per-ip is paused for 1h, by loopback: an incident; changes hold on this gateway alone";
    assert!(status.contains("a restart forgets them") && status.contains(&line[..40]), "{status}");
    change(&gateway, "POST", "/limits/per-ip/resume", "", "").expect(200);
    ask(&gateway, "/").expect(429);
    assert_eq!(of_limit(&gateway, "per-ip")["paused"], Value::Null);
    let wrong = change(&gateway, "POST", "/limits/per-ip/resume", "", "").expect(404).text();
    assert!(wrong.contains("per-ip"), "{wrong}");
    change(&gateway, "POST", "/resume", "", r#"{"limits": ["all", "queue"]}"#).expect(200);
    assert_eq!(gateway.metric("sluicegate_limit_paused", &["limit=\"queue\""]), 0.0);
}

#[test]
fn numbers_are_set_shown_and_unset() {
    let gateway = Gateway::start(FILE);
    let numbers = |status| {
        gateway
            .ask_admin(&get("/limits/per-ip/numbers").header("Accept", "application/json"))
            .expect(status)
            .json()
    };
    assert_eq!(numbers(200)["file"], json!({ "rate": "2/h", "burst": "auto" }));
    assert_eq!(numbers(200)["set"], Value::Null);
    let body = r#"{"rate": "9/h", "burst": 3, "for": "2h", "reason": "plan B"}"#;
    for _ in 0..2 {
        let set = change(&gateway, "PUT", "/limits/per-ip/numbers", "", body).expect(200).json();
        assert_eq!(
            (&set["set"]["rate"], &set["set"]["burst"], &set["set"]["reason"]),
            (&json!("9/h"), &json!(3), &json!("plan B"))
        );
    }
    assert_eq!([1, 2, 3, 4].map(|_| ask(&gateway, "/").status), [200, 200, 200, 429]);
    let log = gateway.stderr();
    assert!(log.contains("set_numbers") && log.contains("plan B"), "{log}");
    change(&gateway, "PUT", "/limits/per-ip/numbers", "", r#"{"burst": 5}"#).expect(200);
    assert_eq!(
        numbers(200)["set"],
        json!({ "burst": 5, "left_s": null, "by": "loopback", "reason": "" }),
        "replaced as a whole"
    );
    for (target, body, status) in [
        ("/limits/per-ip/numbers", r#"{"rate": "0/h"}"#, 400),
        ("/limits/per-ip/numbers", r#"{"rate": "1/h", "queue": 7}"#, 400),
        ("/limits/per-ip/numbers", r#"{"key": "ip"}"#, 400),
        ("/limits/per-ip/numbers", r#"{"for": "1h"}"#, 400),
        ("/limits/per-ip/numbers", r#"{"rate": "1/h", "for": "soon"}"#, 400),
        ("/limits/other/numbers", r#"{"rate": "1/h"}"#, 404),
    ] {
        let answer = change(&gateway, "PUT", target, "", body).expect(status).json();
        assert!(answer["error"].is_string(), "{body}: {answer}");
    }
    assert_eq!(numbers(200)["set"]["burst"], 5, "nothing is half applied");
    change(&gateway, "DELETE", "/limits/per-ip/numbers", "", "").expect(200);
    change(&gateway, "DELETE", "/limits/per-ip/numbers", "", "").expect(404);
}

#[test]
fn tokens_of_billing_systems_set_numbers_and_nothing_else() {
    let tokens = "admin: { listen: 127.0.0.1:0, tokens: [{ name: ops, token: one }, \
                  { name: eye, token: two, allow: read }, { name: billing, token: three, allow: numbers }] }\n";
    let gateway = Gateway::start(&format!("{tokens}{FILE}"));
    let numbers =
        |token| change(&gateway, "PUT", "/limits/per-ip/numbers", token, r#"{"rate": "9/h"}"#).status;
    assert_eq!(["one", "two", "three"].map(numbers), [200, 403, 200]);
    let unset = |token| change(&gateway, "DELETE", "/limits/per-ip/numbers", token, "").status;
    assert_eq!(["two", "three", "one"].map(unset), [403, 200, 404]);
    let pause = |token| change(&gateway, "POST", "/limits/per-ip/pause", token, "").status;
    assert_eq!(["two", "three", "one"].map(pause), [403, 403, 200]);
    assert_eq!(change(&gateway, "POST", "/reload", "three", "").status, 403);
    let status = gateway.ask_admin(
        &get("/status").header("Accept", "application/json").header("Authorization", "Bearer three"),
    );
    assert_eq!(status.expect(200).json()["token"], json!({ "name": "billing", "allow": "numbers" }));
}

#[test]
fn commands_pause_and_set() {
    let gateway =
        Gateway::start(&FILE.replace("limits:\n", "limits:\n  dry: { rate: 1/h, dry_run: true }\n"));
    let dir = Scratch::new();
    dir.file("gateway.yaml", &format!("admin: {}\n{FILE}", gateway.admin()));
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let finished = Run::default().args(&words).finish(dir.path());
        (finished.code, finished.stdout + &finished.stderr)
    };
    let told = |line: &str, code: i32, text: &str| {
        let (found, output) = run(line);
        assert!(found == Some(code) && output.contains(text), "{line}: {found:?} {output}");
    };
    told("pause per-ip all --for 1h --reason incident", 0, "per-ip is paused for 1h, by loopback: incident");
    told("status", 0, "paused      all is paused");
    told("top --once", 0, "paused: all, per-ip");
    assert_eq!([1, 2, 3].map(|_| ask(&gateway, "/").status), [200; 3]);
    told("pause per-ip other", 1, "there is no limit `other`");
    told("pause", 2, "LIMIT");
    told("pause --all per-ip", 2, "--all");
    told("pause per-ip --for 31d", 1, "30 days");
    told("resume --all", 0, "per-ip acts");
    told("resume per-ip", 1, "per-ip");
    told("set per-ip rate=9/h burst=40 --for 2h", 0, "numbers {\"rate\":\"9/h\",\"burst\":40}");
    told("set per-ip rate=nothing", 1, "nothing");
    told("set per-ip", 2, "FIELD=VALUE");
    told("set per-ip rate=9/h for=2h", 2, "write --for");
    told("set dry rate=2/h", 0, "dry never acts, as a dry run; numbers");
    told("set queue rate=1/s,60/m queue=5,6", 0, "[\"1/s\",\"60/m\"]");
    told("unset per-ip", 0, "per-ip acts");
    told("unset per-ip", 1, "per-ip");
}
