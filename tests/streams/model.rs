//! The requests that the bytes of a client hold, by RFC 9113 alone.

use std::collections::BTreeMap;

use crate::Text;
use crate::support::h2_raw::*;

/// How far a stream came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Open,
    Complete,
    /// The client reset it, before or after its end.
    Reset,
    /// Its body has another length than its head announces (section 8.1.1).
    Malformed,
}

/// One request: what the client sent of it.
#[derive(Debug, Clone)]
pub struct Sent {
    pub number: u32,
    pub id: String,
    pub method: String,
    pub path: String,
    pub length: Option<usize>,
    pub body: Text,
    pub fate: Fate,
    /// It was complete before a reset.
    pub was_complete: bool,
}

impl Sent {
    /// The first part of its path.
    pub fn place(&self) -> &str {
        self.path[1..].split(['/', '?']).next().expect("a part")
    }

    /// It is answered without its body.
    pub fn is_answered_early(&self) -> bool {
        !matches!(self.place(), "read" | "peek" | "check" | "auth")
    }

    /// Its client waits for an answer, and the gateway has all that it needs.
    pub fn awaits_answer(&self) -> bool {
        match self.fate {
            Fate::Complete => true,
            Fate::Open => self.is_answered_early(),
            Fate::Reset | Fate::Malformed => false,
        }
    }

    fn end(&mut self) {
        assert_eq!(self.fate, Fate::Open, "the script goes on after an end");
        let is_right = self.length.is_none_or(|length| length == self.body.0.len());
        self.fate = if is_right { Fate::Complete } else { Fate::Malformed };
        self.was_complete = is_right;
    }
}

/// A header block that has begun.
struct Block {
    number: u32,
    ends_stream: bool,
    bytes: Vec<u8>,
}

/// The requests of a connection, by stream. A frame that is cut off does not count.
///
/// # Panics
/// The script does what no client may, except for lengths.
pub fn requests(bytes: &[u8]) -> BTreeMap<u32, Sent> {
    let mut sent: BTreeMap<u32, Sent> = BTreeMap::new();
    let mut open_block: Option<Block> = None;
    let mut rest = bytes.strip_prefix(PREFACE).unwrap_or_default();
    while let Some((head, more)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, more)) = more.split_at_checked(length) else { break };
        rest = more;
        let (kind, flags, number) = (head[3], head[4], code(&head[5..]));
        assert_eq!(open_block.is_some(), kind == CONTINUATION, "a header block is in one piece");
        match kind {
            HEADERS => {
                let mut bytes = unpadded(flags, payload);
                bytes = if flags & WITH_PRIORITY == 0 { bytes } else { &bytes[5..] };
                let ends_stream = flags & END_STREAM != 0;
                open_block = Some(Block { number, ends_stream, bytes: bytes.to_vec() });
            }
            CONTINUATION => {
                let block = open_block.as_mut().expect("a block");
                assert_eq!(block.number, number);
                block.bytes.extend_from_slice(payload);
            }
            DATA => {
                let sent = sent.get_mut(&number).expect("a stream that has begun");
                assert!(matches!(sent.fate, Fate::Open | Fate::Malformed), "DATA after an end");
                sent.body.0.extend_from_slice(unpadded(flags, payload));
                if sent.length.is_some_and(|length| sent.body.0.len() > length) {
                    sent.fate = Fate::Malformed;
                } else if flags & END_STREAM != 0 {
                    sent.end();
                }
            }
            RST_STREAM => sent.get_mut(&number).expect("a stream that has begun").fate = Fate::Reset,
            _ => {}
        }
        if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            finish_block(&mut sent, open_block.take().expect("a block"));
        }
    }
    sent
}

fn unpadded(flags: u8, payload: &[u8]) -> &[u8] {
    match flags & PADDED {
        0 => payload,
        _ => &payload[1..payload.len() - usize::from(payload[0])],
    }
}

/// The head of a request, or its trailers.
fn finish_block(sent: &mut BTreeMap<u32, Sent>, block: Block) {
    let fields = literals(&block.bytes);
    let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    let last = sent.keys().next_back().copied().unwrap_or(0);
    let request = sent.entry(block.number).or_insert_with(|| {
        assert!(block.number > last && block.number % 2 == 1, "numbers of streams grow");
        Sent {
            number: block.number,
            id: field("x-id").expect("an id"),
            method: field(":method").expect("a method"),
            path: field(":path").expect("a path"),
            length: field("content-length").map(|text| text.parse().expect("a number")),
            body: Text::default(),
            fate: Fate::Open,
            was_complete: false,
        }
    });
    if block.ends_stream && request.fate == Fate::Open {
        request.end();
    }
}

/// Literals without indexing and without a code (RFC 7541, section 6.2.2).
fn literals(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while let [0, rest @ ..] = bytes {
        let (name, rest) = text(rest);
        let (value, rest) = text(rest);
        fields.push((name, value));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "only literals");
    fields
}

fn text(bytes: &[u8]) -> (String, &[u8]) {
    let (mut length, mut at) = (usize::from(bytes[0]), 1);
    if length == 127 {
        let mut shift = 0;
        loop {
            length += usize::from(bytes[at] & 127) << shift;
            shift += 7;
            at += 1;
            if bytes[at - 1] < 128 {
                break;
            }
        }
    }
    let (text, rest) = bytes[at..].split_at(length);
    (String::from_utf8(text.to_vec()).expect("text"), rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    #[test]
    fn frames_become_requests() {
        let head = |n: u32, flags: u8, length: &str| {
            let fields = request("POST", "/read/a", &[("x-id", "a"), ("content-length", length)]);
            frame(HEADERS, flags, n, &block(&fields))
        };
        let reset = frame(RST_STREAM, 0, 5, &[0; 4]);
        let bytes = [
            PREFACE,
            &head(1, 4, "3"),
            &head(3, 4, "2"),
            &frame(DATA, PADDED, 1, b"\x02ab\0\0"),
            &frame(DATA, 0, 3, b"abc"),
            &head(5, 4, "9"),
            &frame(DATA, END_STREAM, 1, b"c"),
            &reset,
            &head(7, 5, "1"),
            &head(9, 4, "0"),
            &frame(DATA, END_STREAM, 9, b"")[..8],
        ];
        let fates = requests(&bytes.concat()).into_values().map(|sent| (sent.body.0, sent.fate));
        let expected = [
            (&b"abc"[..], Fate::Complete),
            (b"abc", Fate::Malformed),
            (b"", Fate::Reset),
            (b"", Fate::Malformed),
            (b"", Fate::Open),
        ];
        assert!(fates.eq(expected.map(|(body, fate)| (body.to_vec(), fate))));
    }

    /// Scripts break no rule, and their streams come to each end.
    #[test]
    fn scripts_hold_requests_of_each_fate() {
        let scripts = (0..1_000).map(|seed| Script::new(seed).bytes());
        let sent: Vec<Sent> = scripts.flat_map(|bytes| requests(&bytes).into_values()).collect();
        for fate in [Fate::Open, Fate::Complete, Fate::Reset, Fate::Malformed] {
            let count = sent.iter().filter(|one| one.fate == fate).count();
            assert!(count > sent.len() / 20, "{fate:?}: {count} of {}", sent.len());
        }
    }
}
