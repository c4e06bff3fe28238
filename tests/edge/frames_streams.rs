//! Stream states, flow control, and malformed requests (RFC 9113, sections 5, 6.9, 8).

use super::frames::{Answer, Case, Stream, check, gateway, open_request, whole_request};
use crate::support::h2_raw::*;
use crate::support::*;

/// Section 5.1: frames that may not follow on a stream that its client has ended, or that is closed.
#[test]
fn ended_streams_take_nothing() {
    let ended = || Stream(&[STREAM_CLOSED, PROTOCOL]);
    let more = |kind: u8, flags: u8| frame(kind, flags, 1, &block(&[("x", "y")]));
    // Delayed, so that the stream is still open on the gateway's side.
    let upstream = Upstream::new(|_| Reply::text("late").after(ms(300)));
    let slow = forwarding(&upstream, "");
    check(
        &slow,
        vec![
            ("DATA when half closed", vec![whole_request(1), frame(DATA, 1, 1, b"x")], ended()),
            ("HEADERS when half closed", vec![whole_request(1), more(HEADERS, 5)], ended()),
            ("CONTINUATION when half closed", vec![whole_request(1), more(CONTINUATION, 4)], ended()),
        ],
    );
    let reset = || frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    check(
        &gateway(),
        vec![
            ("DATA after a reset", vec![open_request(), reset(), frame(DATA, 1, 1, b"x")], ended()),
            ("HEADERS after a reset", vec![open_request(), reset(), more(HEADERS, 5)], ended()),
            ("CONTINUATION after a reset", vec![open_request(), reset(), more(CONTINUATION, 4)], ended()),
        ],
    );
    for (name, late) in [("DATA", frame(DATA, 1, 1, b"x")), ("HEADERS", whole_request(1))] {
        let gateway = gateway();
        let mut h2 = H2::open(gateway.addr());
        assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
        let _ = h2.try_write(&late);
        let outcome = h2.outcome_within(1, ms(3000));
        assert!(
            matches!(
                outcome,
                Outcome::Closed | Outcome::Reset(STREAM_CLOSED) | Outcome::GoAway(STREAM_CLOSED | PROTOCOL)
            ),
            "{name} on a closed stream: {outcome:?}"
        );
    }
}

/// Section 5.1.1: stream ids only grow.
#[test]
fn numbers_of_streams_only_grow() {
    let gateway = gateway();
    let mut h2 = H2::open(gateway.addr());
    assert!(matches!(h2.get(5, "/"), Outcome::Answered(200, _)));
    h2.write(&whole_request(3));
    let outcome = h2.connection_outcome();
    assert!(matches!(outcome, Outcome::Closed | Outcome::GoAway(PROTOCOL | STREAM_CLOSED)), "{outcome:?}");
}

/// Section 6.9: never a byte beyond the window, however the window changes.
#[test]
fn windows_are_kept() {
    let upstream = Upstream::new(|_| Reply::text(&"x".repeat(100)));
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open_with(gateway.addr(), &[(4, 1)]);
    h2.reads = false;
    h2.ask(1, &request("GET", "/", &[]));
    let first = h2.wait(|frame| frame.kind == DATA).expect("a byte");
    assert_eq!((first.payload.len(), first.flags), (1, 0));
    assert!(h2.wait_within(ms(200), |frame| frame.kind == DATA).is_err(), "more than there is room for");
    // Three more by a larger window, which applies to open streams as well.
    h2.send(SETTINGS, 0, 0, &settings(&[(4, 4)]));
    assert_eq!(h2.wait(|frame| frame.kind == DATA).expect("more").payload.len(), 3);
    // A window may become negative: six of the next ten bytes pay for it.
    h2.send(SETTINGS, 0, 0, &settings(&[(4, 0)]));
    h2.send(WINDOW_UPDATE, 0, 1, &10u32.to_be_bytes());
    assert_eq!(h2.wait(|frame| frame.kind == DATA).expect("more").payload.len(), 6);
    h2.send(WINDOW_UPDATE, 0, 1, &1000u32.to_be_bytes());
    let mut left = 90;
    while left > 0 {
        left -= h2.wait(|frame| frame.kind == DATA).expect("the rest").payload.len();
    }
}

