//! Responses of upstreams: broken ones become 502, cut ones are cut visibly, none leaks into the next.

use std::time::Instant;

use crate::support::*;

/// Forwards to an upstream that answers `reply` to the first request and `ok` to every later one.
fn gateway_with_reply(reply: Reply) -> (Upstream, Gateway) {
    let upstream = Upstream::in_turn([reply]);
    let gateway = forwarding(&upstream, "");
    (upstream, gateway)
}

/// A response with an ambiguous length is invalid.
#[test]
fn ambiguous_responses_become_502() {
    for framing in [
        "Content-Length: x",
        "Content-Length: +2",
        "Content-Length: -1",
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2\r\nContent-Length: 2",
        "Content-Length: 2, 2",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked",
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 2",
    ] {
        let reply = Reply::raw(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n2\r\nab\r\n0\r\n\r\n")).close();
        let (_upstream, gateway) = gateway_with_reply(reply);
        assert_eq!(gateway.get("/").status, 502, "{framing}");
        gateway.get("/").expect(200);
    }
}

/// Data that is not HTTP is a 502 as well, and so is a connection without any data.
#[test]
fn nonsense_becomes_502() {
    for reply in [
        Reply::raw("SSH-2.0-OpenSSH_9.2\r\n\r\n").close(),
        Reply::raw("just text").close(),
        Reply::raw("HTTP/1.1 OK\r\n\r\n").close(),
        Reply::raw("HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n").close(),
        Reply::raw("HTTP/1.1 200 OK\r\nX: y\r\n").close(),
        Reply::default().close(),
        Reply::default().reset(),
    ] {
        let upstream = Upstream::new(move |_| reply.clone());
        let gateway = forwarding(&upstream, "");
        gateway.ask(&post("/", b"body")).expect(502);
        assert_eq!(upstream.count(), 1, "a POST was sent again");
    }
}

/// A switch of protocols that the client did not ask for is 502.
#[test]
fn an_unasked_101_becomes_502() {
    for head in ["Connection: upgrade\r\nUpgrade: websocket\r\n", "Upgrade: websocket\r\n", ""] {
        let (_upstream, gateway) =
            gateway_with_reply(Reply::raw(format!("HTTP/1.1 101 Switching Protocols\r\n{head}\r\n")).close());
        let mut client = gateway.client();
        let response = client.ask(&get("/"));
        assert_eq!(response.status, 502, "{head:?}");
    }
}

/// An upgrade request that is answered 200 is an ordinary exchange, and h2c is never requested.
#[test]
fn an_upgrade_answered_200_opens_no_tunnel() {
    let upstream = Upstream::new(|_| Reply::with(200, &[("Upgrade", "websocket")], "plain"));
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    let ask = get("/").header("Connection", "Upgrade").header("Upgrade", "websocket");
    assert_eq!(client.ask(&ask).expect(200).text(), "plain");
    assert_eq!(client.ask(&get("/next")).expect(200).text(), "plain");
    let h2c = get("/h2c")
        .header("Connection", "Upgrade, HTTP2-Settings")
        .header("Upgrade", "h2c")
        .header("HTTP2-Settings", "AAMAAABkAAQAAP__");
    gateway.ask(&h2c).expect(200);
    let seen = upstream.requests().pop().expect("a request");
    assert!(!seen.headers.has("upgrade") && !seen.headers.has("http2-settings"), "{:?}", seen.headers);
}

/// Bytes beyond the declared length reach no client, and their connection is not used again.
#[test]
fn bytes_beyond_the_length_reach_no_client() {
    for length in [8, 0] {
        let body = &"12345678"[..length];
        let extra = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
        let (upstream, gateway) = gateway_with_reply(Reply::raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}{extra}"
        )));
        let mut client = gateway.client();
        assert_eq!(client.ask(&get("/1")).expect(200).text(), body);
        assert_eq!(client.ask(&get("/2")).expect(200).text(), "ok");
        let seen = upstream.requests();
        assert_ne!(seen[0].connection, seen[1].connection, "a spoilt connection was used again");
    }
}

