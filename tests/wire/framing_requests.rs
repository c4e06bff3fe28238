//! Request framing: for any bytes, the upstream sees one clean request or none.

use crate::support::*;

/// Sends `bytes`; the statuses of all responses, and whether the connection ended.
fn exchange(gateway: &Gateway, bytes: &[u8]) -> (Vec<u16>, bool) {
    let mut client = gateway.client();
    // A rejection may come, and the connection may close, while the test is still writing.
    let _ = client.try_send(bytes);
    let mut statuses = Vec::new();
    loop {
        let patience = if statuses.is_empty() { ms(5000) } else { ms(300) };
        match client.response_within(patience) {
            Ok(response) => statuses.push(response.status),
            Err(End::Deadline) if statuses.is_empty() => {
                panic!("neither answered nor closed: {}", lossy(bytes))
            }
            Err(End::Deadline) => return (statuses, false),
            Err(_) => return (statuses, true),
        }
    }
}

fn response_statuses(gateway: &Gateway, bytes: &[u8]) -> Vec<u16> {
    exchange(gateway, bytes).0
}

fn lossy(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).escape_debug().to_string();
    text.chars().take(200).collect()
}

/// Each request gets one rejection, the connection ends, and the upstream sees nothing.
#[track_caller]
fn assert_rejected(requests: &[Vec<u8>]) {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut wrong = Vec::new();
    for bytes in requests {
        let before = upstream.count();
        let statuses = response_statuses(&gateway, bytes);
        let rejected = matches!(statuses[..], [] | [400..=417 | 431 | 501 | 505]);
        let seen = upstream.count() - before;
        if !rejected || seen > 0 {
            wrong.push(format!("{} → {statuses:?}, upstream saw {seen}", lossy(bytes)));
        }
    }
    assert!(wrong.is_empty(), "not rejected:\n{}", wrong.join("\n"));
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Content-Length with Transfer-Encoding is rejected or goes upstream as chunked alone; either way the
/// connection ends and the bytes that follow are never a request.
#[test]
fn two_framings_never_make_two_requests() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    for framing in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
    ] {
        let before = upstream.count();
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n0\r\n\r\n{SMUGGLED}");
        let (statuses, closed) = exchange(&gateway, bytes.as_bytes());
        assert!(statuses == [400] || statuses == [200], "{framing}: {statuses:?}");
        assert!(closed, "{framing}: the connection stays open");
        let seen = &upstream.requests()[before..];
        assert_eq!(seen.len(), usize::from(statuses == [200]), "{framing}");
        for request in seen {
            assert!(!request.headers.has("content-length"), "{:?}", request.headers);
            assert_eq!(request.header("transfer-encoding").as_deref(), Some("chunked"));
        }
    }
    assert!(!upstream.targets().contains(&"/smuggled".to_owned()));
}

/// Transfer-Encoding is `chunked`, once, and nothing else.
#[test]
fn other_transfer_encodings_are_rejected() {
    let values = [
        "identity",
        "xchunked",
        "chunked, identity",
        "chunked, chunked",
        "gzip, chunked",
        "gzip",
        ",chunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked\r\n\tx",
        "chunked\0",
        "\u{b}chunked",
        "",
        "chunked\r\nTransfer-Encoding: chunked",
        "identity\r\nTransfer-Encoding: chunked",
    ];
    let requests = values.map(|value| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {value}\r\n\r\n");
        [head.as_bytes(), b"0\r\n\r\n", SMUGGLED.as_bytes()].concat()
    });
    assert_rejected(&requests);
    assert_rejected(&[
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc".to_vec()
    ]);
}

