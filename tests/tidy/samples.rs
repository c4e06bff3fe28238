//! Each house rule fires on a bad sample and stays quiet on a good one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::code::Source;
use crate::{circles, modules, names, papers, rules};

fn sources(files: &[(&str, &str)]) -> BTreeMap<String, Source> {
    files.iter().map(|(path, text)| (path.to_string(), Source::new(text))).collect()
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    circles::circles(&sources(files), &BTreeSet::new())
}

#[track_caller]
fn assert_one(found: Vec<String>, position: &str, word: &str) {
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(position) && found[0].contains(word), "{found:?}");
}

#[track_caller]
fn assert_quiet(found: Vec<String>) {
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn rooms_that_import_each_other_are_a_circle() {
    let rooms = |files: &[(&str, &str)]| circles::room_circles(&sources(files), &BTreeSet::new());
    let left = ("src/left/a.rs", "use crate::right::b::B;\npub struct A;");
    assert_quiet(rooms(&[left, ("src/right/b.rs", "pub struct B;"), ("src/right/c.rs", "use super::b::B;")]));
    assert_one(
        rooms(&[left, ("src/right/b.rs", "pub struct B;"), ("src/right/c.rs", "use crate::left::a::A;")]),
        "src/left:1",
        "src/right imports from src/left",
    );
}

#[test]
fn long_things_are_found() {
    let sizes = |text: &str| rules::sizes("a.rs", &Source::new(text));
    assert_one(sizes(&"\n".repeat(rules::FILE_LINES_MAX + 1)), "a.rs:1", "split it");
    let wide = format!("\n// {}", "é".repeat(rules::LINE_CHARS_MAX));
    assert_one(rules::widths("a.rs", &Source::new(&wide)), "a.rs:2", "characters");
    assert_quiet(rules::widths("a.rs", &Source::new(&"é".repeat(rules::LINE_CHARS_MAX))));
    let body = "\n".repeat(rules::FUNCTION_LINES_MAX);
    assert_one(sizes(&format!("\nfn long<'a>(x: [u8; 3]) -> &'a str {{{body}}}")), "a.rs:2", "fn long");
    assert_quiet(sizes(&format!("trait T {{ fn short();{body}}}\nconst F: fn(u8) = g;{body}")));
}

#[test]
fn a_file_begins_with_its_purpose() {
    let headline = |text: &str| rules::headline("a.rs", &Source::new(text));
    assert_one(headline("use x;\n//! too late"), "a.rs:1", "//!");
    assert_quiet(headline("//! Fine.\n"));
}

#[test]
fn panics_need_a_reason() {
    let panics = |text: &str| rules::panics("a.rs", &Source::new(text));
    assert_one(panics("\nfn f() { x.unwrap() }"), "a.rs:2", ".unwrap()");
    assert_one(panics("let a = b\n    .expect(\"why\");"), "a.rs:2", ".expect(");
    assert_one(panics("// Cannot fail: too far away.\n\nx.unwrap();"), "a.rs:3", ".unwrap()");
    assert_one(panics("#[cfg(test)]\nmod tests { fn f() {} }\nfn g() { x.unwrap() }"), "a.rs:3", ".unwrap()");
    assert_quiet(panics("// Cannot fail: checked above.\nx.unwrap();\ny.unwrap(); // Cannot fail: as x."));
    assert_quiet(panics("// x.unwrap()\nx.unwrap_or(1); x.expect_err(e);"));
    assert_quiet(panics("#[cfg(test)]\nmod tests {\n    fn f() { x.unwrap() }\n}"));
    assert_quiet(panics("let text = r#\"x.unwrap() \"quoted\" '\"#; let c = '\"'; /* y.unwrap() /* */ */"));
}

#[test]
fn leftovers_are_found() {
    let leftovers = |text: &str| rules::leftovers("a.rs", &Source::new(text));
    for bad in ["// TODO: later", "// FIXME", "dbg!(x);", "println!();", "eprintln!();", "todo!()"] {
        assert_one(leftovers(bad), "a.rs:1", "");
    }
    assert_quiet(leftovers("/// `println!` in prose\nwriteln!(out, \"dbg!\")"));
}

#[test]
fn circles_of_files_are_found() {
    let there = ("src/a/there.rs", "use super::back::Back;\npub struct There;");
    let back = ("src/a/back.rs", "fn f() { crate::a::there::g() }\npub struct Back;");
    assert_one(circles_of(&[there, back]), "src/a/back.rs:1", "a circle of 2 files");
    let exports = ("src/a/mod.rs", "mod back;\npub use back::{Back, Other as Same};");
    let through = ("src/a/there.rs", "use crate::a::{self, Same};\npub struct There;");
    let other = ("src/a/back.rs", "use crate::a::there::There;\npub struct Other;");
    assert_one(circles_of(&[exports, through, other]), "src/a/back.rs:1", "a circle of 2 files");
    let everything = ("src/a/mod.rs", "mod back;\npub use back::*;");
    let by_name = ("src/a/there.rs", "use crate::a::Other;\npub struct There;");
    assert_one(circles_of(&[everything, by_name, other]), "src/a/back.rs:1", "a circle of 2 files");
}

#[test]
fn a_folder_and_its_files_are_no_circle() {
    let folder = ("src/a/mod.rs", "mod inner;\nuse inner::X;\npub struct Y;");
    let inner = ("src/a/inner.rs", "use super::Y;\npub struct X;");
    let beside =
        ("src/b.rs", "use crate::a::X;\n#[cfg(test)]\nmod tests { use crate::c::C; }\npub struct B;");
    let above = ("src/c.rs", "use crate::b::B;\npub struct C;");
    assert_quiet(circles_of(&[folder, inner, beside, above]));
}

#[test]
fn types_of_one_name_are_found() {
    let twice = [("src/a.rs", "pub struct Line;"), ("src/b.rs", "\npub(crate) enum Line { A }")];
    assert_one(names::twice_defined(&sources(&twice), &BTreeSet::new()), "src/a.rs:1", "src/b.rs:2");
    let hidden =
        [("src/a.rs", "struct Line;"), ("src/b.rs", "fn f() {\n    struct Line;\n}\n// struct Line")];
    assert_quiet(names::twice_defined(&sources(&hidden), &BTreeSet::new()));
}

#[test]
fn undeclared_files_are_found() {
    let files = [
        ("src/lib.rs", "pub mod a;\nmod b;\nmod shell { mod inner; }\n// mod lost;"),
        ("src/main.rs", ""),
        (
            "src/a.rs",
            "mod deep;\n#[cfg(test)]\nmod checks;\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;",
        ),
        ("src/a_tests.rs", ""),
        ("src/a/deep.rs", ""),
        ("src/a/checks.rs", "mod more;"),
        ("src/a/checks/more.rs", ""),
        ("src/b/mod.rs", ""),
        ("src/shell/inner.rs", ""),
        ("src/lost.rs", ""),
    ];
    let files: BTreeMap<String, Source> =
        files.into_iter().map(|(path, text)| (path.to_owned(), Source::new(text))).collect();
    let (orphans, test_only) = modules::reach(&files);
    assert_one(orphans, "src/lost.rs:1", "declares");
    for file in ["src/a/checks.rs", "src/a/checks/more.rs", "src/a_tests.rs"] {
        assert!(test_only.contains(file), "{file}");
    }
    assert!(!test_only.contains("src/a/deep.rs"));
}

#[test]
fn tests_and_their_harness_are_no_product() {
    for path in ["src/main.rs", "src/limit/mod.rs", "crates/limit/src/lib.rs"] {
        assert!(rules::is_product(path), "{path}");
    }
    for path in ["tests/wire/main.rs", "crates/admission/tests/limits/main.rs", "crates/testkit/src/lib.rs"] {
        assert!(!rules::is_product(path), "{path}");
    }
}

#[test]
fn dead_links_are_found() {
    let links = |text: &str| papers::links(Path::new(env!("CARGO_MANIFEST_DIR")), "tests/page.md", text);
    assert_one(links("see\n[`this`](gone.md#part)"), "tests/page.md:2", "gone.md");
    assert_quiet(links("[a](tidy/main.rs) [b](../Cargo.toml#x) [c](https://example.com/gone.md)"));
    assert_quiet(links("# Here\n[d](#here) `[e](gone.md)`"));
    assert_quiet(links("```\n[a](gone.md)\n```"));
}

#[test]
fn dead_anchors_are_found() {
    let links = |text: &str| papers::links(Path::new(env!("CARGO_MANIFEST_DIR")), "docs/page.md", text);
    assert_one(links("# Here\n[a](#there)"), "docs/page.md:2", "#there");
    assert_one(links("[a](../SECURITY.md#there)"), "docs/page.md:1", "SECURITY.md#there");
    assert_one(links("```\n# Here\n```\n[a](#here)"), "docs/page.md:4", "#here");
    assert_quiet(links("[a](../SECURITY.md#supported-versions)"));
}

#[test]
fn anchors_are_those_of_headings() {
    let page = "# One, `two_three`: 4/s\n## Again\n### Again\n#no\n####### no\ntext # no\n";
    let expected = ["again", "again-1", "one-two_three-4s"].map(str::to_owned);
    assert_eq!(papers::anchors(page), BTreeSet::from(expected));
}

#[test]
fn machine_paths_are_found() {
    for folder in ["work", "root", "home"] {
        assert_one(papers::machine_paths("a.md", &format!("\nin \"/{folder}/me\"")), "a.md:2", folder);
        assert_quiet(papers::machine_paths("a.md", &format!("a path like /srv/{folder}/me or x/{folder}/y")));
    }
}

#[test]
fn a_changelog_without_unreleased_is_found() {
    assert_one(papers::changelog("C.md", "# Changelog\n\n## [1.0.0]"), "C.md:1", "Unreleased");
    assert_quiet(papers::changelog("C.md", "# Changelog\n\n## [Unreleased]"));
}
