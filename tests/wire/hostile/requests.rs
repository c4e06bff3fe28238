//! Clients that try more than their request: tunnels, trailers, codings, half-closed connections.

use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::*;

/// An upgrade to h2c is never requested and opens no tunnel, in any spelling.
#[test]
fn h2c_is_never_forwarded() {
    // The server would switch on any such request; bytes that follow would be recorded as a request.
    let upstream = Upstream::new(|seen| {
        let asked = seen.headers.all("upgrade").join(",").to_ascii_lowercase().contains("h2c");
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        if asked { Reply::raw(switch) } else { Reply::text("ok") }
    });
    let gateway = forwarding(&upstream, "");
    let asks: [&[(&str, &str)]; 9] = [
        &[
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
        ],
        &[
            ("Connection", "HTTP2-Settings, Upgrade"),
            ("Upgrade", "H2C"),
            ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
        ],
        &[("Connection", "Upgrade"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")],
        &[("Connection", "Upgrade"), ("Upgrade", "h2c")],
        &[("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")],
        &[("Connection", "Upgrade"), ("Upgrade", "websocket, h2c")],
        &[("Connection", "Upgrade"), ("Upgrade", "h2c,websocket")],
        &[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c")],
        &[("Connection", "Upgrade"), ("Upgrade", "h2c/1")],
    ];
    for headers in asks {
        let ask = headers.iter().fold(get("/a"), |ask, (name, value)| ask.header(name, value));
        let mut client = gateway.client();
        client.send(ask.bytes());
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let response = client.response();
        assert!(matches!(response.status, 200 | 400), "{headers:?}: {}", response.status);
        assert!(!response.headers.has("upgrade"), "{headers:?}");
        let (rest, end) = client.rest(PATIENCE);
        assert!(!rest.starts_with(b"\0") && end != End::Deadline, "{headers:?}: {rest:?}, {end:?}");
    }
    for seen in upstream.requests() {
        assert_eq!(seen.target, "/a", "something came through a tunnel");
        let upgrade = seen.headers.all("upgrade").join(",").to_ascii_lowercase();
        assert!(!upgrade.contains("h2c") && !seen.headers.has("http2-settings"), "{:?}", seen.headers);
    }
}

/// Trailers are no headers: they route nothing, frame nothing and identify no client.
#[test]
fn trailers_are_never_headers() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\naccount: {{ from: header:X-Account-Id }}\n\
         access_log: {{ headers: [x-account-id] }}\n\
         locations:\n  - path: /\n    upstream: {}\n    limits: {{ key: account, rate: 2/h }}\n",
        upstream.url()
    ));
    let trailers = "Host: evil\r\nContent-Length: 99\r\nTransfer-Encoding: gzip\r\nX-Forwarded-For: 9.9.9.9\r\n\
                    X-Account-Id: other\r\nX-Forwarded-Proto: https\r\nX-Request-Id: mine\r\n";
    for (content_type, statuses) in [("text/plain", [200, 200, 429]), ("application/grpc", [200, 200, 429])] {
        let account = content_type.replace('/', "-");
        for status in statuses {
            let before = upstream.count();
            let mut client = gateway.client();
            client.send(format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nX-Account-Id: {account}\r\nContent-Type: {content_type}\r\n\
                 TE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: host, x-account-id\r\n\r\n\
                 3\r\nabc\r\n0\r\n{trailers}\r\n"
            ));
            let response = client.response();
            if content_type == "text/plain" || status == 200 {
                assert_eq!(response.status, status, "the trailer's account was counted");
            }
            for seen in &upstream.requests()[before..] {
                assert_eq!(seen.header("host").as_deref(), Some("a"));
                assert_eq!(seen.header("x-account-id").as_deref(), Some(&*account));
                assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
                assert_eq!(seen.header("transfer-encoding").as_deref(), Some("chunked"));
                assert!(!seen.headers.has("content-length"), "{:?}", seen.headers);
                assert_ne!(seen.header("x-request-id").as_deref(), Some("mine"));
                assert_eq!((seen.body.as_slice(), seen.cut), (&b"abc"[..], None));
                for name in ["host", "content-length", "transfer-encoding"] {
                    assert!(!seen.trailers.has(name), "{content_type}: {name} was forwarded as a trailer");
                }
                assert!(content_type != "text/plain" || seen.trailers.0.is_empty(), "{:?}", seen.trailers);
            }
        }
    }
}

/// Of TE only `trailers` is forwarded, alone and in one line, and only if the client sent exactly that.
#[test]
fn te_forwards_trailers_only() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let rows: [(&[&str], Option<&str>); 12] = [
        (&["trailers"], Some("trailers")),
        (&["Trailers"], Some("trailers")),
        (&["trailers, gzip"], Some("trailers")),
        (&["gzip;q=0.5 , trailers"], Some("trailers")),
        (&["gzip", "trailers"], Some("trailers")),
        (&["trailers", "trailers"], Some("trailers")),
        (&["gzip"], None),
        (&["trailers;q=0.5"], None),
        (&["chunked"], None),
        (&["xtrailers"], None),
        (&[""], None),
        (&["trailers\t;q=1, deflate"], None),
    ];
    for (lines, expected) in rows {
        for connection in [None, Some("TE"), Some("te, close")] {
            let ask = lines.iter().fold(get("/"), |ask, line| ask.header("TE", line));
            let ask = connection.iter().fold(ask, |ask, value| ask.header("Connection", value));
            gateway.ask(&ask).expect(200);
            let seen = upstream.requests().pop().expect("a request");
            assert_eq!(seen.header("te").as_deref(), expected, "{lines:?} {connection:?}");
        }
    }
}

