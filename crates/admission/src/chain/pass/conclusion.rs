//! Ends a pass over a chain: its verdict, and the consequences of a wait or a rejection.
//!
//! A shadow has other numbers of a limit, which judge each request beside it as if they were in force. It is a dry run
//! right behind its limit, with one difference: a rejection by that limit alone does not keep it from being charged,
//! because the limit would not have rejected with the numbers of the shadow. A rejection by any other limit undoes its
//! charge, as that of a dry run.

use super::{ChainPass, FoundTurn, PassRejection};
use crate::chain::claims::{Claim, ClaimKind, ClaimSet};
use crate::chain::slots::{LackingSlots, SlotWait};
use crate::chain::{
    ChainCause, ChainMode, ChainPermit, ChainRejection, ChainVerdict, Charge, Decisions, QueueTerms, Queued,
    RateDecision, WaitingPlace, WaitingRequest,
};
use sluicegate_limit::{Limit, Units};

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// The verdict on a request that all limits have judged.
    #[cold]
    pub(crate) fn conclude<P>(mut self, waiter: WaitingRequest<'_>) -> ChainVerdict<P> {
        if let Some(rejection) = self.findings.rejection {
            return ChainVerdict::Reject(self.conclude_rejection(rejection));
        }
        // A request that its upstream stops waits if a queue allows that; otherwise it is rejected later.
        if waiter.pause_ns > 0
            && let Some(terms) = QueueTerms::find(self.limits, self.decisions)
            && waiter.pause_ns <= terms.max_wait_ns
        {
            self.note_wait(waiter.pause_ns, terms.limit_index.into());
        }
        if let Some(longest) = self.findings.longest_wait {
            return self.begin_wait(longest, waiter);
        }
        if let Some(lacking) = self.findings.lacking {
            return ChainVerdict::Reject(self.build_rejection(lacking));
        }
        if self.findings.displaces {
            self.held.displace_waiters();
        }
        if let Some(slot_wait) = self.findings.slot_wait {
            let enqueue = |held, place| Queued::for_slots(held, Some(place), SlotWait::default(), slot_wait);
            return begin_slot_wait::<M, P>(self.held, slot_wait.1, waiter, self.decisions, enqueue);
        }
        if let Some(lacking) = self.findings.lacking_slots {
            return wait_for_store_slots(self.held, lacking, waiter, self.decisions);
        }
        if self.findings.wants_slots
            && let Err(index) = self.held.take_local_slots(self.held.judged_at)
        {
            return self.wait_for_slots(index, waiter);
        }
        ChainVerdict::Admit(ChainPermit::new(self.held))
    }

    /// Adds the request to those that wait for slots; `index` is the claim on the limit with too few.
    #[cold]
    fn wait_for_slots<P>(mut self, mut index: usize, waiter: WaitingRequest<'_>) -> ChainVerdict<P> {
        let now = self.held.judged_at;
        let mut place = None;
        loop {
            let claim = &self.held.claims[index];
            let (rate, limit_index, units) = (usize::from(claim.rate), claim.limit_index, claim.to_units());
            if !waiter.accepts_wait() {
                return reject_without_slots(self.held, limit_index, self.decisions);
            }
            if place.is_none() && self.limits[usize::from(limit_index)].has_slot_queue(rate) {
                place = waiter.take_place::<M>();
                if place.is_none() {
                    return self.held.reject(ChainRejection::from_overload(), self.decisions);
                }
            }
            match self.held.join_slot_queue(index, now) {
                Ok(Some(slot_place)) => {
                    self.held.put_all_slots_back();
                    let slots = SlotWait::in_place(slot_place);
                    return ChainVerdict::Wait(Queued::for_slots(self.held, place, slots, (0, limit_index)));
                }
                Ok(None) => match self.held.take_local_slots(now) {
                    Ok(()) => return ChainVerdict::Admit(ChainPermit::new(self.held)),
                    Err(next) => index = next,
                },
                Err(rejection) => {
                    self.held.undo_claims(0, self.decisions);
                    self.look_at_shadow_slots(limit_index, &units);
                    return ChainVerdict::Reject(rejection);
                }
            }
        }
    }

    /// The rejection that ends the pass. The charges that are left are those of the shadow of the limit that rejects,
    /// and stay.
    #[inline]
    pub(crate) fn conclude_rejection(&mut self, rejection: PassRejection) -> ChainRejection {
        if !self.held.claims.is_empty() {
            self.held.keep_charges();
        }
        let rejection = match self.turn {
            Some(found) if found.limit_index == rejection.limit_index => self.with_turn(rejection, &found),
            _ => rejection,
        };
        self.build_rejection(rejection)
    }

    /// The rejection with the turn of the request, if its limit alone rejects: a limit in front of it keeps those out
    /// who come too often.
    #[cold]
    fn with_turn(&mut self, rejection: PassRejection, found: &FoundTurn) -> PassRejection {
        let place = &self.limits[usize::from(rejection.limit_index)];
        let (now, rate, request) = (self.held.judged_at, usize::from(rejection.rate), &found.request);
        let Some(fits_ns) = rejection.retry_after_ns.filter(|_| !self.findings.several_reject) else {
            return rejection;
        };
        let hand_out = || {
            let here = || place.hand_out_turn(rate, request, (fits_ns, place.turns_ns), now, M::CHARGES);
            let turn_ns = found.in_store.unwrap_or_else(here).map(|turn_ns| turn_ns.max(fits_ns));
            let turn_ns = turn_ns.filter(|turn_ns| *turn_ns <= place.turns_ns)?;
            if M::CHARGES {
                place.hold_turn(rate, request, turn_ns, now);
            }
            Some(turn_ns)
        };
        let held_ns = place.held_turn(rate, request, now).map(|held_ns| held_ns.max(fits_ns));
        let turn_ns = held_ns.or_else(hand_out);
        let Some(turn_ns) = turn_ns else { return rejection };
        let is_own = |judged: &&mut RateDecision| {
            judged.limit_index == rejection.limit_index && judged.rate == rejection.rate && !judged.dry_run
        };
        // A look shows the counter as it is.
        if M::CHARGES
            && let Some(own) = self.decisions.iter_mut().find(is_own)
        {
            own.decision.retry_after_ns = turn_ns;
        }
        PassRejection { retry_after_ns: Some(turn_ns), is_turn: true, ..rejection }
    }

    fn build_rejection(&self, rejection: PassRejection) -> ChainRejection {
        let PassRejection { cause, limit_index, rate, class, is_turn, retry_after_ns } = rejection;
        let limit = &self.limits[usize::from(limit_index)];
        let outright = ChainRejection::outright(cause, limit, rate.into(), class);
        ChainRejection { is_turn, retry_after_ns, ..outright }
    }

    /// Adds the request to the waiting ones, unless it may not wait although all limits have accepted it.
    #[cold]
    fn begin_wait<P>(
        self,
        (wait_ns, limit_index): (u64, u16),
        waiter: WaitingRequest<'_>,
    ) -> ChainVerdict<P> {
        let limit = &self.limits[usize::from(limit_index)];
        let own = || self.decisions.iter().find(|judged| judged.limit_index == limit_index);
        let class = || own().map_or(u8::MAX, |own| own.class);
        let rejection = if wait_ns > self.findings.max_wait_ns {
            ChainRejection::outright(ChainCause::WaitTooLong, limit, 0, class())
        } else if wait_ns > waiter.max_wait_ns {
            let retry_after_ns = wait_ns - waiter.max_wait_ns;
            ChainRejection::outright(ChainCause::Queue, limit, 0, class()).with_retry(Some(retry_after_ns))
        } else if let Some(place) = waiter.take_place::<M>() {
            if self.findings.displaces {
                self.held.displace_waiters();
            }
            return ChainVerdict::Wait(Queued::new(self.held, place, (wait_ns, limit_index)));
        } else {
            ChainRejection::from_overload()
        };
        self.held.reject(rejection, self.decisions)
    }

    /// True if the request is rejected already, as the limit at `limit_index` sees it.
    #[inline]
    pub(crate) fn is_rejected_for(&self, limit_index: usize, limit: &Limit) -> bool {
        self.findings.rejection.is_some() && !self.overrules_rejection(limit_index, limit)
    }

    /// True if the limit is the shadow of the only one that rejects, and that for its numbers.
    #[cold]
    pub(crate) fn overrules_rejection(&self, limit_index: usize, limit: &Limit) -> bool {
        let rejecting = self.findings.rejection.filter(|_| !self.findings.several_reject);
        counts_rejected(limit)
            && rejecting.is_some_and(|rejection| {
                usize::from(rejection.limit_index) + 1 == limit_index
                    && rejection.cause != ChainCause::MissingKey
            })
    }

    /// Undoes the charges of a rejected request, except those of the shadow of the limit that rejects it.
    #[cold]
    pub(crate) fn undo_rejected_charges(&mut self) {
        let limits = self.limits;
        let claims = std::mem::take(&mut self.held.claims);
        let (kept, undone) = claims.into_iter().partition(|claim: &Claim| {
            let limit_index = usize::from(claim.limit_index);
            matches!(claim.kind, ClaimKind::Charge(_))
                && self.overrules_rejection(limit_index, &limits[limit_index])
        });
        self.held.claims = undone;
        self.held.undo_claims(0, self.decisions);
        self.held.claims = kept;
    }

    /// Adds the decision of the shadow of a concurrency limit that rejects a request for lack of slots. A rejected
    /// request is never in flight, so the shadow counts none.
    #[cold]
    pub(crate) fn look_at_shadow_slots(&mut self, limit_index: u16, units: &Units) {
        let shadow = usize::from(limit_index) + 1;
        let Some(limit) = self.limits.get(shadow).filter(|limit| limit.config.shadow_of.is_some()) else {
            return;
        };
        let outlook = limit.peek_slots(0, units, self.held.judged_at);
        self.push_slots((shadow, 0), &Units { unenforced: false, ..*units }, outlook);
    }
}

