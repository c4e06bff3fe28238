//! Records every change that the admin API makes or refuses: one line in the log.
//!
//! A handler reports its change by [`Answer::with_change`]; the rest is done here, so that no endpoint can forget it.

use super::answer::Answer;
use super::endpoint::{AdminCaller, Endpoint};

/// Characters of a reason.
pub(super) const REASON_MAX: usize = 200;

/// The log target of audit lines, which are written at any level of the log.
const AUDIT: &str = sluicegate_observe::logging::AUDIT_TARGET;

/// Logs the change that `answer` describes. `path_values`: the values in the path of the request.
pub(super) fn record_change(
    endpoint: &Endpoint,
    caller: &AdminCaller,
    path_values: &[(&'static str, String)],
    reason: Option<&str>,
    answer: &Answer,
) {
    let written = |value: Option<&serde_json::Value>| value.map(|value| value.to_string());
    let change = answer.change.as_ref();
    let target = change.map_or_else(|| describe_path(path_values), |change| change.target.clone());
    tracing::info!(
        target: AUDIT,
        who = &*caller.name,
        from = %caller.address,
        call = endpoint.name,
        target = escape_control(&target).as_str(),
        before = written(change.map(|change| &change.before)).as_deref(),
        after = written(change.map(|change| &change.after)).as_deref(),
        reason = reason.map(escape_control).as_deref(),
        result = if answer.status.is_success() { "ok" } else { "refused" },
        status = answer.status.as_u16(),
        "audit"
    );
}

/// E.g. `upstream app, server 10.0.0.7:80`. Of a key with an account nothing is shown, because logs may hide it.
fn describe_path(path_values: &[(&'static str, String)]) -> String {
    let values = path_values.iter().map(|(name, value)| match *name {
        "key" if value.contains("account=") => "key of an account".to_owned(),
        _ => format!("{name} {value}"),
    });
    values.collect::<Vec<_>>().join(", ")
}

/// `text` without characters that would forge lines in a log viewer.
fn escape_control(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match is_odd(c) {
            true => escaped.extend(c.escape_unicode()),
            false => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_control("maintenance of \u{e4}"), "maintenance of \u{e4}");
        assert_eq!(escape_control("a\nb\u{1b}[31m\u{202e}"), "a\\u{a}b\\u{1b}[31m\\u{202e}");
    }
}
