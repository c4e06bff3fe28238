//! Writes the text of gateway.yaml, with comments that name the source of each part.

use std::fmt::Write as _;

use super::gateway_file::{DomainRulePlan, GatewayFile, ListenPlan, LocationPlan, PlannedField, ServicePlan};
use super::yaml_text::{flow_map, one_or_list, quote};
use super::{ImportedLine, gateway_file};

/// The text; `source` is the name of the imported file.
pub(super) fn write_yaml(file: &GatewayFile, source: &str) -> String {
    let source: String = source.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut out = format!(
        "# Written by `sluicegate import {source}`.\n# A comment names the lines that each part comes from.\n"
    );
    write_listen(&mut out, &file.listen);
    if !file.server.is_empty() {
        out.push_str("\nserver:\n");
        write_fields(&mut out, "  ", &file.server);
    }
    if !file.upstreams.is_empty() {
        out.push_str("\nupstreams:\n");
    }
    for gateway_file::UpstreamPlan { name, servers, fields, source } in &file.upstreams {
        let _ = writeln!(out, "  {}:  {}\n    servers:", quote(name), comment(Some(source)));
        servers.iter().for_each(|server| out.extend(["      - ", server, "\n"]));
        write_fields(&mut out, "    ", fields);
    }
    if !file.limits.is_empty() {
        out.push_str("\nlimits:\n");
    }
    for limit in &file.limits {
        let _ = writeln!(out, "  {}:  {}", quote(&limit.name), comment(Some(&limit.source)));
        write_fields(&mut out, "    ", &limit.fields);
    }
    if let Some(service) = &file.service {
        write_service(&mut out, service);
    }
    out.push_str(if file.locations.is_empty() { "\nlocations: []\n" } else { "\nlocations:\n" });
    file.locations.iter().for_each(|location| write_location(&mut out, location));
    out
}

fn write_listen(out: &mut String, listen: &[ListenPlan]) {
    if listen.is_empty() {
        return;
    }
    out.push_str("\nlisten:\n");
    for ListenPlan { address, name, fields, source } in listen {
        let _ = writeln!(out, "  - address: {}  {}", quote(address), comment(source.as_ref()));
        if !name.is_empty() {
            let _ = writeln!(out, "    name: {}", quote(name));
        }
        write_fields(out, "    ", fields);
    }
}

fn write_service(out: &mut String, service: &ServicePlan) {
    let _ = writeln!(out, "\nservice:\n  listen: {}\n  domains:", quote(&service.listener));
    for domain in &service.domains {
        let empty = if domain.rules.is_empty() { " []" } else { "" };
        let _ = writeln!(out, "    {}:{empty}  {}", quote(&domain.name), comment(Some(&domain.source)));
        domain.rules.iter().for_each(|rule| write_domain_rule(out, rule));
    }
}

fn write_domain_rule(out: &mut String, rule: &DomainRulePlan) {
    let list = |texts: &[String]| texts.iter().map(|text| quote(text)).collect::<Vec<_>>();
    let entries: Vec<(String, String)> =
        rule.entries.iter().map(|(key, values)| (quote(key), one_or_list(&list(values)))).collect();
    let note = if rule.note.is_empty() { String::new() } else { format!(", {}", clean(&rule.note)) };
    let source = comment(rule.source.as_ref());
    let _ = writeln!(out, "      - match: {}  {source}{note}\n        exact: true", flow_map(&entries));
    if let Some(name) = &rule.name {
        let _ = writeln!(out, "        name: {}", quote(name));
    }
    if !rule.replaces.is_empty() {
        let _ = writeln!(out, "        replaces: [{}]", list(&rule.replaces).join(", "));
    }
    let _ = writeln!(out, "        limits: [{}]", list(&rule.limits).join(", "));
}

fn write_location(out: &mut String, location: &LocationPlan) {
    let LocationPlan { path, hosts, methods, listeners, fields, source } = location;
    let _ = writeln!(out, "  - path: {}  {}", quote(path), comment(source.as_ref()));
    for (name, values) in [("host", hosts), ("methods", methods), ("listener", listeners)] {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(|value| quote(value)).collect();
            let _ = writeln!(out, "    {name}: {}", one_or_list(&values));
        }
    }
    write_fields(out, "    ", fields);
}

fn write_fields(out: &mut String, indent: &str, fields: &[PlannedField]) {
    for PlannedField { name, value, note } in fields {
        let note = if note.is_empty() { String::new() } else { format!("  # {}", clean(note)) };
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{indent}{name}: {value}{note}");
    }
}

fn comment(source: Option<&ImportedLine>) -> String {
    source.map(|source| format!("# {}", clean(&source.to_string()))).unwrap_or_default()
}

/// A comment ends with its line.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') { '?' } else { c })
        .collect()
}
