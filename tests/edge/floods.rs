//! Work that is cheap for a client must not be expensive for the gateway: floods of frames and streams, and header
//! references.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::h2_raw::*;
use crate::support::*;

/// CPU time of the gateway so far.
pub fn cpu(gateway: &Gateway) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).expect("procfs");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    ms(10 * fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("ticks")).sum::<u64>())
}

/// Resident memory in KiB.
pub fn rss(gateway: &Gateway) -> u64 {
    status_kib(gateway, "VmRSS")
}

/// A line of `/proc/PID/status`, in KiB.
pub fn status_kib(gateway: &Gateway, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).expect("procfs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Sends `flood` repeatedly, `count` times in all, until the gateway cuts it; then checks that others are served and
/// that little memory was used.
#[track_caller]
fn survives(gateway: &Gateway, h2: &mut H2, flood: impl Fn(u32) -> Vec<u8>, count: u32) -> u32 {
    let before = rss(gateway);
    let mut sent = 0;
    while sent < count {
        let batch: Vec<u8> = (sent..sent + 100).flat_map(&flood).collect();
        if h2.try_write(&batch).is_err() {
            break;
        }
        sent += 100;
    }
    gateway.get("/").expect(200);
    let after = rss(gateway);
    assert!(after < before + 20 * 1024, "{before} KiB before, {after} KiB after");
    sent
}

fn quiet(addr: std::net::SocketAddr) -> H2 {
    let mut h2 = H2::open(addr);
    h2.reads = false;
    h2
}

fn respond() -> Gateway {
    Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n")
}

/// Streams that are reset as soon as they begin.
#[test]
fn rapid_resets_are_stopped() {
    let upstream =
        Upstream::new(|seen| if seen.target == "/" { Reply::text("ok") } else { Reply::silence() });
    let gateway = forwarding(&upstream, "");
    let mut h2 = quiet(gateway.addr());
    let get = block(&request("GET", "/never", &[]));
    let pair = |n: u32| {
        [frame(HEADERS, 5, 2 * n + 1, &get), frame(RST_STREAM, 0, 2 * n + 1, &8u32.to_be_bytes())].concat()
    };
    survives(&gateway, &mut h2, pair, 100_000);
    assert!(matches!(h2.connection_outcome(), Outcome::GoAway(CALM) | Outcome::Closed));
    // Cut within the first thousand, so hardly a request reached the upstream.
    assert!(upstream.count() < 1_100, "{}", upstream.count());
    // Nor does it fill the log.
    assert!(!gateway.stderr().contains("streams reached limit"), "{}", gateway.stderr());
}

/// A client that waits until each stream is under way is bounded as well.
#[test]
fn patient_resets_are_stopped() {
    let upstream =
        Upstream::new(|seen| if seen.target == "/" { Reply::text("ok") } else { Reply::silence() });
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open(gateway.addr());
    h2.pongs = false;
    let get = block(&request("GET", "/never", &[]));
    let mut sent: u32 = 0;
    while sent < 20_000 && h2.try_write(&frame(HEADERS, 5, 2 * sent + 1, &get)).is_ok() {
        sent += 1;
        if sent.is_multiple_of(50) {
            // Its answer shows that all frames before it were read.
            if !h2.is_alive() {
                break;
            }
            let resets: Vec<u8> = (sent - 50..sent)
                .flat_map(|n| frame(RST_STREAM, 0, 2 * n + 1, &8u32.to_be_bytes()))
                .collect();
            if h2.try_write(&resets).is_err() {
                break;
            }
        }
    }
    assert!((900..5_000).contains(&sent), "{sent} streams were begun and reset");
    gateway.get("/").expect(200);
}

/// As many streams as may be open can be reset at once, as a browser does when it leaves a page, and nothing ends.
#[test]
fn streams_reset_together_end_nothing() {
    let gateway = respond();
    let mut h2 = H2::open(gateway.addr());
    let get = block(&request("GET", "/", &[]));
    let pair = |n: u32| {
        [frame(HEADERS, 5, 2 * n + 1, &get), frame(RST_STREAM, 0, 2 * n + 1, &8u32.to_be_bytes())].concat()
    };
    h2.write(&(0..100).flat_map(pair).collect::<Vec<u8>>());
    let outcome = h2.get(201, "/");
    assert!(matches!(outcome, Outcome::Answered(200, _)), "{outcome:?}");
}

/// Frames that make the server reset streams itself.
#[test]
fn streams_reset_by_the_server_are_bounded() {
    let fields = block(&request("POST", "/", &[]));
    let overflow = 0x7fff_ffff_u32.to_be_bytes();
    let upstream =
        Upstream::new(|seen| if seen.method == "POST" { Reply::silence() } else { Reply::text("ok") });
    for (name, wrong) in [
        ("a window that grows by 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a window that overflows", frame(WINDOW_UPDATE, 0, 0, &overflow)),
        ("HEADERS that depend on themselves", Vec::new()),
        ("DATA after the end", frame(DATA, 0, 0, b"x")),
        ("trailers without an end", frame(HEADERS, END_HEADERS, 0, &block(&[("x", "y")]))),
    ] {
        let gateway = forwarding(&upstream, "");
        let mut h2 = quiet(gateway.addr());
        let flood = |n: u32| {
            let stream = 2 * n + 1;
            if wrong.is_empty() {
                let on_itself = [&stream.to_be_bytes()[..], &[16], &fields].concat();
                return frame(HEADERS, WITH_PRIORITY | 5, stream, &on_itself);
            }
            let mut wrong = wrong.clone();
            wrong[5..9].copy_from_slice(&stream.to_be_bytes());
            let end = if wrong[3] == DATA { END_STREAM } else { 0 };
            [frame(HEADERS, END_HEADERS | end, stream, &fields), wrong].concat()
        };
        let before = rss(&gateway);
        let mut sent = 0;
        // The answer to a PING shows that all frames before it were read.
        while sent < 20_000 {
            let batch: Vec<u8> = (sent..sent + 50).flat_map(&flood).collect();
            if h2.try_write(&batch).is_err() || !h2.is_alive() {
                break;
            }
            h2.forget();
            sent += 50;
        }
        assert!(sent <= 1_500, "{name}: {sent} streams");
        assert!(h2.ends_within(PATIENCE), "{name}");
        gateway.get("/").expect(200);
        assert!(
            rss(&gateway) < before + 20 * 1024,
            "{name}: {before} KiB before, {} KiB after",
            rss(&gateway)
        );
    }
}

/// Endless header blocks, in full frames and in empty ones.
#[test]
fn endless_header_blocks_are_stopped() {
    for payload in [Vec::new(), vec![0; 1], block(&[("x", &"y".repeat(16_000))])] {
        let gateway = respond();
        let mut h2 = quiet(gateway.addr());
        h2.send(HEADERS, END_STREAM, 1, &block(&request("GET", "/", &[])));
        let sent = survives(&gateway, &mut h2, |_| frame(CONTINUATION, 0, 1, &payload), 100_000);
        let outcome = h2.connection_outcome();
        assert!(matches!(outcome, Outcome::GoAway(_) | Outcome::Closed), "{outcome:?}");
        assert!(sent < 100_000, "all of it was taken");
    }
}

/// Empty DATA frames.
#[test]
fn empty_data_is_stopped() {
    let upstream =
        Upstream::new(|seen| if seen.method == "POST" { Reply::silence() } else { Reply::text("ok") });
    let gateway = forwarding(&upstream, "");
    let mut h2 = quiet(gateway.addr());
    h2.send(HEADERS, END_HEADERS, 1, &block(&request("POST", "/", &[])));
    let sent = survives(&gateway, &mut h2, |_| frame(DATA, 0, 1, b""), 1_000_000);
    let outcome = h2.connection_outcome();
    assert!(matches!(outcome, Outcome::GoAway(CALM) | Outcome::Closed), "{outcome:?}");
    assert!(sent < 1_000_000, "all of it was taken");
}

/// A few bytes that expand to megabytes.
#[test]
fn references_to_large_fields_are_bounded() {
    let gateway = respond();
    let mut h2 = H2::open(gateway.addr());
    // With incremental indexing: the entry stays in the table, and one byte refers to it.
    let mut bomb = block(&request("GET", "/", &[]));
    let mut entry = block(&[("x-large", &"y".repeat(3_800))]);
    entry[0] = 0x40;
    bomb.extend_from_slice(&entry);
    bomb.extend_from_slice(&[0xbe; 8_000]);
    let (before, memory) = (cpu(&gateway), rss(&gateway));
    let again = [block(&request("GET", "/", &[])), vec![0xbe; 8_000]].concat();
    for n in 0..50u32 {
        let fields = if n == 0 { &bomb } else { &again };
        if h2.try_write(&frame(HEADERS, 5, 2 * n + 1, fields)).is_err() {
            break;
        }
        match h2.outcome(2 * n + 1) {
            Outcome::Answered(431, _) | Outcome::Reset(_) => {}
            Outcome::Closed | Outcome::GoAway(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(cpu(&gateway) - before < ms(1_000), "{:?}", cpu(&gateway) - before);
    assert!(rss(&gateway) < memory + 20 * 1024, "{} KiB", rss(&gateway));
    gateway.get("/").expect(200);
}

/// Frames that cost an answer or serve no purpose. They are cut off, and others are not affected.
#[test]
fn floods_of_control_frames_are_cut_off() {
    for (name, one) in [
        ("PING", frame(PING, 0, 0, b"12345678")),
        ("SETTINGS", frame(SETTINGS, 0, 0, &settings(&[(3, 100)]))),
        ("SETTINGS acknowledged", frame(SETTINGS, ACK, 0, b"")),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
        ("unknown", frame(0x20, 0, 0, b"what?")),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
    ] {
        let gateway = respond();
        let noise = Noise::listen();
        let mut h2 = quiet(gateway.addr());
        let mut writer = h2.writer();
        let batch = one.repeat(100);
        let flood =
            thread::spawn(move || (0..1_000).take_while(|_| writer.write_all(&batch).is_ok()).count());
        let mut slowest = ms(0);
        while !flood.is_finished() {
            let start = Instant::now();
            gateway.get("/").expect(200);
            slowest = slowest.max(start.elapsed());
            // The replies are read, since an unread flood would stop by itself.
            let _ = h2.wait_within(ms(1), |_| false);
            h2.forget();
        }
        let _ = flood.join().expect("it ends");
        assert!(h2.ends_within(PATIENCE), "{name}: 100,000 frames were taken");
        assert!(slowest < ms(1_000) + 4 * noise.late(), "{name}: another waited for {slowest:?}");
    }
}

/// A client that acknowledges each small piece with two WINDOW_UPDATEs is no flood, however many pieces come.
#[test]
fn acknowledged_pieces_are_no_flood() {
    let upstream = Upstream::with_large(2_000_000);
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::open_with(gateway.addr(), &[(4, 8)]);
    h2.ask(1, &request("GET", "/large", &[]));
    for n in 0..30_000 {
        let piece =
            h2.wait(|frame| frame.kind == DATA).unwrap_or_else(|end| panic!("{end:?} after {n} pieces"));
        assert!(piece.payload.len() <= 8);
    }
    h2.send(RST_STREAM, 0, 1, &8u32.to_be_bytes());
    // Nor is a large answer whose frames are acknowledged in many steps.
    h2.reads = false;
    h2.send(SETTINGS, 0, 0, &settings(&[(4, 100_000)]));
    h2.ask(3, &request("GET", "/large", &[]));
    let mut left = 2_000_000;
    while left > 0 {
        let piece = h2.wait(|frame| frame.kind == DATA && frame.stream == 3).expect("more of the answer");
        let steps = piece.payload.chunks(128).flat_map(|step| {
            let room = (step.len() as u32).to_be_bytes();
            [frame(WINDOW_UPDATE, 0, 0, &room), frame(WINDOW_UPDATE, 0, 3, &room)].concat()
        });
        h2.write(&steps.collect::<Vec<u8>>());
        left -= piece.payload.len();
    }
    assert!(h2.is_alive());
}

/// Hundreds of large answers to readers without a window, or with no more of it, use little memory.
#[test]
fn answers_without_readers_hold_little() {
    raise_descriptors();
    let upstream = Upstream::with_large(2_000_000);
    for window in [0, 1, 200_000] {
        let gateway = forwarding(&upstream, "server: { timeouts: { write: 3s } }");
        gateway.get("/").expect(200);
        let already_sent = upstream.count();
        let before = rss(&gateway);
        let mut clients: Vec<H2> = (0..4).map(|_| H2::open_with(gateway.addr(), &[(4, window)])).collect();
        for h2 in &mut clients {
            h2.reads = false;
            h2.send(WINDOW_UPDATE, 0, 0, &0x3fff_ffff_u32.to_be_bytes());
            for n in 0..100 {
                h2.ask(2 * n + 1, &request("GET", "/large", &[]));
            }
        }
        upstream.wait_for(already_sent + 400);
        for h2 in &mut clients {
            // The bytes for which there was a window.
            while h2.wait_within(ms(200), |frame| frame.kind == DATA).is_ok() {}
            h2.forget();
        }
        let used = rss(&gateway) - before;
        // Two buffers of the upstream's and one of the stream's, with their overhead; 800 MB were requested.
        let most = 400 * (2 * 128 + 64 + 80);
        assert!(used < most, "{used} KiB for 400 answers with a window of {window}");
        eventually("the write deadline", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
    }
}

/// The pieces of an answer cost more than their bytes, but the window counts bytes.
#[test]
fn small_pieces_without_a_reader_hold_little() {
    let upstream = Endless::new("1\r\nx\r\n".repeat(1_000));
    let gateway = Gateway::start(&format!("locations:\n  - {{ path: /, upstream: \"{}\" }}\n", upstream.url));
    let mut h2 = H2::open_with(gateway.addr(), &[(4, 1_000_000)]);
    h2.send(WINDOW_UPDATE, 0, 0, &0x3fff_ffff_u32.to_be_bytes());
    h2.reads = false;
    let before = rss(&gateway);
    for n in 0..20 {
        h2.ask(2 * n + 1, &request("GET", "/", &[]));
    }
    thread::sleep(ms(2_000));
    let used = rss(&gateway) - before;
    assert!(used < 20 * 512, "{used} KiB for 20 answers");
    // A reader that resumes makes progress.
    h2.reads = true;
    h2.wait_within(PATIENCE, |frame| frame.kind == DATA).expect("more of an answer");
}

/// A server with endless answers.
struct Endless {
    url: String,
}

impl Endless {
    fn new(piece: String) -> Endless {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), piece) = (stream, piece.clone()) else { return };
                thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let mut went = stream.write_all(head.as_bytes());
                    while went.is_ok() {
                        went = stream.write_all(piece.as_bytes());
                    }
                });
            }
        });
        Endless { url }
    }
}
