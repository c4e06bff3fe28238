//! The metrics, compared with the requests of the test.

use crate::support::*;

const REQUESTS: &str = "sluicegate_requests_total";
const DECISIONS: &str = "sluicegate_decisions_total";
const IN_FLIGHT: &str = "sluicegate_requests_in_flight";
const DURATION: &str = "sluicegate_request_duration_seconds";
const QUEUED: &str = "sluicegate_queue_depth";

#[track_caller]
fn assert_counts(gateway: &Gateway, name: &str, counts: &[(&[&str], f64)]) {
    for (labels, expected) in counts {
        eventually(&format!("{name}{labels:?} = {expected}"), || gateway.metric(name, labels) == *expected);
    }
}

/// Requests are counted by location and status class, decisions by limit and verdict; a dry run counts its
/// would-be verdicts.
#[test]
fn requests_and_decisions_are_counted() {
    let gateway = Gateway::start(
        "limits:\n  real: { key: global, rate: 1/h, burst: 3 }\n  \
           trial: { key: global, rate: 1/h, burst: 1, dry_run: true }\n\
         locations:\n  - { path: /a, respond: { body: ok }, limits: real }\n  \
           - { path: /b, respond: { body: ok }, limits: trial }\n",
    );
    for _ in 0..5 {
        gateway.get("/a");
        gateway.get("/b").expect(200);
    }
    gateway.get("/nowhere").expect(404);
    let (a, none) = ("location=\"/a\"", "location=\"none\"");
    assert_counts(
        &gateway,
        REQUESTS,
        &[(&[a, "status=\"2xx\""], 3.0), (&[a, "status=\"4xx\""], 2.0), (&[none, "status=\"4xx\""], 1.0)],
    );
    let (real, trial) = ("limit=\"real\"", "limit=\"trial\"");
    assert_counts(
        &gateway,
        DECISIONS,
        &[
            (&[real, "verdict=\"admit\""], 3.0),
            (&[real, "verdict=\"reject\""], 2.0),
            (&[trial, "verdict=\"admit\""], 1.0),
            (&[trial, "verdict=\"dry_run_reject\""], 4.0),
            (&[trial, "verdict=\"reject\""], 0.0),
        ],
    );
}

/// The duration of a request is counted by its location, whatever its end: served, rejected, or without a location.
#[test]
fn durations_are_counted_by_location() {
    let upstream = Upstream::new(|_| Reply::text("ok").after(ms(300)));
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /slow, upstream: \"{}\" }}\n  \
           - {{ path: /quick, respond: {{ body: ok }}, limits: 2/h }}\n",
        upstream.url()
    ));
    gateway.get("/slow").expect(200);
    for status in [200, 200, 429] {
        gateway.get("/quick").expect(status);
    }
    gateway.get("/nowhere").expect(404);
    let (slow, quick, none) = ("location=\"/slow\"", "location=\"/quick\"", "location=\"none\"");
    assert_counts(&gateway, &format!("{DURATION}_count"), &[(&[slow], 1.0), (&[quick], 3.0), (&[none], 1.0)]);
    assert_counts(
        &gateway,
        &format!("{DURATION}_bucket"),
        &[(&[slow, "le=\"0.25\""], 0.0), (&[slow, "le=\"30.0\""], 1.0)],
    );
    let sum = gateway.metric(&format!("{DURATION}_sum"), &[slow]);
    assert!((0.3..10.0).contains(&sum), "{sum}");
    // Without the access log too.
    gateway.change(&format!(
        "access_log: none\nlocations:\n  - {{ path: /slow, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    gateway.get("/slow").expect(200);
    assert_counts(&gateway, &format!("{DURATION}_count"), &[(&[slow], 2.0)]);
}

/// A limit that is only peeked at after a rejection admitted nothing, and is not counted as admitting.
#[test]
fn peeked_limits_are_not_counted_as_admitting() {
    let gateway = Gateway::start(
        "limits:\n  narrow: { key: global, rate: 1/h, burst: 1 }\n  wide: { key: global, rate: 1/h, burst: 9 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [narrow, wide] }\n",
    );
    for _ in 0..4 {
        gateway.get("/");
    }
    let counts: &[(&[&str], f64)] = &[
        (&["limit=\"narrow\"", "verdict=\"reject\""], 3.0),
        (&["limit=\"wide\"", "verdict=\"admit\""], 1.0),
    ];
    assert_counts(&gateway, DECISIONS, counts);
}

/// The depth of a queue counts its current waiters, without those that left.
#[test]
fn queue_depth_follows_the_waiters() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  line: {{ key: global, algorithm: leaky_bucket, rate: 1/m, queue: 9, max_wait: none }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: line }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    let mut waiters: Vec<_> = (0..5).map(|_| gateway.client()).collect();
    waiters.iter_mut().for_each(|waiter| waiter.send(get("/").bytes()));
    assert_counts(&gateway, QUEUED, &[(&["limit=\"line\""], 5.0)]);
    waiters.truncate(2);
    assert_counts(&gateway, QUEUED, &[(&["limit=\"line\""], 2.0)]);
    drop(waiters);
    assert_counts(&gateway, QUEUED, &[(&["limit=\"line\""], 0.0)]);
    assert_counts(&gateway, IN_FLIGHT, &[(&[], 0.0)]);
}

