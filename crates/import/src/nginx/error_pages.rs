//! `error_page` for the statuses of limits, where its target is an answer or a proxied location.

use super::closed::leads_to_refusal;
use super::content::{SiteContext, read_content};
use super::location_tree::LocationNode;
use super::parser::{Directive, visit_all};
use super::pieces::translate_text;
use super::scope::{Scope, is_guard};
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, quote, quote_template};

/// The fields of `on_reject` for a location with limits that reject with `status`; other pages get findings. `refusals`
/// are the statuses with which the gateway refuses requests there.
pub(super) fn read_error_pages<'d>(
    scope: &Scope<'d>,
    status: Option<u16>,
    refusals: &[u16],
    context: &mut SiteContext<'_, 'd>,
) -> Result<Vec<PlannedField>, ImportFault> {
    let root = context.root;
    let mut fields = Vec::new();
    for directive in scope.nearest("error_page") {
        let (codes, page_status, target) = read_words(directive)?;
        let page = root.find_fixed(target);
        let is_plain = || page.map_or_else(|| !leads_to_refusal(target, root), is_plain);
        let limit = status.filter(|status| fields.is_empty() && codes.contains(status) && is_plain());
        // nginx judges limits first, so that a page may serve requests that the gateway denies.
        let may_serve = page_status != PageStatus::OfPage || !refusals.contains(&403);
        let read = match page.zip(limit).filter(|_| may_serve) {
            Some((page, status)) => read_page(page, status, page_status, context)?,
            None => Vec::new(),
        };
        let is_any = scope.is_on("proxy_intercept_errors");
        let is_read = |code: u16| !read.is_empty() && limit == Some(code);
        let keeps_status = page_status == PageStatus::Kept && target.starts_with(['/', '@']);
        let is_left = |code: &u16| (is_any || !keeps_status || refusals.contains(code)) && !is_read(*code);
        match codes.iter().any(is_left) {
            true if !keeps_status || !is_plain() => directive.loses(OTHERWISE),
            _ if read.is_empty() => directive.skips("the body of errors is the gateway's own"),
            _ => directive.exact("on_reject"),
        }
        if let Some(named) =
            page.and_then(|page| page.directive).filter(|_| target.starts_with('@') && is_plain())
        {
            visit_all(std::slice::from_ref(named), &mut |inner| match read.is_empty() {
                true => inner.skips("a page of errors"),
                false => inner.exact("a page of errors"),
            });
        }
        fields.extend(read);
    }
    Ok(fields)
}

/// Why a refusal with a page is decided otherwise.
const OTHERWISE: &str = "pages with a status of their own are translated for limits only, from a location that just \
                         answers with an error, or just forwards by `=`";

/// True if a location only answers or forwards, to anyone.
fn is_plain(page: &LocationNode<'_>) -> bool {
    let is_idle = |inner: &Directive| match inner.name.as_str() {
        "return" => inner.arg(0).starts_with(['2', '4', '5']),
        "internal" => true,
        "if" | "rewrite" | "error_page" | "try_files" => false,
        _ => !is_guard(inner),
    };
    let scope = &page.scope;
    scope.own_level().iter().all(is_idle)
        && scope.checks().next().is_none()
        && scope.nearest_of(&["allow", "deny"]).is_empty()
}

/// The fields for a page; none, if it is not translated.
fn read_page<'d>(
    page: &'d LocationNode<'d>,
    status: u16,
    page_status: PageStatus,
    context: &mut SiteContext<'_, 'd>,
) -> Result<Vec<PlannedField>, ImportFault> {
    let Some(answer) = page.scope.own("return") else {
        if page_status != PageStatus::OfPage {
            return Ok(Vec::new());
        }
        let (mut fields, _) = read_content(page, context)?;
        fields.retain(|field| field.name == "upstream");
        return Ok(fields.into_iter().map(|field| PlannedField::plain("degrade", field.value)).collect());
    };
    // Without `=`, the status of the error stays; with `=` alone, that of the page holds.
    let status = match page_status {
        PageStatus::Kept => Some(status),
        PageStatus::Fixed(code) => Some(code),
        PageStatus::OfPage => answer.arg(0).parse().ok(),
    };
    let body = translate_text(answer.arg(1), context.server_name);
    let (Some(status @ 400..=599), Ok(body)) = (status, body) else { return Ok(Vec::new()) };
    let kind = page.scope.value_of("default_type").map_or("text/plain", |directive| directive.arg(0));
    let body = match body.template.as_str() {
        "" => "none".to_owned(),
        body => {
            let entries = [("template", quote_template(body)), ("content_type", quote(kind))];
            flow_map(&entries)
        }
    };
    Ok(vec![PlannedField::plain("status", status.to_string()), PlannedField::plain("body", body)])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageStatus {
    Kept,
    OfPage,
    Fixed(u16),
}

fn read_words(directive: &Directive) -> Result<(Vec<u16>, PageStatus, &str), ImportFault> {
    let wrong = |word: &str| directive.fault(format!("`{word}` is no status of an error page"));
    let [words @ .., target] = directive.args.as_slice() else {
        return Err(directive.fault("`error_page` takes statuses and a target"));
    };
    let (mut codes, mut status) = (Vec::new(), PageStatus::Kept);
    for word in words {
        match word.strip_prefix('=') {
            Some("") => status = PageStatus::OfPage,
            Some(code) => status = PageStatus::Fixed(code.parse().map_err(|_| wrong(word))?),
            None => codes.push(word.parse::<u16>().map_err(|_| wrong(word))?),
        }
    }
    if codes.is_empty() {
        return Err(wrong(target));
    }
    Ok((codes, status, target))
}
