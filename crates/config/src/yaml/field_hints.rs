//! Suggestions for an unknown field, or for a value of the wrong form.

use super::shown_text::{show_field, show_node, show_text};
use super::tree::{MapKey, Node, NodeContent};
use super::value_hints::{DENY_ALL, is_off, is_on, is_unlimited, suggest_body};
use crate::schema::find_example;
use sluicegate_model::value::network_hint::is_every_address;
use sluicegate_model::value::scalars::{parse_duration, parse_rate};

/// Fields of one place that are written one level too high: a test of the path of their mapping, the field that they
/// belong into, their names, and a field without which they mean nothing.
struct Inner {
    is_at: fn(&str) -> bool,
    field: &'static str,
    names: &'static [&'static str],
    needs: Option<(&'static str, &'static str)>,
}

const INNER: [Inner; 7] = [
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
            "enforce",
            "shadow",
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
    Inner { is_at: is_location, field: "access", names: &["allow", "deny"], needs: None },
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
    let is_every = |name: &str, node: &Node| match &node.content {
        NodeContent::Text(text) => matches!(name, "allow" | "deny") && is_every_address(&text.written),
        _ => false,
    };
    for (key, node) in written.iter().filter(|(key, _)| inner.names.contains(&key.name.as_str())) {
        first = first.or(Some(key.name.as_str()));
        match is_every(&key.name, node) {
            true if key.name == "allow" => fields.push("allow: any".to_owned()),
            true => {}
            false => fields.push(format!("{}: {}", key.name, show_node(node))),
        }
    }
    let help = match fields.is_empty() {
        true => DENY_ALL.to_owned(),
        false => format!("write {}: {{ {} }}", inner.field, fields.join(", ")),
    };
    Some(Misplaced { first: first == Some(name), help })
}

/// The form to suggest for a value that has the wrong one, such as `retries: 3`.
pub(super) fn suggest_form(path: &str, content: &NodeContent) -> Option<String> {
    let name = field_name(path);
    let value = match content {
        NodeContent::Text(text) if path.contains(".tiers.") => suggest_tier(&text.written),
        NodeContent::Text(text) if path == "access_log" && is_on(&text.written) => {
            return Some("remove it: requests are logged to stdout without it".to_owned());
        }
        NodeContent::Text(text)
            if name == "tls" && matches!(text.written.as_str(), "auto" | "acme" | "letsencrypt") =>
        {
            return Some(
                "certificates are not fetched here: write tls: { cert: chain.pem, key: key.pem }".to_owned(),
            );
        }
        NodeContent::Text(text) => suggest_mapping(path, name, &text.written),
        NodeContent::Map(entries) if path == "locations" => {
            let (key, inner) = entries.first()?;
            let upstream = inner.find_field("upstream").map_or("demo", |text| text.written.as_str());
            Some(format!("[{{ path: {}, upstream: {} }}]", show_text(&key.name), show_text(upstream)))
        }
        NodeContent::List(items) => match name {
            "path" => return Some("write a location for each path, or one with ~ ^(/a|/b)".to_owned()),
            "set" | "add" | "headers" | "request_headers" | "response_headers" => suggest_pairs(name, items),
            "access" => Some(format!("{{ allow: {} }}", show_items(items))),
            tier if path.starts_with("account.tier.members.") => {
                let account = items.first().and_then(node_text)?;
                let member = show_field(account, tier);
                return Some(format!("the account comes first: write members: {{ {member} }}, one for each"));
            }
            "limits" | "upstreams" => suggest_named(items),
            _ => None,
        },
        NodeContent::Map(entries) if name == "rate" => {
            let texts: Vec<&str> = entries.iter().filter_map(|(_, node)| node_text(node)).collect();
            let rate =
                texts.iter().flat_map(|count| texts.iter().map(move |period| format!("{count}/{period}")));
            rate.into_iter().find(|rate| parse_rate(rate).is_ok())
        }
        NodeContent::Map(entries) if matches!(name, "key" | "fair_by" | "from") => {
            let (kind, value) = entries.first().filter(|(_, value)| node_text(value).is_some())?;
            let is_source = matches!(kind.name.as_str(), "header" | "cookie" | "query" | "jwt");
            let source = is_source.then(|| format!("{}:{}", kind.name, node_text(value).unwrap_or_default()));
            return source.map(|source| format!("write {source} without a space"));
        }
        NodeContent::Map(entries) if name == "body" && entries.iter().any(|(key, _)| key.name == "file") => {
            let file =
                entries.iter().find(|(key, _)| key.name == "file").and_then(|(_, node)| node_text(node))?;
            Some(format!("\"${{file:{file}}}\""))
        }
        NodeContent::Map(_) if name == "body" => {
            return Some("write it as text, e.g. body: '{ \"a\": 1 }'".to_owned());
        }
        _ => None,
    };
    let is_group = matches!(content, NodeContent::List(_) | NodeContent::Map(_));
    match value {
        Some(value) => Some(format!("write {name}: {value}")),
        None if name == "upstream" && is_group => Some(
            "define it at the top, as in upstreams: { app: [10.0.0.1:9000] }, and write upstream: app"
                .to_owned(),
        ),
        None => find_example(path).map(|example| format!("write e.g. {name}: {example}")),
    }
}

