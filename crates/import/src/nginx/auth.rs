//! `auth_request`: a service that decides, written as `auth` of a location.

use super::content::SiteContext;
use super::headers::is_copied;
use super::known::find_harmless;
use super::location_tree::{LocationNode, MatchKind};
use super::parser::Directive;
use super::scope::Scope;
use super::upstreams::ProxyTarget;
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{one_or_list, quote, quoted_list};

/// The difference between `auth` and a check that becomes it.
pub(crate) const ASKED: &str = "auth: the service gets the cookies and Authorization, name others in `send`; its \
                                answers 401 and 403 go to the client as they are, and so do redirects";

/// Fields of a question that the gateway writes as nginx does with these values.
const TOLD: &[(&str, &[&str])] = &[
    ("x-original-uri", &["$request_uri"]),
    ("x-original-method", &["$request_method"]),
    ("x-original-url", &["$scheme://$http_host$request_uri", "$scheme://$host$request_uri"]),
    ("x-forwarded-uri", &["$request_uri"]),
    ("x-forwarded-method", &["$request_method"]),
    ("x-forwarded-host", &["$host", "$http_host"]),
    ("x-forwarded-proto", &["$scheme"]),
    ("x-forwarded-for", &["$remote_addr", "$proxy_add_x_forwarded_for"]),
    ("x-real-ip", &["$remote_addr"]),
];

/// The fields of `auth`, in order.
pub(crate) type AuthFields = Vec<(&'static str, String)>;

/// The fields of `auth` for the check of a location.
///
/// # Errors
/// The outer one is a fault of the file; the inner one says why the question cannot be written, and closes the
/// location.
pub(super) fn read_auth<'d>(
    check: &'d Directive,
    scope: &Scope<'d>,
    context: &mut SiteContext<'_, 'd>,
) -> Result<Result<AuthFields, String>, ImportFault> {
    let planned = find_asked(check.arg(0), context.root).and_then(|asked| {
        let pass = find_pass_of(asked)?;
        let target = ProxyTarget::parse(pass.arg(0), &asked.scope)?;
        Ok((&asked.scope, pass, target, sent_headers(&asked.scope)?))
    });
    let (asked, pass, target, send) = match planned {
        Ok(plan) => plan,
        Err(why) => return Ok(Err(why)),
    };
    let Some(upstream) = context.upstreams.resolve(&target, asked, pass, false)? else {
        return Ok(Err("all servers of the service are down".to_owned()));
    };
    let path = target.uri.as_deref().unwrap_or(check.arg(0));
    let mut fields = vec![("upstream", quote(&upstream)), ("path", quote(path))];
    if send != ["cookie", "authorization"] {
        fields.push(("send", quoted_list(&send)));
    }
    let copied: Vec<&Directive> =
        scope.nearest("proxy_set_header").into_iter().filter(|set| is_copied(scope, set)).collect();
    if !copied.is_empty() {
        let names: Vec<String> = copied.iter().map(|set| set.arg(0).to_owned()).collect();
        fields.push(("copy", quoted_list(&names)));
    }
    for set in scope.nearest("auth_request_set") {
        if copied.iter().any(|header| header.arg(1) == set.arg(0)) {
            set.exact("auth: { copy }");
        }
    }
    Ok(Ok(fields))
}

/// `auth` of a location, with the rates that are judged before the service is asked.
pub(crate) fn write_auth(mut auth: AuthFields, rates: &[String]) -> Option<PlannedField> {
    if !auth.is_empty() && !rates.is_empty() {
        auth.push(("limits", one_or_list(rates)));
    }
    PlannedField::map("auth", &auth)
}

/// The location that nginx asks.
fn find_asked<'d>(path: &str, root: &'d LocationNode<'d>) -> Result<&'d LocationNode<'d>, String> {
    if path.contains(['$', '?']) {
        return Err("its path has variables or a query".to_owned());
    }
    let steps = |step: &&Directive| matches!(step.name.as_str(), "if" | "rewrite" | "return");
    if root.scope.own_level().iter().any(|step| steps(&step)) {
        return Err("the server has steps that hold for the question, too".to_owned());
    }
    let is_prefix = |node: &&LocationNode<'d>| {
        let is_final = node.matching.kind == MatchKind::FinalPrefix || root.regexes().next().is_none();
        node.matching.is_prefix() && is_final && node.matching.path == path
    };
    let found = root.find_fixed(path).or_else(|| root.children.iter().find(is_prefix));
    found.ok_or_else(|| format!("no location is `= {path}`"))
}

/// The `proxy_pass` of a location that does nothing else.
fn find_pass_of<'d>(asked: &LocationNode<'d>) -> Result<&'d Directive, String> {
    for inner in asked.scope.own_level() {
        let is_plain = match inner.name.as_str() {
            "proxy_method" | "proxy_pass_request_headers" => false,
            "proxy_pass"
            | "internal"
            | "proxy_set_header"
            | "proxy_connect_timeout"
            | "proxy_read_timeout"
            | "proxy_send_timeout" => true,
            name => name.starts_with("proxy_ssl_") || find_harmless(name).is_some(),
        };
        if !is_plain {
            return Err(format!("the location that it asks has `{}`", inner.name));
        }
    }
    asked.scope.own("proxy_pass").ok_or_else(|| "the location that it asks has no `proxy_pass`".to_owned())
}

/// Headers of the request that go along with the question.
fn sent_headers(asked: &Scope<'_>) -> Result<Vec<String>, String> {
    let mut sent = vec!["cookie".to_owned(), "authorization".to_owned()];
    for directive in asked.nearest("proxy_set_header") {
        let (name, value) = (directive.arg(0).to_ascii_lowercase(), directive.arg(1));
        sent.retain(|known| *known != name);
        let is_own = value.to_ascii_lowercase() == format!("$http_{}", name.replace('-', "_"));
        let is_told = TOLD.iter().any(|(known, values)| *known == name && values.contains(&value));
        if is_own && !is_told {
            sent.push(name);
        } else if !is_told
            && !value.is_empty()
            && !matches!(name.as_str(), "host" | "connection" | "content-length")
        {
            return Err(format!("the service is told `{name}`, which the gateway does not send"));
        }
    }
    Ok(sent)
}
