//! The charges, queued departures and slots that a request holds in the store.

use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::claim::{Claim, ClaimKind};
use super::shared_demand::SharedDemand;
use super::{Decisions, RateDecision};
use crate::settlement::OwedPart;
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, LimitOutcome, Turn};
use sluicegate_store::{
    Departure, DepartureTicket, SharedKey, SharedLimit, SlotCount, SlotKey, StoreAnswer, StoreOutbox,
    StoreQuestion, StoreRefund, StoreSettlement,
};

/// All that a request holds in the store; its owner must give it back before dropping it.
pub(super) struct StoreLease {
    outbox: Arc<StoreOutbox>,
    pub rate_leases: Vec<RateLease>,
    /// Charges of local shares, owed to the store once the request is forwarded.
    pending_debts: SmallVec<[SharedDemand; 1]>,
    /// Debts to the store with units that the response decides.
    open_debts: SmallVec<[SharedDemand; 1]>,
}

/// The hold of a request on one rate in the store.
pub(super) struct RateLease {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub fair: u64,
    pub limit_index: u16,
    pub dry_run: bool,
    pub state: LeaseState,
}

pub(super) enum LeaseState {
    /// Units, with the mark that a refund must name; `None` once a refund would be unsound.
    Charged(Option<u64>),
    /// A departure: nanoseconds after the answer, and its mark.
    Departing(u64, u64),
    /// The request waits in the queue of departures.
    Queued(DepartureTicket),
    /// Concurrency slots that are still to be asked for.
    SlotsWanted,
    /// Concurrency slots; false where a dry run lacks them.
    Slots(bool),
}

// === impl StoreLease ===

impl StoreLease {
    pub(super) fn new(outbox: &Arc<StoreOutbox>) -> StoreLease {
        StoreLease {
            outbox: outbox.clone(),
            rate_leases: Vec::new(),
            pending_debts: SmallVec::new(),
            open_debts: SmallVec::new(),
        }
    }

    pub(super) fn add_debt(&mut self, debt: SharedDemand) {
        self.pending_debts.push(debt);
    }

    pub(super) fn outbox(&self) -> &Arc<StoreOutbox> {
        &self.outbox
    }

    /// The lease behind a claim, if it is a charge in the store that its response settles.
    pub(super) fn charged_lease(&self, claim: &Claim) -> Option<&RateLease> {
        let ClaimKind::Shared(index) = claim.kind else { return None };
        self.rate_leases.get(index as usize).filter(|_| self.is_charge(index))
    }

    /// The debt of a limit's local share, for further units.
    pub(super) fn owed_part(&self, limit_index: u16) -> Option<OwedPart> {
        let demands = self.open_debts.iter().chain(&self.pending_debts);
        let demand = { demands }.find(|debt| debt.limit_index == limit_index)?;
        let (limit, key, outbox) = (demand.limit.clone(), demand.key, self.outbox.clone());
        Some(OwedPart { limit, key, units: demand.units, outbox })
    }

    /// Marks the request as forwarded: charges of local shares become debts to the store, and charges in the store
    /// count against this gateway's own share.
    pub(super) fn keep_charges(&mut self, claims: &[Claim], now: Now) {
        for claim in claims {
            let ClaimKind::Shared(index) = claim.kind else { continue };
            let lease = self.rate_leases.get(index as usize);
            if let Some(RateLease { state: LeaseState::Charged(_), limit, rate, .. }) = lease {
                limit.count_in_share(*rate, &claim.to_units(), now);
            }
        }
        for debt in self.pending_debts.drain(..) {
            let own = |claim: &&Claim| {
                claim.limit_index == debt.limit_index && matches!(claim.kind, ClaimKind::Charge(_))
            };
            for claim in claims.iter().filter(own) {
                self.outbox.open_debt(&debt.limit, claim.rate.into(), debt.key, &debt.units);
            }
            if debt.limit.settles() {
                self.open_debts.push(debt);
            }
        }
    }

    /// Settles a charge of a local share as a debt to the store: corrects it, or adds the units used before the request
    /// was marked as forwarded. A share may charge less than the request reserves, and owes all of it.
    pub(super) fn settle_debt(&self, claim: &Claim, used: u64) {
        let (outbox, rate) = (&self.outbox, usize::from(claim.rate));
        let own = |debt: &&SharedDemand| debt.limit_index == claim.limit_index;
        if let Some(debt) = self.open_debts.iter().find(own) {
            outbox.settle_debt(&debt.limit, rate, debt.key, &debt.units, (debt.units.cost, used));
        } else if let Some(debt) = self.pending_debts.iter().find(own).filter(|_| used > 0) {
            outbox.settle_debt(&debt.limit, rate, debt.key, &debt.units, (0, used));
        }
    }

