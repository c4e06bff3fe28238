//! Traces: the spans that a collector receives, and the context that an upstream gets.

use std::time::Instant;

use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// The trace, the span and the flags of a `traceparent`.
fn context(seen: &Seen) -> (String, String, String) {
    let value = seen.header("traceparent").expect("a traceparent");
    let parts: Vec<&str> = value.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[1].len(), parts[2].len()), (4, "00", 32, 16), "{value}");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned())
}

fn exporting(collector: &Collector, tracing: &str, upstream: &Upstream) -> String {
    format!(
        "tracing: {{ otlp: \"{}\", {tracing} }}\nlocations: [{{ path: /, upstream: \"{}\" }}]\n",
        collector.0.url(),
        upstream.url()
    )
}

/// An admitted, a delayed and a rejected request leave spans under the span of their caller, with the limit that
/// decided; the upstream gets the span of the gateway as its parent.
#[test]
fn sampled_requests_leave_spans() {
    let (collector, upstream) = (Collector::new(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "tracing: {{ otlp: \"{}\", sample: 0%, headers: {{ x-key: hunter2 }} }}\n\
         account: {{ from: header:x-account }}\naccess_log: {{ hash_keys: false }}\n\
         limits:\n  slow: {{ key: ip, algorithm: leaky_bucket, rate: 5/s, queue: 3 }}\n  \
           once: {{ key: account, rate: 1/h }}\n\
         locations:\n  - {{ path: /slow/, name: slow-path, upstream: \"{url}\", limits: slow }}\n  \
           - {{ path: /once, upstream: \"{url}\", limits: once }}\n",
        collector.0.url(),
        url = upstream.url()
    ));
    let ask = |path: &str| {
        let ask = get(path).header("Traceparent", parent("01")).header("Tracestate", "a=b,c=d");
        ask.header("X-Account", "ann-of-cleves")
    };
    let mut client = gateway.client();
    client.ask(&ask("/slow/a?token=hunter3")).expect(200);
    client.ask(&ask("/slow/b")).expect(200);
    client.ask(&ask("/once")).expect(200);
    client.ask(&ask("/once")).expect(429);
    let spans = collector.wait_spans(4);
    let [admitted, delayed, _, rejected] = &spans[..] else { panic!("{spans:#?}") };
    for span in &spans {
        assert_eq!((&*span.trace_id, &*span.parent_id, span.kind), (TRACE, PARENT, 2), "{span:#?}");
        assert_eq!((span.flags & 1, span.status), (1, 0), "{span:#?}");
        assert!(span.start_ns > 1_600_000_000_000_000_000 && span.end_ns > span.start_ns, "{span:#?}");
        for (key, expected) in [
            ("http.request.method", "GET"),
            ("url.scheme", "http"),
            ("server.address", "gateway.test"),
            ("client.address", "127.0.0.1"),
            ("network.protocol.version", "1.1"),
            ("error.type", ""),
        ] {
            assert_eq!(span.text(key), expected, "{key} of {span:#?}");
        }
    }
    assert_eq!((&*admitted.name, admitted.text("http.route")), ("GET slow-path", "slow-path"));
    assert_eq!((admitted.text("url.path"), admitted.text("http.response.status_code")), ("/slow/a", "200"));
    assert_eq!((admitted.text("ratelimit.verdict"), admitted.text("ratelimit.limit")), ("admit", ""));
    assert_eq!(admitted.text("sluicegate.upstream"), upstream.addr().to_string());
    assert_eq!((delayed.text("ratelimit.verdict"), delayed.text("ratelimit.limit")), ("wait", "slow"));
    assert!(delayed.number("ratelimit.wait_ms") > 50.0, "{delayed:#?}");
    assert!(delayed.end_ns - delayed.start_ns > 50_000_000, "{delayed:#?}");
    assert_eq!((rejected.text("ratelimit.verdict"), rejected.text("ratelimit.limit")), ("reject", "once"));
    assert_eq!(rejected.text("http.response.status_code"), "429");
    assert!(rejected.number("ratelimit.retry_after_ms") > 3_000_000.0, "{rejected:#?}");
    assert_eq!(rejected.text("ratelimit.key_hash").len(), 16, "{rejected:#?}");
    let seen = upstream.requests();
    for (seen, span) in seen.iter().zip(&spans) {
        assert_eq!(context(seen), (TRACE.to_owned(), span.span_id.clone(), "01".to_owned()));
        assert_eq!(seen.header("tracestate").as_deref(), Some("a=b,c=d"));
        assert_eq!(seen.header("x-request-id").as_deref(), Some(span.text("sluicegate.request_id")));
    }
    assert_eq!(seen.len(), 3);
    assert_exports_are_plain(&collector);
    eventually("counted spans", || gateway.metric("sluicegate_spans_exported_total", &[]) == 4.0);
    assert_eq!(gateway.metric("sluicegate_spans_dropped_total", &[]), 0.0);
    assert!(!gateway.stderr().contains("hunter"), "{}", gateway.stderr());
}

