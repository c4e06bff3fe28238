//! Ingress objects with the annotations of ingress-nginx.
//!
//! An Ingress names hosts, paths and services; annotations of the prefix `nginx.ingress.kubernetes.io/` limit all of
//! its paths together.

mod affinity;
mod annotations;
mod canary;
mod object;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use super::gateway_file::{GatewayFile, LocationPlan, PlannedField, UpstreamPlan, close_fields};
use super::nginx::regex::is_usable_path;
use super::source::SourceText;
use super::yaml_text::{flow_map, numbered_names, quote, quoted_list};
use super::{ImportFault, ImportReport, ImportedLine};
use annotations::{IngressRules, read_rules};
use canary::{Canary, match_canaries, read_canary, service_key};
use object::{IngressObject, IngressPath, PathKindOfIngress, ServiceTable, read_objects};

/// Imports the Ingress objects of a file; its services name the ports.
pub(super) fn import_ingress(source: &SourceText) -> Result<(GatewayFile, ImportReport), ImportFault> {
    let mut report = ImportReport::default();
    let (objects, services) = read_objects(source, &mut report)?;
    if objects.is_empty() {
        return Err(ImportFault::new(&source.start(), "there is no Ingress to import"));
    }
    let server = vec![
        PlannedField::new("ipv6_prefix", "128", "ingress-nginx counts each IPv6 address by itself"),
        PlannedField::new("max_body", "1MiB", "proxy-body-size of the ConfigMap, by default 1m"),
    ];
    let mut file = GatewayFile { server, ..GatewayFile::default() };
    let (mut paths, mut regex_hosts, mut closed_hosts) = (Vec::new(), HashSet::new(), HashSet::new());
    let mut canaries = Vec::new();
    for object in &objects {
        note_places(object, &mut file);
        if let Some(policy) = read_canary(object, &mut report)? {
            canaries.push((object, policy));
            continue;
        }
        let rules = Rc::new(read_rules(object, &mut report)?);
        file.limits.extend(rules.limits.iter().cloned());
        note_tls(object, &mut report);
        for path in &object.paths {
            regex_hosts.extend(rules.makes_expressions(path).then_some(&path.host));
            closed_hosts.extend(rules.closes_hosts.then_some(&path.host));
            paths.push((object, rules.clone(), path));
        }
    }
    let mains: Vec<_> = paths.iter().map(|(object, _, path)| (*object, *path)).collect();
    let canaries = match_canaries(&mains, &canaries, &mut report);
    // ingress-nginx tries the expressions of a host by their lengths; an exact path is not that of a prefix, too.
    paths.sort_by_key(|(_, _, IngressPath { host, path, kind, .. })| {
        let text = if regex_hosts.contains(host) { path.as_str() } else { "" };
        (Reverse((text.len(), text)), *kind != PathKindOfIngress::Exact)
    });
    for (object, rules, path) in paths {
        let by_regex = regex_hosts.contains(&path.host);
        let is_closed = rules.is_closed || closed_hosts.contains(&path.host);
        let canary = canaries.get(&service_key(object, path)).copied();
        let upstreams = add_upstreams((object, path, canary), &services, &rules, &mut file, &mut report)?;
        add_path((path, by_regex, is_closed), &upstreams, &rules, &mut file, &mut report)?;
    }
    close_hosts(&mut file);
    Ok((file, report))
}

/// A host answers 404 for its other paths, even if another Ingress is for any host.
fn close_hosts(file: &mut GatewayFile) {
    if !file.locations.iter().any(|location| location.hosts.is_empty()) {
        return;
    }
    let named = file.locations.iter().map(|location| location.hosts.clone());
    let named: BTreeSet<Vec<String>> = named.filter(|hosts| !hosts.is_empty()).collect();
    for hosts in named {
        if !file.locations.iter().any(|location| location.hosts == hosts && location.path == "/") {
            let fields = vec![PlannedField::plain("respond", "{ status: 404 }")];
            file.locations.push(LocationPlan {
                path: "/".to_owned(),
                hosts,
                fields,
                ..LocationPlan::default()
            });
        }
    }
}

/// Comments on the lines of annotations stand at the first path.
fn note_places(object: &IngressObject, file: &mut GatewayFile) {
    if let Some(first) = object.paths.first() {
        let lines = object.annotations.iter().map(|(at, ..)| (at.clone(), first.at.clone()));
        file.places.extend(lines);
    }
}

fn note_tls(object: &IngressObject, report: &mut ImportReport) {
    let stays =
        object.annotations.iter().any(|(_, key, value)| key.ends_with("/ssl-redirect") && value == "false");
    for (at, secret) in &object.tls {
        let says = "write the certificate into the field listen[].tls: a Secret is not a file";
        match stays {
            true => report.skips(at, &format!("tls {secret}"), says),
            false => {
                report.loses(at, &format!("tls {secret}"), format!("HTTP is not redirected to HTTPS; {says}"))
            }
        }
    }
}

/// The upstream for the requests of a path that fulfil the field `when`, or for all others, and its source.
type UpstreamChoice = (Option<PlannedField>, String, ImportedLine);

