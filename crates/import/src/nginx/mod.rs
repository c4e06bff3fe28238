//! nginx.conf: read with its includes, its inheritance and its order of phases, and written as gateway.yaml.

mod access;
pub(super) mod auth;
mod closed;
mod content;
mod error_pages;
mod flatten;
mod glob;
mod globals;
pub(super) mod headers;
mod hosts;
mod key;
mod known;
mod lexer;
mod limits;
mod listeners;
mod location_tree;
mod parser;
pub(super) mod path_edits;
mod pieces;
pub(super) mod regex;
mod responses;
mod scope;
mod site;
mod steps;
mod upstream_fields;
mod upstreams;
pub(super) mod values;
mod variables;
mod zones;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::gateway_file::{GatewayFile, LocationPlan, close_fields};
use super::{FindingKind, ImportFault, ImportReport, ImportedLine};
use content::SiteContext;
use hosts::{ServerNames, is_covered, read_names};
use limits::LimitBook;
use listeners::ListenerTable;
use location_tree::{LocationNode, MatchKind, subtree_guards};
use parser::{ConfParser, Directive, SharedReport, visit_all};
use scope::{Scope, is_guard, skip_all};
use site::{SiteLocation, finish_location, read_site};
use upstreams::UpstreamBook;
use variables::VariableTable;
use zones::{ZoneTable, read_zones};

/// The place of a part without one.
fn nowhere() -> ImportedLine {
    ImportedLine::start_of("nginx.conf")
}

/// Imports the file at `path` and everything that it includes.
pub(super) fn import_nginx(path: &Path) -> Result<(GatewayFile, ImportReport), ImportFault> {
    let report = SharedReport::default();
    let directives = ConfParser::read_file(path, &report)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    // A file of conf.d is the inside of `http`.
    let blocks: Vec<&Directive> = directives.iter().filter(|directive| directive.name == "http").collect();
    let http = match blocks.as_slice() {
        [] if directives.iter().any(|directive| directive.name == "server") => directives.as_slice(),
        [one] => one.children(),
        [] => {
            let start = ImportedLine::start_of(path.display());
            return Err(ImportFault::new(&start, "there is no `http` and no `server` to import"));
        }
        [_, second, ..] => return Err(second.fault("there are two blocks `http`")),
    };
    let mut file = translate_http(http, &folder)?;
    sweep(&directives);
    let written = file.locations.iter().filter_map(|location| location.source.clone());
    let written = written.chain(file.upstreams.iter().map(|upstream| upstream.source.clone())).collect();
    find_places(&directives, None, &written, &mut file.places);
    Ok((file, report.take()))
}

/// The part of the written file where the comment on a lost line stands: its location or upstream, else the first
/// location of its server.
fn find_places(
    directives: &[Directive],
    around: Option<&ImportedLine>,
    written: &HashSet<ImportedLine>,
    places: &mut HashMap<ImportedLine, ImportedLine>,
) {
    for directive in directives {
        let mut place = None;
        if matches!(directive.name.as_str(), "server" | "location" | "upstream") {
            visit_all(std::slice::from_ref(directive), &mut |inner| {
                place = place.or(written.get(&inner.at));
            });
        }
        if let Some(place) = place.or(around) {
            places.entry(directive.at.clone()).or_insert_with(|| place.clone());
        }
        find_places(directive.children(), place.or(around), written, places);
    }
}

/// A server with its names and its tree of locations.
struct ServerPlan<'d> {
    directive: &'d Directive,
    names: ServerNames,
    /// Where it is the default.
    default: Vec<String>,
    other_listeners: Vec<String>,
    root: LocationNode<'d>,
}

