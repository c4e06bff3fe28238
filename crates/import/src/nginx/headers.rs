//! `proxy_set_header`, `add_header` and `proxy_hide_header`.

use super::parser::Directive;
use super::pieces::translate_text;
use super::scope::Scope;
use super::upstreams::ProxyTarget;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, quote, quote_template, quoted_list};
use sluicegate_model::value::names::{parse_editable_header, parse_host_name};

/// Header edits while they are collected; values are written already.
#[derive(Default)]
struct HeaderLines {
    set: Vec<(String, String)>,
    add: Vec<(String, String)>,
    remove: Vec<String>,
}

impl HeaderLines {
    /// The last edit of a name counts; the gateway allows one of each.
    fn edit(&mut self, name: &str, value: Option<String>) {
        self.set.retain(|(known, _)| !known.eq_ignore_ascii_case(&quote(name)));
        self.remove.retain(|known| !known.eq_ignore_ascii_case(name));
        match value {
            Some(value) => self.set.push((quote(name), value)),
            None => self.remove.push(name.to_owned()),
        }
    }

    fn into_field(self, name: &str) -> Option<PlannedField> {
        let maps = [("set", self.set), ("add", self.add)].into_iter();
        let maps = maps.filter(|(_, entries)| !entries.is_empty());
        let mut fields: Vec<_> = maps.map(|(name, entries)| (name, flow_map(&entries))).collect();
        if !self.remove.is_empty() {
            fields.push(("remove", quoted_list(&self.remove)));
        }
        PlannedField::map(name, &fields)
    }
}

/// True if the location lets connections be upgraded.
pub(super) fn is_tunnel(scope: &Scope<'_>) -> bool {
    scope.nearest("proxy_set_header").iter().any(|directive| directive.arg(0).eq_ignore_ascii_case("upgrade"))
}

/// `host_header` and `request_headers` of a location that forwards.
pub(super) fn read_request_headers(
    scope: &Scope<'_>,
    target: &ProxyTarget,
    server_name: &str,
) -> Vec<PlannedField> {
    let mut edits = HeaderLines::default();
    // nginx's default is `$proxy_host`.
    let mut host = Some(target.proxy_host().to_owned());
    for directive in scope.nearest("proxy_set_header") {
        let (name, value) = (directive.arg(0), directive.arg(1));
        match name.to_ascii_lowercase().as_str() {
            "host" => host = read_host(directive, value, target, server_name),
            "connection" | "upgrade" | "te" | "transfer-encoding" | "content-length" | "keep-alive" => {
                directive.exact("the gateway writes this field itself, and upgrades connections by itself");
            }
            _ if is_copied(scope, directive) => directive.exact("auth: { copy }"),
            _ => read_request_header(directive, name, value, server_name, &mut edits),
        }
    }
    let mut fields = Vec::new();
    if let Some(host) = host {
        let name =
            host.rsplit_once(':').filter(|_| !host.starts_with('[')).map_or(host.as_str(), |(name, _)| name);
        let fixed = if parse_host_name(name).is_ok() { host } else { "upstream".to_owned() };
        fields.push(PlannedField::plain("host_header", quote(&fixed)));
    }
    fields.extend(edits.into_field("request_headers"));
    fields
}

/// The fixed host; `None` = that of the client, which is the default of the gateway.
fn read_host(directive: &Directive, value: &str, target: &ProxyTarget, server_name: &str) -> Option<String> {
    let host = match value {
        "$proxy_host" => Some(target.proxy_host()),
        "$server_name" if !server_name.is_empty() => Some(server_name),
        text if !text.contains('$') && !text.is_empty() => Some(text),
        _ => None,
    };
    match (host, value) {
        (Some(_), _) => directive.exact("host_header"),
        (None, "$http_host") => directive.exact("the default"),
        (None, "$host" | "$host:$server_port") => {
            directive.differs("the host is forwarded as the client sent it");
        }
        _ => directive.skips("the host is forwarded as the client sent it"),
    }
    host.map(str::to_owned)
}

