//! Every wait has a deadline, and ends at it.

use std::thread;
use std::time::Instant;

use crate::support::h2_raw::{self, H2};
use crate::support::upstream::Blackhole;
use crate::support::*;

/// The header deadline counts from the first byte, however steadily the client drips.
#[test]
fn a_dripping_head_is_cut_in_total() {
    let upstream = Upstream::ok();
    let gateway = with_timeouts(&upstream, "header: 1s");
    let noise = Noise::listen();
    let mut client = gateway.client();
    let mut writer = client.writer();
    let start = Instant::now();
    let dripper = thread::spawn(move || {
        let _ = writer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n");
        while writer.write_all(b"X: y\r\n").is_ok() && start.elapsed() < PATIENCE {
            thread::sleep(ms(100));
        }
    });
    let (bytes, _) = client.until_close();
    assert_between("the head", start.elapsed(), 1000, &noise);
    assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&bytes));
    dripper.join().expect("the dripper ends");
    assert_eq!(upstream.count(), 0);
}

/// A connection without any data is closed.
#[test]
fn a_silent_connection_is_closed() {
    let upstream = Upstream::ok();
    let gateway = with_timeouts(&upstream, "header: 1s, idle: 1s");
    let noise = Noise::listen();
    let start = Instant::now();
    let mut client = gateway.client();
    client.assert_closed();
    assert_between("silence", start.elapsed(), 1000, &noise);
}

/// A connection that idles between requests is closed.
#[test]
fn an_idle_connection_is_closed() {
    let upstream = Upstream::ok();
    let gateway = with_timeouts(&upstream, "idle: 1s");
    let noise = Noise::listen();
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    thread::sleep(ms(500));
    client.ask(&get("/")).expect(200);
    let start = Instant::now();
    client.assert_closed();
    assert_between("idling", start.elapsed(), 1000, &noise);
}

/// A body that stalls ends in 408 or a close, and the upstream does not take it as whole.
#[test]
fn a_stalled_body_is_cut() {
    let upstream = Upstream::ok();
    let gateway = with_timeouts(&upstream, "body: 1s");
    let noise = Noise::listen();
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    let start = Instant::now();
    let (bytes, _) = client.until_close();
    assert_between("the stalled body", start.elapsed(), 1000, &noise);
    assert!(bytes.is_empty() || bytes.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&bytes));
    let seen = upstream.wait_for(1);
    assert!(seen[0].cut.is_some(), "{seen:?}");
}

/// A slow body that keeps moving is not cut.
#[test]
fn a_slow_body_is_not_cut() {
    let upstream = Upstream::ok();
    let gateway = with_timeouts(&upstream, "body: 1s, header: 1s, idle: 1s");
    let mut client = gateway.client();
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n".as_slice();
    client.send_pieces(&[head, b"a", b"b", b"c", b"d", b"e", b"f"], ms(350));
    client.response().expect(200);
    assert_eq!(upstream.requests()[0].body, b"abcdef");
}

/// A client that stops reading a large response is cut, and its slot is free again.
#[test]
fn a_stopped_reader_is_cut() {
    let body = "x".repeat(30_000_000);
    let upstream =
        Upstream::new(move |seen| if seen.target == "/big" { Reply::text(&body) } else { Reply::text("ok") });
    let gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ write: 1s }} }}\n\
         locations:\n  - path: /\n    upstream: \"{}\"\n    \
           limits: {{ algorithm: concurrency, max_concurrent: 1 }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let mut reader = Client::connect_narrow(gateway.addr());
    reader.send(get("/big").bytes());
    reader.raw_head(PATIENCE).expect("the head");
    gateway.get("/").expect(503);
    let start = Instant::now();
    eventually("the slot", || gateway.get("/").status == 200);
    let took = start.elapsed();
    assert!(took > ms(500) && took < ms(1000) + SWEEP + noise.late(), "the slot took {took:?}");
    let (bytes, end) = reader.until_close();
    assert!(bytes.len() < 30_000_000, "{} bytes, {end:?}", bytes.len());
    let is_big = |line: &serde_json::Value| line["path"] == "/big";
    eventually("its line", || gateway.log_lines().iter().any(is_big));
    let lines = gateway.log_lines();
    let big = lines.iter().find(|line| is_big(line)).expect("its line");
    assert_eq!((&big["status"], &big["verdict"]), (&200.into(), &"slow_read".into()), "{big}");
    assert_eq!(gateway.metric("sluicegate_faults_total", &["slow_read"]), 1.0);
}