fn add_path(
    (path, by_regex, is_closed): (&IngressPath, bool, bool),
    choices: &[UpstreamChoice],
    rules: &IngressRules,
    file: &mut GatewayFile,
    report: &mut ImportReport,
) -> Result<(), ImportFault> {
    let rewrite = rules.write_rewrite(path).and_then(Result::ok);
    for written in rules.write_paths(path, by_regex) {
        is_usable_path(&written).map_err(|why| ImportFault::new(&path.at, why))?;
        let hosts: Vec<String> = path.host.clone().into_iter().collect();
        let same = |known: &LocationPlan| known.path == written && known.hosts == hosts;
        if file.locations.iter().any(same) {
            let says = "an earlier Ingress has the same host and path and wins";
            report.differs(&path.at, &format!("path {}", path.path), says);
            continue;
        }
        for (when, upstream, source) in choices {
            let mut action = vec![PlannedField::plain("upstream", quote(upstream))];
            action.extend(rewrite.clone());
            if is_closed {
                action = close_fields(action);
            }
            let mut fields: Vec<PlannedField> = when.iter().cloned().chain(action).collect();
            if !rules.limits.is_empty() {
                let names = rules.limits.iter().map(|limit| &limit.name);
                fields.push(PlannedField::plain("limits", quoted_list(names)));
            }
            fields.extend(rules.location_fields.iter().cloned());
            let (path, hosts, source) = (written.clone(), hosts.clone(), Some(source.clone()));
            file.locations.push(LocationPlan { path, hosts, fields, source, ..LocationPlan::default() });
        }
    }
    for (_, upstream, _) in choices {
        report.exact(&path.at, &format!("path {}", path.path), format!("upstream {upstream}"));
    }
    Ok(())
}

/// The upstreams of a path, with those of its canary, in the order in which their locations are tried.
fn add_upstreams(
    (object, path, canary): (&IngressObject, &IngressPath, Option<Canary<'_>>),
    services: &ServiceTable,
    rules: &IngressRules,
    file: &mut GatewayFile,
    report: &mut ImportReport,
) -> Result<Vec<UpstreamChoice>, ImportFault> {
    let main = read_service((object, path), services, rules, report)?;
    let only = |(base, server): &(String, String), at: &ImportedLine, file: &mut GatewayFile| {
        add_upstream(base, vec![server.clone()], rules.upstream_fields.clone(), at, file)
    };
    let Some(Canary { object, path: canary, policy }) = canary else {
        return Ok(vec![(None, only(&main, &path.at, file), path.at.clone())]);
    };
    let other = read_service((object, canary), services, rules, report)?;
    let mut choices = Vec::new();
    for (when, leads) in &policy.conditions {
        let upstream = only(if *leads { &other } else { &main }, &canary.at, file);
        choices.push((Some(when.clone()), upstream, canary.at.clone()));
    }
    let rest = match policy.weight {
        0 => only(&main, &path.at, file),
        weight if weight >= policy.total => only(&other, &canary.at, file),
        weight => {
            // No weight is above 65,535; a larger total is rounded.
            let scale = policy.total.div_ceil(65_535);
            let servers = [(&main.1, policy.total - weight), (&other.1, weight)];
            let servers = servers.map(|(server, part)| {
                flow_map(&[("url", server), ("weight", &part.div_ceil(scale).to_string())])
            });
            let balance = PlannedField::new("balance", "random", "by chance, as in ingress-nginx");
            let keeps = |field: &&PlannedField| policy.keeps_clients || field.name != "sticky";
            let fields = rules.upstream_fields.iter().filter(keeps).cloned();
            let fields = std::iter::once(balance).chain(fields).collect();
            add_upstream(&format!("{}-canary", main.0), servers.to_vec(), fields, &canary.at, file)
        }
    };
    choices.push((None, rest, path.at.clone()));
    Ok(choices)
}

/// A name for the upstream of a path's service, and its server.
fn read_service(
    (object, path): (&IngressObject, &IngressPath),
    services: &ServiceTable,
    rules: &IngressRules,
    report: &mut ImportReport,
) -> Result<(String, String), ImportFault> {
    let port = path.port.parse::<u16>().unwrap_or_else(|_| {
        let named = (object.namespace.clone(), path.service.clone(), path.port.clone());
        services.get(&named).copied().unwrap_or_else(|| {
            let says = format!("the file has no Service with the port `{}`; 80 is written", path.port);
            report.differs(&path.at, &format!("service {}", path.service), says);
            80
        })
    });
    let address = format!("{}.{}.svc.cluster.local:{port}", path.service, object.namespace);
    let server = format!("{}://{address}", rules.scheme);
    sluicegate_model::value::server_url::parse_server(&server)
        .map_err(|error| ImportFault::new(&path.at, format!("`{address}`: {}", error.message)))?;
    Ok((format!("{}-{}-{port}", object.namespace, path.service), quote(&server)))
}

/// The upstream with these servers and fields, one for all its places: `base`, or with a number behind it.
fn add_upstream(
    base: &str,
    servers: Vec<String>,
    fields: Vec<PlannedField>,
    at: &ImportedLine,
    file: &mut GatewayFile,
) -> String {
    let base: String = base.chars().take(56).collect();
    let known = |name: &str| file.upstreams.iter().find(|plan| plan.name == name);
    let is_same = |plan: &UpstreamPlan| plan.servers == servers && plan.fields == fields;
    let name = numbered_names(&base).find(|name| known(name).is_none_or(is_same)).unwrap_or_default();
    if known(&name).is_none() {
        file.upstreams.push(UpstreamPlan { name: name.clone(), servers, fields, source: at.clone() });
    }
    name
}