/// The response to HEAD has a length and no body.
#[test]
fn head_has_no_body() {
    let (_upstream, gateway) =
        gateway_with_reply(Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"));
    let mut client = gateway.client();
    let response = client.ask(&Ask::new("HEAD", "/"));
    assert_eq!(response.header("content-length").as_deref(), Some("1000"));
    assert_eq!(client.ask(&get("/next")).expect(200).text(), "ok");
}

/// A truncated response ends visibly: never with a last chunk, never with the full length.
#[test]
fn truncated_responses_end_visibly() {
    for reply in [
        Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n1234567890").close(),
        Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n1234567890\r\n").close(),
        Reply::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n1234567890").reset(),
    ] {
        let (_upstream, gateway) = gateway_with_reply(reply);
        let response = gateway.get("/");
        // A cut before the first byte was sent may also become a 502.
        assert!(response.status == 502 || response.cut.is_some(), "it looks whole: {response:?}");
        gateway.get("/").expect(200);
    }
}

/// A response that ends with its connection is passed on whole.
#[test]
fn responses_until_close_are_passed_on() {
    let (_upstream, gateway) = gateway_with_reply(Reply::raw("HTTP/1.1 200 OK\r\n\r\nuntil the end").close());
    assert_eq!(gateway.get("/").expect(200).text(), "until the end");
}

/// A response ends at its length, although the upstream keeps the connection open.
#[test]
fn a_response_ends_at_its_length() {
    let (_upstream, gateway) = gateway_with_reply(Reply::text("1234").until(&Gate::default()));
    let noise = Noise::listen();
    let start = Instant::now();
    assert_eq!(gateway.get("/").expect(200).text(), "1234");
    assert!(start.elapsed() < ms(100) + noise.late(), "took {:?}", start.elapsed());
}

/// Hop-by-hop fields stay on their hop, in both directions; so do fields that Connection names.
#[test]
fn hop_by_hop_headers_stay_on_their_hop() {
    let upstream = Upstream::new(|_| {
        Reply::with(
            200,
            &[
                ("Connection", "x-hop"),
                ("X-Hop", "1"),
                ("X-End", "2"),
                ("Keep-Alive", "timeout=5"),
                ("Proxy-Authenticate", "Basic"),
                ("Proxy-Connection", "keep-alive"),
                ("Upgrade", "h2c"),
            ],
            "ok",
        )
    });
    let gateway = forwarding(&upstream, "");
    let ask = get("/")
        .header("Connection", "x-nominated, keep-alive")
        .header("X-Nominated", 1)
        .header("X-End", 2)
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Connection", "keep-alive")
        .header("Proxy-Authorization", "Basic eA==")
        .header("TE", "gzip")
        .header("Trailer", "x-late")
        .header("Upgrade", "foo/2");
    let response = gateway.ask(&ask).expect(200);
    let seen = &upstream.requests()[0];
    for name in
        ["x-nominated", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade"]
    {
        assert!(!seen.headers.has(name), "{name} went upstream");
    }
    for name in ["x-hop", "keep-alive", "proxy-authenticate", "proxy-connection", "upgrade"] {
        assert!(!response.headers.has(name), "{name} came back");
    }
    assert_eq!(
        (seen.header("x-end").as_deref(), response.header("x-end").as_deref()),
        (Some("2"), Some("2"))
    );
}

/// A 426 needs the protocols to switch to, and Connection names them. HTTP/2 has no such field.
#[test]
fn upgrade_stays_on_a_426() {
    let lines =
        [("Connection", "upgrade, x-hop"), ("X-Hop", "1"), ("Upgrade", "websocket"), ("Upgrade", "foo/2")];
    let upstream = Upstream::new(move |_| Reply::with(426, &lines, "no"));
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    for ask in [get("/"), get("/").header("Connection", "upgrade").header("Upgrade", "foo/1")] {
        let rejected = client.ask(&ask).expect(426);
        assert_eq!(rejected.headers.all("upgrade"), ["websocket", "foo/2"]);
        assert_eq!(rejected.header("connection").as_deref(), Some("upgrade"));
        assert!(!rejected.headers.has("x-hop"));
    }
    let last = client.ask(&get("/").header("Connection", "close")).expect(426);
    assert_eq!(last.headers.all("upgrade"), ["websocket", "foo/2"]);
    client.assert_closed();
    let mut h2 = H2::open(gateway.addr());
    assert_eq!(h2.get(1, "/"), Outcome::Answered(426, b"no".to_vec()));
}

/// The reason of a status is the known one, or empty.
#[test]
fn a_status_without_a_known_reason_has_an_empty_one() {
    let upstream = Upstream::new(|seen| Reply::with(seen.target[1..].parse().expect("a status"), &[], "ok"));
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\" }}\n  - {{ path: /own, respond: {{ status: 460 }} }}\n",
        upstream.url()
    ));
    for (target, first) in [
        ("/999", "HTTP/1.1 999 \r\n"),
        ("/419", "HTTP/1.1 419 \r\n"),
        ("/299", "HTTP/1.1 299 \r\n"),
        ("/own", "HTTP/1.1 460 \r\n"),
        ("/201", "HTTP/1.1 201 Created\r\n"),
    ] {
        let mut client = gateway.client();
        client.send(get(target).bytes());
        let head = client.raw_head(PATIENCE).expect("an answer");
        assert!(head.starts_with(first.as_bytes()), "{target}: {}", head.escape_ascii());
    }
}