/// The same over HTTP/2, where each stream has a reader of its own; a rejected stream stays rejected.
#[test]
fn a_stopped_stream_is_reset() {
    let body = "x".repeat(1_000_000);
    let upstream = Upstream::new(move |_| Reply::text(&body));
    let gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ write: 1s }} }}\n\
         locations:\n  - {{ path: /, upstream: \"{url}\" }}\n  \
           - {{ path: /late, upstream: \"{url}\", timeout: 500ms }}\n  \
           - {{ path: /once, upstream: \"{url}\", limits: {{ rate: 1/h, key: global }} }}\n",
        url = upstream.url()
    ));
    // Only heads fit into the streams' windows.
    let mut h2 = H2::open_with(gateway.addr(), &[(4, 0)]);
    for (stream, path) in [(1, "/"), (3, "/late"), (5, "/once"), (7, "/once")] {
        h2.ask(stream, &h2_raw::request("GET", path, &[]));
        assert!(h2.wait(|frame| frame.stream == stream).is_ok(), "{path}");
    }
    let verdicts = gateway.wait_log(4).iter().map(|line| line["verdict"].to_string()).collect::<Vec<_>>();
    let count = |verdict: &str| verdicts.iter().filter(|line| line.contains(verdict)).count();
    assert_eq!((count("slow_read"), count("location_timeout"), count("reject")), (2, 1, 1), "{verdicts:?}");
}

/// A connect that is not accepted in time is 504.
#[test]
fn a_blackhole_is_504_at_the_connect_timeout() {
    let blackhole = Blackhole::new();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ connect: 500ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        blackhole.url()
    ));
    let noise = Noise::listen();
    let start = Instant::now();
    gateway.get("/").expect(504);
    let took = start.elapsed();
    // One retry is allowed by default.
    assert!(took + ms(5) >= ms(500), "took {took:?}");
    assert!(took <= ms(1100) + noise.late(), "took {took:?}");
}

/// A response without a head in time is 504; the connection is not used again.
#[test]
fn a_silent_upstream_is_504_at_the_response_timeout() {
    let upstream = Upstream::in_turn([Reply::silence()]);
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ response: 700ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let start = Instant::now();
    let response = gateway.get("/").expect(504);
    assert_between("the silent upstream", start.elapsed(), 700, &noise);
    assert_eq!(response.json()["title"], "Gateway Timeout");
    gateway.get("/").expect(200);
    let seen = upstream.requests();
    assert_ne!(seen[0].connection, seen[1].connection);
}

/// A body that pauses too long is cut visibly; one that keeps moving is not.
#[test]
fn a_dripping_response_is_cut_at_the_body_timeout() {
    let upstream = Upstream::new(|seen| {
        let reply = Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab");
        match seen.target.as_str() {
            "/stall" => reply.until(&Gate::default()),
            _ => reply.pause(ms(400)).then("cd").pause(ms(400)).then("ef"),
        }
    });
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ body: 700ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    assert_eq!(gateway.get("/slow").expect(200).text(), "abcdef");
    let start = Instant::now();
    let stalled = gateway.get("/stall");
    assert!(stalled.cut.is_some(), "{stalled:?}");
    assert_between("the stalled answer", start.elapsed(), 700, &noise);
}

/// Once a response has begun its pauses are the upstream's own, even while the client still sends.
#[test]
fn a_dripping_upload_does_not_extend_the_pauses_of_the_response() {
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |_| {
        Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab").until(&script).early()
    });
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ body: 700ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    for pause in [ms(100), ms(10_000)] {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc");
        assert_eq!(client.skip(2, PATIENCE), None);
        let (mut writer, start) = (client.writer(), Instant::now());
        thread::spawn(move || {
            while start.elapsed() < PATIENCE && writer.write_all(b"x").is_ok() {
                thread::sleep(pause);
            }
        });
        client.until_close();
        assert_between("the answer's pause", start.elapsed(), 700, &noise);
    }
    gate.open();
}

