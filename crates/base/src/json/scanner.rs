//! The scanner of a JSON document that comes in slices.

use super::number::{NumberEnd, NumberScan};
use super::paths::{JsonPaths, PathSet};
use super::text_run::{CutCharacter, find_run};
use super::token::{EscapeByte, EscapeScan, TokenBuffer};
use crate::json_pointer::POINTER_SEGMENTS_MAX;

/// Containers inside each other; a document that is nested deeper counts as invalid, as for `serde_json`.
pub const DEPTH_MAX: usize = 127;

/// Receives the findings of a [`JsonScanner`]; all of them are void if the document turns out to be invalid.
pub trait JsonVisitor {
    /// A member of an object that the paths `live` lead into, `segments` from the top.
    fn read_name(&mut self, _name: &[u8], _live: PathSet, _segments: usize) {}

    /// A member on the way to `paths` begins, `segments` from the top. The values that were found on these ways inside
    /// the same object are void: of members with one name the last counts.
    fn begin_member(&mut self, paths: PathSet, segments: usize);

    /// The value at these paths.
    fn find_value(&mut self, paths: PathSet, value: JsonValue<'_>);

    /// Counts so many more bytes of the text at these paths, decoded.
    fn count_text(&mut self, _paths: PathSet, _bytes: usize) {}
}

/// A value of a document, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonValue<'a> {
    /// A text of at most [`TEXT_MAX`](super::TEXT_MAX) bytes.
    Text(&'a str),
    /// A text of more than [`TEXT_MAX`](super::TEXT_MAX) bytes.
    LongText,
    /// A number, as written and in millionths.
    Number(JsonNumber<'a>),
    /// The literal `true` or `false`.
    Bool(bool),
    /// The literal `null`.
    Null,
    /// An object or array; its content follows.
    Container,
}

/// A number of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonNumber<'a> {
    /// The text as written; `None`: longer than [`TEXT_MAX`](super::TEXT_MAX).
    pub text: Option<&'a str>,
    /// Rounded up; `None`: negative or larger than the largest `u64`.
    pub millionths: Option<u128>,
}

/// The state of one document between its slices.
#[derive(Debug, Clone, Default)]
pub struct JsonScanner {
    state: ScanState,
    /// Open containers, and the objects among them as bits, the innermost lowest.
    depth: usize,
    objects: u128,
    /// The paths that lead into each open container, and the place of the current element in each array.
    live: [PathSet; POINTER_SEGMENTS_MAX],
    indices: [u64; POINTER_SEGMENTS_MAX],
    top_is_array: bool,
    elements: u64,
    /// The paths that lead through the current member.
    member: PathSet,
    /// The paths that end at the scalar that is read: those of values, and those of texts that are counted.
    values: PathSet,
    texts: PathSet,
    token: TokenBuffer,
    is_name: bool,
    cut: CutCharacter,
    escape: EscapeScan,
    number: NumberScan,
    literal: &'static [u8],
}

/// The position in the grammar, which decides about the next byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ScanState {
    Mark,
    #[default]
    Value,
    FirstElement,
    FirstName,
    Name,
    Colon,
    AfterValue,
    Text,
    Escape,
    Number,
    Literal,
    Invalid,
}

// === impl JsonScanner ===

impl JsonScanner {
    /// Begins another document.
    pub fn restart(&mut self) {
        self.state = ScanState::Value;
        self.depth = 0;
        self.top_is_array = false;
        self.elements = 0;
    }

