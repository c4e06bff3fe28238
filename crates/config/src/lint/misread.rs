//! Warns of values that mean something else than they seem to, and of headers that log secrets.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use http::{HeaderName, Method};
use ipnet::IpNet;

use super::LintContext;
use crate::describe::spell_host;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::network_hint::prefix_before_zeros;
use sluicegate_model::{HostRule, LocationConfig, PathRule, codes};

/// The fields that hold networks.
const NETWORKS: [&str; 5] = ["trusted_proxies", "allow", "deny", "bypass", "ip_sets"];

pub(super) fn lint_misread(file: &LintContext<'_>) {
    warn_of_no_locations(file);
    warn_of_stars(file);
    warn_of_every(file);
    warn_of_slashes(file);
    warn_of_lifted_limits(file);
    file.whole.visit_written(&mut |value, text| {
        warn_of_file_name(value, &text.written);
        if value.path.split(['.', '[']).any(|name| NETWORKS.contains(&name)) {
            warn_of_host_bits(value);
            warn_of_missing_mask(value);
        }
    });
    warn_of_shared_names(file);
}

/// Locations of different hosts that have the same path as their name.
fn warn_of_shared_names(file: &LintContext<'_>) {
    let mut first: HashMap<&str, &[HostRule]> = HashMap::new();
    for (index, LocationConfig { name, hosts, .. }) in file.config.locations.iter().enumerate() {
        let first_hosts = *first.entry(name).or_insert(hosts);
        let Some(host) = hosts.first().or(first_hosts.first()) else { continue };
        if hosts != first_hosts {
            let message = format!("metrics and logs name this location `{name}`, like one of other hosts");
            let own = format!("{}{name}", spell_host(host).trim_start_matches("*."));
            let is_foreign = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
            let own: Vec<&str> = own.split(is_foreign).filter(|part| !part.is_empty()).collect();
            let other = if hosts.is_empty() { " in the other one" } else { "" };
            let help = format!("write e.g. name: {}{other}", own.join("-"));
            file.location_value(index, &["path"]).warn(codes::MISREAD, message, help);
        }
    }
}

/// `limits: none` beside limits of all locations.
fn warn_of_lifted_limits(file: &LintContext<'_>) {
    let Some(&limit) = file.config.server.limits.first() else { return };
    for index in 0..file.config.locations.len() {
        let value = file.location_value(index, &["limits"]);
        if value.path.ends_with("].limits") && value.is_word("none") {
            let name = &file.config.limits[limit].name;
            let message = "`none` does not lift server.limits, which hold for every location";
            let help = format!(
                "name `{name}` in the other locations instead of in server.limits, or write bypass in the limit"
            );
            value.warn(codes::MISREAD, message, help);
        }
    }
}

/// The name of a file where the text of a body is meant.
fn warn_of_file_name(value: &FieldValue<'_>, name: &str) {
    const ENDS: [&str; 5] = [".html", ".htm", ".json", ".txt", ".xml"];
    let is_body = [".template", "respond.body", "degrade.body"].iter().any(|end| value.path.ends_with(end));
    let is_name = ENDS.iter().any(|end| name.ends_with(end)) && !name.contains([' ', '\n', '<', '{', '"']);
    if is_body && is_name {
        let message = format!("`{name}` is the text itself, not the name of a file");
        let help = format!("write \"${{file:{name}}}\" for the content of the file");
        value.warn(codes::MISREAD, message, help);
    }
}

fn warn_of_no_locations(file: &LintContext<'_>) {
    // A file may be for calls of the service alone.
    if file.config.locations.is_empty() && file.config.service.is_none() {
        let message = "there are no locations, so every request is answered with 404";
        let help = "write e.g. locations: [{ path: /, upstream: demo }]";
        file.value_at(&["locations"]).warn(codes::NO_EFFECT, message, help);
    }
}

/// Names that stand for every host or method in other programs.
fn warn_of_every(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let host = HostRule::Exact("_".to_owned());
        let is_every = |method: &Method| matches!(method.as_str(), "ANY" | "ALL");
        let methods = location.methods.iter().find(|method| is_every(method)).map(Method::as_str);
        let hosts = location.hosts.contains(&host).then_some("_");
        for (field, name) in [("host", hosts), ("methods", methods)] {
            let Some(name) = name else { continue };
            let message = format!("`{name}` is a name like any other here");
            let help = format!("write {field}: any, or leave it out");
            file.location_value(index, &[field]).warn(codes::MISREAD, message, help);
        }
    }
}

