//! The charges, queued departures and slots that a request holds in the store.

use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::{Claim, ClaimKind};
use crate::chain::{Decisions, RateDecision, SharedDemand};
use crate::settlement::OwedPart;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_limit::{Decision, LimitOutcome, Turn};
use sluicegate_store::{
    Departure, DepartureTicket, SlotKey, StoreAnswer, StoreOutbox, StoreSettlement, StoreUnits,
};

/// All that a request holds in the store; its owner must give it back before dropping it.
pub(crate) struct StoreHolds {
    pub outbox: Arc<StoreOutbox>,
    pub holds: Vec<RateHold>,
    /// Charges of local shares, owed to the store once the request is forwarded.
    pub pending_debts: SmallVec<[SharedDemand; 1]>,
    /// Debts to the store with units that the response decides.
    open_debts: SmallVec<[SharedDemand; 1]>,
}

/// The hold of a request on one rate in the store.
pub(crate) struct RateHold {
    pub demand: SharedDemand,
    pub rate: usize,
    pub state: HoldState,
}

pub(crate) enum HoldState {
    /// Units, with the mark that a refund must name; `None` once a refund would be unsound.
    Charged(Option<u64>),
    /// A departure: nanoseconds after the answer, and its mark.
    Departing(u64, u64),
    /// The request waits in the queue of departures.
    Queued(DepartureTicket),
    /// Concurrency slots that are still to be asked for.
    SlotsWanted,
    /// Concurrency slots, with those that the key has left; `None` where a dry run lacks them.
    Slots(Option<u64>),
    /// Slots that a paused limit lacks, and that are held all the same.
    SlotsBeyond,
}

// === impl HoldState ===

impl HoldState {
    /// Slots of the store: those `granted`, or `beyond` the limit while it is paused.
    pub(crate) fn of_slots(granted: Option<u64>, beyond: bool) -> HoldState {
        if beyond { HoldState::SlotsBeyond } else { HoldState::Slots(granted) }
    }
}

// === impl StoreHolds ===

impl StoreHolds {
    pub(crate) fn new(outbox: &Arc<StoreOutbox>) -> StoreHolds {
        StoreHolds {
            outbox: outbox.clone(),
            holds: Vec::new(),
            pending_debts: SmallVec::new(),
            open_debts: SmallVec::new(),
        }
    }

    /// The hold behind a claim, if it is a charge in the store that its response settles.
    pub(crate) fn charged_hold(&self, claim: &Claim) -> Option<&RateHold> {
        let ClaimKind::InStore(index) = claim.kind else { return None };
        self.holds.get(index as usize).filter(|hold| matches!(hold.state, HoldState::Charged(Some(_))))
    }

    /// The debt of a limit's local share, for further units.
    pub(crate) fn owed_part(&self, limit_index: u16) -> Option<OwedPart> {
        let demands = self.open_debts.iter().chain(&self.pending_debts);
        let demand = { demands }.find(|debt| debt.limit_index == limit_index)?;
        let (limit, key, outbox) = (demand.limit.clone(), demand.key, self.outbox.clone());
        Some(OwedPart { limit, key, units: demand.units, outbox })
    }

    /// Marks the request as forwarded: charges of local shares become debts to the store, and charges in the store
    /// count against this gateway's own share.
    pub(crate) fn keep_charges(&mut self, claims: &[Claim], now: Now) {
        for claim in claims {
            let ClaimKind::InStore(index) = claim.kind else { continue };
            let hold = self.holds.get(index as usize);
            if let Some(RateHold { state: HoldState::Charged(_), demand, rate }) = hold {
                demand.limit.count_in_share(*rate, &claim.to_units(), now);
            }
        }
        for debt in self.pending_debts.drain(..) {
            let own = |claim: &&Claim| {
                claim.limit_index == debt.limit_index && matches!(claim.kind, ClaimKind::Charge(_))
            };
            for claim in claims.iter().filter(own) {
                self.outbox.debts.open_debt(&debt.limit, claim.rate.into(), debt.key, &debt.units);
            }
            if debt.limit.settles() {
                self.open_debts.push(debt);
            }
        }
    }

