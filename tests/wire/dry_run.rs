//! `dry_run`: judged on its own counters, reported everywhere, and without effect.

use std::time::Instant;

use crate::support::*;

const DECISIONS: &str = "sluicegate_decisions_total";

fn dry_run(response: &Response) -> Option<String> {
    response.header("sluicegate-dry-run")
}

#[track_caller]
fn assert_counts(gateway: &Gateway, limit: &str, counts: [(&str, f64); 3]) {
    for (verdict, count) in counts {
        let labels = [format!("limit=\"{limit}\""), format!("verdict=\"{verdict}\"")];
        let labels = labels.each_ref().map(String::as_str);
        eventually(&format!("{labels:?} = {count}"), || gateway.metric(DECISIONS, &labels) == count);
    }
}

/// Requests that would pass, wait or be rejected are answered at once and marked in header, log and
/// metrics; the same file with the limit enforced rejects.
#[test]
fn a_dry_run_reports_all_three_outcomes() {
    let file = |dry_run: bool| {
        format!(
            "limits:\n  line: {{ key: global, algorithm: leaky_bucket, rate: 1/m, queue: 1, max_wait: none, \
               dry_run: {dry_run} }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: line }}\n"
        )
    };
    let gateway = Gateway::start(&file(true));
    let start = Instant::now();
    let mut client = gateway.client();
    let reported: Vec<String> = (0..3).filter_map(|_| dry_run(&client.ask(&get("/")).expect(200))).collect();
    assert!(start.elapsed() < ms(5000), "a dry run delayed a request");
    assert_eq!(reported[0], "\"line\";would=admit");
    for (reported, start) in
        [(&reported[1], "\"line\";would=wait;ms="), (&reported[2], "\"line\";would=reject;retry_after_ms=")]
    {
        let ms: u64 = reported
            .strip_prefix(start)
            .and_then(|ms| ms.parse().ok())
            .unwrap_or_else(|| panic!("{reported}"));
        assert!((50_000..=60_000).contains(&ms), "{reported}");
    }
    let lines = gateway.wait_log(3);
    let logged: Vec<_> = lines.iter().map(|line| line["dry_run"].as_str().unwrap_or("-")).collect();
    assert_eq!(logged, ["-", "line=wait", "line=reject"]);
    assert!(lines.iter().all(|line| line["verdict"] == "admit" && line["wait_ms"] == 0.0), "{lines:#?}");
    assert_counts(&gateway, "line", [("admit", 1.0), ("dry_run_wait", 1.0), ("dry_run_reject", 1.0)]);

    let enforced = Gateway::start(&file(false));
    assert_eq!(dry_run(&enforced.get("/").expect(200)), None);
    let mut waiter = enforced.client();
    waiter.send(get("/").bytes());
    enforced.wait_queued(1);
    let rejected = enforced.get("/").expect(429);
    assert_eq!((rejected.json()["limit"].as_str(), dry_run(&rejected)), (Some("line"), None));
}

/// A concurrency limit in a dry run counts requests that are really in flight, and reports its would-be
/// rejections.
#[test]
fn a_dry_run_of_concurrency_reports_would_be_rejections() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "limits:\n  slot: {{ key: global, algorithm: concurrency, max_concurrent: 1, dry_run: true }}\n  \
           bucket: {{ key: global, rate: 9/h, dry_run: true }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: [slot, bucket] }}\n",
        upstream.url()
    ));
    let mut clients: Vec<Client> = (0..3).map(|_| gateway.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(get("/").bytes());
        upstream.wait_for(index + 1);
    }
    gate.open();
    for (client, would) in clients.iter_mut().zip(["admit", "reject", "reject"]) {
        let reported = dry_run(&client.response().expect(200)).expect("a dry run is reported");
        assert_eq!(reported, format!("\"bucket\";would=admit, \"slot\";would={would}"));
    }
    assert_counts(&gateway, "slot", [("admit", 1.0), ("dry_run_reject", 2.0), ("reject", 0.0)]);
    let lines = gateway.wait_log(3);
    let logged = lines.iter().filter(|line| line["dry_run"] == "slot=reject").count();
    assert_eq!(logged, 2, "{lines:#?}");
    let reported = dry_run(&gateway.get("/").expect(200)).expect("a dry run is reported");
    assert!(reported.ends_with("\"slot\";would=admit"), "{reported}: a slot was lost");
}

/// Every response of the chain reports: rejections, faults, unknown paths, and degraded requests.
#[test]
fn every_response_of_the_chain_reports() {
    let gateway = Gateway::start(&format!(
        "server: {{ limits: trial }}\n\
         limits:\n  trial: {{ key: global, rate: 99/h, dry_run: true }}\n  real: {{ rate: 1/h }}\n\
         locations:\n  - {{ path: /real, respond: {{ body: ok }}, limits: real }}\n  \
           - {{ path: /down, upstream: \"{}\" }}\n  \
           - {{ path: /else, respond: {{ body: ok }}, limits: real, on_reject: {{ degrade: {{ status: 203 }} }} }}\n",
        Refusing::new().url()
    ));
    for (path, status) in [("/real", 200), ("/real", 429), ("/down", 502), ("/nowhere", 404), ("/else", 203)]
    {
        let response = gateway.get(path).expect(status);
        assert_eq!(dry_run(&response).as_deref(), Some("\"trial\";would=admit"), "{path}");
    }
}

