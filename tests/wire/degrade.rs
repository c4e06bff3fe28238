//! `on_reject.degrade`: the response that replaces a rejection.

use crate::support::*;

const DECISIONS: &str = "sluicegate_decisions_total";

/// One location at / with this chain and `degrade`, its own upstream and a fallback named `fallback`.
fn degrading_gateway(own: &str, fallback: &str, limits: &str, chain: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ fallback: [\"{fallback}\"] }}\n\
         on_reject: {{ degrade: fallback }}\n\
         limits:\n{limits}\
         locations:\n  - {{ path: /, upstream: \"{own}\", limits: {chain} }}\n"
    ))
}

const ONCE: &str = "  once: { key: global, rate: 1/h, burst: 1 }\n";

fn sold_out_gateway() -> Gateway {
    Gateway::start(
        "limits:\n  once: { rate: 1/h, burst: 1, on_reject: { degrade: { body: \"sold out: ${limit}\" } } }\n\
         locations:\n  - { path: /, respond: { body: bought }, limits: once }\n",
    )
}

#[track_caller]
fn assert_counted(gateway: &Gateway, limit: &str, verdict: &str, count: f64) {
    let labels = [format!("limit=\"{limit}\""), format!("verdict=\"{verdict}\"")];
    let labels = labels.each_ref().map(String::as_str);
    eventually(&format!("{labels:?} = {count}"), || gateway.metric(DECISIONS, &labels) == count);
}

/// A canned response is a success, but marked, logged and counted as degraded.
#[test]
fn a_canned_response_replaces_the_rejection() {
    let gateway = sold_out_gateway();
    let mut client = gateway.client();
    let bought = client.ask(&get("/")).expect(200);
    assert_eq!((bought.text().as_str(), bought.header("sluicegate-degraded")), ("bought", None));
    for _ in 0..3 {
        let degraded = client.ask(&get("/")).expect(200);
        assert_eq!(degraded.text(), "sold out: once");
        assert_eq!(degraded.header("content-type").as_deref(), Some("text/plain"));
        assert_eq!(degraded.header("sluicegate-degraded").as_deref(), Some("\"once\""));
        assert_eq!(degraded.header("retry-after"), None);
        assert!(degraded.header("ratelimit").is_some_and(|field| field.starts_with("\"once\";r=0;t=")));
    }
    let head = client.ask(&Ask::new("HEAD", "/"));
    assert_eq!((head.status, head.header("content-length").as_deref()), (200, Some("14")));
    client.ask(&get("/")).expect(200);
    let lines = gateway.wait_log(6);
    assert_eq!(lines[0]["verdict"], "admit");
    for line in &lines[1..] {
        assert_eq!(
            (&line["verdict"], &line["limit"], &line["status"]),
            (&"degrade".into(), &"once".into(), &200.into())
        );
        assert!(line["retry_after"].as_f64().is_some_and(|seconds| seconds > 3000.0), "{line}");
    }
    assert_counted(&gateway, "once", "degrade", 5.0);
    assert_counted(&gateway, "once", "reject", 0.0);
    assert_counted(&gateway, "once", "admit", 1.0);
}

/// The unread body is drained, as for rejections: the connection continues.
#[test]
fn a_canned_response_keeps_the_connection() {
    let gateway = sold_out_gateway();
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    for _ in 0..3 {
        assert_eq!(client.ask(&post("/", &[b'x'; 20_000])).expect(200).text(), "sold out: once");
    }
}

/// gRPC clients cannot read a canned response: they get the status of the rejection.
#[test]
fn grpc_clients_are_degraded_to_upstreams_only() {
    let call = || post("/svc/Call", b"\0\0\0\0\0").header("Content-Type", "application/grpc");
    let canned = sold_out_gateway();
    canned.get("/").expect(200);
    let rejected = canned.ask(&call()).expect(200);
    assert_eq!(rejected.header("grpc-status").as_deref(), Some("8"));
    assert_eq!(rejected.header("sluicegate-degraded"), None);
    assert_counted(&canned, "once", "reject", 1.0);
    assert_counted(&canned, "once", "degrade", 0.0);
    let (own, fallback) = (Upstream::ok(), Upstream::named("fallback"));
    let gateway = degrading_gateway(&own.url(), &fallback.url(), ONCE, "once");
    gateway.get("/").expect(200);
    assert_eq!(gateway.ask(&call()).expect(200).text(), "fallback");
    assert_eq!(fallback.requests()[0].target, "/svc/Call");
}

