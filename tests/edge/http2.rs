//! HTTP semantics over HTTP/2: limits, heads, bodies and the lifetime of a connection.

use std::thread;

use super::caller::{ask, begin, call, finish, request};
use crate::support::h2_raw::{self, *};
use crate::support::*;

fn responding(extra: &str) -> Gateway {
    Gateway::start(&format!("{extra}\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n"))
}

/// `server.max_headers` and `server.max_header_size` hold over HTTP/2 as well.
#[test]
fn heads_are_bounded() {
    let gateway = responding("server: { max_headers: 10, max_header_size: 8KiB }");
    let fill = |count: usize| -> Vec<(String, String)> {
        (0..count).map(|n| (format!("x-{n}"), "y".to_owned())).collect()
    };
    let mut h2 = H2::open(gateway.addr());
    let mut ask = |stream: u32, more: &[(String, String)]| {
        let more: Vec<(&str, &str)> =
            more.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        h2.ask(stream, &h2_raw::request("GET", "/", &more));
        match h2.outcome(stream) {
            Outcome::Answered(status, _) => status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(1, &fill(10)), 200);
    assert_eq!(ask(3, &fill(11)), 431);
    assert_eq!(ask(5, &[("x".to_owned(), "y".repeat(9_000))]), 431);
    assert_eq!(ask(7, &[("x".to_owned(), "y".repeat(7_000))]), 200);
    assert!(h2.is_alive());
}

/// A client may split its cookies into fields, which are one field to limits, the log and an upstream of HTTP/1.
#[test]
fn split_cookies_are_one_field() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: cookie:user }}\naccess_log: {{ headers: [cookie] }}\n\
         limits: {{ whole: {{ key: header:cookie, rate: 1/h }}, sid: {{ key: cookie:sid, rate: 1/h }} }}\n\
         locations:\n\
         \x20 - {{ path: /whole, upstream: \"{url}\", limits: whole, request_headers: {{ set: {{ X-A: \"${{account}}\" }} }} }}\n\
         \x20 - {{ path: /sid, upstream: \"{url}\", limits: sid }}\n",
        url = upstream.url()
    ));
    let mut h2 = H2::open(gateway.addr());
    let mut stream = 1;
    let mut ask = |path: &str, crumbs: &[&str]| {
        let fields: Vec<(&str, &str)> = crumbs.iter().map(|crumb| ("cookie", *crumb)).collect();
        h2.ask(stream, &h2_raw::request("GET", path, &fields));
        let Outcome::Answered(status, _) = h2.outcome(stream) else { panic!("no answer to {crumbs:?}") };
        stream += 2;
        status
    };
    assert_eq!(ask("/whole", &["user=al", "sid=1", "a=b; c=d"]), 200);
    assert_eq!(ask("/whole", &["user=al; sid=1", "a=b", "c=d"]), 429);
    assert_eq!(ask("/whole", &["user=al; sid=1; a=b; c=e"]), 200);
    let client = |cookies: &str| gateway.ask(&get("/whole").header("Cookie", cookies)).status;
    assert_eq!(client("user=al; sid=1; a=b; c=e"), 429, "the same over HTTP/1");
    // A cookie that is given twice counts if both are the same.
    for (crumbs, status) in [
        (&["sid=x", "sid=x"][..], 200),
        (&["sid=x"], 429),
        (&["sid=y", "sid=x"], 400),
        (&["sid=x; a=b; sid=y"], 400),
        (&["sid=y", "a=b"], 200),
    ] {
        assert_eq!(ask("/sid", crumbs), status, "{crumbs:?}");
    }
    let seen = &upstream.requests()[0];
    assert_eq!(seen.headers.all("cookie"), ["user=al; sid=1; a=b; c=d"]);
    assert_eq!(seen.header("x-a").as_deref(), Some("al"));
    let logged =
        gateway.wait_log(9).iter().any(|line| line["headers"]["cookie"] == "user=al; sid=1; a=b; c=d");
    assert!(logged, "the log has the whole field");
}

