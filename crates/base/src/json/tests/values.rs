//! What a scanner finds in a document, kept to be compared; the fuzz tests use this file as well.

use serde_json::Value;

use super::{JsonPaths, JsonScanner, JsonValue, JsonVisitor, PathSet};

/// A value that was found in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundJson {
    Text(Box<str>),
    LongText,
    Number { text: Option<Box<str>>, millionths: Option<u128> },
    Bool(bool),
    Null,
    Container,
}

/// Values, and bytes of texts, by path. The texts of all members count, those that come again included.
pub(super) struct Collector {
    pub values: Vec<Option<FoundJson>>,
    pub texts: Vec<u64>,
}

impl Collector {
    pub(super) fn new(paths: &JsonPaths) -> Collector {
        Collector { values: vec![None; paths.len()], texts: vec![0; paths.len()] }
    }
}

impl JsonVisitor for Collector {
    fn begin_member(&mut self, paths: PathSet, _: usize) {
        paths.iter().for_each(|path| self.values[path] = None);
    }

    fn find_value(&mut self, paths: PathSet, value: JsonValue<'_>) {
        let found = match value {
            JsonValue::Text(text) => FoundJson::Text(text.into()),
            JsonValue::LongText => FoundJson::LongText,
            JsonValue::Number(number) => {
                FoundJson::Number { text: number.text.map(Into::into), millionths: number.millionths }
            }
            JsonValue::Bool(value) => FoundJson::Bool(value),
            JsonValue::Null => FoundJson::Null,
            JsonValue::Container => FoundJson::Container,
        };
        paths.iter().for_each(|path| self.values[path] = Some(found.clone()));
    }

    fn count_text(&mut self, paths: PathSet, bytes: usize) {
        paths.iter().for_each(|path| self.texts[path] += bytes as u64);
    }
}

/// Reads a document from its slices.
pub(super) fn collect<'a>(
    paths: &JsonPaths,
    slices: impl IntoIterator<Item = &'a [u8]>,
) -> (JsonScanner, Collector) {
    let (mut scanner, mut collector) = (JsonScanner::default(), Collector::new(paths));
    for slice in slices {
        scanner.scan(paths, slice, &mut collector);
        assert!(!(scanner.is_whole() && scanner.is_invalid()));
    }
    (scanner, collector)
}

/// The value of a document by `serde_json`, with the byte order mark in front taken away and lone halves of surrogate
/// pairs replaced, which it refuses. An error about a number beyond a double says nothing of the grammar.
pub(super) fn parse(document: &[u8]) -> Result<Option<Value>, serde_json::Error> {
    // A form feed, which `trim_ascii_start` takes away as well, is no space of JSON.
    let spaces = document.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
    let document = &document[spaces..];
    let document = replace_halves(document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document));
    match serde_json::from_slice(&document) {
        Err(error) if error.to_string().starts_with("number out of range") => Err(error),
        result => Ok(result.ok()),
    }
}

fn replace_halves(document: &[u8]) -> Vec<u8> {
    let half = |at: usize| {
        let digits = document.get(at..at + 6)?.strip_prefix(b"\\u")?;
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        u16::from_str_radix(str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()
    };
    let (mut replaced, mut at) = (Vec::new(), 0);
    while let Some(byte) = document.get(at) {
        let (kept, length): (&[u8], usize) = match (half(at), half(at + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => (&document[at..at + 12], 12),
            (Some(0xd800..0xe000), _) => (b"\\ufffd", 6),
            _ if *byte == b'\\' => (&document[at..document.len().min(at + 2)], 2),
            _ => (&document[at..=at], 1),
        };
        replaced.extend_from_slice(kept);
        at += length;
    }
    replaced
}
