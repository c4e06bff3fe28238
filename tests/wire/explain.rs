//! `sluicegate explain`: offline from the file, live from the counters, never charging.

use crate::support::*;

fn file(admin: &str) -> String {
    format!(
        "admin: {admin}\naccess_log: {{ output: access.log }}\nlimits:\n  \
         per-ip: {{ rate: 2/h }}\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: per-ip }}\n  \
         - {{ path: /held/, upstream: \"http://127.0.0.1:1\", limits: slots }}\n"
    )
}

fn explain(yaml: &str, more: &[&str]) -> Finished {
    let dir = Scratch::new();
    let file = dir.file("gateway.yaml", &format!("listen: 127.0.0.1:0\n{yaml}")).display().to_string();
    let args: Vec<_> = ["explain", "GET", "/x", "-c", &file].iter().chain(more).copied().collect();
    let finished = Run::default().args(&args).finish(dir.path());
    assert!(!dir.path().join("access.log").exists(), "explaining writes no file");
    finished
}

/// The file of a running gateway, with its real address.
fn live(gateway: &Gateway, token: &str, more: &[&str]) -> Finished {
    let admin = format!("{{ listen: \"{}\", token: {token} }}", gateway.admin());
    let more: Vec<_> = more.iter().copied().chain(["--live"]).collect();
    explain(&file(&admin), &more)
}

