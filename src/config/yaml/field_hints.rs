//! What to write instead of an unknown field, or of a value of the wrong form.

use super::tree::{MapKey, Node, NodeContent};
use crate::config::diagnostics::redact::redact_credentials;
use crate::config::schema::find_example;
use crate::config::value::scalars::parse_duration;
use crate::config::value::words::find_synonym;

/// Names of fields in other programs, each with the fields of this file that may be meant.
const SYNONYMS: [(&str, &[&str]); 49] = [
    ("limit", &["rate"]),
    ("requests", &["rate"]),
    ("rps", &["rate"]),
    ("by", &["key"]),
    ("zone", &["key"]),
    ("delay", &["queue"]),
    ("max_requests", &["max_concurrent"]),
    ("limit_conn", &["max_concurrent"]),
    ("limit_req", &["limits"]),
    ("limit_req_zone", &["limits"]),
    ("rate_limit", &["limits"]),
    ("ratelimit", &["limits"]),
    ("throttle", &["limits"]),
    ("proxy_pass", &["upstream"]),
    ("backend", &["upstream"]),
    ("target", &["upstream"]),
    ("proxy", &["upstream"]),
    ("service", &["upstream"]),
    ("return", &["respond"]),
    ("response", &["respond"]),
    ("rewrite", &["strip"]),
    ("strip_prefix", &["strip"]),
    ("uri", &["path"]),
    ("url", &["path"]),
    ("prefix", &["path"]),
    ("match", &["path"]),
    ("server_name", &["host"]),
    ("domain", &["host"]),
    ("proxy_set_header", &["request_headers"]),
    ("add_header", &["response_headers"]),
    ("headers", &["response_headers"]),
    ("backends", &["servers", "upstreams"]),
    ("targets", &["servers"]),
    ("endpoints", &["servers"]),
    ("load_balancing", &["balance"]),
    ("policy", &["balance"]),
    ("health_check", &["health"]),
    ("retry", &["retries"]),
    ("routes", &["locations"]),
    ("services", &["upstreams"]),
    ("clusters", &["upstreams"]),
    ("http", &["server"]),
    ("port", &["listen", "address"]),
    ("bind", &["listen", "address"]),
    ("ssl", &["tls"]),
    ("certificate", &["cert"]),
    ("ssl_certificate", &["cert"]),
    ("ssl_certificate_key", &["key"]),
    ("client_max_body_size", &["max_body"]),
];

/// The field that another program's name for it stands for, if it is one of `known`.
pub(super) fn find_field_synonym<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    find_synonym(&SYNONYMS, name, known)
}

/// Fields of one place that are written one level too high: a test of the path of their mapping, the field that they
/// belong into, their names, and a field without which they mean nothing.
struct Inner {
    is_at: fn(&str) -> bool,
    field: &'static str,
    names: &'static [&'static str],
    needs: Option<(&'static str, &'static str)>,
}

const INNER: [Inner; 6] = [
    Inner {
        is_at: is_location,
        field: "limits",
        names: &[
            "rate",
            "burst",
            "queue",
            "key",
            "algorithm",
            "max_wait",
            "missing_key",
            "fair_by",
            "warm_up",
            "cost",
            "buckets",
            "align",
            "dry_run",
            "bypass",
            "tiers",
        ],
        needs: Some(("rate", "10/s")),
    },
    Inner {
        is_at: is_location,
        field: "limits",
        names: &["max_concurrent"],
        needs: Some(("algorithm", "concurrency")),
    },
    Inner { is_at: is_location, field: "respond", names: &["status", "body", "content_type"], needs: None },
    Inner { is_at: is_upstream, field: "timeouts", names: &["connect", "response", "idle"], needs: None },
    Inner { is_at: is_upstream, field: "retries", names: &["attempts", "per_try", "budget"], needs: None },
    Inner {
        is_at: is_listen,
        field: "tls",
        names: &["cert", "key", "client_ca", "min_version"],
        needs: None,
    },
];

fn is_location(path: &str) -> bool {
    path.starts_with("locations[") && path.ends_with(']')
}

fn is_upstream(path: &str) -> bool {
    path.starts_with("upstreams.") && path.matches('.').count() == 1
}

fn is_listen(path: &str) -> bool {
    path == "listen" || path.starts_with("listen[") && path.ends_with(']')
}

/// The unknown field `name` of the mapping at `path`, if it belongs into another field there.
pub(super) struct Misplaced {
    /// The first of the fields that belong there together; the others need no message.
    pub first: bool,
    pub help: String,
}

pub(super) fn find_misplaced(path: &str, name: &str, written: &[(&MapKey, &Node)]) -> Option<Misplaced> {
    let inner = INNER.iter().find(|inner| (inner.is_at)(path) && inner.names.contains(&name))?;
    let mut fields: Vec<String> = Vec::new();
    let needed = inner.needs.filter(|(needed, _)| !written.iter().any(|(key, _)| key.name == *needed));
    fields.extend(needed.map(|(needed, value)| format!("{needed}: {value}")));
    let mut first = None;
    for (key, node) in written.iter().filter(|(key, _)| inner.names.contains(&key.name.as_str())) {
        first = first.or(Some(key.name.as_str()));
        fields.push(format!("{}: {}", key.name, show_value(node)));
    }
    let help = format!("write {}: {{ {} }}", inner.field, fields.join(", "));
    Some(Misplaced { first: first == Some(name), help })
}

