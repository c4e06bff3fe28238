//! `shadow` and `enforce` from outside: response header, access log, metrics, `explain`, the admin API, reloads.

use crate::support::*;

const DECISIONS: &str = "sluicegate_decisions_total";

fn trial(response: &Response) -> String {
    response.header("sluicegate-dry-run").unwrap_or_default()
}

#[track_caller]
fn assert_counts<const N: usize>(gateway: &Gateway, limit: &str, counts: [(&str, f64); N]) {
    for (verdict, count) in counts {
        let labels = [format!("limit=\"{limit}\""), format!("verdict=\"{verdict}\"")];
        let labels = labels.each_ref().map(String::as_str);
        eventually(&format!("{labels:?} = {count}"), || gateway.metric(DECISIONS, &labels) == count);
    }
}

/// What `explain --json` says of the limits of a request with this key.
fn explained(gateway: &Gateway, key: &str) -> serde_json::Value {
    let body = format!("{{ \"method\": \"GET\", \"url\": \"/\", \"headers\": [\"X-Key: {key}\"] }}");
    let ask = post("/explain", body.as_bytes()).header("Accept", "application/json");
    gateway.ask_admin(&ask.header("Content-Type", "application/json")).expect(200).json()
}

/// Keys that a limit with `enforce` acts on, and such that it does not, of the first 2,000. Each is asked twice, with
/// room for one request.
fn split_keys(gateway: &Gateway) -> (Vec<usize>, Vec<usize>) {
    let mut client = gateway.client();
    let mut status = |key: usize| client.ask(&get("/").header("X-Key", format!("k{key}"))).status;
    (0..2_000).partition(|key| {
        let first = status(*key);
        assert!(first == 200 || first == 429, "{first}");
        status(*key) == 429
    })
}

fn share(enforce: &str) -> String {
    format!(
        "limits:\n  a: {{ key: \"header:X-Key\", rate: 1/h, enforce: {enforce} }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: a }}\n"
    )
}

/// A shadow with fewer tokens and one with more: each tells what it would do, and only the limit acts.
#[test]
fn both_verdicts_are_reported_everywhere() {
    let gateway = Gateway::start(
        "limits:\n  less: { key: global, rate: 3/h, shadow: { rate: 1/h } }\n  \
           more: { key: global, rate: 1/h, shadow: { rate: 3/h } }\n\
         locations:\n  - { path: /less, respond: { body: ok }, limits: less }\n  \
           - { path: /more, respond: { body: ok }, limits: more }\n",
    );
    let would = |limit: &str, word: &str| format!("\"{limit}:shadow\";would={word}");
    for (path, status, word) in [
        ("/less", 200, "admit"),
        ("/less", 200, "reject"),
        ("/less", 200, "reject"),
        ("/less", 429, "reject"),
        ("/more", 200, "admit"),
        ("/more", 429, "admit"),
        ("/more", 429, "admit"),
        ("/more", 429, "reject"),
    ] {
        let response = gateway.get(path).expect(status);
        let seen = trial(&response);
        assert!(seen.starts_with(&would(&path[1..], word)), "{path} {status}: {seen}");
        assert_eq!(seen.contains("retry_after_ms="), word == "reject", "{seen}");
        assert!(response.header("ratelimit").is_some_and(|field| !field.contains("shadow")), "{path}");
    }
    assert_counts(&gateway, "less", [("admit", 3.0), ("reject", 1.0)]);
    assert_counts(&gateway, "less:shadow", [("admit", 1.0), ("dry_run_reject", 3.0), ("reject", 0.0)]);
    assert_counts(&gateway, "more", [("admit", 1.0), ("reject", 3.0)]);
    assert_counts(&gateway, "more:shadow", [("admit", 3.0), ("dry_run_reject", 1.0), ("reject", 0.0)]);
    let lines = gateway.wait_log(8);
    // Each worker writes its own lines.
    let mut logged: Vec<_> = lines
        .iter()
        .map(|line| (line["verdict"].as_str().unwrap_or("-"), line["dry_run"].as_str().unwrap_or("-")))
        .collect();
    logged.sort();
    assert_eq!(
        logged,
        [
            ("admit", "-"),
            ("admit", "-"),
            ("admit", "less:shadow=reject"),
            ("admit", "less:shadow=reject"),
            ("reject", "less:shadow=reject"),
            ("reject", "more:shadow=admit"),
            ("reject", "more:shadow=admit"),
            ("reject", "more:shadow=reject"),
        ]
    );
    let body = br#"{ "method": "GET", "url": "/less" }"#;
    let ask = post("/explain", body).header("Content-Type", "application/json");
    let text = gateway.ask_admin(&ask).expect(200).text();
    assert!(text.contains("\n  less:shadow: 1 request per hour"), "{text}");
    assert!(text.contains("(shadow of less: judged beside it, never rejected)"), "{text}");
    assert!(text.contains("0 of 1 left, one more in") && text.contains("0 of 3 left, one more in"), "{text}");
    let limits = gateway.ask_admin(&get("/limits").header("Accept", "application/json")).expect(200).json();
    let found = limits["limits"].as_array().expect("limits").iter();
    let shadows: Vec<_> = found.filter_map(|limit| limit["shadow_of"].as_str()).collect();
    assert_eq!(shadows, ["less", "more"]);
}