/// The exports are OTLP over HTTP with the configured header, and tell neither the account nor the query.
fn assert_exports_are_plain(collector: &Collector) {
    let export = &collector.0.requests()[0];
    assert_eq!((&*export.method, &*export.target), ("POST", "/v1/traces"));
    assert_eq!(export.header("content-type").as_deref(), Some("application/x-protobuf"));
    assert_eq!(export.header("x-key").as_deref(), Some("hunter2"));
    let sent: String = collector
        .0
        .requests()
        .iter()
        .map(|export| String::from_utf8_lossy(&export.body).into_owned())
        .collect();
    assert!(!sent.contains("ann-of-cleves") && !sent.contains("hunter"), "{sent}");
}

/// The caller decides for its requests, and the rate for those that begin a trace; all go on to the upstream.
#[test]
fn unsampled_requests_leave_none() {
    let (collector, upstream) = (Collector::new(), Upstream::ok());
    let gateway = Gateway::start(&exporting(&collector, "sample: 100%", &upstream));
    let mut client = gateway.client();
    let ask = |parent: &str| get("/").header("traceparent", parent).header("tracestate", "a=b");
    client.ask(&ask(&parent("00"))).expect(200);
    client.ask(&ask("00-nonsense")).expect(200);
    client.ask(&get("/")).expect(200);
    let spans = collector.wait_spans(2);
    let seen = upstream.requests();
    assert_eq!(seen[0].header("traceparent"), Some(parent("00")));
    assert_eq!(seen[0].header("tracestate").as_deref(), Some("a=b"));
    for (seen, span) in seen[1..].iter().zip(&spans) {
        assert_eq!(context(seen), (span.trace_id.clone(), span.span_id.clone(), "01".to_owned()));
        assert_eq!((seen.header("tracestate"), &*span.parent_id), (None, ""));
    }
    assert_ne!(spans[0].trace_id, spans[1].trace_id);
    gateway.change(&exporting(&collector, "sample: 0%", &upstream));
    client.ask(&get("/")).expect(200);
    assert_eq!(context(&upstream.requests()[3]).2, "00");
    // Without a collector nothing is begun, and a context is passed on as it is.
    gateway.change(&format!("locations: [{{ path: /, upstream: \"{}\" }}]\n", upstream.url()));
    client.ask(&get("/")).expect(200);
    client.ask(&ask(&parent("01"))).expect(200);
    let seen = upstream.requests();
    assert_eq!((seen[4].header("traceparent"), seen[5].header("traceparent")), (None, Some(parent("01"))));
    assert_eq!(seen[5].header("tracestate").as_deref(), Some("a=b"));
    assert_eq!(collector.spans().len(), 2);
}

/// A fault is an error with its cause; HTTP/2 and an unusual method are told.
#[test]
fn a_span_tells_the_fault() {
    let (collector, dead) = (Collector::new(), Refusing::new());
    let gateway = Gateway::start(&format!(
        "tracing: {{ otlp: \"{}/\", sample: 100% }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n  \
           - {{ path: /own, respond: {{ status: 503, body: x }} }}\n",
        collector.0.url(),
        dead.url()
    ));
    let url = format!("http://{}/x", gateway.addr());
    let streamed = ::http::Request::get(url).body(()).expect("a request");
    Client2::connect(gateway.addr()).ask(streamed, b"", None).expect("an answer");
    gateway.ask(&Ask::new("BREW", "/own")).expect(503);
    gateway.get("/own").expect(503);
    let mut spans = collector.wait_spans(3);
    spans.sort_by_key(|span| span.start_ns);
    assert!(spans.iter().all(|span| span.status == 2), "{spans:#?}");
    assert_eq!(spans[0].text("network.protocol.version"), "2");
    assert_eq!(spans[0].text("http.response.status_code"), "502");
    assert_eq!(spans[0].text("error.type"), spans[0].text("ratelimit.verdict"));
    assert_eq!(spans[0].number("server.port"), f64::from(gateway.addr().port()));
    assert_eq!((spans[1].text("http.request.method"), &*spans[1].name), ("_OTHER", "HTTP /own"));
    assert_eq!(spans[1].text("http.request.method_original"), "BREW");
    assert_eq!(spans[2].text("error.type"), "503");
}

/// A collector that is dead or answers 500 costs no request anything; its spans are counted, and one line tells it.
#[test]
fn a_broken_collector_leaves_requests_alone() {
    let dead = Refusing::new();
    let failing = Collector::answering(|_| Reply::with(500, &[], "no"));
    for (url, reason) in [(dead.url(), "cannot connect"), (failing.0.url(), "it answered 500")] {
        let gateway = Gateway::start(&format!(
            "tracing: {{ otlp: \"{url}\", sample: 100% }}\nlocations: [{{ path: /, respond: {{ body: ok }} }}]\n"
        ));
        let mut client = gateway.client();
        let mut asked = 0.0;
        for lost in [1.0, 2.0] {
            for _ in 0..10 {
                client.ask(&get("/")).expect(200);
                asked += 1.0;
            }
            eventually("lost spans", || gateway.metric("sluicegate_spans_dropped_total", &[]) >= lost * 10.0);
        }
        assert_eq!(gateway.metric("sluicegate_spans_dropped_total", &[]), asked);
        assert_eq!(gateway.metric("sluicegate_spans_exported_total", &[]), 0.0);
        let log = gateway.stderr();
        assert_eq!(log.matches("does not take spans").count(), 1, "{log}");
        assert!(log.contains(reason), "{log}");
    }
}

