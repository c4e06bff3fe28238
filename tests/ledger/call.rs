//! One random call: what the client sends, what the provider answers, how both end it, and what it must cost.

use crate::dialect::{DIALECTS, Dialect, Event, Tokens};
use crate::random::Random;
use crate::support::{Gate, Reply, get, post};

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Whole,
    /// The provider closes in the middle.
    ServerCloses,
    /// The client leaves once it has all that the provider sent so far.
    ClientLeaves,
}

/// What the access log must say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub reserved: u64,
    pub charged: u64,
    pub by: &'static str,
}

#[derive(Debug, Clone)]
pub struct Call {
    pub seed: u64,
    /// The location, which has the limit of this name.
    pub limit: &'static str,
    pub ending: Ending,
    pub is_retried: bool,
    pub status: u16,
    /// The provider sends a head before the call ends.
    pub sends_head: bool,
    pub expected: Expected,
    request_body: Vec<u8>,
    head: String,
    framing: Framing,
    /// The part of the body that is sent.
    body: Vec<u8>,
    splits: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length,
    Chunked,
    UntilClose,
}

const LIMITS: [&str; 8] = ["tokens", "tokens", "tokens", "tokens", "jobs", "fields", "bytes", "login"];

impl Call {
    pub fn from_seed(seed: u64) -> Call {
        let random = &mut Random::new(seed);
        let limit = *random.pick(&LIMITS);
        let ending = match random.below(10) {
            0 => Ending::ServerCloses,
            1 | 2 => Ending::ClientLeaves,
            _ => Ending::Whole,
        };
        let sends_head = ending == Ending::Whole || !random.one_in(4);
        let is_retried = random.one_in(10);
        let mut call = Call {
            seed,
            limit,
            ending,
            is_retried,
            status: 200,
            sends_head,
            expected: Expected { reserved: 1, charged: 0, by: "usage" },
            // What has a body is not sent twice.
            request_body: if is_retried {
                Vec::new()
            } else {
                "x".repeat(random.below(300) as usize).into_bytes()
            },
            head: String::new(),
            framing: *random.pick(&[
                Framing::Length,
                Framing::Chunked,
                Framing::Chunked,
                Framing::UntilClose,
            ]),
            body: Vec::new(),
            splits: Vec::new(),
        };
        match limit {
            "tokens" => call.plan_tokens(random),
            "jobs" => call.plan_header(random),
            "fields" => call.plan_field(random),
            "bytes" => call.plan_bytes(random),
            _ => call.plan_login(random),
        }
        if !sends_head {
            call.body.clear();
        }
        let most = call.body.len() as u64 + 1;
        call.splits = (0..random.below(12)).map(|_| random.below(most) as usize).collect();
        call.splits.sort_unstable();
        call
    }

    /// As assertions show it.
    pub fn shown(&self) -> String {
        let Call { seed, limit, ending, is_retried, head, framing, .. } = self;
        let body = String::from_utf8_lossy(&self.body);
        format!("call {seed}: {limit} {ending:?} {framing:?}, retried: {is_retried}\n{head}\n{body:.2000}")
    }

    /// The bytes that the client sends.
    pub fn request(&self) -> Vec<u8> {
        let target = format!("/{}/{}", self.limit, self.seed);
        if self.is_retried { get(&target).bytes() } else { post(&target, &self.request_body).bytes() }
    }

