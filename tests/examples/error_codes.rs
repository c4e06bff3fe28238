//! `docs/errors.md` has a heading for each code of a problem, and no other.

use std::collections::BTreeSet;

use super::text;

/// A code is a letter and three digits.
fn is_code(word: &str) -> bool {
    let digits = word.strip_prefix(['E', 'W']);
    digits.is_some_and(|digits| digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn defined(source: &str) -> BTreeSet<&str> {
    source.split('"').filter(|word| is_code(word)).collect()
}

/// The codes that are a heading, so that `#e001` leads there.
fn explained(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("### ")).filter(|heading| is_code(heading)).collect()
}

#[test]
fn every_code_is_explained_and_no_other() {
    let (source, page) = (text("crates/model/src/diagnostics/codes.rs"), text("docs/errors.md"));
    let (defined, explained) = (defined(&source), explained(&page));
    assert!(defined.contains("E001") && defined.contains("W001"), "{defined:?}");
    let unique: BTreeSet<&str> = explained.iter().copied().collect();
    assert_eq!(unique.len(), explained.len(), "docs/errors.md has a code twice");
    let missing: Vec<_> = defined.difference(&unique).collect();
    assert!(missing.is_empty(), "docs/errors.md does not explain {missing:?}");
    let unknown: Vec<_> = unique.difference(&defined).collect();
    assert!(unknown.is_empty(), "docs/errors.md explains {unknown:?}, which do not exist");
}

#[test]
fn codes_are_found_in_both_texts() {
    let source =
        "pub const A: &str = \"E001\";\n// \"E01\" and \"X001\" are none\npub const B: &str = \"W011\";";
    assert_eq!(defined(source), BTreeSet::from(["E001", "W011"]));
    assert_eq!(explained("## E009\n### E001\ntext W003\n### W011\n### W011 more\n"), ["E001", "W011"]);
}