/// A rejection by another limit costs a shadow nothing, and no other limit's shadow hides it.
#[test]
fn rejections_by_other_limits_cost_a_shadow_nothing() {
    let gateway = Gateway::start(
        "limits:\n  tried: { key: global, rate: 2/h, shadow: { rate: 3/h } }\n  \
           real: { key: query:k, rate: 1/h }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [tried, real] }\n",
    );
    gateway.get("/?k=a").expect(200);
    for _ in 0..5 {
        assert_eq!(trial(&gateway.get("/?k=a").expect(429)), "\"tried:shadow\";would=admit");
    }
    gateway.get("/?k=b").expect(200);
    let third = gateway.get("/?k=c").expect(429);
    assert_eq!(
        (third.json()["limit"].as_str(), trial(&third)),
        (Some("tried"), "\"tried:shadow\";would=admit".into())
    );
    assert!(trial(&gateway.get("/?k=d").expect(429)).contains("would=reject"), "the third was charged");
    assert_counts(&gateway, "tried:shadow", [("admit", 3.0), ("dry_run_reject", 1.0)]);
}

/// Counters of a shadow survive a reload that leaves its numbers alone, a restart from the snapshot, and an upgrade.
#[test]
fn shadows_survive_reloads_restarts_and_upgrades() {
    let file = |own: &str, snapshot: &str| {
        format!(
            "state: {{ snapshot: {snapshot} }}\n\
             limits:\n  a: {{ key: global, rate: {own}, shadow: {{ rate: 4/h }} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: a }}\n"
        )
    };
    let dir = Scratch::new();
    let snapshot = dir.path().join("state").display().to_string();
    let mut gateway = Gateway::start(&file("9/h", &snapshot));
    assert!(trial(&gateway.get("/").expect(200)).ends_with("admit"));
    gateway.change(&file("8/h", &snapshot));
    assert!(trial(&gateway.get("/").expect(200)).ends_with("admit"));
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0, "{}", gateway.stderr());
    let mut gateway = Gateway::start(&file("8/h", &snapshot));
    assert!(trial(&gateway.get("/").expect(200)).ends_with("admit"));
    let address = gateway.addr();
    let successor = gateway.upgrade();
    let ask = || Client::connect(address).ask(&get("/")).expect(200);
    assert!(trial(&ask()).ends_with("admit"), "four of four");
    assert!(trial(&ask()).contains("would=reject"), "a counter was lost");
    drop(successor);
}

/// The keys that a limit acts on are the same on three gateways and after a reload; more percent only add some. What is
/// not enforced is told everywhere, and is no strike towards a ban.
#[test]
fn a_share_of_the_keys_is_enforced() {
    let gateways: Vec<Gateway> = (0..3).map(|_| Gateway::start(&share("10%"))).collect();
    let (acted, left) = split_keys(&gateways[0]);
    assert!((140..260).contains(&acted.len()), "{}", acted.len());
    for other in &gateways[1..] {
        assert_eq!(split_keys(other).0, acted);
    }
    gateways[0].reload().expect(200);
    assert_eq!(split_keys(&gateways[0]).0, acted);
    gateways[1].change(&share("20%"));
    let more = split_keys(&gateways[1]).0;
    assert!(more.len() > acted.len() + 100 && acted.iter().all(|key| more.contains(key)), "{}", more.len());

    let ask = |key: usize| gateways[2].ask(&get("/").header("X-Key", format!("k{key}")));
    let seen = trial(&ask(left[0]).expect(200));
    assert!(
        seen.starts_with("\"a\";would=reject;retry_after_ms=") && seen.ends_with(";unenforced"),
        "{seen}"
    );
    assert_eq!(trial(&ask(acted[0]).expect(429)), "");
    assert_eq!(trial(&ask(5_000_000).expect(200)).contains("unenforced"), !acted.contains(&5_000_000));
    let count = |verdict: &str| {
        let verdict = format!("verdict=\"{verdict}\"");
        gateways[2].metric(DECISIONS, &["limit=\"a\"", &verdict])
    };
    eventually("counts of both kinds", || {
        count("reject") == acted.len() as f64 + 1.0 && count("unenforced_reject") == left.len() as f64 + 1.0
    });
    let lines = gateways[2].wait_log(4_003);
    let logged = lines.iter().filter(|line| line["dry_run"] == "a=unenforced_reject").count();
    assert_eq!(logged, left.len() + 1);
    let [own, other] = [acted[0], left[0]].map(|key| explained(&gateways[2], &format!("k{key}")));
    assert_eq!(
        (&own["limits"][0]["unenforced"], &other["limits"][0]["unenforced"]),
        (&serde_json::Value::Null, &true.into())
    );
    assert_eq!(
        (&own["verdict"]["outcome"], &other["verdict"]["outcome"]),
        (&"reject".into(), &"admit".into())
    );
    let limits =
        gateways[2].ask_admin(&get("/limits").header("Accept", "application/json")).expect(200).json();
    assert_eq!(limits["limits"][0]["enforce"], "10%");
}

/// Requests that are rejected in vain are no strikes; those without the key are in no share of it.
#[test]
fn what_is_not_enforced_bans_nobody() {
    let file = |enforce: &str| {
        format!(
            "bans: {{ after: 2/1m, for: 1h }}\n\
             limits:\n  a: {{ rate: 1/h, enforce: {enforce} }}\n  \
               keyed: {{ key: \"header:X-Key\", missing_key: reject, rate: 99/h, enforce: 99% }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: a }}\n  \
               - {{ path: /keyed, respond: {{ body: ok }}, limits: keyed }}\n"
        )
    };
    let gateway = Gateway::start(&file("0%"));
    for _ in 0..9 {
        gateway.get("/").expect(200);
    }
    assert_eq!(trial(&gateway.get("/keyed").expect(200)), "\"keyed\";would=reject;unenforced");
    let acting = Gateway::start(&file("100%"));
    let seen: Vec<u16> = (0..5).map(|_| acting.get("/").status).collect();
    assert_eq!(seen, [200, 429, 429, 429, 429]);
    assert_eq!(
        (gateway.metric("sluicegate_bans_total", &[]), acting.metric("sluicegate_bans_total", &[])),
        (0.0, 1.0)
    );
}