/// Content-Length is digits, once.
#[test]
fn other_content_lengths_are_rejected() {
    let values = [
        "+3",
        "-1",
        "0x3",
        "3 3",
        "1_0",
        "",
        "3, 4",
        "3, 3",
        "18446744073709551617",
        "3\r\nContent-Length: 4",
        "3;",
        "３",
    ];
    let requests =
        values.map(|v| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {v}\r\n\r\nabc").into_bytes());
    assert_rejected(&requests);
    assert_rejected(&[b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc".to_vec()]);
}

/// An invalid chunk is the client's fault: 400 and a close; the upstream never sees a last chunk.
#[test]
fn bad_chunks_end_the_connection() {
    let upstream = Upstream::new(|_| Reply::text("ok"));
    let gateway = forwarding(&upstream, "");
    for chunk in [
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabcXX0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "g\r\nabc\r\n0\r\n\r\n",
    ] {
        let bytes =
            format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{SMUGGLED}");
        let (statuses, closed) = exchange(&gateway, bytes.as_bytes());
        assert!(statuses == [400] && closed, "{chunk:?}: {statuses:?}, closed: {closed}");
    }
    for seen in upstream.requests() {
        assert!(seen.cut.is_some(), "a bad body arrived as a whole one: {seen:?}");
    }
    gateway.get("/after").expect(200);
}

/// Invalid header lines are rejected; bare line feeds may pass if they go upstream as CRLF.
#[test]
fn broken_header_lines_are_rejected() {
    let lines: [&[u8]; 11] = [
        b"X: a\0b\r\n",
        b"X: a\rb\r\n",
        b"X: a\x01b\r\n",
        b": empty\r\n",
        b"no colon\r\n",
        b"X Y: space\r\n",
        b"X\tY: tab\r\n",
        b"X : space before colon\r\n",
        b"X: folded\r\n more\r\n",
        b"X: folded\r\n\tmore\r\n",
        b"X\x80: obs\r\n",
    ];
    let requests = lines.map(|line| [b"GET / HTTP/1.1\r\nHost: a\r\n", line, b"\r\n"].concat());
    assert_rejected(&requests);
    assert_rejected(&[b"GET / HTTP/1.1\r\n Host: a\r\nHost: a\r\n\r\n".to_vec()]);
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let statuses = response_statuses(&gateway, b"GET / HTTP/1.1\nHost: a\nX: y\n\n");
    if statuses == [200] {
        let raw = upstream.raw(0);
        let bare = raw.windows(2).any(|w| w[1] == b'\n' && w[0] != b'\r');
        assert!(!bare, "{}", lossy(&raw));
    } else {
        assert!(matches!(statuses[..], [] | [400]), "{statuses:?}");
    }
}

/// Bytes above ASCII pass unchanged, and the values of one name keep their number and order.
#[test]
fn header_values_pass_unchanged() {
    let upstream = Upstream::new(|_| {
        let head = Reply::raw(b"HTTP/1.1 200 OK\r\nX-Back: \xe9\xff\r\n");
        head.then("Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n")
    });
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Raw: caf\xe9 \x80\xff\r\n");
    client.send(b"X-Many: 2\r\nX-Many: 1\r\nX-Many: 2\r\n\r\n");
    let response = client.response().expect(200);
    let seen = &upstream.requests()[0];
    let raw = seen.headers.0.iter().find(|(n, _)| n == "x-raw").expect("X-Raw");
    assert_eq!(raw.1, b"caf\xe9 \x80\xff");
    assert_eq!(seen.headers.all("x-many"), ["2", "1", "2"]);
    let back = response.headers.0.iter().find(|(n, _)| n == "x-back").expect("X-Back");
    assert_eq!(back.1, b"\xe9\xff");
    assert_eq!(response.headers.all("set-cookie"), ["a=1", "b=2"]);
}

/// HTTP/1.1 requires exactly one valid Host.
#[test]
fn bad_hosts_are_rejected() {
    let hosts = [
        "",
        "Host: a\r\nHost: b\r\n",
        "Host: a\r\nHost: a\r\n",
        "Host:\r\n",
        "Host: a,b\r\n",
        "Host: user@a\r\n",
        "Host: a/b\r\n",
        "Host: a b\r\n",
        "Host: a:port\r\n",
        "Host: a:99999\r\n",
        "Host: [::1\r\n",
        "Host: a?b\r\n",
        "Host: a#b\r\n",
        "Host: a\\b\r\n",
    ];
    assert_rejected(&hosts.map(|host| format!("GET / HTTP/1.1\r\n{host}\r\n").into_bytes()));
}

/// A host is accepted in every valid spelling.
#[test]
fn valid_hosts_are_accepted() {
    let gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    for host in [
        "a",
        "A.B",
        "a.b.",
        "a:80",
        "a.b.:8080",
        "a-b.c",
        "a_b.c",
        "xn--bcher-kva.example",
        "1.2.3.4",
        "1.2.3.4:80",
        "[::1]",
        "[2001:db8::1]:8080",
        "localhost:1",
        "a:65535",
    ] {
        let response = gateway.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(response.status, 200, "{host}");
    }
}

/// HTTP/1.0 has no Transfer-Encoding.
#[test]
fn old_http_with_chunks_is_rejected() {
    let head =
        "POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_rejected(&[format!("{head}{SMUGGLED}").into_bytes()]);
}

/// HTTP/1.0 without a Host is served, and closed after the response.
#[test]
fn old_http_is_served() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send("GET /old HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().expect(200).text(), "ok");
    client.assert_closed();
    assert_eq!(upstream.requests()[0].version, "HTTP/1.1");
}

/// Other expectations are rejected or ignored; 100-continue works in any case, and not for HTTP/1.0.
#[test]
fn expectations_are_met_or_rejected() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-CONTINUE\r\n\r\n");
    let interim = client.raw_head(PATIENCE).expect("100 Continue");
    assert!(interim.starts_with(b"HTTP/1.1 100"), "{}", lossy(&interim));
    client.send("abc");
    client.response().expect(200);
    assert_eq!(upstream.requests()[0].body, b"abc");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: the-unexpected\r\n\r\nabc");
    let status = client.response().status;
    assert!(status == 200 || status == 417, "{status}");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
    let response = client.response();
    assert!(response.interim.is_empty(), "{:?}", response.interim);
}

/// The configured number of headers passes, one more does not; so for their size and the target's.
#[test]
fn heads_are_bounded() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "server: { max_headers: 5, max_header_size: 8KiB }");
    let with = |count: usize| {
        let lines: String = (1..count).map(|n| format!("X-{n}: y\r\n")).collect();
        gateway.raw(format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).status
    };
    assert_eq!(with(5), 200);
    assert!(matches!(with(6), 431 | 400));
    let sized =
        |length: usize| response_statuses(&gateway, &get("/").header("X", "y".repeat(length)).bytes());
    assert_eq!(sized(7000), [200]);
    assert!(matches!(sized(20_000)[..], [] | [400 | 431]));
    let target =
        |length: usize| response_statuses(&gateway, &get(&format!("/{}", "t".repeat(length))).bytes());
    assert_eq!(target(7000), [200]);
    assert!(matches!(target(80_000)[..], [] | [400 | 414 | 431]));
    gateway.get("/").expect(200);
}

