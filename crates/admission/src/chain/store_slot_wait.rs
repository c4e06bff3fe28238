//! Waits in the queues of this gateway for concurrency slots that are counted in the store.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ChainRejection;
use super::UndecidedLimit;
use super::claim::ClaimKind;
use super::claim_set::ClaimSet;
use super::store_slots::StoreTake;
use sluicegate_base::clock::Now;
use sluicegate_store::{AskTurn, GatewayTurn, Session, SharedLimit, SlotKey, SlotNewcomer, SlotTicket};

/// The wait of a request for slots in the store.
#[derive(Default)]
pub(super) struct StoreSlotWait {
    place: Option<StoreSlotPlace>,
    /// The limit that has refused it just now: it has no need to ask at once.
    refused_by: Option<u16>,
    /// The moment at which it joined the first queue.
    since: Option<Now>,
}

/// The place of a request in the queue of a limit. Dropping it leaves the queue.
struct StoreSlotPlace {
    limit: Arc<SharedLimit>,
    lease_index: usize,
    slot_key: SlotKey,
    /// `None` once it has left.
    ticket: Option<SlotTicket>,
}

// === impl StoreSlotWait ===

impl StoreSlotWait {
    pub(super) fn starting(refused_by: Option<u16>) -> StoreSlotWait {
        StoreSlotWait { refused_by, ..StoreSlotWait::default() }
    }

    /// Asks for all slots that are wanted in the store; false: the request stands in the queue of the first limit that
    /// has too few, or has slots with other waiters. `note_place` is called for each queue that it joins.
    ///
    /// # Errors
    /// Too few slots are free, and no queue has room.
    pub(super) async fn try_take(
        &mut self,
        held: &mut ClaimSet,
        session: &Rc<Session>,
        undecided: &mut Vec<UndecidedLimit>,
        mut note_place: impl FnMut(u16),
    ) -> Result<bool, ChainRejection> {
        // Its stay there is noted already.
        let refused = self.refused_by.take().and_then(|limit_index| held.find_wanted_slots(limit_index));
        let is_noted = refused.is_some();
        let lacking = match refused {
            Some(index) => index,
            None => match held.take_store_slots(session, undecided, self.describe_turn(session)).await? {
                StoreTake::Lacking(index) => index,
                StoreTake::Taken { more_free } => {
                    if let Some(place) = self.place.take() {
                        place.end_served(more_free);
                    }
                    return Ok(true);
                }
            },
        };
        match &self.place {
            Some(place) if place.lease_index == lacking => place.end_refused(),
            _ => {
                self.place = None;
                let since = *self.since.get_or_insert_with(Now::read_clock);
                let (place, limit_index) = held.join_store_queue(lacking, session, since)?;
                self.place = Some(place);
                if !is_noted {
                    note_place(limit_index);
                }
            }
        }
        Ok(false)
    }

    /// Waits until the request has to ask. `set_timer` is called with the end of its wait.
    pub(super) fn poll_turn(
        &mut self,
        held: &mut ClaimSet,
        cx: &mut Context<'_>,
        mut set_timer: impl FnMut(&mut Context<'_>, Option<Now>) -> Poll<()>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let Some(place) = &mut self.place else { return Poll::Ready(Ok(())) };
            match place.check_turn(cx) {
                AskTurn::Ask => return Poll::Ready(Ok(())),
                AskTurn::Wait(until) if set_timer(cx, until).is_pending() => return Poll::Pending,
                AskTurn::Wait(_) => {}
                AskTurn::Reject(wait_ns) => {
                    let lease_index = place.lease_index;
                    self.place = None;
                    return Poll::Ready(Err(held.reject_for_store_slots(lease_index, wait_ns)));
                }
            }
        }
    }

    pub(super) fn leave_queue(&mut self) {
        self.place = None;
    }

    /// The lease with the queue that it stands in, and its turn there.
    fn describe_turn(&self, session: &Session) -> Option<(usize, GatewayTurn)> {
        let place = self.place.as_ref()?;
        let (queue, gateway) = (&place.limit.slot_queue, session.store.node());
        Some((place.lease_index, queue.describe_turn(gateway, &place.slot_key, Now::read_clock())?))
    }
}

// === impl StoreSlotPlace ===

impl StoreSlotPlace {
    fn check_turn(&mut self, cx: &Context<'_>) -> AskTurn {
        let Some(ticket) = &self.ticket else { return AskTurn::Ask };
        let turn = self.limit.slot_queue.poll_turn(&self.slot_key, ticket, Now::read_clock(), cx.waker());
        if matches!(turn, AskTurn::Reject(_)) {
            self.ticket = None;
        }
        turn
    }

    fn end_served(mut self, more_free: bool) {
        if let Some(ticket) = self.ticket.take() {
            self.limit.slot_queue.end_served(&self.slot_key, &ticket, more_free, Now::read_clock());
        }
    }

    fn end_refused(&self) {
        if let Some(ticket) = &self.ticket {
            self.limit.slot_queue.end_refused(&self.slot_key, ticket);
        }
    }
}

impl Drop for StoreSlotPlace {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.limit.slot_queue.leave_queue(&self.slot_key, ticket, Now::read_clock());
        }
    }
}

// === impl ClaimSet ===

impl ClaimSet {
    /// The lease of the slots that are wanted of a limit.
    fn find_wanted_slots(&self, limit_index: u16) -> Option<usize> {
        let leases = &self.store_lease.as_ref()?.rate_leases;
        leases.iter().position(|lease| lease.limit_index == limit_index && lease.wants_slots())
    }

    /// Joins the queue for the slots of a lease. Returns the index of its limit as well.
    ///
    /// # Errors
    /// It has none, or it is full.
    fn join_store_queue(
        &mut self,
        lease_index: usize,
        session: &Rc<Session>,
        since: Now,
    ) -> Result<(StoreSlotPlace, u16), ChainRejection> {
        let lease = self.store_lease.as_ref().and_then(|lease| lease.rate_leases.get(lease_index));
        let found = lease.and_then(|lease| Some((lease, lease.limit.slot_terms(lease.rate)?)));
        let Some((lease, terms)) = found else { return Err(self.reject_for_store_slots(lease_index, 1)) };
        let (limit, slot_key, limit_index) = (lease.limit.clone(), lease.slot_key(), lease.limit_index);
        let rule = &limit.rules[lease.rate];
        let newcomer = SlotNewcomer { slot_key, rule, cost: lease.cost, fair: lease.fair, since };
        match limit.slot_queue.join_queue(newcomer, &terms, Now::read_clock()) {
            Ok((ticket, starts_polls)) => {
                if starts_polls {
                    session.start_polls(&limit);
                }
                let place = StoreSlotPlace { limit, lease_index, slot_key, ticket: Some(ticket) };
                Ok((place, limit_index))
            }
            Err(wait_ns) => Err(self.reject_for_store_slots(lease_index, wait_ns)),
        }
    }

    /// See [`ClaimSet::reject_for_slots`].
    fn reject_for_store_slots(&self, lease_index: usize, wait_ns: u64) -> ChainRejection {
        let own =
            |kind: &ClaimKind| matches!(kind, ClaimKind::Shared(index) if *index as usize == lease_index);
        // Cannot fail: each lease has a claim as long as the request waits.
        let index = self.claims.iter().position(|claim| own(&{ claim.kind })).expect("a lease has a claim");
        self.reject_for_slots(index, Some(wait_ns))
    }
}
