//! Random scripts for one connection: requests with bodies that look like requests, cut anywhere, with pauses.

use std::time::Duration;

use crate::support::{Dice, ms};

/// The way into the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Plain,
    Tls,
    /// Behind a PROXY header.
    Proxied,
    /// A listener of the rate-limit service.
    Calls,
    Admin,
}

/// All that a client sends.
#[derive(Debug)]
pub struct Script {
    pub entry: Entry,
    pub bytes: Vec<u8>,
    pub steps: Vec<Step>,
}

/// One write, up to `end` of the script's bytes, and the pause behind it.
#[derive(Debug)]
pub struct Step {
    pub end: usize,
    pub pause: Duration,
}

/// The beginnings of paths on listeners for requests. Most are answered before the body has come.
const PLACES: &[&str] = &[
    "/respond/",
    "/respond/",
    "/redirect/",
    "/limited/",
    "/get/",
    "/degraded/",
    "/peeked/",
    "/peeked/",
    "/early/",
    "/early/",
    "/early/",
    "/large/",
    "/large/",
    "/slow/",
    "/echo/",
    "/echo/",
    "/none/",
    "/demo/",
];
const CALLS: &[&str] = &["/auth?", "/check?", "/release?", "/other/"];
const ADMIN: &[&str] = &["/status?", "/health?", "/other/"];
const METHODS: &[&str] = &["POST", "POST", "POST", "POST", "PUT", "GET", "HEAD", "DELETE", "OPTIONS"];

/// The requests of a script while they are written.
struct Writer {
    dice: Dice,
    bytes: Vec<u8>,
    /// Places at which a write may end, and the span of each body.
    cuts: Vec<usize>,
}

impl Script {
    pub fn random(seed: u64, number: u64) -> Script {
        let mut dice = Dice(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        let entry = match dice.below(20) {
            0..3 => Entry::Tls,
            3 | 4 => Entry::Proxied,
            5 | 6 => Entry::Calls,
            7 => Entry::Admin,
            _ => Entry::Plain,
        };
        let mut writer = Writer { dice, bytes: Vec::new(), cuts: Vec::new() };
        let count = 1 + writer.dice.below(4);
        for place in 0..count {
            writer.write_request(entry, &format!("{number}-{place}"), place + 1 == count);
        }
        let Writer { mut dice, bytes, mut cuts } = writer;
        cuts.extend((0..dice.below(3)).map(|_| dice.below(bytes.len())).collect::<Vec<_>>());
        cuts.retain(|cut| *cut > 0 && *cut < bytes.len());
        cuts.push(bytes.len());
        cuts.sort_unstable();
        cuts.dedup();
        let steps = cuts.into_iter().map(|end| Step { end, pause: pause(&mut dice) }).collect();
        Script { entry, bytes, steps }
    }
}

impl Script {
    pub fn describe(&self) -> String {
        format!("{:?} {:?}\n{}", self.entry, self.steps, self.bytes.escape_ascii())
    }
}

/// A connection is given up by the gateway's HTTP library when it was idle for a fifth of a second or more.
fn pause(dice: &mut Dice) -> Duration {
    ms(match dice.below(10) {
        0 => 0,
        1..4 => dice.below(8) as u64,
        4 | 5 => 10 + dice.below(60) as u64,
        6..9 => 210 + dice.below(220) as u64,
        _ => dice.below(1_000) as u64,
    })
}

impl Writer {
    fn write_request(&mut self, entry: Entry, id: &str, is_last: bool) {
        let dice = &mut self.dice;
        let places = match entry {
            Entry::Calls => CALLS,
            Entry::Admin => ADMIN,
            Entry::Plain | Entry::Tls | Entry::Proxied => PLACES,
        };
        let (method, place) = (dice.pick(METHODS), dice.pick(places));
        let is_old = dice.one_in(12);
        let mut head = format!("{method} {place}{id} HTTP/1.{}\r\nHost: a\r\n", u8::from(!is_old));
        match (is_old, is_last && dice.one_in(6)) {
            (true, false) => head += "Connection: keep-alive\r\n",
            (false, true) => head += "Connection: close\r\n",
            _ => {}
        }
        let body = self.body(id);
        let dice = &mut self.dice;
        let (framing, wire) = match dice.below(10) {
            0 if !matches!(method, "POST" | "PUT") => (String::new(), Vec::new()),
            1..5 if !is_old => ("Transfer-Encoding: chunked\r\n".to_owned(), chunked(dice, &body)),
            _ => (format!("Content-Length: {}\r\n", body.len()), body),
        };
        head += &framing;
        if !wire.is_empty() && dice.one_in(10) {
            head += "Expect: 100-continue\r\n";
        }
        head += "\r\n";
        self.bytes.extend_from_slice(head.as_bytes());
        let (from, to) = (self.bytes.len(), self.bytes.len() + wire.len());
        self.bytes.extend_from_slice(&wire);
        if self.dice.one_in(60) && !wire.is_empty() {
            // A byte that chunks do not allow, or that moves the next head.
            self.bytes.insert(from + self.dice.below(wire.len()), b'!');
        }
        let dice = &mut self.dice;
        if from < to && !dice.one_in(4) {
            self.cuts.push(from + dice.below(to - from));
        }
        if dice.one_in(4) {
            self.cuts.push(if dice.one_in(2) { from } else { to });
        }
    }

    /// A body that is a request from its middle on.
    fn body(&mut self, id: &str) -> Vec<u8> {
        let dice = &mut self.dice;
        let length = match dice.below(40) {
            0 => 0,
            1 => 70_000,
            2 | 3 => 3_000 + dice.below(6_000),
            4..20 => 1 + dice.below(40),
            _ => 1 + dice.below(400),
        };
        if dice.one_in(3) {
            // JSON, for the limit that reads it and for the service.
            return format!("{{\"limits\":\"counted\",\"model\":\"{}\"}}", "m".repeat(length.min(200)))
                .into();
        }
        let hidden = format!("GET /hidden/{id} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut body = vec![b'x'; dice.below(30).min(length)];
        while body.len() < length {
            body.extend_from_slice(hidden.as_bytes());
        }
        body.truncate(length);
        body
    }
}

/// `body` in chunks, with extensions and trailers.
fn chunked(dice: &mut Dice, body: &[u8]) -> Vec<u8> {
    let most = match dice.below(4) {
        0 => 1,
        1 => 8,
        2 => 200,
        _ => 100_000,
    };
    let most = if body.len() > 10_000 { most.max(10) } else { most };
    let (mut wire, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(1 + dice.below(rest.len().min(most)));
        let extension = if dice.one_in(30) { ";a=b" } else { "" };
        wire.extend_from_slice(format!("{:x}{extension}\r\n", piece.len()).as_bytes());
        wire.extend_from_slice(piece);
        wire.extend_from_slice(b"\r\n");
        rest = behind;
    }
    wire.extend_from_slice(b"0\r\n");
    if dice.one_in(4) {
        wire.extend_from_slice(b"X-Trailer: GET /hidden/trailer HTTP/1.1\r\n");
    }
    wire.extend_from_slice(b"\r\n");
    wire
}
