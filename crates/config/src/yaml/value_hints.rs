//! The text to write instead of a scalar that its field does not take.

use super::shown_text::{show_field, show_text};
use crate::schema::{find_example, takes_list, takes_none};
use sluicegate_model::value::foreign_variables::{find_dollar_names, is_environment_name};
use sluicegate_model::value::network_hint::is_every_address;
use sluicegate_model::value::scalars::{parse_duration, parse_rate};

/// The help for `deny all`, which follows the allowed addresses in nginx.
pub(super) const DENY_ALL: &str =
    "leave it out: allow: [10.0.0.0/8] admits these addresses alone; or write respond: { status: 403 }";

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
    let is_duration = parse_duration(text).is_ok();
    Some(match name {
        "admin" if is_off(text) => "write admin: none".to_owned(),
        "admin" if is_on(text) => "remove it: the admin listener is on without it, at 127.0.0.1:9901".to_owned(),
        "keepalive" if is_duration => format!(
            "it is a number of connections, e.g. keepalive: 128; for their time write timeouts: {{ idle: {text} }}"
        ),
        "keepalive" if is_off(text) => "write keepalive: 0".to_owned(),
        "burst" | "queue" if is_duration => {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            format!("it is a number of requests: write {name}: {digits}")
        }
        "burst" if text.ends_with(" nodelay") => {
            format!("write burst: {}; requests within it pass at once", text.split(' ').next()?)
        }
        "weight" if text == "0" => "write at least 1, or remove the server".to_owned(),
        "rate" if is_unlimited(text) => {
            "leave the limit out of the chain, or write bypass for addresses and none for a tier".to_owned()
        }
        "trusted_proxies" if is_every_address(text) || text == "0.0.0.0" => {
            "name the proxies before the gateway, e.g. [10.0.0.0/8]; a trusted peer chooses the address of its clients"
                .to_owned()
        }
        "deny" if is_every_address(text) => DENY_ALL.to_owned(),
        "strip" if is_on(text) => "write the prefix to remove, e.g. strip: /api".to_owned(),
        "protocol" if matches!(text, "https" | "tls" | "ssl") => "write https:// before each server".to_owned(),
        "methods" if is_every_address(&text.to_ascii_lowercase()) => "write methods: any".to_owned(),
        "sample" => {
            let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share < 1.0)?;
            format!("write {}% for this share of all requests, or {text}%", (share * 1e6).round() / 1e4)
        }
        "body" if path.ends_with("on_reject.body") && text.contains([' ', '<', '{']) => suggest_body(text),
        "balance" if text.contains("cookie") => {
            "there are no cookies for it: write hash:ip, or e.g. hash:header:X-User".to_owned()
        }
        "weight" if text.ends_with('%') => {
            let share = text.trim_end_matches('%');
            format!("write weight: {share}; its share of the sum of all weights counts")
        }
        "client_ip" if text.contains('-') && !text.contains(':') && !is_forwarded_for(text) => {
            format!("write header:{text}")
        }
        "rate" if takes_list(path) && text.contains(',') => {
            let rates: Vec<&str> = text.split(',').map(str::trim).collect();
            let is_list = rates.iter().all(|rate| parse_rate(rate).is_ok());
            is_list.then(|| format!("write a list: rate: [{}]", rates.join(", ")))?
        }
        _ => return None,
    })
}

fn is_forwarded_for(text: &str) -> bool {
    text.replace('_', "-").eq_ignore_ascii_case("x-forwarded-for")
}

/// A body of `on_reject` with this text.
pub(super) fn suggest_body(text: &str) -> String {
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

pub(super) fn is_on(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "on" | "true" | "yes" | "enabled")
}

/// True if the text switches something off in other programs.
pub(super) fn is_off(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "off" | "false" | "no" | "disabled")
}

/// True if the text stands for no bound in other programs.
pub(super) fn is_unlimited(text: &str) -> bool {
    is_off(text)
        || matches!(
            text.to_ascii_lowercase().as_str(),
            "0" | "-1" | "unlimited" | "infinite" | "infinity" | "never"
        )
}
