//! Peers that leave, stall, or send half a message.

use std::thread;
use std::time::Instant;

use crate::support::*;

fn limited_gateway(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ {limit} }} }}\n",
        upstream.url()
    ))
}

/// Data of a peer can be read after its reset, when the kernel no longer knows its address: such a peer is no
/// trusted proxy.
#[test]
fn a_peer_that_reset_is_not_trusted() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { workers: 1, max_connections: 1 }");
    let mut first = gateway.client();
    first.ask(&get("/")).expect(200);
    let mut forger = gateway.client();
    forger.send(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\
         X-Forwarded-For: 192.0.2.66\r\nX-Request-Id: forged\r\n\r\n",
    );
    forger.send(vec![b'x'; 50_000]);
    thread::sleep(ms(100));
    forger.reset();
    drop(first);
    let lines = gateway.wait_log(2);
    assert_eq!(lines[1]["ip"], "127.0.0.1", "{lines:#?}");
    assert_ne!(lines[1]["id"], "forged");
    for seen in upstream.requests() {
        assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    }
}

/// A client that leaves while its request is forwarded frees its slot, even if unread bytes follow the
/// request.
#[test]
fn a_client_that_leaves_unread_bytes_frees_its_slot() {
    let upstream =
        Upstream::new(|seen| if seen.target == "/hold" { Reply::silence() } else { Reply::text("ok") });
    let gateway = limited_gateway(&upstream, "algorithm: concurrency, max_concurrent: 1");
    let mut client = gateway.client();
    client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\n");
    upstream.wait_for(1);
    gateway.get("/").expect(503);
    thread::sleep(ms(300));
    drop(client);
    let start = Instant::now();
    eventually("the slot", || gateway.get("/").status == 200);
    assert!(start.elapsed() < ms(1500), "the slot took {:?}", start.elapsed());
}

/// The same for a client that left before the gateway watched for it.
#[test]
fn a_client_that_leaves_at_once_frees_its_slot() {
    let upstream =
        Upstream::new(|seen| if seen.target == "/hold" { Reply::silence() } else { Reply::text("ok") });
    let gateway = limited_gateway(&upstream, "algorithm: concurrency, max_concurrent: 1");
    let mut client = gateway.client();
    client.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\n");
    drop(client);
    upstream.wait_for(1);
    let start = Instant::now();
    eventually("the slot", || gateway.get("/").status == 200);
    assert!(start.elapsed() < ms(1500), "the slot took {:?}", start.elapsed());
}

/// The line of a waiter that hung up has its waiting time.
#[test]
fn the_line_of_a_waiter_that_left_has_its_wait() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 1/20s, queue: 5");
    gateway.get("/").expect(200);
    let mut waiter = gateway.client();
    waiter.send(get("/").bytes());
    gateway.wait_queued(1);
    thread::sleep(ms(300));
    drop(waiter);
    let lines = gateway.wait_log(2);
    assert_eq!(lines[1]["status"], 499);
    assert!(lines[1]["wait_ms"].as_f64().is_some_and(|wait| wait >= 300.0), "{lines:#?}");
}

/// A body that arrives after its request was rejected is no head: the connection continues.
#[test]
fn a_late_body_of_a_rejected_request_does_not_end_the_connection() {
    let gateway = Gateway::start(
        "server: { timeouts: { header: 1s } }\n\
         locations:\n  - { path: /, methods: GET, respond: { body: ok } }\n",
    );
    for (head, body) in
        [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
    {
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n"));
        client.response().expect(405);
        thread::sleep(ms(100));
        client.send(body);
        thread::sleep(ms(1600));
        client.ask(&get("/")).expect(200);
    }
    assert_eq!(gateway.metric("sluicegate_faults_total", &["slow_head"]), 0.0);
}

/// An upstream that responds and closes early: its response arrives, and the gateway reads the upload
/// meanwhile.
#[test]
fn an_early_response_to_an_upload_arrives() {
    let upstream =
        Upstream::new(|_| Reply::with(413, &[("Connection", "close")], "too large").early().close());
    let gateway = forwarding(&upstream, "");
    for _ in 0..5 {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
        let piece = vec![b'x'; 100_000];
        for _ in 0..30 {
            client.try_send(&piece).expect("the upload is still read");
            thread::sleep(ms(2));
        }
        client.response().expect(413);
    }
}

/// An upload continues for a while after its response, but does not hold its server for ever.
#[test]
fn an_upload_ends_soon_after_its_response() {
    let upstream = Upstream::new(|_| Reply::text("early").early());
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\nbegin");
    assert_eq!(client.response().expect(200).text(), "early");
    for _ in 0..10 {
        thread::sleep(ms(100));
        client.try_send("more").expect("the upload is still read");
    }
    assert_eq!(upstream.requests()[0].cut, None);
    eventually("the upload to be given up", || {
        let _gone = client.try_send("more");
        upstream.requests()[0].cut.is_some()
    });
}

/// The body of a GET goes upstream whole, with any framing.
#[test]
fn a_get_may_have_a_chunked_body() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    gateway
        .raw("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .expect(200);
    assert_eq!(upstream.wait_for(1)[0].body, b"hello");
}

/// An HTTP/1.0 request without a Host becomes an HTTP/1.1 request with one.
#[test]
fn the_upstream_always_gets_a_host() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    gateway.raw("GET / HTTP/1.0\r\n\r\n").expect(200);
    let seen = upstream.wait_for(1);
    assert_eq!(seen[0].header("host"), Some(upstream.addr().to_string()));
}

