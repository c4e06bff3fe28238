//! Every example has a scenario file, and all of them pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::program;

const SUFFIX: &str = "_test.yaml";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn yaml_names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
    let names = entries.map(|entry| entry.expect("a readable folder").file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.ends_with(".yaml"));
    names.sort();
    names
}

fn run_test(args: &[&str]) -> String {
    let mut command = Command::new(program());
    let output = command.current_dir(root()).arg("test").args(args).output().expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    stdout.into_owned()
}

#[test]
fn every_example_has_scenarios_that_pass() {
    for folder in ["examples", "examples/compose"] {
        let names = yaml_names(folder);
        let (tests, configs): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| name.ends_with(SUFFIX));
        assert!(!tests.is_empty(), "no scenario files in {folder}");
        for config in &configs {
            let test = config.replace(".yaml", SUFFIX);
            assert!(tests.contains(&test), "{folder}/{config} has no {test}");
            let text = std::fs::read_to_string(root().join(folder).join(&test)).expect("a scenario file");
            assert!(text.contains(&format!("\nconfig: {config}\n")), "{test} tests another file");
            assert!(text.contains("expect:"), "{test} expects nothing");
        }
        assert_eq!(tests.len(), configs.len(), "{folder}: a scenario file without its example");
        let any = PathBuf::from(folder).join("any.yaml");
        let report = run_test(&["-c", any.to_str().expect("a plain name")]);
        assert!(report.ends_with(" passed, 0 failed\n"), "{report}");
    }
}

#[test]
fn the_scenarios_of_the_first_file_pass_without_an_argument() {
    let report = run_test(&[]);
    assert!(report.starts_with("gateway_test.yaml\n"), "{report}");
}

/// The page shows what the program prints, and names every field.
#[test]
fn the_page_is_right() {
    let page = std::fs::read_to_string(root().join("docs/test.md")).expect("the page");
    let shown = page.split_once("$ sluicegate test ").expect("a run").1;
    let (file, shown) = shown.split_once('\n').expect("an output");
    let shown = shown.split_once("```").expect("an end").0;
    assert_eq!(run_test(&[file]), shown);
    let fields = include_str!("../../src/simulate/scenario/fields.rs");
    let names =
        fields.lines().filter_map(|line| line.split_once(" = ")?.1.split_once('"')?.1.split_once('"'));
    let names: Vec<&str> =
        names.map(|(name, _)| name).filter(|name| !name.contains(['.', '[', ' '])).collect();
    assert!(names.len() >= 15, "{names:?}");
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        assert!(page.contains(&format!("`{name}`")), "docs/test.md does not name {name}");
    }
}
