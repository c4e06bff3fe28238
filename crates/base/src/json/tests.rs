//! The scanner beside `serde_json`, on whole and on split documents.

use serde_json::Value;

use super::*;
use crate::json_pointer::JsonPointer;
use documents::{NASTY, Random};
use values::{Collector, FoundJson, collect, parse};

mod documents;
mod numbers;
mod values;

/// Pointers with which every document is compared.
const POINTERS: [&str; 12] =
    ["/a", "/b", "/a/b", "/a/0", "/0", "/1/a", "/a/0/b", "/a/b/0", "/a~1b", "/", "/é\n", "/a/a/a/a"];
/// Ways to texts, and the same ways below.
const TEXTS: [&str; 5] = ["a", "a/*/b", "*", "a/b", "*/*/a"];

/// What a document has at the paths: values by [`POINTERS`], bytes by [`TEXTS`].
#[derive(Debug, Clone, PartialEq)]
struct Found {
    values: Vec<Option<FoundJson>>,
    texts: Vec<u64>,
    elements: Option<u64>,
}

fn paths() -> JsonPaths {
    let mut paths = JsonPaths::default();
    for text in POINTERS.iter().filter(|text| **text != "/") {
        paths.add_pointer(&JsonPointer::parse(text).unwrap()).unwrap();
    }
    // A member without a name; `config` does not offer it.
    paths.add_member("").unwrap();
    TEXTS.iter().for_each(|text| _ = paths.add_text(text).unwrap());
    paths
}

fn pointers() -> impl Iterator<Item = &'static str> {
    POINTERS.into_iter().filter(|text| *text != "/").chain(["/"])
}

fn scan<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> Option<Found> {
    let (scanner, Collector { mut values, mut texts }) = collect(&paths(), slices);
    values.truncate(POINTERS.len());
    let (texts, elements) = (texts.split_off(POINTERS.len()), scanner.count_elements());
    scanner.is_whole().then_some(Found { values, texts, elements })
}

/// Bytes of the texts at a way, by walking a parsed document.
fn count_texts(value: &Value, way: &[&str]) -> u64 {
    match (way, value) {
        ([], Value::String(text)) => text.len() as u64,
        (["*", rest @ ..], Value::Array(elements)) => {
            elements.iter().map(|element| count_texts(element, rest)).sum()
        }
        (["*", ..], _) => 0,
        ([name, rest @ ..], Value::Object(members)) => {
            members.get(*name).map_or(0, |member| count_texts(member, rest))
        }
        _ => 0,
    }
}

#[track_caller]
fn assert_same(found: Option<&FoundJson>, expected: Option<&Value>) {
    match (found, expected) {
        (None, None) | (Some(FoundJson::Null), Some(Value::Null)) => {}
        (Some(FoundJson::Text(found)), Some(Value::String(text))) => assert_eq!(**found, **text),
        (Some(FoundJson::LongText), Some(Value::String(text))) => assert!(text.len() > TEXT_MAX),
        (Some(FoundJson::Bool(found)), Some(Value::Bool(value))) => assert_eq!(found, value),
        (Some(FoundJson::Container), Some(Value::Array(_) | Value::Object(_))) => {}
        (Some(FoundJson::Number { text, millionths }), Some(Value::Number(number))) => {
            match (number.as_u64(), number.as_f64().unwrap()) {
                (Some(number), _) => assert_eq!(*millionths, Some(u128::from(number) * 1_000_000)),
                (None, number) if number < 0.0 || number > u64::MAX as f64 => assert_eq!(*millionths, None),
                (None, number) => {
                    // A little below the largest number the double is rounded to 2^64.
                    let millionths = millionths.unwrap_or(u64::MAX as u128 * 1_000_000) as f64;
                    assert!((millionths - number * 1e6).abs() <= 1.0 + number * 1e-6, "{text:?}");
                }
            }
            if let Some(text) = text {
                assert_eq!(serde_json::from_str::<Value>(text).unwrap(), Value::Number(number.clone()));
            }
        }
        _ => panic!("{found:?} in place of {expected:?}"),
    }
}

/// The scanner and `serde_json` read the same from a document, wherever it is split.
#[track_caller]
fn assert_agrees(document: &[u8]) {
    let shown = document.escape_ascii();
    let found = scan([document]);
    match parse(document) {
        Ok(Some(value)) => {
            let found = found.as_ref().unwrap_or_else(|| panic!("valid: {shown}"));
            for (pointer, found) in pointers().zip(&found.values) {
                assert_same(found.as_ref(), value.pointer(pointer));
            }
            // In this document no member comes again.
            let plain = scan([value.to_string().as_bytes()]).expect("a document");
            for ((way, bytes), all) in TEXTS.iter().zip(plain.texts).zip(&found.texts) {
                let way: Vec<&str> = way.split('/').collect();
                assert_eq!(bytes, count_texts(&value, &way), "{way:?} of {shown}");
                assert!(*all >= bytes, "{way:?} of {shown}");
            }
            assert_eq!(found.elements, value.as_array().map(|elements| elements.len() as u64), "{shown}");
        }
        Ok(None) => assert_eq!(found, None, "invalid: {shown}"),
        Err(_) => {}
    }
    assert_eq!(scan(document.chunks(1)), found, "byte by byte: {shown}");
    let places = document.len().min(300);
    for at in 0..=places {
        let (first, second) = document.split_at(at * document.len() / places.max(1));
        assert_eq!(scan([first, second]), found, "split at {at}: {shown}");
    }
}

