//! Idle connections: they release the memory of serving, and lose no data by it.

use std::thread;

use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: ok } }\n";
/// Longer than the time until a connection is idle.
const REST: std::time::Duration = ms(500);

#[test]
fn an_idle_connection_continues_as_before() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    for round in 0..3 {
        client.ask(&get(&format!("/{round}"))).expect(200);
        client.ask(&post("/", b"body")).expect(200);
        thread::sleep(REST);
    }
    // The beginning of a head wakes the connection; the end comes later.
    client.send_pieces(&[b"GET / HT", b"TP/1.1\r\nHost: a\r\n", b"\r\n"], ms(300));
    client.response().expect(200);
    assert_eq!(upstream.count(), 7);
}

/// A pipelined beginning that was read with the request before it is kept while the connection is idle, and
/// has its deadline.
#[test]
fn the_beginning_of_a_head_survives_idling() {
    let gateway = Gateway::start(&format!("server: {{ timeouts: {{ header: 1s }} }}\n{HELLO}"));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHo");
    client.response().expect(200);
    thread::sleep(REST);
    client.send(b"st: a\r\n\r\n");
    client.response().expect(200);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHo");
    client.response().expect(200);
    let (answered, end) = client.rest(ms(3000));
    assert_ne!(end, End::Deadline, "half a head stays open");
    assert!(answered.is_empty() || answered.starts_with(b"HTTP/1.1 408"), "{answered:?}");
}

/// HTTP/2's preface decides on a new connection only.
#[test]
fn an_idle_connection_does_not_change_its_protocol() {
    let gateway = Gateway::start(HELLO);
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    thread::sleep(REST);
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00");
    let (answered, end) = client.rest(ms(3000));
    assert_ne!(end, End::Deadline, "{answered:?}");
    assert!(answered.is_empty() || answered.starts_with(b"HTTP/1.1 4"), "{answered:?}");
}

/// A request on its way while the gateway shuts down is answered, as the connection's last.
#[test]
fn a_request_that_meets_the_shutdown_is_answered() {
    let mut gateway = Gateway::start(HELLO);
    let mut quick = gateway.client();
    let mut slow = gateway.client();
    quick.ask(&get("/")).expect(200);
    slow.ask(&get("/")).expect(200);
    gateway.term();
    thread::sleep(ms(100));
    let last = quick.ask(&get("/")).expect(200);
    assert_eq!(last.header("connection").as_deref(), Some("close"));
    quick.assert_closed();
    slow.assert_closed();
    assert_eq!(gateway.wait_exit_within(ms(3000)), 0);
}

/// A response may precede the end of its request: the client's later bytes are still that body, and no
/// request.
#[test]
fn a_connection_is_not_idle_within_a_body() {
    let upstream = Upstream::new(|_| Reply::text("early").early());
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    let inner = get("/within").bytes();
    client.send(post("/", &inner).head());
    assert_eq!(client.response().expect(200).text(), "early");
    thread::sleep(REST);
    client.send(&inner);
    eventually("the body", || upstream.count() > 1 || upstream.requests()[0].body == inner);
    assert_eq!(upstream.targets(), ["/"]);
    client.ask(&get("/next")).expect(200);
    assert_eq!(upstream.targets(), ["/", "/next"]);
}
