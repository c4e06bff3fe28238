//! The permit of a request that all limits accepted and that holds its slots.

use http::StatusCode;

use super::RateDecision;
use super::claim::ClaimKind;
use super::claim_set::ClaimSet;
use crate::base::clock::Now;
use crate::limit::{Decision, LimitOutcome, SlotOutcome};

/// The right of a request to pass, as long as it is held. Dropping it gives everything back; once the request is
/// forwarded, its charges stay.
pub struct ChainPermit {
    pub(super) held: ClaimSet,
}

/// How the answer to a request ended: what a charge that depends on the answer needs.
#[derive(Debug, Clone, Copy)]
pub struct AnswerEnd {
    /// The final status; `None` if no head was sent.
    pub status: Option<StatusCode>,
    /// Bytes of the body that were passed to the connection.
    pub bytes: u64,
}

// === impl ChainPermit ===

impl ChainPermit {
    #[inline]
    pub(super) fn new(held: ClaimSet) -> ChainPermit {
        ChainPermit { held }
    }

    /// Marks that the upstream is about to see the request: from here on its charges stay.
    #[inline]
    pub fn keep_charges(&mut self) {
        self.held.keep_charges();
    }

    /// The decisions of its concurrency limits.
    #[inline]
    pub fn slot_decisions(&self) -> impl Iterator<Item = RateDecision> {
        let ClaimSet { limits, claims, store_lease, .. } = &self.held;
        claims.iter().filter_map(move |claim| {
            let outcome = match (claim.kind, store_lease) {
                (ClaimKind::Slots { .. }, _) => LimitOutcome::Admit,
                (ClaimKind::LackedSlots, _) => LimitOutcome::Reject,
                (ClaimKind::Shared(lease_index), Some(lease)) => lease.slots_outcome(lease_index)?,
                _ => return None,
            };
            let dry_run = limits[usize::from(claim.limit_index)].config.dry_run;
            let decision = Decision::without_numbers(outcome);
            Some(RateDecision { limit_index: claim.limit_index, rate: claim.rate, dry_run, decision })
        })
    }

    /// Reports the upstream outcome to the limits that granted its slots.
    #[inline]
    pub fn report_outcome(&self, outcome: SlotOutcome, now: Now) {
        for claim in &self.held.claims {
            if let ClaimKind::Slots { .. } = claim.kind {
                let limit = &self.held.limits[usize::from(claim.limit_index)];
                limit.record_outcome(claim.rate.into(), outcome, now);
            }
        }
    }

    /// The answer is over, whatever ended it. The charges stay if there was an answer, or if the upstream has seen the
    /// request; dropping the permit releases its slots.
    #[inline]
    pub fn settle(&mut self, ended: AnswerEnd) {
        if ended.status.is_some() {
            self.held.keep_charges();
        }
    }
}
