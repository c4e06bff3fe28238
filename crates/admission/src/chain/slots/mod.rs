//! Takes the concurrency slots that are counted here, and waits in the queues for them. [`in_store`] waits for those in
//! the store.
//!
//! A request takes all its slots or none, and stands, holding none, in the queue of the first limit in its chain that
//! has too few. A slot that it is handed there goes on to the next waiter if another limit is full. From then on it
//! takes slots in one order, the same for all requests ([`Limit::slot_order`]), and keeps those that come before the
//! one it waits for. So it waits at most once more for each limit (nobody starves), and no two requests wait for each
//! other's slots (nobody is stuck).

pub(super) mod in_store;
pub(super) mod pending;

use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::claims::{ClaimKind, ClaimSet};
use super::{ChainCause, ChainRejection};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, SlotGrant, SlotStep, SlotTurn, SlotWaiter, Units};

/// The place of a request in the queue of a concurrency limit. Dropping it leaves the queue.
pub(crate) struct SlotPlace {
    limit: Arc<Limit>,
    pub limit_index: u16,
    claim_index: usize,
    rate: usize,
    key: CounterKey,
    cost: u64,
    overflow: bool,
    /// `None` once it has left.
    waiter: Option<SlotWaiter>,
}

#[derive(Default)]
pub(crate) struct SlotWait {
    place: Option<SlotPlace>,
    /// The request was handed slots and gave them on.
    is_ordered: bool,
}

/// Slots in the store for which a request has to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LackingSlots {
    /// Index of their limit in [`super::Chain::limits`].
    pub limit_index: u16,
    /// The store has just refused them; else others wait for them.
    pub is_refused: bool,
}

// === impl SlotPlace ===

impl SlotPlace {
    fn check_turn(&mut self, cx: &Context<'_>) -> SlotTurn {
        let Some(waiter) = &self.waiter else { return SlotTurn::Taken };
        let turn = self.limit.check_slots(self.rate, &self.key, waiter, Now::read_clock(), cx.waker());
        if !matches!(turn, SlotTurn::Wait(_)) {
            self.waiter = None;
        }
        turn
    }
}

impl Drop for SlotPlace {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            self.limit.leave_slot_queue(self.rate, &self.key, self.cost, waiter, Now::read_clock);
        }
    }
}

// === impl SlotWait ===

impl SlotWait {
    pub(crate) fn in_place(place: SlotPlace) -> SlotWait {
        SlotWait { place: Some(place), is_ordered: false }
    }

    /// Gives the slots that are counted here back while the request waits for others in the store, unless it takes
    /// them in order: those in the store come last.
    pub(crate) fn put_back_unless_ordered(&self, held: &mut ClaimSet) {
        if !self.is_ordered {
            held.put_slots_back(None);
        }
    }

    /// Takes them again; false: they are gone, and the request takes slots in order from now on.
    pub(crate) fn take_again(&mut self, held: &mut ClaimSet) -> bool {
        let has_all = self.is_ordered || held.take_local_slots(Now::read_clock()).is_ok();
        self.is_ordered |= !has_all;
        has_all
    }

    /// Takes all slots that are wanted here. `note_place` is called for each queue that the request joins, `set_timer`
    /// with the end of its wait there.
    pub(crate) fn poll_slots(
        &mut self,
        held: &mut ClaimSet,
        cx: &mut Context<'_>,
        mut note_place: impl FnMut(u16),
        mut set_timer: impl FnMut(&mut Context<'_>, Option<Now>) -> Poll<()>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            if let Some(place) = &mut self.place {
                match place.check_turn(cx) {
                    SlotTurn::Wait(until) if set_timer(cx, until).is_pending() => return Poll::Pending,
                    SlotTurn::Wait(_) => continue,
                    SlotTurn::Taken => {
                        held.take_handed(place);
                        self.place = None;
                        self.is_ordered |= held.take_local_slots(Now::read_clock()).is_err();
                    }
                    SlotTurn::Reject(wait_ns) => {
                        let rejection = held.reject_for_slots((place.limit_index, place.rate), Some(wait_ns));
                        self.place = None;
                        return Poll::Ready(Err(rejection));
                    }
                }
            }
            let now = Now::read_clock();
            let taken = match self.is_ordered {
                true => held.take_slots_in_order(now),
                false => held.take_local_slots(now),
            };
            let Err(index) = taken else { return Poll::Ready(Ok(())) };
            match held.join_slot_queue(index, now) {
                Ok(Some(place)) => {
                    held.put_slots_back(self.is_ordered.then_some(index));
                    note_place(place.limit_index);
                    self.place = Some(place);
                }
                Ok(None) => {}
                Err(rejection) => return Poll::Ready(Err(rejection)),
            }
        }
    }
}

