//! Reads `locations`: matching rules, limits and actions.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};

use super::access;
use super::bandwidth;
use super::cors;
use super::headers;
use super::limits::{self, LimitReader};
use super::location_conditions::{self, LocationNames};
use super::patterns::{self, PathPatterns};
use super::reject;
use super::same_location::SeenLocations;
use super::templates;
use super::upstreams::UpstreamReader;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::access::AccessConfig;
use crate::config::model::listen::{ListenConfig, Scheme};
use crate::config::model::reject::{CannedResponse, TemplatePiece};
use crate::config::model::{ActionConfig, HostHeader, HostRule, LocationConfig, PathRule};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none};
use crate::config::yaml::tree::NodeContent;

/// Reads all locations; their inline limits and upstreams are added to `limits` and `upstreams`.
pub(crate) fn read_locations(
    root: &mut FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &mut UpstreamReader<'_>,
    access: &Arc<AccessConfig>,
    listen: &[ListenConfig],
) -> Vec<LocationConfig> {
    let Some(value) = root.get_field("locations") else {
        root.report_missing("locations", "write e.g. locations: [{ path: /, upstream: demo }]");
        return Vec::new();
    };
    if !matches!(value.node.content, NodeContent::List(_) | NodeContent::Null | NodeContent::Invalid) {
        value.report_shape("a list, one `- path: …` for each location");
        return Vec::new();
    }
    let items = value.one_or_more();
    let paths = items.iter().filter_map(|item| item.node.find_field("path")?.as_plain());
    let patterns = match PathPatterns::compile_all(paths) {
        Ok(patterns) => patterns,
        Err(error) => {
            value.report_at_name(error);
            return Vec::new();
        }
    };
    let (mut locations, mut seen) = (Vec::new(), SeenLocations::default());
    let mut section = LocationSection { access, listen, patterns, names: LocationNames::default() };
    for item in items {
        if !matches!(item.node.content, NodeContent::Map(_)) {
            item.report_shape("a mapping such as { path: /, upstream: demo }");
            continue;
        }
        let fields = item.field_reader();
        let (path_value, location) = read_location(fields, limits, upstreams, &mut section);
        let Some(location) = location else { continue };
        if let Some(earlier) = seen.find_or_insert(&location, locations.len()) {
            let message =
                format!("the same host, path, methods, scheme and listener as locations[{earlier}]");
            path_value.unwrap_or(item).report_at_value(ValueError::new(codes::SAME_LOCATION, message));
        }
        locations.push(location);
    }
    locations
}

/// What the reading of each location uses.
struct LocationSection<'s> {
    access: &'s Arc<AccessConfig>,
    listen: &'s [ListenConfig],
    patterns: PathPatterns,
    names: LocationNames,
}

fn read_location<'a>(
    mut fields: FieldReader<'a>,
    limits: &mut LimitReader<'_>,
    upstreams: &mut UpstreamReader<'_>,
    section: &mut LocationSection<'_>,
) -> (Option<FieldValue<'a>>, Option<LocationConfig>) {
    let path_value = fields.get_field("path");
    if path_value.is_none() {
        fields.report_missing("path", "write e.g. path: /api/");
    }
    let path = path_value
        .as_ref()
        .and_then(|value| value.parse_with(|text| parse_path_rule(text, &section.patterns)));
    let written_path = path_value.as_ref().and_then(FieldValue::as_text).unwrap_or_default().to_owned();
    let hosts = read_hosts(&mut fields);
    let methods = limits::read_methods(&mut fields);
    let scheme = location_conditions::read_scheme(&mut fields);
    let listeners = location_conditions::read_listeners(&mut fields, section.listen);
    let given_name = section.names.read_name(&mut fields);
    let action = read_action(&mut fields, upstreams);
    let owner = match &given_name {
        Some(name) => name.clone(),
        None => owner_name(&written_path, &hosts, &methods, scheme, &listeners),
    };
    let chain = fields
        .get_field("limits")
        .map(|value| limits.read_chain(&value, &owner, upstreams))
        .unwrap_or_default();
    let strip = read_strip(&mut fields, path.as_ref());
    let host_header = fields.read_scalar("host_header", HostHeader::Client, parse_host_header);
    let request_headers = headers::read_edits(&mut fields, "request_headers");
    let response_headers = headers::read_edits(&mut fields, "response_headers");
    let on_reject =
        fields.get_field("on_reject").map(|value| reject::read_patch(&value, upstreams)).unwrap_or_default();
    let timeout = fields.read_scalar("timeout", None, parse_or_none(scalars::parse_nonzero_duration));
    let access = access::read_access_over(&mut fields, limits.sets, section.access);
    let bandwidth = bandwidth::read_bandwidth(&mut fields);
    let cors = cors::read_cors(&mut fields);
    fields.report_unknown();
    let location = path.zip(action).map(|(path, action)| LocationConfig {
        name: given_name.unwrap_or_else(|| written_path.clone()),
        written_path,
        path,
        hosts,
        methods,
        scheme,
        listeners,
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
        cors,
    });
    (path_value, location)
}

