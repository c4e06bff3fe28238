//! Nearly valid request heads: targets in every form, fragments, lengths, and HTTP/2's pseudo-fields.
//!
//! Whatever a client writes, the upstream sees one clear request or none. Behind the gateway are two strict servers;
//! they do not answer a request they cannot read, which would be a 502 and an error counted against them.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::mangled_heads::{body_of, http1_head, http2_head};
use crate::recorder::{Recorder, Request, Seen};
use crate::support::h2_raw::{DATA, END_HEADERS, END_STREAM, H2, HEADERS, Outcome, block, frame};
use crate::support::*;

/// The fewest heads that have to be answered over each version of HTTP.
const HEADS: usize = 26_000;
const THREADS_HTTP1: usize = 4;
const THREADS_HTTP2: usize = 2;
/// Streams sent at once, and on one connection.
const STREAMS: usize = 24;
const STREAMS_OF_CONNECTION: usize = 480;

/// The counts of the test so far.
struct Tally<'a> {
    servers: &'a [Recorder],
    /// Heads that were answered, or reset with their stream.
    tried_http1: AtomicUsize,
    tried_http2: AtomicUsize,
    /// Requests that a server received.
    passed: AtomicUsize,
}

impl Tally<'_> {
    /// Checks the requests that servers received; `about` are the last heads that were sent.
    fn judge(&self, about: &str) {
        for seen in self.servers.iter().flat_map(Recorder::take) {
            let judged = match &seen {
                Seen::Whole(request) => check(request).map_err(str::to_owned),
                Seen::Ambiguous(what) => Err(what.clone()),
            };
            self.passed.fetch_add(1, Relaxed);
            if let Err(what) = judged {
                panic!("the upstream saw {what}: {seen:?}, about {about}");
            }
        }
    }
}

/// Checks the rules that [`crate::recorder::parse`] leaves open, because other senders may break them.
fn check(request: &Request) -> Result<(), &'static str> {
    let is_path = request.target.starts_with(b"/");
    let is_length = |length: &&[u8]| **length == b"0"[..] || !length.starts_with(b"0");
    let is_of_host = |byte: &u8| byte.is_ascii_graphic() && !b"/?#@\\,".contains(byte);
    match request {
        _ if !is_path && (request.target != b"*" || request.method != "OPTIONS") => {
            Err("a target that is no path")
        }
        _ if request.target.contains(&b'#') => Err("a fragment"),
        _ if request.method.bytes().any(|byte| byte.is_ascii_lowercase()) => Err("a method in lower case"),
        _ if !request.all("content-length").iter().all(is_length) => Err("a length with zeros before it"),
        _ if !request.all("host")[0].iter().all(is_of_host) => Err("a host that is none"),
        _ if request.all("x-forwarded-for").len() != 1 => Err("not one client"),
        _ => Ok(()),
    }
}

#[track_caller]
fn expect_no_fault(status: u16, head: &str) {
    assert!(!matches!(status, 500 | 502..=504), "{status} for {head}");
}

// === HTTP/1 ===

/// A client that reads no more of a response than it has to.
struct Http1 {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Http1 {
    fn connect(addr: SocketAddr) -> Http1 {
        let stream = TcpStream::connect(addr).expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        // A head that was cut short gets no response.
        stream.set_read_timeout(Some(ms(150))).expect("a timeout can be set");
        Http1 { stream, read: Vec::new() }
    }

    /// Sends a request; returns the status and whether the connection goes on; `None` without a response.
    fn exchange(&mut self, bytes: &[u8]) -> Option<(u16, bool)> {
        self.stream.write_all(bytes).ok()?;
        loop {
            let end = self.find_end()?;
            let head = String::from_utf8_lossy(&self.read[..end]).to_ascii_lowercase();
            self.read.drain(..end);
            let status = head.get(9..12)?.parse().ok()?;
            if status < 200 {
                continue;
            }
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next());
            let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            if !bytes.starts_with(b"HEAD ") {
                while self.read.len() < length {
                    self.fill()?;
                }
                self.read.drain(..length);
            }
            let goes_on =
                head.starts_with("http/1.1") && !head.contains("connection: close") && self.read.is_empty();
            // The body of a rejected request might be read as the next head.
            return Some((status, goes_on && (status == 200 || bytes.ends_with(b"\r\n\r\n"))));
        }
    }

