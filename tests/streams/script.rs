//! Random connections of an HTTP/2 client: their bytes, cut into writes with pauses in between.

use std::time::Duration;

use crate::random::Random;
use crate::support::h2_raw::*;

/// Where a request goes; the first part of its path.
pub const PLACES: &[&str] = &[
    "read", "read", "read", "early", "early", "peek", "respond", "redirect", "limited", "put", "degraded",
    "peek", "none",
];
const CALLS: &[&str] = &["check", "auth"];

/// Text in bodies that a reader would take for a request or a frame if it lost its place.
const DECOYS: &[&str] = &[
    "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "\r\n\r\n",
    "\0\0\x08\x06\0\0\0\0\0PINGPONG",
    "plain text",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// How the client ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// After all answers.
    Done,
    /// In the middle, in order.
    Close,
    /// In the middle; it still reads.
    HalfClose,
    /// In the middle, with a reset.
    Reset,
}

/// One connection.
#[derive(Debug)]
pub struct Script {
    pub is_tls: bool,
    pub is_service: bool,
    /// Pieces of the bytes, each with the pause before it.
    pub writes: Vec<(Duration, Vec<u8>)>,
    pub leaving: Leaving,
}

/// Frames of a stream that no others may interrupt. Their stream is set when they are sent.
type Unit = Vec<Vec<u8>>;

impl Script {
    pub fn new(seed: u64) -> Script {
        let mut random = Random::new(seed);
        let is_service = random.one_in(8);
        let count = 1 + random.below(6);
        let streams = (0..count).map(|n| stream(&mut random, &format!("{seed:x}-{n}"), is_service)).collect();
        let mut bytes = interleave(&mut random, streams);
        let leaving = match random.below(20) {
            0 => Leaving::Close,
            1 => Leaving::HalfClose,
            2 => Leaving::Reset,
            _ => Leaving::Done,
        };
        if leaving != Leaving::Done {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        let is_tls = !is_service && random.one_in(4);
        Script { is_tls, is_service, writes: cut(&mut random, &bytes), leaving }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.writes.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }
}

/// Cuts anywhere; few pieces follow after a pause, and fewer after a long one.
fn cut(random: &mut Random, bytes: &[u8]) -> Vec<(Duration, Vec<u8>)> {
    let mut cuts: Vec<usize> =
        (0..random.below(8)).map(|_| random.below(bytes.len() as u64) as usize).collect();
    cuts.sort_unstable();
    cuts.push(bytes.len());
    let mut start = 0;
    let mut writes = Vec::new();
    for end in cuts {
        let pause = match random.below(100) {
            0..=1 => random.below(1_000),
            2..=45 => random.below(60),
            _ => 0,
        };
        writes.push((Duration::from_millis(pause), bytes[start..end].to_vec()));
        start = end;
    }
    writes
}

/// The frames of all streams in a random order, with others between them.
fn interleave(random: &mut Random, mut streams: Vec<Vec<Unit>>) -> Vec<u8> {
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &settings(&[(1, 0)]))].concat();
    let mut numbers = vec![0; streams.len()];
    let mut last = 0;
    let stays = random.one_in(3);
    let mut current = 0;
    streams.iter_mut().for_each(|units| units.reverse());
    while streams.iter().any(|units| !units.is_empty()) {
        if !stays || streams[current].is_empty() {
            current = random.below(streams.len() as u64) as usize;
        }
        let Some(unit) = streams[current].pop() else { continue };
        if numbers[current] == 0 {
            last += if last == 0 { 1 } else { 2 + 2 * random.below(3) as u32 };
            numbers[current] = last;
        }
        for mut one in unit {
            one[5..9].copy_from_slice(&numbers[current].to_be_bytes());
            bytes.extend_from_slice(&one);
        }
        while random.one_in(4) {
            bytes.extend(control(random, numbers[current]));
        }
    }
    bytes
}

/// A frame that changes no request; `stream` has begun.
fn control(random: &mut Random, stream: u32) -> Vec<u8> {
    let amount = 1 + random.below(1_000) as u32;
    match random.below(6) {
        0 => frame(PING, 0, 0, b"GET / HT"),
        1 => frame(SETTINGS, 0, 0, &settings(&[(3, amount), (4, 65_535 + amount)])),
        2 => frame(WINDOW_UPDATE, 0, 0, &amount.to_be_bytes()),
        3 => frame(WINDOW_UPDATE, 0, stream, &amount.to_be_bytes()),
        4 => frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 7]),
        _ => frame(0x20, 0xff, stream, b"GET /smuggled HTTP/1.1\r\n\r\n"),
    }
}

