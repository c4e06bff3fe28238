//! The slots of a concurrency limit, and the queues for them. Such a limit has one rate per variant, so the indices of
//! both are equal.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::algorithm::adaptive::SlotOutcome;
use super::algorithm::concurrency::{
    ConcurrencyParams, PERIOD_NS, SlotGrant, SlotLimit, SlotOutlook, SlotQueues, SlotStep, SlotTurn,
    SlotWaiter,
};
use super::algorithm::meter::Meter;
use super::algorithm::queue::{NO_NODE, WaiterState, Wakers, waking};
use super::counters::Meters;
use super::table::CounterKey;
use super::{Limit, LimitOutcome, Units};
use sluicegate_base::clock::Now;
use sluicegate_model::KeyPart;

/// The slots of a limit that judges rates.
const NOT_LIMITED: SlotGrant = SlotGrant { overflow: false, waits: false, rejects: false, free: 0 };

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

    /// Takes concurrency slots. `None` = too few are free. An unenforced key also takes those that it would have to
    /// wait for.
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
        own.table.update_entry(key, now, |entry, queues, params, overflow| {
            let (params, wanted) = (own.params_here(params), (key.class, slots));
            params.take_slots((entry, queues), wanted, params.dry_queue(unenforced), overflow, now)
        })
    }

    /// True if requests may wait for the slots of a rate.
    pub fn has_slot_queue(&self, rate: usize) -> bool {
        self.slots(rate).is_some_and(|slots| slots.params.queue > 0)
    }

    /// Takes concurrency slots, or joins the queue for them.
    pub fn take_or_wait(&self, rate: usize, units: &Units, now: Now) -> SlotStep {
        let Some(slots) = self.slots(rate) else { return SlotStep::Taken(NOT_LIMITED) };
        waking(|wakers| {
            slots.table.update_entry(&units.key, now, |entry, queues, params, overflow| {
                params.hand_over(entry, queues, now, wakers);
                let (wanted, dry) = ((units.key.class, units.cost), params.dry_queue(units.unenforced));
                match params.take_slots((entry, queues), wanted, dry, overflow, now) {
                    Some(grant) => SlotStep::Taken(grant),
                    None => params.join_queue((entry, queues), units, overflow, now, wakers),
                }
            })
        })
    }

    /// Checks whether a waiter has its slots. While it has to wait, its waker stays in the queue.
    pub fn check_slots(
        &self,
        rate: usize,
        key: &CounterKey,
        waiter: &SlotWaiter,
        now: Now,
        waker: &Waker,
    ) -> SlotTurn {
        let Some(own) = self.slots(rate) else { return SlotTurn::Taken };
        waking(|wakers| {
            let turn = own.table.update_existing(key, waiter.overflow, |entry, queues, params| {
                params.hand_over(entry, queues, now, wakers);
                let mut slots = queues.read_entry(*entry, key.class);
                let until = params.max_wait_ns.map(|ns| Now(waiter.joined.0.saturating_add(ns)));
                let state = queues.waiters.waiter_state(waiter.node);
                if matches!(state, Some(WaiterState::Waiting)) && until.is_none_or(|until| now < until) {
                    let is_next = queues.waiters.set_waker(slots.queue, waiter.node, waker, wakers);
                    // Slots that another class does not need any more are free without an event.
                    let looks_again =
                        (is_next && params.shares.is_some()).then_some(Now(now.0.saturating_add(PERIOD_NS)));
                    return SlotTurn::Wait(until.into_iter().chain(looks_again).min());
                }
                match queues.waiters.remove_waiter(&mut slots.queue, waiter.node, wakers) {
                    Some((WaiterState::Departed(..), _)) => return SlotTurn::Taken,
                    Some((WaiterState::Waiting, _)) => {
                        params.waiting.fetch_sub(1, Relaxed);
                        queues.write_entry(entry, key.class, slots);
                    }
                    Some((WaiterState::Displaced, _)) | None => {}
                }
                SlotTurn::Reject(queues.estimate_wait(&slots, now))
            });
            turn.unwrap_or_else(|| {
                remove_displaced(own, key, waiter, wakers);
                SlotTurn::Reject(1)
            })
        })
    }

    /// A waiter leaves the queue for slots; if it has its slots already, they go to the next. `now` is called only in
    /// that case.
    pub fn leave_slot_queue(
        &self,
        rate: usize,
        key: &CounterKey,
        cost: u64,
        waiter: &SlotWaiter,
        now: impl FnOnce() -> Now,
    ) {
        let Some(own) = self.slots(rate) else { return };
        waking(|wakers| {
            let left = own.table.update_existing(key, waiter.overflow, |entry, queues, params| {
                let mut slots = queues.read_entry(*entry, key.class);
                match queues.waiters.remove_waiter(&mut slots.queue, waiter.node, wakers) {
                    Some((WaiterState::Waiting, _)) => {
                        params.waiting.fetch_sub(1, Relaxed);
                        queues.write_entry(entry, key.class, slots);
                    }
                    Some((WaiterState::Departed(..), _)) => {
                        params.free_slots(entry, queues, (key.class, cost), now(), wakers)
                    }
                    Some((WaiterState::Displaced, _)) | None => {}
                }
            });
            if left.is_none() {
                remove_displaced(own, key, waiter, wakers);
            }
        });
    }

    /// The slots of a key as one more request would find them.
    pub fn peek_slots(&self, rate: usize, units: &Units, now: Now) -> SlotOutlook {
        let Some(own) = self.slots(rate) else { return SlotOutlook::at_once(0, true) };
        own.table.peek_entry(&units.key, |entry, queues, params| {
            let params = own.params_here(params);
            let slots = queues.read_entry(*entry, units.key.class);
            let (in_flight, allowed) = (u64::from(slots.in_flight), params.max.allowed_slots());
            let free = match &params.shares {
                Some(shares) => params.class_reach(shares, *entry, queues, units.key.class, now),
                None if slots.queue == NO_NODE => allowed.saturating_sub(in_flight),
                None => 0,
            };
            let outlook = |outcome, position| {
                let wait_ns = queues.estimate_wait(&slots, now);
                SlotOutlook { outcome, free, position, wait_ns }
            };
            if units.cost <= free {
                return SlotOutlook { wait_ns: 0, ..outlook(LimitOutcome::Admit, 0) };
            }
            let dry_queue = params.dry_queue(units.unenforced);
            if dry_queue > 0 {
                let beyond = (in_flight + units.cost).saturating_sub(allowed);
                return match beyond <= dry_queue {
                    true => outlook(LimitOutcome::Wait, beyond),
                    false => outlook(LimitOutcome::Reject, 0),
                };
            }
            match params.find_position(*entry, queues, units) {
                Some((found, _)) => outlook(LimitOutcome::Wait, found.before + 1),
                None => outlook(LimitOutcome::Reject, 0),
            }
        })
    }

    /// The place of a limit's slots in the one order in which requests hold slots while they wait for others: those
    /// of few requests (a key of many parts) before those that many share, so that the clients of a full key hold no
    /// slots of all.
    pub fn slot_order(&self, rate: usize) -> (usize, usize) {
        let parts = self.config.key.iter().filter(|part| **part != KeyPart::Global).count();
        // The table tells its slots from those of any other limit, also after a reload.
        (usize::MAX - parts, self.slots(rate).map_or(0, |slots| Arc::as_ptr(&slots.table).addr()))
    }

    /// Records the upstream outcome of a request that holds slots.
    #[inline]
    pub fn record_outcome(&self, rate: usize, outcome: SlotOutcome, now: Now) {
        if let Some(slots) = self.slots(rate)
            && let SlotLimit::Adaptive(adaptive) = &slots.params.max
            && adaptive.record_outcome(outcome, now)
            && slots.waiter_count() > 0
        {
            wake_heads(slots);
        }
    }

    /// The variants with an adaptive number of slots.
    pub fn adaptive_variants(&self) -> Vec<usize> {
        let is_adaptive = |variant: &usize| {
            self.slots(*variant).is_some_and(|slots| matches!(slots.params.max, SlotLimit::Adaptive(_)))
        };
        (0..self.spans.len()).filter(is_adaptive).collect()
    }

    /// The slots that each key of a variant has now.
    pub fn slot_count(&self, variant: usize) -> u64 {
        self.slots(variant).map_or(0, |slots| slots.params.max.allowed_slots())
    }

    /// Concurrency slots in use.
    pub fn slots_in_use(&self, rate: usize, key: &CounterKey) -> u64 {
        let Some(own) = self.slots(rate) else { return 0 };
        own.table.peek_entry(key, |entry, queues, _| queues.read_entry(*entry, key.class).in_flight.into())
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
        let Some(own) = self.slots(rate) else { return };
        waking(|wakers| {
            own.table.update_existing(key, overflow, |entry, queues, params| {
                if entry.has_waiters() {
                    params.free_slots(entry, queues, (key.class, slots), now(), wakers);
                } else {
                    entry.0 = u64::from(entry.0).saturating_sub(slots) as u32;
                }
            })
        });
    }
}

/// Removes a waiter that was displaced: it may outlast the entry of its key.
fn remove_displaced(
    slots: &Meter<ConcurrencyParams>,
    key: &CounterKey,
    waiter: &SlotWaiter,
    wakers: &mut Wakers,
) {
    slots.table.update_charged(key, waiter.overflow, |_, queues, _| {
        queues.waiters.remove_waiter(&mut { NO_NODE }, waiter.node, wakers);
    });
}

/// Wakes the next waiter of every key, to take slots that the limit has now.
#[cold]
fn wake_heads(slots: &Meter<ConcurrencyParams>) {
    slots.table.for_each_extra(SlotQueues::wake_heads);
}
