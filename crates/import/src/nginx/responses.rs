//! The own answers of a location: `return`, redirecting `rewrite`, and answers of the gateway in their place.

use super::parser::Directive;
use super::pieces::translate_text;
use super::scope::Scope;
use crate::ImportFault;
use crate::gateway_file::PlannedField;
use crate::yaml_text::{flow_map, quote, quote_template};

/// The statuses of `redirect`.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// `rewrite ^ https://host$request_uri? permanent;` and `rewrite ^/(.*)$ https://host/$1 permanent;`
pub(super) fn translate_rewrite(directive: &Directive) -> Option<PlannedField> {
    let status = if directive.arg(2) == "permanent" { 301 } else { 302 };
    let (pattern, to) = (directive.arg(0), directive.arg(1));
    let everything =
        matches!(pattern, "^" | "^/" | "^.*" | "^.*$" | ".*" | "^(.*)$" | "^/(.*)$" | "^(.*)" | "^/(.*)");
    let whole = match pattern {
        _ if !everything => None,
        _ if to.ends_with("$request_uri?") => to.strip_suffix('?').map(str::to_owned),
        "^(.*)$" | "^(.*)" => to.strip_suffix("$1").map(|start| format!("{start}$request_uri")),
        "^/(.*)$" | "^/(.*)" => to.strip_suffix("/$1").map(|start| format!("{start}$request_uri")),
        _ => None,
    };
    let translated = whole.and_then(|text| translate_text(&text, "").ok());
    let Some(translated) = translated else {
        directive.closes("paths are not rewritten, so that the redirect is not translated");
        return None;
    };
    directive.differs("redirect: to the path as the client sent it, not decoded and encoded again");
    Some(write_redirect(&quote_template(&translated.template), status))
}

pub(super) fn write_redirect(to: &str, status: u16) -> PlannedField {
    let fields = [("to", to.to_owned()), ("status", status.to_string())];
    PlannedField::plain("redirect", flow_map(&fields))
}

pub(super) fn translate_return(
    directive: &Directive,
    scope: &Scope<'_>,
    server_name: &str,
) -> Result<PlannedField, ImportFault> {
    let (status, text) = match directive.args.as_slice() {
        [url] if !url.bytes().all(|b| b.is_ascii_digit()) => (302, url.as_str()),
        [status] => (read_status(directive, status)?, ""),
        [status, text] => (read_status(directive, status)?, text.as_str()),
        _ => return Err(directive.fault("`return` takes a status and a text or URL")),
    };
    if REDIRECTS.contains(&status) && !text.is_empty() {
        return Ok(match translate_text(text, server_name) {
            Ok(translated) => {
                directive.becomes("redirect", &translated.differences);
                write_redirect(&quote_template(&translated.template), status)
            }
            Err(why) => {
                directive.loses(format!("{why}; the answer is 404"));
                write_respond(404, "", "text/plain")
            }
        });
    }
    if matches!(status, 444 | 499) {
        directive.differs(format!("nginx closes the connection; here the answer is an empty {status}"));
        return Ok(write_respond(status, "", "text/plain"));
    }
    // nginx has a use of its own for these.
    let status = if (494..=497).contains(&status) { 400 } else { status };
    let content_type = scope.value_of("default_type").map_or("text/plain", |directive| directive.arg(0));
    match translate_text(text, server_name) {
        Ok(translated) => {
            directive.exact("respond");
            Ok(write_respond(status, &translated.template, content_type))
        }
        Err(why) => {
            directive.differs(format!("respond without its text: {why}"));
            Ok(write_respond(status, "", content_type))
        }
    }
}

fn read_status(directive: &Directive, text: &str) -> Result<u16, ImportFault> {
    let status = text.parse::<u16>().ok().filter(|status| (200..=599).contains(status));
    status.ok_or_else(|| directive.fault(format!("`{text}` is not a status from 200 to 599")))
}

/// An answer of the gateway; `body` has the variables of templates.
pub(super) fn write_respond(status: u16, body: &str, content_type: &str) -> PlannedField {
    let mut fields = vec![("status", status.to_string())];
    if !body.is_empty() {
        fields.push(("body", quote_template(body)));
        if content_type != "text/plain" {
            fields.push(("content_type", quote(content_type)));
        }
    }
    PlannedField::plain("respond", flow_map(&fields))
}
