//! The decisions that are not enforced, as the `Sluicegate-Dry-Run` field and as text for the access log: of limits in
//! a dry run, of shadows, and about keys that a limit does not act on.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::quote_name;
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::{Config, LimitId};

/// The limits of one chain with decisions that may not be enforced.
pub(crate) struct DryRuns(Box<[DryRun]>);

struct DryRun {
    limit: LimitId,
    name: Box<str>,
    /// `"per-ip"`
    quoted: Box<[u8]>,
    kind: DryRunKind,
}

/// Why a decision is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DryRunKind {
    DryRun,
    /// The limit is the shadow of this one.
    ShadowOf(LimitId),
    /// The limit does not act on the key.
    Unenforced,
    /// An operator has paused the limit.
    Paused,
}

const DRY_RUN: HeaderName = HeaderName::from_static("sluicegate-dry-run");

impl DryRuns {
    pub(super) fn new(config: &Config, chain: &[LimitId]) -> DryRuns {
        let dry_run = |limit: LimitId| {
            let own = &config.limits[limit];
            let kind = match own.shadow_of {
                Some(live) => DryRunKind::ShadowOf(live),
                None if own.pause.is_some() => DryRunKind::Paused,
                None if own.dry_run => DryRunKind::DryRun,
                None if own.enforce.is_some() => DryRunKind::Unenforced,
                None => return None,
            };
            let quoted = quote_name(&own.name).into();
            Some(DryRun { limit, name: own.name.as_str().into(), quoted, kind })
        };
        DryRuns(config.with_shadows(chain).filter_map(dry_run).collect())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes `"per-ip";would=admit, "line";would=wait;ms=120;unenforced`: an RFC 9651 list with one item per decision.
    pub(crate) fn write_header(
        &self,
        decisions: impl IntoIterator<Item = (LimitId, Decision)>,
        headers: &mut HeaderMap,
    ) {
        let mut line = Vec::new();
        for (limit, decision) in decisions {
            let Some(dry_run) = self.find_limit(limit) else { continue };
            if !line.is_empty() {
                line.extend_from_slice(b", ");
            }
            line.extend_from_slice(&dry_run.quoted);
            line.extend_from_slice(b";would=");
            line.extend_from_slice(outcome_word(decision.outcome).as_bytes());
            match decision.outcome {
                LimitOutcome::Wait => append_parameter(&mut line, b";ms=", decision.wait_ns),
                LimitOutcome::Reject if decision.retry_after_ns != u64::MAX => {
                    append_parameter(&mut line, b";retry_after_ms=", decision.retry_after_ns);
                }
                LimitOutcome::Admit | LimitOutcome::Reject => {}
            }
            match dry_run.kind {
                DryRunKind::Unenforced => line.extend_from_slice(b";unenforced"),
                DryRunKind::Paused => line.extend_from_slice(b";paused"),
                DryRunKind::DryRun | DryRunKind::ShadowOf(_) => {}
            }
        }
        if let (false, Ok(line)) = (line.is_empty(), HeaderValue::from_maybe_shared(Bytes::from(line))) {
            headers.insert(DRY_RUN, line);
        }
    }

    /// `per-ip=reject,line=unenforced_wait`, for the limits that would have acted, and for the shadow of the limit that
    /// has acted; `None` if there is neither.
    pub(crate) fn log_summary(
        &self,
        decisions: impl IntoIterator<Item = (LimitId, Decision)>,
        acted: Option<LimitId>,
    ) -> Option<String> {
        let mut summary = String::new();
        for (limit, decision) in decisions {
            let Some(dry_run) = self.find_limit(limit) else { continue };
            let differs = acted.is_some_and(|acted| dry_run.kind == DryRunKind::ShadowOf(acted));
            if decision.outcome == LimitOutcome::Admit && !differs {
                continue;
            }
            if !summary.is_empty() {
                summary.push(',');
            }
            summary.push_str(&dry_run.name);
            summary.push('=');
            match dry_run.kind {
                DryRunKind::Unenforced => summary.push_str("unenforced_"),
                DryRunKind::Paused => summary.push_str("paused_"),
                DryRunKind::DryRun | DryRunKind::ShadowOf(_) => {}
            }
            summary.push_str(outcome_word(decision.outcome));
        }
        (!summary.is_empty()).then_some(summary)
    }

    fn find_limit(&self, limit: LimitId) -> Option<&DryRun> {
        self.0.iter().find(|dry_run| dry_run.limit == limit)
    }
}

fn outcome_word(outcome: LimitOutcome) -> &'static str {
    match outcome {
        LimitOutcome::Admit => "admit",
        LimitOutcome::Wait => "wait",
        LimitOutcome::Reject => "reject",
    }
}

/// Appends whole milliseconds, rounded up. A structured field allows fifteen digits, enough for any span.
fn append_parameter(line: &mut Vec<u8>, name: &[u8], ns: u64) {
    line.extend_from_slice(name);
    line.extend_from_slice(itoa::Buffer::new().format(ns.div_ceil(1_000_000)).as_bytes());
}
