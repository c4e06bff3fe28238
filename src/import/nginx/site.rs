//! The locations of one server as those of gateway.yaml.

use std::collections::HashSet;

use super::access::{AccessPlan, LimitsBehind, read_access, read_conditions};
use super::closed::{find_check, is_closed_by_condition, tell_closed};
use super::content::{LocationContent, read_content};
use super::error_pages::read_error_pages;
use super::flatten::{FlatLocation, flatten_server};
use super::headers::read_response_headers;
use super::limits::{LimitBook, LimitUse, PlannedLimits};
use super::location_tree::{LocationMatch, LocationNode};
use super::parser::{Directive, visit_all};
use super::regex_check::is_usable_path;
use super::responses::{read_return, slash_redirect, write_respond};
use super::scope::{FindingLedger, Scope};
use super::upstreams::UpstreamBook;
use super::values::{size_of, write_size};
use super::variables::VariableTable;
use crate::import::gateway_file::{LocationPlan, PlannedField, close_fields};
use crate::import::yaml_text::{flow_map, one_or_list};
use crate::import::{ImportFault, ImportedLine};

/// What all servers share.
pub(super) struct SiteContext<'d, 'b> {
    pub variables: &'b VariableTable<'d>,
    pub ledger: &'b FindingLedger,
    pub limits: LimitBook<'d, 'b>,
    pub upstreams: UpstreamBook<'d, 'b>,
}

/// A location before its chain is written: limits get their names when all uses are known.
pub(super) struct SiteLocation<'d> {
    pub plan: LocationPlan,
    pub chain: Vec<LimitUse<'d>>,
    pub on_reject: Vec<PlannedField>,
}

/// The locations of a server, whose primary name is `server_name`.
pub(super) fn read_site<'d>(
    root: &LocationNode<'d>,
    server: &Directive,
    server_name: &str,
    context: &mut SiteContext<'d, '_>,
) -> Result<Vec<SiteLocation<'d>>, ImportFault> {
    let denied = read_conditions(&root.scope, context.variables, context.limits.has_zones(), context.ledger)?;
    if let Some(action) = read_return(&root.scope, server_name, context.ledger)? {
        // It comes before locations are searched.
        let why = "the `return` of the server comes first";
        for node in &root.children {
            let Some(directive) = node.directive else { continue };
            context.ledger.exact(directive, why);
            visit_all(directive.children(), &mut |inner| context.ledger.exact(inner, why));
        }
        let access = AccessPlan { allow: None, deny: denied };
        let mut plan = new_plan("/".to_owned(), &server.at);
        plan.fields = vec![action];
        if is_closed_by_condition(root, &root.scope) {
            plan.fields = close_fields(plan.fields);
        }
        plan.fields.extend(access.into_field());
        return Ok(vec![SiteLocation { plan, chain: Vec::new(), on_reject: Vec::new() }]);
    }
    let mut found = Vec::new();
    let flat = flatten_server(root, context.ledger);
    let paths: HashSet<String> = flat.iter().map(|flat| flat.path.clone()).collect();
    for location in &flat {
        let at = location.node.directive.map_or(&server.at, |directive| &directive.at).clone();
        if let (Err(why), Some(directive)) = (is_usable_path(&location.path), location.node.directive) {
            leave_out(directive, &why, context.ledger);
            continue;
        }
        let before = found.len();
        let forwards = read_location(location, root, &at, server_name, context, &mut found)?;
        for site in &mut found[before..] {
            add_denied(&denied, site, location, context)?;
        }
        found.extend(forwards.then(|| add_slash(location, &paths, &at, context.ledger)).flatten());
    }
    leave_out_pages(root, context.ledger);
    Ok(found)
}

/// Named locations that only untranslated pages of errors lead to.
fn leave_out_pages(root: &LocationNode<'_>, ledger: &FindingLedger) {
    let named = root.children.iter().filter(|node| matches!(node.matching, LocationMatch::Named(_)));
    for directive in named.filter_map(|node| node.directive).filter(|directive| !ledger.is_told(directive)) {
        leave_out(directive, "only a page of errors leads to it, which is not translated", ledger);
    }
}

