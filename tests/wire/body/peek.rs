//! Reading the body before judging: clients that stall, leave or expect, and all that holds memory meanwhile.

use crate::support::*;

const BY_MODEL: &str = "limits: { model: { key: json:/model, rate: 1000/s } }";
/// 22 bytes.
const BODY: &[u8] = br#"{"model":"m","n":"ab"}"#;

fn start(upstream: &Upstream, top: &str, location: &str) -> Gateway {
    let locations = format!("locations:\n  - {{ path: /, upstream: \"{}\", {location} }}", upstream.url());
    Gateway::start(&format!("{BY_MODEL}\n{top}\n{locations}\n"))
}

/// A head that announces a body.
fn head(more: &str, length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {length}\r\n\r\n")
}

fn assert_idle(gateway: &Gateway) {
    eventually("nothing to be in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

#[test]
fn a_stalled_body_is_given_up() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { timeouts: { body: 1s } }", "limits: model");
    let mut client = gateway.client();
    client.send(head("", 22));
    client.send(&BODY[..21]);
    let answer = client.response().expect(408);
    assert!(answer.text().contains("did not arrive in time"));
    client.assert_closed();
    // A body that keeps coming is in time.
    let mut client = gateway.client();
    client.send(head("", 22));
    BODY.chunks(6).for_each(|piece| {
        std::thread::sleep(ms(600));
        client.send(piece);
    });
    client.response().expect(200);
    assert_eq!(upstream.count(), 1);
    assert_idle(&gateway);
}

#[test]
fn the_timeout_of_the_location_covers_the_reading() {
    let upstream = Upstream::new(|_| Reply::text("late").after(ms(2_000)));
    let gateway = start(&upstream, "", "limits: model, timeout: 1s");
    let mut client = gateway.client();
    client.send(head("", 22));
    client.response().expect(504);
    assert_eq!(upstream.count(), 0);
    // The time that reading took is not given again.
    let mut client = gateway.client();
    let start = std::time::Instant::now();
    client.send(head("", 22));
    std::thread::sleep(ms(700));
    client.send(BODY);
    client.response().expect(504);
    assert!(start.elapsed() < ms(1_600), "{:?}", start.elapsed());
    assert_idle(&gateway);
}

#[test]
fn clients_that_leave_hold_nothing() {
    let upstream = Upstream::ok();
    let gateway = start(
        &upstream,
        "server: { max_in_flight: 8, max_waiting: 100 }",
        "limits: [model, { algorithm: concurrency, max_concurrent: 2, key: global }]",
    );
    for turn in 0..24 {
        let mut client = gateway.client();
        let part = turn % BODY.len();
        match turn % 2 {
            0 => client.send(head("", 22)),
            _ => client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n30\r\n"),
        }
        client.send(&BODY[..part]);
        eventually("the request to begin", || gateway.metric("sluicegate_requests_in_flight", &[]) >= 1.0);
        if turn % 3 == 0 {
            client.reset()
        } else {
            drop(client)
        }
        assert_idle(&gateway);
    }
    for _ in 0..4 {
        gateway.ask(&post("/", BODY)).expect(200);
    }
    assert_eq!(upstream.count(), 4);
}

#[test]
fn streams_that_are_reset_hold_nothing() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { max_in_flight: 4 }", "limits: model");
    let mut client = H2::open(gateway.addr());
    for turn in 0..12u32 {
        let stream = 2 * turn + 1;
        let fields = h2_raw::request("POST", "/", &[]);
        client.send(h2_raw::HEADERS, h2_raw::END_HEADERS, stream, &h2_raw::block(&fields));
        client.send(h2_raw::DATA, 0, stream, &BODY[..10]);
        eventually("the request to begin", || gateway.metric("sluicegate_requests_in_flight", &[]) >= 1.0);
        client.send(h2_raw::RST_STREAM, 0, stream, &8u32.to_be_bytes());
        assert_idle(&gateway);
    }
    gateway.ask(&post("/", BODY)).expect(200);
}

/// Bytes of other streams are no sign of this one's body.
#[test]
fn streams_have_the_same_time() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { timeouts: { body: 1s } }", "limits: model");
    let mut client = H2::open(gateway.addr());
    let head = h2_raw::block(&h2_raw::request("POST", "/", &[]));
    client.send(h2_raw::HEADERS, h2_raw::END_HEADERS, 1, &head);
    client.send(h2_raw::HEADERS, h2_raw::END_HEADERS, 3, &head);
    client.send(h2_raw::DATA, 0, 3, &BODY[..4]);
    for piece in BODY.chunks(6) {
        std::thread::sleep(ms(600));
        client.send(h2_raw::DATA, 0, 1, piece);
    }
    client.send(h2_raw::DATA, h2_raw::END_STREAM, 1, b"");
    assert!(matches!(client.outcome(1), Outcome::Answered(200, _)));
    assert!(matches!(client.outcome(3), Outcome::Answered(408, _)));
    assert_eq!(upstream.requests()[0].body, BODY);
    assert_idle(&gateway);
}

/// Bodies that are read wait by their heads alone, in the eighth of their client; their bytes count in
/// `server.body_memory`.
#[test]
fn bodies_that_are_read_are_waiting_requests() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { max_waiting: 16 }", "limits: model, body_peek: 1MiB");
    let begin = || {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n16\r\n{");
        client
    };
    let mut held = vec![begin(), begin()];
    eventually("two to be read", || gateway.metric("sluicegate_requests_in_flight", &[]) == 2.0);
    let answer = begin().response().expect(503);
    assert!(answer.text().contains("too many requests are waiting"));
    for client in &mut held {
        client.send(&BODY[1..]);
        client.send("\r\n0\r\n\r\n");
        client.response().expect(200);
    }
    assert_idle(&gateway);
}

