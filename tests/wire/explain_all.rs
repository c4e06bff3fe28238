//! Explain beside its gateway, on a file that uses everything: the explanation equals the outcome.

use std::time::Instant;

use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};

use crate::support::*;

const SECRET: &str = "of-the-tests-0123456789abcdef-0123456789";

/// Periods are hours, so nothing refills while the test runs, except the queue.
fn everything(upstream: &str) -> String {
    format!(
        "server: {{ trusted_proxies: 127.0.0.1, limits: whole }}\n\
         account:\n  from: jwt:sub\n  tier: {{ from: jwt:plan, members: {{ ann: gold, ivy: internal }}, default: free }}\n  \
           jwt: {{ secret: {SECRET}, algorithms: HS256 }}\n\
         ip_sets: {{ office: [192.0.2.0/24, \"2001:db8:aa::/48\"], bad: 198.51.100.0/24 }}\n\
         access: {{ deny: bad, bypass: office }}\nbans: {{ after: 2/1h, for: 1h }}\n\
         limits:\n  whole: {{ key: global, rate: 100000/h }}\n  \
           acc: {{ key: account, rate: 1/h, tiers: {{ gold: {{ rate: 2/h }}, paid: {{ rate: [9/h, 1/2h] }}, internal: none }} }}\n  \
           tiered: {{ key: tier, rate: 1/h }}\n  \
           pair: {{ key: [account, uri], missing_key: reject, rate: 1/h }}\n  \
           fixed: {{ algorithm: fixed_window, rate: 1/1h }}\n  \
           slid: {{ algorithm: sliding_window, rate: 1/1h, buckets: 4 }}\n  \
           log: {{ algorithm: sliding_log, rate: [3/1h, 4/2h], cost: \"header:X-Cost\" }}\n  \
           warm: {{ rate: 3/h, burst: 3, warm_up: 1h }}\n  \
           line: {{ key: global, algorithm: leaky_bucket, rate: 1/4s, queue: 1, max_wait: none, fair_by: account }}\n  \
           full: {{ key: ip, algorithm: leaky_bucket, rate: 1/h, queue: 1, max_wait: none }}\n  \
           shut: {{ key: global, algorithm: concurrency, max_concurrent: 1, methods: POST }}\n  \
           dry: {{ rate: 1/h, dry_run: true }}\n  \
           canned: {{ rate: 1/h, on_reject: {{ degrade: {{ status: 203, body: later }} }} }}\n  \
           once: {{ rate: 1/h }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }} }}\n  \
           - {{ path: /acc, respond: {{ body: ok }}, limits: acc }}\n  \
           - {{ path: /tier, respond: {{ body: ok }}, limits: tiered }}\n  \
           - {{ path: /pair, respond: {{ body: ok }}, limits: pair }}\n  \
           - {{ path: /windows, respond: {{ body: ok }}, limits: [fixed, slid] }}\n  \
           - {{ path: /slid, respond: {{ body: ok }}, limits: slid }}\n  \
           - {{ path: /log, respond: {{ body: ok }}, limits: log }}\n  \
           - {{ path: /warm, respond: {{ body: ok }}, limits: warm }}\n  \
           - {{ path: /line, respond: {{ body: ok }}, limits: line }}\n  \
           - {{ path: /late, respond: {{ body: ok }}, limits: full, timeout: 5s }}\n  \
           - {{ path: /shut, upstream: \"{upstream}\", limits: shut }}\n  \
           - {{ path: /dry, respond: {{ body: ok }}, limits: dry }}\n  \
           - {{ path: /canned, respond: {{ body: ok }}, limits: canned }}\n  \
           - {{ path: /once, respond: {{ body: ok }}, limits: once, on_reject: {{ status: 420 }} }}\n  \
           - {{ path: /elsewhere, respond: {{ body: ok }}, limits: once, on_reject: {{ degrade: demo }} }}\n  \
           - {{ path: /back, respond: {{ body: ok }}, access: {{ allow: office }} }}\n"
    )
}

