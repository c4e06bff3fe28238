//! The documents in a body, by its content type.

use http::HeaderValue;

/// The form of the documents in a body, with the state between its pieces.
#[derive(Debug, Clone, Copy)]
pub(super) enum BodyFraming {
    /// The body is one document.
    Document,
    Events(EventFraming),
    Messages(AwsFraming),
    /// Each line is a document.
    Lines,
    /// Compressed, or of a type that is not read.
    Opaque,
}

/// Types of JSON by lines; the last is that of Cohere.
const LINE_TYPES: [&[u8]; 3] = [b"application/x-ndjson", b"application/jsonl", b"application/stream+json"];

// === impl BodyFraming ===

impl BodyFraming {
    pub(super) fn new(content_type: Option<&HeaderValue>, content_encoding: Option<&HeaderValue>) -> Self {
        let is_plain = content_encoding.is_none_or(|encoding| is_word(encoding.as_bytes(), b"identity"));
        let Some(content_type) = content_type.filter(|_| is_plain) else { return BodyFraming::Opaque };
        let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let is_type = |name: &[u8]| is_word(essence, name);
        if is_type(b"text/event-stream") {
            BodyFraming::Events(EventFraming::default())
        } else if LINE_TYPES.iter().any(|name| is_type(name)) {
            BodyFraming::Lines
        } else if is_type(b"application/vnd.amazon.eventstream") {
            BodyFraming::Messages(AwsFraming::default())
        } else if is_type(b"application/json") || is_json_suffix(essence) {
            BodyFraming::Document
        } else {
            BodyFraming::Opaque
        }
    }

    pub(super) fn scan(&mut self, bytes: &[u8], mut each: impl FnMut(FramePiece<'_>)) {
        match self {
            BodyFraming::Document => each(FramePiece::Data(bytes)),
            BodyFraming::Events(stream) => stream.scan(bytes, each),
            BodyFraming::Messages(stream) => stream.scan(bytes, each),
            BodyFraming::Lines => {
                let mut start = 0;
                for end in memchr::memchr_iter(b'\n', bytes) {
                    each(FramePiece::Data(&bytes[start..end]));
                    each(FramePiece::End);
                    start = end + 1;
                }
                each(FramePiece::Data(&bytes[start..]));
            }
            BodyFraming::Opaque => {}
        }
    }
}

fn is_word(text: &[u8], word: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(word)
}

/// True if a media type is JSON by its suffix (RFC 6839), as `application/problem+json` is.
fn is_json_suffix(essence: &[u8]) -> bool {
    let essence = essence.trim_ascii();
    essence.len().checked_sub(b"+json".len()).is_some_and(|at| essence[at..].eq_ignore_ascii_case(b"+json"))
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const DATA: &[u8] = b"data";

/// A part of a body's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramePiece<'a> {
    Data(&'a [u8]),
    /// The document is over.
    End,
}

/// Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): the data of each, in pieces.
/// Fields other than `data` and comments are skipped. Differences that JSON ignores as white space are not resolved: a
/// space in front of a value, and a line of data without a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventFraming {
    line: EventLine,
    /// The last line ended with CR: an LF right behind it belongs to it.
    after_cr: bool,
    /// The event has a line of data.
    has_data: bool,
}

/// The place inside a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventLine {
    /// Bytes so far of a byte order mark, which may begin the stream.
    Mark(usize),
    /// Bytes so far of the name `data`.
    Field(usize),
    Data,
    Skipped,
}

// === impl EventFraming ===

impl Default for EventFraming {
    fn default() -> Self {
        EventFraming { line: EventLine::Mark(0), after_cr: false, has_data: false }
    }
}

