//! Files that the gateway reads fit the JSON Schema.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json_schema::json_schema;
use super::*;

/// The paths of the values that do not fit.
fn misfits(validator: &jsonschema::Validator, text: &str) -> Vec<String> {
    let file: Value = serde_yaml::from_str(text).unwrap();
    validator.iter_errors(&file).map(|error| error.instance_path().to_string()).collect()
}

/// A validator of the schema, which must itself be valid.
fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&json_schema()).unwrap()
}

fn valid_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("examples"), root.join("crates/config/tests/config/valid")];
    let inside = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = inside.map(|entry| entry.unwrap().path()).chain([root.join("gateway.yaml")]);
    let is_scenario = |file: &Path| file.to_str().is_some_and(|file| file.ends_with("_test.yaml"));
    let is_yaml = |file: &Path| file.extension().is_some_and(|extension| extension == "yaml");
    files.filter(|file| is_yaml(file) && !is_scenario(file)).collect()
}

#[test]
fn valid_files_fit_the_json_schema() {
    let validator = validator();
    let files = valid_files();
    assert!(files.len() > 30, "{files:?}");
    let problems: Vec<(PathBuf, Vec<String>)> = files
        .into_iter()
        .map(|file| (file.clone(), misfits(&validator, &std::fs::read_to_string(file).unwrap())))
        .filter(|(_, problems)| !problems.is_empty())
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn wrong_files_do_not_fit_the_json_schema() {
    let validator = validator();
    for (wrong, path) in [
        ("locations: []\nlisten: { adress: \":80\" }", "/listen"),
        ("locations: []\nserver: { max_headers: 0 }", "/server/max_headers"),
        ("locations: []\nupstreams: { app: { server: a:1 } }", "/upstreams/app"),
        ("locations: []\nupstreams: { app: { servers: a:1, health: { status: 6xx } } }", "/upstreams/app"),
        ("locations: []\nupstreams: { app: { servers: a:1, retries: { attempts: 11 } } }", "/upstreams/app"),
        ("{}", ""),
    ] {
        assert_eq!(misfits(&validator, wrong), [path], "{wrong}");
    }
}

#[test]
fn every_field_is_described() {
    for section in all_sections() {
        assert!(section.sentence.trim().ends_with('.'), "{}: {}", section.path, section.sentence);
        for field in section.descriptions() {
            let place = format!("{} {}", section.path, field.name);
            assert!(field.sentence.ends_with('.'), "{place}: {}", field.sentence);
            assert!(!field.example.is_empty(), "{place} has no example");
            assert_ne!(field.default, Some(""), "{place} has no default");
        }
    }
}