/// A request: method, path, client, claims of the token, cost.
struct Case(&'static str, &'static str, &'static str, Option<Value>, u32);

fn token(claims: &Value) -> String {
    let mut claims = claims.clone();
    claims["exp"] = u64::from(u32::MAX).into();
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
}

fn cases() -> Vec<Case> {
    let ann = || Some(json!({ "sub": "ann" }));
    let paid = || Some(json!({ "sub": "bob", "plan": "paid" }));
    let nobody = "203.0.113.1";
    let mut cases = vec![
        // The deny list comes first; the office is never limited; only the office reaches the back office.
        Case("GET", "/", "198.51.100.7", ann(), 1),
        Case("GET", "/back", nobody, None, 1),
        Case("GET", "/back", "192.0.2.9", None, 1),
        Case("GET", "/nowhere", nobody, None, 1),
        Case("GET", "/", nobody, None, 1),
    ];
    // A client of its own for every path, so that none collects the strikes of a ban by accident.
    let twice = [("/tier", "203.0.113.3"), ("/windows", "203.0.113.4"), ("/slid", "203.0.113.4")];
    for (path, ip) in twice {
        cases.extend((0..2).map(|_| Case("GET", path, ip, None, 1)));
    }
    cases.extend((0..3).map(|_| Case("GET", "/acc", "203.0.113.2", ann(), 1)));
    cases.extend((0..2).map(|_| Case("GET", "/acc", "203.0.113.5", paid(), 1)));
    cases.extend((0..3).map(|_| Case("GET", "/acc", "203.0.113.6", Some(json!({ "sub": "ivy" })), 1)));
    cases.extend((0..2).map(|_| Case("GET", "/pair", "203.0.113.7", ann(), 1)));
    cases.push(Case("GET", "/pair/x", "203.0.113.7", ann(), 1));
    cases.push(Case("GET", "/pair", "203.0.113.7", None, 1));
    cases.extend([2, 9, 2, 1, 1].map(|cost| Case("GET", "/log", "203.0.113.8", ann(), cost)));
    cases.extend((0..3).map(|_| Case("GET", "/warm", "203.0.113.9", None, 1)));
    cases.extend((0..2).map(|_| Case("GET", "/line", "203.0.113.10", ann(), 1)));
    cases.extend((0..2).map(|_| Case("GET", "/late", "203.0.113.11", None, 1)));
    cases.push(Case("POST", "/shut", "203.0.113.12", None, 1));
    cases.extend((0..3).map(|_| Case("GET", "/dry", "203.0.113.13", None, 1)));
    cases.extend((0..3).map(|_| Case("GET", "/canned", "203.0.113.14", None, 1)));
    cases.extend((0..2).map(|_| Case("GET", "/elsewhere", "203.0.113.15", None, 1)));
    // Two rejections are a ban, everywhere but for the office.
    cases.extend((0..3).map(|_| Case("GET", "/once", "2001:db8::1", None, 1)));
    cases.extend((0..2).map(|_| Case("GET", "/once", "2001:db8:aa::1", None, 1)));
    cases.push(Case("GET", "/", "2001:db8::2", ann(), 1));
    cases.push(Case("GET", "/", "2001:db8:0:1::2", ann(), 1));
    cases
}

impl Case {
    fn headers(&self) -> Vec<String> {
        let Case(_, _, ip, claims, cost) = self;
        let mut headers = vec![format!("X-Forwarded-For: {ip}"), format!("X-Cost: {cost}")];
        headers.extend(claims.iter().map(|claims| format!("Authorization: Bearer {}", token(claims))));
        headers
    }

    fn explained(&self, gateway: &Gateway) -> Value {
        let body = json!({ "method": self.0, "url": self.1, "headers": self.headers() }).to_string();
        let query = post("/explain", body.as_bytes()).header("Accept", "application/json");
        gateway.ask_admin(&query).expect(200).json()
    }

    fn sent(&self, gateway: &Gateway) -> Response {
        let headers = self.headers().join("\r\n");
        gateway.raw(format!("{} {} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n", self.0, self.1))
    }
}

/// First explain, then send, for every case: status, verdict, limit, account, tier and times agree.
#[test]
fn every_explanation_equals_the_outcome() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&everything(&upstream.url()));
    let mut busy = gateway.client();
    busy.send(post("/shut", b"").bytes());
    upstream.wait_for(1);
    let mut verdicts = std::collections::BTreeMap::<String, usize>::new();
    for (index, case) in cases().into_iter().enumerate() {
        let explanation = case.explained(&gateway);
        let start = Instant::now();
        let seen = case.sent(&gateway);
        let took = start.elapsed();
        let line = gateway.wait_log(index + 1).pop().expect("a line");
        agree(&case, &explanation, &seen, &line);
        if let Some(wait) = explanation["verdict"]["wait_ms"].as_u64() {
            assert!(
                took <= ms(wait) + ms(2000) && took + ms(2000) >= ms(wait),
                "{took:?}, {wait} ms explained"
            );
        }
        *verdicts.entry(line["verdict"].to_string()).or_default() += 1;
    }
    gate.open();
    busy.response().expect(200);
    for verdict in ["admit", "wait", "reject", "degrade", "ban", "access_denied"] {
        assert!(verdicts.keys().any(|seen| seen.contains(verdict)), "{verdict} is not tried: {verdicts:?}");
    }
}