fn node_text(node: &Node) -> Option<&str> {
    match &node.content {
        NodeContent::Text(text) => Some(&text.written),
        _ => None,
    }
}

fn show_items(items: &[Node]) -> String {
    format!("[{}]", items.iter().map(show_node).collect::<Vec<_>>().join(", "))
}

/// The numbers of a tier: `100`, `100/s` or `unlimited`.
fn suggest_tier(text: &str) -> Option<String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text {
        _ if is_unlimited(text) => Some("none".to_owned()),
        _ if is_number => Some(format!("{{ rate: {text}/s }}")),
        _ => parse_rate(text).is_ok().then(|| format!("{{ rate: {text} }}")),
    }
}

/// A list of header fields, as a mapping of them.
fn suggest_pairs(name: &str, items: &[Node]) -> Option<String> {
    let pairs = items.iter().map(|item| match &item.content {
        NodeContent::Map(entries) => match entries.as_slice() {
            [(key, value)] => Some(show_field(&key.name, &show_node(value))),
            _ => None,
        },
        NodeContent::Text(text) => {
            let (key, value) = text.written.split_once(':')?;
            Some(show_field(key.trim(), &show_text(value.trim())))
        }
        _ => None,
    });
    let pairs =
        pairs.collect::<Option<Vec<String>>>().map_or("X-Name: value".to_owned(), |pairs| pairs.join(", "));
    Some(if name.ends_with("_headers") {
        format!("{{ set: {{ {pairs} }} }}")
    } else {
        format!("{{ {pairs} }}")
    })
}

/// A list of mappings with names, as a mapping of them.
fn suggest_named(items: &[Node]) -> Option<String> {
    let NodeContent::Map(entries) = &items.first()?.content else { return None };
    let name = items.first()?.find_field("name")?;
    let rest = entries.iter().filter(|(key, _)| key.name != "name");
    let rest: Vec<String> = rest.map(|(key, node)| show_field(&key.name, &show_node(node))).collect();
    Some(format!("{{ {}: {{ {} }} }}", show_text(&name.written), rest.join(", ")))
}

fn suggest_mapping(path: &str, name: &str, text: &str) -> Option<String> {
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
        "timeouts" if path == "server.timeouts" && parse_duration(text).is_ok() => {
            format!("{{ header: {text}, body: {text} }}")
        }
        "timeouts" if path == "server.timeouts" => return None,
        "on_reject" if is_number => format!("{{ status: {text} }}"),
        "on_reject" if matches!(text, "problem" | "envelope" | "none") => format!("{{ body: {text} }}"),
        "cors" if text == "*" || text.contains("://") => format!("{{ origins: {shown} }}"),
        "bandwidth" if text.contains('/') => format!("{{ rate: {shown} }}"),
        "account" if text.contains(':') => format!("{{ from: {shown} }}"),
        "reload" if parse_duration(text).is_ok() => format!("{{ watch: {text} }}"),
        "state" if text == "redis" => "{ store: redis, redis: { url: \"redis://HOST:6379\" } }".to_owned(),
        "redis" if text.contains("://") => format!("{{ url: {shown} }}"),
        "timeouts" => format!("{{ response: {} }}", if parse_duration(text).is_ok() { text } else { "60s" }),
        "access_log" if text.contains('/') || text == "stdout" => format!("{{ output: {shown} }}"),
        "log" => format!("{{ level: {} }}", if text.contains(' ') { "info" } else { text }),
        "set" | "add" => match text.split_once(": ") {
            Some((header, value)) => format!("{{ {} }}", show_field(header, &show_text(value.trim()))),
            None => "{ X-Name: value }".to_owned(),
        },
        _ => return None,
    })
}

/// A possible value in place of one that must not be shown.
pub(super) fn suggest_example(path: &str) -> Option<String> {
    find_example(path).map(|example| format!("the value should be such as {}: {example}", field_name(path)))
}

/// The suggestion for a text with template variables at a place that takes none.
pub(super) fn suggest_template(path: &str, written: &str) -> Option<String> {
    (path.ends_with("on_reject.body") || path.ends_with("reject.body")).then(|| suggest_body(written))
}

pub(super) fn field_name(path: &str) -> &str {
    let name = path.rsplit('.').next().unwrap_or(path);
    name.split('[').next().unwrap_or(name)
}
