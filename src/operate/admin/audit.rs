//! Records every change that the admin API makes or refuses: one line in the log, and a count.
//!
//! A handler reports its change by [`Answer::with_change`]; the rest is done here, so that no endpoint can forget it.

use super::answer::Answer;
use super::endpoint::{AdminCaller, Endpoint};
use super::state::ChangeCounts;

/// Characters of a reason.
pub(super) const REASON_MAX: usize = 200;

/// The log target of audit lines, which are written at any level of the log.
const AUDIT: &str = sluicegate_observe::logging::AUDIT_TARGET;

/// The caller of a change, and the reason.
pub(super) struct AuditEntry<'a> {
    pub endpoint: &'static Endpoint,
    pub caller: &'a AdminCaller,
    pub reason: Option<&'a str>,
    /// The values in the path of the request.
    pub path_values: &'a [(&'static str, String)],
}

impl AuditEntry<'_> {
    /// Logs and counts the change that `answer` describes.
    pub fn record_change(&self, answer: &Answer, counts: &ChangeCounts) {
        let is_ok = answer.status().is_success();
        let written = |value: Option<&serde_json::Value>| value.map(|value| value.to_string());
        let change = answer.change.as_ref();
        let target = change.map_or_else(|| self.describe_path(), |change| change.target.clone());
        tracing::info!(
            target: AUDIT,
            who = &*self.caller.name,
            from = %self.caller.address,
            call = self.endpoint.name,
            target = escape_control(&target).as_str(),
            before = written(change.map(|change| &change.before)).as_deref(),
            after = written(change.map(|change| &change.after)).as_deref(),
            reason = self.reason.map(escape_control).as_deref(),
            result = if is_ok { "ok" } else { "refused" },
            status = answer.status().as_u16(),
            "audit"
        );
        counts.count_change(self.endpoint.name, is_ok);
    }

    /// E.g. `upstream app, server 10.0.0.7:80`.
    fn describe_path(&self) -> String {
        let values = self.path_values.iter().map(|(name, value)| format!("{name} {value}"));
        values.collect::<Vec<_>>().join(", ")
    }
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