    /// Settles a charge of a local share as a debt to the store: corrects it, or adds the units used before the request
    /// was marked as forwarded. A share may charge less than the request reserves, and owes all of it.
    pub(crate) fn settle_debt(&self, claim: &Claim, used: u64) {
        let (outbox, rate) = (&self.outbox, usize::from(claim.rate));
        let own = |debt: &&SharedDemand| debt.limit_index == claim.limit_index;
        if let Some(debt) = self.open_debts.iter().find(own) {
            outbox.settle_debt(&debt.limit, rate, debt.key, &debt.units, (debt.units.cost, used));
        } else if let Some(debt) = self.pending_debts.iter().find(own).filter(|_| used > 0) {
            outbox.settle_debt(&debt.limit, rate, debt.key, &debt.units, (0, used));
        }
    }

    /// Settles a charge in the store, which is then no longer held; `added` are the settlements of the same response,
    /// to which it is added.
    pub(crate) fn settle_hold(
        &mut self,
        claim: &Claim,
        index: u32,
        (used, forgets): (u64, bool),
        added: &mut SmallVec<[StoreSettlement; 1]>,
    ) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        let HoldState::Charged(Some(mark)) = hold.state else { return };
        hold.state = HoldState::Charged(None);
        if forgets {
            hold.demand.limit.forget_rejection(hold.rate, &claim.table_key());
        }
        match added.last_mut().filter(|last| Arc::ptr_eq(&last.limit, &hold.demand.limit)) {
            Some(last) => last.marks.push((hold.rate, mark)),
            None => added.push(StoreSettlement {
                limit: hold.demand.limit.clone(),
                key: hold.demand.key,
                marks: SmallVec::from_iter([(hold.rate, mark)]),
                reserved: hold.demand.units.cost,
                used,
                forgets,
                anchor: hold.demand.units.anchor,
                class: hold.demand.units.key.class,
            }),
        }
    }

    /// Releases all slots until after the wait: another server may have granted them before the wait was known.
    pub(crate) fn postpone_slots(&mut self) {
        for hold in &mut self.holds {
            match hold.state {
                HoldState::Slots(None) => {}
                HoldState::Slots(Some(_)) | HoldState::SlotsBeyond => {
                    self.outbox.slots.release_slots(&hold.slot_key(), hold.demand.units.cost);
                }
                _ => continue,
            }
            hold.state = HoldState::SlotsWanted;
        }
    }

    /// Joins the queues of all departures that are still to come; their times count from `received`.
    pub(crate) fn join_queues(&mut self, received: Now) {
        for hold in &mut self.holds {
            let HoldState::Departing(wait_ns, mark) = hold.state else { continue };
            let SharedDemand { limit, key, units, .. } = &hold.demand;
            let due = Now(received.0.saturating_add(wait_ns));
            let until = limit.max_queue_wait();
            let until = until.map(|time| Now(received.0.saturating_add(duration_ns(time))));
            let departure = Departure { due, cost: units.cost, mark };
            let (turns, shares) = ((units.fair_hash, units.key.class), limit.shares());
            let queued = limit.departures[hold.rate].join_queue(*key, departure, turns, shares, until);
            hold.state = HoldState::Queued(queued);
        }
    }

    /// Checks whether the turn of a hold has come.
    pub(crate) fn poll_turn(&mut self, index: u32, now: Now, waker: &Waker) -> Turn {
        let Some(hold) = self.holds.get_mut(index as usize) else { return Turn::Go };
        let HoldState::Queued(ticket) = hold.state else { return Turn::Go };
        let (turn, freed) =
            hold.demand.limit.departures[hold.rate].poll_turn(&hold.demand.key, ticket, now, waker);
        if matches!(turn, Turn::Go | Turn::Reject(_)) {
            // Its departure may have gone to another request before, so it has none to give back.
            hold.state = HoldState::Charged(None);
        }
        if let Some(departure) = freed {
            self.outbox.queue_refund(hold.to_refund(departure.mark));
        }
        turn
    }

    /// The outcome of a concurrency limit with the slots that are left; `None` for a rate, or before it is known.
    pub(crate) fn slots_outcome(&self, index: u32) -> Option<(LimitOutcome, u64)> {
        match self.holds.get(index as usize)?.state {
            HoldState::Slots(Some(free)) => Some((LimitOutcome::Admit, free)),
            HoldState::Slots(None) | HoldState::SlotsBeyond => Some((LimitOutcome::Reject, 0)),
            _ => None,
        }
    }

    pub(crate) fn holds_slots(&self, index: u32) -> bool {
        let hold = self.holds.get(index as usize);
        hold.is_some_and(|hold| {
            matches!(hold.state, HoldState::Slots(_) | HoldState::SlotsBeyond) || hold.wants_slots()
        })
    }

    /// Gives one hold back; units only before the request was forwarded.
    pub(crate) fn release_hold(&mut self, index: u32, forwarded: bool) {
        let Some(hold) = self.holds.get_mut(index as usize) else { return };
        match std::mem::replace(&mut hold.state, HoldState::Charged(None)) {
            HoldState::Slots(Some(_)) | HoldState::SlotsBeyond => {
                self.outbox.slots.release_slots(&hold.slot_key(), hold.demand.units.cost)
            }
            HoldState::Queued(ticket) => {
                let freed = hold.demand.limit.departures[hold.rate].leave_queue(&hold.demand.key, ticket);
                if let Some(departure) = freed {
                    self.outbox.queue_refund(hold.to_refund(departure.mark));
                }
            }
            HoldState::Charged(Some(mark)) | HoldState::Departing(_, mark) if !forwarded => {
                self.outbox.queue_refund(hold.to_refund(mark));
            }
            _ => {}
        }
    }

    /// Restores the numbers in `decisions` as if nothing were held.
    pub(crate) fn restore_numbers(&self, index: u32, decisions: &mut Decisions) {
        let Some(hold) = self.holds.get(index as usize) else { return };
        let own = |judged: &&mut RateDecision| {
            judged.limit_index == hold.demand.limit_index && usize::from(judged.rate) == hold.rate
        };
        if let (HoldState::Charged(Some(_)) | HoldState::Departing(..), Some(judged)) =
            (&hold.state, decisions.iter_mut().find(own))
        {
            let capacity = hold.demand.limit.rules[hold.rate].capacity_of(hold.demand.units.key.class);
            uncharge_decision(&mut judged.decision, hold.demand.units.cost, capacity);
        }
    }
}

/// Turns it into the decision on a request of `cost` that was not charged.
pub(crate) fn uncharge_decision(decision: &mut Decision, cost: u64, capacity: u64) {
    decision.remaining = decision.remaining.saturating_add(cost).min(capacity);
    decision.reset_ns = 0;
}

/// True if no answer is a rejection.
pub(crate) fn none_rejects<'a>(mut answers: impl Iterator<Item = &'a StoreAnswer>) -> bool {
    answers.all(|answer| !matches!(answer, StoreAnswer::Answered { charged: false, .. } | StoreAnswer::Full))
}

// === impl RateHold ===

impl RateHold {
    pub(crate) fn wants_slots(&self) -> bool {
        matches!(self.state, HoldState::SlotsWanted)
    }

    pub(crate) fn slot_key(&self) -> SlotKey {
        self.demand.slot_key(self.rate)
    }

    fn to_refund(&self, mark: u64) -> StoreUnits {
        self.demand.to_question(self.rate).to_refund(mark)
    }
}
