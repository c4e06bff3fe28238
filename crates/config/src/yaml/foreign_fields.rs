//! Explains fields that only other programs have, and writes their values as this file does.

use super::foreign_words::{find_advice, find_field_synonym, is_number, is_status, show_time, to_snake_case};
use super::shown_text::{show_field, show_node, show_text};
use super::tree::{MapKey, Node, NodeContent};
use sluicegate_model::diagnostics::redact::redact_credentials;
use sluicegate_model::value::foreign_variables::replace_variables;
use sluicegate_model::value::scalars::parse_rate;

/// An unknown field with the mapping that it stands in.
pub(super) struct ForeignField<'a> {
    /// The path of the section, e.g. `limits.NAME`.
    section: &'static str,
    /// The name in snake case.
    name: String,
    written: String,
    node: &'a Node,
    /// The text of `rate` beside it.
    rate: Option<&'a str>,
    /// All unknown fields of the mapping.
    unknown: &'a [(&'a MapKey, &'a Node)],
}

/// Names of a host, beside which a `port` may stand.
const HOSTS: [&str; 5] = ["host", "address", "addr", "server", "hostname"];
/// Names of the number of a rate, beside which its period may stand.
const AMOUNTS: [&str; 6] = ["limit", "requests", "average", "amount", "rate_limit", "count"];
pub(super) const PERIODS: [&str; 6] = ["window", "period", "per", "interval", "duration", "time_unit"];

/// Fields that have a meaning only beside others: their section, their names, and those others.
const COMPANIONS: [(&str, &[&str], &[&str]); 8] = [
    ("admin", &["port"], &HOSTS),
    ("server", &["ssl_certificate_key"], &["ssl_certificate"]),
    ("limits.NAME", &PERIODS, &AMOUNTS),
    ("listen[]", &["port"], &HOSTS),
    ("state.redis", &["port"], &HOSTS),
    ("upstreams.NAME", &["fail_timeout"], &["max_fails"]),
    ("upstreams.NAME.servers[]", &["port"], &HOSTS),
    ("", &["kind", "metadata", "spec", "status"], &["api_version"]),
];

