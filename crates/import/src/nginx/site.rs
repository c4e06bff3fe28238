//! The locations of one server as those of gateway.yaml.

use std::collections::HashSet;

use super::access::{AccessPlan, LimitsBehind, read_access};
use super::auth::{ASKED, AuthFields, read_auth, write_auth};
use super::closed::widen_path;
use super::content::{SiteContext, find_pass, read_content};
use super::error_pages::read_error_pages;
use super::flatten::{FlatLocation, FlatRole, flatten_server};
use super::globals::read_body_size;
use super::headers::read_response_headers;
use super::known::UNKNOWN;
use super::limits::{LimitBook, LimitUse};
use super::location_tree::{LocationNode, MatchKind, only_forwards};
use super::parser::{Directive, visit_all};
use super::responses::{write_redirect, write_respond};
use super::scope::{Scope, skip_all};
use super::steps::{LevelSteps, read_steps};
use super::values::size_of;
use crate::ImportFault;
use crate::gateway_file::{LocationPlan, PlannedField, close_fields};
use crate::yaml_text::{one_or_list, quote};
use sluicegate_model::value::byte_rate::show_size;

/// A location before its chain is written: limits get their names when all uses are known.
#[derive(Clone)]
pub(super) struct SiteLocation<'d> {
    pub plan: LocationPlan,
    pub chain: Vec<LimitUse<'d>>,
    /// The fields of `auth`; empty = no service is asked.
    pub auth: AuthFields,
    pub on_reject: Vec<PlannedField>,
}

impl SiteLocation<'_> {
    /// Answers by itself, whatever limits and addresses are there; `steps` come before.
    fn answering(path: String, source: &Directive, answer: PlannedField, steps: &LevelSteps) -> Self {
        let mut fields = if steps.is_closed { close_fields(vec![answer]) } else { vec![answer] };
        fields.extend(AccessPlan { allow: None, deny: steps.denied.clone() }.into_field());
        SiteLocation::new(path, source, fields)
    }

    /// Stands for a location that is left out and may refuse.
    fn closed(path: String, source: &Directive) -> Self {
        SiteLocation::new(path, source, close_fields(Vec::new()))
    }

    fn new(path: String, source: &Directive, fields: Vec<PlannedField>) -> Self {
        let plan = LocationPlan { path, fields, source: Some(source.at.clone()), ..LocationPlan::default() };
        SiteLocation { plan, chain: Vec::new(), auth: Vec::new(), on_reject: Vec::new() }
    }
}

/// The locations of a server.
pub(super) fn read_site<'d>(context: &mut SiteContext<'_, 'd>) -> Result<Vec<SiteLocation<'d>>, ImportFault> {
    let (server, root) = (context.server, context.root);
    let mut steps = read_steps(root, context)?;
    if let Some(answer) = steps.answer.take() {
        // It comes before locations are searched.
        let why = "the `return` of the server comes first";
        for directive in root.children.iter().filter_map(|node| node.directive) {
            visit_all(std::slice::from_ref(directive), &mut |inner| inner.exact(why));
        }
        let site = SiteLocation::answering("/".to_owned(), server, answer, &steps);
        read_pages_of_answer(&root.scope, context)?;
        return Ok(vec![site]);
    }
    let mut found = Vec::new();
    let flat = flatten_server(root);
    let mut closed = HashSet::new();
    for location in &flat {
        let source = location.node.directive.unwrap_or(server);
        if let (Err(why), Some(directive)) = (location.check_path(), location.node.directive) {
            leave_out(directive, &why);
            let path = widen_path(&location.node.matching);
            if !location.node.only_forwards && closed.insert(path.clone()) {
                found.push(SiteLocation::closed(path, source));
            }
            continue;
        }
        let first = found.len();
        match location.role {
            FlatRole::Whole => read_location(location, source, &steps, context, &mut found)?,
            FlatRole::Closed => found.push(SiteLocation::closed(location.path.clone(), source)),
            // nginx redirects the path of a forwarding location without its slash.
            FlatRole::Slash => {
                let path = location.node.static_path().unwrap_or_default();
                let answer = match location.node.scope.value_of("internal") {
                    Some(_) => write_respond(404, "", ""),
                    None => {
                        let says = "the redirect to the path with its slash drops the query";
                        source.differs_as(&format!("location {path}"), says);
                        write_redirect(&quote(path), 301)
                    }
                };
                found.push(SiteLocation::answering(location.path.clone(), source, answer, &steps));
            }
        }
        let max_body = read_body_size(&location.node.scope)?;
        found.iter_mut().skip(first).for_each(|site| site.plan.fields.push(max_body.clone()));
    }
    let named = root.children.iter().filter(|node| node.matching.kind == MatchKind::Named);
    for directive in named.filter_map(|node| node.directive).filter(|directive| !directive.is_told()) {
        leave_out(directive, "only a page of errors leads to it, which is not translated");
    }
    Ok(found)
}

