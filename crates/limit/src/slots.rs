//! The slots of a concurrency limit, and the queues for them. Such a limit has one rate per variant, so the indices of
//! both are equal.

use std::task::Waker;

use super::algorithm::adaptive::SlotOutcome;
use super::algorithm::concurrency::{
    ConcurrencyParams, SlotGrant, SlotOutlook, SlotStep, SlotTurn, SlotWaiter,
};
use super::algorithm::meter::Meter;
use super::counters::Meters;
use super::table::CounterKey;
use super::{Limit, Units};
use sluicegate_base::clock::Now;
use sluicegate_model::KeyPart;

/// The slots of a limit that judges rates.
const NOT_LIMITED: SlotGrant = SlotGrant { overflow: false, waits: false };

// === impl Limit ===

impl Limit {
    /// The slots of a rate, if it counts requests in flight.
    #[inline]
    fn slots(&self, rate: usize) -> Option<&Meter<ConcurrencyParams>> {
        match &self.meters {
            Meters::Concurrency(rates) => rates.get(rate),
            _ => None,
        }
    }

    /// Takes concurrency slots. `None` = too few are free.
    #[inline]
    pub fn acquire_slots(
        &self,
        rate: usize,
        key: &CounterKey,
        slots: u64,
        unenforced: bool,
        now: Now,
    ) -> Option<SlotGrant> {
        let Some(own) = self.slots(rate) else { return Some(NOT_LIMITED) };
        own.acquire_slots(key, slots, unenforced, now)
    }

    /// True if requests may wait for the slots of a rate.
    pub fn has_slot_queue(&self, rate: usize) -> bool {
        self.slots(rate).is_some_and(Meter::has_queue)
    }

    /// Takes concurrency slots, or joins the queue for them.
    pub fn take_or_wait(&self, rate: usize, units: &Units, now: Now) -> SlotStep {
        self.slots(rate).map_or(SlotStep::Taken(NOT_LIMITED), |slots| slots.take_or_wait(units, now))
    }

    /// Checks whether a waiter has its slots.
    pub fn check_slots(
        &self,
        rate: usize,
        key: &CounterKey,
        waiter: &SlotWaiter,
        now: Now,
        waker: &Waker,
    ) -> SlotTurn {
        self.slots(rate).map_or(SlotTurn::Taken, |slots| slots.check_turn(key, waiter, now, waker))
    }

    /// A waiter leaves the queue for slots; those behind it move up.
    pub fn leave_slot_queue(
        &self,
        rate: usize,
        key: &CounterKey,
        cost: u64,
        waiter: &SlotWaiter,
        now: impl FnOnce() -> Now,
    ) {
        if let Some(slots) = self.slots(rate) {
            slots.leave_queue(key, cost, waiter, now);
        }
    }

    /// The slots of a key as one more request would find them.
    pub fn peek_slots(&self, rate: usize, units: &Units, now: Now) -> SlotOutlook {
        self.slots(rate).map_or(SlotOutlook::at_once(0, true), |slots| slots.peek_slots(units, now))
    }

    /// The place of a limit's slots in the one order in which requests hold slots while they wait for others: those
    /// of few requests (a key of many parts) before those that many share, so that the clients of a full key hold no
    /// slots of all.
    pub fn slot_order(&self, rate: usize) -> (usize, usize) {
        let parts = self.config.key.iter().filter(|part| **part != KeyPart::Global).count();
        (usize::MAX - parts, self.slots(rate).map_or(0, Meter::table_address))
    }

    /// Records the upstream outcome of a request that holds slots.
    #[inline]
    pub fn record_outcome(&self, rate: usize, outcome: SlotOutcome, now: Now) {
        if let Some(slots) = self.slots(rate) {
            slots.record_outcome(outcome, now);
        }
    }

    /// The variants with an adaptive number of slots.
    pub fn adaptive_variants(&self) -> Vec<usize> {
        let is_adaptive = |variant: &usize| self.slots(*variant).is_some_and(Meter::is_adaptive);
        (0..self.spans.len()).filter(is_adaptive).collect()
    }

    /// The slots that each key of a variant has now.
    pub fn slot_count(&self, variant: usize) -> u64 {
        self.slots(variant).map_or(0, Meter::max_units)
    }

    /// Concurrency slots in use.
    pub fn slots_in_use(&self, rate: usize, key: &CounterKey) -> u64 {
        self.slots(rate).map_or(0, |slots| slots.slots_in_use(key))
    }

    /// Gives concurrency slots back; a request that waits for them gets them. `now` is called only then.
    pub fn release_slots(
        &self,
        rate: usize,
        key: &CounterKey,
        slots: u64,
        overflow: bool,
        now: impl FnOnce() -> Now,
    ) {
        if let Some(own) = self.slots(rate) {
            own.release_slots(key, slots, overflow, now);
        }
    }
}
