//! The slots of a concurrency limit, and the queues for them.

use std::task::Waker;

use super::algorithm::adaptive::SlotOutcome;
use super::algorithm::concurrency::{SlotGrant, SlotOutlook, SlotStep, SlotTurn, SlotWaiter};
use super::counters::Meters;
use super::table::CounterKey;
use super::{Limit, Units};
use sluicegate_base::clock::Now;
use sluicegate_model::KeyPart;

// === impl Limit ===

impl Limit {
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
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].acquire_slots(key, slots, unenforced, now),
            _ => Some(SlotGrant { shared: false, waits: false }),
        }
    }

    /// True if requests may wait for the slots of a variant.
    pub fn has_slot_queue(&self, rate: usize) -> bool {
        matches!(&self.meters, Meters::Concurrency(variants) if variants[rate].has_queue())
    }

    /// Takes concurrency slots, or joins the queue for them.
    pub fn take_or_wait(&self, rate: usize, units: &Units, now: Now) -> SlotStep {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].take_or_wait(units, now),
            _ => SlotStep::Taken(SlotGrant { shared: false, waits: false }),
        }
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
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].check_turn(key, waiter, now, waker),
            _ => SlotTurn::Taken,
        }
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
        if let Meters::Concurrency(variants) = &self.meters {
            variants[rate].leave_queue(key, cost, waiter, now);
        }
    }

    /// The slots of a key as one more request would find them.
    pub fn peek_slots(&self, rate: usize, units: &Units, now: Now) -> SlotOutlook {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].peek_slots(units, now),
            _ => SlotOutlook::at_once(0, true),
        }
    }

    /// The place of a limit's slots in the one order in which requests hold slots while they wait for others: those
    /// of few requests (a key of many parts) before those that many share, so that the clients of a full key hold no
    /// slots of all.
    pub fn slot_order(&self, rate: usize) -> (usize, usize) {
        let parts = self.config.key.iter().filter(|part| **part != KeyPart::Global).count();
        let table = match &self.meters {
            Meters::Concurrency(variants) => variants[rate].table_address(),
            _ => 0,
        };
        (usize::MAX - parts, table)
    }

    /// Records the upstream outcome of a request that holds slots.
    #[inline]
    pub fn record_outcome(&self, rate: usize, outcome: SlotOutcome, now: Now) {
        if let Meters::Concurrency(variants) = &self.meters {
            variants[rate].record_outcome(outcome, now);
        }
    }

    /// The variants with an adaptive number of slots.
    pub fn adaptive_variants(&self) -> Vec<usize> {
        match &self.meters {
            Meters::Concurrency(variants) => {
                (0..variants.len()).filter(|&variant| variants[variant].is_adaptive()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The slots that each key of a variant has now.
    pub fn slot_count(&self, variant: usize) -> u64 {
        match &self.meters {
            Meters::Concurrency(variants) => variants[variant].max_units(),
            _ => 0,
        }
    }

    /// Concurrency slots in use.
    pub fn slots_in_use(&self, rate: usize, key: &CounterKey) -> u64 {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].slots_in_use(key),
            _ => 0,
        }
    }

    /// Gives concurrency slots back; a request that waits for them gets them. `now` is called only then.
    pub fn release_slots(
        &self,
        rate: usize,
        key: &CounterKey,
        slots: u64,
        shared: bool,
        now: impl FnOnce() -> Now,
    ) {
        if let Meters::Concurrency(variants) = &self.meters {
            variants[rate].release_slots(key, slots, shared, now);
        }
    }
}
