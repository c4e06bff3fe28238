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
use object::{IngressObject, IngressPath, ServiceTable, read_objects};

/// Imports the Ingress objects of a file; its services name the ports.
pub(super) fn import_ingress(source: &SourceText) -> Result<(GatewayFile, ImportReport), ImportFault> {
    let mut report = ImportReport::default();
    let (mut objects, services) = read_objects(source, &mut report)?;
    if objects.is_empty() {
        return Err(ImportFault::new(&source.start(), "there is no Ingress to import"));
    }
    // The oldest comes first, and of equal ones the last name. Without times, the order of the file holds.
    objects.sort_by_cached_key(|IngressObject { created, namespace, name, .. }| {
        (created.clone(), created.is_some().then(|| Reverse(format!("{namespace}/{name}"))))
    });
    let server = vec![
        PlannedField::new("ipv6_prefix", "128", "ingress-nginx counts each IPv6 address by itself"),
        PlannedField::new("max_body", "1MiB", "proxy-body-size of the ConfigMap, by default 1m"),
    ];
    let mut file = GatewayFile { server, ..GatewayFile::default() };
    let (mut paths, mut closed_hosts, mut canaries) = (Vec::new(), HashSet::new(), Vec::new());
    let mut named = BTreeSet::new();
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
            closed_hosts.extend(rules.closes_hosts.then_some(&path.host));
            // The first Ingress of a host says what its other paths come to.
            match path.is_default && path.host.is_some() && named.contains(&path.host) {
                true => report.skips(&path.at, "defaultBackend", "an earlier Ingress has the host"),
                false => paths.push((object, rules.clone(), path)),
            }
        }
        named.extend(&object.hosts);
    }
    paths.sort_by_key(|(_, _, path)| (path.is_default && path.host.is_some(), !path.is_default));
    let taken = drop_doubles(&mut paths, &mut report);
    let mains: Vec<_> = paths.iter().map(|(object, _, path)| (*object, *path)).collect();
    let canaries = match_canaries(&mains, &canaries, &mut report);
    let regex = paths.iter().filter(|(_, rules, path)| rules.makes_expressions(&path.path));
    let regex_hosts: HashSet<_> = regex.map(|(_, _, path)| &path.host).collect();
    // ingress-nginx tries the expressions of a host by their lengths.
    paths.sort_by_key(|(_, _, IngressPath { host, path, .. })| {
        let text = if regex_hosts.contains(host) { path.as_str() } else { "" };
        Reverse((text.len(), text))
    });
    for (object, rules, path) in paths {
        let by_regex = regex_hosts.contains(&path.host);
        if by_regex && path.is_exact && path.path == "/" {
            report.skips(&path.at, "path /", "ingress-nginx never comes to it: its host has expressions");
            continue;
        }
        let is_closed = rules.is_closed || closed_hosts.contains(&path.host);
        let canary = canaries.get(&service_key(object, path)).copied();
        let upstreams = add_upstreams((object, path, canary), &services, &rules, &mut file, &mut report)?;
        let written = rules.write_paths(path, by_regex, taken.contains(&(&path.host, &path.path, true)));
        add_path((path, written, is_closed), &upstreams, &rules, &mut file, &mut report)?;
    }
    redirect_to_folders(&mut file, &mut report);
    close_hosts(&named, &mut file);
    Ok((file, report))
}

/// A path with its Ingress.
type MainPath<'o> = (&'o IngressObject, Rc<IngressRules>, &'o IngressPath);

/// The hosts, paths and types of paths.
type PlacesTaken<'o> = HashSet<(&'o Option<String>, &'o String, bool)>;

/// Drops paths that an earlier Ingress has.
fn drop_doubles<'o>(paths: &mut Vec<MainPath<'o>>, report: &mut ImportReport) -> PlacesTaken<'o> {
    let mut taken = HashSet::new();
    paths.retain(|(_, _, path)| {
        let is_first = taken.insert((&path.host, &path.path, path.is_exact));
        let says = match &path.host {
            _ if !is_first => "an earlier Ingress has the same host and path and wins",
            Some(host) if host.starts_with("*.") => {
                "the host is all names below it, and there of one label more"
            }
            _ => return true,
        };
        report.differs(&path.at, &format!("path {}", path.path), says);
        is_first
    });
    taken
}

/// nginx redirects a path without its slash to the location with it.
fn redirect_to_folders(file: &mut GatewayFile, report: &mut ImportReport) {
    let places = file.locations.iter().map(|location| (location.hosts.clone(), location.path.clone()));
    let (mut taken, mut added): (HashSet<_>, _) = (places.collect(), Vec::new());
    for LocationPlan { path, hosts, source, .. } in &file.locations {
        let text = path.strip_prefix("= ").unwrap_or(path);
        let Some(folder) = text.strip_suffix('/').filter(|folder| folder.starts_with('/')) else { continue };
        let path = format!("= {folder}");
        if taken.insert((hosts.clone(), path.clone())) {
            let says = "the redirect to the path with its slash drops the query";
            source.iter().for_each(|at| report.differs(at, &format!("path {text}"), says));
            let fields = PlannedField::map("redirect", &[("to", quote(text)), ("status", "301".to_owned())]);
            let (hosts, fields, source) = (hosts.clone(), fields.into_iter().collect(), source.clone());
            added.push(LocationPlan { path, hosts, fields, source, ..LocationPlan::default() });
        }
    }
    file.locations.append(&mut added);
}

/// A host answers 404 for its other paths, even if another Ingress is for any host.
fn close_hosts(named: &BTreeSet<&Option<String>>, file: &mut GatewayFile) {
    if !file.locations.iter().any(|location| location.hosts.is_empty()) {
        return;
    }
    for host in named.iter().copied().flatten() {
        let hosts = vec![host.clone()];
        if !file.locations.iter().any(|location| location.hosts == hosts && location.path == "/") {
            let (path, fields) = ("/".to_owned(), vec![PlannedField::plain("respond", "{ status: 404 }")]);
            file.locations.push(LocationPlan { path, hosts, fields, ..LocationPlan::default() });
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
    (path, written, is_closed): (&IngressPath, Vec<(String, Option<PlannedField>)>, bool),
    choices: &[UpstreamChoice],
    rules: &IngressRules,
    file: &mut GatewayFile,
    report: &mut ImportReport,
) -> Result<(), ImportFault> {
    for (written, rewrite) in written {
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