/// max_connections bounds busy connections: one that another worker keeps idle rejects no request.
#[test]
fn idle_connections_to_a_server_reject_no_request() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ workers: 2 }}\n\
         upstreams:\n  app: {{ servers: [\"{}\"], max_connections: 1 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    let mut clients: Vec<_> = (0..8).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.ask(&get("/")).expect(200);
    }
}

/// location.timeout also ends a response with a slow reader.
#[test]
fn the_location_timeout_ends_a_slow_reader() {
    let body = "x".repeat(30_000_000);
    let upstream = Upstream::new(move |_| Reply::text(&body));
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", timeout: 600ms }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let mut reader = Client::connect_narrow(gateway.addr());
    reader.send(get("/").bytes());
    let start = Instant::now();
    let reading = thread::spawn(move || {
        while start.elapsed() < ms(4000) && reader.skip(4096, ms(500)).is_none() {
            thread::sleep(ms(10));
        }
    });
    upstream.wait_for(1);
    eventually("its end", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
    let took = start.elapsed();
    assert!(took > ms(500) && took < ms(1600) + noise.late(), "the request took {took:?}");
    reading.join().expect("the reader ends");
}

/// A stalled body is reported: 408, in the response and in the line.
#[test]
fn a_stalled_body_is_answered_408() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { timeouts: { body: 500ms } }");
    let response = gateway.raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    assert_eq!(response.status, 408, "{response:?}");
    let lines = gateway.wait_log(1);
    assert_eq!((&lines[0]["status"], &lines[0]["verdict"]), (&408.into(), &"slow_body".into()));
}

/// A cut response is recognisable in the log and the metrics.
#[test]
fn a_cut_response_is_marked_in_its_line() {
    let upstream = Upstream::new(|_| {
        Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").pause(ms(50)).reset()
    });
    let gateway = forwarding(&upstream, "");
    assert!(gateway.get("/").cut.is_some());
    let lines = gateway.wait_log(1);
    assert_eq!((&lines[0]["status"], &lines[0]["verdict"]), (&200.into(), &"upstream_broke".into()));
    assert_eq!(gateway.metric("sluicegate_faults_total", &["upstream_broke"]), 1.0);
}

/// A request in flight when the shutdown timeout passes still has its log line.
#[test]
fn every_request_has_its_line_when_the_shutdown_timeout_passes() {
    let upstream = Upstream::new(|_| Reply::silence());
    let mut gateway = forwarding(&upstream, "server: { timeouts: { shutdown: 500ms } }");
    let mut clients: Vec<_> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(get("/").bytes());
    }
    upstream.wait_for(5);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    gateway.wait_log(5);
}

/// A file in place of a unix socket may be important: it is not removed.
#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = Scratch::new();
    let precious = dir.file("precious", "data");
    let yaml = format!(
        "listen: \"unix:{}\"\nadmin: none\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n",
        precious.display()
    );
    let file = dir.file("gateway.yaml", &yaml).display().to_string();
    let finished = Run::default().args(&["-c", &file]).finish(dir.path());
    assert_eq!(finished.code, Some(4), "{}", finished.stderr);
    assert_eq!(std::fs::read_to_string(&precious).expect("the file is still there"), "data");
}