/// A location whose expression the gateway cannot match.
fn leave_out(directive: &Directive, why: &str, ledger: &FindingLedger) {
    if super::location_tree::subtree_guards(directive) {
        ledger.loses(directive, why);
    } else {
        ledger.skips(directive, why);
    }
    ledger.skip_all(directive.children(), why);
}

fn new_plan(path: String, at: &ImportedLine) -> LocationPlan {
    LocationPlan { path, source: Some(at.clone()), ..LocationPlan::default() }
}

/// Adds the location, and a second one for the methods that `limit_except` leaves out. Returns whether it forwards.
fn read_location<'d>(
    location: &FlatLocation<'_, 'd>,
    root: &LocationNode<'d>,
    at: &ImportedLine,
    server_name: &str,
    context: &mut SiteContext<'d, '_>,
    found: &mut Vec<SiteLocation<'d>>,
) -> Result<bool, ImportFault> {
    let scope = &location.node.scope;
    let mut plan = new_plan(location.path.clone(), at);
    if let Some(internal) = scope.own("internal") {
        context.ledger.exact(internal, "respond: 404");
        plan.fields.push(write_respond(404, "", ""));
        found.push(SiteLocation { plan, chain: Vec::new(), on_reject: Vec::new() });
        return Ok(false);
    }
    let is_root = location.node.directive.is_none();
    let answer = if is_root { None } else { read_return(scope, server_name, context.ledger)? };
    if let Some(action) = answer {
        note_unlimited(scope, context.ledger);
        plan.fields = vec![action];
        if is_closed_by_condition(root, scope) {
            plan.fields = close_fields(plan.fields);
        }
        plan.fields.extend(read_response_headers(scope, server_name, context.ledger));
        found.push(SiteLocation { plan, chain: Vec::new(), on_reject: Vec::new() });
        // nginx redirects to the slash of a location that would forward, whatever answers there.
        return Ok(scope.own("proxy_pass").is_some());
    }
    let LocationContent { fields, named, forwards } =
        read_content(location.node, root, server_name, &mut context.upstreams, context.ledger)?;
    let mut chain = Vec::new();
    context.limits.collect(&mut chain, scope, server_name)?;
    // The limits of a named location hold for requests that met none of their kind before.
    if let Some(named) = named {
        context.limits.collect(&mut chain, &named.scope, server_name)?;
    }
    let behind = context.limits.limits_behind(&chain);
    let (access, is_closed) = read_admission(location, named, root, behind, context)?;
    plan.fields = if is_closed { close_fields(fields) } else { fields };
    let status = chain.first().map(|limit| limit.status);
    let on_reject =
        read_error_pages(scope, root, status, server_name, &mut context.upstreams, context.ledger)?;
    plan.fields.extend(read_response_headers(scope, server_name, context.ledger));
    plan.fields.extend(access.into_field());
    plan.fields.extend(read_bandwidth(scope, context.ledger)?);
    let other_methods = read_limit_except(scope, &mut plan, behind, context.ledger)?;
    if let Some((access, methods)) = other_methods {
        let mut other = plan.clone();
        other.methods.clear();
        if let Some(access) = access {
            other.fields.retain(|field| field.name != "access");
            other.fields.extend(access.into_field());
        }
        plan.methods = methods;
        // Of equal expressions the first decides, so that of some methods comes before that of all.
        found.push(SiteLocation { plan, chain: chain.clone(), on_reject: on_reject.clone() });
        plan = other;
    }
    found.push(SiteLocation { plan, chain, on_reject });
    Ok(forwards)
}

