//! Ends a pass over a chain: its verdict, and the consequences of a wait or a rejection.

use super::{ChainPass, PassRejection};
use crate::chain::claims::ClaimSet;
use crate::chain::slots::{LackingSlots, SlotWait};
use crate::chain::{
    ChainCause, ChainMode, ChainPermit, ChainRejection, ChainVerdict, Charge, Decisions, QueueTerms, Queued,
    WaitingRequest,
};

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// The verdict on a request that all limits have judged.
    #[cold]
    pub fn conclude<P>(mut self, waiter: WaitingRequest<'_>) -> ChainVerdict<P> {
        if let Some(rejection) = self.findings.rejection {
            return ChainVerdict::Reject(self.conclude_rejection(rejection));
        }
        if waiter.pause_ns > 0 {
            self.note_pause(waiter.pause_ns);
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
            if !waiter.accepts_wait() {
                return reject_without_slots(self.held, slot_wait.1, self.decisions);
            }
            return match waiter.take_place::<M>() {
                Some(place) => ChainVerdict::Wait(Queued::for_slots(
                    self.held,
                    Some(place),
                    SlotWait::default(),
                    slot_wait,
                )),
                None => ChainVerdict::Reject(ChainRejection::from_overload()),
            };
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

    /// Makes a request wait that its upstream stops, if a queue allows that; otherwise it is rejected later.
    #[cold]
    fn note_pause(&mut self, pause_ns: u64) {
        let terms = QueueTerms::find(self.limits, self.decisions);
        if let Some(terms) = terms.filter(|terms| pause_ns <= terms.max_wait_ns) {
            self.note_wait(pause_ns, terms.limit_index.into());
        }
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
                    self.held.undo_claims(0, self.decisions);
                    return ChainVerdict::Reject(ChainRejection::from_overload());
                }
            }
            match self.held.join_slot_queue(index, now) {
                Ok(Some(slot_place)) => {
                    self.held.put_slots_back(None);
                    if let Some(hold) = &mut self.held.store_holds {
                        hold.postpone_slots();
                    }
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
    pub fn conclude_rejection(&mut self, rejection: PassRejection) -> ChainRejection {
        if !self.held.claims.is_empty() {
            self.held.keep_charges();
        }
        self.build_rejection(rejection)
    }

    fn build_rejection(&self, rejection: PassRejection) -> ChainRejection {
        let PassRejection { cause, limit_index, rate, retry_after_ns } = rejection;
        let limit = &self.limits[usize::from(limit_index)];
        let rejected = ChainRejection::outright(cause, limit, rate.into());
        ChainRejection { retry_after_ns, ..rejected }
    }

    /// Adds the request to the waiting ones, unless it may not wait although all limits have accepted it.
    #[cold]
    fn begin_wait<P>(
        mut self,
        (wait_ns, limit_index): (u64, u16),
        waiter: WaitingRequest<'_>,
    ) -> ChainVerdict<P> {
        let limit = &self.limits[usize::from(limit_index)];
        let rejection = if wait_ns > self.findings.max_wait_ns {
            ChainRejection::outright(ChainCause::WaitTooLong, limit, 0)
        } else if wait_ns > waiter.max_wait_ns {
            ChainRejection::beyond_wait(limit, wait_ns - waiter.max_wait_ns)
        } else if let Some(place) = waiter.take_place::<M>() {
            if self.findings.displaces {
                self.held.displace_waiters();
            }
            return ChainVerdict::Wait(Queued::new(self.held, place, (wait_ns, limit_index)));
        } else {
            ChainRejection::from_overload()
        };
        self.held.undo_claims(0, self.decisions);
        ChainVerdict::Reject(rejection)
    }
}

/// Adds a request that all rates have accepted to those that wait for slots in the store.
#[cold]
pub(crate) fn wait_for_store_slots<P>(
    mut held: ClaimSet,
    lacking: LackingSlots,
    waiter: WaitingRequest<'_>,
    decisions: &mut Decisions,
) -> ChainVerdict<P> {
    if !waiter.accepts_wait() {
        return reject_without_slots(held, lacking.limit_index, decisions);
    }
    match waiter.take_place::<Charge>() {
        Some(place) => ChainVerdict::Wait(Queued::for_store_slots(held, place, lacking)),
        None => {
            held.undo_claims(0, decisions);
            ChainVerdict::Reject(ChainRejection::from_overload())
        }
    }
}

/// Rejects a request that does not wait for slots, which it lacks by this limit.
#[cold]
pub(crate) fn reject_without_slots<P>(
    mut held: ClaimSet,
    limit_index: u16,
    decisions: &mut Decisions,
) -> ChainVerdict<P> {
    let limit = &held.limits[usize::from(limit_index)];
    let rejection = ChainRejection::outright(ChainCause::Concurrency, limit, 0);
    held.undo_claims(0, decisions);
    ChainVerdict::Reject(rejection)
}
