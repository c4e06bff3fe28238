//! Real clients: curl, nghttp, h2load and wrk, with TLS and without.

use std::process::{Command, Output};

use crate::support::*;

/// Runs a client; its package must be installed.
#[track_caller]
fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|error| panic!("{program} cannot be run ({error}): install it for this test"))
}

#[track_caller]
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn echoing() -> (Upstream, Gateway) {
    let upstream = Upstream::named("hello from the upstream");
    let gateway = forwarding(&upstream, "");
    (upstream, gateway)
}

/// curl over both versions: an answer, an upload with its expectation, a HEAD.
#[test]
fn curl_is_served() {
    let (upstream, gateway) = echoing();
    let url = format!("http://{}/", gateway.addr());
    let upload = gateway.dir().join("upload");
    std::fs::write(&upload, vec![b'u'; 2_000_000]).expect("a file");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let common = ["-sS", version, "--max-time", "10"];
        let said = run("curl", &[&common[..], &["-w", " %{http_version} %{http_code}", &url]].concat());
        let expected = if version == "--http1.1" { "1.1" } else { "2" };
        assert_eq!(text(&said), format!("hello from the upstream {expected} 200"), "{said:?}");
        let file = upload.to_str().expect("a plain path");
        let sent = run("curl", &[&common[..], &["-T", file, "-H", "Expect: 100-continue", &url]].concat());
        assert_eq!(text(&sent), "hello from the upstream", "{sent:?}");
        assert_eq!(upstream.requests().last().expect("an upload").body.len(), 2_000_000);
        let head = run("curl", &[&common[..], &["-I", "-w", "%{http_code}", &url]].concat());
        assert!(text(&head).ends_with("200"), "{head:?}");
    }
    assert_eq!(upstream.count(), 6);
}

/// curl requests HTTP/2 by an upgrade of HTTP/1, which is never granted: it continues with HTTP/1.
#[test]
fn curl_is_not_upgraded() {
    let (upstream, gateway) = echoing();
    let url = format!("http://{}/", gateway.addr());
    let said = run("curl", &["-sS", "--http2", "--max-time", "10", "-w", " %{http_version}", &url]);
    assert_eq!(text(&said), "hello from the upstream 1.1", "{said:?}");
    assert_eq!(upstream.requests()[0].header("upgrade"), None);
}

/// nghttp2's client: several streams of one connection, a body, and its own priority frames.
#[test]
fn nghttp_is_served() {
    let (upstream, gateway) = echoing();
    let url = format!("http://{}/", gateway.addr());
    let said = run("nghttp", &["--no-verify-peer", "-m", "10", "-s", &url]);
    let shown = text(&said);
    assert!(said.status.success() && shown.matches(" 200 ").count() == 10, "{shown}");
    let file = gateway.dir().join("upload");
    std::fs::write(&file, vec![b'u'; 500_000]).expect("a file");
    let sent = run("nghttp", &["-d", file.to_str().expect("a plain path"), &url]);
    assert_eq!(text(&sent), "hello from the upstream");
    let seen = upstream.requests();
    assert_eq!((seen.len(), seen[10].body.len()), (11, 500_000));
}

/// h2load and wrk: thousands of requests without a failure.
#[test]
fn loads_are_served_without_a_failure() {
    let (_upstream, gateway) = echoing();
    assert_loads(&format!("http://{}/", gateway.addr()), 3000);
}

/// The same over TLS, where the two agree on a version by ALPN.
#[test]
fn loads_over_tls_are_served_without_a_failure() {
    let authority = Authority::new();
    authority.issue("a", &["localhost"]);
    let upstream = Upstream::named("hello from the upstream");
    let gateway = forwarding(
        &upstream,
        &format!("listen: [{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]", authority.entry("a")),
    );
    let url = format!("https://localhost:{}/", gateway.addr().port());
    assert_loads(&url, 1000);
    let said = text(&run("nghttp", &["--no-verify-peer", "-m", "10", "-s", &url]));
    assert_eq!(said.matches(" 200 ").count(), 10, "{said}");
    assert_eq!(gateway.metric("sluicegate_tls_handshakes_total", &["failed"]), 0.0);
}

#[track_caller]
fn assert_loads(url: &str, count: usize) {
    let said = text(&run("h2load", &["-n", &count.to_string(), "-c", "5", "-m", "20", url]));
    assert!(said.contains(&format!("{count} succeeded, 0 failed, 0 errored, 0 timeout")), "{said}");
    assert!(said.contains(&format!("status codes: {count} 2xx")), "{said}");
    let said = text(&run("wrk", &["-t", "1", "-c", "10", "-d", "1s", url]));
    assert!(
        said.contains("Requests/sec") && !said.contains("Non-2xx") && !said.contains("Socket errors"),
        "{said}"
    );
}