/// Who may come in by address, and whether the location is closed because of other checks.
fn read_admission<'d>(
    location: &FlatLocation<'_, 'd>,
    named: Option<&LocationNode<'d>>,
    root: &LocationNode<'d>,
    behind: Option<LimitsBehind>,
    context: &mut SiteContext<'d, '_>,
) -> Result<(AccessPlan, bool), ImportFault> {
    let (scope, ledger) = (&location.node.scope, context.ledger);
    let mut is_closed = is_closed_by_condition(root, scope);
    let mut rules = scope.nearest_of(&["allow", "deny"]);
    // A request meets the rules of the named location, too.
    if let Some(named) = named {
        is_closed |= is_closed_by_condition(root, &named.scope);
        let inner = named.scope.nearest_of(&["allow", "deny"]);
        match (rules.first(), inner.first()) {
            (None, _) => rules = inner,
            (Some(outer), Some(inner)) if outer.id != inner.id => {
                tell_closed(
                    inner,
                    "the gateway judges one list of addresses, and the outer location has one",
                    ledger,
                );
                is_closed = true;
            }
            _ => {}
        }
    }
    let mut access = read_access(&rules, behind, ledger)?;
    if let Some(named) = named {
        let limited = context.limits.has_zones();
        access.deny.extend(read_conditions(&named.scope, context.variables, limited, ledger)?);
    }
    let check = find_check(scope).or_else(|| find_check(&named?.scope));
    let any = scope.value_of("satisfy").is_some_and(|directive| directive.arg(0) == "any");
    match check {
        Some((check, why)) if any && access.allow.is_some() => {
            ledger.loses(check, format!("only the addresses of `allow` come in: {why}"));
        }
        Some((check, why)) => {
            tell_closed(check, why, ledger);
            is_closed = true;
        }
        None => {}
    }
    Ok((access, is_closed))
}

/// `return` comes before limits and access rules, so those of its level have no effect in nginx.
fn note_unlimited(scope: &Scope<'_>, ledger: &FindingLedger) {
    let names = [
        "limit_req",
        "limit_conn",
        "allow",
        "deny",
        "limit_rate",
        "proxy_pass",
        "auth_basic",
        "auth_request",
    ];
    for directive in scope.own_level().iter().filter(|directive| names.contains(&directive.name.as_str())) {
        ledger.exact(directive, "it has no effect in nginx either: `return` comes first");
    }
}

/// Adds the networks that conditions of the server and of the location deny.
fn add_denied(
    denied: &[ipnet::IpNet],
    site: &mut SiteLocation<'_>,
    location: &FlatLocation<'_, '_>,
    context: &SiteContext<'_, '_>,
) -> Result<(), ImportFault> {
    let mut all = denied.to_vec();
    if location.node.directive.is_some() {
        let limited = context.limits.has_zones();
        all.extend(read_conditions(&location.node.scope, context.variables, limited, context.ledger)?);
    }
    if all.is_empty() {
        return Ok(());
    }
    let deny =
        AccessPlan { allow: None, deny: all }.into_field().map(|field| field.value).unwrap_or_default();
    match site.plan.fields.iter_mut().find(|field| field.name == "access") {
        None => site.plan.fields.push(PlannedField::new("access", deny, "")),
        Some(field) if !field.value.contains("deny:") => {
            field.value =
                format!("{}, {}", field.value.trim_end_matches(" }"), deny.trim_start_matches("{ "));
        }
        Some(field) => {
            let inner = deny.trim_start_matches("{ deny: ").trim_end_matches(" }").trim_matches(['[', ']']);
            let (start, list) = field.value.split_once("deny: ").unwrap_or(("{ ", ""));
            let list = list.trim_end_matches(" }").trim_matches(['[', ']']);
            field.value = format!("{start}deny: [{list}, {inner}] }}");
        }
    }
    Ok(())
}

/// nginx redirects the path of a forwarding prefix without its slash.
fn add_slash<'d>(
    location: &FlatLocation<'_, 'd>,
    paths: &HashSet<String>,
    at: &ImportedLine,
    ledger: &FindingLedger,
) -> Option<SiteLocation<'d>> {
    let LocationMatch::Prefix { path, .. } = &location.node.matching else { return None };
    let bare = path.strip_suffix('/').filter(|bare| !bare.is_empty())?;
    location.node.directive?;
    let taken = [format!("= {bare}"), bare.to_owned(), format!("^~ {bare}")];
    if location.path.starts_with('~') || taken.iter().any(|path| paths.contains(path)) {
        return None;
    }
    let mut plan = new_plan(format!("= {bare}"), at);
    plan.fields.push(slash_redirect(path));
    ledger.differs_at(
        at,
        &format!("location {path}"),
        "the redirect to the path with its slash drops the query",
    );
    Some(SiteLocation { plan, chain: Vec::new(), on_reject: Vec::new() })
}

