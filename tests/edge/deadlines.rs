//! Every wait for an HTTP/2 client has a deadline, and a deadline of one stream does not end the others. The tests for
//! HTTP/1 are in `tests/wire/deadlines`.

use std::thread;
use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::*;

/// An endless preface counts as an endless head, however steadily it drips.
#[test]
fn a_dripping_preface_is_cut() {
    let gateway = with_timeouts(&Upstream::ok(), "header: 1s, idle: 20s");
    let noise = Noise::listen();
    for drips in [false, true] {
        let mut h2 = H2::connect(gateway.addr());
        let start = Instant::now();
        h2.write(&PREFACE[..10]);
        if drips {
            for byte in &PREFACE[10..] {
                thread::sleep(ms(90));
                if h2.try_write(&[*byte]).is_err() {
                    break;
                }
            }
        }
        assert!(h2.ends_within(PATIENCE));
        assert_between("the preface", start.elapsed(), 1000, &noise);
    }
}

/// An endless frame and an endless header block are cut by their total time, even while a stream is open.
#[test]
fn a_dripping_header_block_is_cut() {
    let upstream = Upstream::new(|_| Reply::silence());
    let gateway = with_timeouts(&upstream, "header: 1s, idle: 20s");
    let noise = Noise::listen();
    let fields = block(&request("GET", "/", &[]));
    for is_busy in [false, true] {
        for in_parts in [false, true] {
            let mut h2 = H2::open(gateway.addr());
            if is_busy {
                h2.ask(1, &request("GET", "/", &[]));
            }
            let start = Instant::now();
            if in_parts {
                h2.send(HEADERS, END_STREAM, 3, &fields);
            } else {
                h2.write(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &fields)[..12]);
            }
            // Only a few parts are accepted at all.
            let pause = if in_parts { ms(200) } else { ms(90) };
            for byte in 0..30 {
                thread::sleep(pause);
                let drip = if in_parts { frame(CONTINUATION, 0, 3, b"") } else { vec![fields[3 + byte]] };
                if h2.try_write(&drip).is_err() {
                    break;
                }
            }
            assert!(h2.ends_within(PATIENCE));
            assert_between("the block", start.elapsed(), 1000, &noise);
        }
    }
}

/// A connection without a request, or idle since its last answer, gets a GOAWAY and is closed.
#[test]
fn an_idle_connection_is_closed() {
    let gateway = with_timeouts(&Upstream::ok(), "idle: 1s");
    let noise = Noise::listen();
    let start = Instant::now();
    let mut h2 = H2::connect(gateway.addr());
    h2.write(PREFACE);
    h2.send(SETTINGS, 0, 0, b"");
    h2.wait(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
    assert!(h2.ends_within(PATIENCE));
    assert_between("nothing", start.elapsed(), 1000, &noise);
    let mut h2 = H2::open(gateway.addr());
    thread::sleep(ms(600));
    let start = Instant::now();
    assert!(matches!(h2.get(1, "/"), Outcome::Answered(200, _)));
    // Frames other than requests do not keep it open.
    for _ in 0..3 {
        thread::sleep(ms(250));
        // A busy machine may be so late that the connection was rightly closed.
        assert!(h2.is_alive() || start.elapsed() > ms(950));
    }
    h2.wait(|frame| frame.kind == GOAWAY).expect("a GOAWAY");
    assert!(h2.ends_within(PATIENCE));
    assert_between("idling", start.elapsed(), 1000, &noise);
    // A connection that does not answer the GOAWAY is closed all the same.
    let start = Instant::now();
    let mut h2 = H2::open(gateway.addr());
    h2.pongs = false;
    assert!(h2.ends_within(PATIENCE));
    assert_between("a client without manners", start.elapsed(), 2000, &noise);
}

/// A stalled body gets 408 or a reset on its own stream, and the others continue.
#[test]
fn a_stalled_body_ends_its_stream_alone() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/slow" => Reply::text("slow").after(ms(2000)),
        _ => Reply::text("ok"),
    });
    let gateway = with_timeouts(&upstream, "body: 1s");
    let noise = Noise::listen();
    let mut h2 = H2::open(gateway.addr());
    h2.ask(1, &request("GET", "/slow", &[]));
    h2.send(HEADERS, END_HEADERS, 3, &block(&request("POST", "/up", &[("content-length", "100")])));
    h2.send(DATA, 0, 3, b"abc");
    // A body that still moves is not cut.
    h2.send(HEADERS, END_HEADERS, 5, &block(&request("POST", "/moving", &[])));
    let start = Instant::now();
    for _ in 0..4 {
        thread::sleep(ms(400));
        h2.send(DATA, 0, 5, b"x");
        if start.elapsed() < ms(900) {
            assert!(h2.wait_within(ms(1), |frame| frame.stream == 3 && frame.kind != WINDOW_UPDATE).is_err());
        }
    }
    let stalled = h2.outcome(3);
    assert!(matches!(stalled, Outcome::Answered(408, _) | Outcome::Reset(_)), "{stalled:?}");
    h2.send(DATA, END_STREAM, 5, b"x");
    assert!(matches!(h2.outcome(5), Outcome::Answered(200, _)));
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"slow".to_vec()));
    assert!(start.elapsed() < ms(3500) + noise.late());
    assert!(upstream.wait_for(3).iter().any(|seen| seen.target == "/up" && seen.cut.is_some()));
}

