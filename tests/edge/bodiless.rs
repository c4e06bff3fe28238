//! Answers that end with their heads over HTTP/2: to HEAD, and those with a status that has no body.

use std::process::Command;

use super::caller::{Got, ask, call, request};
use crate::support::h2_raw::{self, *};
use crate::support::*;

/// Methods as long as HEAD have the same echo, and the same problem in every other body.
const LIKE_HEAD: &str = "POST";

/// A gateway with one location for each kind of answer, and its rate-limit service.
fn kinds() -> (Gateway, Upstream, Refusing) {
    let upstream = Upstream::new(|seen| match seen.method.as_str() {
        "HEAD" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        _ => Reply::text(&"x".repeat(1234)),
    });
    let refusing = Refusing::new();
    let gateway = Gateway::start(&format!(
        "service: {{ listen: 127.0.0.1:0 }}\n\
         limits:\n  \
           once: {{ key: global, rate: 1/h, burst: 1 }}\n  \
           soft: {{ key: global, rate: 1/h, burst: 1, on_reject: {{ degrade: {{ body: sold out }} }} }}\n\
         locations:\n\
         \x20 - {{ path: /respond, respond: {{ body: hello }} }}\n\
         \x20 - {{ path: /empty, respond: {{ status: 200 }} }}\n\
         \x20 - {{ path: /204, respond: {{ status: 204, body: hello }} }}\n\
         \x20 - {{ path: /304, respond: {{ status: 304, body: hello }} }}\n\
         \x20 - {{ path: /redirect, redirect: {{ to: \"https://a.test/\" }} }}\n\
         \x20 - {{ path: /limited, respond: {{ body: hello }}, limits: once }}\n\
         \x20 - {{ path: /degraded, respond: {{ body: hello }}, limits: soft }}\n\
         \x20 - {{ path: /put, methods: [PUT], respond: {{ body: hello }} }}\n\
         \x20 - {{ path: /broken, upstream: \"{}\" }}\n\
         \x20 - {{ path: /demo, upstream: demo }}\n\
         \x20 - {{ path: /upstream, upstream: \"{}\" }}\n",
        refusing.url(),
        upstream.url()
    ));
    gateway.get("/limited").expect(200);
    gateway.get("/degraded").expect(200);
    (gateway, upstream, refusing)
}

/// HEAD gets the status and the length of another method's answer, and no body; the log counts no bytes.
#[test]
fn answers_to_head_have_the_length_alone() {
    let (gateway, _upstream, _refusing) = kinds();
    let addrs = gateway.addrs();
    let paths = [
        ("/respond", 200, Some(5)),
        ("/empty", 200, None),
        ("/204", 204, None),
        ("/304", 304, None),
        ("/redirect", 308, None),
        ("/limited", 429, Some(200)),
        ("/degraded", 200, Some(8)),
        ("/put", 405, Some(100)),
        ("/broken", 502, Some(100)),
        ("/demo", 200, Some(200)),
        ("/upstream", 200, Some(1234)),
        ("/none", 404, Some(100)),
        ("/%zz", 400, Some(100)),
        ("/check", 405, Some(50)),
        ("/auth", 400, Some(100)),
    ];
    for (path, status, least) in paths {
        let service = matches!(path, "/check" | "/auth");
        let addr = addrs[usize::from(service)];
        let like = if service { "PUT" } else { LIKE_HEAD };
        let length = |got: &Got| got.header("content-length").map(|text| text.parse::<usize>().unwrap());
        call(addr, async |sender| {
            let other = ask(&sender, request(like, path), b"").await.expect("an answer");
            // h2 takes no DATA with bytes after a HEAD.
            let head = ask(&sender, request("HEAD", path), b"").await.expect("an answer");
            assert_eq!((head.status.as_u16(), other.status.as_u16()), (status, status), "{path}");
            assert_eq!(head.body, b"", "{path}");
            assert_eq!(length(&head), length(&other), "{path}");
            assert_eq!(length(&head).is_some(), least.is_some(), "{path}: {head:?}");
            assert!(length(&head) >= least, "{path}: {head:?}");
            assert_eq!(other.body.len(), length(&other).unwrap_or(0), "{path}");
            // A refusal of gRPC is in the head, which has no length.
            let grpc = request("HEAD", path).header("content-type", "application/grpc");
            let grpc = ask(&sender, grpc, b"").await.expect("an answer");
            assert_eq!(grpc.body, b"", "{path}");
        });
        ends_with_its_head(addr, "HEAD", path);
    }
    let lines = gateway.wait_log(2 + 4 * paths.len());
    let heads = lines.iter().filter(|line| line["method"] == "HEAD");
    assert!(heads.clone().all(|line| line["bytes"] == 0), "{lines:#?}");
    assert_eq!(heads.count(), 3 * paths.len());
}