/// What to write instead of an unknown field that nothing else explains.
pub(super) fn explain_field(path: &str, name: &str) -> Option<String> {
    if path.ends_with("_headers") {
        return Some(format!("write set: {{ {name}: … }}, or add or remove"));
    }
    let help = match name {
        "limits" if is_upstream(path) => "write limits: in the locations of this upstream",
        "<<" => "merge keys are not supported; an alias such as *name can replace a whole value",
        "nodelay" => {
            "remove it: requests within burst pass at once; to delay them write algorithm: leaky_bucket"
        }
        _ => return None,
    };
    Some(help.to_owned())
}

/// What to write instead of a value that has the wrong form, such as `retries: 3`.
pub(super) fn suggest_form(path: &str, content: &NodeContent) -> Option<String> {
    let name = field_name(path);
    let value = match content {
        NodeContent::Text(text) => suggest_mapping(name, &text.written),
        NodeContent::Map(entries) if path == "locations" => {
            let (key, inner) = entries.first()?;
            let upstream = inner.find_field("upstream").map_or("demo", |text| text.written.as_str());
            Some(format!("[{{ path: {}, upstream: {} }}]", show_text(&key.name), show_text(upstream)))
        }
        NodeContent::List(_) if path.ends_with("_headers.set") || path.ends_with("_headers.add") => {
            Some("{ X-Name: value }".to_owned())
        }
        _ => None,
    };
    match value {
        Some(value) => Some(format!("write {name}: {value}")),
        None => find_example(path).map(|example| format!("write e.g. {name}: {example}")),
    }
}

fn suggest_mapping(name: &str, text: &str) -> Option<String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let shown = show_text(text);
    Some(match name {
        "retries" | "health" | "eject" | "access_log" | "access" | "bans" | "tls" if is_off(text) => {
            "none".to_owned()
        }
        "retries" if is_number => format!("{{ attempts: {text} }}"),
        "retries" => "{ attempts: 2 }".to_owned(),
        "health" if text.starts_with('/') => format!("{{ path: {shown} }}"),
        "health" => "{ path: /healthz }".to_owned(),
        "respond" if is_number => format!("{{ status: {text} }}"),
        "respond" => format!("{{ body: {shown} }}"),
        "redirect" => format!("{{ to: {shown} }}"),
        "tls" => "{ cert: chain.pem, key: key.pem }".to_owned(),
        "timeouts" => format!("{{ response: {} }}", if parse_duration(text).is_ok() { text } else { "60s" }),
        "access_log" if text.contains('/') || text == "stdout" => format!("{{ output: {shown} }}"),
        "log" => format!("{{ level: {} }}", if text.contains(' ') { "info" } else { text }),
        "set" | "add" => "{ X-Name: value }".to_owned(),
        _ => return None,
    })
}

/// What to write instead of a wrong scalar, if its field tells.
pub(super) fn suggest_value(path: &str, text: &str) -> Option<String> {
    let name = field_name(path);
    let is_duration = parse_duration(text).is_ok();
    match name {
        "admin" if is_off(text) => Some("write admin: none".to_owned()),
        "keepalive" if is_duration => Some(format!(
            "it is a number of connections, e.g. keepalive: 128; for their time write timeouts: {{ idle: {text} }}"
        )),
        "burst" | "queue" if is_duration => {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            Some(format!("it is a number of requests: write {name}: {digits}"))
        }
        "weight" if text == "0" => Some("write at least 1, or remove the server".to_owned()),
        _ => None,
    }
}

/// What to write instead of a text with template variables at a place that takes none.
pub(super) fn suggest_template(path: &str, written: &str) -> Option<String> {
    let kind = if written.trim_start().starts_with('<') { "text/html" } else { "text/plain" };
    (path.ends_with("on_reject.body") || path.ends_with("reject.body"))
        .then(|| format!("write body: {{ template: {}, content_type: {kind} }}", show_text(written)))
}

/// Whether the text switches something off in other programs.
fn is_off(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "off" | "false" | "no" | "disabled")
}

fn field_name(path: &str) -> &str {
    let name = path.rsplit('.').next().unwrap_or(path);
    name.split('[').next().unwrap_or(name)
}

/// A short value as it is written in the file, or `…`.
fn show_value(node: &Node) -> String {
    match &node.content {
        NodeContent::Text(text) => show_text(&text.written),
        _ => "…".to_owned(),
    }
}

fn show_text(text: &str) -> String {
    let text = redact_credentials(text);
    if text.is_empty() || text.len() > 80 || text.contains(char::is_control) {
        return "…".to_owned();
    }
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '~' | '.'))
        && !text.ends_with([':', ' '])
        && !text.contains(['{', '}', '[', ']', ',', '"', '\'', '#'])
        && !text.contains(": ");
    match () {
        () if is_plain => text,
        () if text.contains(['"', '\\']) => format!("'{}'", text.replace('\'', "''")),
        () => format!("\"{text}\""),
    }
}
