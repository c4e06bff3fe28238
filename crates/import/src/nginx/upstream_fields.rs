//! The fields of an upstream: those of its block, and those of a location, which are times, further tries and TLS.

use super::parser::Directive;
use super::scope::Scope;
use super::values::{parse_time_ms, time_of, write_time};
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, one_or_list, quote};
use sluicegate_model::value::names::parse_header_name;

/// nginx's default of `proxy_connect_timeout` and `proxy_read_timeout`.
const TIMEOUT_MS: u64 = 60_000;

/// Adds `timeouts`, `retries` and `tls` of a location to the fields of its upstream.
pub(super) fn read_location_fields(
    scope: &Scope<'_>,
    is_tls: bool,
    servers: usize,
    is_tunnel: bool,
    fields: &mut Vec<PlannedField>,
) -> Result<(), ImportFault> {
    let connect = read_time(scope, "proxy_connect_timeout", "timeouts: { connect }")?;
    let read = read_time(scope, "proxy_read_timeout", "timeouts: { response, body }")?;
    let mut times = vec![
        ("connect", write_time(connect.max(1))),
        ("response", write_time(read.max(1))),
        ("body", write_time(read.max(1))),
    ];
    let idle = fields.iter().position(|field| field.name == "idle").map(|at| fields.remove(at).value);
    let idle = if is_tunnel { Some(write_time(read.max(1))) } else { idle };
    times.extend(idle.map(|idle| ("idle", idle)));
    if let Some(directive) = scope.value_of("proxy_send_timeout") {
        directive.skips("the gateway has no time of its own for sending to a server");
    }
    fields.push(PlannedField::plain("timeouts", flow_map(&times)));
    fields.push(PlannedField::plain("retries", read_retries(scope, servers)?));
    if is_tls {
        fields.push(PlannedField::plain("tls", flow_map(&read_tls(scope))));
    }
    Ok(())
}

fn read_time(scope: &Scope<'_>, name: &str, becomes: &str) -> Result<u64, ImportFault> {
    let Some(directive) = scope.value_of(name) else { return Ok(TIMEOUT_MS) };
    directive.exact(becomes);
    time_of(directive)
}

/// `retries` for `proxy_next_upstream` and its numbers.
fn read_retries(scope: &Scope<'_>, servers: usize) -> Result<String, ImportFault> {
    let mut when = Vec::new();
    match scope.value_of("proxy_next_upstream") {
        None => when.extend(["connect", "refused", "timeout"].map(str::to_owned)),
        Some(directive) => read_failures(directive, &mut when),
    }
    let mut attempts = servers.saturating_sub(1).min(10);
    if let Some(directive) = scope.value_of("proxy_next_upstream_tries") {
        let tries = directive.arg(0).parse::<usize>();
        let tries = tries.map_err(|_| directive.fault(format!("`{}` is not a number", directive.arg(0))))?;
        directive.exact("retries: { attempts }: the first try is not one of them");
        // 0 = any number.
        attempts = attempts.min(tries.checked_sub(1).unwrap_or(usize::MAX));
    }
    let (number, reasons) = (attempts.to_string(), one_or_list(&when));
    let mut fields = vec![("attempts", number), ("when", reasons), ("budget", "none".to_owned())];
    if let Some(directive) = scope.value_of("proxy_next_upstream_timeout") {
        directive.exact("retries: { total }");
        let ms = time_of(directive)?;
        fields.extend((ms > 0).then(|| ("total", write_time(ms))));
    }
    Ok(if attempts == 0 || when.is_empty() { "none".to_owned() } else { flow_map(&fields) })
}

fn read_failures(directive: &Directive, when: &mut Vec<String>) {
    let mut left_out = Vec::new();
    for word in &directive.args {
        match word.as_str() {
            "off" => {}
            "error" => when.extend(["connect", "refused"].map(str::to_owned)),
            "timeout" => when.push("timeout".to_owned()),
            "http_502" | "http_503" | "http_504" => when.push(word["http_".len()..].to_owned()),
            other => left_out.push(other),
        }
    }
    match left_out.as_slice() {
        [] => directive.exact("retries: { when }"),
        words => directive.differs(format!("retries: {{ when }} without {}", words.join(", "))),
    }
}

/// nginx verifies no server unless `proxy_ssl_verify` says so.
fn read_tls(scope: &Scope<'_>) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    if !scope.is_on("proxy_ssl_verify") {
        fields.push(("verify", "false".to_owned()));
    }
    let names = [
        ("proxy_ssl_trusted_certificate", "ca"),
        ("proxy_ssl_name", "server_name"),
        ("proxy_ssl_certificate", "cert"),
        ("proxy_ssl_certificate_key", "key"),
    ];
    for (name, field) in names {
        if let Some(directive) = scope.value_of(name).filter(|directive| !directive.arg(0).contains('$')) {
            directive.exact(format!("tls: {{ {field} }} of the upstream"));
            fields.push((field, quote(directive.arg(0))));
        }
    }
    fields
}

/// The fields of a block beside its servers.
pub(super) fn read_balance(block: &Directive) -> Vec<PlannedField> {
    let (mut balance, mut fields) = ("round_robin".to_owned(), Vec::new());
    for directive in block.children() {
        match (directive.name.as_str(), directive.arg(0)) {
            ("server", _) => {}
            ("least_conn", _) => balance = choose(directive, "least_conn", &[]),
            ("ip_hash", _) => balance = choose(directive, "hash:ip", &["clients move once to other servers"]),
            ("random", "two") => balance = choose(directive, "p2c", &[]),
            ("random", _) => balance = choose(directive, "random", &[]),
            ("hash", text) => match hash_source(text) {
                Some(source) => {
                    balance = choose(directive, &source, &["requests move once to other servers"])
                }
                None => directive.skips(format!("the gateway has no hash of {text}; balance: round_robin")),
            },
            ("keepalive", count) => match count.parse::<u32>() {
                Ok(count) => {
                    fields.push(PlannedField::plain("keepalive", count.to_string()));
                    directive.differs("here it is the number for each server");
                }
                Err(_) => directive.skips("it is not a number"),
            },
            ("keepalive_timeout", text) => match parse_time_ms(text) {
                Some(ms) if ms > 0 => {
                    fields.push(PlannedField::plain("idle", write_time(ms)));
                    directive.exact("timeouts: { idle }");
                }
                _ => directive.skips("it is not a time above zero"),
            },
            ("queue", count) => read_queue(directive, count, &mut fields),
            ("zone" | "keepalive_requests" | "keepalive_time" | "resolver" | "resolver_timeout", _) => {
                directive.skips("the gateway does this by itself");
            }
            _ => directive.skips("the gateway does not do this; balance: round_robin"),
        }
    }
    fields.insert(0, PlannedField::plain("balance", balance));
    fields
}

/// Reports the choice, and how it differs from that of nginx.
fn choose(directive: &Directive, balance: &str, differences: &[&str]) -> String {
    directive.becomes(&format!("balance: {balance}"), differences);
    balance.to_owned()
}

fn read_queue(directive: &Directive, count: &str, fields: &mut Vec<PlannedField>) {
    let timeout = directive.arg(1).strip_prefix("timeout=").unwrap_or("60s");
    match (count.parse::<u32>(), parse_time_ms(timeout)) {
        (Ok(count @ 1..), Some(ms @ 1..)) => {
            let value = format!("{{ size: {count}, max_wait: {} }}", write_time(ms));
            fields.push(PlannedField::plain("queue", value));
            directive.exact("queue");
        }
        _ => directive.loses("its numbers are not understood"),
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