fn translate_http<'d>(http: &'d [Directive], folder: &Path) -> Result<GatewayFile, ImportFault> {
    let variables = VariableTable::read(http)?;
    let zones = read_zones(http, &variables)?;
    let scope = Scope::new(http);
    let mut listeners = ListenerTable::default();
    let servers: Vec<&'d Directive> = http.iter().filter(|directive| directive.name == "server").collect();
    let Some(first) = servers.first() else {
        let at = http.first().map_or(nowhere(), |directive| directive.at.clone());
        return Err(ImportFault::new(&at, "`http` has no `server`"));
    };
    let scopes: Vec<Scope<'d>> = servers.iter().map(|server| scope.enter(server.children())).collect();
    for (number, (server, inner)) in servers.iter().zip(&scopes).enumerate() {
        listeners.add_server(number, server, inner)?;
    }
    let closed = listeners.read_certificates(&scopes, folder);
    let (mut plans, mut taken) = (Vec::new(), HashSet::new());
    let by_server = listeners.names_by_server(servers.len());
    for ((directive, inner), (default, other_listeners)) in servers.iter().zip(&scopes).zip(by_server) {
        let names = read_names(directive, inner, (&default, &other_listeners), &mut taken);
        let root = LocationNode::read_server(inner.clone())?;
        plans.push(ServerPlan { directive, names, default, other_listeners, root });
    }
    let (mut limits, mut upstreams) = (LimitBook::new(&zones), UpstreamBook::new(http)?);
    let mut sites = Vec::new();
    for ServerPlan { directive, names, root, .. } in &plans {
        let (server_name, variables) = (names.primary.as_str(), &variables);
        let (limits, upstreams) = (&mut limits, &mut upstreams);
        let mut context = SiteContext { server: directive, server_name, root, variables, limits, upstreams };
        sites.push(read_site(&mut context)?);
    }
    let mut location_scopes = Vec::new();
    plans.iter().for_each(|plan| collect_scopes(&plan.root, &mut location_scopes));
    let mut file = GatewayFile {
        limits: limits.build_limits(),
        server: globals::read_server_fields(&scopes, &location_scopes, &scope, &listeners)?,
        ..GatewayFile::default()
    };
    let named = !listeners.are_uniform();
    let names = plans.iter().flat_map(|plan| &plan.names.hosts);
    let wildcards: HashSet<&str> = names.filter_map(|host| host.strip_prefix('*')).collect();
    // A host without a name in the file may be one of a server that refuses.
    let is_guarded = |plan: &ServerPlan<'_>| subtree_guards(plan.directive) || !plan.root.only_forwards;
    let shut = plans.iter().filter(|plan| plan.names.are_incomplete && is_guarded(plan));
    let shut: HashSet<&String> = shut.flat_map(|plan| &plan.other_listeners).collect();
    for (number, (site, plan)) in sites.into_iter().zip(&plans).enumerate() {
        let finish = |location: SiteLocation<'_>| finish_location(location, &limits);
        let mut finished: Vec<LocationPlan> = site.into_iter().map(finish).collect();
        for location in finished.iter_mut().filter(|_| closed.contains(&number)) {
            location.fields = close_fields(std::mem::take(&mut location.fields));
        }
        let takes_any = !plan.default.iter().any(|listener| shut.contains(listener));
        place_locations(plan, takes_any, &wildcards, named, &finished, &mut file.locations);
    }
    file.server.extend(globals::share_body_size(&mut file.locations));
    tell_judging(http, &zones);
    tell_unused(&zones, &variables, http);
    file.upstreams = upstreams.planned;
    file.listen = listeners.into_plans(named);
    first.mark();
    Ok(file)
}

/// The scopes of locations that requests come to.
fn collect_scopes<'d>(node: &LocationNode<'d>, scopes: &mut Vec<Scope<'d>>) {
    let is_server = node.directive.is_none();
    if is_server && node.scope.own("return").is_some() {
        return;
    }
    let is_hidden = match node.matching.kind {
        MatchKind::Named => true,
        _ if is_server => node.has_prefix("/"),
        _ => node.scope.value_of("internal").is_some(),
    };
    scopes.extend((!is_hidden).then(|| node.scope.clone()));
    node.children.iter().for_each(|child| collect_scopes(child, scopes));
}

/// Writes the locations of a server for its hosts, and for any host where it is the default.
fn place_locations(
    ServerPlan { names, default, other_listeners, .. }: &ServerPlan<'_>,
    takes_any: bool,
    wildcards: &HashSet<&str>,
    named: bool,
    locations: &[LocationPlan],
    out: &mut Vec<LocationPlan>,
) {
    // A wildcard would win over the locations for any host.
    let needs_name = |host: &&String| !takes_any || is_covered(host, wildcards);
    let claimed: Vec<String> = names.hosts.iter().filter(needs_name).cloned().collect();
    for (hosts, listeners, is_needed) in [
        (&Vec::new(), default, takes_any),
        (&claimed, default, !claimed.is_empty()),
        (&names.hosts, other_listeners, !names.hosts.is_empty()),
    ] {
        for location in locations.iter().filter(|_| is_needed && !listeners.is_empty()) {
            let mut location = location.clone();
            location.hosts.clone_from(hosts);
            if named {
                location.listeners.clone_from(listeners);
            }
            out.push(location);
        }
    }
}