/// A client that sends beyond its window is stopped.
#[test]
fn a_client_that_ignores_windows_is_stopped() {
    let gateway = forwarding(&Upstream::new(|_| Reply::silence().early()), "");
    let mut h2 = H2::open(gateway.addr());
    h2.write(&open_request());
    let piece = frame(DATA, 0, 1, &[0; 16_384]);
    for _ in 0..2000 {
        if h2.try_write(&piece).is_err() {
            break;
        }
    }
    let outcome = h2.outcome(1);
    assert!(
        matches!(outcome, Outcome::Closed | Outcome::Reset(FLOW_CONTROL) | Outcome::GoAway(FLOW_CONTROL)),
        "{outcome:?}"
    );
}

fn malformed<'a>(name: &'a str, fields: &[(&str, &str)]) -> Case<'a> {
    (name, vec![frame(HEADERS, 5, 1, &block(fields))], Stream(&[PROTOCOL]))
}

fn answered<'a>(name: &'a str, fields: &[(&str, &str)], status: u16) -> Case<'a> {
    (name, vec![frame(HEADERS, 5, 1, &block(fields))], Answer(status))
}

/// Sections 8.1 to 8.3: malformed requests.
#[test]
fn malformed_requests_are_refused() {
    let get = |more: &[(&'static str, &'static str)]| request("GET", "/", more);
    let (method, scheme, path) = ((":method", "GET"), (":scheme", "http"), (":path", "/"));
    let authority = (":authority", "a.test");
    check(
        &gateway(),
        vec![
            malformed("upper case", &get(&[("X-Test", "y")])),
            malformed("an unknown pseudo field", &get(&[(":test", "y")])),
            malformed("the pseudo field of answers", &get(&[(":status", "200")])),
            malformed("a pseudo field after others", &[method, scheme, ("x", "y"), path, authority]),
            malformed("connection", &get(&[("connection", "keep-alive")])),
            malformed("keep-alive", &get(&[("keep-alive", "5")])),
            malformed("proxy-connection", &get(&[("proxy-connection", "keep-alive")])),
            malformed("transfer-encoding", &get(&[("transfer-encoding", "chunked")])),
            malformed("upgrade", &get(&[("upgrade", "websocket")])),
            malformed("te", &get(&[("te", "trailers, deflate;q=0.5")])),
            malformed("no method", &[scheme, path, authority]),
            malformed("no scheme", &[method, path, authority]),
            malformed("an empty path", &[method, scheme, (":path", ""), authority]),
            malformed("two methods", &[method, method, scheme, path, authority]),
            malformed("two schemes", &[method, scheme, scheme, path, authority]),
            malformed("two paths", &[method, scheme, path, path, authority]),
            malformed("two authorities", &[method, scheme, path, authority, authority]),
            malformed("a line break in a value", &get(&[("x", "a\r\nb: c")])),
            malformed("NUL in a value", &get(&[("x", "a\0b")])),
            malformed("a blank in a name", &get(&[("x y", "z")])),
            malformed("an empty name", &get(&[("", "z")])),
            malformed("scheme in CONNECT", &[(":method", "CONNECT"), scheme, authority]),
            malformed("protocol without CONNECT", &get(&[(":protocol", "websocket")])),
        ],
    );
}

