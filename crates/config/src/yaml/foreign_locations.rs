//! Explains fields of a location that only other programs have.

use super::shown_text::{show_field, show_node, show_text};
use super::tree::{Node, NodeContent};
use sluicegate_model::value::foreign_variables::replace_variables;

pub(super) const ERROR_PAGE: &str = "write on_reject: { body: { template: \"…\", content_type: text/html } } for the \
                                     gateway's own rejections; responses of upstreams pass as they are";

/// The text to write instead of the field `name` of a location, in snake case, with the value `text` or else `node`.
pub(super) fn explain_in_location(name: &str, text: &str, node: &Node) -> Option<String> {
    Some(match name {
        "root" | "alias" | "index" | "try_files" | "file_server" | "static" | "static_dir" => {
            "files are not served here: write upstream: NAME of a server that has them".to_owned()
        }
        "websocket" | "websockets" | "enable_websocket" | "proxy_http_version" => {
            "remove it: WebSockets and other upgrades pass without a setting".to_owned()
        }
        "proxy_read_timeout" | "proxy_send_timeout" | "response_timeout" => {
            format!("write timeouts: {{ response: {} }} in the upstream", show_time(text))
        }
        "proxy_connect_timeout" | "connect_timeout" => {
            format!("write timeouts: {{ connect: {} }} in the upstream", show_time(text))
        }
        "path_type" if matches!(text, "Exact" | "exact") => {
            "remove it, and write an equals sign before the path, such as path: = /api".to_owned()
        }
        "path_type" => "remove it: a path such as /api matches every path that begins with it".to_owned(),
        "rule" => explain_rule(text)?,
        "timeouts" => format!(
            "write timeouts: {} in upstreams.NAME; `timeout` here bounds the whole request",
            show_node(node)
        ),
        "client_max_body_size" => format!("write server: {{ max_body: {} }}", show_size(text)),
        "if" => "there are no conditions here: write locations with host, methods or scheme".to_owned(),
        "mirror" | "mirrors" => "remove it: requests are not copied".to_owned(),
        "rewrite" | "url_rewrite" => {
            "write e.g. strip: /api to remove the beginning of the path; the rest is forwarded as it is"
                .to_owned()
        }
        "error_page" => ERROR_PAGE.to_owned(),
        "limit_rate" => "write e.g. bandwidth: { rate: 100KiB/s }".to_owned(),
        "priority" | "order" => {
            "remove it: an exact path wins, then the longest prefix, then the first regular expression"
                .to_owned()
        }
        "return" => explain_return(text)?,
        "proxy_set_header" | "request_header" | "header_up" => show_headers("request_headers", node),
        "add_header" | "more_set_headers" | "header" | "header_down" => {
            show_headers("response_headers", node)
        }
        "headers" => {
            format!(
                "{}, or request_headers for what the upstream gets",
                show_headers("response_headers", node)
            )
        }
        _ => return None,
    })
}

/// ``Host(`a.test`) && PathPrefix(`/api`)``, as Traefik writes them.
fn explain_rule(text: &str) -> Option<String> {
    let value_of = |word: &str| text.split_once(word)?.1.strip_prefix("(`")?.split('`').next();
    let host = value_of("Host")?;
    let path = value_of("PathPrefix").or_else(|| value_of("Path")).filter(|path| path.starts_with('/'));
    Some(format!("write path: {} and host: {}", show_text(path.unwrap_or("/")), show_text(host)))
}

/// `301 https://…`, `403` or `200 text`, as nginx writes responses.
fn explain_return(text: &str) -> Option<String> {
    let (status, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.trim().trim_matches(['"', '\'', ';']);
    if text.contains("://") {
        let status = if is_number(status) { format!(", status: {status}") } else { String::new() };
        let to = rest.split(' ').next_back().filter(|to| !to.is_empty()).unwrap_or(text);
        let to = replace_variables(to).unwrap_or_else(|| to.to_owned());
        return Some(format!("write redirect: {{ to: {}{status} }}", show_text(&to)));
    }
    let body = if rest.is_empty() { String::new() } else { format!(", body: {}", show_text(rest)) };
    is_number(status).then(|| format!("write respond: {{ status: {status}{body} }}"))
}

/// Header fields in other forms, as an edit of this file.
pub(super) fn show_headers(field: &str, node: &Node) -> String {
    let value = |text: &str| {
        let text = text.trim().trim_matches(['"', ';']);
        show_text(&replace_variables(text).unwrap_or_else(|| text.to_owned()))
    };
    let pair = |text: &str| {
        let (name, rest) = text.trim().split_once([' ', ':'])?;
        Some(show_field(name, &value(rest)))
    };
    let pairs: Vec<String> = match &node.content {
        NodeContent::Map(entries) => {
            let texts = entries.iter().filter_map(|(key, node)| Some((key, plain_text(node)?)));
            texts.map(|(key, text)| show_field(&key.name, &value(text))).collect()
        }
        NodeContent::List(items) => items.iter().filter_map(plain_text).filter_map(pair).collect(),
        _ => plain_text(node).and_then(pair).into_iter().collect(),
    };
    if pairs.iter().any(|pair| pair.to_ascii_lowercase().starts_with("host:")) {
        return "write host_header: client, upstream or a name; other headers in request_headers: { set: … }"
            .to_owned();
    }
    match pairs.is_empty() {
        true => format!("write {field}: {{ set: {{ X-Name: value }} }}"),
        false => format!("write {field}: {{ set: {{ {} }} }}", pairs.join(", ")),
    }
}

pub(super) fn plain_text(node: &Node) -> Option<&str> {
    match &node.content {
        NodeContent::Text(text) if !text.replaced => Some(&text.written),
        _ => None,
    }
}

pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A duration; one without a unit means seconds in most programs.
pub(super) fn show_time(text: &str) -> String {
    match text {
        "" => "60s".to_owned(),
        text if is_number(text) => format!("{text}s"),
        text => show_text(text),
    }
}

/// A size such as `10m`, with the units of this file.
pub(super) fn show_size(text: &str) -> String {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => "B",
        "k" => "KiB",
        "m" => "MiB",
        "g" => "GiB",
        _ => return show_text(text),
    };
    if digits.is_empty() { "10MiB".to_owned() } else { format!("{digits}{unit}") }
}
