//! `locations`: which requests go where, and through which limits.

use http::{HeaderValue, Method, StatusCode};
use regex::RegexBuilder;

use super::access;
use super::bandwidth;
use super::headers;
use super::limits::{self, Limits};
use super::reject;
use super::upstreams::Upstreams;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::access::Access;
use crate::config::model::reject::{Canned, Piece};
use crate::config::model::{Action, HostHeader, HostRule, Location, PathRule};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, Value, or_none};
use crate::config::yaml::tree::Content;

/// Reads all locations; limits and upstreams written into them are added to theirs.
pub(crate) fn read(
    root: &mut Fields<'_>,
    limits: &mut Limits<'_>,
    upstreams: &mut Upstreams<'_>,
    access: &Access,
) -> Vec<Location> {
    let Some(value) = root.get("locations") else {
        root.missing("locations", "write e.g. locations: [{ path: /, upstream: demo }]");
        return Vec::new();
    };
    if !matches!(value.node.content, Content::List(_) | Content::Null | Content::Broken) {
        value.complain_of_shape("a list, one `- path: …` for each location");
        return Vec::new();
    }
    let mut locations: Vec<Location> = Vec::new();
    for item in value.one_or_more() {
        if !matches!(item.node.content, Content::Map(_)) {
            item.complain_of_shape("a mapping such as { path: /, upstream: demo }");
            continue;
        }
        let (path_value, location) = read_one(item.fields(), limits, upstreams, access);
        let Some(location) = location else { continue };
        if let Some(earlier) = locations.iter().position(|earlier| same(earlier, &location)) {
            let message = format!("the same host, path and methods as locations[{earlier}]");
            path_value.unwrap_or(item).complain(Complaint::new(codes::SAME_LOCATION, message));
        }
        locations.push(location);
    }
    locations
}

fn read_one<'a>(
    mut fields: Fields<'a>,
    limits: &mut Limits<'_>,
    upstreams: &mut Upstreams<'_>,
    access: &Access,
) -> (Option<Value<'a>>, Option<Location>) {
    let path_value = fields.get("path");
    if path_value.is_none() {
        fields.missing("path", "write e.g. path: /api/");
    }
    let path = path_value.as_ref().and_then(|value| value.read(path_rule));
    let name = path_value.as_ref().and_then(Value::as_text).unwrap_or_default().to_owned();
    let hosts = read_hosts(&mut fields);
    let methods = limits::read_methods(&mut fields);
    let action = read_action(&mut fields, upstreams);
    let owner = owner_name(&name, &hosts, &methods);
    let chain =
        fields.get("limits").map(|value| limits.read_chain(&value, &owner, upstreams)).unwrap_or_default();
    let strip = read_strip(&mut fields, path.as_ref());
    let host_header = fields.read("host_header", HostHeader::Client, host_header);
    let request_headers = headers::read_edits(&mut fields, "request_headers");
    let response_headers = headers::read_edits(&mut fields, "response_headers");
    let on_reject =
        fields.get("on_reject").map(|value| reject::read_patch(&value, upstreams)).unwrap_or_default();
    let timeout = fields.read("timeout", None, or_none(scalars::span));
    let access = access::read_over(&mut fields, limits.sets, access.clone());
    let bandwidth = bandwidth::read(&mut fields);
    fields.close();
    let location = path.zip(action).map(|(path, action)| Location {
        name,
        path,
        hosts,
        methods,
        action,
        limits: chain,
        strip,
        host_header,
        request_headers,
        response_headers,
        access,
        on_reject,
        timeout,
        bandwidth,
    });
    (path_value, location)
}

