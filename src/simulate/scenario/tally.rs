//! The ends of the requests of a step, counted as they come.

use sluicegate_model::LimitId;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::judge::request_state::Verdict;
use sluicegate_proxy::reject::Fault;
use sluicegate_proxy::service::pipeline::PipelineOutcome;

/// The names of rejections that neither a limit nor a fault caused.
pub(super) const BAN: &str = "ban";
pub(super) const UPSTREAM_STOP: &str = "upstream_stop";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestEnd {
    /// `None` = admitted.
    pub cause: Option<RejectionCause>,
    /// Rejected, and answered by `on_reject.degrade`.
    pub is_degraded: bool,
    pub status: u16,
    /// The wait that a rejection names, if any.
    pub retry_after_ns: Option<u64>,
    pub wait_ns: u64,
    pub step: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectionCause {
    Limit(LimitId),
    Fault(Fault),
    Ban,
    UpstreamStop,
}

/// The sums over the requests of a step. Its size depends on neither their number nor that of their addresses.
#[derive(Debug, Default)]
pub(super) struct StepTally {
    pub admitted: u64,
    pub rejected: u64,
    pub degraded: u64,
    pub waited: u64,
    pub waited_max_ns: u64,
    pub causes: Vec<(RejectionCause, u64)>,
    /// The first rejected request, and its `retry_after_ns`.
    pub first_rejection: Option<(u64, Option<u64>)>,
    pub statuses: Vec<(u16, u64)>,
    pub rejected_statuses: Vec<(u16, u64)>,
    /// The last request, and the step that it was told.
    pub last: (u64, Option<&'static str>),
}

// === impl RequestEnd ===

impl RequestEnd {
    pub(super) fn new(outcome: &PipelineOutcome) -> RequestEnd {
        let by_limit = outcome.limit.map_or(RejectionCause::UpstreamStop, RejectionCause::Limit);
        let cause = match outcome.verdict {
            Verdict::Admit | Verdict::Wait | Verdict::Acme => None,
            Verdict::Reject | Verdict::MissingKey | Verdict::Degrade => Some(by_limit),
            Verdict::Ban => Some(RejectionCause::Ban),
            Verdict::Fault(_) if outcome.is_forwarded => None,
            Verdict::Fault(fault) => Some(RejectionCause::Fault(fault)),
        };
        RequestEnd {
            cause,
            is_degraded: outcome.verdict == Verdict::Degrade,
            status: outcome.status.as_u16(),
            retry_after_ns: outcome.retry_after_ns,
            wait_ns: outcome.wait_ns,
            step: outcome.step,
        }
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.cause.is_none()
    }

    pub(super) fn has_waited(&self) -> bool {
        self.is_admitted() && self.wait_ns > 0
    }
}

// === impl RejectionCause ===

impl RejectionCause {
    pub(super) fn name(self, gateway: &Gateway) -> &str {
        match self {
            RejectionCause::Limit(limit) => &gateway.limits[limit.0].name,
            RejectionCause::Fault(fault) => fault.cause(),
            RejectionCause::Ban => BAN,
            RejectionCause::UpstreamStop => UPSTREAM_STOP,
        }
    }
}

// === impl StepTally ===

impl StepTally {
    /// Counts the end of the request at `index`.
    pub(super) fn count(&mut self, index: u64, end: &RequestEnd) {
        increment(&mut self.statuses, end.status);
        if index >= self.last.0 {
            self.last = (index, end.step);
        }
        let Some(cause) = end.cause else {
            self.admitted += 1;
            if end.wait_ns > 0 {
                self.waited += 1;
                self.waited_max_ns = self.waited_max_ns.max(end.wait_ns);
            }
            return;
        };
        self.rejected += 1;
        self.degraded += u64::from(end.is_degraded);
        increment(&mut self.causes, cause);
        increment(&mut self.rejected_statuses, end.status);
        if self.first_rejection.is_none_or(|(first, _)| index < first) {
            self.first_rejection = Some((index, end.retry_after_ns));
        }
    }
}

/// Searches in order, because there are few kinds.
fn increment<K: PartialEq>(counts: &mut Vec<(K, u64)>, kind: K) {
    match counts.iter_mut().find(|(known, _)| *known == kind) {
        Some((_, count)) => *count += 1,
        None => counts.push((kind, 1)),
    }
}