impl<'a> ForeignField<'a> {
    pub(super) fn new(
        section: &'static str,
        key: &MapKey,
        node: &'a Node,
        rate: Option<&'a str>,
        unknown: &'a [(&'a MapKey, &'a Node)],
    ) -> ForeignField<'a> {
        let (name, written) = (to_snake_case(&key.name), key.name.clone());
        ForeignField { section, name, written, node, rate, unknown }
    }

    fn find_sibling(&self, names: &[&str]) -> Option<&'a Node> {
        let is_named = |key: &MapKey| names.contains(&to_snake_case(&key.name).as_str());
        self.unknown.iter().find(|(key, _)| is_named(key)).map(|(_, node)| *node)
    }

    fn sibling_text(&self, names: &[&str]) -> Option<&'a str> {
        self.find_sibling(names).and_then(plain_text)
    }

    /// True if the message about another field covers this one too.
    pub(super) fn is_companion(&self) -> bool {
        COMPANIONS.iter().any(|(section, names, others)| {
            *section == self.section
                && names.contains(&self.name.as_str())
                && self.find_sibling(others).is_some()
        })
    }

    /// The text to write instead, where no field of the section has the meaning.
    pub(super) fn explain(&self) -> Option<String> {
        let owned = |text: &str| Some(text.to_owned());
        if self.name == "<<" {
            return owned("merge keys are not supported; an alias such as *name can replace a whole value");
        }
        if let ("", Some(path)) = (self.section, self.name.strip_prefix("location ")) {
            return Some(format!(
                "write locations: [{{ path: {}, upstream: demo }}]",
                show_text(path.trim())
            ));
        }
        let text = plain_text(self.node).unwrap_or_default();
        let advice = |place| find_advice(place, &self.name, text, |blank| self.fill_blank(blank, text));
        let has_features = matches!(self.section, "" | "server" | "locations[]" | "upstreams.NAME");
        let help = has_features.then(|| advice("features")).flatten().or_else(|| advice(self.section));
        let is_digits = is_status(&self.name) && (!has_features || self.section == "server");
        match help {
            None if is_digits && self.section != "limits.NAME" => {
                owned("in braces a comma begins the next field: write numbers without commas")
            }
            help => help,
        }
    }

    /// The value of a blank in a sentence about this field.
    fn fill_blank(&self, blank: &str, text: &'a str) -> Option<String> {
        let port = || self.sibling_text(&["port"]);
        Some(match blank {
            "address" => {
                show_text(&format!("{text}{}", port().map(|port| format!(":{port}")).unwrap_or_default()))
            }
            "certificate_key" => show_text(self.sibling_text(&["ssl_certificate_key"]).unwrap_or("key.pem")),
            "count" => self.rate.filter(|rate| is_number(rate)).unwrap_or("10").to_owned(),
            "fail_timeout" => show_time(self.sibling_text(&["fail_timeout"]).unwrap_or("10s")),
            "fails" => plain_text(self.node).unwrap_or("5").to_owned(),
            "fields" => {
                let entries = self.node.entries().iter();
                entries.map(|(key, node)| format!(", {}: {}", key.name, show_node(node))).collect()
            }
            "file" => if text.is_empty() { "PATH" } else { text }.to_owned(),
            "listen" => show_text(&format!("{text}:{}", port().unwrap_or("8080"))),
            "named_rate" => self.named_rate(text)?.to_owned(),
            "node" => show_node(self.node),
            "path" => show_text(self.first_path()?),
            "period" => find_period(text).unwrap_or("s").to_owned(),
            "request_headers" | "response_headers" => show_headers(blank, self.node),
            "return" => explain_return(text)?,
            "rule" => explain_rule(text)?,
            "text?" => (!text.is_empty()).then(String::new)?,
            "traefik" => self.is_traefik().then(String::new)?,
            "written" => self.written.clone(),
            _ => return None,
        })
    }

    fn is_traefik(&self) -> bool {
        ["routers", "services", "middlewares"].iter().any(|part| self.node.has_field(part))
    }

    /// The rate, if the field is the name of a limit, with its numbers or its rate.
    fn named_rate(&self, text: &'a str) -> Option<&'a str> {
        let inner = self.node.find_field("rate").map(|rate| rate.written.as_str());
        let rate = inner.or_else(|| parse_rate(text).is_ok().then_some(text))?;
        find_field_synonym(&self.name, ["rate"]).is_none().then_some(rate)
    }

    /// The path that the field names, alone or first in its list.
    fn first_path(&self) -> Option<&'a str> {
        plain_text(self.node.items().first().unwrap_or(self.node)).filter(|path| path.starts_with('/'))
    }

    /// The value of this field as `field`, for which it stands, would hold it.
    pub(super) fn translate_as(&self, field: &str) -> Option<String> {
        let text = plain_text(self.node);
        Some(match (field, text) {
            ("path", Some(text)) => match text.split_once("Path") {
                Some((_, rule)) => rule.split('`').nth(1).filter(|path| path.starts_with('/'))?.to_owned(),
                None => show_text(text.starts_with(['/', '~', '=']).then_some(text)?),
            },
            ("rate", Some(text)) if parse_rate(text).is_ok() => text.to_owned(),
            ("rate", Some(text)) if is_number(text) => {
                let period = match self.name.as_str() {
                    "rpm" | "requests_per_minute" => "m",
                    _ => self.sibling_text(&PERIODS).and_then(find_period).unwrap_or("s"),
                };
                format!("{text}/{period}")
            }
            ("max_concurrent", Some(text)) if is_number(text) => text.to_owned(),
            ("url", Some(text)) => {
                let port = self.sibling_text(&["port"]).map(|port| format!(":{port}")).unwrap_or_default();
                let scheme = match self.section {
                    _ if text.contains("://") || text.starts_with("unix:") => "",
                    "state.redis" => "redis://",
                    _ => "http://",
                };
                format!("\"{}\"", redact_credentials(&format!("{scheme}{text}{port}")))
            }
            ("to" | "upstream" | "cert" | "key", Some(text)) => show_text(text),
            ("template", Some(text)) => show_text(text),
            ("servers", Some(text)) => format!("[{}]", show_text(text)),
            ("servers", None) => match &self.node.content {
                NodeContent::Map(entries) => {
                    show_node(entries.iter().find(|(key, _)| key.name == "servers").map(|(_, node)| node)?)
                }
                _ => show_node(self.node),
            },
            ("origins", _) => show_node(self.node),
            _ => return None,
        })
    }
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
fn show_headers(field: &str, node: &Node) -> String {
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
        _ => node.items().iter().chain([node]).filter_map(plain_text).filter_map(pair).collect(),
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

fn plain_text(node: &Node) -> Option<&str> {
    node.text().filter(|text| !text.replaced).map(|text| text.written.as_str())
}

/// The period of a rate that other programs write as `1m`, `60s` or `minute`.
fn find_period(text: &str) -> Option<&str> {
    match text.to_ascii_lowercase().as_str() {
        "second" => Some("s"),
        "minute" => Some("m"),
        "hour" => Some("h"),
        "day" => Some("d"),
        _ => parse_rate(&format!("1/{text}")).is_ok().then_some(text),
    }
}