fn read_request_header(
    directive: &Directive,
    name: &str,
    value: &str,
    server_name: &str,
    edits: &mut HeaderLines,
) {
    if let Err(error) = parse_editable_header(name) {
        directive.skips(error.message);
    } else if value.contains("$proxy_add_x_forwarded_for") && name.eq_ignore_ascii_case("x-forwarded-for") {
        let says =
            "the gateway appends the peer for trusted proxies, and replaces the field for everyone else";
        directive.differs(says);
    } else if value == format!("$http_{}", name.to_ascii_lowercase().replace('-', "_")) {
        directive.exact("fields of the client are forwarded");
    } else if value.is_empty() {
        edits.edit(name, None);
        directive.exact("request_headers: { remove }");
    } else {
        let becomes = "request_headers: { set }";
        let entry = translate_header(directive, value, server_name, becomes).map_err(|why| {
            // The upstream would take the field of the client for that of nginx.
            directive.differs(format!("request_headers: {{ remove }}: {why}"));
        });
        edits.edit(name, entry.ok());
    }
}

/// The value as YAML, with a finding.
///
/// # Errors
/// Why the gateway cannot write it.
fn translate_header(
    directive: &Directive,
    value: &str,
    server_name: &str,
    becomes: &str,
) -> Result<String, String> {
    let translated = translate_text(value, server_name)?;
    if translated.template.chars().any(|c| c.is_control() && c != '\t') {
        return Err("the value has control characters".to_owned());
    }
    directive.becomes(becomes, &translated.differences);
    Ok(quote_template(&translated.template))
}

/// `response_headers` of a location.
pub(super) fn read_response_headers(scope: &Scope<'_>, server_name: &str) -> Option<PlannedField> {
    let mut edits = HeaderLines::default();
    for directive in scope.nearest("add_header") {
        let (name, value) = (directive.arg(0), directive.arg(1));
        if let Err(error) = parse_editable_header(name) {
            directive.skips(error.message);
        } else if value.is_empty() {
            directive.exact("an empty field is not sent");
        } else if edits.add.iter().any(|(known, _)| known.eq_ignore_ascii_case(&quote(name))) {
            directive.skips("a field of this name is added already, and a location adds one of each");
        } else {
            match translate_header(directive, value, server_name, "") {
                Ok(entry) => {
                    edits.add.push((quote(name), entry));
                    let says = match directive.arg(2) {
                        "always" => {
                            "response_headers: { add }: not on the gateway's own rejections and errors"
                        }
                        _ => "response_headers: { add }: on responses with any status",
                    };
                    directive.differs(says);
                }
                Err(why) => directive.skips(why),
            }
        }
    }
    for directive in scope.nearest("proxy_hide_header") {
        match parse_editable_header(directive.arg(0)) {
            Ok(_) => {
                edits.remove.push(directive.arg(0).to_owned());
                directive.exact("response_headers: { remove }");
            }
            Err(error) => directive.skips(error.message),
        }
    }
    edits.into_field("response_headers")
}

/// True if a header for the upstream is the header of that name in the answer of the service.
pub(super) fn is_copied(scope: &Scope<'_>, set_header: &Directive) -> bool {
    let name = set_header.arg(0).to_ascii_lowercase();
    if !can_be_copied(&name) {
        return false;
    }
    let header = format!("$upstream_http_{}", name.replace('-', "_"));
    let is_same =
        |set: &&Directive| set.arg(0) == set_header.arg(1) && set.arg(1).eq_ignore_ascii_case(&header);
    scope.value_of("auth_request").is_some_and(|check| check.arg(0) != "off")
        && scope.nearest("auth_request_set").iter().any(is_same)
}

/// True if `copy` of gateway.yaml takes a header.
pub(crate) fn can_be_copied(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_ours = ["x-forwarded-", "x-original-", "x-real-ip", "forwarded", "cookie", "authorization"];
    parse_editable_header(&name).is_ok() && !is_ours.iter().any(|start| name.starts_with(start))
}
