//! Suggestions for an unknown field, and for a value of the wrong form or with the wrong text.

use super::foreign_words::{DENY_ALL, find_advice, is_unlimited};
use super::shown_text::{show_field, show_node, show_text};
use super::tree::{MapKey, Node, NodeContent};
use crate::schema::{find_example, takes_list, takes_none};
use sluicegate_model::value::foreign_variables::{find_dollar_names, is_environment_name};
use sluicegate_model::value::network_hint::is_every_address;
use sluicegate_model::value::scalars::parse_rate;

/// Fields of one place that are written one level too high: the test of the path of their mapping, the field that they
/// belong into, their names, and a field without which they mean nothing, with a value of it.
type Inner = (fn(&str) -> bool, &'static str, &'static str, Option<(&'static str, &'static str)>);

const LIMIT_FIELDS: &str = "rate burst queue key algorithm max_wait missing_key fair_by warm_up cost buckets align \
                            dry_run enforce shadow bypass tiers";

const INNER: [Inner; 7] = [
    (is_location, "limits", LIMIT_FIELDS, Some(("rate", "10/s"))),
    (is_location, "limits", "max_concurrent", Some(("algorithm", "concurrency"))),
    (is_location, "access", "allow deny", None),
    (is_location, "respond", "status body content_type", None),
    (is_upstream, "timeouts", "connect response idle", None),
    (is_upstream, "retries", "attempts per_try budget", None),
    (is_listen, "tls", "cert key client_ca min_version", None),
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

/// The help for the unknown field `name` of the mapping at `path`, if it belongs into another field there, and true for
/// the first of the fields that belong there together; the others need no message.
pub(super) fn find_misplaced(path: &str, name: &str, written: &[(&MapKey, &Node)]) -> Option<(String, bool)> {
    let belongs = |names: &str, name: &str| names.split(' ').any(|inner| inner == name);
    let (_, field, names, needs) =
        INNER.iter().find(|(is_at, _, names, _)| is_at(path) && belongs(names, name))?;
    let mut fields: Vec<String> = Vec::new();
    let needed = needs.filter(|(needed, _)| !written.iter().any(|(key, _)| key.name == *needed));
    fields.extend(needed.map(|(needed, value)| format!("{needed}: {value}")));
    let mut first = None;
    let is_every = |name: &str, node: &Node| match &node.content {
        NodeContent::Text(text) => matches!(name, "allow" | "deny") && is_every_address(&text.written),
        _ => false,
    };
    for (key, node) in written.iter().filter(|(key, _)| belongs(names, &key.name)) {
        first = first.or(Some(key.name.as_str()));
        match is_every(&key.name, node) {
            true if key.name == "allow" => fields.push("allow: any".to_owned()),
            true => {}
            false => fields.push(format!("{}: {}", key.name, show_node(node))),
        }
    }
    let help = match fields.is_empty() {
        true => DENY_ALL.to_owned(),
        false => format!("write {field}: {{ {} }}", fields.join(", ")),
    };
    Some((help, first == Some(name)))
}

/// The form to suggest for a value that has the wrong one, such as `retries: 3`.
pub(super) fn suggest_form(path: &str, content: &NodeContent) -> Option<String> {
    let name = field_name(path);
    let help = match content {
        NodeContent::Text(text) => suggest_mapping(path, name, &text.written),
        NodeContent::List(items) => suggest_for_list(path, name, items),
        NodeContent::Map(entries) => suggest_for_map(path, name, entries),
        NodeContent::Null | NodeContent::Invalid => None,
    };
    let is_map = matches!(content, NodeContent::Map(_));
    help.or_else(|| match name {
        "body" | "fair_by" | "from" | "key" | "locations" if is_map => None,
        "upstream" if is_map || matches!(content, NodeContent::List(_)) => Some(
            "define it at the top, as in upstreams: { app: [10.0.0.1:9000] }, and write upstream: app"
                .to_owned(),
        ),
        _ => find_example(path).map(|example| format!("write e.g. {name}: {example}")),
    })
}

fn suggest_mapping(path: &str, name: &str, text: &str) -> Option<String> {
    let advice = |place, name| find_advice(place, name, text, |_| None);
    match name {
        _ if path.contains(".tiers.") => advice("tier", name),
        "timeouts" if path == "server.timeouts" => advice("form", path),
        "log" => Some(format!("write log: {{ level: {} }}", if text.contains(' ') { "info" } else { text })),
        "set" | "add" => {
            let pair = text.split_once(": ");
            let pair = pair.map(|(header, value)| show_field(header, &show_text(value.trim())));
            Some(format!("write {name}: {{ {} }}", pair.as_deref().unwrap_or("X-Name: value")))
        }
        _ => advice("form", name),
    }
}

fn suggest_for_list(path: &str, name: &str, items: &[Node]) -> Option<String> {
    let value = match name {
        "path" => return Some("write a location for each path, or one with ~ ^(/a|/b)".to_owned()),
        "set" | "add" | "headers" | "request_headers" | "response_headers" => suggest_pairs(name, items),
        "access" => {
            format!("{{ allow: [{}] }}", items.iter().map(show_node).collect::<Vec<_>>().join(", "))
        }
        tier if path.starts_with("account.tier.members.") => {
            let member = show_field(items.first().and_then(node_text)?, tier);
            return Some(format!("the account comes first: write members: {{ {member} }}, one for each"));
        }
        "limits" | "upstreams" => suggest_named(items)?,
        _ => return None,
    };
    Some(format!("write {name}: {value}"))
}

fn suggest_for_map(path: &str, name: &str, entries: &[(MapKey, Node)]) -> Option<String> {
    let value = match name {
        _ if path == "locations" => {
            let (key, inner) = entries.first()?;
            let upstream = inner.find_field("upstream").map_or("demo", |text| text.written.as_str());
            format!("[{{ path: {}, upstream: {} }}]", show_text(&key.name), show_text(upstream))
        }
        "rate" => {
            let texts: Vec<&str> = entries.iter().filter_map(|(_, node)| node_text(node)).collect();
            let mut rates =
                texts.iter().flat_map(|count| texts.iter().map(move |period| format!("{count}/{period}")));
            rates.find(|rate| parse_rate(rate).is_ok())?
        }
        "key" | "fair_by" | "from" => {
            let (kind, value) = entries.first()?;
            let is_source = matches!(kind.name.as_str(), "header" | "cookie" | "query" | "jwt");
            let value = node_text(value).filter(|_| is_source)?;
            return Some(format!("write {}:{value} without a space", kind.name));
        }
        "body" => match entries.iter().find(|(key, _)| key.name == "file") {
            Some((_, file)) => format!("\"${{file:{}}}\"", node_text(file)?),
            None => return Some("write it as text, e.g. body: '{ \"a\": 1 }'".to_owned()),
        },
        _ => return None,
    };
    Some(format!("write {name}: {value}"))
}

fn node_text(node: &Node) -> Option<&str> {
    node.text().map(|text| text.written.as_str())
}

/// A list of header fields, as a mapping of them.
fn suggest_pairs(name: &str, items: &[Node]) -> String {
    let pairs = items.iter().map(|item| match item.entries() {
        [(key, value)] => Some(show_field(&key.name, &show_node(value))),
        _ => {
            let (key, value) = item.text()?.written.split_once(':')?;
            Some(show_field(key.trim(), &show_text(value.trim())))
        }
    });
    let pairs =
        pairs.collect::<Option<Vec<String>>>().map_or("X-Name: value".to_owned(), |pairs| pairs.join(", "));
    match name.ends_with("_headers") {
        true => format!("{{ set: {{ {pairs} }} }}"),
        false => format!("{{ {pairs} }}"),
    }
}

/// A list of mappings with names, as a mapping of them.
fn suggest_named(items: &[Node]) -> Option<String> {
    let first = items.first()?;
    let name = first.find_field("name")?;
    let rest = first.entries().iter().filter(|(key, _)| key.name != "name");
    let rest: Vec<String> = rest.map(|(key, node)| show_field(&key.name, &show_node(node))).collect();
    Some(format!("{{ {}: {{ {} }} }}", show_text(&name.written), rest.join(", ")))
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

/// The text to write instead of a wrong scalar, if its field tells; `name` is that of the field at `path`.
pub(super) fn suggest_value(path: &str, name: &str, text: &str) -> Option<String> {
    // A part of a secret is one too.
    if matches!(name, "token" | "secret" | "url") {
        return None;
    }
    suggest_space(path, text)
        .or_else(|| suggest_environment(text))
        .or_else(|| suggest_for_field(path, name, text))
        .or_else(|| suggest_list(path, name, text))
        .or_else(|| (is_unlimited(text) && takes_none(path)).then(|| format!("write {name}: none")))
}

/// `name:value` where a section is expected, or where the value of `name` stands.
fn suggest_space(path: &str, text: &str) -> Option<String> {
    let (name, value) = text.split_once(':')?;
    let is_field = find_example(&format!("{path}.{name}")).is_some() && !value.is_empty();
    let shown = show_field(name, &show_text(value));
    is_field.then(|| format!("the colon needs a space after it: write {{ {shown} }}"))
}

fn suggest_for_field(path: &str, name: &str, text: &str) -> Option<String> {
    let advice = find_advice("value", name, text, |_| None);
    advice.or_else(|| match name {
        "burst" if text.ends_with(" nodelay") => {
            Some(format!("write burst: {}; requests within it pass at once", text.split(' ').next()?))
        }
        "methods" if is_every_address(&text.to_ascii_lowercase()) => Some("write methods: any".to_owned()),
        "sample" => {
            let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share < 1.0)?;
            let percent = (share * 1e6).round() / 1e4;
            Some(format!("write {percent}% for this share of all requests, or {text}%"))
        }
        "body" if path.ends_with("on_reject.body") && text.contains([' ', '<', '{']) => {
            Some(suggest_body(text))
        }
        "client_ip" if text.contains('-') && !text.contains(':') && !is_forwarded_for(text) => {
            Some(format!("write header:{text}"))
        }
        "rate" if takes_list(path) && text.contains(',') => {
            let rates: Vec<&str> = text.split(',').map(str::trim).collect();
            let is_list = rates.iter().all(|rate| parse_rate(rate).is_ok());
            is_list.then(|| format!("write a list: rate: [{}]", rates.join(", ")))
        }
        _ => None,
    })
}

fn is_forwarded_for(text: &str) -> bool {
    text.replace('_', "-").eq_ignore_ascii_case("x-forwarded-for")
}

/// A body of `on_reject` with this text.
fn suggest_body(text: &str) -> String {
    let kind = match text.trim_start().chars().next() {
        Some('<') => "text/html",
        Some('{' | '[') => "application/json",
        _ => "text/plain",
    };
    format!("write body: {{ template: {}, content_type: {kind} }}", show_text(text))
}

/// `$NAME`, `$(NAME)` and `{{ … }}`, which other programs replace.
fn suggest_environment(text: &str) -> Option<String> {
    if text.contains("{{") {
        return Some("render the file before, or write ${NAME} for an environment variable".to_owned());
    }
    let in_parentheses = text.split_once("$(").and_then(|(_, rest)| rest.split(')').next());
    let name = in_parentheses.or_else(|| find_dollar_names(text).next())?;
    is_environment_name(name).then(|| format!("write ${{{name}}} for the environment variable"))
}

/// Several values in one text, where a list of them is meant.
fn suggest_list(path: &str, name: &str, text: &str) -> Option<String> {
    if matches!(name, "rate" | "burst" | "queue") || !takes_list(path) {
        return None;
    }
    let separators: &[char] = match name {
        "key" | "fair_by" => &[',', ';', '|', '+', ' '],
        "trusted_proxies" | "allow" | "deny" | "bypass" | "host" | "methods" | "issuer" | "audience" => {
            &[',', ';', '|', ' ']
        }
        _ => &[',', ';', '|'],
    };
    let items: Vec<String> =
        text.split(separators).map(str::trim).filter(|item| !item.is_empty()).map(show_text).collect();
    (2..=8).contains(&items.len()).then(|| format!("write a list: {name}: [{}]", items.join(", ")))
}
