//! Names: each type of the crate has its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Source, word_at};
use crate::rules::is_product;

/// Type names that production files define more than once.
pub fn twice_defined(sources: &BTreeMap<String, Source>, test_only: &BTreeSet<String>) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, source) in sources {
        if is_product(path) && !test_only.contains(path) {
            for (name, line) in types(source) {
                places.entry(name).or_default().push(format!("{path}:{line}"));
            }
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice.map(|(name, places)| format!("{}: {name} is also {}", places[0], places[1..].join(", "))).collect()
}

/// The types of a file and their lines; types inside functions and tests do not count.
fn types(source: &Source) -> Vec<(&str, usize)> {
    let kinds = ["struct", "enum", "union", "trait"]
        .iter()
        .flat_map(|kind| source.words(kind).into_iter().map(move |start| (start, start + kind.len())));
    kinds
        .filter(|&(start, _)| {
            let line = source.code[..start].rfind('\n').map_or(0, |at| at + 1);
            let before = &source.code[line..start];
            !source.in_tests(start) && (before.is_empty() || before.starts_with("pub"))
        })
        .map(|(start, end)| (word_at(&source.code, end).0, source.line(start)))
        .collect()
}
