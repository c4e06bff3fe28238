//! `gateway.yaml`, every example and every file shown on a page are valid, the same, and short.

mod error_codes;
mod images;
mod pages;

use std::path::{Path, PathBuf};

const GATEWAY_YAML_LINES_MAX: usize = 59;

/// A folder with fewer files was not read.
const EXAMPLES_MIN: usize = 6;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configurations of a folder, sorted; scenario files have tests of their own.
fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    found.retain(|path| !path.to_str().is_some_and(|path| path.ends_with("_test.yaml")));
    found.sort();
    found
}

#[test]
fn every_file_is_valid_without_a_warning() {
    let mut files = yaml_files("examples");
    assert!(files.len() >= EXAMPLES_MIN, "only {} examples were found", files.len());
    let compose = yaml_files("examples/compose");
    assert!(!compose.is_empty(), "no compose examples were found");
    files.extend(compose);
    files.push(root().join("gateway.yaml"));
    for file in files {
        match sluicegate_config::load(&file) {
            Ok(loaded) => assert_eq!(loaded.warnings, [], "{}", file.display()),
            Err(report) => panic!("{}:\n{report}", file.display()),
        }
    }
}

#[test]
fn every_example_names_its_problem() {
    for file in yaml_files("examples") {
        let text = std::fs::read_to_string(&file).expect("an example is text");
        assert!(text.starts_with("# Solves: "), "{}", file.display());
    }
}

#[test]
fn the_first_file_stays_short() {
    let lines = text("gateway.yaml").lines().count();
    assert!(
        lines <= GATEWAY_YAML_LINES_MAX,
        "gateway.yaml has {lines} lines; {GATEWAY_YAML_LINES_MAX} are allowed"
    );
}