/// Inline limits are known by this and their place: hosts and methods keep two locations of one path apart.
fn owner_name(path: &str, hosts: &[HostRule], methods: &[Method]) -> String {
    let hosts: Vec<String> = hosts
        .iter()
        .map(|host| match host {
            HostRule::Exact(name) => name.clone(),
            HostRule::Suffix(suffix) => format!("*{suffix}"),
        })
        .collect();
    let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
    [hosts.join(","), methods.join(","), path.to_owned()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether no request could ever tell the two apart on one of their hosts.
fn same(a: &Location, b: &Location) -> bool {
    let path = match (&a.path, &b.path) {
        (PathRule::Exact(a), PathRule::Exact(b)) => a == b,
        (PathRule::Prefix { path: a, .. }, PathRule::Prefix { path: b, .. }) => a == b,
        (PathRule::Regex(_), PathRule::Regex(_)) => a.name.replace(' ', "") == b.name.replace(' ', ""),
        _ => false,
    };
    let host = a.hosts.is_empty() && b.hosts.is_empty() || a.hosts.iter().any(|host| b.hosts.contains(host));
    let methods =
        a.methods.len() == b.methods.len() && a.methods.iter().all(|method| b.methods.contains(method));
    path && host && methods
}

/// A pattern that compiles into more than this is a mistake, and would slow every request.
const REGEX_MAX_BYTES: usize = 1 << 20;

fn path_rule(text: &str) -> Read<PathRule> {
    if let Some(pattern) = text.strip_prefix("~*") {
        return regex(pattern.trim_start(), true);
    }
    if let Some(pattern) = text.strip_prefix('~') {
        return regex(pattern.trim_start(), false);
    }
    if let Some(path) = text.strip_prefix("^~") {
        return plain_path(path.trim_start()).map(|path| PathRule::Prefix { path, no_regex: true });
    }
    if let Some(path) = text.strip_prefix('=') {
        return plain_path(path.trim_start()).map(PathRule::Exact);
    }
    plain_path(text).map(|path| PathRule::Prefix { path, no_regex: false })
}

fn plain_path(path: &str) -> Read<String> {
    let wrong = |message: String| Complaint::new(codes::PATH, message);
    if !path.starts_with('/') {
        let help = match path {
            "" => "write e.g. /".to_owned(),
            "*" => "write / for every path".to_owned(),
            _ => format!("write /{path}, or ~ and a regular expression"),
        };
        return Err(wrong(format!("the path `{path}` does not start with /")).help(help));
    }
    if path.contains(['?', '#']) {
        return Err(wrong(format!(
            "the path `{path}` can never match: paths are matched without their query"
        )));
    }
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(wrong(format!("the path `{path}` can never match: `.` and `..` are resolved before")));
    }
    if path.contains(char::is_control) {
        return Err(wrong("a path cannot have control characters".to_owned()));
    }
    Ok(path.to_owned())
}

fn regex(pattern: &str, case_insensitive: bool) -> Read<PathRule> {
    if pattern.is_empty() {
        return Err(
            Complaint::new(codes::REGEX, "the regular expression is empty").help("write e.g. ~ \\.php$")
        );
    }
    let built =
        RegexBuilder::new(pattern).case_insensitive(case_insensitive).size_limit(REGEX_MAX_BYTES).build();
    built.map(PathRule::Regex).map_err(|error| {
        let reason = match error {
            regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
            other => {
                let text = other.to_string();
                let last = text.lines().last().unwrap_or_default().trim();
                last.strip_prefix("error: ").unwrap_or(last).to_owned()
            }
        };
        let complaint =
            Complaint::new(codes::REGEX, format!("the regular expression does not work: {reason}"));
        if reason.contains("look-around") {
            complaint.help("look-around is left out so that no request can make matching slow")
        } else {
            complaint
        }
    })
}

fn read_hosts(fields: &mut Fields<'_>) -> Vec<HostRule> {
    let Some(value) = fields.get("host").filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.complain_of_nothing("write any, or names such as [example.com, \"*.example.com\"]");
    }
    value.read_list(host_rule)
}

fn host_rule(text: &str) -> Read<HostRule> {
    let Some(suffix) = text.strip_prefix('*') else {
        return names::host_name(text).map(HostRule::Exact);
    };
    match suffix.strip_prefix('.') {
        Some(name) => names::host_name(name).map(|name| HostRule::Suffix(format!(".{name}"))),
        None => Err(Complaint::new(codes::HOST, format!("`{text}` is not a host name"))
            .help("write \"*.example.com\", or any")),
    }
}