/// A collector that recovers gets the next spans, over the connection that is kept.
#[test]
fn a_collector_may_recover() {
    let replies = std::sync::Mutex::new(vec![500]);
    let collector = Collector::answering(move |_| match replies.lock().unwrap().pop() {
        Some(status) => Reply::with(status, &[], ""),
        None => Reply::text("{}"),
    });
    let gateway = Gateway::start(&exporting(&collector, "sample: 100%", &Upstream::ok()));
    let mut client = gateway.client();
    client.ask(&get("/lost")).expect(200);
    gateway.wait_stderr("does not take spans");
    client.ask(&get("/sent")).expect(200);
    gateway.wait_stderr("takes spans again");
    eventually("a counted span", || gateway.metric("sluicegate_spans_exported_total", &[]) == 1.0);
    assert_eq!(collector.0.connections(), 1);
}

/// A collector that does not answer holds up no request: what does not fit into the queue is dropped at once.
#[test]
fn a_silent_collector_leaves_requests_alone() {
    let collector = Collector::answering(|_| Reply::silence());
    let gateway = Gateway::start(&format!(
        "tracing: {{ otlp: \"{}\", sample: 100% }}\nlocations: [{{ path: /, respond: {{ body: ok }} }}]\n",
        collector.0.url()
    ));
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    collector.0.wait_for(1);
    let began = Instant::now();
    let flood = get("/").bytes().repeat(100);
    for _ in 0..25 {
        client.send(&flood);
        (0..100).for_each(|_| drop(client.response().expect(200)));
    }
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    eventually("dropped spans", || gateway.metric("sluicegate_spans_dropped_total", &[]) >= 400.0);
    gateway.wait_stderr("no answer in time");
}

/// The last spans are sent before the process ends, and a silent collector does not hold it up.
#[test]
fn the_end_of_the_process_sends_the_last_spans() {
    let (collector, upstream) = (Collector::new(), Upstream::ok());
    let mut gateway = Gateway::start(&exporting(&collector, "sample: 100%", &upstream));
    gateway.get("/last").expect(200);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    assert_eq!(collector.wait_spans(1)[0].text("url.path"), "/last");
    let silent = Collector::answering(|_| Reply::silence());
    let mut gateway = Gateway::start(&exporting(&silent, "sample: 100%", &upstream));
    gateway.get("/").expect(200);
    let began = Instant::now();
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    assert!(began.elapsed() < ms(4_000), "{:?}", began.elapsed());
}

/// A reload sends the spans to another collector.
#[test]
fn a_reload_changes_the_collector() {
    let (one, other, upstream) = (Collector::new(), Collector::new(), Upstream::ok());
    let gateway = Gateway::start(&exporting(&one, "sample: 100%", &upstream));
    let mut client = gateway.client();
    client.ask(&get("/one")).expect(200);
    let told = gateway.change(&exporting(&other, "sample: 100%", &upstream));
    assert!(told.contains("changed tracing"), "{told}");
    client.ask(&get("/other")).expect(200);
    assert_eq!(other.wait_spans(1)[0].text("url.path"), "/other");
    assert_eq!(one.wait_spans(1)[0].text("url.path"), "/one");
    eventually("counted spans", || gateway.metric("sluicegate_spans_exported_total", &[]) == 2.0);
}

/// Over https the certificate of the collector is verified against the authorities of the system.
#[test]
fn a_collector_may_have_tls() {
    let (collector, upstream) = (Collector::new(), Upstream::ok());
    let (ours, others) = (Authority::new(), Authority::new());
    ours.issue("a", &["127.0.0.1"]);
    let front = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]\nlocations: [{{ path: /, upstream: \"{}\" }}]\n",
        ours.entry("a"),
        collector.0.url()
    ));
    let yaml = format!(
        "tracing: {{ otlp: \"https://{}/x/y\", sample: 100% }}\nlocations: [{{ path: /, upstream: \"{}\" }}]\n",
        front.addr(),
        upstream.url()
    );
    let run = |authority: &Authority| {
        Run::default().env("SSL_CERT_FILE", &authority.file().display().to_string()).start(&yaml)
    };
    let distrusting = run(&others);
    distrusting.get("/").expect(200);
    distrusting.wait_stderr("does not take spans: cannot connect");
    assert_eq!(collector.0.count(), 0);
    let gateway = run(&ours);
    gateway.get("/").expect(200);
    collector.wait_spans(1);
    assert_eq!(collector.0.requests()[0].target, "/x/y");
}