/// Leaves out a location that the gateway cannot match alone, so that other limits may hold for its requests.
fn leave_out(directive: &Directive, why: &str) {
    directive.loses(why);
    skip_all(directive.children(), why);
}

/// Leaves out the locations inside an expression; returns whether one of them may refuse.
fn leave_out_inner(node: &LocationNode<'_>) -> bool {
    let is_regex = node.matching.is_regex();
    let inside = node.scope.own_level().iter().filter(|inner| is_regex && inner.name == "location");
    let mut is_closed = false;
    for inner in inside {
        let why =
            "a location inside a regular expression is not translated; its requests get the outer location";
        if !only_forwards(inner.children()) {
            inner.closes(why);
            is_closed = true;
        } else {
            inner.loses(why);
        }
        skip_all(inner.children(), why);
    }
    is_closed
}

/// Adds the location, and a second one for the methods that `limit_except` leaves out. `server` are the steps before.
fn read_location<'d>(
    location: &FlatLocation<'d, 'd>,
    source: &Directive,
    server: &LevelSteps,
    context: &mut SiteContext<'_, 'd>,
    found: &mut Vec<SiteLocation<'d>>,
) -> Result<(), ImportFault> {
    let scope = &location.node.scope;
    let path = location.path.clone();
    if let Some(internal) = scope.value_of("internal") {
        internal.exact("respond: 404");
        read_error_pages(scope, None, &[404], context)?;
        found.push(SiteLocation::answering(path, source, write_respond(404, "", ""), server));
        return Ok(());
    }
    let mut steps = match location.node.directive {
        Some(_) => read_steps(location.node, context)?,
        None => LevelSteps::default(),
    };
    steps.denied.extend(&server.denied);
    steps.is_closed |= server.is_closed | leave_out_inner(location.node);
    let answer = steps.answer.take();
    let answers = answer.is_some();
    let (mut site, behind) = match answer {
        Some(answer) => {
            note_unlimited(scope);
            let mut site = SiteLocation::answering(path, source, answer, &steps);
            site.plan.fields.extend(read_response_headers(scope, context.server_name));
            read_pages_of_answer(scope, context)?;
            (site, None)
        }
        None => read_handler(location, source, steps, context)?,
    };
    if let Some((access, methods)) = read_limit_except(scope, answers, behind)? {
        let mut other = site.clone();
        if let Some(mut access) = access {
            // Conditions of the location do not hold for these methods.
            access.deny.extend(&server.denied);
            other.plan.fields.retain(|field| field.name != "access");
            other.plan.fields.extend(access.into_field());
        }
        site.plan.methods = methods;
        // Of equal expressions the first decides, so that of some methods comes before that of all.
        found.push(std::mem::replace(&mut site, other));
    }
    found.push(site);
    Ok(())
}

/// Reads pages of errors for the answer of a `return`, for which they hold too.
fn read_pages_of_answer<'d>(scope: &Scope<'d>, context: &mut SiteContext<'_, 'd>) -> Result<(), ImportFault> {
    let status = scope.own("return").and_then(|answer| answer.arg(0).parse().ok());
    read_error_pages(scope, None, status.as_slice(), context).map(|_| ())
}

