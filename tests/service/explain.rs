//! `sluicegate explain --limits`: it says what `/check` then does, and charges nothing.

use super::*;

const LIMITS: &str = "access_log: { hash_keys: false }
limits:
  sms: { key: [account, 'header:x-user'], rate: 5/1h, burst: 5 }
  other: { key: global, rate: 100/1h, burst: 100 }
  paced: { algorithm: leaky_bucket, key: account, rate: 1/10s, burst: 1, queue: 3 }
  jobs: { algorithm: concurrency, key: account, max_concurrent: 1, queue: 5 }
";

/// Explains by the counters of `gateway`.
fn explain(gateway: &Gateway, more: &[&str]) -> Finished {
    explain_with(gateway, &[more, &["--live"]].concat())
}

fn explain_with(gateway: &Gateway, more: &[&str]) -> Finished {
    let dir = Scratch::new();
    let yaml = format!(
        "admin: \"{}\"\nservice: {{ listen: 127.0.0.1:0 }}\n{LIMITS}locations: []\n",
        gateway.admin()
    );
    let file = dir.file("gateway.yaml", &yaml).display().to_string();
    Run::default().args(&[&["explain", "-c", &file], more].concat()).finish(dir.path())
}

fn explained(gateway: &Gateway, more: &[&str]) -> Value {
    let finished = explain(gateway, &[more, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn it_says_what_the_call_then_gets_and_charges_nothing() {
    let gateway = start(LIMITS);
    let asked =
        ["--limits", "other,sms", "--key", "account=acme", "--key", "header:x-user=bob", "--cost", "3"];
    let body = json!({ "limits": ["other", "sms"], "key": { "account": "acme", "header:x-user": "bob" }, "cost": 3 });
    let before = gateway.metric("sluicegate_service_calls_total", &[]);
    (0..20).for_each(|_| drop(explained(&gateway, &asked)));
    let text = explain(&gateway, &asked).stdout;
    for line in [
        "call      other, sms\naccount   acme, from the call\nlimits\n",
        "    counts by account acme + header x-user bob, cost 3\n    5 of 5 left: admit\n",
        "    100 of 100 left: admit\n",
        "\nverdict   admit\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(gateway.metric("sluicegate_service_calls_total", &[]), before);
    let admitted = check(&gateway, &body).expect(200).json();
    assert_eq!((&admitted["limit"], &admitted["remaining"]), (&json!("sms"), &json!(2)), "{admitted}");
    let refused = explained(&gateway, &asked);
    assert_eq!(refused["verdict"]["outcome"], "reject", "{refused:#}");
    let sms = refused["limits"].as_array().expect("limits").iter().find(|limit| limit["name"] == "sms");
    assert_eq!(sms.expect("sms")["counters"][0]["remaining"], 2, "{refused:#}");
    let answer = check(&gateway, &body).expect(429).json();
    assert_eq!(refused["verdict"]["limit"], answer["limit"]);
    assert_eq!(refused["verdict"]["status"], answer["status"]);
    let retry = |value: &Value| value["retry_after_ms"].as_u64().expect("a time");
    let (foretold, told) = (retry(&refused["verdict"]), retry(&answer));
    assert!(told <= foretold && foretold - told < 60_000, "{foretold} {told}");
}

#[test]
fn a_call_that_check_refuses_is_refused_with_the_same_words() {
    let gateway = start(LIMITS);
    for (asked, body) in [
        (&["--limits", "nothing"][..], json!({ "limits": "nothing" })),
        (&["--limits", "sms", "--key", "account=a"], json!({ "limits": "sms", "key": { "account": "a" } })),
        (
            &["--limits", "other", "--key", "colour=red"],
            json!({ "limits": "other", "key": { "colour": "red" } }),
        ),
        (&["--limits", "other", "--cost", "0"], json!({ "limits": "other", "cost": 0 })),
        (&["--limits", "other", "--wait", "soon"], json!({ "limits": "other", "wait": "soon" })),
        (&["--limits", "other", "--ip", "x"], json!({ "limits": "other", "key": { "ip": "x" } })),
    ] {
        let message = check(&gateway, &body).expect(400).json()["message"].as_str().expect("text").to_owned();
        for finished in [explain(&gateway, asked), explain_with(&gateway, asked)] {
            assert_eq!(finished.code, Some(2), "{asked:?}: {finished:?}");
            assert!(finished.stderr.contains(&message), "{message}: {finished:?}");
        }
    }
    for asked in [
        &["GET", "/", "--limits", "other"][..],
        &["--limits", "other", "-H", "A: b"],
        &["--limits", "other", "--data", "x"],
        &["--limits", "other", "--key", "account"],
        &["--limits", "other", "--key", "account=a", "--key", "account=b"],
        &["GET", "/", "--cost", "3"],
        &[],
    ] {
        assert_eq!(explain_with(&gateway, asked).code, Some(2), "{asked:?}");
    }
    let both = post("/explain", br#"{ "call": { "limits": "other" }, "method": "GET", "url": "/" }"#);
    let both = gateway.ask_admin(&both.header("Content-Type", "application/json"));
    assert!(both.expect(400).text().contains("`call` stands alone"));
}

#[test]
fn a_limit_that_makes_calls_wait_is_explained_with_and_without_wait() {
    let gateway = start(LIMITS);
    let of = |limit: &str| json!({ "limits": limit, "key": { "account": "acme" } });
    for (limit, wait) in [("paced", "20s"), ("jobs", "20s")] {
        let asked = ["--limits", limit, "--key", "account=acme"];
        let waiting = [&asked[..], &["--wait", wait]].concat();
        assert_eq!(explained(&gateway, &waiting)["verdict"]["outcome"], "admit");
        check(&gateway, &of(limit)).expect(200);
        let refused = explained(&gateway, &asked);
        assert_eq!(refused["verdict"]["outcome"], "reject", "{limit}: {refused:#}");
        assert_eq!(refused["verdict"]["limit"], *limit);
        let answer = check(&gateway, &of(limit)).expect(429).json();
        assert_eq!(answer["retry_after_ms"].is_null(), refused["verdict"]["retry_after_ms"].is_null());
        let queued = explained(&gateway, &waiting);
        assert_eq!(queued["verdict"]["outcome"], "wait", "{limit}: {queued:#}");
        assert_eq!(queued["verdict"]["limit"], *limit);
        assert_eq!(explained(&gateway, &waiting)["verdict"]["position"], queued["verdict"]["position"]);
        assert!(explain(&gateway, &waiting).stdout.ends_with(", then admitted\n"));
    }
    assert_eq!(gateway.metric("sluicegate_queue_depth", &[]), 0.0);
}

#[test]
fn bans_are_explained_and_the_file_alone_has_fresh_counters() {
    let gateway = start(LIMITS);
    let asked = ["--limits", "sms", "--key", "account=acme", "--key", "header:x-user=bob"];
    let ban = post("/bans", br#"{ "account": "acme", "for": "1m", "reason": "test" }"#);
    gateway.ask_admin(&ban.header("Content-Type", "application/json")).expect(200);
    let banned = explained(&gateway, &asked);
    assert_eq!(banned["ban"]["target"], "account=acme", "{banned:#}");
    assert_eq!(banned["limits_not_judged"], json!(["sms"]));
    assert!(banned.get("client").is_none());
    let fresh = explain_with(&gateway, &asked);
    assert!(fresh.stdout.ends_with("verdict   admit\n"), "{fresh:?}");
}