/// True if a limit is a shadow that is charged although its own limit rejects. With `charge`, the response settles the
/// cost of a request, and a rejected one has none.
pub(crate) fn counts_rejected(limit: &Limit) -> bool {
    limit.config.shadow_of.is_some() && limit.config.charge.is_none()
}

/// Adds a request that all rates have accepted to those that wait for slots in the store.
#[cold]
pub(crate) fn wait_for_store_slots<P>(
    held: ClaimSet,
    lacking: LackingSlots,
    waiter: WaitingRequest<'_>,
    decisions: &mut Decisions,
) -> ChainVerdict<P> {
    let enqueue = |held, place| Queued::for_store_slots(held, place, lacking);
    begin_slot_wait::<Charge, P>(held, lacking.limit_index, waiter, decisions, enqueue)
}

/// Adds a request to those that wait for slots, which it lacks by the limit with this index, if it may wait.
fn begin_slot_wait<M: ChainMode, P>(
    held: ClaimSet,
    limit_index: u16,
    waiter: WaitingRequest<'_>,
    decisions: &mut Decisions,
    enqueue: impl FnOnce(ClaimSet, WaitingPlace) -> Queued,
) -> ChainVerdict<P> {
    if !waiter.accepts_wait() {
        return reject_without_slots(held, limit_index, decisions);
    }
    match waiter.take_place::<M>() {
        Some(place) => ChainVerdict::Wait(enqueue(held, place)),
        None => held.reject(ChainRejection::from_overload(), decisions),
    }
}

/// Rejects a request that does not wait for slots, which it lacks by the limit with this index.
#[cold]
fn reject_without_slots<P>(held: ClaimSet, limit_index: u16, decisions: &mut Decisions) -> ChainVerdict<P> {
    let limit = &held.limits[usize::from(limit_index)];
    let class = held.class_in(limit_index);
    let rejection = ChainRejection::outright(ChainCause::Concurrency, limit, 0, class);
    held.reject(rejection, decisions)
}