/// A location that does not answer by itself, and its limits.
fn read_handler<'d>(
    location: &FlatLocation<'d, 'd>,
    source: &Directive,
    steps: LevelSteps,
    context: &mut SiteContext<'_, 'd>,
) -> Result<(SiteLocation<'d>, Option<LimitsBehind>), ImportFault> {
    let scope = &location.node.scope;
    let (mut fields, named) = read_content(location.node, context)?;
    // A named location is the last one of the request.
    let last = named.map_or(scope, |named| &named.scope);
    let mut chain = Vec::new();
    context.limits.collect(&mut chain, scope, context.server_name)?;
    // The limits of a named location hold for requests that met none of their kind before.
    if named.is_some() {
        context.limits.collect(&mut chain, last, context.server_name)?;
    }
    let behind = context.limits.limits_behind(&chain);
    let mut access = AccessPlan { allow: None, deny: steps.denied };
    let (mut is_closed, auth) = read_admission(scope, named, behind, &mut access, context)?;
    is_closed |= steps.is_closed;
    if is_closed {
        fields = close_fields(fields);
    }
    let mut refusals: Vec<u16> = chain.iter().map(|limit| limit.status).chain([413]).collect();
    refusals.extend((find_pass(last).is_none()).then_some(404));
    let may_deny = is_closed || access != AccessPlan::default() || scope.own("limit_except").is_some();
    refusals.extend(may_deny.then_some(403));
    let status = chain.first().map(|limit| limit.status);
    let on_reject = read_error_pages(scope, status, &refusals, context)?;
    fields.extend(read_response_headers(last, context.server_name));
    fields.extend(access.into_field());
    fields.extend(read_bandwidth(last)?);
    let site = SiteLocation::new(location.path.clone(), source, fields);
    let auth = if is_closed { Vec::new() } else { auth };
    Ok((SiteLocation { chain, auth, on_reject, ..site }, behind))
}

/// Adds the allowed addresses; returns true if the location is closed because of other checks, and the service that
/// decides.
fn read_admission<'d>(
    scope: &Scope<'d>,
    named: Option<&LocationNode<'d>>,
    behind: Option<LimitsBehind>,
    access: &mut AccessPlan,
    context: &mut SiteContext<'_, 'd>,
) -> Result<(bool, AuthFields), ImportFault> {
    let (mut is_closed, mut auth) = (false, Vec::new());
    let mut rules = scope.nearest_of(&["allow", "deny"]);
    // A request meets the rules of the named location, too.
    if let Some(named) = named {
        let steps = read_steps(named, context)?;
        access.deny.extend(steps.denied);
        is_closed |= steps.is_closed;
        let inner = named.scope.nearest_of(&["allow", "deny"]);
        match (rules.first(), inner.first()) {
            (None, _) => rules = inner,
            (Some(outer), Some(inner)) if outer.id != inner.id => {
                inner.closes("the gateway judges one list of addresses, and the outer location has one");
                is_closed = true;
            }
            _ => {}
        }
    }
    let by_rules = read_access(&rules, behind)?;
    access.deny.extend(by_rules.deny);
    access.allow = by_rules.allow;
    let any = scope.value_of("satisfy").is_some_and(|directive| directive.arg(0) == "any");
    let scopes = [Some(scope), named.map(|named| &named.scope)];
    for scope in scopes.into_iter().flatten() {
        for (check, why) in scope.checks() {
            // The others are made whatever the addresses are.
            let is_either = check.name.starts_with("auth_") && why != UNKNOWN;
            if any && named.is_none() && is_either && access.allow.is_some() {
                check.loses(format!("only the addresses of `allow` come in: {why}"));
                continue;
            }
            let asked = match check.name == "auth_request" && named.is_none() && auth.is_empty() {
                true => read_auth(check, scope, context)?,
                false => Err(why.to_owned()),
            };
            match asked {
                Ok(fields) => {
                    check.differs(ASKED);
                    auth = fields;
                }
                Err(why) => {
                    check.closes(&why);
                    is_closed = true;
                }
            }
        }
        if let Some(tried) = scope.own("try_files").filter(|_| find_pass(scope).is_some()) {
            tried.closes("nginx looks for files before it forwards");
            is_closed = true;
        }
    }
    Ok((is_closed, auth))
}

