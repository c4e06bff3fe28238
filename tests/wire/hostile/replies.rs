//! Upstreams that send too much, or no HTTP. Clients see 502 or a clean response, never the upstream's
//! bytes.

use crate::support::*;

/// Sends one request and returns every byte of the response, which must have the form of one clean response.
#[track_caller]
fn response_to(gateway: &Gateway, what: &str) -> (u16, Vec<u8>) {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let (bytes, end) = client.rest(PATIENCE);
    assert_ne!(end, End::Deadline, "{what}: no end");
    let head_end =
        bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("{what}: no head"));
    let head = &bytes[..head_end + 2];
    for (at, &byte) in head.iter().enumerate() {
        let clean = match byte {
            b'\n' => at > 0 && head[at - 1] == b'\r',
            b'\r' => head.get(at + 1) == Some(&b'\n'),
            b'\t' => true,
            other => !other.is_ascii_control(),
        };
        assert!(clean, "{what}: {}", head.escape_ascii());
    }
    let status = std::str::from_utf8(&head[9..12]).expect("digits").parse().expect("a status");
    (status, bytes)
}

/// Peak resident memory of the gateway in bytes.
fn peak_rss(gateway: &Gateway) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("kilobytes") * 1024
}

/// An upstream that answers everything with `bytes`.
fn sending_upstream(bytes: impl AsRef<[u8]>) -> Upstream {
    let reply = Reply::raw(bytes).close();
    Upstream::new(move |_| reply.clone())
}

#[test]
fn a_thousand_interim_responses_are_survived() {
    for interim in ["HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
        let upstream =
            sending_upstream(interim.repeat(1000) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let gateway = forwarding(&upstream, "");
        let (status, bytes) = response_to(&gateway, interim);
        assert!(status == 502 || status == 200 && bytes.ends_with(b"\r\n\r\nok"), "{status}");
    }
}

#[test]
fn endless_interim_responses_end_with_the_timeout() {
    let many = Reply::raw("HTTP/1.1 102 Processing\r\n\r\n".repeat(100));
    let reply = (0..200).fold(many.clone(), |reply, _| {
        reply.pause(ms(20)).then("HTTP/1.1 102 Processing\r\n\r\n".repeat(100))
    });
    let upstream = Upstream::new(move |_| reply.clone());
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [{}], timeouts: {{ response: 500ms }} }} }}\n\
         locations: [{{ path: /, upstream: app }}]\n",
        upstream.addr()
    ));
    let (status, _) = response_to(&gateway, "endless 102");
    assert!(matches!(status, 502 | 504), "{status}");
}

#[test]
fn large_heads_are_rejected_and_cost_little() {
    let one = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 2\r\n\r\nok", "y".repeat(1 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", "X: y\r\n".repeat(10_000));
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "X-Name: some value\r\n".repeat(400_000));
    let reason = format!("HTTP/1.1 200 {}\r\nContent-Length: 2\r\n\r\nok", "k".repeat(1 << 20));
    for (what, bytes) in [("one field", one), ("many fields", many), ("no end", endless), ("reason", reason)]
    {
        let upstream = sending_upstream(bytes);
        let gateway = forwarding(&upstream, "");
        let before = peak_rss(&gateway);
        for _ in 0..10 {
            let (status, _) = response_to(&gateway, what);
            assert_eq!(status, 502, "{what}");
        }
        let grown = peak_rss(&gateway) - before;
        assert!(grown < 20 << 20, "{what}: {grown} bytes more");
    }
}

