//! The values of a whole document, kept.

use super::paths::{JsonPaths, PathSet};
use super::scanner::{JsonScanner, JsonValue, JsonVisitor};

/// What a valid document has at the paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonValues {
    values: Vec<Option<FoundJson>>,
    elements: Option<u64>,
}

/// A value that was found in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundJson {
    Text(Box<str>),
    /// A text of more than [`TEXT_MAX`](super::TEXT_MAX) bytes.
    LongText,
    /// `text` is the number as written, unless it is longer than [`TEXT_MAX`](super::TEXT_MAX); `millionths` is `None`
    /// of a number that is negative or larger than the largest `u64`.
    Number {
        text: Option<Box<str>>,
        millionths: Option<u128>,
    },
    Bool(bool),
    Null,
    /// An object or array.
    Container,
}

struct ValueKeeper(Vec<Option<FoundJson>>);

// === impl JsonValues ===

impl JsonValues {
    /// Reads a document from its slices. `None`: it is not whole or not valid.
    pub fn read<'a>(paths: &JsonPaths, slices: impl IntoIterator<Item = &'a [u8]>) -> Option<JsonValues> {
        let mut scanner = JsonScanner::default();
        let mut keeper = ValueKeeper(vec![None; paths.len()]);
        for slice in slices {
            scanner.scan(paths, slice, &mut keeper);
        }
        scanner.is_whole().then(|| JsonValues { values: keeper.0, elements: scanner.count_elements() })
    }

    /// The value at a path, by the number of the path.
    pub fn get(&self, path: usize) -> Option<&FoundJson> {
        self.values.get(path)?.as_ref()
    }

    /// Elements of the array that the document is; `None`: it is another value.
    pub fn count_elements(&self) -> Option<u64> {
        self.elements
    }
}

// === impl FoundJson ===

impl FoundJson {
    /// The number in millionths, rounded up.
    pub fn millionths(&self) -> Option<u128> {
        match self {
            FoundJson::Number { millionths, .. } => *millionths,
            _ => None,
        }
    }
}

impl From<JsonValue<'_>> for FoundJson {
    fn from(value: JsonValue<'_>) -> Self {
        match value {
            JsonValue::Text(text) => FoundJson::Text(text.into()),
            JsonValue::LongText => FoundJson::LongText,
            JsonValue::Number(number) => {
                FoundJson::Number { text: number.text.map(Into::into), millionths: number.millionths }
            }
            JsonValue::Bool(value) => FoundJson::Bool(value),
            JsonValue::Null => FoundJson::Null,
            JsonValue::Container => FoundJson::Container,
        }
    }
}

// === impl ValueKeeper ===

impl JsonVisitor for ValueKeeper {
    fn begin_member(&mut self, paths: PathSet, _: usize) {
        paths.iter().for_each(|path| self.0[path] = None);
    }

    fn find_value(&mut self, paths: PathSet, value: JsonValue<'_>) {
        paths.iter().for_each(|path| self.0[path] = Some(value.into()));
    }
}