/// Two of two are spent: live reports it, exactly and repeatedly, and charges nothing.
#[test]
fn live_reads_the_running_counters_and_charges_nothing() {
    let gateway = Gateway::start(&file("{ listen: 127.0.0.1:0, token: s3cret }"));
    let explained = live(&gateway, "s3cret", &[]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    assert!(explained.stdout.contains("    2 of 2 left: admit\n"), "{}", explained.stdout);
    assert!(explained.stdout.ends_with("verdict   admit: answered here with 200\n"), "{}", explained.stdout);
    for _ in 0..5 {
        assert!(live(&gateway, "s3cret", &[]).stdout.contains("2 of 2 left"), "an explanation was charged");
    }
    gateway.get("/x").expect(200);
    assert!(live(&gateway, "s3cret", &[]).stdout.contains("1 of 2 left"));
    gateway.get("/x").expect(200);
    let before = gateway_decisions(&gateway);
    let explained = live(&gateway, "s3cret", &["--json"]);
    let explained: serde_json::Value = serde_json::from_str(&explained.stdout).expect("JSON");
    let counter = &explained["limits"][0]["counters"][0];
    assert_eq!((counter["remaining"].as_u64(), counter["of"].as_u64()), (Some(0), Some(2)), "{explained:#}");
    let retry = counter["retry_after_ms"].as_u64().expect("a time");
    assert!((1_000_000..=1_800_000).contains(&retry), "{retry}");
    assert_eq!(explained["verdict"]["status"], 429);
    assert_eq!(explained["verdict"]["limit"], "per-ip");
    let rejected = gateway.get("/x").expect(429);
    let after: u64 =
        explained["verdict"]["retry_after"].as_str().and_then(|text| text.parse().ok()).expect("seconds");
    let real: u64 = rejected.header("retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert!(real <= after && after - real < 60, "{after} was shown, {real} is true");
    let mut expected = before;
    expected.1 += 1.0;
    assert_eq!(gateway_decisions(&gateway), expected, "asking was counted");
    let other = live(&gateway, "s3cret", &["--ip", "203.0.113.7"]);
    assert!(other.stdout.contains("counts by client IP 203.0.113.7\n    2 of 2 left"), "{}", other.stdout);
}

/// Admitted and rejected, by the metrics.
fn gateway_decisions(gateway: &Gateway) -> (f64, f64) {
    let count = |verdict: &str| {
        let metrics =
            gateway.ask_admin(&get("/metrics").header("Authorization", "Bearer s3cret")).expect(200).text();
        let lines = metrics.lines().filter(|line| {
            line.starts_with("sluicegate_decisions_total") && line.contains(&format!("verdict=\"{verdict}\""))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (count("admit"), count("reject"))
}

/// Method, target and headers.
type Asked = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The prediction equals the outcome: the same status, for every request.
#[test]
fn the_explanation_equals_the_outcome() {
    let gateway = Gateway::start(
        "account: { from: header:X-Account }\nlimits:\n  \
         one: { key: account, missing_key: reject, rate: 1/h }\n  \
         costly: { rate: 2/h, cost: header:X-Cost, methods: POST }\n\
         server: { trusted_proxies: 127.0.0.1 }\nlocations:\n  \
         - { path: /one/, respond: { status: 201 }, limits: one }\n  \
         - { path: ^~ /one/raw/, respond: { status: 202 } }\n  \
         - { path: \"~ gif$\", respond: { status: 203 } }\n  \
         - { path: = /exact, methods: GET, respond: { status: 205 } }\n  \
         - { path: /host/, host: \"*.example\", redirect: { to: / } }\n  \
         - { path: /costly, respond: { status: 206 }, limits: [costly, one] }\n",
    );
    let asks: [Asked; 17] = [
        ("GET", "/one/x", &[("X-Account", "a")]),
        ("GET", "/one/x", &[("X-Account", "a")]),
        ("GET", "/one/x", &[("X-Account", "b"), ("X-Forwarded-For", "203.0.113.7")]),
        ("GET", "/one/x", &[]),
        ("GET", "/one/x.gif", &[]),
        ("GET", "/one/raw/x.gif", &[]),
        ("GET", "/exact", &[]),
        ("HEAD", "/exact", &[]),
        ("POST", "/exact", &[]),
        ("GET", "/none", &[]),
        ("GET", "/../x", &[]),
        ("GET", "/host/", &[("Host", "a.example")]),
        ("GET", "/host/", &[("Host", "other")]),
        ("GET", "/costly", &[("X-Account", "c"), ("X-Cost", "9")]),
        ("POST", "/costly", &[("X-Account", "d"), ("X-Cost", "9")]),
        ("POST", "/costly", &[("X-Account", "d"), ("X-Cost", "2")]),
        ("POST", "/costly", &[("X-Account", "e"), ("X-Account", "f")]),
    ];
    for (method, target, headers) in asks {
        let lines: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let body = serde_json::json!({ "method": method, "url": target, "headers": lines }).to_string();
        let query = post("/explain", body.as_bytes()).header("Accept", "application/json");
        let explained = gateway.ask_admin(&query).expect(200).json();
        let verdict = &explained["verdict"];
        let then = verdict["then"].as_str().and_then(|then| then.rsplit(' ').next()?.parse().ok());
        let predicted = verdict["status"].as_u64().or(then).expect("a status");
        let mut lines = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            lines += "Host: localhost\r\n";
        }
        headers.iter().for_each(|(name, value)| lines += &format!("{name}: {value}\r\n"));
        let mut client = gateway.client();
        client.send(lines + "\r\n");
        let seen = if method == "HEAD" { client.head_response() } else { client.response() };
        assert_eq!(predicted, u64::from(seen.status), "{method} {target} {headers:?}\n{explained:#}");
    }
}

/// Slots in use are reported.
#[test]
fn live_reports_slots_in_use() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let text = file("127.0.0.1:0").replace("http://127.0.0.1:1", &upstream.url());
    let gateway = Gateway::start(&text);
    let mut busy = gateway.client();
    busy.send(get("/held/").bytes());
    upstream.wait_for(1);
    let ask = || {
        let body = br#"{"method":"GET","url":"/held/"}"#;
        gateway.ask_admin(&post("/explain", body)).expect(200).text()
    };
    let explained = ask();
    assert!(explained.contains("    0 of 1 slots free: reject\n"), "{explained}");
    assert!(
        explained.ends_with("verdict   reject with 503 by limit slots: concurrency, Retry-After 1\n"),
        "{explained}"
    );
    gate.open();
    busy.response().expect(200);
    eventually("the slot to be free", || ask().contains("    1 of 1 slots free: admit\n"));
}

/// Without --live only the file is read: counters are fresh, and no gateway has to run.
#[test]
fn offline_needs_only_the_file() {
    let explained = explain(&file("127.0.0.1:1"), &["-H", "Host: a.example"]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let expected = "\
client    127.0.0.1: the peer
host      a.example
path      /x
location  / -> answers 200: the longest prefix, and no regular expression matches
limits
  per-ip: 2 requests per hour per client IP, 2 at once; the 3rd is rejected with 429 and told when to return
    counts by client IP 127.0.0.1
    2 of 2 left: admit
verdict   admit: answered here with 200
";
    assert_eq!(explained.stdout, expected);
}

/// 5: no listener, a wrong token, no admin address; 2: not a valid request; 3: the file is invalid.
#[test]
fn explain_ends_with_the_codes_of_the_contract() {
    let gateway = Gateway::start(&file("{ listen: 127.0.0.1:0, token: s3cret }"));
    let wrong = live(&gateway, "other", &[]);
    assert_eq!(wrong.code, Some(5), "{wrong:?}");
    assert!(wrong.stderr.contains("token") && !wrong.stderr.contains("other\n"), "{wrong:?}");
    assert_eq!(live(&gateway, "s3cret", &["--ip", "nobody"]).code, Some(2));
    let nobody = explain(&file(&free_addr().to_string()), &["--live"]);
    assert_eq!(nobody.code, Some(5), "{nobody:?}");
    assert!(nobody.stderr.contains("is the gateway running?"), "{nobody:?}");
    assert_eq!(explain(&file("none"), &["--live"]).code, Some(5));
    assert_eq!(explain(&file("127.0.0.1:0"), &["--live"]).code, Some(5));
    assert_eq!(explain("locations: []\nwhat: 1\n", &[]).code, Some(3));
    assert_eq!(explain(&file("none"), &["--what"]).code, Some(2));
}

/// A rejected token is reported with the reason, offline and live, and never shown.
#[test]
fn explain_gives_the_reason_for_a_rejected_token() {
    let secret = "0123456789abcdef0123456789abcdef";
    let token = |secret: &str, claims: serde_json::Value| {
        let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
    };
    let file = |admin: &str| {
        format!(
            "admin: {admin}\naccess_log: {{ output: access.log }}\n\
             account: {{ from: jwt:sub, jwt: {{ secret: {secret} }} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ key: account, rate: 9/h }} }}\n"
        )
    };
    let gateway = Gateway::start(&file("127.0.0.1:0"));
    let running = file(&gateway.admin().to_string());
    for (token, why) in [
        (token(secret, serde_json::json!({ "sub": "ann", "exp": 4_000_000_000_u64 })), "accepted"),
        (token("another", serde_json::json!({ "sub": "ann" })), "not accepted: its signature is invalid"),
        (token(secret, serde_json::json!({ "sub": "ann", "exp": 1 })), "not accepted: it has expired (exp)"),
        (
            token(secret, serde_json::json!({ "sub": "ann" })),
            "not accepted: it has no expiry time (exp), which is required",
        ),
    ] {
        let header = format!("Authorization: Bearer {token}");
        for more in [&["-H", &header][..], &["-H", &header, "--live"]] {
            let explained = explain(&running, more);
            assert!(explained.stdout.contains(&format!("\ntoken     {why}\n")), "{explained:?}");
            let account = if why == "accepted" {
                "ann, from token claim sub"
            } else {
                "none: the token is not accepted"
            };
            assert!(explained.stdout.contains(&format!("\naccount   {account}\n")), "{explained:?}");
            assert!(token.split('.').all(|part| !explained.stdout.contains(part)), "{explained:?}");
            assert!(token.split('.').all(|part| !explained.stderr.contains(part)), "{explained:?}");
        }
        let json = explain(&running, &["-H", &header, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert_eq!(json["token"]["accepted"], why == "accepted", "{json:#}");
    }
    let explained = explain(&running, &[]);
    assert!(explained.stdout.contains("\ntoken     not accepted: the request has none\n"), "{explained:?}");
}

/// What forwarding would do is part of the verdict: a request that the limits admit gets 503 while no server is up.
#[test]
fn live_judges_the_servers_too() {
    let upstream = Upstream::ok();
    let server = upstream.addr().to_string();
    let yaml = |admin: &str| {
        format!(
            "admin: \"{admin}\"\nupstreams:\n  app: [\"{server}\"]\n  \
             sick: {{ servers: [\"127.0.0.1:1\"], health: {{ path: /, interval: 100ms, fall: 1 }} }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /sick/, upstream: sick }}\n"
        )
    };
    let gateway = Gateway::start(&yaml("127.0.0.1:0"));
    let asked = |path: &str, more: &[&str]| {
        let dir = Scratch::new();
        let text = format!("listen: 127.0.0.1:0\n{}", yaml(&gateway.admin().to_string()));
        let file = dir.file("gateway.yaml", &text).display().to_string();
        let args = [&["explain", "GET", path, "-c", &file], more].concat();
        Run::default().args(&args).finish(dir.path()).stdout
    };
    let drain = |action: &str| {
        let target = format!("/upstreams/app/servers/{server}/{action}");
        gateway.ask_admin(&post(&target, b"").header("Content-Type", "application/json")).expect(200);
    };
    let forwarded = "verdict   admit: forwarded to upstream app as GET /x\n";
    let live = asked("/x", &["--live"]);
    assert!(live.ends_with(forwarded) && live.contains("\nservers   1 up\n"), "{live}");
    drain("drain?force=true");
    let refused = asked("/x", &["--live"]);
    assert!(refused.contains("\nservers   1 draining\n"), "{refused}");
    assert!(refused.contains("verdict   reject with 503: no server of app is up (1 draining)"), "{refused}");
    gateway.get("/x").expect(503);
    let offline = asked("/x", &[]);
    assert!(offline.ends_with(forwarded), "without --live all servers count as up: {offline}");
    assert!(offline.contains("\nservers   count as up; --live judges them\n"), "{offline}");
    drain("undrain");
    assert!(asked("/x", &["--live"]).ends_with(forwarded));
    eventually("the health check fails", || gateway.get("/sick/").status == 503);
    assert!(asked("/sick/", &["--live"]).contains("no server of sick is up (1 down)"));
}

/// A full server rejects without a queue; an ejected one is the last resort; `degrade` needs a server as well.
#[test]
fn live_judges_full_and_ejected_servers() {
    let gate = Gate::default();
    let (held, failing) = (Upstream::held_by(&gate), Upstream::new(|_| Reply::with(500, &[], "no")));
    let gateway = Gateway::start(&format!(
        "limits: {{ once: {{ rate: 1/h, key: global, on_reject: {{ degrade: full }} }} }}\n\
         upstreams:\n  full: {{ servers: [{held}], max_connections: 1 }}\n  \
         ill: {{ servers: [{failing}, {failing}], eject: {{ errors: 1, status: 5xx, max: 100% }} }}\n\
         locations:\n  - {{ path: /full, upstream: full }}\n  - {{ path: /ill, upstream: ill }}\n  \
         - {{ path: /once, respond: {{ body: ok }}, limits: once }}\n",
        held = held.addr(),
        failing = failing.addr()
    ));
    let explain = |url: &str| {
        let query = serde_json::json!({ "method": "GET", "url": url }).to_string();
        gateway
            .ask_admin(&post("/explain", query.as_bytes()).header("Accept", "text/plain"))
            .expect(200)
            .text()
    };
    gateway.get("/once").expect(200);
    let degraded = explain("/once");
    assert!(degraded.ends_with("; sent to upstream full instead\n"), "{degraded}");
    let mut client = gateway.client();
    client.send(get("/full").bytes());
    held.wait_for(1);
    for url in ["/full", "/once"] {
        let text = explain(url);
        assert!(text.contains("verdict   reject with 503: no server of full is free (1 full)"), "{text}");
        gateway.get(url).expect(503);
    }
    gate.open();
    client.response().expect(200);
    assert!(explain("/full").contains("verdict   admit: forwarded to upstream full as GET /full\n"));
    (0..4).for_each(|_| drop(gateway.get("/ill").expect(500)));
    let text = explain("/ill");
    assert!(
        text.contains(" ejected") && text.contains("verdict   admit: forwarded to upstream ill"),
        "{text}"
    );
}