/// Connection headers of HTTP/1 are not in an answer, whatever its origin.
#[test]
fn answers_carry_nothing_of_a_connection() {
    let upstream = Upstream::new(|_| {
        Reply::with(
            200,
            &[("Connection", "keep-alive, x-hop"), ("Keep-Alive", "timeout=5"), ("X-Hop", "1")],
            "ok",
        )
    });
    let gateway = Gateway::start(&format!(
        "server: {{ max_body: 1KiB }}\nlocations:\n\
         \x20 - {{ path: /limited, upstream: \"{url}\", limits: {{ rate: 1/h, key: global }} }}\n\
         \x20 - {{ path: /, upstream: \"{url}\" }}\n",
        url = upstream.url()
    ));
    call(gateway.addr(), async |sender| {
        let big = vec![b'x'; 5_000];
        for (method, path, body, status) in [
            ("GET", "/", &b""[..], 200),
            ("GET", "/limited", b"", 200),
            ("GET", "/limited", b"", 429),
            ("POST", "/", &big, 413),
            ("TRACE", "/", b"", 405),
            ("GET", "/%zz", b"", 400),
        ] {
            let got = ask(&sender, request(method, path), body).await.expect("an answer");
            assert_eq!(got.status, status, "{method} {path}");
            for name in ["connection", "keep-alive", "x-hop", "transfer-encoding", "upgrade"] {
                assert_eq!(got.header(name), None, "{method} {path}: {name}");
            }
            assert!(got.header("date").is_some());
        }
    });
}

/// HEAD, 204 and 304 have no body, and HEAD keeps the Content-Length of its GET.
#[test]
fn answers_without_bodies_have_none() {
    let upstream = Upstream::new(|seen| match (seen.method.as_str(), seen.target.as_str()) {
        ("HEAD", _) => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        (_, "/204") => Reply::raw("HTTP/1.1 204 No Content\r\n\r\n"),
        (_, "/304") => Reply::raw("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"),
        _ => Reply::raw(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\n\r\ncde",
        ),
    });
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let head = ask(&sender, request("HEAD", "/"), b"").await.expect("an answer");
        assert_eq!(
            (head.status.as_u16(), head.header("content-length"), head.body.len()),
            (200, Some("1234"), 0)
        );
        for status in [204, 304] {
            let got = ask(&sender, request("GET", &format!("/{status}")), b"").await.expect("an answer");
            assert_eq!((got.status.as_u16(), got.body.len()), (status, 0));
        }
        let ranged =
            ask(&sender, request("GET", "/").header("range", "bytes=2-4"), b"").await.expect("an answer");
        assert_eq!((ranged.status.as_u16(), &ranged.body[..]), (206, &b"cde"[..]));
        assert_eq!(ranged.header("content-range"), Some("bytes 2-4/10"));
    });
    assert_eq!(upstream.requests()[3].header("range").as_deref(), Some("bytes=2-4"));
}

/// Uploads pass whole, chunked if their length is unknown, and answers come back whole.
#[test]
fn bodies_pass_whole_both_ways() {
    let upstream = Upstream::new(|seen| Reply::text(&"z".repeat(seen.target[1..].parse().expect("a size"))));
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        for size in [1, 16_384, 300_000, 3_000_000] {
            let got = ask(&sender, request("POST", &format!("/{size}")), &vec![b'y'; size])
                .await
                .expect("an answer");
            assert_eq!((got.status.as_u16(), got.body.len()), (200, size));
        }
    });
    let seen = upstream.requests();
    assert!(
        seen.iter().all(|seen| seen.header("transfer-encoding").as_deref() == Some("chunked")),
        "{}",
        seen.len()
    );
    assert_eq!(seen.iter().map(|seen| seen.body.len()).sum::<usize>(), 3_316_385);
}

/// Rejected uploads release the connection's window, so later uploads are not blocked.
#[test]
fn refused_uploads_do_not_use_up_the_connection() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { max_body: 1KiB }");
    call(gateway.addr(), async |sender| {
        for _ in 0..60 {
            let got = ask(&sender, request("POST", "/"), &vec![b'y'; 100_000]).await;
            assert!(got.is_err() || got.is_ok_and(|got| got.status == 413));
        }
        let got = ask(&sender, request("POST", "/"), &[b'y'; 1_000]).await.expect("an answer");
        assert_eq!(got.status, 200);
    });
}