    /// The provider's answer; a call that its client ends waits for `gate`.
    pub fn reply(&self, gate: &Gate) -> Reply {
        let mut reply = Reply::default();
        if self.sends_head {
            reply = reply.then(format!("{}\r\n", self.head));
            let mut from = 0;
            for &to in self.splits.iter().chain([&self.body.len()]) {
                let piece = &self.body[from..to];
                if self.framing == Framing::Chunked && !piece.is_empty() {
                    reply =
                        reply.then([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
                } else {
                    reply = reply.then(piece);
                }
                from = to;
            }
        }
        match self.ending {
            Ending::ClientLeaves => reply.until(gate).close(),
            Ending::ServerCloses => reply.close(),
            Ending::Whole if self.framing == Framing::Chunked => reply.then("0\r\n\r\n"),
            Ending::Whole if self.framing == Framing::UntilClose => reply.close(),
            Ending::Whole => reply,
        }
    }

    /// The bytes of the body that the provider sends.
    pub fn delivered(&self) -> &[u8] {
        &self.body
    }

    /// Whether the client gets the body in chunks.
    pub fn is_chunked(&self) -> bool {
        self.framing != Framing::Length
    }

    fn write_head(&mut self, status: u16, fields: &str, whole: usize) {
        self.status = status;
        if !self.sends_head && self.ending == Ending::ServerCloses {
            self.status = 502;
        }
        self.head = format!("HTTP/1.1 {status} Any\r\n{fields}");
        match self.framing {
            // An answer that is cut must tell more than comes.
            Framing::Length => self.head += &format!("Content-Length: {whole}\r\n"),
            Framing::Chunked => self.head += "Transfer-Encoding: chunked\r\n",
            Framing::UntilClose => self.head += "Connection: close\r\n",
        }
        // Whatever its provider closes without a length is whole.
        if self.framing == Framing::UntilClose && self.ending == Ending::ServerCloses && self.sends_head {
            self.ending = Ending::Whole;
        }
    }

    fn plan_tokens(&mut self, random: &mut Random) {
        let dialect = *random.pick(&DIALECTS);
        let tokens = Tokens {
            input: random.below(5_000),
            cached: if dialect == Dialect::OllamaStream { 0 } else { random.below(900) },
            output: random.below(9_000),
        };
        let tells = !random.one_in(4);
        let pieces: Vec<String> = (0..1 + random.below(20)).map(|_| random_text(random)).collect();
        let events = dialect.events(&pieces, tokens, tells, random);
        let is_compressed = random.one_in(20);
        let documents: Vec<Vec<u8>> = events.iter().map(|event| frame(dialect, event, random)).collect();
        let whole: usize = documents.iter().map(Vec::len).sum();
        let sent = match self.ending {
            Ending::Whole => events.len(),
            // One document cannot end between events.
            _ if !dialect.is_stream() => 0,
            _ => random.below(events.len() as u64) as usize,
        };
        let kind = match (dialect.is_stream(), dialect.is_ndjson()) {
            (false, _) => "application/json",
            (true, true) => "application/x-ndjson",
            (true, false) => "text/event-stream; charset=utf-8",
        };
        let coding = if is_compressed { "Content-Encoding: gzip\r\n" } else { "" };
        self.write_head(200, &format!("Content-Type: {kind}\r\n{coding}"), whole.max(1));
        self.body = documents[..sent].concat();
        if !self.sends_head {
            return self.expect_tokens(&[], (false, false), 0);
        }
        let events = if is_compressed { &[][..] } else { &events[..sent] };
        // A body that says nothing that is known counts by its bytes.
        let is_known = events.iter().any(|event| {
            event.text > 0 || event.output.is_some() || !dialect.is_stream() && event.input.is_some()
        });
        let unknown: usize = match (is_compressed, is_known) {
            (true, _) => self.body.len(),
            (false, true) => 0,
            // As a list of models.
            (false, false) if !dialect.is_stream() && self.request_body.is_empty() => 0,
            (false, false) => documents[..sent].iter().map(|framed| data_bytes(dialect, framed)).sum(),
        };
        // Without a prompt there need not be an answer that is known.
        let is_none = !is_known && !self.request_body.is_empty();
        self.expect_tokens(events, (self.ending == Ending::Whole, is_none), unknown as u64);
    }

    /// Weights: input 1, output 4, cached 0.1.
    fn expect_tokens(&mut self, events: &[Event], (is_complete, is_none): (bool, bool), unknown: u64) {
        let text: u64 = events.iter().map(|event| event.text).sum::<u64>() + unknown;
        let input = events.iter().rev().find_map(|event| event.input);
        let output = events.iter().rev().find_map(|event| event.output);
        let estimated = text.div_ceil(4);
        // What was delivered after the last usage is not part of it.
        let after: u64 =
            events.iter().rev().take_while(|event| event.output.is_none()).map(|event| event.text).sum();
        let unsaid = if is_complete { 0 } else { after };
        let output_units = output.map_or(estimated, |said| said + unsaid.div_ceil(4));
        let (plain, cached) = input.unwrap_or(((self.request_body.len() as u64).div_ceil(4), 0));
        let tenths = plain * 10 + output_units * 40 + cached;
        // A usage without text is the last of its stream.
        let last = events.iter().rev().find(|event| event.output.is_some());
        let is_final = last.is_some_and(|last| last.output > Some(0) && last.text == 0);
        let is_said = input.is_some() && output.is_some() && unsaid == 0 && (is_complete || is_final);
        let charged = tenths.div_ceil(10);
        // Of what broke off, nobody knows the rest.
        let (charged, by) = match is_said {
            true => (charged, "usage"),
            false if (!is_complete || is_none) && charged <= 100 => (100, "reserve"),
            false => (charged, "estimate"),
        };
        self.expected = Expected { reserved: 100, charged, by };
    }

    fn plan_header(&mut self, random: &mut Random) {
        let cost = random.below(500);
        let (field, units) = match random.below(6) {
            0 => (String::new(), None),
            1 => ("X-Cost: many\r\n".to_owned(), None),
            2 => (format!("X-Cost: {cost}.25\r\n"), Some(cost + 1)),
            _ => (format!("X-Cost: {cost}\r\n"), Some(cost)),
        };
        self.body = b"done".to_vec();
        self.write_head(200, &field, if self.ending == Ending::Whole { 4 } else { 9 });
        let units = units.filter(|_| self.sends_head);
        let by = if units.is_some() { "usage" } else { "reserve" };
        self.expected = Expected { reserved: 7, charged: units.unwrap_or(7), by };
    }

    fn plan_field(&mut self, random: &mut Random) {
        let cost = random.below(500);
        let (document, units) = match random.below(5) {
            0 => ("{\"result\":{}}".to_owned(), None),
            1 => ("{\"result\":{\"cost\":\"7\"}}".to_owned(), None),
            2 => (format!("{{\"x\":[1],\"result\":{{\"cost\":1,\"cost\":{cost}}}}}"), Some(cost)),
            3 => (format!("{{\"result\":{{\"cost\":{cost}"), None),
            _ => (format!("  {{ \"result\" : {{ \"\\u0063ost\" : {cost} }} }}\n"), Some(cost)),
        };
        self.body = document.into_bytes();
        let more = if self.ending == Ending::Whole { 0 } else { 9 };
        self.write_head(200, "Content-Type: application/json\r\n", self.body.len() + more);
        let units = units.filter(|_| self.sends_head);
        let by = if units.is_some() { "usage" } else { "nothing" };
        self.expected = Expected { reserved: 1, charged: units.unwrap_or(0), by };
    }

    fn plan_bytes(&mut self, random: &mut Random) {
        let most = if random.one_in(20) { 300_000 } else { 3_000 };
        let bytes = random.below(most) as usize;
        self.body = vec![b'b'; bytes];
        self.write_head(200, "", if self.ending == Ending::Whole { bytes } else { bytes + 9 });
        let charged = if self.sends_head { bytes as u64 } else { 0 };
        self.expected = Expected { reserved: 1, charged, by: "usage" };
    }

    fn plan_login(&mut self, random: &mut Random) {
        let status = *random.pick(&[200, 200, 299, 401, 403, 404, 500]);
        self.body = b"answer".to_vec();
        self.write_head(status, "", if self.ending == Ending::Whole { 6 } else { 9 });
        let is_met = !self.sends_head || matches!(status, 401 | 403);
        let (charged, by) = if is_met { (1, "request") } else { (0, "nothing") };
        self.expected = Expected { reserved: 1, charged, by };
    }
}

/// The bytes of an event on the wire.
fn frame(dialect: Dialect, event: &Event, random: &mut Random) -> Vec<u8> {
    let mut text = event.document.to_string();
    if random.one_in(3) {
        text = escape_non_ascii(&text);
    }
    if !dialect.is_stream() {
        return text.into_bytes();
    }
    let end = *random.pick(&["\n", "\n", "\r\n"]);
    if dialect.is_ndjson() {
        return format!("{text}{end}").into_bytes();
    }
    let mut framed = String::new();
    if random.one_in(6) {
        framed += &format!(": a comment{end}");
    }
    if let Some(name) = event.name {
        framed += &format!("event: {name}{end}");
    }
    let space = *random.pick(&["", " "]);
    framed += &format!("data:{space}{text}{end}{end}");
    framed.into_bytes()
}

/// Bytes of the document in a frame, with the space in front of it.
fn data_bytes(dialect: Dialect, framed: &[u8]) -> usize {
    let text = std::str::from_utf8(framed).expect("text");
    match (dialect.is_stream(), dialect.is_ndjson()) {
        (false, _) => text.len(),
        (true, true) => text.len() - 1,
        (true, false) => text.split_once("data:").map_or(0, |(_, data)| data.trim_end().len()),
    }
}

/// Writes everything but ASCII as escapes, in surrogate pairs where needed.
fn escape_non_ascii(text: &str) -> String {
    let mut out = String::new();
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() => out.push(byte.into()),
            _ => out += &format!("\\u{unit:04x}"),
        }
    }
    out
}

fn random_text(random: &mut Random) -> String {
    const PIECES: [&str; 12] =
        ["word ", "a", "\"", "\\", "\n", "é", "€", "😀", "\u{0}", "data: ", "{\"usage\":1}", "\t"];
    (0..random.below(8)).map(|_| *random.pick(&PIECES)).collect()
}