    /// Reads the next slice; `paths` are the same for the whole document.
    pub fn scan(&mut self, paths: &JsonPaths, bytes: &[u8], visitor: &mut impl JsonVisitor) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += match self.state {
                ScanState::Invalid => return,
                ScanState::Text => self.scan_text(paths, &bytes[at..], visitor),
                ScanState::Number => self.scan_number(&bytes[at..], visitor),
                ScanState::Escape => self.scan_escape(byte, visitor),
                ScanState::Mark | ScanState::Literal => self.scan_literal(&bytes[at..]),
                _ => self.scan_structure(paths, &bytes[at..], visitor),
            };
        }
    }

    /// True if the slices are one valid document, to its end.
    pub fn is_whole(&self) -> bool {
        match self.state {
            ScanState::AfterValue => self.depth == 0,
            ScanState::Number => self.depth == 0 && self.number.is_whole(),
            _ => false,
        }
    }

    /// True if nothing can make the slices a valid document.
    pub fn is_invalid(&self) -> bool {
        self.state == ScanState::Invalid
    }

    /// Elements of a document that is an array; `None`: the document is another value.
    pub fn count_elements(&self) -> Option<u64> {
        self.top_is_array.then_some(self.elements)
    }

    fn fail(&mut self) {
        self.state = ScanState::Invalid;
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects & 1 == 1
    }

    /// The paths that lead into the innermost container.
    fn live(&self) -> PathSet {
        self.depth.checked_sub(1).and_then(|at| self.live.get(at)).copied().unwrap_or_default()
    }

    /// Returns the number of bytes that it has used, as the next functions do.
    fn scan_structure(&mut self, paths: &JsonPaths, bytes: &[u8], visitor: &mut impl JsonVisitor) -> usize {
        use ScanState::*;
        for (at, &byte) in bytes.iter().enumerate() {
            match (byte, self.state) {
                (b'"', FirstName | Name) => {
                    self.begin_string(true, !self.live().is_empty());
                    return at + 1;
                }
                (b':', Colon) => self.state = Value,
                (b',', AfterValue) if self.depth > 0 => {
                    self.state = if self.in_object() { Name } else { Value }
                }
                (b'}', FirstName | AfterValue) if self.in_object() => self.close(),
                (b']', FirstElement | AfterValue) if self.depth > 0 && !self.in_object() => self.close(),
                (b' ' | b'\n' | b'\r' | b'\t', _) => {}
                // Servers skip a byte order mark in front of a document.
                (0xef, Value) if self.depth == 0 => {
                    (self.literal, self.state) = (b"\xbb\xbf", Mark);
                    return at + 1;
                }
                (_, Value | FirstElement) => {
                    self.begin_value(paths, byte, visitor);
                    if matches!(self.state, Text | Number | Literal | Invalid) {
                        return at + 1;
                    }
                }
                _ => {
                    self.fail();
                    return at + 1;
                }
            }
        }
        bytes.len()
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
        self.state = ScanState::AfterValue;
    }

    fn begin_value(&mut self, paths: &JsonPaths, byte: u8, visitor: &mut impl JsonVisitor) {
        let here = if self.depth == 0 {
            paths.all
        } else if self.in_object() {
            self.member
        } else {
            self.begin_element(paths)
        };
        let found = here.0 & paths.ends(self.depth).0;
        (self.values, self.texts) = (PathSet(found & !paths.texts.0), PathSet(found & paths.texts.0));
        match byte {
            b'"' => self.begin_string(false, !self.values.is_empty()),
            b'{' | b'[' => self.open(paths, byte == b'{', here, visitor),
            b'-' | b'0'..=b'9' => {
                self.state = ScanState::Number;
                self.number = NumberScan::new(byte);
                self.token.begin(!self.values.is_empty());
                self.token.push(&[byte]);
            }
            b't' => self.begin_literal(b"rue", JsonValue::Bool(true), visitor),
            b'f' => self.begin_literal(b"alse", JsonValue::Bool(false), visitor),
            b'n' => self.begin_literal(b"ull", JsonValue::Null, visitor),
            _ => self.fail(),
        }
    }

    fn begin_element(&mut self, paths: &JsonPaths) -> PathSet {
        let place = self.depth - 1;
        self.elements += u64::from(place == 0);
        let live = self.live();
        if live.is_empty() {
            return live;
        }
        let found = paths.find_element(place, self.indices[place], live);
        self.indices[place] += 1;
        found
    }

    fn open(&mut self, paths: &JsonPaths, is_object: bool, here: PathSet, visitor: &mut impl JsonVisitor) {
        if self.depth == DEPTH_MAX {
            return self.fail();
        }
        if !self.values.is_empty() {
            visitor.find_value(self.values, JsonValue::Container);
        }
        if let Some(live) = self.live.get_mut(self.depth) {
            *live = PathSet(here.0 & !paths.ends(self.depth).0);
            self.indices[self.depth] = 0;
        }
        self.top_is_array |= self.depth == 0 && !is_object;
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(is_object);
        self.state = if is_object { ScanState::FirstName } else { ScanState::FirstElement };
    }

    /// The visitor gets the value at its first byte: a document with another ending is invalid.
    fn begin_literal(&mut self, rest: &'static [u8], value: JsonValue<'_>, visitor: &mut impl JsonVisitor) {
        if !self.values.is_empty() {
            visitor.find_value(self.values, value);
        }
        self.literal = rest;
        self.state = ScanState::Literal;
    }

    fn scan_literal(&mut self, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.literal.len());
        let (expected, rest) = self.literal.split_at(length);
        if bytes[..length] != *expected {
            self.fail();
        } else {
            self.literal = rest;
            if rest.is_empty() {
                let is_mark = self.state == ScanState::Mark;
                // Behind a mark stands the value: `FirstElement` takes no second mark.
                self.state = if is_mark { ScanState::FirstElement } else { ScanState::AfterValue };
            }
        }
        length
    }

    fn scan_number(&mut self, bytes: &[u8], visitor: &mut impl JsonVisitor) -> usize {
        let (length, end) = self.number.push(bytes);
        self.token.push(&bytes[..length]);
        match end {
            NumberEnd::Open => {}
            NumberEnd::Whole => {
                self.state = ScanState::AfterValue;
                if !self.values.is_empty() {
                    let text = self.token.join(b"").and_then(|text| str::from_utf8(text).ok());
                    let number = JsonNumber { text, millionths: self.number.millionths() };
                    visitor.find_value(self.values, JsonValue::Number(number));
                }
            }
            NumberEnd::Invalid => self.fail(),
        }
        length
    }

    fn begin_string(&mut self, is_name: bool, is_kept: bool) {
        self.state = ScanState::Text;
        self.is_name = is_name;
        self.token.begin(is_kept);
        self.cut = CutCharacter::default();
        self.escape = EscapeScan::default();
    }

    fn scan_text(&mut self, paths: &JsonPaths, bytes: &[u8], visitor: &mut impl JsonVisitor) -> usize {
        let run = find_run(bytes);
        let (text, end) = (&bytes[..run.length], bytes.get(run.length));
        let is_utf8 = run.is_ascii && self.cut.is_empty() || self.cut.accepts(text);
        if !is_utf8 || end.is_some() && !self.cut.is_empty() {
            self.fail();
            return 1;
        }
        if !text.is_empty() || end == Some(&b'"') {
            let half = self.escape.end_half();
            self.push_decoded(half, visitor);
        }
        self.count_text(run.length, visitor);
        match end {
            Some(b'"') => self.end_string(paths, text, visitor),
            Some(b'\\') => {
                self.token.push(text);
                self.state = ScanState::Escape;
            }
            Some(_) => self.fail(),
            None => self.token.push(text),
        }
        run.length + 1
    }

    fn count_text(&self, bytes: usize, visitor: &mut impl JsonVisitor) {
        if !self.is_name && !self.texts.is_empty() {
            visitor.count_text(self.texts, bytes);
        }
    }

    /// `last` are the bytes of the string in this slice.
    fn end_string(&mut self, paths: &JsonPaths, last: &[u8], visitor: &mut impl JsonVisitor) {
        if self.is_name {
            self.state = ScanState::Colon;
            let (place, live) = (self.depth - 1, self.live());
            let name = self.token.join(last);
            self.member = name.map(|name| paths.find_member(place, name, live)).unwrap_or_default();
            name.into_iter().for_each(|name| visitor.read_name(name, live, self.depth));
            if !self.member.is_empty() {
                visitor.begin_member(self.member, self.depth);
            }
            return;
        }
        self.state = ScanState::AfterValue;
        if !self.values.is_empty() {
            let text = self.token.join(last).and_then(|text| str::from_utf8(text).ok());
            visitor.find_value(self.values, text.map_or(JsonValue::LongText, JsonValue::Text));
        }
    }

    fn scan_escape(&mut self, byte: u8, visitor: &mut impl JsonVisitor) -> usize {
        match self.escape.push(byte) {
            EscapeByte::Taken => {}
            EscapeByte::Complete(characters) => {
                self.push_decoded(characters.into_iter().flatten(), visitor);
                self.state = ScanState::Text;
            }
            EscapeByte::Invalid => self.fail(),
        }
        1
    }

    fn push_decoded(&mut self, characters: impl IntoIterator<Item = char>, visitor: &mut impl JsonVisitor) {
        for character in characters {
            let mut bytes = [0; 4];
            let text = character.encode_utf8(&mut bytes).as_bytes();
            self.token.push(text);
            self.count_text(text.len(), visitor);
        }
    }
}
