//! The permit of a request that all limits accepted and that holds its slots.

use super::RateDecision;
use super::claims::{Claim, ClaimKind, ClaimSet};
use super::settle::extend::{Extender, Overrun};
use super::settle::{FinalUnits, Settlements};
use crate::settlement::{ChargeSource, Extensions, ResponseReading};
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

    /// Marks that the upstream is about to see the request: from here on its charges stay.
    #[inline]
    pub fn keep_charges(&mut self) {
        self.held.keep_charges();
    }

    /// The decisions of its concurrency limits.
    #[inline]
    pub fn slot_decisions(&self) -> impl Iterator<Item = RateDecision> {
        let ClaimSet { limits, claims, store_holds, .. } = &self.held;
        claims.iter().filter_map(move |claim| {
            let outcome = match (claim.kind, store_holds) {
                (ClaimKind::Slots { grant, .. }, _) if grant.waits => LimitOutcome::Wait,
                (ClaimKind::Slots { .. }, _) => LimitOutcome::Admit,
                (ClaimKind::LackedSlots, _) => LimitOutcome::Reject,
                (ClaimKind::Shared(hold_index), Some(hold)) => hold.slots_outcome(hold_index)?,
                _ => return None,
            };
            let dry_run = limits[usize::from(claim.limit_index)].is_dry_run(claim.unenforced);
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

    /// The response is over, whatever ended it. The charges stay if there was one, or if the upstream has seen the
    /// request; dropping the permit releases its slots.
    #[inline]
    pub fn end_response(&mut self, has_response: bool) {
        if has_response {
            self.held.keep_charges();
        }
    }

    /// Counts the units that the request reserved as such, until they are settled.
    pub fn count_reservations(&self) {
        self.held.count_reservations();
    }

    /// Takes the units of the response beyond the reservation, of the limits that cut responses.
    pub fn extend_reservations(&self, extender: &Extender<'_>) -> Overrun {
        self.held.extend_reservations(extender)
    }

    /// Settles the charges that the head of the response decides, before the client can know it: its next request
    /// must find the room.
    pub fn settle_by_head(&mut self, reading: &ResponseReading, now: Now) -> Settlements {
        self.held.settle_charges(|charge| reading.head_decides(charge), reading, 0, now)
    }

    /// Settles all other charges that depend on the response, of which `bytes` of the body were delivered: the
    /// reservation of each limit is corrected to the used units.
    pub fn settle_charges(&mut self, reading: &ResponseReading, bytes: u64, now: Now) -> Settlements {
        self.held.settle_charges(|_| true, reading, bytes, now)
    }

    /// Settles charges that a caller reserved, by the units that it says of each limit; those of which it says none are
    /// still held.
    pub fn settle_units(&mut self, units: impl Fn(&Limit) -> Option<u64>, now: Now) -> Settlements {
        let said = |charged| FinalUnits { charged, source: ChargeSource::Usage, clears: false };
        self.held.settle_by(|limit, _, _| units(limit).map(said), &mut Extensions::default(), now)
    }

    /// Settles the charges that are still reserved as their reservations.
    pub fn settle_reserved(&mut self, now: Now) -> Settlements {
        let reserved = |charged| FinalUnits { charged, source: ChargeSource::Reserve, clears: false };
        self.held.settle_by(|_, _, units| Some(reserved(units)), &mut Extensions::default(), now)
    }

    /// The limits with charges that are still reserved, in chain order.
    pub fn reserving_limits(&self) -> impl Iterator<Item = &Limit> {
        self.held.settled_claims().map(|(_, limit)| limit)
    }

    /// True if it holds slots, or charges that are still to be settled.
    pub fn holds_anything(&self) -> bool {
        let ClaimSet { claims, store_holds, .. } = &self.held;
        let holds_slots = |claim: &Claim| match (claim.kind, store_holds) {
            (ClaimKind::Slots { .. }, _) => true,
            (ClaimKind::Shared(index), Some(hold)) => hold.holds_slots(index),
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