// === impl ClaimSet ===

impl ClaimSet {
    /// Joins the queue of a claim on a limit with too few slots; `None`: they are free by now, and taken.
    ///
    /// # Errors
    /// There is no queue, or it is full.
    #[cold]
    pub(crate) fn join_slot_queue(
        &mut self,
        index: usize,
        now: Now,
    ) -> Result<Option<SlotPlace>, ChainRejection> {
        let claim = &mut self.claims[index];
        let ClaimKind::WantedSlots { fair_hash } = claim.kind else { return Ok(None) };
        let (limit_index, rate) = (claim.limit_index, usize::from(claim.rate));
        let limit = &self.limits[usize::from(limit_index)];
        if !limit.has_slot_queue(rate) {
            return Err(self.reject_for_slots((limit_index, rate), None));
        }
        let units = Units { fair_hash, ..claim.to_units() };
        match limit.take_or_wait(rate, &units, now) {
            SlotStep::Taken(grant) => {
                claim.kind = ClaimKind::Slots { grant, fair_hash };
                Ok(None)
            }
            SlotStep::Waits(waiter) => Ok(Some(SlotPlace {
                limit: Arc::clone(limit),
                limit_index,
                claim_index: index,
                rate,
                key: units.key,
                cost: claim.cost,
                overflow: waiter.overflow,
                waiter: Some(waiter),
            })),
            SlotStep::Full(wait_ns) => Err(self.reject_for_slots((limit_index, rate), Some(wait_ns))),
        }
    }

    /// Gives slots back while the request waits for others: all of them, or those that do not come before the slots
    /// of the claim `except_before` in the order of all limits.
    #[cold]
    fn put_slots_back(&mut self, except_before: Option<usize>) {
        let order_of = |index: usize| {
            let claim = &self.claims[index];
            self.limits[usize::from(claim.limit_index)].slot_order(claim.rate.into())
        };
        let order = except_before.map(order_of);
        for claim in &mut self.claims {
            let (limit, rate) = (&self.limits[usize::from(claim.limit_index)], usize::from(claim.rate));
            match claim.kind {
                ClaimKind::Slots { grant, fair_hash }
                    if order.is_none_or(|order| limit.slot_order(rate) >= order) =>
                {
                    let key = claim.table_key();
                    limit.release_slots(rate, &key, claim.cost, grant.overflow, Now::read_clock);
                    claim.kind = ClaimKind::WantedSlots { fair_hash };
                }
                ClaimKind::LackedSlots => claim.kind = ClaimKind::WantedSlots { fair_hash: 0 },
                _ => {}
            }
        }
    }

    /// Gives all slots back until after the wait, those in the store too.
    #[cold]
    pub(crate) fn put_all_slots_back(&mut self) {
        self.put_slots_back(None);
        if let Some(store) = &mut self.store_holds {
            store.postpone_slots();
        }
    }

    /// [`ClaimSet::take_local_slots`] in the order of all limits.
    fn take_slots_in_order(&mut self, now: Now) -> Result<(), usize> {
        let mut indices: SmallVec<[usize; 4]> = (0..self.claims.len()).collect();
        indices.sort_by_key(|index| {
            let claim = &self.claims[*index];
            self.limits[usize::from(claim.limit_index)].slot_order(claim.rate.into())
        });
        indices.into_iter().try_for_each(|index| self.take_slots_of(index, now))
    }

    /// The request holds the slots that it was handed.
    fn take_handed(&mut self, place: &SlotPlace) {
        let claim = &mut self.claims[place.claim_index];
        if let ClaimKind::WantedSlots { fair_hash } = claim.kind {
            let grant = SlotGrant { overflow: place.overflow, waits: true, rejects: false, free: 0 };
            claim.kind = ClaimKind::Slots { grant, fair_hash };
        }
    }

    /// The rejection of the request for lack of slots of a limit, given by its index, and of a rate. `wait_ns`: the
    /// wait that another request has to expect.
    #[cold]
    pub(crate) fn reject_for_slots(
        &self,
        (limit, rate): (u16, usize),
        wait_ns: Option<u64>,
    ) -> ChainRejection {
        let (limit, class) = (&self.limits[usize::from(limit)], self.class_in(limit));
        ChainRejection::outright(ChainCause::Concurrency, limit, rate, class).with_retry(wait_ns).into_late()
    }
}
