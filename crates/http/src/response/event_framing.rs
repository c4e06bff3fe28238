//! Server-sent events: the data of each event, in pieces.
//!
//! Source: <https://html.spec.whatwg.org/multipage/server-sent-events.html>. Fields other than `data` and comments are
//! skipped. Differences that JSON ignores as white space are not resolved: a space in front of a value, and a line of
//! data without a value.

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const DATA: &[u8] = b"data";

/// A part of a body's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramePiece<'a> {
    Data(&'a [u8]),
    /// The document is over.
    End,
}

/// The state of a stream between its pieces.
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