/// `return` comes before limits and access rules, so those of its level have no effect in nginx.
fn note_unlimited(scope: &Scope<'_>) {
    const WITHOUT_EFFECT: &str =
        "limit_req limit_conn allow deny limit_rate proxy_pass auth_basic auth_request";
    let is_named = |directive: &&Directive| WITHOUT_EFFECT.split(' ').any(|name| name == directive.name);
    for directive in scope.own_level().iter().filter(is_named) {
        directive.exact("it has no effect in nginx either: `return` comes first");
    }
}

/// `limit_rate` and `limit_rate_after`.
fn read_bandwidth(scope: &Scope<'_>) -> Result<Option<PlannedField>, ImportFault> {
    let Some(directive) = scope.value_of("limit_rate") else { return Ok(None) };
    if directive.arg(0).contains('$') {
        directive.loses("the pace depends on a variable");
        return Ok(None);
    }
    let bytes = size_of(directive)?;
    if bytes == 0 {
        directive.exact("no pace");
        return Ok(None);
    }
    let mut fields = vec![("rate", format!("{}/s", show_size(bytes)))];
    if let Some(after) = scope.value_of("limit_rate_after").filter(|after| !after.arg(0).contains('$')) {
        let burst = size_of(after)?.max(bytes / 10).max(1024);
        fields.push(("burst", show_size(burst)));
        after.differs("bandwidth: { burst }: once per client, not per response");
    }
    directive.differs("bandwidth: the pace of all responses to a client together, not of each one");
    Ok(PlannedField::map("bandwidth", &fields))
}

/// The rules for all other methods than those named; `None`: those of the location.
type OtherMethods = (Option<AccessPlan>, Vec<String>);

/// `limit_except METHODS { allow …; deny …; }`: the access rules of all other methods.
fn read_limit_except(
    scope: &Scope<'_>,
    answers: bool,
    behind: Option<LimitsBehind>,
) -> Result<Option<OtherMethods>, ImportFault> {
    let Some(directive) = scope.own("limit_except") else { return Ok(None) };
    let methods: Vec<String> = directive.args.iter().map(|method| method.to_ascii_uppercase()).collect();
    let known = methods.iter().all(|method| sluicegate_model::value::methods::parse_method(method).is_ok());
    let rules: Vec<&Directive> = directive.children().iter().collect();
    if methods.is_empty() || !known {
        return Err(directive.fault("`limit_except` takes names of methods"));
    }
    if answers
        || scope.checks().next().is_some()
        || rules.iter().any(|rule| !matches!(rule.name.as_str(), "allow" | "deny"))
    {
        let why = "for all other methods; it is translated with `allow` and `deny` alone, without `return` and checks";
        directive.closes(why);
        visit_all(directive.children(), &mut |inner| inner.skips("its `limit_except` is not translated"));
        return Ok(Some((Some(AccessPlan::nobody()), methods)));
    }
    let access = read_access(&rules, behind)?;
    directive.exact("a location for these methods, and one for all others");
    // Without rules inside, those of the location hold.
    Ok(Some(((!rules.is_empty()).then_some(access), methods)))
}

/// Writes the chain and `on_reject` of a location.
pub(super) fn finish_location(site: SiteLocation<'_>, limits: &LimitBook<'_>) -> LocationPlan {
    let SiteLocation { mut plan, mut chain, auth, mut on_reject } = site;
    let (entries, status) = limits.write_chain(&chain);
    // nginx judges rates before it asks.
    chain.retain(LimitUse::is_rate);
    plan.fields.extend(write_auth(auth, &limits.write_chain(&chain).0));
    if !entries.is_empty() {
        plan.fields.insert(1.min(plan.fields.len()), PlannedField::plain("limits", one_or_list(&entries)));
    }
    if let Some(status) = status.filter(|_| !on_reject.iter().any(|field| field.name == "status")) {
        on_reject.insert(0, PlannedField::plain("status", status.to_string()));
    }
    let fields: Vec<_> = on_reject.iter().map(|field| (&field.name, &field.value)).collect();
    plan.fields.extend(PlannedField::map("on_reject", &fields));
    plan
}