/// A client over both versions counts as one client.
#[test]
fn one_bucket_for_both_versions() {
    let gateway = Gateway::start(
        "account: { from: \"header:x-account\" }\nlocations:\n  - path: /\n    respond: { body: ok }\n    \
         limits: { key: account, rate: 4/h }\n",
    );
    let mut old = gateway.client();
    let mut statuses: Vec<u16> = (0..2).map(|_| old.ask(&get("/").header("X-Account", "a")).status).collect();
    call(gateway.addr(), async |sender| {
        for _ in 0..3 {
            let got =
                ask(&sender, request("GET", "/").header("x-account", "a"), b"").await.expect("an answer");
            statuses.push(got.status.as_u16());
        }
    });
    statuses.push(old.ask(&get("/").header("X-Account", "a")).status);
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
}

/// Streams of one connection take slots one by one, and release them however they end.
#[test]
fn streams_take_slots_one_by_one() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "locations:\n  - path: /\n    upstream: \"{}\"\n    limits: {{ algorithm: concurrency, max_concurrent: 2 }}\n",
        upstream.url()
    ));
    let mut h2 = H2::open(gateway.addr());
    for stream in [1, 3] {
        h2.ask(stream, &h2_raw::request("GET", "/", &[]));
    }
    upstream.wait_for(2);
    assert!(matches!(h2.get(5, "/"), Outcome::Answered(503, _)));
    // A reset releases the slot, and the request at the upstream is cancelled.
    h2.send(RST_STREAM, 0, 1, &8u32.to_be_bytes());
    let in_flight = || gateway.metric("sluicegate_requests_in_flight", &[]);
    eventually("the slot to be free", || in_flight() == 1.0);
    h2.ask(7, &h2_raw::request("GET", "/", &[]));
    upstream.wait_for(3);
    gate.open();
    assert!(matches!(h2.outcome(7), Outcome::Answered(200, _)));
    assert!(matches!(h2.outcome(3), Outcome::Answered(200, _)));
}

/// A stream reset with NO_ERROR after a part of its body does not reach the upstream as a whole request, and is not a
/// fault of the server.
#[test]
fn a_reset_without_an_error_ends_no_body() {
    let upstream = Upstream::new(|seen| match seen.method.as_str() {
        "POST" => Reply::default().early(),
        _ => Reply::text("ok"),
    });
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open(gateway.addr());
    for n in 0..20 {
        let length: &[(&str, &str)] = if n % 2 == 0 { &[] } else { &[("content-length", "10")] };
        let stream = 2 * n + 1;
        h2.write(&frame(HEADERS, 4, stream, &block(&h2_raw::request("POST", "/", length))));
        upstream.wait_for(n as usize + 1);
        h2.write(&[frame(DATA, 0, stream, b"part"), frame(RST_STREAM, 0, stream, &[0; 4])].concat());
    }
    eventually("the uploads to end", || upstream.requests().iter().all(|seen| seen.cut.is_some()));
    assert!(matches!(h2.get(103, "/"), Outcome::Answered(200, _)));
}

/// Streams beyond the announced number are refused, and the connection continues.
#[test]
fn streams_beyond_the_announced_are_refused() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open(gateway.addr());
    for place in 0..250 {
        h2.ask(place * 2 + 1, &h2_raw::request("GET", "/", &[]));
    }
    for place in 129..250 {
        assert_eq!(h2.outcome(place * 2 + 1), Outcome::Reset(REFUSED), "{place}");
    }
    assert!(h2.is_alive());
    gate.open();
    for place in 0..128 {
        assert!(matches!(h2.outcome(place * 2 + 1), Outcome::Answered(200, _)), "{place}");
    }
    assert!(matches!(h2.get(601, "/"), Outcome::Answered(200, _)));
    // The announced number, and one more.
    assert_eq!(upstream.wait_for(129).len(), 129);
}