    /// True if a lease is a charge in the store that its response settles.
    pub(super) fn is_charge(&self, index: u32) -> bool {
        let lease = self.rate_leases.get(index as usize);
        lease.is_some_and(|lease| matches!(lease.state, LeaseState::Charged(Some(_))))
    }

    /// Settles a charge in the store, which is then no longer held; `added` are the settlements of the same response,
    /// to which it is added.
    pub(super) fn settle_lease(
        &mut self,
        claim: &Claim,
        index: u32,
        (used, forgets): (u64, bool),
        added: &mut SmallVec<[StoreSettlement; 1]>,
    ) {
        let Some(lease) = self.rate_leases.get_mut(index as usize) else { return };
        let LeaseState::Charged(Some(mark)) = std::mem::replace(&mut lease.state, LeaseState::Charged(None))
        else {
            return;
        };
        if forgets {
            lease.limit.forget_rejection(lease.rate, &claim.table_key());
        }
        match added.last_mut().filter(|last| Arc::ptr_eq(&last.limit, &lease.limit)) {
            Some(last) => last.marks.push((lease.rate, mark)),
            None => added.push(StoreSettlement {
                limit: lease.limit.clone(),
                key: lease.key,
                marks: SmallVec::from_iter([(lease.rate, mark)]),
                reserved: lease.cost,
                used,
                forgets,
            }),
        }
    }

    pub(super) fn queue_settlements(&self, settlements: SmallVec<[StoreSettlement; 1]>) {
        settlements.into_iter().for_each(|one| self.outbox.settlements.queue_settlement(one));
    }

    /// Adds a lease and returns its index; `enforced` is the decision behind it, unless that is not enforced.
    pub(super) fn add_lease(&mut self, mut lease: RateLease, enforced: Option<&Decision>) -> u32 {
        if let (LeaseState::Charged(Some(mark)), Some(decision)) = (&lease.state, enforced)
            && decision.outcome == LimitOutcome::Wait
        {
            lease.state = LeaseState::Departing(decision.wait_ns, *mark);
        }
        self.rate_leases.push(lease);
        (self.rate_leases.len() - 1) as u32
    }

    /// Releases all slots until after the wait: another server may have granted them before the wait was known.
    pub(super) fn postpone_slots(&mut self) {
        for lease in &mut self.rate_leases {
            let LeaseState::Slots(granted) = lease.state else { continue };
            if granted {
                self.outbox.slots.release_slots(&lease.slot_key(), lease.cost);
            }
            lease.state = LeaseState::SlotsWanted;
        }
    }

    /// Joins the queues of all departures that are still to come; their times count from `received`.
    pub(super) fn join_queues(&mut self, received: Now) {
        for lease in &mut self.rate_leases {
            let LeaseState::Departing(wait_ns, mark) = lease.state else { continue };
            let due = Now(received.0.saturating_add(wait_ns));
            let until = lease.limit.max_queue_wait().map(|time| {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                Now(received.0.saturating_add(ns))
            });
            let departure = Departure { due, cost: lease.cost, mark };
            let departures = &lease.limit.departures[lease.rate];
            lease.state = LeaseState::Queued(departures.join_queue(lease.key, departure, lease.fair, until));
        }
    }

    /// Checks whether the turn of a lease has come.
    pub(super) fn poll_turn(&mut self, index: u32, now: Now, waker: &Waker) -> Turn {
        let Some(lease) = self.rate_leases.get_mut(index as usize) else { return Turn::Go };
        let LeaseState::Queued(ticket) = lease.state else { return Turn::Go };
        let (turn, freed) = lease.limit.departures[lease.rate].poll_turn(&lease.key, ticket, now, waker);
        if matches!(turn, Turn::Go | Turn::Reject(_)) {
            // Its departure may have gone to another request before, so it has none to give back.
            lease.state = LeaseState::Charged(None);
        }
        if let Some(departure) = freed {
            self.outbox.queue_refund(lease.to_refund(departure.mark));
        }
        turn
    }