fn read_action(fields: &mut Fields<'_>, upstreams: &mut Upstreams<'_>) -> Option<Action> {
    let written = ["upstream", "respond", "redirect"].map(|name| fields.get(name));
    let given: Vec<&Value<'_>> = written.iter().flatten().collect();
    if let [_, second, ..] = given.as_slice() {
        second.complain_at_name(Complaint::new(
            codes::ACTION,
            "a location has only one of `upstream`, `respond` and `redirect`",
        ));
    }
    match &written {
        [Some(upstream), _, _] => upstreams.resolve(upstream).map(Action::Upstream),
        [None, Some(respond), _] => read_respond(respond),
        [None, None, Some(redirect)] => read_redirect(redirect),
        [None, None, None]
            if ["upstream", "respond", "redirect"].iter().any(|name| fields.mistyped(name)) =>
        {
            None
        }
        [None, None, None] => {
            fields.whole.complain_at_name(
                Complaint::new(codes::ACTION, "the location does nothing")
                    .help("add upstream: NAME, respond: { status: 200 } or redirect: { to: URL }"),
            );
            None
        }
    }
}

fn read_respond(value: &Value<'_>) -> Option<Action> {
    if !matches!(value.node.content, Content::Map(_)) {
        value.complain_of_shape("a mapping such as { status: 200, body: \"ok\" }");
        return None;
    }
    let Canned { status, body, content_type } = reject::read_canned(value)?;
    Some(Action::Respond { status, body, content_type })
}

fn read_redirect(value: &Value<'_>) -> Option<Action> {
    if !matches!(value.node.content, Content::Map(_)) {
        value.complain_of_shape("a mapping such as { to: \"https://example.com/\" }");
        return None;
    }
    let mut fields = value.fields();
    let to = fields.get("to");
    if to.is_none() {
        fields.missing("to", "write e.g. to: \"https://${host}${request_uri}\"");
    }
    let status = fields.read("status", StatusCode::PERMANENT_REDIRECT, |text| {
        let status = names::status(text, 300).ok();
        status.filter(|status| [301, 302, 303, 307, 308].contains(&status.as_u16())).ok_or_else(|| {
            Complaint::new(codes::STATUS, format!("`{text}` is not a status of a redirect"))
                .help("write 301, 302, 303, 307 or 308")
        })
    });
    fields.close();
    let to = to?;
    let template = reject::read_template(&to)?;
    let unsendable = template
        .0
        .iter()
        .any(|piece| matches!(piece, Piece::Text(text) if HeaderValue::from_str(text).is_err()));
    if template.0.is_empty() || unsendable {
        to.complain(Complaint::new(
            codes::HEADER,
            "a redirect needs a target that fits into one header line",
        ));
        return None;
    }
    Some(Action::Redirect { to: template, status })
}

fn read_strip(fields: &mut Fields<'_>, path: Option<&PathRule>) -> Option<String> {
    let value = fields.get("strip")?;
    let strip = value.read(or_none(plain_path))??;
    let reachable = match path {
        Some(PathRule::Exact(path) | PathRule::Prefix { path, .. }) => path.starts_with(&strip),
        Some(PathRule::Regex(_)) | None => true,
    };
    if !reachable {
        let message = format!("no path of this location starts with `{}`", value.shown());
        value
            .complain(Complaint::new(codes::PATH, message).help("strip a prefix of the location's own path"));
    }
    Some(strip)
}

fn host_header(text: &str) -> Read<HostHeader> {
    match text {
        "client" => Ok(HostHeader::Client),
        "upstream" => Ok(HostHeader::Upstream),
        _ => fixed_host(text),
    }
}

/// A host name, with or without a port.
fn fixed_host(text: &str) -> Read<HostHeader> {
    let name = match names::split_port(text) {
        Some((name, digits)) => {
            names::port(digits)?;
            name
        }
        None => text,
    };
    if !text.starts_with('[') {
        names::host_name(name)?;
    }
    names::header_value(text).map(HostHeader::Fixed)
}
