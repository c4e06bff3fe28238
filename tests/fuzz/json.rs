//! JSON as it comes: any bytes, cut anywhere, say the same as whole, and what `serde_json` reads.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;
use sluicegate_base::json::{JsonPaths, JsonScanner, JsonValue, JsonVisitor, PathSet};

use crate::fuzz;
use values::{Collector, FoundJson, collect, parse};

#[path = "../../crates/base/src/json/tests/values.rs"]
mod values;

const WAYS: [&str; 8] = ["a", "b", "a/b", "a/0", "0", "1/a", "a/0/b", ""];
const TEXTS: [&str; 4] = ["a", "a/*/b", "*/a", "*/*"];

/// All that a document says, cut into pieces.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    is_whole: bool,
    elements: Option<u64>,
    values: Vec<Option<FoundJson>>,
    texts: Vec<u64>,
}

fn paths() -> JsonPaths {
    let mut paths = JsonPaths::default();
    WAYS.iter().for_each(|way| _ = paths.add_member(way).expect("there is room"));
    TEXTS.iter().for_each(|way| _ = paths.add_text(way).expect("there is room"));
    paths
}

fn scan<'a>(paths: &JsonPaths, pieces: impl IntoIterator<Item = &'a [u8]>) -> Said {
    let (scanner, Collector { mut values, mut texts }) = collect(paths, pieces);
    values.truncate(WAYS.len());
    let texts = texts.split_off(WAYS.len());
    Said { is_whole: scanner.is_whole(), elements: scanner.count_elements(), values, texts }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..100_000u32).prop_map(|number| Value::from(f64::from(number) / 256.0)),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        "[a\"\\\\\u{0}-\u{20}ü🦀]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let names =
            prop_oneof![4 => select(vec!["a", "b", "0", ""]).prop_map(str::to_owned), 1 => "\\PC{0,6}"];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((names, inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Valid documents, documents with changes, and words of the language in any order.
fn document() -> impl Strategy<Value = Vec<u8>> {
    let words = vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\"b\":",
        "\"a\":",
        "\\",
        "\\u",
        "d83e",
        "\\ud83e\\udd80",
        "0",
        "-",
        "1.5",
        "e309",
        "E-2",
        ".",
        "true",
        "fals",
        "null",
        "\\ud83e",
        "\\udd80",
        "\u{feff}",
        " ",
        "\n",
        "\u{1}",
        "ü",
        "a",
        "{\"a\":[{\"b\":\"x\"}]}",
    ];
    let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).chain([&b"\xff"[..], b"\xe2\x82"]).collect();
    let valid = prop_oneof![
        value().prop_map(|value| value.to_string().into_bytes()),
        value().prop_map(|value| format!(" {value:#}\n").into_bytes()),
    ];
    let changes = proptest::collection::vec((any::<Index>(), any::<bool>(), select(words.clone())), 1..4);
    let changed = (valid.clone().boxed(), changes).prop_map(|(mut bytes, changes)| {
        for (place, replaces, word) in changes {
            let at = place.index(bytes.len() + 1);
            let end = if replaces { (at + word.len()).min(bytes.len()) } else { at };
            bytes.splice(at..end, word.iter().copied());
        }
        bytes
    });
    let pieces = proptest::collection::vec(select(words), 0..20).prop_map(|words| words.concat());
    prop_oneof![2 => valid, 3 => changed, 2 => pieces, 1 => proptest::collection::vec(any::<u8>(), 0..60)]
}

fn is_same(found: Option<&FoundJson>, value: Option<&Value>) -> bool {
    match (found, value) {
        (None, None) | (Some(FoundJson::Null), Some(Value::Null)) => true,
        (Some(FoundJson::Text(found)), Some(Value::String(text))) => **found == **text,
        (Some(FoundJson::Bool(found)), Some(Value::Bool(value))) => found == value,
        (Some(FoundJson::Container), Some(Value::Array(_) | Value::Object(_))) => true,
        (Some(FoundJson::Number { text: Some(text), millionths }), Some(Value::Number(number))) => {
            let is_exact =
                number.as_u64().is_none_or(|whole| *millionths == Some(u128::from(whole) * 1_000_000));
            is_exact && serde_json::from_str::<Value>(text).ok().as_ref() == value
        }
        _ => false,
    }
}

#[test]
fn documents_are_read_as_by_serde_json() {
    let paths = paths();
    fuzz(document(), |document| {
        let said = scan(&paths, [&document[..]]);
        let Ok(parsed) = parse(&document) else { return Ok(()) };
        prop_assert_eq!(said.is_whole, parsed.is_some(), "{}", document.escape_ascii());
        let Some(value) = parsed else { return Ok(()) };
        for (way, found) in WAYS.iter().zip(&said.values) {
            let expected = value.pointer(&format!("/{way}"));
            prop_assert!(
                is_same(found.as_ref(), expected),
                "{way}: {found:?} of {}",
                document.escape_ascii()
            );
        }
        prop_assert_eq!(said.elements, value.as_array().map(|elements| elements.len() as u64));
        Ok(())
    });
}

#[test]
fn documents_say_the_same_wherever_they_are_cut() {
    let paths = paths();
    fuzz((document(), proptest::collection::vec(any::<Index>(), 0..6)), |(document, cuts)| {
        let said = scan(&paths, [&document[..]]);
        let shown = document.escape_ascii();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(document.len() + 1)).collect();
        ends.extend([0, document.len()]);
        ends.sort_unstable();
        let pieces = ends.windows(2).map(|ends| &document[ends[0]..ends[1]]);
        let ways = [scan(&paths, pieces), scan(&paths, document.chunks(1))];
        for other in ways {
            prop_assert_eq!(said.is_whole, other.is_whole, "{}", shown);
            // An invalid document is left where it is found invalid; nobody asks what it said.
            prop_assert!(!said.is_whole || said == other, "{}", shown);
        }
        Ok(())
    });
}