    fn find_end(&mut self) -> Option<usize> {
        loop {
            if let Some(at) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                return Some(at + 4);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Option<()> {
        let mut piece = [0; 4096];
        let count = self.stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        self.read.extend_from_slice(&piece[..count]);
        Some(())
    }
}

fn try_http1(gateway: &Gateway, tally: &Tally<'_>, mut dice: Dice, more: &dyn Fn() -> bool) {
    let mut client = Http1::connect(gateway.addr());
    while more() {
        let (head, bytes) = http1_head(&mut dice);
        let answered = client.exchange(&bytes);
        if let Some((status, _)) = answered {
            expect_no_fault(status, &head);
            tally.tried_http1.fetch_add(1, Relaxed);
        }
        if !answered.is_some_and(|(_, goes_on)| goes_on) {
            client = Http1::connect(gateway.addr());
        }
        tally.judge(&head);
    }
}

// === HTTP/2 ===

fn frames_of(stream: u32, fields: &[(String, String)]) -> Vec<u8> {
    let lent: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let block = block(&lent);
    match body_of(fields) {
        b"abc" => {
            [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, END_STREAM, stream, b"abc")].concat()
        }
        _ => frame(HEADERS, END_HEADERS | END_STREAM, stream, &block),
    }
}

fn try_http2(gateway: &Gateway, tally: &Tally<'_>, mut dice: Dice, more: &dyn Fn() -> bool) {
    'connections: while more() {
        let mut h2 = H2::open(gateway.addr());
        for batch in 0..STREAMS_OF_CONNECTION / STREAMS {
            let streams = (0..STREAMS).map(|place| 1 + 2 * (batch * STREAMS + place) as u32);
            let heads: Vec<(u32, Vec<(String, String)>)> =
                streams.map(|stream| (stream, http2_head(&mut dice))).collect();
            let bytes: Vec<u8> = heads.iter().flat_map(|(stream, head)| frames_of(*stream, head)).collect();
            let is_open = h2.try_write(&bytes).is_ok();
            for (stream, head) in &heads {
                match h2.outcome(*stream) {
                    Outcome::Answered(status, _) => expect_no_fault(status, &format!("{head:?}")),
                    Outcome::Reset(_) => {}
                    // Streams behind it were not judged, and are not counted.
                    Outcome::GoAway(_) | Outcome::Closed => continue 'connections,
                    Outcome::Silent => panic!("no answer to {head:?}"),
                }
                tally.tried_http2.fetch_add(1, Relaxed);
            }
            tally.judge("streams of HTTP/2");
            if !is_open || !more() {
                break;
            }
        }
    }
}

// === Both ===

/// Tries heads of `seed` until there are enough, or until `end`.
fn try_heads(seed: u64, end: Option<Instant>) -> usize {
    let servers = [Recorder::new(), Recorder::new()];
    let gateway = Gateway::start(&format!(
        "access_log: {{ output: none }}\n\
         upstreams:\n  app: {{ servers: [\"{}\", \"{}\"], eject: {{ errors: 1 }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n  - {{ path: /strip/, strip: /strip, upstream: app }}\n",
        servers[0].addr(),
        servers[1].addr()
    ));
    let none = || AtomicUsize::new(0);
    let tally = Tally { servers: &servers, tried_http1: none(), tried_http2: none(), passed: none() };
    let more = |tried: &AtomicUsize| end.map_or(tried.load(Relaxed) < HEADS, |end| Instant::now() < end);
    std::thread::scope(|scope| {
        let (gateway, tally, more) = (&gateway, &tally, &more);
        for place in 0..THREADS_HTTP1 + THREADS_HTTP2 {
            let dice = Dice(seed.wrapping_add((place as u64) << 56));
            scope.spawn(move || match place < THREADS_HTTP1 {
                true => try_http1(gateway, tally, dice, &|| more(&tally.tried_http1)),
                false => try_http2(gateway, tally, dice, &|| more(&tally.tried_http2)),
            });
        }
    });
    std::thread::sleep(ms(100));
    tally.judge("the last heads");
    let (tried_http1, tried_http2) = (tally.tried_http1.into_inner(), tally.tried_http2.into_inner());
    let passed = tally.passed.into_inner();
    println!(
        "seed {seed}: {tried_http1} heads over HTTP/1, {tried_http2} over HTTP/2, {passed} went upstream"
    );
    assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 0.0);
    let exchanges = |outcome: &[&str]| gateway.metric("sluicegate_upstream_requests_total", outcome);
    // Exchanges are abandoned where the client cut the body short.
    let blameless = exchanges(&["outcome=\"2xx\""]) + exchanges(&["outcome=\"abandoned\""]);
    assert_eq!(exchanges(&[]), blameless, "{}", gateway.metrics());
    let tried = tried_http1 + tried_http2;
    assert!(passed > tried / 10 && passed < tried * 9 / 10, "{passed} of {tried} went upstream");
    tried
}

/// Requests to the upstream are clear whatever the client wrote, and none counts as a failure of a server.
#[test]
fn no_head_makes_an_upstream_fail() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let (seed, end) = match seconds {
        Some(seconds) => {
            (RandomState::new().hash_one(()), Some(Instant::now() + Duration::from_secs(seconds)))
        }
        None => (11, None),
    };
    println!("seed {seed}");
    let tried = try_heads(seed, end);
    assert!(tried >= 50_000 || end.is_some(), "{tried}");
}
