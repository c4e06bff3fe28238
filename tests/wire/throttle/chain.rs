//! Several limits on one location: one transaction, however it ends.

use std::time::Instant;

use crate::support::*;

/// All limits of a chain are charged or none: a request that one rejects costs nothing in the others.
#[test]
fn a_rejection_charges_no_limit_of_the_chain() {
    let gateway = Gateway::start(
        "limits:\n  wide: { key: global, rate: 1/m, burst: 5 }\n  \
           narrow: { key: query:k, rate: 1/m, burst: 1 }\n  \
           late: { key: global, rate: 1/h, burst: 100 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [wide, narrow, late] }\n",
    );
    let mut client = gateway.client();
    client.ask(&get("/?k=a")).expect(200);
    for _ in 0..50 {
        let rejected = client.ask(&get("/?k=a")).expect(429);
        assert_eq!(rejected.json()["limit"], "narrow");
    }
    for k in ["b", "c", "d", "e"] {
        client.ask(&get(&format!("/?k={k}"))).expect(200);
    }
    assert_eq!(client.ask(&get("/?k=f")).expect(429).json()["limit"], "wide");
}

/// If several limits reject, the response names the one with the longest retry, in any order.
#[test]
fn the_response_has_the_longest_retry() {
    for order in ["[short, long]", "[long, short]"] {
        let gateway = Gateway::start(&format!(
            "limits:\n  short: {{ rate: 1/10s, burst: 1 }}\n  long: {{ rate: 1/h, burst: 1 }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {order} }}\n",
        ));
        gateway.get("/").expect(200);
        let rejected = gateway.get("/").expect(429);
        assert_eq!(rejected.json()["limit"], "long", "{order}");
        assert!(rejected.retry_after_ms() > 3_500_000, "{order}: {}", rejected.text());
    }
}

/// Of several queues the longest wait counts, not their sum.
#[test]
fn the_longest_wait_counts() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  quick: {{ key: global, algorithm: leaky_bucket, rate: 10/s, queue: 5 }}\n  \
           slow: {{ key: global, algorithm: leaky_bucket, rate: 4/s, queue: 5 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: [quick, slow] }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..4).map(|_| get("/")));
    noise.assert_schedule(&volley::answered(&shots, 200), &[0, 250, 500, 750]);
}

/// After a rejection by concurrency the limits before it are refunded.
#[test]
fn a_rejection_by_concurrency_costs_nothing() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "limits:\n  bucket: {{ key: global, rate: 1/h, burst: 2 }}\n  \
           slot: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: [bucket, slot] }}\n",
        upstream.url()
    ));
    let mut holder = gateway.client();
    holder.send(get("/").bytes());
    upstream.wait_for(1);
    for _ in 0..5 {
        assert_eq!(gateway.get("/").expect(503).json()["limit"], "slot");
    }
    gate.open();
    holder.response().expect(200);
    gateway.get("/").expect(200);
    assert_eq!(gateway.get("/").expect(429).json()["limit"], "bucket");
}

/// A request that leaves while it waits is refunded by every limit.
#[test]
fn a_waiter_that_leaves_is_refunded_everywhere() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  bucket: {{ key: global, rate: 1/h, burst: 2 }}\n  \
           queue: {{ key: global, algorithm: leaky_bucket, rate: 1/s, queue: 5 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: [bucket, queue] }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    let mut leaver = gateway.client();
    leaver.send(get("/leaver").bytes());
    gateway.wait_queued(1);
    gateway.get("/").expect(429);
    drop(leaver);
    let start = Instant::now();
    eventually("a slot after the leaver's", || gateway.get("/stayer").status == 200);
    assert!(start.elapsed() < ms(2000), "it took {:?}", start.elapsed());
    assert_eq!(upstream.targets(), ["/", "/stayer"]);
    gateway.get("/").expect(429);
}

/// Several rates in one limit must all hold.
#[test]
fn several_rates_are_judged_together() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { rate: [100/s, 5/m] } }\n",
    );
    let mut client = gateway.client();
    for _ in 0..5 {
        client.ask(&get("/")).expect(200);
    }
    client.ask(&get("/")).expect(429);
}

/// The limits of the server section are judged before a location's own, for unknown paths too.
#[test]
fn server_limits_hold_for_every_path() {
    let gateway = Gateway::start(
        "limits:\n  all: { rate: 1/m, burst: 3 }\n\
         server: { limits: all }\n\
         locations:\n  - { path: /known, respond: { body: ok } }\n",
    );
    let targets = ["/known", "/unknown", "/known", "/known", "/unknown"];
    let seen = targets.map(|target| gateway.get(target).status);
    assert_eq!(seen, [200, 404, 200, 429, 429]);
}

/// dry_run judges on counters of its own, reports, and never rejects or delays.
#[test]
fn a_dry_run_never_acts() {
    let gateway = Gateway::start(
        "limits:\n  trial: { key: global, rate: 1/m, burst: 1, dry_run: true }\n  \
           slow: { key: global, algorithm: leaky_bucket, rate: 1/m, queue: 5, dry_run: true }\n  \
           real: { key: global, rate: 1/m, burst: 5 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [trial, slow, real] }\n",
    );
    let start = Instant::now();
    let mut client = gateway.client();
    for _ in 0..5 {
        let response = client.ask(&get("/")).expect(200);
        let policy = response.header("ratelimit-policy").expect("a RateLimit-Policy field");
        assert_eq!(policy, "\"real\";q=5;w=300");
    }
    let rejected = client.ask(&get("/")).expect(429);
    assert_eq!(rejected.json()["limit"], "real");
    assert!(start.elapsed() < ms(5000), "a dry run delayed a request");
}
