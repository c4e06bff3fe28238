//! Requests that limits of bodies refuse, and those that they may not refuse: of clients and methods that they leave
//! out, in dry runs, and in charsets that hold ASCII.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use crate::support::*;

/// A location whose limit, with these fields, reads a key from bodies of at most 1 KiB.
fn limited(upstream: &Upstream, top: &str, fields: &str) -> Gateway {
    Gateway::start(&format!(
        "{top}\nlimits: {{ l: {{ key: json:/id, missing_key: reject, rate: 90/h, {fields} }} }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: l, body_peek: 1KiB }}]\n",
        upstream.url()
    ))
}

fn typed(body: &[u8], content_type: &str) -> Ask {
    post("/", body).header("Content-Type", content_type)
}

/// An encoded body, a long one, and one without a key.
fn unreadable() -> [Ask; 4] {
    let id = br#"{"id":1}"#;
    [
        post("/", id).header("Content-Encoding", "gzip"),
        typed(id, "application/json; charset=utf-7"),
        post("/", &[b'x'; 5_000]),
        post("/", b"{}"),
    ]
}

#[test]
fn a_limit_refuses_no_body_of_a_request_that_it_leaves_out() {
    let upstream = Upstream::ok();
    let account = "account: { from: header:X-User, tier: { default: free, members: { al: gold } } }";
    for (top, fields, refused) in [
        ("", "methods: POST", [415, 415, 413, 403]),
        ("", "methods: PUT", [200; 4]),
        ("", "bypass: 127.0.0.1", [200; 4]),
        (account, "tiers: { gold: { rate: 9/h } }", [415, 415, 413, 403]),
        (account, "tiers: { gold: none }", [200; 4]),
        ("", "enforce: 0%", [200; 4]),
    ] {
        let gateway = limited(&upstream, top, fields);
        let statuses = unreadable().map(|ask| gateway.ask(&ask.header("X-User", "al")).status);
        assert_eq!(statuses, refused, "{fields}");
    }
}

/// Not even the first byte of a body is awaited that no limit reads.
#[test]
fn a_body_of_a_request_that_is_left_out_is_not_awaited() {
    let upstream = Upstream::new(|_| Reply::text("early").early());
    for fields in ["methods: PUT", "bypass: 127.0.0.1"] {
        let gateway = limited(&upstream, "", fields);
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        client.response().expect(200);
    }
}

/// What the account is read from counts for all requests.
#[test]
fn an_account_in_the_body_is_read_whatever_limits_leave_out() {
    let upstream = Upstream::ok();
    let gateway = limited(&upstream, "account: { from: json:/user }", "methods: PUT");
    assert_eq!(unreadable().map(|ask| gateway.ask(&ask).status), [415, 415, 413, 200]);
}

#[test]
fn charsets_are_read_from_their_parameter() {
    let upstream = Upstream::ok();
    let gateway = limited(&upstream, "", "");
    let id = br#"{"id":1}"#;
    for content_type in [
        "application/json; charset=ascii",
        "application/json; charset=US-ASCII",
        "application/json; charset=latin1",
        "application/json;charset=ISO-8859-1",
        "application/json; charset=cp1252; a=b",
        "application/json; charset = \"Windows-1252\"",
        "application/json; charset=\"utf8\", text/x",
        "multipart/form-data; boundary=charsetabc",
        "multipart/form-data; boundary=\"charset\"; a=b",
    ] {
        let answer = gateway.ask(&typed(id, content_type));
        assert_eq!(answer.status, 200, "{content_type}");
    }
    for content_type in [
        "application/json; charset=utf-8x",
        "application/json; charset=\"utf\\-16\"",
        "application/json; charset=ascii; charset=utf-16",
        "application/json; charset*0=utf-; charset*1=7",
        "application/json; charset='utf-16'",
        "application/json; xcharset=utf-16",
        "application/json; charset=",
    ] {
        let answer = gateway.ask(&typed(id, content_type));
        assert_eq!(answer.status, 415, "{content_type}");
    }
}

/// Beyond ASCII these are other characters than in UTF-8, and JSON is UTF-8.
#[test]
fn a_body_beyond_ascii_is_json_in_utf_8_alone() {
    let upstream = Upstream::ok();
    let accent = "{\"id\":\"\u{e9}\"}";
    for (content_type, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("application/json; charset=iso-8859-1", 403),
        ("application/json; charset=ascii", 403),
    ] {
        let answer = limited(&upstream, "", "").ask(&typed(accent.as_bytes(), content_type));
        assert_eq!(answer.status, status, "{content_type}");
    }
    let cost = limited(&upstream, "", "cost: json:/n");
    let cost_of =
        |content_type| cost.ask(&typed("{\"id\":2,\"n\":2,\"x\":\"\u{e9}\"}".as_bytes(), content_type));
    assert_eq!([cost_of("a/b").status, cost_of("a/b; charset=latin1").status], [200, 403]);
}

/// A dry run refuses no request for want of room, and does not keep it waiting.
#[test]
fn a_dry_run_waits_for_no_room() {
    let upstream = Upstream::ok();
    for (more, dry_run, status) in [
        (", body_memory: 256KiB", true, 200),
        (", body_memory: 256KiB", false, 503),
        (", max_waiting: 1", true, 200),
        (", max_waiting: 1", false, 503),
    ] {
        let gateway = Gateway::start(&format!(
            "server: {{ timeouts: {{ body: 1s }}{more} }}\n\
             limits: {{ l: {{ key: json:/id, rate: 90/h, dry_run: {dry_run} }} }}\n\
             locations: [{{ path: /, upstream: \"{}\", limits: l }}]\n",
            upstream.url()
        ));
        let body = format!(r#"{{"id":"{}"}}"#, "x".repeat(60_000));
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut slow = gateway.client();
        slow.send_pieces(&[head.as_bytes(), &body.as_bytes()[..50_000]], ms(1));
        eventually("its request", || gateway.metric("sluicegate_requests_in_flight", &[]) == 1.0);
        std::thread::sleep(ms(200));
        let asked = format!(r#"{{"id":"{}"}}"#, "y".repeat(60_000));
        let is_answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for byte in &body.as_bytes()[50_000..] {
                    slow.send([*byte]);
                    std::thread::sleep(ms(50));
                    if is_answered.load(Relaxed) {
                        break;
                    }
                }
            });
            let start = Instant::now();
            let answer = gateway.ask(&post("/", asked.as_bytes()));
            is_answered.store(true, Relaxed);
            assert_eq!(answer.status, status, "{more} {dry_run}");
            assert!(!dry_run || start.elapsed() < ms(900), "it waited for {:?}", start.elapsed());
        });
        if dry_run {
            assert_eq!(upstream.requests().last().expect("a request").body, asked.as_bytes());
        }
    }
}
