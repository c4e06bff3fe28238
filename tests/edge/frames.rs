//! Frames and sequences that a server must refuse by RFC 9113 (sections 3 to 6), each on a connection of its own.

use crate::support::h2_raw::*;
use crate::support::*;

/// The expected outcome of a case: allowed error codes of the stream or connection, or the status of the answer.
pub enum Expect {
    /// The connection is closed with one of these codes.
    Connection(&'static [u32]),
    /// The stream is reset, or the connection closed, with one of these codes.
    Stream(&'static [u32]),
    Answer(u16),
}
pub use Expect::{Answer, Connection, Stream};

/// A name, the bytes sent after the settings, and the expected outcome of stream 1.
pub type Case<'a> = (&'a str, Vec<Vec<u8>>, Expect);

pub fn gateway() -> Gateway {
    Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n")
}

/// `GET /` on stream 1, without its end.
pub fn open_request() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &block(&request("POST", "/", &[])))
}

pub fn whole_request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&request("GET", "/", &[])))
}

#[track_caller]
pub fn check(gateway: &Gateway, cases: Vec<Case<'_>>) {
    let mut wrong = Vec::new();
    for (name, bytes, expect) in cases {
        let mut h2 = H2::open(gateway.addr());
        // The rest may meet a connection that is closed already.
        let _ = h2.try_write(&bytes.concat());
        let outcome = h2.outcome_within(1, ms(3000));
        let fits = match (&expect, &outcome) {
            (Connection(_) | Stream(_), Outcome::Closed) => true,
            // The general code replaces many others, as in every server built on h2.
            (Connection(codes) | Stream(codes), Outcome::GoAway(code)) => {
                *code == PROTOCOL || codes.contains(code)
            }
            (Stream(codes), Outcome::Reset(code)) => codes.contains(code),
            (Answer(status), Outcome::Answered(answered, _)) => status == answered,
            _ => false,
        };
        if !fits {
            wrong.push(format!("{name}: {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    gateway.get("/").expect(200);
}

/// Section 3.4: without the preface it is not HTTP/2.
#[test]
fn a_wrong_preface_is_not_served() {
    let gateway = gateway();
    for preface in
        ["PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n", "PRI / HTTP/1.1\r\n\r\n"]
    {
        let mut client = gateway.client();
        client.send(preface);
        client.half_close();
        let (said, _) = client.until_close();
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&said));
    }
}

/// Sections 4.1 to 4.3: sizes, unknown kinds, header blocks.
#[test]
fn frames_are_held_to_their_form() {
    let long = "x".repeat(16_384);
    let update = [&[0x3f, 0xe1, 0xff, 0xff, 0x7f][..], &block(&request("GET", "/", &[]))].concat();
    check(
        &gateway(),
        vec![
            ("unknown kind", vec![frame(0x16, 0xff, 0, b"12345678"), whole_request(1)], Answer(200)),
            ("undefined flags", vec![frame(PING, 0xfe, 0, b"12345678"), whole_request(1)], Answer(200)),
            ("reserved bit", vec![frame(PING, 0, 1 << 31, b"12345678"), whole_request(1)], Answer(200)),
            ("long DATA", vec![open_request(), frame(DATA, 1, 1, &[0; 16_385])], Stream(&[FRAME_SIZE])),
            (
                "long HEADERS",
                vec![frame(HEADERS, 5, 1, &block(&request("GET", "/", &[("x", &long)])))],
                Stream(&[FRAME_SIZE]),
            ),
            ("no block", vec![frame(HEADERS, 5, 1, &[0x40])], Connection(&[COMPRESSION])),
            (
                "index out of the table",
                vec![frame(HEADERS, 5, 1, &[0xff, 0xff, 1])],
                Connection(&[COMPRESSION]),
            ),
            ("index 0", vec![frame(HEADERS, 5, 1, &[0x80])], Connection(&[COMPRESSION])),
            (
                "padding of a code",
                vec![frame(HEADERS, 5, 1, &[0x82, 0, 1, b'x', 0x81, 0xff])],
                Connection(&[COMPRESSION]),
            ),
            ("a table beyond the settings", vec![frame(HEADERS, 5, 1, &update)], Connection(&[COMPRESSION])),
        ],
    );
}

/// Sections 4.3 and 6.10: no frame may interrupt a header block.
#[test]
fn a_header_block_is_in_one_piece() {
    let whole = block(&request("GET", "/", &[]));
    let (first, rest) = whole.split_at(10);
    let open_block = || frame(HEADERS, END_STREAM, 1, first);
    let refused = || Connection(&[PROTOCOL]);
    check(
        &gateway(),
        vec![
            (
                "in many parts",
                [
                    vec![open_block()],
                    rest.chunks(20).map(|part| frame(CONTINUATION, 0, 1, part)).collect(),
                    vec![frame(CONTINUATION, END_HEADERS, 1, b"")],
                ]
                .concat(),
                Answer(200),
            ),
            ("PRIORITY within", vec![open_block(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])], refused()),
            ("PING within", vec![open_block(), frame(PING, 0, 0, b"12345678")], refused()),
            ("unknown within", vec![open_block(), frame(0x16, 0, 1, b"x")], refused()),
            ("HEADERS within", vec![open_block(), whole_request(3)], refused()),
            ("DATA within", vec![open_block(), frame(DATA, 1, 1, b"x")], refused()),
            ("of another stream", vec![open_block(), frame(CONTINUATION, END_HEADERS, 3, rest)], refused()),
            ("on stream 0", vec![open_block(), frame(CONTINUATION, END_HEADERS, 0, rest)], refused()),
            ("after its end", vec![open_request(), frame(CONTINUATION, END_HEADERS, 1, rest)], refused()),
            (
                "after DATA",
                vec![open_request(), frame(DATA, 0, 1, b"x"), frame(CONTINUATION, 4, 1, rest)],
                refused(),
            ),
            ("without HEADERS", vec![frame(CONTINUATION, END_HEADERS, 1, &whole)], refused()),
        ],
    );
}

/// Sections 6.1 to 6.4: DATA, HEADERS, PRIORITY and RST_STREAM.
#[test]
fn frames_of_streams_are_held_to_their_rules() {
    let fields = block(&request("GET", "/", &[]));
    let padded = |length: u8| [&[length][..], &fields].concat();
    let on_itself = [&[0, 0, 0, 1, 16][..], &fields].concat();
    let on_another = [&[0, 0, 0, 5, 16][..], &fields].concat();
    let refused = || Connection(&[PROTOCOL]);
    check(
        &gateway(),
        vec![
            ("DATA on stream 0", vec![open_request(), frame(DATA, 1, 0, b"x")], refused()),
            ("DATA on an idle stream", vec![frame(DATA, 1, 1, b"x")], refused()),
            (
                "DATA of padding",
                vec![open_request(), frame(DATA, PADDED | 1, 1, &[3, b'x', 0, 0, 0])],
                Answer(200),
            ),
            ("DATA padded beyond", vec![open_request(), frame(DATA, PADDED | 1, 1, &[9, b'x'])], refused()),
            (
                "DATA without padding",
                vec![open_request(), frame(DATA, PADDED | 1, 1, &[])],
                Stream(&[PROTOCOL, FRAME_SIZE]),
            ),
            ("HEADERS on stream 0", vec![frame(HEADERS, 5, 0, &fields)], refused()),
            ("HEADERS on an even stream", vec![frame(HEADERS, 5, 2, &fields)], refused()),
            (
                "HEADERS padded",
                vec![frame(HEADERS, PADDED | 5, 1, &[&padded(2)[..], &[0, 0]].concat())],
                Answer(200),
            ),
            ("HEADERS padded beyond", vec![frame(HEADERS, PADDED | 5, 1, &padded(255))], refused()),
            ("HEADERS with a priority", vec![frame(HEADERS, WITH_PRIORITY | 5, 1, &on_another)], Answer(200)),
            (
                "HEADERS that depend on themselves",
                vec![frame(HEADERS, WITH_PRIORITY | 5, 1, &on_itself)],
                Stream(&[PROTOCOL]),
            ),
            (
                "PRIORITY on itself",
                vec![open_request(), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 1])],
                Stream(&[PROTOCOL]),
            ),
            ("PRIORITY on stream 0", vec![frame(PRIORITY, 0, 0, &[0, 0, 0, 3, 1])], refused()),
            (
                "PRIORITY too short",
                vec![open_request(), frame(PRIORITY, 0, 1, &[0, 0, 0, 3])],
                Stream(&[FRAME_SIZE]),
            ),
            (
                "PRIORITY on an idle stream",
                vec![frame(PRIORITY, 0, 9, &[0, 0, 0, 3, 1]), whole_request(1)],
                Answer(200),
            ),
            ("RST_STREAM on stream 0", vec![frame(RST_STREAM, 0, 0, &[0, 0, 0, 8])], refused()),
            ("RST_STREAM on an idle stream", vec![frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])], refused()),
            (
                "RST_STREAM too short",
                vec![open_request(), frame(RST_STREAM, 0, 1, &[0, 0, 8])],
                Connection(&[FRAME_SIZE]),
            ),
            (
                "PUSH_PROMISE",
                vec![open_request(), frame(PUSH_PROMISE, 4, 1, &[&[0, 0, 0, 2][..], &fields].concat())],
                refused(),
            ),
        ],
    );
}

