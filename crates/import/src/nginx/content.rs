//! The action of a location on a request that may pass: forward it, or answer it.

use super::headers::{is_tunnel, read_request_headers};
use super::known::is_other_handler;
use super::limits::LimitBook;
use super::location_tree::{LocationNode, MatchKind};
use super::parser::Directive;
use super::path_edits::{replace_path, translate_rewrite};
use super::responses::write_respond;
use super::scope::Scope;
use super::upstreams::{ProxyTarget, UpstreamBook};
use super::variables::VariableTable;
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::quote;

/// A server while its locations are read, and the parts of the configuration that all servers share.
pub(super) struct SiteContext<'c, 'd> {
    pub server: &'d Directive,
    /// Its primary name.
    pub server_name: &'d str,
    pub root: &'d LocationNode<'d>,
    pub variables: &'d VariableTable<'d>,
    pub limits: &'c mut LimitBook<'d>,
    pub upstreams: &'c mut UpstreamBook<'d>,
}

/// The fields of a location's action, and the named location that `try_files` leads to, which gives the limits if the
/// first one has none.
type LocationContent<'d> = (Vec<PlannedField>, Option<&'d LocationNode<'d>>);

/// The action of a location, `return` and `internal` aside.
pub(super) fn read_content<'d>(
    node: &'d LocationNode<'d>,
    context: &mut SiteContext<'_, 'd>,
) -> Result<LocationContent<'d>, ImportFault> {
    let mut handler = (node, None);
    if find_pass(&node.scope).is_none()
        && let Some(tried) = node.scope.own("try_files")
        && let Some(named) = tried.args.last().filter(|name| name.starts_with('@'))
        && let Some(named) =
            context.root.find_fixed(named).filter(|named| is_plain_try(&node.scope, &named.scope))
    {
        tried.differs("files are not served: every request goes to the named location");
        if let Some(directive) = named.directive {
            directive.exact("part of the locations that lead to it");
        }
        handler = (named, Some(named));
    }
    let (source, named) = handler;
    let Some(pass) = find_pass(&source.scope) else {
        return Ok((vec![answer_without_files(node)], None));
    };
    let target = match ProxyTarget::parse(pass.arg(0), &source.scope) {
        Ok(target) => target,
        Err(why) => {
            pass.loses(format!("{why}; the answer is 502"));
            return Ok((vec![write_respond(502, "", "")], named));
        }
    };
    let Some(upstream) = context.upstreams.resolve(&target, &source.scope, pass, is_tunnel(&source.scope))?
    else {
        pass.exact("all servers are down: 502");
        return Ok((vec![write_respond(502, "", "")], named));
    };
    let mut fields = vec![PlannedField::plain("upstream", quote(&upstream))];
    fields.extend(read_path_edits(node, pass, &target, &source.scope));
    fields.extend(read_request_headers(&source.scope, &target, context.server_name));
    Ok((fields, named))
}

pub(super) fn find_pass<'d>(scope: &Scope<'d>) -> Option<&'d Directive> {
    scope.own("proxy_pass").or_else(|| scope.own("grpc_pass"))
}

/// True if the steps, limits and pages of a location and of the named one behind it are those of one location.
fn is_plain_try(outer: &Scope<'_>, named: &Scope<'_>) -> bool {
    let has = |scope: &Scope<'_>, names: &[&str]| names.iter().any(|name| scope.own(name).is_some());
    let is_twice = |name| has(named, &[name]) && !outer.nearest(name).is_empty();
    !has(outer, &["set", "set_by_lua", "set_by_lua_block", "rewrite", "limit_except", "error_page"])
        && !has(named, &["return", "rewrite", "limit_except", "error_page", "client_max_body_size"])
        && !["limit_req", "limit_conn"].into_iter().any(is_twice)
}

/// Where nginx would look for a file or ask something the gateway does not speak to.
fn answer_without_files(node: &LocationNode<'_>) -> PlannedField {
    let other = node.scope.own_level().iter().find(|directive| is_other_handler(&directive.name));
    if let Some(directive) = other {
        directive.loses("the gateway forwards to HTTP servers only; the answer is 501");
        return write_respond(501, "", "");
    }
    let own = ["try_files", "alias"].iter().find_map(|name| node.scope.own(name));
    let served = own.or_else(|| node.scope.value_of("root")).or(node.directive);
    let rules = node.scope.nearest_of(&["allow", "deny"]);
    match served {
        Some(directive) if rules.first().is_some_and(|rule| rule.text() == "deny all") => {
            directive.exact("nobody may come in");
        }
        Some(directive) => directive.loses("files are not served; the answer is 404"),
        None => {}
    }
    write_respond(404, "", "")
}

/// The fields for the URI of `proxy_pass`, or for a `rewrite … break`.
fn read_path_edits(
    node: &LocationNode<'_>,
    pass: &Directive,
    target: &ProxyTarget,
    scope: &Scope<'_>,
) -> Vec<PlannedField> {
    let Some(uri) = &target.uri else {
        pass.exact("upstream");
        return read_rewrite(node, scope).into_iter().collect();
    };
    let path = node.static_path().unwrap_or_default();
    let is_exact = node.matching.kind == MatchKind::Exact;
    // With variables, nginx sends this URI for every path, without the query.
    let is_constant = !path.is_empty() && !pass.arg(0).contains('$');
    let fields = match is_constant {
        true if uri == path => Ok(Vec::new()),
        true => replace_path(path, is_exact, uri),
        false => Err(format!("the gateway puts no `{uri}` in the place of `{path}`")),
    };
    match &fields {
        Ok(_) if !is_exact && uri.ends_with('/') && !path.ends_with('/') => {
            pass.differs("double slashes become one, and a path with `..` gets 400");
        }
        Ok(_) => pass.exact("upstream"),
        Err(why) => pass.loses(format!("the path is forwarded unchanged: {why}")),
    }
    fields.unwrap_or_default()
}

/// The field for a `rewrite … break` that is the only step of its kind.
fn read_rewrite(node: &LocationNode<'_>, scope: &Scope<'_>) -> Option<PlannedField> {
    let is_step = |step: &&Directive| matches!(step.name.as_str(), "rewrite" | "break");
    let mut steps = scope.own_level().iter().filter(is_step);
    let (first, second) = (steps.next()?, steps.next());
    if second.is_some() || first.arg(2) != "break" {
        return None;
    }
    let (from, to) = (first.arg(0), first.arg(1));
    let folder =
        node.static_path().filter(|_| node.matching.is_prefix()).and_then(|path| path.strip_suffix('/'));
    let takes_rest = |folder: &&str| {
        let known = [format!("^{folder}/(.*)$"), format!("^{folder}/(.*)")];
        !folder.is_empty() && to == "/$1" && known.iter().any(|known| known == from)
    };
    let field = match folder.filter(takes_rest) {
        Some(folder) => Ok(PlannedField::plain("strip", quote(folder))),
        None => translate_rewrite(from, to),
    };
    match &field {
        Ok(field) => first.exact(field.name.as_str()),
        Err(why) => first.loses(format!("the path is forwarded unchanged: {why}")),
    }
    field.ok()
}