    /// The outcome of a concurrency limit; `None` for a rate, or before it is known.
    pub(super) fn slots_outcome(&self, index: u32) -> Option<LimitOutcome> {
        match self.rate_leases.get(index as usize)?.state {
            LeaseState::Slots(true) => Some(LimitOutcome::Admit),
            LeaseState::Slots(false) => Some(LimitOutcome::Reject),
            _ => None,
        }
    }

    pub(super) fn holds_slots(&self, index: u32) -> bool {
        let lease = self.rate_leases.get(index as usize);
        lease.is_some_and(|lease| matches!(lease.state, LeaseState::Slots(_) | LeaseState::SlotsWanted))
    }

    /// Gives one lease back; units only before the request was forwarded.
    pub(super) fn release_lease(&mut self, index: u32, forwarded: bool) {
        let Some(lease) = self.rate_leases.get_mut(index as usize) else { return };
        match std::mem::replace(&mut lease.state, LeaseState::Charged(None)) {
            LeaseState::Slots(true) => self.outbox.slots.release_slots(&lease.slot_key(), lease.cost),
            LeaseState::Queued(ticket) => {
                let freed = lease.limit.departures[lease.rate].leave_queue(&lease.key, ticket);
                if let Some(departure) = freed {
                    self.outbox.queue_refund(lease.to_refund(departure.mark));
                }
            }
            LeaseState::Charged(Some(mark)) | LeaseState::Departing(_, mark) if !forwarded => {
                self.outbox.queue_refund(lease.to_refund(mark));
            }
            _ => {}
        }
    }

    /// Restores the numbers in `decisions` as if nothing were held.
    pub(super) fn restore_numbers(&self, index: u32, decisions: &mut Decisions) {
        let Some(lease) = self.rate_leases.get(index as usize) else { return };
        let own = |judged: &&mut RateDecision| {
            judged.limit_index == lease.limit_index && usize::from(judged.rate) == lease.rate
        };
        if let (LeaseState::Charged(Some(_)) | LeaseState::Departing(..), Some(judged)) =
            (&lease.state, decisions.iter_mut().find(own))
        {
            uncharge_decision(&mut judged.decision, lease.cost, lease.limit.rules[lease.rate].capacity());
        }
    }

    /// Refunds a lease of a request that does not pass.
    pub(super) fn refund_lease(&self, lease: RateLease) {
        if let LeaseState::Charged(Some(mark)) = lease.state {
            self.outbox.queue_refund(lease.to_refund(mark));
        }
    }
}

/// Turns it into the decision on a request of `cost` that was not charged.
pub(super) fn uncharge_decision(decision: &mut Decision, cost: u64, capacity: u64) {
    decision.remaining = decision.remaining.saturating_add(cost).min(capacity);
    decision.reset_ns = 0;
}

/// True if no answer is a rejection.
pub(super) fn none_rejects<'a>(mut answers: impl Iterator<Item = &'a StoreAnswer>) -> bool {
    answers.all(|answer| !matches!(answer, StoreAnswer::Answered { charged: false, .. } | StoreAnswer::Full))
}

// === impl RateLease ===

impl RateLease {
    pub(super) fn new(demand: &SharedDemand, rate: usize, state: LeaseState) -> RateLease {
        RateLease {
            limit: demand.limit.clone(),
            rate,
            key: demand.key,
            cost: demand.units.cost,
            fair: demand.units.fair_hash,
            limit_index: demand.limit_index,
            dry_run: demand.limit.is_dry_run() || demand.units.unenforced,
            state,
        }
    }

    pub(super) fn to_question(&self, slot_count: SlotCount) -> StoreQuestion<'_> {
        let RateLease { limit, rate, key, cost, limit_index, dry_run, .. } = self;
        let (rate, key, cost) = (*rate, *key, *cost);
        StoreQuestion {
            limit,
            rate,
            key,
            cost,
            limit_index: *limit_index,
            dry_run: *dry_run,
            slot_count,
            in_process: 0,
            owed: 0,
        }
    }

    pub(super) fn wants_slots(&self) -> bool {
        matches!(self.state, LeaseState::SlotsWanted)
    }

    pub(super) fn slot_key(&self) -> SlotKey {
        self.limit.slot_key(self.rate, self.key)
    }

    fn to_refund(&self, mark: u64) -> StoreRefund {
        StoreRefund { limit: self.limit.clone(), rate: self.rate, key: self.key, cost: self.cost, mark }
    }
}
