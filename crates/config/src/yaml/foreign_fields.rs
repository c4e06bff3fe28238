//! Explains fields that only other programs have, and writes their values as this file does.

use super::foreign_locations::{
    ERROR_PAGE, explain_in_location, is_number, plain_text, show_size, show_time,
};
use super::foreign_words::{find_field_synonym, to_snake_case};
use super::shown_text::{show_node, show_text};
use super::tree::{MapKey, Node, NodeContent};
use sluicegate_model::diagnostics::redact::redact_credentials;
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
    pub fn new(
        section: &'static str,
        key: &MapKey,
        node: &'a Node,
        rate: Option<&'a str>,
        unknown: &'a [(&'a MapKey, &'a Node)],
    ) -> ForeignField<'a> {
        ForeignField {
            section,
            name: to_snake_case(&key.name),
            written: key.name.clone(),
            node,
            rate,
            unknown,
        }
    }

    fn find_sibling(&self, names: &[&str]) -> Option<&'a Node> {
        let is_named = |key: &MapKey| names.contains(&to_snake_case(&key.name).as_str());
        self.unknown.iter().find(|(key, _)| is_named(key)).map(|(_, node)| *node)
    }

    fn sibling_text(&self, names: &[&str]) -> Option<&'a str> {
        self.find_sibling(names).and_then(plain_text)
    }

    /// True if the message about another field covers this one too.
    pub fn is_companion(&self) -> bool {
        COMPANIONS.iter().any(|(section, names, others)| {
            *section == self.section
                && names.contains(&self.name.as_str())
                && self.find_sibling(others).is_some()
        })
    }

    /// The text to write instead, where no field of the section has the meaning.
    pub fn explain(&self) -> Option<String> {
        let text = plain_text(self.node).unwrap_or_default();
        if self.name == "<<" {
            return Some(
                "merge keys are not supported; an alias such as *name can replace a whole value".to_owned(),
            );
        }
        if matches!(self.section, "" | "server" | "locations[]" | "upstreams.NAME")
            && let Some(instead) = explain_missing_feature(&self.name)
        {
            return Some(instead.to_owned());
        }
        match self.section {
            "" => explain_root(&self.name, self.node),
            "headers" if matches!(text, "none" | "off") => Some(format!("write remove: [{}]", self.written)),
            "headers" => Some(format!("write set: {{ {}: … }}, or add or remove", self.written)),
            "limits.NAME" => self.explain_in_limit(text),
            "locations[]" => explain_in_location(&self.name, text, self.node),
            "on_reject" => self.explain_in_rejection(text),
            "upstreams.NAME" => self.explain_in_upstream(),
            _ => self.explain_elsewhere(text),
        }
    }

    /// True if the field is the name of a limit, with its numbers or its rate.
    fn is_named_limit(&self, text: &str) -> bool {
        let is_rate = parse_rate(text).is_ok() || self.node.find_field("rate").is_some();
        is_rate && find_field_synonym(&self.name, ["rate"]).is_none()
    }

    fn explain_in_limit(&self, text: &str) -> Option<String> {
        Some(match self.name.as_str() {
            name if PERIODS.contains(&name) => {
                let rate = self.rate.filter(|rate| is_number(rate)).unwrap_or("10");
                let text = find_period(text).unwrap_or("s");
                format!("the period belongs to the rate: write rate: {rate}/{}", text)
            }
            "status" | "status_code" => format!("write on_reject: {{ status: {} }}", show_node(self.node)),
            "message" | "body" | "response" => {
                "write on_reject: { body: { template: \"…\", content_type: text/plain } }".to_owned()
            }
            "mode" | "shadow_mode" | "dryrun" => "write dry_run: true to count without rejecting".to_owned(),
            "filter_enforced" | "canary" | "percentage" => {
                "write enforce: 10% to act on a share of the keys, and only count the others".to_owned()
            }
            "enabled" | "enable" | "disabled" => {
                "remove it: a limit works where a location names it; dry_run: true only counts".to_owned()
            }
            _ if self.is_named_limit(text) => {
                let rate = self.node.find_field("rate").map_or(text, |rate| rate.written.as_str());
                let name = &self.written;
                format!(
                    "write rate: {rate} here, or define `{name}` under limits: at the top and write limits: {name}"
                )
            }
            "except" | "exclude" | "exempt" | "skip" if self.first_path().is_some() => format!(
                "write a location of its own for {}, without this limit",
                show_text(self.first_path()?)
            ),
            "nodelay" => {
                "remove it: requests within burst pass at once; to delay them write algorithm: leaky_bucket"
                    .to_owned()
            }
            _ => return None,
        })
    }

    /// The path that the field names, alone or first in its list.
    fn first_path(&self) -> Option<&'a str> {
        let text = match &self.node.content {
            NodeContent::List(items) => items.first().and_then(plain_text),
            _ => plain_text(self.node),
        };
        text.filter(|path| path.starts_with('/'))
    }

    fn explain_in_rejection(&self, text: &str) -> Option<String> {
        if self.name.len() == 3 && self.name.bytes().all(|byte| byte.is_ascii_digit()) {
            let rest = match &self.node.content {
                NodeContent::Map(entries) => entries.iter().fold(String::new(), |rest, (key, node)| {
                    format!("{rest}, {}: {}", key.name, show_node(node))
                }),
                _ => String::new(),
            };
            return Some(format!("write on_reject: {{ status: {}{rest} }}", self.name));
        }
        Some(match self.name.as_str() {
            "message" | "text" | "template" | "content" if !text.is_empty() => {
                format!("write body: {{ template: {}, content_type: text/plain }}", show_text(text))
            }
            "retry_after" => "remove it: Retry-After is computed for each rejection".to_owned(),
            _ => return None,
        })
    }

    fn explain_in_upstream(&self) -> Option<String> {
        Some(match self.name.as_str() {
            "limits" => "write limits: in the locations of this upstream".to_owned(),
            "max_fails" => {
                let errors = plain_text(self.node).unwrap_or("5");
                let span = self.sibling_text(&["fail_timeout"]).unwrap_or("10s");
                format!("write eject: {{ errors: {errors}, for: {} }}", show_time(span))
            }
            "fail_timeout" => "write e.g. eject: { errors: 5, for: 10s }".to_owned(),
            "ssl" | "https" | "scheme" => "write https:// before each server".to_owned(),
            "idle_timeout" | "keepalive_timeout" => {
                let text = plain_text(self.node).unwrap_or_default();
                format!("write timeouts: {{ idle: {} }}", show_time(text))
            }
            "sticky" | "stickiness" | "session_affinity" | "affinity" => {
                "write balance: hash:ip, or e.g. hash:header:X-User; there are no cookies for it".to_owned()
            }
            _ => return None,
        })
    }

    fn explain_elsewhere(&self, text: &str) -> Option<String> {
        Some(match (self.section, self.name.as_str()) {
            ("admin", "enabled" | "enable") => {
                "remove it: write admin: none for no admin listener".to_owned()
            }
            ("access_log", "format") => "remove it: each line is a JSON object".to_owned(),
            ("access_log", "enabled") => "remove it: write access_log: none for no log".to_owned(),
            ("admin", name) if HOSTS.contains(&name) || name == "bind" => {
                let port = self.sibling_text(&["port"]);
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                format!("write listen: {}", show_text(&format!("{text}{port}")))
            }
            ("limits.NAME.missing_key", "status") if is_number(text) => format!("write reject: {text}"),
            ("on_reject.body", "file" | "path" | "filename") if !text.is_empty() => {
                format!("write template: \"${{file:{text}}}\"")
            }
            ("state.redis", "password" | "username" | "user") => {
                "it belongs into the URL: write url: \"redis://:${REDIS_PASSWORD}@HOST:6379\"".to_owned()
            }
            ("state.redis", "password_file") => {
                let file = if text.is_empty() { "PATH" } else { text };
                format!("it belongs into the URL: write url: \"redis://:${{file:{file}}}@HOST:6379\"")
            }
            ("server", "client_max_body_size") => format!("write max_body: {}", show_size(text)),
            ("server", "error_page") => ERROR_PAGE.to_owned(),
            ("server", "ssl_certificate") => {
                let key = self.sibling_text(&["ssl_certificate_key"]).unwrap_or("key.pem");
                let (cert, key) = (show_text(text), show_text(key));
                format!("write listen: {{ address: \":443\", tls: {{ cert: {cert}, key: {key} }} }}")
            }
            ("account", "tiers") => format!("write tier: {{ members: {} }}", show_node(self.node)),
            ("account.jwt", "jwks_uri" | "jwks_url" | "jwksuri") => {
                "save the keys to a file, and write jwks: FILE; a file that changes is read again".to_owned()
            }
            ("locations[].redirect", "permanent") => "write status: 308, the default, or 301".to_owned(),
            ("locations[].redirect", "temporary") => "write status: 307 or 302".to_owned(),
            ("listen[]", name) if HOSTS.contains(&name) => {
                let port = self.sibling_text(&["port"]).unwrap_or("8080");
                format!("write address: {}", show_text(&format!("{text}:{port}")))
            }
            ("server", "keepalive_timeout" | "idle_timeout") => {
                format!("write timeouts: {{ idle: {} }}", show_time(text))
            }
            ("server.timeouts", "read") => format!("write header: {0}, body: {0}", show_time(text)),
            (_, name) if name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit()) => {
                "in braces a comma begins the next field: write numbers without commas".to_owned()
            }
            _ => return None,
        })
    }

    /// The value of this field as `field`, for which it stands, would hold it.
    pub fn translate_as(&self, field: &str) -> Option<String> {
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

/// Advice for features of other proxies that this one does not have.
fn explain_missing_feature(name: &str) -> Option<&'static str> {
    Some(match name {
        "basic_auth" | "basicauth" | "auth_basic" | "auth_basic_user_file" | "htpasswd" => {
            "passwords are not a feature; check them in the upstream, or admit networks alone with access"
        }
        "gzip" | "brotli" | "compress" | "compression" | "encode" => {
            "compression is not a feature; compress in the upstream"
        }
        "cache" | "proxy_cache" | "caching" => "caching is not a feature; cache in the upstream or in a CDN",
        "fastcgi_pass" | "uwsgi_pass" | "php_fastcgi" | "scgi_pass" => {
            "only HTTP is spoken to upstreams; name a server that translates, e.g. nginx, as the upstream"
        }
        _ => return None,
    })
}

