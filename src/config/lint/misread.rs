//! Warns of values that mean something else than they seem to.

use ipnet::IpNet;

use super::{LintContext, warn_at};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::PathRule;
use crate::config::yaml::field_value::FieldValue;
use crate::config::yaml::tree::NodeContent;

/// The fields that hold networks.
const NETWORKS: [&str; 5] = ["trusted_proxies", "allow", "deny", "bypass", "ip_sets"];

pub(super) fn lint_misread(file: &LintContext<'_>) {
    warn_of_no_locations(file);
    warn_of_stars(file);
    warn_of_host_bits(file.whole, false);
}

fn warn_of_no_locations(file: &LintContext<'_>) {
    if file.config.locations.is_empty() {
        let message = "there are no locations, so every request is answered with 404";
        let help = "write e.g. locations: [{ path: /, upstream: demo }]";
        let value = file.value_at(&["locations"]);
        warn_at(&value, ValueError::new(codes::NO_EFFECT, message).with_help(help));
    }
}

/// A `*` in a path that is no regular expression.
fn warn_of_stars(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let (PathRule::Exact(path) | PathRule::Prefix { path, .. }) = &location.path else { continue };
        let Some(star) = path.find('*') else { continue };
        let before = &path[..star];
        let help = match &path[star..] {
            "*" | "**" if before.ends_with('/') => {
                format!("write {before}, which matches every path below it")
            }
            "*" | "**" => format!("write {before}, or ~ ^{before} for every path that begins so"),
            rest => format!("write a regular expression: ~ ^{before}[^/]+{}$", rest.trim_start_matches('*')),
        };
        let message = "`*` is a character like any other in this path";
        let value = file.location_value(index, &["path"]);
        warn_at(&value, ValueError::new(codes::MISREAD, message).with_help(help));
    }
}

/// Networks such as `10.0.0.1/8`, in `value` and all that it holds.
fn warn_of_host_bits(value: &FieldValue<'_>, holds_networks: bool) {
    match &value.node.content {
        NodeContent::Text(text) if holds_networks && !text.replaced => {
            let Some(network) = text.as_plain().and_then(|text| text.parse::<IpNet>().ok()) else { return };
            if network.trunc() != network {
                let message = format!("`{network}` has bits after its prefix: it means {}", network.trunc());
                let help = format!("write {}, or {} for this address alone", network.trunc(), network.addr());
                warn_at(value, ValueError::new(codes::MISREAD, message).with_help(help));
            }
        }
        NodeContent::List(_) => {
            value.one_or_more().iter().for_each(|item| warn_of_host_bits(item, holds_networks));
        }
        NodeContent::Map(_) => {
            for (key, inner) in value.entries() {
                warn_of_host_bits(&inner, holds_networks || NETWORKS.contains(&key.name.as_str()));
            }
        }
        NodeContent::Text(_) | NodeContent::Null | NodeContent::Invalid => {}
    }
}
