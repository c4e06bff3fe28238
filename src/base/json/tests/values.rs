//! What a scanner finds in a document, kept to be compared; the fuzz tests use this file as well.

use super::{JsonPaths, JsonScanner, JsonValue, JsonVisitor, PathSet};

/// A value that was found in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundJson {
    Text(Box<str>),
    LongText,
    Number { text: Option<Box<str>>, millionths: Option<u128> },
    Bool(bool),
    Null,
    Container,
}

/// Values, and bytes of texts, by path. The texts of all members count, those that come again included.
pub struct Collector {
    pub values: Vec<Option<FoundJson>>,
    pub texts: Vec<u64>,
}

impl Collector {
    pub fn new(paths: &JsonPaths) -> Collector {
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
pub fn collect<'a>(
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