/// The first part of the name of an inline limit of a location without a name. Scheme, listeners, hosts and methods
/// distinguish locations of the same path; the marks keep them from being read as hosts.
fn owner_name(
    path: &str,
    hosts: &[HostRule],
    methods: &[Method],
    scheme: Option<Scheme>,
    listeners: &[String],
) -> String {
    let listeners = if listeners.is_empty() { String::new() } else { format!("@{}", listeners.join(",")) };
    let scheme = scheme.map_or_else(String::new, |scheme| format!("{}:", scheme.as_str()));
    let hosts: Vec<String> = hosts
        .iter()
        .map(|host| match host {
            HostRule::Exact(name) => name.clone(),
            HostRule::Suffix(suffix) => format!("*{suffix}"),
        })
        .collect();
    let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
    [listeners, scheme, hosts.join(","), methods.join(","), path.to_owned()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn parse_path_rule(text: &str, patterns: &PathPatterns) -> Parsed<PathRule> {
    if patterns::is_regex(text) {
        return patterns.find_compiled(text).map(PathRule::Regex);
    }
    if let Some(path) = text.strip_prefix("^~") {
        return parse_plain_path(path.trim_start()).map(|path| PathRule::Prefix { path, no_regex: true });
    }
    if let Some(path) = text.strip_prefix('=') {
        return parse_plain_path(path.trim_start()).map(PathRule::Exact);
    }
    parse_plain_path(text).map(|path| PathRule::Prefix { path, no_regex: false })
}

fn parse_plain_path(path: &str) -> Parsed<String> {
    let wrong = |message: String| ValueError::new(codes::PATH, message);
    if !path.starts_with('/') {
        let help = match path {
            "" => "write e.g. /".to_owned(),
            "*" => "write / for every path".to_owned(),
            _ => format!("write /{path}, or ~ and a regular expression"),
        };
        return Err(wrong(format!("the path `{path}` does not start with /")).with_help(help));
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

fn read_hosts(fields: &mut FieldReader<'_>) -> Vec<HostRule> {
    let Some(value) = fields.get_field("host").filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    if value.is_empty() {
        value.report_empty("write any, or names such as [example.com, \"*.example.com\"]");
    }
    value.parse_list(parse_host_rule)
}

fn parse_host_rule(text: &str) -> Parsed<HostRule> {
    let Some(suffix) = text.strip_prefix('*') else {
        return names::parse_host_name(text).map(HostRule::Exact);
    };
    match suffix.strip_prefix('.') {
        Some(name) => names::parse_host_name(name).map(|name| HostRule::Suffix(format!(".{name}"))),
        None => Err(ValueError::new(codes::HOST, format!("`{text}` is not a host name"))
            .with_help("write \"*.example.com\", or any")),
    }
}

fn read_action(fields: &mut FieldReader<'_>, upstreams: &mut UpstreamReader<'_>) -> Option<ActionConfig> {
    let written = ["upstream", "respond", "redirect"].map(|name| fields.get_field(name));
    let given: Vec<&FieldValue<'_>> = written.iter().flatten().collect();
    if let [_, second, ..] = given.as_slice() {
        second.report_at_name(ValueError::new(
            codes::ACTION,
            "a location has only one of `upstream`, `respond` and `redirect`",
        ));
    }
    match &written {
        [Some(upstream), _, _] => upstreams.resolve_name(upstream).map(ActionConfig::Upstream),
        [None, Some(respond), _] => read_respond(respond),
        [None, None, Some(redirect)] => read_redirect(redirect),
        [None, None, None]
            if ["upstream", "respond", "redirect"].iter().any(|name| fields.has_typo_of(name)) =>
        {
            None
        }
        [None, None, None] => {
            fields.whole.report_at_name(
                ValueError::new(codes::ACTION, "the location does nothing")
                    .with_help("add upstream: NAME, respond: { status: 200 } or redirect: { to: URL }"),
            );
            None
        }
    }
}

fn read_respond(value: &FieldValue<'_>) -> Option<ActionConfig> {
    if !matches!(value.node.content, NodeContent::Map(_)) {
        value.report_shape("a mapping such as { status: 200, body: \"ok\" }");
        return None;
    }
    let CannedResponse { status, body, content_type } = reject::read_canned(value)?;
    Some(ActionConfig::Respond { status, body, content_type })
}

fn read_redirect(value: &FieldValue<'_>) -> Option<ActionConfig> {
    if !matches!(value.node.content, NodeContent::Map(_)) {
        value.report_shape("a mapping such as { to: \"https://example.com/\" }");
        return None;
    }
    let mut fields = value.field_reader();
    let to = fields.get_field("to");
    if to.is_none() {
        fields.report_missing("to", "write e.g. to: \"https://${host}${request_uri}\"");
    }
    let status = fields.read_scalar("status", StatusCode::PERMANENT_REDIRECT, |text| {
        let status = names::parse_status(text, 300).ok();
        status.filter(|status| [301, 302, 303, 307, 308].contains(&status.as_u16())).ok_or_else(|| {
            ValueError::new(codes::STATUS, format!("`{text}` is not a status of a redirect"))
                .with_help("write 301, 302, 303, 307 or 308")
        })
    });
    fields.report_unknown();
    let to = to?;
    let template = templates::read_template(&to)?;
    let unsendable = template
        .0
        .iter()
        .any(|piece| matches!(piece, TemplatePiece::Text(text) if HeaderValue::from_str(text).is_err()));
    if template.0.is_empty() || unsendable {
        to.report_at_value(ValueError::new(
            codes::HEADER,
            "a redirect needs a target that fits into one header line",
        ));
        return None;
    }
    Some(ActionConfig::Redirect { to: template, status })
}

fn read_strip(fields: &mut FieldReader<'_>, path: Option<&PathRule>) -> Option<String> {
    let value = fields.get_field("strip")?;
    let strip = value.parse_with(parse_or_none(parse_plain_path))??;
    let reachable = match path {
        Some(PathRule::Exact(path) | PathRule::Prefix { path, .. }) => path.starts_with(&strip),
        Some(PathRule::Regex(_)) | None => true,
    };
    if !reachable {
        let message = format!("no path of this location starts with `{}`", value.written_text());
        value.report_at_value(
            ValueError::new(codes::PATH, message).with_help("strip a prefix of the location's own path"),
        );
    }
    Some(strip)
}

fn parse_host_header(text: &str) -> Parsed<HostHeader> {
    match text {
        "client" => Ok(HostHeader::Client),
        "upstream" => Ok(HostHeader::Upstream),
        _ => parse_fixed_host(text),
    }
}

/// A host name, with or without a port.
fn parse_fixed_host(text: &str) -> Parsed<HostHeader> {
    let name = match names::split_host_port(text) {
        Some((name, digits)) => {
            names::parse_port(digits)?;
            name
        }
        None => text,
    };
    if !text.starts_with('[') {
        names::parse_host_name(name)?;
    }
    names::parse_header_value(text).map(HostHeader::Fixed)
}
