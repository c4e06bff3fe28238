//! Files that the gateway reads fit the JSON Schema. The validator knows the keywords that the schema uses.

use std::path::{Path, PathBuf};

use regex_automata::meta::Regex;
use serde_json::Value;

use super::json_schema::json_schema;
use super::*;

/// The paths of the values that do not fit.
fn misfits(schema: &Value, text: &str) -> Vec<String> {
    let file: Value = serde_yaml::from_str(text).unwrap();
    let mut found = Vec::new();
    validate(schema, schema, &file, String::new(), &mut found);
    found
}

fn validate(root: &Value, schema: &Value, value: &Value, path: String, found: &mut Vec<String>) {
    let mut is_valid = true;
    for (keyword, rule) in schema.as_object().into_iter().flatten() {
        is_valid &= match keyword.as_str() {
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                assert!(!pointer.contains(['[', ']', '%', ' ']), "{pointer} is not a fragment of a URI");
                validate(root, root.pointer(pointer).unwrap(), value, path.clone(), found);
                true
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|one| {
                let mut inner = Vec::new();
                validate(root, one, value, path.clone(), &mut inner);
                inner.is_empty()
            }),
            "type" => match rule {
                Value::Array(types) => types.iter().any(|one| has_type(value, one)),
                one => has_type(value, one),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "pattern" => {
                let regex = Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| regex.is_match(text))
            }
            "required" => {
                let mut names = rule.as_array().unwrap().iter();
                value.as_object().is_none_or(|map| names.all(|name| map.contains_key(name.as_str().unwrap())))
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(root, rule, item, format!("{path}/{index}"), found);
                }
                true
            }
            "properties" | "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    let rule = match (keyword == "properties", &schema["properties"][name]) {
                        (true, rule) => rule,
                        (false, Value::Null) => rule,
                        (false, _) => continue,
                    };
                    validate(root, rule, field, format!("{path}/{name}"), found);
                }
                true
            }
            "$schema" | "$defs" | "title" | "description" | "examples" | "default" => true,
            other => panic!("the schema uses `{other}`, which is not checked here"),
        };
    }
    if !is_valid || *schema == Value::Bool(false) {
        found.push(path);
    }
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    }
}

fn valid_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.join("examples"), root.join("tests/config/valid")];
    let inside = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = inside.map(|entry| entry.unwrap().path()).chain([root.join("gateway.yaml")]);
    files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn valid_files_fit_the_json_schema() {
    let schema = json_schema();
    let files = valid_files();
    assert!(files.len() > 30, "{files:?}");
    let problems: Vec<(PathBuf, Vec<String>)> = files
        .into_iter()
        .map(|file| (file.clone(), misfits(&schema, &std::fs::read_to_string(file).unwrap())))
        .filter(|(_, problems)| !problems.is_empty())
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn wrong_files_do_not_fit_the_json_schema() {
    let schema = json_schema();
    for (wrong, path) in [
        ("locations: []\nlisten: { adress: \":80\" }", "/listen"),
        ("locations: []\nserver: { max_headers: 0 }", "/server/max_headers"),
        ("locations: []\nupstreams: { app: { server: a:1 } }", "/upstreams/app"),
        ("locations: []\nupstreams: { app: { servers: a:1, health: { status: 6xx } } }", "/upstreams/app"),
        ("locations: []\nupstreams: { app: { servers: a:1, retries: { attempts: 11 } } }", "/upstreams/app"),
        ("{}", ""),
    ] {
        assert_eq!(misfits(&schema, wrong), [path], "{wrong}");
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
            assert_ne!(field.default, field::FieldDefault::Text(""), "{place} has no default");
            assert!(
                all_sections()
                    .iter()
                    .all(|other| !is_planned(other, field.name) || !std::ptr::eq(*other, section))
            );
        }
    }
}