#[test]
fn line_ends_inside_values_inject_nothing() {
    for line in [
        "X: a\rSet-Cookie: evil=1",
        "X: a\r\rSet-Cookie: evil=1",
        "X: a\0Set-Cookie: evil=1",
        "X: a\x0bSet-Cookie: evil=1",
        "X: a\r\n Set-Cookie: evil=1",
        "X: a\r\n\tSet-Cookie: evil=1",
        "X\rSet-Cookie: evil=1",
        "X \r\nSet-Cookie: evil=1",
        "X : a",
        ": a",
        "X Y: a",
        "no colon",
    ] {
        let upstream = sending_upstream(format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: 2\r\n\r\nok"));
        let gateway = forwarding(&upstream, "");
        let (status, bytes) = response_to(&gateway, line);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let injected = text.lines().any(|line| line.starts_with("set-cookie"));
        let passed = status == 200 && text.ends_with("\r\n\r\nok");
        assert!((status == 502 || passed) && !injected, "{line:?}: {text}");
    }
}

#[test]
fn non_http_becomes_502() {
    for bytes in [
        "<html>hello</html>\n",
        "hello\r\n\r\n",
        "HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 a\rb\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 a\0b\r\nContent-Length: 2\r\n\r\nok",
        "\0\0\0\0\0\0\0\0\r\n\r\n",
        "ICY 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ] {
        let upstream = sending_upstream(bytes);
        let gateway = forwarding(&upstream, "");
        let (status, answer) = response_to(&gateway, bytes);
        assert_eq!(status, 502, "{bytes:?}: {}", String::from_utf8_lossy(&answer));
    }
}

/// Trailers of a response never become its headers, and framing fields are
/// dropped from them.
#[test]
fn trailers_of_responses_are_never_headers() {
    let trailers = "Content-Length: 99\r\nTransfer-Encoding: gzip\r\nSet-Cookie: evil=1\r\nX-Sum: 7\r\n";
    let upstream = sending_upstream(format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\
         Trailer: content-length, transfer-encoding, set-cookie, x-sum\r\n\r\n2\r\nok\r\n0\r\n{trailers}\r\n"
    ));
    let gateway = forwarding(&upstream, "");
    for te in ["gzip", "trailers"] {
        let response = gateway.ask(&get("/").header("TE", te)).expect(200);
        assert_eq!(response.text(), "ok");
        for name in ["content-length", "set-cookie", "x-sum"] {
            assert!(!response.headers.has(name), "{name} became a header");
        }
        for name in ["content-length", "transfer-encoding"] {
            assert!(!response.trailers.has(name), "{name} was forwarded as a trailer");
        }
        assert_eq!(response.trailers.get("x-sum").as_deref(), (te == "trailers").then_some("7"), "TE: {te}");
    }
}

/// Bytes that cannot become a head are rejected without waiting for more.
#[test]
fn non_http_is_reported_at_once() {
    for greeting in ["SSH-2.0-x\r\n", "220 mail ready\r\n", "\r\n{", "\u{16}\u{3}\u{1}"] {
        let upstream = Upstream::new(move |_| Reply::raw(greeting).pause(ms(15_000)));
        let gateway = forwarding(&upstream, "");
        gateway.get("/").expect(502);
    }
}

/// Data without a request is counted, warned of once, and no answer for anybody; nor is a connection reused after it.
#[test]
fn data_without_a_request_answers_nobody() {
    let gate = Gate::default();
    let late = Reply::text("first").until(&gate).then("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray");
    let long = Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond and more");
    let upstream = Upstream::in_turn([late, long]);
    let gateway = forwarding(&upstream, "server: { workers: 1 }");
    let server = format!("server=\"{}\"", upstream.addr());
    let counted = || gateway.metric("sluicegate_upstream_stray_data_total", &[&server]);
    assert_eq!((gateway.get("/").expect(200).text().as_str(), counted()), ("first", 0.0));
    gate.open();
    eventually("the count", || counted() == 1.0);
    for (connection, text) in [(2, "second"), (3, "ok"), (4, "ok")] {
        assert_eq!(gateway.get("/").expect(200).text(), text);
        assert_eq!(upstream.connections(), connection);
    }
    assert_eq!(counted(), 2.0);
    gateway.wait_stderr("sent data without a request");
    assert_eq!(gateway.stderr().matches("sent data without a request").count(), 1);
}
