//! What is left of limits: asked by callers, and listed for operators.

mod callers;
mod operators;
mod shared;

use serde_json::Value;
use sluicegate_testkit::{Ask, Gateway, get};

/// The answer to a caller.
fn ask(gateway: &Gateway, target: &str, account: &str) -> Value {
    gateway.ask(&as_account(target, account)).expect(200).json()
}

fn as_account(target: &str, account: &str) -> Ask {
    let ask = get(target);
    if account.is_empty() { ask } else { ask.header("X-Account", account) }
}

fn admin_json(gateway: &Gateway, target: &str) -> Value {
    gateway.ask_admin(&get(target).header("Accept", "application/json")).expect(200).json()
}

/// The entry of a limit.
#[track_caller]
fn of<'a>(answer: &'a Value, limit: &str) -> &'a Value {
    let entries = answer["limits"].as_array().expect("entries");
    entries.iter().find(|entry| entry["limit"] == limit).unwrap_or_else(|| panic!("no {limit} in {answer:#}"))
}

fn names(answer: &Value) -> Vec<&str> {
    answer["limits"].as_array().expect("entries").iter().filter_map(|entry| entry["limit"].as_str()).collect()
}

/// Used, left and quota of an entry.
fn numbers(entry: &Value) -> (i64, i64, i64) {
    let number = |name: &str| entry[name].as_i64().unwrap_or_else(|| panic!("{name} of {entry}"));
    assert_eq!(number("used") + number("left"), number("quota"), "{entry}");
    (number("used"), number("left"), number("quota"))
}