impl EventFraming {
    pub(super) fn scan(&mut self, bytes: &[u8], mut each: impl FnMut(FramePiece<'_>)) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += match self.line {
                EventLine::Mark(known) => self.scan_mark(known, byte),
                EventLine::Field(known) => self.scan_field(known, byte, &mut each),
                EventLine::Data | EventLine::Skipped => {
                    let rest = &bytes[at..];
                    let end = memchr::memchr2(b'\n', b'\r', rest);
                    let value = &rest[..end.unwrap_or(rest.len())];
                    if self.line == EventLine::Data && !value.is_empty() {
                        each(FramePiece::Data(value));
                    }
                    if let Some(end) = end {
                        self.end_line(rest[end]);
                    }
                    value.len() + 1
                }
            };
        }
    }

    /// Returns the number of bytes that it has used, as the next functions do.
    fn scan_mark(&mut self, known: usize, byte: u8) -> usize {
        let is_next = BYTE_ORDER_MARK.get(known) == Some(&byte);
        self.line = match known {
            2 if is_next => EventLine::Field(0),
            _ if is_next => EventLine::Mark(known + 1),
            0 => EventLine::Field(0),
            // A part of the mark is part of a name.
            _ => EventLine::Skipped,
        };
        usize::from(is_next)
    }

    fn scan_field(&mut self, known: usize, byte: u8, each: &mut impl FnMut(FramePiece<'_>)) -> usize {
        let belongs_to_cr = std::mem::take(&mut self.after_cr) && byte == b'\n';
        match byte {
            b'\n' if belongs_to_cr => {}
            b'\n' | b'\r' => {
                if known == 0 && std::mem::take(&mut self.has_data) {
                    each(FramePiece::End);
                }
                self.end_line(byte);
            }
            b':' if known == DATA.len() => self.begin_data(each),
            _ if DATA.get(known) == Some(&byte) => self.line = EventLine::Field(known + 1),
            _ => self.line = EventLine::Skipped,
        }
        1
    }

    /// Lines of data are joined by a line break.
    fn begin_data(&mut self, each: &mut impl FnMut(FramePiece<'_>)) {
        if std::mem::replace(&mut self.has_data, true) {
            each(FramePiece::Data(b"\n"));
        }
        self.line = EventLine::Data;
    }

    fn end_line(&mut self, end: u8) {
        self.line = EventLine::Field(0);
        self.after_cr = end == b'\r';
    }
}

const LENGTHS: u64 = 8;
const CHECKSUM: u64 = 4;
const LEAST: u64 = LENGTHS + 2 * CHECKSUM;

/// Messages of AWS (<https://smithy.io/2.0/aws/amazon-eventstream.html>): the payload of each, in pieces. A message is
/// its length, the length of its headers, a checksum of both, headers, payload, and a checksum; checksums are not
/// compared.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AwsFraming {
    /// Bytes of the current message that were read.
    at: u64,
    lengths: [u8; LENGTHS as usize],
}

// === impl AwsFraming ===

impl AwsFraming {
    pub(super) fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(FramePiece<'_>)) {
        while let Some(&byte) = bytes.first() {
            if let Some(place) = usize::try_from(self.at).ok().and_then(|at| self.lengths.get_mut(at)) {
                *place = byte;
                self.at += 1;
                bytes = &bytes[1..];
                continue;
            }
            let [end, headers] = self.read_lengths();
            let trailer = end - CHECKSUM;
            let payload = (LENGTHS + CHECKSUM + headers).min(trailer);
            let stop = [payload, trailer, end].into_iter().find(|stop| *stop > self.at).unwrap_or(end);
            let length = usize::try_from(stop - self.at).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (piece, rest) = bytes.split_at(length);
            if (payload..trailer).contains(&self.at) {
                each(FramePiece::Data(piece));
            }
            (self.at, bytes) = (self.at + length as u64, rest);
            if self.at == end {
                each(FramePiece::End);
                self.at = 0;
            }
        }
    }

    /// The length of the message, and that of its headers.
    fn read_lengths(&self) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h] = self.lengths;
        let (message, headers) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        [u64::from(message).max(LEAST), headers.into()]
    }
}
