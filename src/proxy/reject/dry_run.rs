//! What limits in a dry run would have done, as `Sluicegate-Dry-Run` and as the access log tells it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::quoted;
use crate::config::Config;
use crate::limit::{Decision, Outcome};

/// The dry-run limits of one chain.
pub(super) struct DryRuns(Box<[DryRun]>);

struct DryRun {
    limit: usize,
    name: Box<str>,
    /// `"per-ip"`
    quoted: Box<[u8]>,
}

const DRY_RUN: HeaderName = HeaderName::from_static("sluicegate-dry-run");

impl DryRuns {
    pub(super) fn new(config: &Config, chain: &[usize]) -> DryRuns {
        let dry_run = |&limit: &usize| {
            let name = config.limits[limit].name.as_str();
            DryRun { limit, name: name.into(), quoted: quoted(name).into() }
        };
        DryRuns(chain.iter().filter(|&&limit| config.limits[limit].dry_run).map(dry_run).collect())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `"per-ip";would=admit, "line";would=wait;ms=120`: a list of RFC 9651 with one item per decision.
    pub(super) fn write(
        &self,
        decisions: impl IntoIterator<Item = (usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        let mut line = Vec::new();
        for (limit, decision) in decisions {
            let Some(dry_run) = self.of(limit) else { continue };
            if !line.is_empty() {
                line.extend_from_slice(b", ");
            }
            line.extend_from_slice(&dry_run.quoted);
            line.extend_from_slice(b";would=");
            line.extend_from_slice(word(decision.outcome).as_bytes());
            match decision.outcome {
                Outcome::Wait => parameter(&mut line, b";ms=", decision.wait_ns),
                Outcome::Reject if decision.retry_after_ns != u64::MAX => {
                    parameter(&mut line, b";retry_after_ms=", decision.retry_after_ns);
                }
                Outcome::Admit | Outcome::Reject => {}
            }
        }
        if let (false, Ok(line)) = (line.is_empty(), HeaderValue::from_maybe_shared(Bytes::from(line))) {
            headers.insert(DRY_RUN, line);
        }
    }

    /// `per-ip=reject`, of those limits that would have acted; `None` = none of them.
    pub(super) fn note(&self, decisions: impl IntoIterator<Item = (usize, Decision)>) -> Option<String> {
        let mut note = String::new();
        for (limit, decision) in decisions {
            let Some(dry_run) = self.of(limit).filter(|_| decision.outcome != Outcome::Admit) else {
                continue;
            };
            if !note.is_empty() {
                note.push(',');
            }
            note.push_str(&dry_run.name);
            note.push('=');
            note.push_str(word(decision.outcome));
        }
        (!note.is_empty()).then_some(note)
    }

    fn of(&self, limit: usize) -> Option<&DryRun> {
        self.0.iter().find(|dry_run| dry_run.limit == limit)
    }
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Admit => "admit",
        Outcome::Wait => "wait",
        Outcome::Reject => "reject",
    }
}

/// Whole milliseconds, rounded up: fifteen digits, as many as a structured field allows, are enough for any span.
fn parameter(line: &mut Vec<u8>, name: &[u8], ns: u64) {
    line.extend_from_slice(name);
    line.extend_from_slice(itoa::Buffer::new().format(ns.div_ceil(1_000_000)).as_bytes());
}