/// Dry runs follow all or nothing as if they were enforced: a request that another limit rejects costs them
/// nothing, wherever they are in the chain.
#[test]
fn a_rejection_by_another_limit_costs_a_dry_run_nothing() {
    let gateway = Gateway::start(
        "limits:\n  before: { key: global, rate: 1/h, burst: 3, dry_run: true }\n  \
           real: { key: query:k, rate: 1/h, burst: 1 }\n  \
           after: { key: global, rate: 1/h, burst: 3, dry_run: true }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [before, real, after] }\n",
    );
    let both = |would: &str| format!("\"before\";would={would}, \"after\";would={would}");
    gateway.get("/?k=a").expect(200);
    for _ in 0..5 {
        assert_eq!(dry_run(&gateway.get("/?k=a").expect(429)), Some(both("admit")));
    }
    for k in ["b", "c"] {
        assert_eq!(dry_run(&gateway.get(&format!("/?k={k}")).expect(200)), Some(both("admit")));
    }
    let reported = dry_run(&gateway.get("/?k=d").expect(200)).expect("a dry run is reported");
    assert_eq!(reported.matches("would=reject;retry_after_ms=").count(), 2, "{reported}");
    let reported = dry_run(&gateway.get("/?k=d").expect(429)).expect("a dry run is reported");
    assert_eq!(reported.matches("would=reject").count(), 2, "{reported}");
    // Rejections are counted although another limit rejected too; the five admissions after a rejection are
    // not.
    assert_counts(&gateway, "before", [("admit", 3.0), ("dry_run_reject", 2.0), ("reject", 0.0)]);
    assert_counts(&gateway, "after", [("admit", 3.0), ("dry_run_reject", 2.0), ("reject", 0.0)]);
}

/// A limit with several rates reports once, its strictest; a missing key would be rejected.
#[test]
fn one_item_per_limit() {
    let gateway = Gateway::start(
        "limits:\n  two: { key: global, rate: [100/s, 1/h], dry_run: true }\n  \
           keyed: { key: \"header:X-Key\", missing_key: reject, rate: 99/h, dry_run: true }\n  \
           other: { rate: 99/h, methods: POST, dry_run: true }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [two, keyed, other] }\n  \
           - { path: /plain, respond: { body: ok }, limits: 99/h }\n",
    );
    let first = gateway.ask(&get("/").header("X-Key", "a")).expect(200);
    assert_eq!(dry_run(&first).as_deref(), Some("\"two\";would=admit, \"keyed\";would=admit"));
    assert!(!first.headers.has("ratelimit"), "a dry run has no quota to tell");
    let second = dry_run(&gateway.get("/").expect(200)).expect("a dry run is reported");
    assert!(second.starts_with("\"two\";would=reject;retry_after_ms="), "{second}");
    assert!(second.ends_with(", \"keyed\";would=reject"), "{second}");
    assert_eq!(dry_run(&gateway.get("/plain").expect(200)), None);
    assert_counts(&gateway, "two", [("admit", 1.0), ("dry_run_reject", 1.0), ("reject", 0.0)]);
    assert_counts(&gateway, "keyed", [("admit", 1.0), ("dry_run_reject", 1.0), ("reject", 0.0)]);
    let lines = gateway.wait_log(3);
    let logged: Vec<_> = lines.iter().filter_map(|line| line["dry_run"].as_str()).collect();
    assert_eq!(logged, ["two=reject,keyed=reject"]);
}

/// A dry run refuses nothing, neither what it cannot read nor what it cannot tell.
#[test]
fn a_dry_run_refuses_no_body() {
    let upstream = Upstream::ok();
    for (dry_run, refused) in [("true", [200; 4]), ("false", [400, 400, 415, 413])] {
        let limits =
            format!("limits: {{ l: {{ key: [json:/id, cookie:sid], rate: 90/h, dry_run: {dry_run} }} }}");
        let gateway = Gateway::start(&format!(
            "{limits}\nlocations: [{{ path: /, upstream: \"{}\", limits: l, body_peek: 1KiB }}]\n",
            upstream.url()
        ));
        let long = vec![b'x'; 5_000];
        let ask = |fields: &[(&str, &str)], body: &[u8]| {
            let request =
                fields.iter().fold(post("/", body), |request, (name, value)| request.header(name, value));
            gateway.ask(&request).status
        };
        let statuses = [
            ask(&[], br#"{"ID":1}"#),
            ask(&[("Cookie", "sid=a; SID=b")], br#"{"id":1}"#),
            ask(&[("Content-Type", "application/json; charset=utf-7")], br#"{"id":1}"#),
            ask(&[], &long),
        ];
        assert_eq!(statuses, refused, "{dry_run}");
    }
}

/// Neither does it refuse a repeated `fair_by`, or for a key that it does not act on.
#[test]
fn a_dry_run_refuses_no_repeated_value() {
    for (fields, status) in [("dry_run: true", 200), ("enforce: 0%", 200), ("enforce: 100%", 400)] {
        let queue = format!("algorithm: leaky_bucket, rate: 90/s, queue: 9, {fields}");
        for keys in ["key: ip, fair_by: header:X", "key: header:X", "key: ip, fair_by: cookie:X"] {
            let gateway = Gateway::start(&format!(
                "limits: {{ l: {{ {keys}, {queue} }} }}\n\
                 locations: [{{ path: /, respond: {{ body: ok }}, limits: l }}]\n"
            ));
            let twice = get("/").header("X", "a").header("X", "b").header("Cookie", "X=a; x=b");
            assert_eq!(gateway.ask(&twice).status, status, "{keys} {fields}");
        }
    }
}