/// A slash at the end of an upstream's URL, which replaces the location's path in nginx.
fn warn_of_slashes(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let value = file.location_value(index, &["upstream"]);
        let PathRule::Prefix { path, .. } = &location.path else { continue };
        let url = value.as_text().filter(|url| value.path.ends_with(".upstream") && url.contains("://"));
        let Some(server) = url.and_then(|url| url.strip_suffix('/')) else { continue };
        if path != "/" && location.strip.is_none() && location.rewrite.is_none() && !server.is_empty() {
            let prefix = path.trim_end_matches('/');
            let message = format!("the slash at the end does not remove {prefix} from the path of a request");
            let help = format!("write strip: {prefix} for that, and leave the slash out");
            value.warn(codes::MISREAD, message, help);
        }
    }
}

/// A `*` or a placeholder in a path that is no regular expression.
fn warn_of_stars(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let (PathRule::Exact(path) | PathRule::Prefix { path, .. }) = &location.path else { continue };
        if path.contains(" /") {
            let message = "this is one path with a space in it, not several paths";
            let help = "write a location for each path, or one with ~ ^(/a|/b)";
            file.location_value(index, &["path"]).warn(codes::MISREAD, message, help);
        }
        if let Some(exact) = path.strip_suffix('$') {
            let message = "`$` is a character like any other in this path";
            let help = format!("write = {exact} for this path alone, or a regular expression: ~ ^{exact}$");
            file.location_value(index, &["path"]).warn(codes::MISREAD, message, help);
        }
        let Some((star, sign)) = find_wildcard(path) else { continue };
        let before = &path[..star];
        let help = match &path[star..] {
            "*" | "**" if before.ends_with('/') => {
                format!("write {before}, which matches every path below it")
            }
            "*" | "**" => format!("write {before}, or ~ ^{before} for every path that begins so"),
            rest if rest.starts_with(sign) && sign != "*" => match &rest[sign.len()..] {
                "" => format!("write {before}, which matches every path below it, or ~ ^{before}[^/]+$"),
                behind => format!("write a regular expression: ~ ^{before}[^/]+{behind}$"),
            },
            rest => format!("write a regular expression: ~ ^{before}[^/]+{}$", rest.trim_start_matches('*')),
        };
        let message = match sign {
            "*" => "`*` is a character like any other in this path".to_owned(),
            sign => format!("`{sign}` is text like any other in this path"),
        };
        file.location_value(index, &["path"]).warn(codes::MISREAD, message, help);
    }
}

/// The first `*`, `{name}` or `:name` of a path, and its start.
fn find_wildcard(path: &str) -> Option<(usize, &str)> {
    let brace = || {
        let start = path.find('{')?;
        let end = start + path[start..].find('}')?;
        Some((start, &path[start..=end]))
    };
    let colon = || {
        let start = path.find("/:")? + 1;
        let end = path[start..].find('/').map_or(path.len(), |end| start + end);
        path[start + 1..].starts_with(|c: char| c.is_ascii_alphabetic()).then(|| (start, &path[start..end]))
    };
    path.find('*').map(|star| (star, "*")).or_else(brace).or_else(colon)
}

/// A network such as `10.0.0.1/8`.
fn warn_of_host_bits(value: &FieldValue<'_>) {
    let Some(network) = value.as_text().and_then(|text| text.parse::<IpNet>().ok()) else { return };
    if network.trunc() != network {
        let message = format!("`{network}` has bits after its prefix: it means {}", network.trunc());
        let help = format!("write {}, or {} for this address alone", network.trunc(), network.addr());
        value.warn(codes::MISREAD, message, help);
    }
}

/// An address such as `10.0.0.0`, which is that of a network.
fn warn_of_missing_mask(value: &FieldValue<'_>) {
    let Some(address) = value.as_text().and_then(|text| text.parse::<Ipv4Addr>().ok()) else { return };
    let prefix = prefix_before_zeros(address);
    if prefix < 32 {
        let message = format!("`{address}` is one address, not a network");
        let help = format!("write {address}/{prefix} for the network, or {address}/32 for the address alone");
        value.warn(codes::MISREAD, message, help);
    }
}

/// Headers that exist to carry secrets.
const SECRETS: [&str; 7] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "api-key", "x-api-key", "x-auth-token"];

pub(super) fn lint_logged(file: &LintContext<'_>) {
    let token = file.config.account.jwt.as_ref().map(|jwt| &jwt.header);
    // A header that may hold an API key is logged as `***`.
    let is_hidden = |name: &HeaderName| file.config.account.keys.iter().any(|keys| keys.holds_key(name));
    let is_secret =
        |name: &HeaderName| (SECRETS.contains(&name.as_str()) || token == Some(name)) && !is_hidden(name);
    let written = file.value_at(&["access_log", "headers"]);
    for (name, value) in file.config.access_log.headers.iter().zip(written.one_or_more()) {
        if is_secret(name) {
            let message =
                format!("the access log would hold `{name}` in clear, and with it secrets of clients");
            let help = "remove it; each line has the account and the keys of its limits, as hashes";
            value.warn(codes::LOGGED_SECRET, message, help);
        }
    }
}