#[test]
fn nasty_documents_are_read_as_by_serde_json() {
    for document in NASTY {
        assert_agrees(document.as_bytes());
        assert_agrees(format!(" [{document}]").as_bytes());
        assert_agrees(format!("{{\"a\": {document} }}").as_bytes());
    }
    for bytes in
        [&b"[\"\xff\"]"[..], b"[\"\xc3\"]", b"[\"\xe2\x82\"]", b"[\"\xed\xa0\x80\"]", b"[\"\xc0\x80\"]"]
    {
        assert_agrees(bytes);
        assert_agrees(&[b"{\"a\":", bytes, b"}"].concat());
    }
    assert_agrees(b"{\"\xff\":1}");
    assert_agrees(b"\xff");
    assert_agrees(b"[\"\xf0\x9f\\n\"]");
}

#[test]
fn random_documents_are_read_as_by_serde_json() {
    let mut random = Random(1);
    for _ in 0..800 {
        let mut document = String::new();
        random.value(&mut document, 5);
        assert_agrees(document.as_bytes());
        let mut bytes = document.into_bytes();
        for _ in 0..=random.below(2) {
            let (at, other) = (random.below(bytes.len()), random.below(bytes.len()));
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\"\\{}[],:0 -.e\x80"[random.below(14)]),
                _ => bytes.swap(at, other),
            }
            if bytes.is_empty() {
                break;
            }
        }
        assert_agrees(&bytes);
    }
}

#[test]
fn depth_is_bounded() {
    for (depth, valid) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
        // Lists, objects, and both in turn.
        let (open, close): (String, String) =
            (0..depth).map(|at| [("[", "]"), ("{\"a\":", "}")][at % 2]).unzip();
        let mixed = format!("{open}{}{}", ["[]", "0"][depth % 2], close.chars().rev().collect::<String>());
        let documents =
            ["[".repeat(depth) + &"]".repeat(depth), "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth)];
        for document in documents {
            assert_agrees(document.as_bytes());
            assert_eq!(scan([document.as_bytes()]).is_some(), valid, "{document}");
        }
        assert_agrees(mixed.as_bytes());
    }
}

#[test]
fn long_texts_are_named_so_and_counted() {
    for length in [TEXT_MAX, TEXT_MAX + 1] {
        let text = "x".repeat(length);
        for document in [format!("{{\"a\":\"{text}\"}}"), format!("{{\"a\":\"\\u0078{}\"}}", &text[1..])] {
            assert_agrees(document.as_bytes());
            let found = scan([document.as_bytes()]).unwrap();
            assert_eq!(found.values[0] == Some(FoundJson::LongText), length > TEXT_MAX);
            assert_eq!(found.texts[0], length as u64);
        }
        // Such a name is no path's.
        assert_agrees(format!("{{\"{text}\":1,\"a\":2}}").as_bytes());
    }
    let zeros = format!("{{\"a\":1.{}}}", "0".repeat(TEXT_MAX));
    let expected = FoundJson::Number { text: None, millionths: Some(1_000_000) };
    assert_eq!(scan([zeros.as_bytes()]).unwrap().values[0], Some(expected));
}

#[test]
fn a_set_of_paths_is_bounded() {
    let mut paths = JsonPaths::default();
    assert_eq!(paths.add_member(&["a"; 17].join("/")), None);
    assert!((0..PATHS_MAX).all(|path| paths.add_member("a") == Some(path)));
    assert_eq!(paths.add_member("a"), None);
    let (_, found) = collect(&paths, [&b"{\"a\":[1]}"[..]]);
    assert_eq!(found.values, vec![Some(FoundJson::Container); PATHS_MAX]);
}

#[test]
fn values_of_a_whole_document_are_kept() {
    let mut paths = JsonPaths::default();
    for (at, way) in ["01", "+1", "1", "a/b", "a/c"].into_iter().enumerate() {
        assert_eq!(paths.add_member(way), Some(at));
    }
    let found = |document: &str| {
        let (first, second) = document.as_bytes().split_at(document.len() / 2);
        let (scanner, found) = collect(&paths, [first, second]);
        let values = found.values.iter().map(Option::is_some).collect::<Vec<_>>();
        scanner.is_whole().then_some((values, scanner.count_elements()))
    };
    assert_eq!(found("[0,1,2]"), Some((vec![false, false, true, false, false], Some(3))));
    assert_eq!(
        found(r#"{"a":{"b":1},"01":2,"a":{"c":3}}"#),
        Some((vec![true, false, false, false, true], None))
    );
    assert_eq!(found("[0,1,2"), None);
}

#[test]
fn a_scanner_reads_one_document_after_the_other() {
    let paths = paths();
    let mut scanner = JsonScanner::default();
    for (document, is_whole, elements) in [
        ("[1,[2,3],{}]", true, Some(3)),
        ("{\"a\":[{\"b\":\"\\ud83e", false, None),
        ("\u{feff}[1]", true, Some(1)),
        ("7", true, None),
        ("[", false, Some(0)),
        ("x", false, None),
        ("{\"a\":1}", true, None),
    ] {
        scanner.restart();
        scanner.scan(&paths, document.as_bytes(), &mut Collector::new(&paths));
        assert_eq!((scanner.is_whole(), scanner.count_elements()), (is_whole, elements), "{document}");
    }
}