/// Well-formed requests that cannot be served.
#[test]
fn requests_that_contradict_themselves_are_400() {
    let (method, scheme, path) = ((":method", "GET"), (":scheme", "http"), (":path", "/"));
    let authority = (":authority", "a.test");
    let with = |more: &[(&'static str, &'static str)]| [&[method, scheme, path][..], more].concat();
    check(
        &gateway(),
        vec![
            answered("the authority alone", &with(&[authority]), 200),
            answered("host alone", &with(&[("host", "a.test")]), 200),
            answered("both, and the same", &with(&[authority, ("host", "A.test:80")]), 200),
            answered("both, and different", &with(&[authority, ("host", "b.test")]), 400),
            answered("two hosts", &with(&[authority, ("host", "a.test"), ("host", "a.test")]), 400),
            answered("none", &with(&[]), 400),
            answered("a user name", &with(&[(":authority", "me@a.test")]), 400),
            answered("a bad host", &with(&[("host", "a test")]), 400),
            answered("no path", &[method, scheme, ("host", "a.test")], 400),
            answered("a path that is none", &[method, scheme, (":path", "*"), authority], 400),
            answered("OPTIONS *", &[(":method", "OPTIONS"), scheme, (":path", "*"), authority], 200),
            answered("above the root", &[method, scheme, (":path", "/../x"), authority], 400),
            answered("CONNECT", &[(":method", "CONNECT"), (":authority", "a.test:443")], 405),
            answered("TRACE", &[(":method", "TRACE"), scheme, path, authority], 405),
            answered("te: trailers", &with(&[authority, ("te", "trailers")]), 200),
            answered(
                "an extended CONNECT for something unknown",
                &[(":method", "CONNECT"), (":protocol", "connect-udp"), scheme, path, authority],
                405,
            ),
        ],
    );
    let gateway = gateway();
    for fields in [&[(":method", "CONNECT")][..], &with(&[(":authority", "")])] {
        let mut h2 = H2::open(gateway.addr());
        h2.ask(1, fields);
        let outcome = h2.outcome(1);
        let refused =
            matches!(outcome, Outcome::Answered(400 | 405, _) | Outcome::Reset(PROTOCOL) | Outcome::Closed);
        assert!(refused, "{fields:?}: {outcome:?}");
    }
}

/// Section 8.1.1: a body has the length that its head announces.
#[test]
fn bodies_of_another_length_are_refused() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let headers = |length: &str| {
        frame(HEADERS, END_HEADERS, 1, &block(&request("POST", "/", &[("content-length", length)])))
    };
    let trailers = |fields: &[(&str, &str)], flags: u8| frame(HEADERS, flags, 1, &block(fields));
    let refused = || Stream(&[PROTOCOL]);
    check(
        &gateway,
        vec![
            ("as long as it says", vec![headers("3"), frame(DATA, 1, 1, b"abc")], Answer(200)),
            ("too short", vec![headers("3"), frame(DATA, 1, 1, b"ab")], refused()),
            ("too long", vec![headers("3"), frame(DATA, 1, 1, b"abcd")], refused()),
            (
                "too long in two",
                vec![headers("3"), frame(DATA, 0, 1, b"ab"), frame(DATA, 1, 1, b"cd")],
                refused(),
            ),
            (
                "none",
                vec![frame(HEADERS, 5, 1, &block(&request("POST", "/", &[("content-length", "3")])))],
                refused(),
            ),
            ("no number", vec![headers("+3"), frame(DATA, 1, 1, b"abc")], refused()),
            (
                "trailers",
                vec![headers("3"), frame(DATA, 0, 1, b"abc"), trailers(&[("x", "y")], 5)],
                Answer(200),
            ),
            (
                "trailers without an end",
                vec![headers("3"), frame(DATA, 0, 1, b"abc"), trailers(&[("x", "y")], 4)],
                refused(),
            ),
        ],
    );
    // The upstream never saw a body of another length; missing trailers do not show in its bytes.
    let requests = upstream.requests();
    let whole = requests.iter().filter(|seen| seen.cut.is_none() && seen.method == "POST");
    let whole: Vec<&[u8]> = whole.map(|seen| seen.body.as_slice()).collect();
    assert!(whole == [b"abc"; 2] || whole == [b"abc"; 3], "{whole:?}");
}