/// Tells of directives that change the counts of limits, or are limits of their own.
fn tell_judging(http: &[Directive], zones: &ZoneTable<'_>) {
    let used = || zones.values().filter(|zone| zone.directive.is_told());
    let mut parts = used().filter_map(|zone| zone.key.as_ref().ok()).flat_map(|key| &key.parts);
    // A name without a dash has no other spelling.
    let by_dashed = parts.any(|part| part.starts_with("header:") && part.contains('-'));
    let by_slots = used().any(|zone| zone.rate.is_none());
    visit_all(http, &mut |directive| {
        let why = match (directive.name.as_str(), directive.arg(0)) {
            ("underscores_in_headers", "on") | ("ignore_invalid_headers", "off") if by_dashed => {
                "nginx also counts by a header with underscores in its name; the limits do not find it"
            }
            ("merge_slashes", "off") => {
                "the gateway merges slashes, so that such paths may find another location"
            }
            ("proxy_pass_request_headers", "off") => "the fields of the client are forwarded",
            ("proxy_ignore_client_abort", "on") if by_slots => {
                "a request that its client gives up is no longer counted as a connection"
            }
            ("set", "$limit_rate") => "the pace depends on a variable",
            ("proxy_limit_rate", rate) if rate != "0" => "the gateway reads from a server at any pace",
            _ => return,
        };
        directive.loses(why);
    });
}

/// Zones, variables and upstreams that nothing refers to.
fn tell_unused(zones: &ZoneTable<'_>, variables: &VariableTable<'_>, http: &[Directive]) {
    let upstreams = http.iter().filter(|directive| directive.name == "upstream");
    let unused = zones.values().map(|zone| zone.directive).chain(variables.directives()).chain(upstreams);
    for directive in unused.filter(|directive| !directive.is_told()) {
        let says = match directive.name.as_str() {
            "map" | "geo" => "its values are part of the limits and access rules that use it, if any",
            _ => "nothing uses it",
        };
        directive.exact(says);
        directive.children().iter().for_each(|inner| inner.mark());
    }
}

/// Every directive without a finding gets one, so that nothing is left out without a word.
fn sweep(directives: &[Directive]) {
    visit_all(directives, &mut |directive| {
        if directive.is_told() {
            return;
        }
        let name = directive.name.as_str();
        match known::find_harmless(name) {
            Some(why @ (known::NOT_DONE | known::PART_OF_CHECK)) => directive.skips(why),
            Some(why) => directive.tell(FindingKind::NotNeeded, why),
            None if matches!(name, "stream" | "mail") => {
                let why = "the gateway forwards HTTP only: its servers are left out";
                directive.loses(why);
                visit_all(directive.children(), &mut |inner| inner.skips(why));
            }
            None if name == "rewrite" => directive.loses("the path is forwarded unchanged"),
            None if name == "include" && directive.block.is_some() => {
                directive.skips("no file matches the pattern");
            }
            None if name == "satisfy" && directive.arg(0) == "any" => {
                directive.differs("an address that is denied stays denied, whatever else would let it in");
            }
            None if known::find_check(name).is_some_and(|why| why != known::UNKNOWN) => {
                directive.exact("every location has its own, or answers before")
            }
            None if is_guard(directive) && !known::is_translated(name) => {
                let why = known::describe_guard(name).unwrap_or(known::UNKNOWN);
                directive.loses(why);
                skip_all(directive.children(), why);
            }
            None if known::describe_guard(name).is_some() => directive.skips("it does nothing by itself"),
            None if matches!(
                name,
                "limit_req" | "limit_conn" | "allow" | "deny" | "limit_rate" | "return"
            ) =>
            {
                directive
                    .exact("it holds nowhere in nginx either: inner levels have their own, or come first");
            }
            None => directive.exact(""),
        }
    });
}