/// Milliseconds of processor time that a process has used.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    ticks * 10
}

/// A client that half-closes gets its response, or a close, as from nginx, because it looks like one
/// that left; nothing spins meanwhile.
#[test]
fn half_closed_clients_are_answered_or_closed() {
    let held = Gate::default();
    let gate = held.clone();
    let upstream = Upstream::new(move |seen| match &*seen.target {
        "/held" => Reply::text("late").held_by(&gate),
        "/drip" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc").until(&gate).then("def"),
        _ => Reply::text("ok"),
    });
    let gateway = forwarding(&upstream, "");
    let targets = ["/held", "/drip", "/held"];
    let mut clients: Vec<Client> = targets.iter().map(|_| gateway.client()).collect();
    for (client, target) in clients.iter_mut().zip(targets) {
        client.send(get(target).bytes());
    }
    upstream.wait_for(3);
    clients.iter().for_each(Client::half_close);
    let (before, start) = (cpu_ms(gateway.pid()), Instant::now());
    std::thread::sleep(ms(800));
    let (spent, span) = (cpu_ms(gateway.pid()) - before, start.elapsed().as_millis() as u64);
    assert!(spent <= span / 4, "{spent} ms of processor time in {span} ms of waiting");
    held.open();
    for (client, body) in clients.iter_mut().zip(["late", "abcdef", "late"]) {
        match client.response_within(PATIENCE) {
            Ok(response) if response.cut.is_none() => assert_eq!(response.expect(200).text(), body),
            Ok(_) | Err(End::Closed | End::Reset) => {}
            Err(end) => panic!("neither answered nor closed: {end:?}"),
        }
        client.until_close();
    }
    gateway.get("/after").expect(200);
}

/// Half a head, half a body or nothing before the half-close is no request; the connection ends.
#[test]
fn half_closed_before_the_end_of_the_request_is_closed() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    for bytes in [
        "",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "POST /cut HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello",
        "POST /cut HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "POST /cut HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ] {
        let mut client = gateway.client();
        client.send(bytes);
        client.half_close();
        let (answer, end) = client.rest(PATIENCE);
        let answered = answer.is_empty() || answer.starts_with(b"HTTP/1.1 400");
        assert!(answered && end != End::Deadline, "{bytes:?}: {end:?} {}", String::from_utf8_lossy(&answer));
    }
    gateway.get("/after").expect(200);
    let whole: Vec<_> = upstream.requests().into_iter().filter(|seen| seen.cut.is_none()).collect();
    assert_eq!(whole.len(), 1, "half a request went upstream as a whole one: {whole:?}");
}

/// HTTP/2 accepts one length; over HTTP/1 the parser folds equal ones; the number goes upstream.
#[test]
fn a_length_goes_upstream_once_and_as_a_number() {
    let (upstream, upstream2) = (Upstream::ok(), Upstream2::new(|_| Act::Echo));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  two: {{ servers: [\"{}\"], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\" }}\n  - {{ path: /two, upstream: two }}\n",
        upstream2.addr(),
        upstream.url()
    ));
    let outcome_of = |path, lengths: &[&'static str], body: &[u8]| {
        let lengths: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
        let block = block(&request("POST", path, &lengths));
        let mut h2 = H2::open(gateway.addr());
        match body {
            b"" => h2.send(HEADERS, END_HEADERS | END_STREAM, 1, &block),
            body => {
                h2.send(HEADERS, END_HEADERS, 1, &block);
                h2.send(DATA, END_STREAM, 1, body);
            }
        }
        h2.outcome(1)
    };
    for path in ["/", "/two"] {
        for (lengths, body) in [
            (&["3", "3"][..], &b"abc"[..]),
            (&["3", "003"], b"abc"),
            (&["003", "3"], b"abc"),
            (&["0", "00"], b""),
            (&["0", "0"], b""),
            (&[""], b""),
            (&["", "0"], b""),
        ] {
            let outcome = outcome_of(path, lengths, body);
            assert!(matches!(outcome, Outcome::Answered(400, _)), "{path} {lengths:?}: {outcome:?}");
        }
    }
    assert_eq!((upstream.count(), upstream2.requests().len()), (0, 0));
    for (length, body, written) in [("003", &b"abc"[..], "3"), ("3", b"abc", "3"), ("00", b"", "0")] {
        let outcome = outcome_of("/", &[length], body);
        assert!(matches!(outcome, Outcome::Answered(200, _)), "{length}: {outcome:?}");
        let outcome = outcome_of("/two", &[length], body);
        assert!(matches!(outcome, Outcome::Answered(200, _)), "{length}: {outcome:?}");
        let seen = upstream.requests().pop().expect("a request");
        assert_eq!((seen.headers.all("content-length"), &seen.body[..]), (vec![written.to_owned()], body));
        let seen = upstream2.requests().pop().expect("a request");
        assert_eq!(
            seen.headers.get("content-length").map(|length| length.as_bytes()),
            Some(written.as_bytes())
        );
    }
    for lengths in ["Content-Length: 003", "Content-Length: 3\r\nContent-Length: 003"] {
        gateway.raw(format!("POST / HTTP/1.1\r\nHost: a\r\n{lengths}\r\n\r\nabc")).expect(200);
        let seen = upstream.requests().pop().expect("a request");
        assert_eq!((seen.headers.all("content-length"), &seen.body[..]), (vec!["3".to_owned()], &b"abc"[..]));
    }
}