/// The upstream gets the request itself: method, target, body and the location's own edits.
#[test]
fn a_fallback_upstream_gets_the_whole_request() {
    let (own, fallback) = (Upstream::ok(), Upstream::named("fallback"));
    let gateway = Gateway::start(&format!(
        "upstreams: {{ fallback: [\"{}\"] }}\n\
         locations:\n  - path: /api/\n    upstream: \"{}\"\n    strip: /api\n    host_header: inner.test\n    \
           request_headers: {{ set: {{ X-Via: gate }} }}\n    response_headers: {{ set: {{ X-Back: gate }} }}\n    \
           limits: {{ key: global, rate: 1/h, burst: 1 }}\n    on_reject: {{ degrade: fallback }}\n",
        fallback.url(),
        own.url(),
    ));
    let mut client = gateway.client();
    client.ask(&get("/api/a")).expect(200);
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut writer = client.writer();
    let request = post("/api/b?c=d", &body).bytes();
    let sender = std::thread::spawn(move || writer.write_all(&request));
    let degraded = client.response().expect(200);
    sender.join().expect("a thread").expect("the body is read");
    assert_eq!(degraded.text(), "fallback");
    assert_eq!(degraded.header("sluicegate-degraded").as_deref(), Some("\"/api/#1\""));
    assert_eq!(degraded.header("x-back").as_deref(), Some("gate"));
    assert!(degraded.header("ratelimit").is_some() && degraded.header("retry-after").is_none());
    let seen = &fallback.wait_for(1)[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/b?c=d"));
    assert_eq!(seen.header("host").as_deref(), Some("inner.test"));
    assert_eq!(seen.header("x-via").as_deref(), Some("gate"));
    assert!(seen.body == body, "{} bytes came", seen.body.len());
    let mut head = gateway.client();
    let headed = head.ask(&Ask::new("HEAD", "/api/h"));
    assert_eq!((headed.status, headed.header("sluicegate-degraded").as_deref()), (200, Some("\"/api/#1\"")));
    client.ask(&get("/api/e")).expect(200);
    assert_eq!(own.targets(), ["/a"]);
    assert_eq!(fallback.targets(), ["/b?c=d", "/h", "/e"]);
    let lines = gateway.wait_log(4);
    let line = lines.iter().find(|line| line["path"] == "/api/b").expect("a line");
    assert_eq!((&line["verdict"], &line["limit"]), (&"degrade".into(), &"/api/#1".into()));
    assert!(line["upstream"].as_str().is_some_and(|server| fallback.url().ends_with(server)), "{line}");
    eventually("nothing in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

/// A request that concurrency rejects continues without a slot, and leaves the slots to their holders.
#[test]
fn degraded_requests_hold_no_slot() {
    let (own_gate, fallback_gate) = (Gate::default(), Gate::default());
    let (own, fallback) = (Upstream::held_by(&own_gate), Upstream::held_by(&fallback_gate));
    let limits = "  slot: { key: global, algorithm: concurrency, max_concurrent: 1 }\n  \
                    bucket: { key: global, rate: 1/h, burst: 2 }\n";
    let gateway = degrading_gateway(&own.url(), &fallback.url(), limits, "[bucket, slot]");
    let mut holder = gateway.client();
    holder.send(get("/own").bytes());
    own.wait_for(1);
    let mut degraded = [gateway.client(), gateway.client()];
    // One after the other: in parallel, one could get the token that the other is about to return.
    for (index, client) in degraded.iter_mut().enumerate() {
        client.send(get("/else").bytes());
        fallback.wait_for(index + 1);
    }
    own_gate.open();
    holder.response().expect(200);
    // Both were refunded their token, and neither has the slot.
    holder.ask(&get("/own")).expect(200);
    fallback_gate.open();
    for client in &mut degraded {
        let response = client.response().expect(200);
        assert_eq!(response.header("sluicegate-degraded").as_deref(), Some("\"slot\""));
    }
    assert_eq!(holder.ask(&get("/else")).header("sluicegate-degraded").as_deref(), Some("\"bucket\""));
    assert_eq!((own.targets(), fallback.count()), (vec!["/own".to_owned(); 2], 3));
    assert_counted(&gateway, "slot", "degrade", 2.0);
    assert_counted(&gateway, "slot", "admit", 2.0);
    assert_counted(&gateway, "bucket", "degrade", 1.0);
    eventually("nothing in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

/// Concurrency may reject after a wait: the body is still whole then.
#[test]
fn a_queued_request_is_degraded_with_its_body() {
    let gate = Gate::default();
    let (own, fallback) = (Upstream::held_by(&gate), Upstream::named("fallback"));
    let limits = "  line: { key: global, algorithm: leaky_bucket, rate: 4/s, queue: 5 }\n  \
                    slot: { key: global, algorithm: concurrency, max_concurrent: 1 }\n";
    let gateway = degrading_gateway(&own.url(), &fallback.url(), limits, "[line, slot]");
    let mut holder = gateway.client();
    holder.send(get("/own").bytes());
    own.wait_for(1);
    let degraded = gateway.ask(&post("/else", &[b'x'; 50_000])).expect(200);
    assert_eq!(degraded.text(), "fallback");
    assert_eq!(degraded.header("sluicegate-degraded").as_deref(), Some("\"slot\""));
    assert_eq!(fallback.requests()[0].body.len(), 50_000);
    gate.open();
    holder.response().expect(200);
    let lines = gateway.wait_log(2);
    let line = lines.iter().find(|line| line["verdict"] == "degrade").expect("a line");
    assert!(line["limit"] == "slot" && line["wait_ms"].as_f64() > Some(100.0), "{line}");
    assert_counted(&gateway, "line", "wait", 1.0);
    assert_counted(&gateway, "slot", "reject", 0.0);
}

/// A degraded client that leaves is refunded everything.
#[test]
fn a_degraded_client_that_leaves_is_refunded() {
    let (own, fallback) = (Upstream::ok(), Upstream::new(|_| Reply::silence()));
    let gateway = degrading_gateway(&own.url(), &fallback.url(), ONCE, "once");
    gateway.get("/").expect(200);
    let mut leaver = gateway.client();
    leaver.send(get("/").bytes());
    fallback.wait_for(1);
    leaver.reset();
    eventually("nothing in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

/// A full queue and a wait beyond the location's timeout are ordinary rejections.
#[test]
fn rejections_by_queues_are_degraded() {
    let (own, fallback) = (Upstream::ok(), Upstream::named("fallback"));
    let limits = "  line: { key: global, algorithm: leaky_bucket, rate: 1/h, queue: 9, max_wait: none }\n  \
                  full: { key: global, algorithm: leaky_bucket, rate: 1/h, queue: 0 }\n";
    let gateway = Gateway::start(&format!(
        "upstreams: {{ fallback: [\"{}\"] }}\non_reject: {{ degrade: fallback }}\nlimits:\n{limits}\
         locations:\n  - {{ path: /late, upstream: \"{own}\", limits: line, timeout: 5s }}\n  \
           - {{ path: /full, upstream: \"{own}\", limits: full }}\n",
        fallback.url(),
        own = own.url()
    ));
    for (path, limit) in [("/late", "line"), ("/full", "full")] {
        assert_eq!(gateway.get(path).expect(200).text(), "ok");
        let degraded = gateway.get(path).expect(200);
        assert_eq!(degraded.text(), "fallback");
        assert_eq!(degraded.header("sluicegate-degraded").unwrap(), format!("\"{limit}\""));
        assert_counted(&gateway, limit, "degrade", 1.0);
    }
    assert_eq!(gateway.metric("sluicegate_queue_depth", &[]), 0.0);
}

/// A cost beyond the bucket's size and a missing key are rejections by a limit, too.
#[test]
fn costs_and_keys_are_degraded() {
    let gateway = Gateway::start(
        "server: { trusted_proxies: 127.0.0.1 }\n\
         on_reject: { degrade: { status: 202, body: \"${limit}: ${message}\" } }\n\
         limits:\n  dear: { rate: 1/h, burst: 5, cost: \"header:X-Cost\" }\n  \
           keyed: { key: \"header:X-Key\", missing_key: reject, rate: 1/h }\n\
         locations:\n  - { path: /dear, respond: { body: ok }, limits: dear }\n  \
           - { path: /keyed, respond: { body: ok }, limits: keyed }\n",
    );
    let dear = gateway.ask(&get("/dear").header("X-Cost", 6)).expect(202);
    assert_eq!(dear.text(), "dear: The request costs more than the limit can ever let pass");
    let keyed = gateway.get("/keyed").expect(202);
    assert_eq!(keyed.text(), "keyed: The request has no header x-key");
    assert_counted(&gateway, "dear", "degrade", 1.0);
    assert_counted(&gateway, "keyed", "degrade", 1.0);
}

/// A failing upstream gives the ordinary fault, with the mark of its source.
#[test]
fn a_failing_upstream_is_an_ordinary_fault() {
    let (own, down, silent) = (Upstream::ok(), Refusing::new(), Upstream::new(|_| Reply::silence()));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  down: [\"{}\"]\n  silent: [\"{}\"]\nlimits:\n{ONCE}\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: once, on_reject: {{ degrade: down }} }}\n  \
           - {{ path: /slow, upstream: demo, limits: once, timeout: 300ms, on_reject: {{ degrade: silent }} }}\n",
        down.url(),
        silent.url(),
        own.url(),
    ));
    gateway.get("/").expect(200);
    let mut client = gateway.client();
    for _ in 0..2 {
        let failed = client.ask(&get("/")).expect(502);
        assert_eq!(failed.json()["title"], "Bad Gateway");
        assert_eq!(failed.header("content-type").as_deref(), Some("application/problem+json"));
        assert_eq!(failed.header("sluicegate-degraded").as_deref(), Some("\"once\""));
    }
    assert_eq!(client.ask(&get("/slow")).expect(504).json()["title"], "Gateway Timeout");
    let lines = gateway.wait_log(4);
    let logged = |verdict: &str| lines.iter().filter(|line| line["verdict"] == verdict).count();
    assert_eq!(["admit", "upstream_unreachable", "location_timeout"].map(logged), [1, 2, 1], "{lines:#?}");
    assert_counted(&gateway, "once", "degrade", 3.0);
}

/// Faults, unknown paths and overload are answered as usual.
#[test]
fn only_rejections_by_limits_are_degraded() {
    let gateway = Gateway::start(&format!(
        "server: {{ limits: all, max_waiting: 0 }}\n\
         on_reject: {{ degrade: {{ body: instead }} }}\n\
         limits:\n  all: {{ key: global, rate: 1/h, burst: 4 }}\n  \
           line: {{ key: global, algorithm: leaky_bucket, rate: 1/h, queue: 9, max_wait: none }}\n\
         locations:\n  - {{ path: /down, upstream: \"{}\", methods: GET }}\n  \
           - {{ path: /line, respond: {{ body: ok }}, limits: line }}\n",
        Refusing::new().url()
    ));
    gateway.get("/nowhere").expect(404);
    gateway.ask(&post("/down", b"")).expect(405);
    gateway.get("/line").expect(200);
    assert_eq!(gateway.get("/line").expect(503).json()["detail"], "too many requests are waiting");
    gateway.get("/down").expect(502);
    assert_eq!(gateway.get("/down").expect(200).text(), "instead");
    // A path without a location is a 404 at best.
    gateway.get("/nowhere").expect(429);
    gateway.ask(&post("/down", b"")).expect(429);
    assert_counted(&gateway, "all", "reject", 2.0);
    assert_counted(&gateway, "all", "degrade", 1.0);
}

/// Any location can be degraded to any upstream, including the built-in one and a URL.
#[test]
fn respond_and_demo_mix() {
    let fallback = Upstream::named("fallback");
    let gateway = Gateway::start(&format!(
        "limits:\n{ONCE}locations:\n  \
           - {{ path: /a, respond: {{ body: ok }}, limits: once, on_reject: {{ degrade: demo }} }}\n  \
           - {{ path: /b, redirect: {{ to: /x }}, limits: once, on_reject: {{ degrade: \"{}\" }} }}\n",
        fallback.url()
    ));
    gateway.get("/a").expect(200);
    let echoed = gateway.ask(&post("/a", b"12345")).expect(200);
    assert_eq!((&echoed.json()["upstream"], &echoed.json()["body_bytes"]), (&"demo".into(), &5.into()));
    assert_eq!(echoed.header("sluicegate-degraded").as_deref(), Some("\"once\""));
    assert_eq!(gateway.get("/b").expect(200).text(), "fallback");
}
