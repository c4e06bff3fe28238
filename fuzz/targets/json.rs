//! JSON says the same wherever it is cut, and what `serde_json` reads.

#![no_main]

mod pieces;
#[path = "../../crates/base/src/json/tests/values.rs"]
mod values;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sluicegate_base::json::{JsonPaths, JsonScanner, JsonValue, JsonVisitor, PathSet, TEXT_MAX};
use values::{Collector, FoundJson, collect, parse};

const WAYS: [&str; 8] = ["a", "b", "a/b", "a/0", "0", "1/a", "a/0/b", ""];
const TEXTS: [&str; 4] = ["a", "a/*/b", "*/a", "*/*"];

static PATHS: LazyLock<JsonPaths> = LazyLock::new(|| {
    let mut paths = JsonPaths::default();
    WAYS.iter().for_each(|way| _ = paths.add_member(way).expect("there is room"));
    TEXTS.iter().for_each(|way| _ = paths.add_text(way).expect("there is room"));
    paths
});

/// All that a document says.
#[derive(Debug, PartialEq)]
struct Said {
    is_whole: bool,
    elements: Option<u64>,
    values: Vec<Option<FoundJson>>,
    texts: Vec<u64>,
}

fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Said {
    let (scanner, Collector { mut values, mut texts }) = collect(&PATHS, pieces);
    values.truncate(WAYS.len());
    let texts = texts.split_off(WAYS.len());
    Said { is_whole: scanner.is_whole(), elements: scanner.count_elements(), values, texts }
}

fn is_same(found: Option<&FoundJson>, value: Option<&Value>) -> bool {
    match (found, value) {
        (None, None) | (Some(FoundJson::Null), Some(Value::Null)) => true,
        (Some(FoundJson::Text(found)), Some(Value::String(text))) => **found == **text,
        (Some(FoundJson::LongText), Some(Value::String(text))) => text.len() > TEXT_MAX,
        (Some(FoundJson::Bool(found)), Some(Value::Bool(value))) => found == value,
        (Some(FoundJson::Container), Some(Value::Array(_) | Value::Object(_))) => true,
        (Some(FoundJson::Number { text, millionths }), Some(Value::Number(number))) => {
            let is_exact =
                number.as_u64().is_none_or(|whole| *millionths == Some(u128::from(whole) * 1_000_000));
            // A long number has no text.
            let is_text = |text: &str| serde_json::from_str::<Value>(text).ok().as_ref() == value;
            text.as_deref().is_none_or(|text| is_exact && is_text(text))
        }
        _ => false,
    }
}

fuzz_target!(|document: &[u8]| {
    let said = scan([document]);
    for pieces in pieces::cuts(document) {
        let other = scan(pieces);
        assert_eq!(said.is_whole, other.is_whole);
        // An invalid document is left where it is found invalid; nobody asks what it said.
        assert!(!said.is_whole || said == other, "{said:?} became {other:?}");
    }
    let Ok(parsed) = parse(document) else { return };
    assert_eq!(said.is_whole, parsed.is_some(), "one reader accepts it, the other does not");
    let Some(value) = parsed else { return };
    for (way, found) in WAYS.iter().zip(&said.values) {
        let expected = value.pointer(&format!("/{way}"));
        assert!(is_same(found.as_ref(), expected), "{way}: {found:?}, not {expected:?}");
    }
    assert_eq!(said.elements, value.as_array().map(|elements| elements.len() as u64));
});