/// Explanation, response and log line agree.
#[track_caller]
fn agree(case: &Case, explanation: &Value, seen: &Response, line: &Value) {
    let Case(method, path, ip, ..) = case;
    let body = seen.text();
    let shown = || {
        format!(
            "{method} {path} from {ip}\nexplained {explanation:#}\nseen {:?}\n{body}\n{line}",
            seen.headers
        )
    };
    let verdict = &explanation["verdict"];
    let cause = verdict["cause"].as_str().unwrap_or_default();
    let outcome = verdict["outcome"].as_str().expect("an outcome");
    let logged = match (outcome, cause) {
        ("reject", "missing_key") => cause,
        ("reject", _) if verdict["limit"].is_null() => cause,
        _ => outcome,
    };
    assert_eq!(line["verdict"], logged, "{}", shown());
    assert_eq!(line["limit"], verdict["limit"], "{}", shown());
    assert_eq!(line["tier"], explanation["tier"], "{}", shown());
    assert_eq!(line["account"].is_null(), explanation["account"]["name"].is_null(), "{}", shown());
    if let Some(status) = verdict["status"].as_u64() {
        assert_eq!(u64::from(seen.status), status, "{}", shown());
    } else {
        assert_eq!(seen.status, 200, "{}", shown());
    }
    let seconds = |text: &str| text.parse::<u64>().expect("seconds");
    let (foretold, real) = (verdict["retry_after"].as_str().map(seconds), seen.header("retry-after"));
    let real = real.as_deref().map(seconds);
    assert_eq!(foretold.is_some(), real.is_some(), "{}", shown());
    let late = foretold.zip(real).map(|(foretold, real)| foretold.abs_diff(real));
    assert!(late.is_none_or(|late| late < 60), "{}", shown());
    if let (Some(ms), Ok(seen)) = (verdict["retry_after_ms"].as_u64(), serde_json::from_str::<Value>(&body))
        && let Some(real) = seen["retry_after_ms"].as_u64()
    {
        assert!(ms.abs_diff(real) < 60_000, "{}", shown());
    }
    let degraded = seen.header("sluicegate-degraded");
    assert_eq!(degraded.is_some(), outcome == "degrade", "{}", shown());
    let dry = explanation["limits"].as_array().into_iter().flatten().filter(|limit| limit["dry_run"] == true);
    let would = dry.flat_map(|limit| limit["counters"].as_array().cloned().unwrap_or_default());
    let acts = would.into_iter().any(|counter| counter["outcome"] != "admit");
    let header = seen.header("sluicegate-dry-run").unwrap_or_default();
    assert_eq!(header.contains("would=reject"), acts, "{}", shown());
}