/// HTTP/1.0 may know the end of a response by the close only, so a cut one ends with a reset.
#[test]
fn a_cut_response_is_not_whole_for_http_10() {
    let gate = Gate::default();
    let script = gate.clone();
    let body = "x".repeat(30_000_000);
    let upstream = Upstream::new(move |seen| {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n";
        match seen.target.as_str() {
            "/whole" => Reply::raw(head).then("0\r\n\r\n"),
            "/close" => Reply::raw(head).pause(ms(50)).close(),
            "/stall" => Reply::raw(head).until(&script),
            _ => Reply::raw(format!("HTTP/1.1 200 OK\r\n\r\n{body}")).close(),
        }
    });
    let gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ write: 1s }} }}\n\
         upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ body: 700ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    for (path, end) in [("/whole", End::Closed), ("/close", End::Reset), ("/stall", End::Reset)] {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.0\r\nHost: a\r\n\r\n"));
        client.raw_head(PATIENCE).expect("the head");
        let (bytes, ended) = client.until_close();
        assert_eq!(ended, end, "{path}");
        assert!(ended == End::Reset || bytes == b"ab", "{path}");
    }
    let mut reader = Client::connect_narrow(gateway.addr());
    reader.send("GET /big HTTP/1.0\r\nHost: a\r\n\r\n");
    reader.raw_head(PATIENCE).expect("the head");
    eventually("its cut", || gateway.log_lines().iter().any(|line| line["path"] == "/big"));
    let (bytes, end) = reader.until_close();
    assert!(end == End::Reset && bytes.len() < 30_000_000, "{} bytes, {end:?}", bytes.len());
    gate.open();
}

/// An unused upstream connection is closed after its idle time.
#[test]
fn pooled_connections_are_closed_when_idle() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], timeouts: {{ idle: 500ms }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    gateway.get("/").expect(200);
    let start = Instant::now();
    upstream.wait_ended(1);
    assert!(start.elapsed() < ms(500) + 2 * SWEEP + noise.late(), "it took {:?}", start.elapsed());
    gateway.get("/").expect(200);
}

/// location.timeout covers the whole request: 504 once forwarded.
#[test]
fn a_location_bounds_the_whole_request() {
    let upstream = Upstream::new(|_| Reply::silence());
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", timeout: 600ms }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let start = Instant::now();
    gateway.get("/").expect(504);
    assert_between("the request", start.elapsed(), 600, &noise);
}

/// It holds for the built-in upstream as well, which reads the body before it answers.
#[test]
fn a_location_bounds_the_built_in_upstream() {
    let gateway = Gateway::start("locations:\n  - { path: /, upstream: demo, timeout: 600ms }\n");
    let noise = Noise::listen();
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    let start = Instant::now();
    client.response().expect(504);
    assert_between("the request", start.elapsed(), 600, &noise);
    let line = &gateway.wait_log(1)[0];
    assert_eq!((&line["status"], &line["verdict"]), (&504.into(), &"location_timeout".into()), "{line}");
}

/// A computed wait beyond location.timeout is rejected at once, with 503 naming the limit.
#[test]
fn a_wait_beyond_the_location_timeout_is_rejected_at_once() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  slow: {{ key: global, algorithm: leaky_bucket, rate: 1/s, queue: 5 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: slow, timeout: 600ms }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    let noise = Noise::listen();
    let start = Instant::now();
    let rejected = gateway.get("/");
    assert!(rejected.status == 503 || rejected.status == 429, "{}", rejected.status);
    assert_eq!(rejected.json()["limit"], "slow");
    assert!(start.elapsed() < ms(300) + noise.late(), "took {:?}", start.elapsed());
    assert_eq!(upstream.count(), 1);
}