fn explain_root(name: &str, node: &Node) -> Option<String> {
    let is_traefik = |key: &MapKey| matches!(key.name.as_str(), "routers" | "services" | "middlewares");
    let has_part = |entries: &[(MapKey, Node)]| entries.iter().any(|(key, _)| is_traefik(key));
    if name == "http" && matches!(&node.content, NodeContent::Map(entries) if has_part(entries)) {
        return Some(
            "this is a configuration of Traefik: docs/coming-from.md has each field here".to_owned(),
        );
    }
    if let Some(path) = name.strip_prefix("location ") {
        return Some(format!("write locations: [{{ path: {}, upstream: demo }}]", show_text(path.trim())));
    }
    Some(match name {
        "http" | "stream" | "frontend" | "static_resources" | "entry_points" | "apps" => {
            "write what is in it at the top of the file, as `listen`, `server`, `upstreams`, `limits` and `locations`"
                .to_owned()
        }
        "api_version" => {
            "this is a manifest of Kubernetes; `sluicegate init` writes a gateway.yaml to start from"
                .to_owned()
        }
        "include" | "includes" | "import" | "imports" => {
            "there is one file: write its content here, or join several files before the start".to_owned()
        }
        "worker_processes" => "write server: { workers: auto }".to_owned(),
        _ => return None,
    })
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
