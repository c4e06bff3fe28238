//! `error_page` for the statuses of limits, where its target is an answer or a proxied location.

use super::closed::find_check;
use super::content::read_content;
use super::location_tree::LocationNode;
use super::parser::Directive;
use super::pieces::translate_text;
use super::scope::{FindingLedger, Scope};
use super::upstreams::UpstreamBook;
use crate::import::ImportFault;
use crate::import::gateway_file::PlannedField;
use crate::import::yaml_text::{flow_map, quote, quote_template};

/// The fields of `on_reject` for a location whose limits reject with `status`; other pages get a finding.
pub(super) fn read_error_pages<'d>(
    scope: &Scope<'d>,
    root: &LocationNode<'d>,
    status: Option<u16>,
    server_name: &str,
    upstreams: &mut UpstreamBook<'d, '_>,
    ledger: &FindingLedger,
) -> Result<Vec<PlannedField>, ImportFault> {
    let mut fields = Vec::new();
    for directive in scope.nearest("error_page") {
        let (codes, code_of_page, target) = read_words(directive)?;
        let page = status.filter(|status| codes.contains(status));
        let Some(status) = page.filter(|_| fields.is_empty()) else {
            ledger.skips(directive, "pages of errors are translated for the statuses of limits only");
            continue;
        };
        let is_open = |page: &&LocationNode<'_>| {
            find_check(&page.scope).is_none() && page.scope.nearest_of(&["allow", "deny"]).is_empty()
        };
        let Some(page) = root.find_fixed(target).filter(is_open) else {
            ledger.skips(
                directive,
                "its target is no location that answers or forwards to anyone; the body is the gateway's own",
            );
            continue;
        };
        if let Some(directive) = page.directive {
            ledger.exact(directive, "the body of rejections");
        }
        if let Some(answer) = page.scope.own("return") {
            ledger.exact(answer, "the body of rejections");
            // Without `=`, the status of the error stays; with `=` alone, that of the page holds.
            let own = answer.arg(0).parse::<u16>().ok();
            let status = match code_of_page {
                PageStatus::Kept => Some(status),
                PageStatus::Fixed(code) => Some(code),
                PageStatus::OfPage => own,
            };
            let body = translate_text(answer.arg(1), server_name);
            let (Some(status @ 400..=599), Ok(body)) = (status, body) else {
                ledger.skips(directive, "its answer is no error, or has variables that the gateway lacks");
                continue;
            };
            let kind = page.scope.value_of("default_type").map_or("text/plain", |directive| directive.arg(0));
            fields.push(PlannedField::new("status", status.to_string(), ""));
            fields.push(match body.template.as_str() {
                "" => PlannedField::new("body", "none", ""),
                body => {
                    let entries = [("template", quote_template(body)), ("content_type", quote(kind))];
                    let entries = entries.map(|(name, value)| (name.to_owned(), value));
                    PlannedField::new("body", flow_map(&entries), "")
                }
            });
            ledger.exact(directive, "on_reject: { body }");
        } else {
            let content = read_content(page, root, server_name, upstreams, ledger)?;
            match content.fields.into_iter().find(|field| field.name == "upstream") {
                Some(upstream) => {
                    fields.push(PlannedField::new("degrade", upstream.value, ""));
                    ledger.differs(directive, "on_reject: { degrade }: the status is that of the upstream");
                }
                None => ledger.skips(directive, "its target serves files; the body is the gateway's own"),
            }
        }
    }
    Ok(fields)
}

enum PageStatus {
    Kept,
    OfPage,
    Fixed(u16),
}

fn read_words(directive: &Directive) -> Result<(Vec<u16>, PageStatus, &str), ImportFault> {
    let wrong =
        |word: &str| ImportFault::new(&directive.at, format!("`{word}` is no status of an error page"));
    let [words @ .., target] = directive.args.as_slice() else {
        return Err(ImportFault::new(&directive.at, "`error_page` takes statuses and a target"));
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
