//! Writes the text of gateway.yaml, with comments that name the source of each part.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::gateway_file::{DomainRulePlan, GatewayFile, ListenPlan, LocationPlan, PlannedField, ServicePlan};
use super::report::clean;
use super::yaml_text::{as_value, flow_map, quote, quoted_list};
use super::{ImportFinding, ImportReport, ImportedLine, gateway_file};

/// The losses, by the source of the part where they are noted.
type LossNotes<'r> = BTreeMap<&'r ImportedLine, Vec<&'r ImportFinding>>;

/// The text; `source` is the name of the imported file.
pub(super) fn write_yaml(file: &GatewayFile, report: &ImportReport, source: &str) -> String {
    let mut notes = LossNotes::new();
    for finding in report.lost() {
        notes.entry(file.places.get(&finding.at).unwrap_or(&finding.at)).or_default().push(finding);
    }
    // A server that is a source of several parts has its notes at its location.
    let mut locations = String::new();
    for location in &file.locations {
        write_losses(&mut locations, "  ", location.source.as_ref(), &mut notes);
        write_location(&mut locations, location);
    }
    let parts = write_parts(file, &mut notes);
    let mut out = format!(
        "# Written by `sluicegate import {}`.\n# A comment names the lines that each part comes from.\n",
        clean(source)
    );
    while let Some((source, _)) = notes.first_key_value() {
        let source = *source;
        write_losses(&mut out, "", Some(source), &mut notes);
    }
    let title = if locations.is_empty() { "\nlocations: []\n" } else { "\nlocations:\n" };
    out.extend([parts.as_str(), title, &locations]);
    out
}

/// Writes the losses at a part, once.
fn write_losses(out: &mut String, indent: &str, source: Option<&ImportedLine>, notes: &mut LossNotes<'_>) {
    for ImportFinding { at, directive, says, .. } in
        source.and_then(|source| notes.remove(source)).into_iter().flatten()
    {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{indent}# LOST: {}", clean(&format!("{at} {directive}: {says}")));
    }
}

/// Everything but the locations.
fn write_parts(file: &GatewayFile, notes: &mut LossNotes<'_>) -> String {
    let mut out = String::new();
    write_listen(&mut out, &file.listen, notes);
    if !file.server.is_empty() {
        out.push_str("\nserver:\n");
        write_fields(&mut out, "  ", &file.server);
    }
    if !file.upstreams.is_empty() {
        out.push_str("\nupstreams:\n");
    }
    for gateway_file::UpstreamPlan { name, servers, fields, source } in &file.upstreams {
        write_losses(&mut out, "  ", Some(source), notes);
        let _ = writeln!(out, "  {}:  {}\n    servers:", quote(name), comment(Some(source)));
        servers.iter().for_each(|server| out.extend(["      - ", &as_value(server), "\n"]));
        write_fields(&mut out, "    ", fields);
    }
    if !file.limits.is_empty() {
        out.push_str("\nlimits:\n");
    }
    for limit in &file.limits {
        write_losses(&mut out, "  ", Some(&limit.source), notes);
        let _ = writeln!(out, "  {}:  {}", quote(&limit.name), comment(Some(&limit.source)));
        write_fields(&mut out, "    ", &limit.fields);
    }
    if let Some(service) = &file.service {
        write_service(&mut out, service);
    }
    out
}

fn write_listen(out: &mut String, listen: &[ListenPlan], notes: &mut LossNotes<'_>) {
    if listen.is_empty() {
        return;
    }
    out.push_str("\nlisten:\n");
    for ListenPlan { address, name, fields, source } in listen {
        write_losses(out, "  ", source.as_ref(), notes);
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
        rule.entries.iter().map(|(key, values)| (quote(key), quoted_list(values))).collect();
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
            let _ = writeln!(out, "    {name}: {}", quoted_list(values));
        }
    }
    write_fields(out, "    ", fields);
}

fn write_fields(out: &mut String, indent: &str, fields: &[PlannedField]) {
    for PlannedField { name, value, note } in fields {
        let note = if note.is_empty() { String::new() } else { format!("  # {}", clean(note)) };
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{indent}{name}: {}{note}", as_value(value));
    }
}

fn comment(source: Option<&ImportedLine>) -> String {
    source.map(|source| format!("# {}", clean(&source.to_string()))).unwrap_or_default()
}