/// A thousand requests that are aborted while the upstream works are no longer in flight.
#[test]
fn aborted_requests_are_no_longer_in_flight() {
    raise_descriptors();
    let upstream = Upstream::new(|_| Reply::silence());
    let gateway = forwarding(&upstream, "");
    for _ in 0..10 {
        let mut crowd: Vec<_> = (0..100).map(|_| gateway.client()).collect();
        crowd.iter_mut().for_each(|client| client.send(get("/").bytes()));
        assert_counts(&gateway, IN_FLIGHT, &[(&[], 100.0)]);
        for (n, client) in crowd.into_iter().enumerate() {
            if n % 2 == 0 { client.reset() } else { drop(client) }
        }
        assert_counts(&gateway, IN_FLIGHT, &[(&[], 0.0)]);
    }
}

/// Heads that cannot be parsed are counted by cause.
#[test]
fn unreadable_heads_are_counted() {
    let gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    let before = gateway.metric("sluicegate_faults_total", &[]);
    for _ in 0..3 {
        gateway.raw("NONSENSE\r\n\r\n").expect(400);
    }
    eventually("three faults", || gateway.metric("sluicegate_faults_total", &[]) == before + 3.0);
}

/// Connections are counted when they open and while they stay open.
#[test]
fn connections_are_counted() {
    let gateway = Gateway::start(
        "server: { connections_per_ip: 2 }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut held = [gateway.client(), gateway.client()];
    for client in &mut held {
        client.ask(&get("/")).expect(200);
    }
    gateway.client().assert_closed();
    assert_counts(&gateway, "sluicegate_connections", &[(&[], 2.0)]);
    assert_counts(&gateway, "sluicegate_connections_rejected_total", &[(&["reason=\"per_client\""], 1.0)]);
    drop(held);
    assert_counts(&gateway, "sluicegate_connections", &[(&[], 0.0)]);
}

/// When a table is full, requests on overflow counters are counted, and the log says so once.
#[test]
fn an_overflowing_limit_is_counted_and_logged_once() {
    let gateway = Gateway::start(
        "state: { max_keys: 2 }\nlimits:\n  per-user: { key: header:x-user, rate: 100/h }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: per-user }\n",
    );
    let ask = |user: usize| gateway.ask(&get("/").header("x-user", format!("u{user}"))).expect(200);
    let overflow = || gateway.metric("sluicegate_limit_overflow_total", &["limit=\"per-user\""]);
    (0..2).for_each(|user| drop(ask(user)));
    assert_eq!(overflow(), 0.0);
    (0..5).for_each(|user| drop(ask(user)));
    assert_eq!(overflow(), 3.0);
    assert_eq!(gateway.metric("sluicegate_keys", &[]), 2.0);
    gateway.wait_stderr("the table is full");
    assert_eq!(gateway.stderr().matches("the table is full").count(), 1);
}

/// No content of requests creates a new series.
#[test]
fn requests_create_no_series() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "access_log: none\nserver: {{ trusted_proxies: 127.0.0.1 }}\nstate: {{ max_keys: 500 }}\n\
         account: {{ from: header:x-account, tier: {{ from: header:x-tier }} }}\nbans: {{ after: 3/1m }}\nlimits:\n  \
           one: {{ key: [ip, header:x-key, host, uri, method], rate: 1/h }}\n  \
           two: {{ key: [account, tier], algorithm: sliding_window, rate: 10/s }}\n\
         locations:\n  - {{ path: /known, upstream: \"{}\", limits: [one, two] }}\n",
        upstream.url()
    ));
    let fire = |from: usize, to: usize| {
        let mut client = gateway.client();
        for batch in (from..to).step_by(100) {
            let mut bytes = Vec::new();
            for n in batch..batch + 100 {
                let path = if n % 4 == 0 { "unknown" } else { "known" };
                let ask =
                    Ask::new(&format!("M{n}"), &format!("/{path}{n}?q={n}")).host(&format!("h{n}.test"));
                let ip = format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255);
                let ask = ask.header("X-Forwarded-For", ip).header("X-Key", n).header("X-Account", n);
                bytes.extend(ask.header("X-Tier", n).header("User-Agent", n).bytes());
            }
            client.send(bytes);
            (0..100).for_each(|_| assert!([200, 404, 429].contains(&client.response().status)));
        }
    };
    let series = || -> Vec<String> {
        let metrics = gateway.metrics();
        metrics.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    fire(0, 1000);
    let before = series();
    fire(1000, 10_000);
    assert_eq!(series(), before);
}
