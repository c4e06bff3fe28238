//! Who is sampled, and what an upstream gets.

use http::HeaderValue;

use super::span::{HOST_MAX, PATH_MAX, TEXT_MAX, cut_text};
use super::*;
use sluicegate_config as config;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn tracing(sample: f64) -> TracingConfig {
    let yaml = format!(
        "tracing: {{ otlp: \"http://127.0.0.1:4318\", sample: {sample}% }}\n\
         locations: [{{ path: /, upstream: demo }}]\n"
    );
    config::parse(&yaml, "x").unwrap_or_else(|report| panic!("{report}")).config.tracing
}

fn worker(sample: f64) -> WorkerTracer {
    WorkerTracer::new(&Tracer::continue_from(None, &tracing(sample), None).unwrap())
}

fn headers(parent: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, HeaderValue::from_str(parent).unwrap());
    headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
    headers
}

#[test]
fn a_caller_decides_for_its_trace() {
    for share in [0.0, 100.0] {
        let worker = worker(share);
        let mut sampled = headers(&format!("00-{TRACE}-00f067aa0ba902b7-03"));
        let span = worker.begin_span(&sampled).unwrap();
        assert_eq!(format!("{:032x}", span.trace_id), TRACE);
        assert_eq!(span.parent_id, Some(0x00f0_67aa_0ba9_02b7));
        worker.write_context(Some(span), &mut sampled);
        assert_eq!(sampled[TRACEPARENT], format!("00-{TRACE}-{:016x}-03", span.span_id));
        assert_eq!(sampled[TRACESTATE], "a=b");
        let mut unsampled = headers(&format!("00-{TRACE}-00f067aa0ba902b7-00"));
        let before = unsampled.clone();
        assert_eq!(worker.begin_span(&unsampled), None);
        worker.write_context(None, &mut unsampled);
        assert_eq!(unsampled, before);
    }
}

#[test]
fn the_rate_decides_for_new_traces() {
    let all = worker(100.0);
    let mut begun = headers("00-nonsense-01");
    let span = all.begin_span(&begun).unwrap();
    assert_eq!((span.parent_id, span.flags), (None, SAMPLED));
    all.write_context(Some(span), &mut begun);
    assert_eq!(begun[TRACEPARENT], format!("00-{:032x}-{:016x}-01", span.trace_id, span.span_id));
    assert!(!begun.contains_key(TRACESTATE), "it belongs to another trace");
    let none = worker(0.0);
    let mut begun = HeaderMap::new();
    assert_eq!(none.begin_span(&begun), None);
    none.write_context(None, &mut begun);
    let parent = TraceParent::read_header(&begun).unwrap();
    assert!(!parent.is_sampled(), "{begun:?}");
    let few = worker(10.0);
    let sampled = (0..10_000).filter(|_| few.begin_span(&HeaderMap::new()).is_some()).count();
    assert!((800..1200).contains(&sampled), "{sampled}");
}

#[test]
fn ids_differ() {
    let (one, other) = (worker(100.0), worker(100.0));
    let mut ids: Vec<u128> =
        (0..1_000).flat_map(|_| [&one, &other].map(|worker| worker.begin_trace().trace_id)).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2_000);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let worker = worker(100.0);
    let record = span::SpanRecord {
        context: worker.begin_trace(),
        end_unix_ns: 1,
        duration_ns: 1,
        method: None,
        unusual_method: None,
        path: "/".into(),
        host: None,
        scheme: "http",
        version: "1.1",
        client: None,
        request_id: "".into(),
        location: None,
        status: 200,
        verdict: "admit",
        fault: None,
        limit: None,
        key_hash: None,
        wait_ns: 0,
        retry_after_ns: None,
        server: None,
        upstream_ns: None,
    };
    for _ in 0..SPANS_MAX {
        worker.queue_span(|| record.clone());
    }
    for _ in 0..3 {
        worker.queue_span(|| unreachable!("a span that is dropped costs nothing"));
    }
    assert_eq!(worker.tracer.counts.dropped.load(Relaxed), 3);
}

#[test]
fn an_unchanged_section_keeps_its_queue_and_another_keeps_the_counts() {
    let first = Tracer::continue_from(None, &tracing(1.0), None).unwrap();
    let same = Tracer::continue_from(Some(&first), &tracing(1.0), None).unwrap();
    assert!(Arc::ptr_eq(&first, &same));
    let other = Tracer::continue_from(Some(&first), &tracing(2.0), None).unwrap();
    assert!(!Arc::ptr_eq(&first, &other) && Arc::ptr_eq(&first.counts, &other.counts));
    assert_eq!(first.hash_key("ip=192.0.2.7"), other.hash_key("ip=192.0.2.7"));
}

#[test]
fn texts_of_clients_are_cut() {
    let long = "ä".repeat(5_000);
    assert_eq!((cut_text(&long, PATH_MAX).len(), cut_text(&long, HOST_MAX).len()), (1024, 256));
    assert_eq!(cut_text(&format!("x{long}"), TEXT_MAX).len(), 127);
    let (known, text) = span::name_method(&http::Method::from_bytes(&[b'X'; 999]).unwrap());
    assert_eq!((known, text.unwrap().len()), (None, 128));
}