/// Chunk extensions cannot send data without end.
#[test]
fn chunk_extensions_are_bounded() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    for length in [20_000, 64_000] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let bytes = format!("{head}3;{}\r\nabc\r\n0\r\n\r\n", "e".repeat(length));
        let statuses = response_statuses(&gateway, bytes.as_bytes());
        assert!(matches!(statuses[..], [] | [400]), "{length}: {statuses:?}");
    }
}

/// A chunked upload is one request with one body; its trailers are dropped, never merged into the headers.
#[test]
fn chunked_uploads_arrive_whole() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n";
    client.send_pieces(
        &[head, b"3\r", b"\nab", b"c\r\n4;x=y\r\ndefg\r\n0\r\nX-Late: z\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"],
        ms(20),
    );
    client.response().expect(200);
    let seen = &upstream.requests()[0];
    assert_eq!(seen.body, b"abcdefg");
    assert!(!seen.headers.has("x-late"));
    assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    client.ask(&get("/next")).expect(200);
}

/// Pipelined requests are answered in order, each from its own upstream response.
#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream =
        Upstream::new(|seen| Reply::text(&seen.target).after(ms(if seen.target == "/1" { 60 } else { 0 })));
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send([get("/1").bytes(), post("/2", b"body").bytes(), get("/3").bytes()].concat());
    let bodies: Vec<_> = (0..3).map(|_| client.response().expect(200).text()).collect();
    assert_eq!(bodies, ["/1", "/2", "/3"]);
}
