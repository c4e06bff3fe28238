//! The choice of an `upstream` block among its servers, and its other fields about all of them.

use super::parser::Directive;
use super::scope::FindingLedger;
use super::values::{parse_time_ms, write_time};
use crate::gateway_file::PlannedField;
use sluicegate_model::value::names::parse_header_name;

/// The fields of a block beside its servers.
pub(super) fn read_balance(block: &Directive, ledger: &FindingLedger) -> Vec<PlannedField> {
    let (mut balance, mut fields) = ("round_robin".to_owned(), Vec::new());
    for directive in block.children() {
        match (directive.name.as_str(), directive.arg(0)) {
            ("server", _) => {}
            ("least_conn", _) => {
                balance = "least_conn".to_owned();
                ledger.exact(directive, "balance: least_conn");
            }
            ("ip_hash", _) => {
                balance = "hash:ip".to_owned();
                ledger.differs(directive, "balance: hash:ip: clients move once to other servers");
            }
            ("random", "two") => {
                balance = "p2c".to_owned();
                ledger.exact(directive, "balance: p2c");
            }
            ("random", _) => {
                balance = "random".to_owned();
                ledger.exact(directive, "balance: random");
            }
            ("hash", text) => match hash_source(text) {
                Some(source) => {
                    ledger.differs(
                        directive,
                        format!("balance: {source}: requests move once to other servers"),
                    );
                    balance = source;
                }
                None => ledger
                    .skips(directive, format!("the gateway has no hash of {text}; balance: round_robin")),
            },
            ("keepalive", count) => match count.parse::<u32>() {
                Ok(count) => {
                    fields.push(PlannedField::new("keepalive", count.to_string(), ""));
                    ledger.differs(directive, "here it is the number for each server");
                }
                Err(_) => ledger.skips(directive, "it is not a number"),
            },
            ("keepalive_timeout", text) => match parse_time_ms(text) {
                Some(ms) if ms > 0 => {
                    fields.push(PlannedField::new("idle", write_time(ms), ""));
                    ledger.exact(directive, "timeouts: { idle }");
                }
                _ => ledger.skips(directive, "it is not a time above zero"),
            },
            ("queue", count) => read_queue(directive, count, ledger, &mut fields),
            ("zone" | "keepalive_requests" | "keepalive_time" | "resolver" | "resolver_timeout", _) => {
                ledger.skips(directive, "the gateway does this by itself");
            }
            _ => ledger.skips(directive, "the gateway does not do this; balance: round_robin"),
        }
    }
    fields.insert(0, PlannedField::new("balance", balance, ""));
    fields
}

fn read_queue(directive: &Directive, count: &str, ledger: &FindingLedger, fields: &mut Vec<PlannedField>) {
    let timeout = directive.arg(1).strip_prefix("timeout=").unwrap_or("60s");
    match (count.parse::<u32>(), parse_time_ms(timeout)) {
        (Ok(count @ 1..), Some(ms @ 1..)) => {
            let value = format!("{{ size: {count}, max_wait: {} }}", write_time(ms));
            fields.push(PlannedField::new("queue", value, ""));
            ledger.exact(directive, "queue");
        }
        _ => ledger.loses(directive, "its numbers are not understood"),
    }
}

fn hash_source(text: &str) -> Option<String> {
    Some(match text {
        "$remote_addr" | "$binary_remote_addr" => "hash:ip".to_owned(),
        "$request_uri" | "$uri" => "hash:uri".to_owned(),
        _ => {
            let header = text.strip_prefix("$http_")?.replace('_', "-");
            format!("hash:header:{}", parse_header_name(&header).ok()?)
        }
    })
}
