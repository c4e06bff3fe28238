//! A gateway.yaml is read or rejected with positions, its tree is what the YAML library reads, and its descriptions can
//! be written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_yaml::Value;
use sluicegate_config as config;
use sluicegate_config::yaml::tree::{Node, NodeContent, parse_document};
use sluicegate_model::diagnostics::problem::Position;
use sluicegate_model::{LimitId, ProblemReport};

/// Checks that every node has the shape of the value.
fn compare(node: &Node, value: &Value, text: &str) {
    check_position(node.position, text);
    match (&node.content, value) {
        (NodeContent::Null, Value::Null) => {}
        (NodeContent::Text(_), Value::Bool(_) | Value::Number(_)) => {}
        (NodeContent::Text(found), Value::String(value)) => {
            assert_eq!(found.as_plain(), Some(value.as_str()))
        }
        (NodeContent::List(nodes), Value::Sequence(values)) => {
            assert_eq!(nodes.len(), values.len());
            nodes.iter().zip(values).for_each(|(node, value)| compare(node, value, text));
        }
        (NodeContent::Map(entries), Value::Mapping(members)) => {
            assert_eq!(entries.len(), members.len());
            for ((key, node), (name, value)) in entries.iter().zip(members) {
                check_position(key.position, text);
                if let Value::String(name) = name {
                    assert_eq!(key.name, *name);
                }
                compare(node, value, text);
            }
        }
        (content, value) => panic!("{content:?} is not {value:?}"),
    }
}

fn check_position(position: Position, text: &str) {
    let lines = 1 + text.matches('\n').count();
    assert!(
        (1..=lines + 1).contains(&position.line) && position.column >= 1,
        "{position:?} of {lines} lines"
    );
}

fn check_report(report: &ProblemReport, text: &str) {
    assert!(!report.problems.is_empty());
    for problem in &report.problems {
        if problem.file.is_empty() {
            check_position(problem.position(), text);
        }
        assert!(!problem.message.is_empty(), "{problem:?}");
    }
    assert!(report.render(true).contains("problem"));
}

fuzz_target!(|text: &str| {
    match parse_document(text) {
        Err((position, _)) => check_position(position, text),
        Ok(node) => match serde_yaml::from_str(text) {
            Ok(value) => compare(&node, &value, text),
            // Its values cannot hold a key twice, or a number of more than 64 bits.
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("duplicate") || message.contains("invalid type: integer"),
                    "{message}"
                );
            }
        },
    }
    let read = config::parse(text, "gateway.yaml");
    match &read {
        Err(report) => check_report(report, text),
        Ok(loaded) => {
            for location in &loaded.config.locations {
                config::describe::describe_location(&loaded.config, location);
            }
            for limit in 0..loaded.config.limits.len() {
                config::describe::describe_limit(&loaded.config, LimitId(limit), None);
            }
        }
    }
    // The same file always says the same.
    match (&read, config::parse(text, "gateway.yaml")) {
        (Ok(first), Ok(second)) => assert_eq!(first.warnings, second.warnings),
        (Err(first), Err(second)) => assert_eq!(first.problems, second.problems),
        (first, _) => panic!("first it was {first:?}"),
    }
});
