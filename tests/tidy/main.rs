//! The house rules, as a test that reads the sources: circles, sizes, panics, left-overs, links.

mod circles;
mod code;
mod modules;
mod names;
mod papers;
mod rules;
mod samples;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use code::Source;

/// Folders with short files and functions. All other rules about code are for the program and its crates.
const SIZED: [&str; 4] = ["src/", "crates/", "tests/", "benches/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file that git tracks or would track, by its path from the root.
fn tracked_files() -> BTreeMap<String, String> {
    let listed = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    let read = |name: &str| Some((name.to_owned(), std::fs::read_to_string(root().join(name)).ok()?));
    names.split_terminator('\0').filter_map(read).collect()
}

fn sources() -> BTreeMap<String, Source> {
    let judged = |path: &str| path.ends_with(".rs") && SIZED.iter().any(|folder| path.starts_with(folder));
    tracked_files()
        .into_iter()
        .filter(|(path, _)| judged(path))
        .map(|(path, text)| (path, Source::new(&text)))
        .collect()
}

#[track_caller]
fn assert_none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn the_sources_are_really_read() {
    let sources = sources();
    assert!(sources.contains_key("src/lib.rs") && sources.contains_key("src/main.rs"));
    assert!(sources.contains_key("tests/tidy/main.rs"));
}

#[test]
fn no_circle_of_files() {
    let sources = sources();
    let (_, test_only) = modules::reach(&sources);
    assert_none(circles::circles(&sources, &test_only));
}

#[test]
fn no_circle_of_rooms() {
    let sources = sources();
    let (_, test_only) = modules::reach(&sources);
    assert_none(circles::room_circles(&sources, &test_only));
}

#[test]
fn every_type_name_stands_once() {
    let sources = sources();
    let (_, test_only) = modules::reach(&sources);
    assert_none(names::twice_defined(&sources, &test_only));
}

fn product_only(path: &str, source: &Source, rule: fn(&str, &Source) -> Vec<String>) -> Vec<String> {
    if rules::is_product(path) { rule(path, source) } else { vec![] }
}

#[test]
fn files_and_functions_are_short() {
    assert_none(sources().iter().flat_map(|(path, source)| rules::sizes(path, source)).collect());
}

#[test]
fn lines_are_short() {
    assert_none(
        sources().iter().flat_map(|(path, source)| product_only(path, source, rules::widths)).collect(),
    );
}

#[test]
fn every_source_file_has_a_header() {
    assert_none(
        sources().iter().flat_map(|(path, source)| product_only(path, source, rules::headline)).collect(),
    );
}

#[test]
fn panics_outside_tests_carry_their_reason() {
    let sources = sources();
    let (_, test_only) = modules::reach(&sources);
    let judged = sources.iter().filter(|(path, _)| !test_only.contains(*path));
    assert_none(judged.flat_map(|(path, source)| product_only(path, source, rules::panics)).collect());
}

#[test]
fn no_leftovers() {
    assert_none(
        sources().iter().flat_map(|(path, source)| product_only(path, source, rules::leftovers)).collect(),
    );
}

#[test]
fn every_source_file_is_declared() {
    assert_none(modules::reach(&sources()).0);
}

#[test]
fn markdown_links_lead_to_files_and_headings() {
    let files = tracked_files();
    let pages = files.iter().filter(|(path, _)| path.ends_with(".md"));
    assert_none(pages.flat_map(|(path, text)| papers::links(root(), path, text)).collect());
}

#[test]
fn no_paths_of_one_machine() {
    assert_none(tracked_files().iter().flat_map(|(path, text)| papers::machine_paths(path, text)).collect());
}

#[test]
fn the_changelog_has_an_unreleased_section() {
    let text = tracked_files().remove("CHANGELOG.md").expect("CHANGELOG.md exists");
    assert_none(papers::changelog("CHANGELOG.md", &text));
}
