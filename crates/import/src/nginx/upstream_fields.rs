//! The fields of a location about its upstream: times, further tries, TLS.

use super::parser::Directive;
use super::scope::{FindingLedger, Scope};
use super::values::{time_of, write_time};
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, one_or_list, quote};

/// nginx's default of `proxy_connect_timeout` and `proxy_read_timeout`.
const TIMEOUT_MS: u64 = 60_000;

/// Adds `timeouts`, `retries` and `tls` of a location to the fields of its upstream.
pub(super) fn read_location_fields(
    scope: &Scope<'_>,
    is_tls: bool,
    servers: usize,
    is_tunnel: bool,
    ledger: &FindingLedger,
    fields: &mut Vec<PlannedField>,
) -> Result<(), ImportFault> {
    let connect = read_time(scope, "proxy_connect_timeout", "timeouts: { connect }", ledger)?;
    let read = read_time(scope, "proxy_read_timeout", "timeouts: { response, body }", ledger)?;
    let mut times = vec![
        ("connect".to_owned(), write_time(connect.max(1))),
        ("response".to_owned(), write_time(read.max(1))),
        ("body".to_owned(), write_time(read.max(1))),
    ];
    let idle = fields.iter().position(|field| field.name == "idle").map(|at| fields.remove(at).value);
    let idle = if is_tunnel { Some(write_time(read.max(1))) } else { idle };
    times.extend(idle.map(|idle| ("idle".to_owned(), idle)));
    if let Some(directive) = scope.value_of("proxy_send_timeout") {
        ledger.skips(directive, "the gateway has no time of its own for sending to a server");
    }
    fields.push(PlannedField::new("timeouts", flow_map(&times), ""));
    fields.push(PlannedField::new("retries", read_retries(scope, servers, ledger)?, ""));
    if is_tls {
        fields.push(PlannedField::new("tls", flow_map(&read_tls(scope, ledger)), ""));
    }
    Ok(())
}

fn read_time(
    scope: &Scope<'_>,
    name: &str,
    becomes: &str,
    ledger: &FindingLedger,
) -> Result<u64, ImportFault> {
    let Some(directive) = scope.value_of(name) else { return Ok(TIMEOUT_MS) };
    ledger.exact(directive, becomes);
    time_of(directive)
}

/// `retries` for `proxy_next_upstream` and its numbers.
fn read_retries(scope: &Scope<'_>, servers: usize, ledger: &FindingLedger) -> Result<String, ImportFault> {
    let words = scope.value_of("proxy_next_upstream");
    let tries = scope.value_of("proxy_next_upstream_tries");
    let total = scope.value_of("proxy_next_upstream_timeout");
    let mut when = Vec::new();
    match words {
        None => when.extend(["connect", "refused", "timeout"].map(str::to_owned)),
        Some(directive) => read_failures(directive, ledger, &mut when),
    }
    let most = servers.saturating_sub(1);
    let attempts = match tries.map(|directive| (directive, directive.arg(0).parse::<usize>())) {
        Some((directive, Err(_))) => {
            return Err(ImportFault::new(&directive.at, format!("`{}` is not a number", directive.arg(0))));
        }
        Some((directive, Ok(tries))) => {
            ledger.exact(directive, "retries: { attempts }: the first try is not one of them");
            if tries == 0 { most } else { (tries - 1).min(most) }
        }
        None => most,
    };
    let attempts = attempts.min(10);
    let mut fields = vec![("attempts".to_owned(), attempts.to_string())];
    fields.push(("when".to_owned(), one_or_list(&when)));
    fields.push(("budget".to_owned(), "none".to_owned()));
    if let Some(directive) = total {
        ledger.exact(directive, "retries: { total }");
        let ms = time_of(directive)?;
        fields.extend((ms > 0).then(|| ("total".to_owned(), write_time(ms))));
    }
    Ok(if attempts == 0 || when.is_empty() { "none".to_owned() } else { flow_map(&fields) })
}

fn read_failures(directive: &Directive, ledger: &FindingLedger, when: &mut Vec<String>) {
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
        [] => ledger.exact(directive, "retries: { when }"),
        words => ledger.differs(directive, format!("retries: {{ when }} without {}", words.join(", "))),
    }
}

/// nginx verifies no server unless `proxy_ssl_verify` says so.
fn read_tls(scope: &Scope<'_>, ledger: &FindingLedger) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    if !scope.is_on("proxy_ssl_verify") {
        fields.push(("verify".to_owned(), "false".to_owned()));
    }
    let names = [
        ("proxy_ssl_trusted_certificate", "ca"),
        ("proxy_ssl_name", "server_name"),
        ("proxy_ssl_certificate", "cert"),
        ("proxy_ssl_certificate_key", "key"),
    ];
    for (name, field) in names {
        if let Some(directive) = scope.value_of(name).filter(|directive| !directive.arg(0).contains('$')) {
            ledger.exact(directive, format!("tls: {{ {field} }} of the upstream"));
            fields.push((field.to_owned(), quote(directive.arg(0))));
        }
    }
    fields
}