/// Statuses without a body end with their heads, whatever the file gives them.
#[test]
fn statuses_without_bodies_have_none() {
    let (gateway, _upstream, _refusing) = kinds();
    for path in ["/204", "/304"] {
        ends_with_its_head(gateway.addr(), "GET", path);
        call(gateway.addr(), async |sender| {
            let got = ask(&sender, request("GET", path), b"").await.expect("an answer");
            assert_eq!((got.header("content-length"), got.body.len()), (None, 0), "{path}");
        });
    }
    let lines = gateway.wait_log(6);
    let bodiless = lines.iter().filter(|line| line["status"] != 200);
    assert_eq!(bodiless.map(|line| line["bytes"].as_u64()).collect::<Vec<_>>(), [Some(0); 4]);
}

/// HEADERS carry END_STREAM, and no DATA follows.
#[track_caller]
fn ends_with_its_head(addr: std::net::SocketAddr, method: &str, path: &str) {
    let mut h2 = H2::open(addr);
    h2.ask(1, &h2_raw::request(method, path, &[]));
    let head = h2.wait(|frame| frame.kind == HEADERS).expect("an answer");
    assert_eq!((head.stream, head.flags & END_STREAM), (1, END_STREAM), "{method} {path}");
    // The answer to a PING shows that nothing was sent before it.
    assert!(h2.is_alive());
    assert!(h2.wait_within(ms(0), |frame| matches!(frame.kind, DATA | RST_STREAM)).is_err());
}

/// A HEAD costs a limit that charges by bytes the same over both versions.
#[test]
fn head_is_charged_as_over_http_1() {
    let gateway = Gateway::start(
        "limits: { bytes: { key: \"header:x-key\", rate: 1000/h, charge: { units: bytes, reserve: 100 } } }\n\
         locations: [{ path: /, respond: { body: 0123456789 }, limits: bytes }]\n",
    );
    gateway.ask(&Ask::new("HEAD", "/").header("X-Key", "old"));
    call(gateway.addr(), async |sender| {
        let head = request("HEAD", "/").header("x-key", "new");
        assert_eq!(ask(&sender, head, b"").await.expect("an answer").status, 200);
    });
    gateway.wait_log(2);
    let left = ["old", "new"].map(|key| {
        let field = gateway.ask(&get("/").header("X-Key", key)).header("ratelimit");
        field.and_then(|field| field.split(";t=").next().map(str::to_owned))
    });
    assert!(left[0].is_some() && left[0] == left[1], "{left:?}");
}

/// curl reports DATA after a HEAD as an error of the protocol.
#[test]
fn curl_takes_the_answers_to_head() {
    let (gateway, _upstream, _refusing) = kinds();
    for (path, status) in [("respond", 200), ("204", 204), ("limited", 429), ("broken", 502), ("none", 404)] {
        let mut curl = Command::new("curl");
        curl.args(["-sSI", "--http2-prior-knowledge", "--noproxy", "*", "--max-time", "10"]);
        let done = curl.arg(format!("http://{}/{path}", gateway.addr())).output().expect("curl runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{path}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(said.starts_with(&format!("HTTP/2 {status}")), "{path}: {said}");
    }
}