/// After `keepalive.requests` the connection gets a GOAWAY, and earlier requests are answered.
#[test]
fn a_connection_serves_a_bounded_number() {
    let gateway = responding("server: { keepalive: { requests: 3 } }");
    let mut h2 = H2::open(gateway.addr());
    for stream in [1, 3, 5] {
        assert!(matches!(h2.get(stream, "/"), Outcome::Answered(200, _)), "{stream}");
    }
    let goaway = h2.wait(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
    assert_eq!(code(&goaway.payload[4..]), NO_ERROR);
    assert!(h2.ends_within(PATIENCE));
}

/// The same with `keepalive.age`.
#[test]
fn a_connection_lives_a_bounded_time() {
    let gateway = responding("server: { keepalive: { age: 500ms } }");
    let mut h2 = H2::open(gateway.addr());
    assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
    thread::sleep(ms(700));
    assert!(matches!(h2.get(3, "/"), Outcome::Answered(200, _)));
    h2.wait(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
    assert!(h2.ends_within(PATIENCE));
}

/// The shutdown sends a GOAWAY and answers the requests in flight.
#[test]
fn the_shutdown_answers_requests_in_flight() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let mut gateway = forwarding(&upstream, "");
    let mut h2 = H2::open(gateway.addr());
    h2.ask(1, &h2_raw::request("GET", "/", &[]));
    upstream.wait_for(1);
    gateway.term();
    h2.wait(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
    gate.open();
    assert!(matches!(h2.outcome(1), Outcome::Answered(200, _)));
    assert!(h2.ends_within(PATIENCE));
    assert_eq!(gateway.wait_exit(), 0);
}

/// A stream that its client cancels does not affect the others.
#[test]
fn a_reset_touches_one_stream() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/slow" => Reply::text("slow").after(ms(400)),
        _ => Reply::silence(),
    });
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let (slow, _) = begin(&sender, request("GET", "/slow"), true).await;
        for _ in 0..5 {
            let (lost, mut stream) = begin(&sender, request("GET", "/lost"), true).await;
            tokio::time::sleep(ms(20)).await;
            stream.send_reset(h2::Reason::CANCEL);
            drop(lost);
        }
        assert_eq!(finish(slow).await.expect("an answer").body, b"slow");
    });
    eventually("the others to be given up", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

/// A CONNECT that announces a body is reset alone: the other streams of the connection continue.
#[test]
fn a_connect_with_a_body_ends_no_other_stream() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open(gateway.addr());
    h2.ask(1, &h2_raw::request("GET", "/", &[]));
    upstream.wait_for(1);
    let plain = [(":method", "CONNECT"), (":authority", "gateway.test"), ("content-length", "5")];
    let extended = h2_raw::request("CONNECT", "/", &[(":protocol", "websocket"), ("content-length", "5")]);
    let mut burst = Vec::new();
    for stream in (3..43).step_by(2) {
        let fields = if stream % 4 == 1 { &plain[..] } else { &extended };
        burst.extend(frame(HEADERS, END_HEADERS, stream, &block(fields)));
    }
    h2.write(&burst);
    for stream in (3..43).step_by(2) {
        assert!(matches!(h2.outcome(stream), Outcome::Reset(_)), "{stream}");
    }
    gate.open();
    assert!(matches!(h2.outcome(1), Outcome::Answered(200, _)));
    assert!(matches!(h2.get(101, "/"), Outcome::Answered(200, _)));
    assert_eq!(gateway.metric("sluicegate_faults_total", &["bad_framing"]), 20.0);
    h2.writer().shutdown(std::net::Shutdown::Write);
    assert!(h2.ends_within(PATIENCE));
}

/// A client that does not answer the PING of the GOAWAY is not served for ever.
#[test]
fn a_goaway_does_not_wait_for_its_ping_answer() {
    let gateway = responding("server: { keepalive: { requests: 3 } }");
    let mut h2 = H2::open(gateway.addr());
    h2.pongs = false;
    let start = std::time::Instant::now();
    let mut stream = 1;
    let ask =
        |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&h2_raw::request("GET", "/", &[])));
    // The connection may be closed already.
    while h2.try_write(&ask(stream)).is_ok() && matches!(h2.outcome(stream), Outcome::Answered(200, _)) {
        assert!(start.elapsed() < ms(5_000), "{stream} is still answered");
        stream += 2;
    }
    assert!(stream > 7, "it may ask for a while: {stream}");
    assert!(start.elapsed() > ms(800), "{:?}", start.elapsed());
    assert!(h2.ends_within(PATIENCE));
}
