//! The permit of a request that all limits accepted and that holds its slots.

use super::RateDecision;
use super::claims::{Claim, ClaimKind, ClaimSet};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit, LimitOutcome, SlotOutcome};

/// The right of a request to pass, as long as it is held. Dropping it gives everything back; once the request is
/// forwarded, its charges stay.
pub struct ChainPermit {
    pub(super) held: ClaimSet,
}

// === impl ChainPermit ===

impl ChainPermit {
    #[inline]
    pub(super) fn new(held: ClaimSet) -> ChainPermit {
        ChainPermit { held }
    }

    /// Marks that the upstream is about to see the request, or that there was a response: from here on its charges
    /// stay.
    #[inline]
    pub fn keep_charges(&mut self) {
        self.held.keep_charges();
    }

    /// False if none of its limits counts slots.
    #[inline]
    pub fn may_hold_slots(&self) -> bool {
        let is_slots = |claim: &Claim| {
            matches!(claim.kind, ClaimKind::Slots { .. } | ClaimKind::LackedSlots | ClaimKind::InStore(_))
        };
        self.held.claims.iter().any(is_slots)
    }

    /// The decisions of its concurrency limits.
    pub fn slot_decisions(&self) -> impl Iterator<Item = RateDecision> {
        let ClaimSet { limits, claims, store_holds, .. } = &self.held;
        claims.iter().filter_map(move |claim| {
            let (outcome, remaining) = match (claim.kind, store_holds) {
                (ClaimKind::Slots { grant, .. }, _) if grant.rejects => (LimitOutcome::Reject, 0),
                (ClaimKind::Slots { grant, .. }, _) if grant.waits => (LimitOutcome::Wait, 0),
                (ClaimKind::Slots { grant, .. }, _) => (LimitOutcome::Admit, grant.free.into()),
                (ClaimKind::LackedSlots, _) => (LimitOutcome::Reject, 0),
                (ClaimKind::InStore(index), Some(store)) => store.slots_outcome(index)?,
                _ => return None,
            };
            // A request of before a pause passes, although its limit lacks the slots.
            let dry_run = outcome == LimitOutcome::Reject
                || limits[usize::from(claim.limit_index)].is_dry_run(claim.unenforced);
            let decision = Decision { remaining, ..Decision::without_numbers(outcome) };
            let place = (claim.rate.into(), claim.class);
            Some(RateDecision::new(claim.limit_index.into(), place, dry_run, decision))
        })
    }

    /// Reports the upstream outcome to the limits that granted its slots.
    pub fn report_outcome(&self, outcome: SlotOutcome, now: Now) {
        for claim in &self.held.claims {
            if let ClaimKind::Slots { .. } = claim.kind {
                let limit = &self.held.limits[usize::from(claim.limit_index)];
                limit.record_outcome(claim.rate.into(), outcome, now);
            }
        }
    }

    /// True if it holds slots, or charges that are still to be settled.
    pub fn holds_anything(&self) -> bool {
        let ClaimSet { claims, store_holds, .. } = &self.held;
        let holds_slots = |claim: &Claim| match (claim.kind, store_holds) {
            (ClaimKind::Slots { .. }, _) => true,
            (ClaimKind::InStore(index), Some(store)) => store.holds_slots(index),
            _ => false,
        };
        claims.iter().any(holds_slots) || self.reserving_limits().next().is_some()
    }

    /// The free slots of each enforced concurrency limit that is counted here, beside those that it holds.
    pub fn free_slots(&self, now: Now) -> impl Iterator<Item = (&Limit, u64)> {
        self.held.claims.iter().filter_map(move |claim| {
            let ClaimKind::Slots { .. } = claim.kind else { return None };
            let limit: &Limit = &self.held.limits[usize::from(claim.limit_index)];
            let outlook = limit.peek_slots(claim.rate.into(), &claim.to_units(), now);
            (!limit.config.dry_run).then_some((limit, outlook.free))
        })
    }
}
