//! Uploads over HTTP/2 whose requests wait in a queue: the timing of their bodies does not matter.

use std::thread;
use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::*;

/// Milliseconds to wait, and the bytes sent then.
type Piece = (u64, Vec<u8>);

/// One leaves at once, then two in a second.
fn queued(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", \
           limits: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 2 }} }}\n",
        upstream.url()
    ))
}

/// The body arrives whole, and the next stream is served.
#[test]
fn a_body_may_come_at_any_time() {
    let hello = |flags| frame(DATA, flags, 3, b"hello");
    let (empty, end) = (frame(DATA, 0, 3, b""), frame(DATA, END_STREAM, 3, b""));
    let whole = hello(END_STREAM);
    let cases: [(&str, Vec<Piece>); 5] = [
        ("with the head", vec![(0, whole.clone())]),
        ("after the wait", vec![(1100, whole.clone())]),
        ("with nothing around it", vec![(0, empty.clone()), (0, hello(0)), (100, empty), (0, end.clone())]),
        ("in the midst of a frame", vec![(0, whole[..11].to_vec()), (100, whole[11..].to_vec())]),
        ("with an end of its own, late", vec![(0, hello(0)), (1100, end)]),
    ];
    for (name, pieces) in cases {
        let upstream = Upstream::ok();
        let gateway = queued(&upstream);
        let mut h2 = H2::open(gateway.addr());
        let start = Instant::now();
        assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
        h2.send(HEADERS, END_HEADERS, 3, &block(&request("POST", "/", &[])));
        for (pause, bytes) in pieces {
            thread::sleep(ms(pause));
            h2.write(&bytes);
        }
        assert!(matches!(h2.outcome(3), Outcome::Answered(200, _)), "{name}");
        assert!(start.elapsed() >= ms(480), "{name} after {:?}", start.elapsed());
        assert_eq!(upstream.requests()[1].body, b"hello", "{name}");
        assert!(matches!(h2.get(5, "/"), Outcome::Answered(200, _)), "{name}");
    }
}

/// A connection closed while its stream waits passes its place to the next one.
#[test]
fn a_closed_connection_leaves_the_queue() {
    let upstream = Upstream::ok();
    let gateway = queued(&upstream);
    gateway.get("/").expect(200);
    let mut left = H2::open(gateway.addr());
    left.send(HEADERS, END_HEADERS, 1, &block(&request("POST", "/left", &[])));
    left.send(DATA, 0, 1, b"hel");
    let mut reset = H2::open(gateway.addr());
    reset.send(HEADERS, END_HEADERS, 1, &block(&request("POST", "/reset", &[])));
    gateway.wait_queued(2);
    gateway.get("/").expect(429);
    drop(left);
    reset.send(RST_STREAM, 0, 1, &8u32.to_be_bytes());
    gateway.wait_queued(0);
    let start = Instant::now();
    gateway.get("/").expect(200);
    assert!(start.elapsed() < ms(900), "those who left kept their places");
    assert!(reset.is_alive());
    assert_eq!(upstream.targets(), ["/", "/"]);
}
