//! The fields of the gateway for all servers: the client's address, the size of bodies, times of clients.

use std::collections::BTreeMap;

use super::listeners::ListenerTable;
use super::scope::Scope;
use super::values::{size_of, time_of, write_body_size, write_time};
use crate::ImportFault;
use crate::gateway_file::{LocationPlan, PlannedField};
use crate::networks::parse_networks;
use crate::yaml_text::{one_or_list, quote};
use sluicegate_model::value::names::parse_header_name;

/// nginx's default of `client_max_body_size`.
const BODY_MAX: u64 = 1 << 20;

/// The fields of `server`; `scopes` are those of all servers, `locations` those of all locations.
pub(super) fn read_server_fields(
    scopes: &[Scope<'_>],
    locations: &[Scope<'_>],
    http: &Scope<'_>,
    listeners: &ListenerTable,
) -> Result<Vec<PlannedField>, ImportFault> {
    let mut fields =
        vec![PlannedField::new("ipv6_prefix", "128", "nginx counts each IPv6 address by itself")];
    fields.extend(read_client_address(scopes, locations, listeners)?);
    let mut times = Vec::new();
    for (name, field) in [
        ("keepalive_timeout", "idle"),
        ("client_header_timeout", "header"),
        ("client_body_timeout", "body"),
        ("send_timeout", "write"),
    ] {
        let Some(directive) = http.value_of(name) else { continue };
        let ms = time_of(directive)?;
        if ms > 0 {
            directive.exact(format!("server: {{ timeouts: {{ {field} }} }}"));
            times.push((field, write_time(ms)));
        }
    }
    fields.extend(PlannedField::map("timeouts", &times));
    let passes = http.is_on("underscores_in_headers");
    for scope in scopes {
        let Some(directive) = scope.value_of("underscores_in_headers") else { continue };
        match scope.is_on("underscores_in_headers") == passes {
            true => directive.exact("server: { underscore_headers }"),
            false => directive.skips("server.underscore_headers is the same for all servers"),
        }
    }
    if passes {
        fields.push(PlannedField::plain("underscore_headers", "pass"));
    }
    Ok(fields)
}

/// The proxies that a place trusts, the field with the client's address, and whether the addresses in it are followed.
fn trusted_of<'d>(scope: &Scope<'d>) -> (Vec<&'d str>, Option<&'d str>, bool) {
    let nets = scope.nearest("set_real_ip_from").iter().map(|directive| directive.arg(0)).collect();
    let header = scope.value_of("real_ip_header").map(|directive| directive.arg(0));
    (nets, header, scope.is_on("real_ip_recursive"))
}

/// `trusted_proxies` and `client_ip`, if all servers agree.
fn read_client_address(
    scopes: &[Scope<'_>],
    locations: &[Scope<'_>],
    listeners: &ListenerTable,
) -> Result<Vec<PlannedField>, ImportFault> {
    let Some(first) = scopes.first() else { return Ok(Vec::new()) };
    let agreed = trusted_of(first);
    if scopes.iter().chain(locations).any(|scope| trusted_of(scope) != agreed) {
        for scope in scopes.iter().chain(locations) {
            for directive in scope.nearest_of(&["set_real_ip_from", "real_ip_header"]) {
                let why = "servers or locations trust different proxies; the gateway trusts the same ones everywhere. \
                           Write server.trusted_proxies by hand";
                directive.loses(why);
            }
        }
        return Ok(Vec::new());
    }
    let mut nets = Vec::new();
    for directive in first.nearest("set_real_ip_from") {
        match parse_networks(directive.arg(0)) {
            Ok(found) => {
                nets.extend(found.iter().map(|net| quote(&net.to_string())));
                directive.exact("server: { trusted_proxies }");
            }
            _ if directive.arg(0) == "unix:" => directive.exact("peers on unix sockets are trusted"),
            _ => {
                let says = "names are not resolved: write the addresses into server.trusted_proxies";
                directive.loses(says);
            }
        }
    }
    if nets.is_empty() {
        return Ok(Vec::new());
    }
    let mut fields = vec![PlannedField::plain("trusted_proxies", one_or_list(&nets))];
    let directive = first.value_of("real_ip_header");
    let header = directive.map_or("X-Real-IP", |directive| directive.arg(0));
    let source = match header.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => "x-forwarded-for".to_owned(),
        "proxy_protocol" => String::new(),
        _ if parse_header_name(header).is_ok() => format!("header:{header}"),
        _ => {
            let at = directive.map(|directive| directive.at.clone()).unwrap_or(super::nowhere());
            return Err(ImportFault::new(&at, format!("`{header}` is no header")));
        }
    };
    if !source.is_empty() {
        fields.push(PlannedField::plain("client_ip", quote(&source)));
    }
    let why = match header {
        "proxy_protocol" if listeners.all_have_proxy_protocol(true) => "",
        _ if header == "proxy_protocol" || !listeners.all_have_proxy_protocol(false) => {
            "the address of a PROXY header counts where `listen` has `proxy_protocol`, and a field elsewhere"
        }
        "X-Forwarded-For" if first.is_on("real_ip_recursive") => "",
        _ => "of several fields or addresses the right-most one that is not of a trusted proxy counts",
    };
    match directive.or(first.value_of("set_real_ip_from")) {
        Some(directive) if why.is_empty() => directive.exact("server: { client_ip }"),
        Some(directive) => directive.loses(why),
        None => {}
    }
    if let Some(directive) = first.value_of("real_ip_recursive") {
        directive.exact("");
    }
    Ok(fields)
}

/// The field `max_body` of a location.
pub(super) fn read_body_size(scope: &Scope<'_>) -> Result<PlannedField, ImportFault> {
    let directive = scope.value_of("client_max_body_size");
    // Nobody comes to an internal location, whatever the body is.
    let internal = scope.value_of("internal").map(|_| Ok(0));
    let bytes = internal.unwrap_or_else(|| directive.map_or(Ok(BODY_MAX), size_of))?;
    directive.inspect(|directive| directive.exact("max_body"));
    Ok(PlannedField::plain("max_body", write_body_size(bytes)))
}

/// Moves the `max_body` that most locations have to `server`.
pub(super) fn share_body_size(locations: &mut [LocationPlan]) -> Option<PlannedField> {
    let mut counts = BTreeMap::new();
    for field in locations.iter().flat_map(|location| &location.fields) {
        if field.name == "max_body" {
            *counts.entry(field.clone()).or_insert(0_usize) += 1;
        }
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    locations.iter_mut().for_each(|location| location.fields.retain(|field| *field != most));
    let is_bounded = most.value != "none";
    is_bounded.then(|| PlannedField { note: "client_max_body_size, by default 1m".to_owned(), ..most })
}