/// The frames of one stream.
fn stream(random: &mut Random, id: &str, is_service: bool) -> Vec<Unit> {
    let place = *random.pick(if is_service { CALLS } else { PLACES });
    let path = if is_service { format!("/{place}?{id}") } else { format!("/{place}/{id}") };
    let method = *random.pick(&["GET", "HEAD", "POST", "POST", "POST", "PUT"]);
    let is_bare = random.one_in(if method == "POST" { 6 } else { 2 });
    let body = if is_bare { Vec::new() } else { body(random, id, place) };
    let length = match random.below(12) {
        0 => Some(body.len().saturating_sub(1 + random.below(9) as usize)),
        1 => Some(body.len() + 1 + random.below(9) as usize),
        2..=6 => Some(body.len()),
        _ => None,
    };
    let length = length.map(|length| length.to_string());
    let filler = "y".repeat(random.below(300) as usize);
    let mut fields = request(method, &path, &[("x-id", id), ("x-filler", &filler)]);
    fields.extend(length.as_deref().map(|length| ("content-length", length)));
    if random.one_in(8) {
        fields.push(("expect", "100-continue"));
    }
    if matches!(place, "peek" | "check") {
        fields.push(("content-type", "application/json"));
    }
    let mut units = vec![head(random, &fields, is_bare)];
    if !is_bare {
        let has_trailers = random.one_in(6);
        units.extend(data(random, &body, !has_trailers));
        if has_trailers {
            units.push(head(random, &[("x-trailer", "GET /smuggled HTTP/1.1"), ("x-late", id)], true));
        }
    }
    match random.below(12) {
        0 | 1 => {
            units.truncate(1 + random.below(units.len() as u64) as usize);
            let code = *random.pick(&[NO_ERROR, 8, 2, STREAM_CLOSED]);
            units.push(vec![frame(RST_STREAM, 0, 0, &code.to_be_bytes())]);
        }
        // It never ends.
        2 if units.len() > 1 => drop(units.pop()),
        _ => {}
    }
    units
}

fn body(random: &mut Random, id: &str, place: &str) -> Vec<u8> {
    let count = if random.one_in(20) { 700 } else { random.below(12) };
    let text: String = (0..count).map(|_| *random.pick(DECOYS)).collect();
    let text = format!("{id} {text}");
    match place {
        "peek" | "check" if !random.one_in(4) => {
            serde_json::json!({ "limits": "calls", "key": id, "model": "m", "text": text })
                .to_string()
                .into_bytes()
        }
        _ => {
            // What the header block of another stream would look like.
            let decoy = frame(HEADERS, 5, 99, &block(&request("GET", "/smuggled", &[("x-id", id)])));
            [text.as_bytes(), &decoy[..]].concat()
        }
    }
}

/// A header block in HEADERS and CONTINUATIONs.
fn head(random: &mut Random, fields: &[(&str, &str)], is_last: bool) -> Unit {
    let block = block(fields);
    let mut cuts: Vec<usize> =
        (0..random.below(4)).map(|_| random.below(block.len() as u64 + 1) as usize).collect();
    cuts.sort_unstable();
    cuts.push(block.len());
    let mut flags = if is_last { END_STREAM } else { 0 };
    let mut unit = Unit::new();
    let mut start = 0;
    for (place, &end) in cuts.iter().enumerate() {
        let part = &block[start..end];
        start = end;
        let ends = if place + 1 == cuts.len() { END_HEADERS } else { 0 };
        if place > 0 {
            unit.push(frame(CONTINUATION, ends, 0, part));
            continue;
        }
        let priority: &[u8] = if random.one_in(5) { &[0, 0, 0, 0, 15] } else { &[] };
        let mut payload = [priority, part].concat();
        flags |= if priority.is_empty() { 0 } else { WITH_PRIORITY };
        if random.one_in(5) {
            flags |= PADDED;
            payload = padded(random, &payload);
        }
        unit.push(frame(HEADERS, flags | ends, 0, &payload));
    }
    unit
}

/// A body in frames cut anywhere, some empty or padded.
fn data(random: &mut Random, body: &[u8], ends: bool) -> Vec<Unit> {
    let mut cuts: Vec<usize> =
        (0..random.below(5)).map(|_| random.below(body.len() as u64 + 1) as usize).collect();
    cuts.extend((0..body.len()).step_by(16_000));
    cuts.sort_unstable();
    cuts.push(body.len());
    if random.one_in(4) {
        cuts.push(body.len());
    }
    let mut start = 0;
    let mut units = Vec::new();
    for (place, &end) in cuts.iter().enumerate() {
        let mut flags = if ends && place + 1 == cuts.len() { END_STREAM } else { 0 };
        let mut payload = body[start..end].to_vec();
        start = end;
        if random.one_in(4) {
            flags |= PADDED;
            payload = padded(random, &payload);
        }
        units.push(vec![frame(DATA, flags, 0, &payload)]);
    }
    units
}

fn padded(random: &mut Random, payload: &[u8]) -> Vec<u8> {
    let length = random.below(200) as u8;
    [&[length][..], payload, &vec![0; usize::from(length)]].concat()
}