/// A reader that stops is cut at the write deadline and releases its slot; other readers are served.
#[test]
fn a_stopped_reader_ends_its_stream_alone() {
    let body = "x".repeat(5_000_000);
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/big" => Reply::text(&body),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ write: 1s }} }}\nlocations:\n\
         \x20 - {{ path: /big, upstream: \"{url}\", limits: {{ algorithm: concurrency, max_concurrent: 1 }} }}\n\
         \x20 - {{ path: /, upstream: \"{url}\" }}\n",
        url = upstream.url()
    ));
    let noise = Noise::listen();
    let mut h2 = H2::open(gateway.addr());
    h2.reads = false;
    h2.ask(1, &request("GET", "/big", &[]));
    h2.wait(|frame| frame.stream == 1 && frame.kind == HEADERS).expect("a head");
    let start = Instant::now();
    // The stream has no window, but the connection has some.
    h2.send(WINDOW_UPDATE, 0, 0, &1_000_000u32.to_be_bytes());
    assert!(matches!(h2.get(3, "/"), Outcome::Answered(200, _)));
    let reset = h2.wait(|frame| frame.stream == 1 && frame.kind == RST_STREAM).expect("a reset");
    assert_between("the reader", start.elapsed(), 1000, &noise);
    assert_ne!(code(&reset.payload), NO_ERROR);
    assert!(matches!(h2.get(5, "/"), Outcome::Answered(200, _)));
    assert_eq!(gateway.get("/big").status, 200);
}

/// The deadlines of the upstream and of the location end one stream.
#[test]
fn late_upstreams_end_their_stream_alone() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/silent" => Reply::silence(),
        "/stall" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nab").until(&Gate::default()),
        "/slow" => Reply::text("slow").after(ms(1600)),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{addr}\"], timeouts: {{ response: 700ms, body: 700ms }} }}\n\
         \x20 other: {{ servers: [\"{addr}\"] }}\n\
         locations:\n  - {{ path: /slow, upstream: other }}\n\
         \x20 - {{ path: /timed, upstream: other, timeout: 500ms }}\n  - {{ path: /, upstream: app }}\n",
        addr = upstream.addr()
    ));
    let mut h2 = H2::open(gateway.addr());
    for (stream, path) in [(1, "/slow"), (3, "/silent"), (5, "/stall")] {
        h2.ask(stream, &request("GET", path, &[]));
    }
    assert!(matches!(h2.outcome(3), Outcome::Answered(504, _)));
    let cut = h2.outcome(5);
    assert!(matches!(cut, Outcome::Reset(_)), "a cut body is no end: {cut:?}");
    assert_eq!(h2.outcome(1), Outcome::Answered(200, b"slow".to_vec()));
}