/// Responses with many fields pass, up to a bound.
#[test]
fn a_response_may_have_a_thousand_fields() {
    let upstream = Upstream::new(|seen| {
        let count: usize = seen.target[1..].parse().expect("a number");
        let fields: Vec<_> = (1..count).map(|index| format!("X-Field-{index}: {index}\r\n")).collect();
        Reply::raw(format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", fields.concat()))
    });
    let gateway = forwarding(&upstream, "");
    for count in [100, 101, 500, 1000] {
        let answer = gateway.get(&format!("/{count}")).expect(200);
        let passed = answer.headers.0.iter().filter(|(name, _)| name.starts_with("x-field-")).count();
        assert_eq!((passed, answer.text().as_str()), (count - 1, "ok"));
        assert_eq!(answer.header(&format!("x-field-{}", count - 1)), Some((count - 1).to_string()));
    }
    assert_eq!(gateway.get("/1001").status, 502);
}

/// A client cannot make the gateway drop the gateway's own fields.
#[test]
fn connection_cannot_name_our_own_fields() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let names = "x-forwarded-for, x-forwarded-proto, x-request-id, host, content-length";
    gateway.ask(&post("/", b"abc").header("Connection", names)).expect(200);
    let seen = &upstream.requests()[0];
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-request-id", "host"] {
        assert!(seen.headers.has(name), "{name} was dropped");
    }
    assert_eq!(seen.body, b"abc");
}

/// Interim responses of an upstream do not confuse the final one.
#[test]
fn interim_responses_do_not_confuse() {
    let (_upstream, gateway) = gateway_with_reply(Reply::raw(
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ));
    let mut client = gateway.client();
    assert_eq!(client.ask(&get("/")).expect(200).text(), "hi");
    assert_eq!(client.ask(&get("/")).expect(200).text(), "ok");
}

/// Statuses and responses without a body pass unchanged.
#[test]
fn bodyless_responses_pass() {
    let (_upstream, gateway) = gateway_with_reply(Reply::raw("HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"));
    let mut client = gateway.client();
    let response = client.ask(&get("/")).expect(204);
    assert_eq!(response.header("x-a").as_deref(), Some("b"));
    assert!(!response.headers.has("transfer-encoding"));
    client.ask(&get("/")).expect(200);
    let (_upstream, gateway) =
        gateway_with_reply(Reply::raw("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"));
    gateway.get("/").expect(304);
}

/// Response trailers pass if the client asked for them and the response announced them.
#[test]
fn announced_trailers_pass() {
    let reply = Reply::raw(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    let upstream = Upstream::new(move |_| reply.clone());
    let gateway = forwarding(&upstream, "");
    let response = gateway.ask(&get("/").header("TE", "trailers").header("Connection", "te")).expect(200);
    assert_eq!((response.text().as_str(), response.trailers.get("x-sum").as_deref()), ("abc", Some("7")));
    let plain = gateway.get("/").expect(200);
    assert_eq!((plain.text().as_str(), plain.headers.has("x-sum")), ("abc", false));
}

/// After its first large response a connection writes in another mode; nothing is lost at the change.
#[test]
fn large_and_small_responses_follow_each_other() {
    let large = "0123456789".repeat(50_000);
    let chunked =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7A120\r\n{large}\r\n0\r\n\r\n");
    let body = large.clone();
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/large" => Reply::text(&body),
        "/chunked" => Reply::raw(&chunked),
        _ => Reply::text("small"),
    });
    let gateway = forwarding(&upstream, "");
    let targets = ["/large", "/small", "/chunked", "/small", "/large", "/chunked"];
    let is_right = |client: &mut Client, target: &str| {
        let answer = client.response().expect(200);
        assert!(answer.text() == if target == "/small" { "small" } else { &large }, "{target}");
    };
    let mut one_by_one = gateway.client();
    let mut pipelined = gateway.client();
    let all: Vec<u8> = targets.iter().flat_map(|target| get(target).bytes()).collect();
    let (begin, end) = all.split_at(all.len() - 30);
    pipelined.send(begin);
    for target in targets {
        one_by_one.send(get(target).bytes());
        is_right(&mut one_by_one, target);
    }
    for target in &targets[..5] {
        is_right(&mut pipelined, target);
    }
    // Half a head came with the requests before it.
    pipelined.send(end);
    is_right(&mut pipelined, targets[5]);
}

/// RFC 9110, section 8.6: no Content-Length with 204, for any method; HEAD keeps that of other responses.
#[test]
fn a_response_without_content_has_no_length() {
    for (status, length) in [("204 No Content", "0"), ("200 OK", "1234"), ("304 Not Modified", "1234")] {
        let reply = Reply::raw(format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n"));
        let (_upstream, gateway) = gateway_with_reply(reply);
        let mut client = gateway.client();
        let got = client.ask(&Ask::new("HEAD", "/")).headers.get("content-length");
        assert_eq!(got.as_deref(), (status != "204 No Content").then_some(length), "{status}");
    }
}
