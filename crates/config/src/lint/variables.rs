//! Warns of texts that are written like variables and are none, such as `$remote_addr`.

use crate::yaml::field_value::FieldValue;
use crate::yaml::shown_text::show_text;
use crate::yaml::tree::ScalarText;
use sluicegate_model::diagnostics::redact::may_hold_secret;
use sluicegate_model::value::foreign_variables::{
    VARIABLES, find_braced_name, find_dollar_names, find_variable, is_body_variable, is_environment_name,
    replace_variables,
};
use sluicegate_model::{ValueError, codes};

/// The variables that a text can have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextKind {
    /// A header value or the target of a redirect: facts about the request.
    Line,
    /// A body, in which a dollar sign may be a price.
    Body,
    /// A header value without variables.
    Fixed,
    /// The environment alone.
    Other,
    Secret,
}

pub(super) fn warn_of_dollars(whole: &FieldValue<'_>) {
    whole.visit_written(&mut |value, text| {
        let found = text_kind(&value.path).and_then(|kind| find_misread(kind, text, &value.path));
        found.into_iter().for_each(|error| value.warn_at(error));
    });
}

fn text_kind(path: &str) -> Option<TextKind> {
    let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
    Some(match path {
        // `$` ends a regular expression.
        _ if path.starts_with("locations[") && ends(&["].path"]) => return None,
        _ if path.contains("on_reject.headers.") => TextKind::Fixed,
        _ if path.contains("headers.set.") || path.contains("headers.add.") => TextKind::Line,
        _ if ends(&["redirect.to"]) => TextKind::Line,
        _ if ends(&[".body", ".template"]) => TextKind::Body,
        _ if ends(&["token", "secret", "redis.url"]) || path.contains("redis.url[") => TextKind::Secret,
        _ => TextKind::Other,
    })
}

fn find_misread(kind: TextKind, text: &ScalarText, path: &str) -> Option<ValueError> {
    let written = text.written.as_str();
    let (shown, help) = match kind {
        TextKind::Line => explain_line(written, path)?,
        TextKind::Body => {
            let is_known = |name: &&str| is_body_variable(name) || find_variable(name).is_some();
            let name = find_dollar_names(written).find(is_known)?;
            let own = if is_body_variable(name) { name } else { find_variable(name)? };
            (format!("${name}"), format!("write ${{{own}}}"))
        }
        TextKind::Fixed => {
            let name = find_dollar_names(written).next()?;
            (format!("${name}"), "remove it: values of headers have no variables here".to_owned())
        }
        TextKind::Other => {
            let name = find_dollar_names(written).find(|name| is_environment_name(name))?;
            (format!("${name}"), format!("write ${{{name}}} for the environment variable"))
        }
        TextKind::Secret => {
            let name = written.strip_prefix('$')?.trim_matches(['(', ')']);
            // A secret is not shown, even one that looks like a variable.
            let help = "write the name in braces for the environment variable, as in ${NAME}";
            is_environment_name(name).then(|| ("$".to_owned(), help.to_owned()))?
        }
    };
    let message = match kind {
        TextKind::Secret => "this secret is written like a variable, and is text like any other".to_owned(),
        _ => format!("`{shown}` is text like any other here, no variable"),
    };
    Some(ValueError::new(codes::MISREAD, message).with_help(help))
}

/// A text that looks like a variable in a header value or a redirect, and the text to write.
fn explain_line(written: &str, path: &str) -> Option<(String, String)> {
    let known = || format!("the variables here are ${{{}}}", VARIABLES.join("}, ${"));
    if let Some(name) = find_dollar_names(written).next() {
        let help = match replace_variables(written).map(|text| show_text(&text)) {
            Some(text) if text != "…" && !may_hold_secret(path.rsplit('.').next().unwrap_or(path)) => {
                format!("write {text}")
            }
            Some(_) => find_variable(name).map_or_else(known, |own| format!("write ${{{own}}}")),
            None => known(),
        };
        return Some((format!("${name}"), help));
    }
    if let Some((name, own)) = find_braced_name(written) {
        return Some((format!("{{{name}}}"), format!("write ${{{own}}}")));
    }
    // The forms of HAProxy and Envoy.
    let start = written.find("%[")?;
    let end = start + written[start..].find(']')?;
    let help = match find_variable(&written[start + 2..end]) {
        Some(own) => format!("write ${{{own}}}; {}", known()),
        None => known(),
    };
    Some((written[start..=end].to_owned(), help))
}