/// A request is one request, although it is judged again with its body.
#[test]
fn a_request_is_in_flight_once() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { max_in_flight: 1 }", "limits: model");
    for _ in 0..3 {
        gateway.ask(&post("/", BODY)).expect(200);
    }
    let mut client = gateway.client();
    client.send(head("", 22));
    eventually("the request to begin", || gateway.metric("sluicegate_requests_in_flight", &[]) == 1.0);
    gateway.ask(&post("/", BODY)).expect(503);
    client.send(BODY);
    client.response().expect(200);
}

#[test]
fn a_body_beyond_max_body_is_too_large() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "server: { max_body: 21B }", "limits: model");
    for body in [
        "16\r\n{\"model\":\"m\",\"n\":\"ab\"}\r\n0\r\n\r\n",
        "1\r\n{\r\n15\r\n\"model\":\"m\",\"n\":\"ab\"}\r\n0\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
        let answer = client.response().expect(413);
        assert!(answer.text().contains("larger than allowed"), "{}", answer.text());
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
    }
    gateway.ask(&post("/", BODY)).expect(413);
    gateway.ask(&post("/", &BODY[..21])).expect(200);
}

/// The client gets one 100 Continue, from the gateway, before its body is read; the upstream hears of none.
#[test]
fn expectations_are_met_before_reading() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "", "limits: model, body_peek: 1KiB");
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(head("Expect: 100-continue\r\n", 22));
        assert!(client.raw_head(PATIENCE).expect("100 Continue").starts_with(b"HTTP/1.1 100"));
        client.send(BODY);
        let answer = client.response().expect(200);
        assert_eq!(answer.interim, [0u16; 0], "one is enough");
    }
    for seen in upstream.requests() {
        assert_eq!((seen.body.as_slice(), seen.header("expect")), (BODY, None));
    }
    // A body that is too long is not asked for.
    client.send(head("Expect: 100-continue\r\n", 1025));
    let answer = client.response().expect(413);
    assert_eq!(answer.interim, [0u16; 0]);
    // Without a body there is nothing to ask for.
    let mut client = gateway.client();
    let answer = client.ask(&get("/").header("Expect", "100-continue")).expect(200);
    assert_eq!(answer.interim, [0u16; 0]);
}

/// After a rejection by the body the rest is no request, and the next request is answered.
#[test]
fn requests_behind_a_body_are_answered() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits: {{ one: {{ key: json:/model, rate: 1/h }} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: one }}]\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    let body = String::from_utf8_lossy(BODY);
    let first = format!("{}{body}", head("", 22));
    let other = format!("{}{}", head("Expect: 100-continue\r\n", 22), body.replace("\"m\"", "\"n\""));
    let last = "GET /last HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send([first.as_str(), first.as_str(), other.as_str(), first.as_str(), last].concat());
    for status in [200, 429, 200, 429, 200] {
        assert_eq!(client.response().status, status);
    }
    assert_eq!(upstream.targets(), ["/", "/", "/last"]);
}

/// A body that was read whole is sent again where a request without one would be.
#[test]
fn a_body_that_is_at_hand_is_sent_again() {
    let retried = |method: &str, location: &str| {
        let upstream = Upstream::in_turn([Reply::with(503, &[], ""), Reply::with(503, &[], "")]);
        let gateway = Gateway::start(&format!(
            "{BY_MODEL}\nupstreams: {{ app: {{ servers: \"{}\", retries: {{ attempts: 3, when: [connect, refused, 503], \
             budget: 100% }}, eject: none }} }}\nlocations: [{{ path: /, upstream: app, {location} }}]\n",
            upstream.addr()
        ));
        let status = gateway.ask(&Ask::new(method, "/").body(BODY)).status;
        assert!(upstream.requests().iter().all(|seen| seen.body == BODY));
        (status, upstream.count())
    };
    assert_eq!(retried("PUT", "limits: model"), (200, 3));
    assert_eq!(retried("QUERY", "limits: model"), (200, 3));
    assert_eq!(retried("POST", "limits: model"), (503, 1), "a POST never runs twice");
    assert_eq!(retried("PUT", "limits: []"), (503, 1), "a streamed body is gone");
}

/// A pooled connection that its server is just closing is replaced, with the whole body once more.
#[test]
fn a_dead_connection_is_replaced() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/close" => Reply::text("ok").close(),
        _ => Reply::text("ok"),
    });
    let gateway = start(&upstream, "", "limits: model");
    for _ in 0..10 {
        gateway.get("/close").expect(200);
        gateway.ask(&Ask::new("PUT", "/").body(BODY)).expect(200);
    }
    assert!(upstream.requests().iter().filter(|seen| seen.method == "PUT").all(|seen| seen.body == BODY));
}

#[test]
fn upstreams_of_http2_get_the_same_body() {
    let upstream = Upstream2::new(|_| Act::Echo);
    let gateway = Gateway::start(&format!(
        "{BY_MODEL}\nupstreams: {{ app: {{ servers: \"{}\", protocol: http2 }} }}\n\
         locations: [{{ path: /, upstream: app, limits: model }}]\n",
        upstream.addr()
    ));
    let mut client = gateway.client();
    assert_eq!(client.ask(&post("/", BODY)).expect(200).text().as_bytes(), BODY);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    BODY.chunks(3).for_each(|piece| {
        client.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat())
    });
    client.send("0\r\n\r\n");
    assert_eq!(client.response().expect(200).text().as_bytes(), BODY);
    let lengths: Vec<bool> =
        upstream.requests().iter().map(|seen| seen.headers.contains_key("content-length")).collect();
    assert_eq!(lengths, [true, false], "the length is told where the client told it");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(client.response().expect(200).text(), "");
}