/// `limit_rate` and `limit_rate_after`.
fn read_bandwidth(scope: &Scope<'_>, ledger: &FindingLedger) -> Result<Option<PlannedField>, ImportFault> {
    let Some(directive) = scope.value_of("limit_rate") else { return Ok(None) };
    if directive.arg(0).contains('$') {
        ledger.loses(directive, "the pace depends on a variable");
        return Ok(None);
    }
    let bytes = size_of(directive)?;
    if bytes == 0 {
        ledger.exact(directive, "no pace");
        return Ok(None);
    }
    let mut fields = vec![("rate".to_owned(), format!("{}/s", write_size(bytes)))];
    if let Some(after) = scope.value_of("limit_rate_after").filter(|after| !after.arg(0).contains('$')) {
        let burst = size_of(after)?.max(bytes / 10).max(1024);
        fields.push(("burst".to_owned(), write_size(burst)));
        ledger.differs(after, "bandwidth: { burst }: once per client, not per response");
    }
    ledger.differs(directive, "bandwidth: the pace of all responses to a client together, not of each one");
    Ok(Some(PlannedField::new("bandwidth", flow_map(&fields), "")))
}

/// The rules for all other methods than those named; `None`: those of the location.
type OtherMethods = (Option<AccessPlan>, Vec<String>);

/// `limit_except METHODS { allow …; deny …; }`: the access rules of all other methods.
fn read_limit_except(
    scope: &Scope<'_>,
    plan: &mut LocationPlan,
    behind: Option<LimitsBehind>,
    ledger: &FindingLedger,
) -> Result<Option<OtherMethods>, ImportFault> {
    let Some(directive) = scope.own("limit_except") else { return Ok(None) };
    let methods: Vec<String> = directive.args.iter().map(|method| method.to_ascii_uppercase()).collect();
    let known = methods.iter().all(|method| crate::config::value::methods::parse_method(method).is_ok());
    let rules: Vec<&Directive> = directive.children().iter().collect();
    if methods.is_empty() || !known {
        return Err(ImportFault::new(&directive.at, "`limit_except` takes names of methods"));
    }
    plan.methods.clear();
    if rules.iter().any(|rule| !matches!(rule.name.as_str(), "allow" | "deny")) {
        tell_closed(
            directive,
            "for all other methods; only `allow` and `deny` inside are translated",
            ledger,
        );
        visit_all(directive.children(), &mut |inner| {
            ledger.skips(inner, "its `limit_except` is not translated")
        });
        return Ok(Some((Some(AccessPlan::nobody()), methods)));
    }
    let access = read_access(&rules, behind, ledger)?;
    ledger.exact(directive, "a location for these methods, and one for all others");
    // Without rules inside, those of the location hold.
    Ok(Some(((!rules.is_empty()).then_some(access), methods)))
}

/// Writes the chain and `on_reject` of a location.
pub(super) fn finish_location(
    site: SiteLocation<'_>,
    limits: &PlannedLimits,
    ledger: &FindingLedger,
) -> LocationPlan {
    let SiteLocation { mut plan, chain, mut on_reject } = site;
    let (entries, status) = limits.write_chain(&chain, ledger);
    if !entries.is_empty() {
        plan.fields.insert(1.min(plan.fields.len()), PlannedField::new("limits", one_or_list(&entries), ""));
    }
    if let Some(status) = status.filter(|_| !on_reject.iter().any(|field| field.name == "status")) {
        on_reject.insert(0, PlannedField::new("status", status.to_string(), ""));
    }
    if !on_reject.is_empty() {
        let fields: Vec<(String, String)> =
            on_reject.into_iter().map(|field| (field.name, field.value)).collect();
        plan.fields.push(PlannedField::new("on_reject", flow_map(&fields), ""));
    }
    plan
}
