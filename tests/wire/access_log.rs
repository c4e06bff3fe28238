//! The access log: one JSON line per request, whatever became of it.

use serde_json::Value;

use crate::support::*;

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_else(|| panic!("no text {field} in {line}"))
}

/// A line tells who asked what, where it went and what became of it.
#[test]
fn a_line_tells_the_request() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\naccess_log: {{ headers: [user-agent] }}\n\
         limits:\n  per-account: {{ key: account, rate: 1/h }}\n\
         locations:\n  - {{ path: /api/, upstream: \"{}\", limits: per-account }}\n",
        upstream.url()
    ));
    let ask = post("/api/x?y=z", b"12345").header("X-Account", "ann").header("User-Agent", "test/1");
    gateway.ask(&ask).expect(200);
    gateway.ask(&ask).expect(429);
    let lines = gateway.wait_log(2);
    let line = &lines[0];
    assert_eq!(line["status"], 200, "{line}");
    assert_eq!(text(line, "method"), "POST");
    assert_eq!(text(line, "host"), "gateway.test");
    assert_eq!(text(line, "location"), "/api/");
    let whole = line.to_string();
    assert!(whole.contains("/api/x"), "{line}");
    assert!(whole.contains("127.0.0.1"), "{line}");
    assert!(whole.contains(&upstream.addr().to_string()), "no server in {line}");
    assert!(whole.contains("test/1"), "no user agent in {line}");
    assert!(!whole.contains("ann"), "the account in clear: {line}");
    assert_eq!(Some(text(line, "request_id").to_owned()), upstream.requests()[0].header("x-request-id"));
    assert_eq!(lines[1]["status"], 429, "{}", lines[1]);
    assert!(lines[1].to_string().contains("per-account"), "{}", lines[1]);
}

/// Exactly one line per request: served, refused, unknown, failed, cut and aborted alike.
#[test]
fn every_request_leaves_one_line() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").close(),
        "/never" => Reply::silence(),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "limits:\n  once: {{ key: global, rate: 1/h }}\n  \
           queue: {{ key: global, algorithm: leaky_bucket, rate: 1/m, queue: 9, max_wait: none }}\n\
         locations:\n  - {{ path: /, host: gateway.test, upstream: \"{url}\" }}\n  \
           - {{ path: /once, upstream: \"{url}\", limits: once }}\n  \
           - {{ path: /queue, upstream: \"{url}\", limits: queue }}\n",
        url = upstream.url()
    ));
    gateway.get("/").expect(200);
    gateway.ask(&get("/once").host("o")).expect(200);
    gateway.ask(&get("/once").host("o")).expect(429);
    gateway.ask(&get("/nowhere").host("o")).expect(404);
    gateway.get("/cut");
    let mut aborted = gateway.client();
    aborted.send(get("/never").bytes());
    upstream.wait_for(4);
    aborted.reset();
    gateway.ask(&get("/queue").host("o")).expect(200);
    gateway.wait_log(7);
    let mut waiting = gateway.client();
    waiting.send(get("/queue").host("o").bytes());
    std::thread::sleep(ms(100));
    drop(waiting);
    gateway.wait_log(8);
    // A head that cannot be parsed leaves none.
    let _ = gateway.raw("NONSENSE\r\n\r\n");
    gateway.get("/").expect(200);
    let mut statuses: Vec<_> =
        gateway.wait_log(9).iter().map(|l| l["status"].as_u64().unwrap_or(0)).collect();
    statuses.sort_unstable();
    assert!(statuses.contains(&429) && statuses.contains(&404), "{statuses:?}");
}

/// Control characters and quotes that clients send cannot forge a line.
#[test]
fn lines_cannot_be_forged() {
    let gateway = Gateway::start(
        "access_log: { headers: [user-agent] }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut client = gateway.client();
    client.send(b"GET /a%0a%22b HTTP/1.1\r\nHost: a\r\nUser-Agent: x\",\"status\":0,\"y\":\"\t\xe9\r\n\r\n");
    client.response().expect(200);
    assert_eq!(gateway.wait_log(1)[0]["status"], 200);
}

/// `output: none` is silent, `output: FILE` writes there, `hash_keys: false` shows the account.
#[test]
fn the_log_goes_where_it_is_told() {
    let silent =
        Gateway::start("access_log: { output: none }\nlocations:\n  - { path: /, respond: { body: ok } }\n");
    silent.get("/").expect(200);
    let dir = Scratch::new();
    let file = dir.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\naccess_log: {{ output: \"{}\", hash_keys: false }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ key: account, rate: 9/s }} }}\n",
        file.display()
    ));
    gateway.ask(&get("/").header("X-Account", "ann")).expect(200);
    eventually("a line in the file", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let line: Value =
        serde_json::from_str(std::fs::read_to_string(&file).expect("the file").trim()).expect("JSON");
    assert!(line.to_string().contains("ann"), "{line}");
    assert!(gateway.log_lines().is_empty() && silent.log_lines().is_empty());
}