/// Sections 6.5 to 6.9: SETTINGS, PING, GOAWAY and WINDOW_UPDATE.
#[test]
fn frames_of_connections_are_held_to_their_rules() {
    let refused = || Connection(&[PROTOCOL]);
    let sized = || Connection(&[FRAME_SIZE]);
    let set = |id: u16, value: u32| frame(SETTINGS, 0, 0, &settings(&[(id, value)]));
    let most = 0x7fff_ffff_u32.to_be_bytes();
    check(
        &gateway(),
        vec![
            ("an acknowledgement with content", vec![frame(SETTINGS, ACK, 0, &settings(&[(3, 1)]))], sized()),
            ("SETTINGS of a stream", vec![frame(SETTINGS, 0, 1, &settings(&[(3, 1)]))], refused()),
            ("SETTINGS of five bytes", vec![frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0])], sized()),
            ("ENABLE_PUSH 2", vec![set(2, 2)], refused()),
            ("INITIAL_WINDOW_SIZE 2^31", vec![set(4, 1 << 31)], Connection(&[FLOW_CONTROL])),
            ("MAX_FRAME_SIZE 16383", vec![set(5, 16_383)], refused()),
            ("MAX_FRAME_SIZE 2^24", vec![set(5, 1 << 24)], refused()),
            ("an unknown setting", vec![set(0xff, 1), whole_request(1)], Answer(200)),
            ("PING of a stream", vec![frame(PING, 0, 1, b"12345678")], refused()),
            ("PING of seven bytes", vec![frame(PING, 0, 0, b"1234567")], sized()),
            (
                "PING acknowledged unasked",
                vec![frame(PING, ACK, 0, b"12345678"), whole_request(1)],
                Answer(200),
            ),
            ("GOAWAY of a stream", vec![frame(GOAWAY, 0, 1, &[0; 8])], refused()),
            ("WINDOW_UPDATE by 0", vec![frame(WINDOW_UPDATE, 0, 0, &[0; 4])], refused()),
            (
                "WINDOW_UPDATE of a stream by 0",
                vec![open_request(), frame(WINDOW_UPDATE, 0, 1, &[0; 4])],
                Stream(&[PROTOCOL]),
            ),
            ("WINDOW_UPDATE of three bytes", vec![frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1])], sized()),
            ("WINDOW_UPDATE of an idle stream", vec![frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])], refused()),
            (
                "WINDOW_UPDATE beyond 2^31",
                vec![frame(WINDOW_UPDATE, 0, 0, &most), frame(WINDOW_UPDATE, 0, 0, &most)],
                Connection(&[FLOW_CONTROL]),
            ),
            (
                "WINDOW_UPDATE of a stream beyond 2^31",
                vec![open_request(), frame(WINDOW_UPDATE, 0, 1, &most), frame(WINDOW_UPDATE, 0, 1, &most)],
                Stream(&[FLOW_CONTROL]),
            ),
        ],
    );
}

/// Sections 6.5 and 6.7: both are acknowledged, a PING with its payload.
#[test]
fn settings_and_pings_are_acknowledged() {
    let gateway = gateway();
    let mut h2 = H2::open(gateway.addr());
    h2.send(SETTINGS, 0, 0, &settings(&[(3, 7)]));
    h2.wait(|frame| frame.kind == SETTINGS && frame.flags == ACK).expect("an acknowledgement");
    h2.send(PING, 0, 0, b"as I say");
    let pong = h2.wait(|frame| frame.kind == PING).expect("an answer");
    assert_eq!((pong.flags, pong.payload), (ACK, b"as I say".to_vec()));
    // A client that sends GOAWAY still gets the answers to its earlier requests.
    h2.write(&whole_request(1));
    h2.send(GOAWAY, 0, 0, &[0; 8]);
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"ok".to_vec()));
}
