//! Waits for slots: joins the queue of a key, checks a waiter's turn, leaves, and hands freed slots over. The queue
//! and the slots of a key that has waiters are beside the table, under the lock of its shard.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::freed_rate::FreedRate;
use super::{ConcurrencyEntry, ConcurrencyParams, SlotGrant, SlotLimit, WAITED};
use crate::algorithm::meter::{Locked, Meter};
use crate::algorithm::queue::{FoundPosition, NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers, waking};
use crate::algorithm::slab::Slab;
use crate::table::CounterKey;
use crate::{LimitOutcome, Units};
use sluicegate_base::clock::Now;

/// The slots and waiters of one shard.
#[derive(Default)]
pub(crate) struct SlotQueues {
    waited: Slab<WaitedSlots>,
    pub(super) waiters: ShardQueues,
}

/// The slots of a key with its queue; kept as long as a request waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitedSlots {
    pub in_flight: u32,
    /// The queue in [`ShardQueues`]; [`NO_NODE`] = no request waits.
    pub queue: u32,
    pub freed: FreedRate,
}

/// A request in the queue of a key.
#[derive(Debug, Clone, Copy)]
pub struct SlotWaiter {
    node: u32,
    /// The request waits for an overflow counter.
    pub overflow: bool,
    joined: Now,
}

/// The outcome for a request that wants slots.
#[derive(Debug, Clone, Copy)]
pub enum SlotStep {
    /// The request has its slots.
    Taken(SlotGrant),
    /// The request has joined the queue of its key.
    Waits(SlotWaiter),
    /// The queue is full; the wait would be about so many nanoseconds.
    Full(u64),
}

/// The state of a waiter's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotTurn {
    /// The waiter has its slots, and has left the queue.
    Taken,
    /// The waiter is woken when its state changes; at this moment its wait ends.
    Wait(Option<Now>),
    /// The waiter has left the queue: another displaced it, or its wait is over. Another wait would last about so many
    /// nanoseconds.
    Reject(u64),
}

/// The slots of a key as one more request would find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOutlook {
    /// The outcome that one more request would have at once.
    pub outcome: LimitOutcome,
    /// Free slots.
    pub free: u64,
    /// The position in the queue, from 1; 0 if it would not wait.
    pub position: u64,
    /// The estimated wait, in nanoseconds.
    pub wait_ns: u64,
}

// === impl SlotOutlook ===

impl SlotOutlook {
    /// Slots that no request waits for.
    pub fn at_once(free: u64, admits: bool) -> SlotOutlook {
        let outcome = if admits { LimitOutcome::Admit } else { LimitOutcome::Reject };
        SlotOutlook { outcome, free, position: 0, wait_ns: 0 }
    }
}

// === impl Meter ===

impl Meter<ConcurrencyParams> {
    /// Takes slots, or joins the queue for them.
    pub(crate) fn take_or_wait(&self, units: &Units, now: Now) -> SlotStep {
        waking(|wakers| {
            self.table.update_entry(&units.key, now, |entry, queues, params, overflow| {
                params.hand_over(entry, queues, now, wakers);
                match params.take_slots(entry, units.cost, params.dry_queue(units.unenforced), overflow) {
                    Some(grant) => SlotStep::Taken(grant),
                    None => params.join_queue((entry, queues), units, overflow, now, wakers),
                }
            })
        })
    }

    /// Checks a waiter's turn. While it has to wait, its waker stays in the queue.
    pub(crate) fn check_turn(
        &self,
        key: &CounterKey,
        waiter: &SlotWaiter,
        now: Now,
        waker: &Waker,
    ) -> SlotTurn {
        waking(|wakers| {
            let turn = self.table.update_existing(key, waiter.overflow, |entry, queues, params| {
                params.hand_over(entry, queues, now, wakers);
                let mut slots = queues.read_entry(*entry);
                let until = params.max_wait_ns.map(|ns| Now(waiter.joined.0.saturating_add(ns)));
                let state = queues.waiters.waiter_state(waiter.node);
                if matches!(state, Some(WaiterState::Waiting)) && until.is_none_or(|until| now < until) {
                    queues.waiters.set_waker(slots.queue, waiter.node, waker, wakers);
                    return SlotTurn::Wait(until);
                }
                match queues.waiters.remove_waiter(&mut slots.queue, waiter.node, wakers) {
                    Some((WaiterState::Departed(..), _)) => return SlotTurn::Taken,
                    Some((WaiterState::Waiting, _)) => {
                        params.waiting.fetch_sub(1, Relaxed);
                        queues.write_entry(entry, slots);
                    }
                    Some((WaiterState::Displaced, _)) | None => {}
                }
                SlotTurn::Reject(queues.estimate_wait(&slots, now))
            });
            // A displaced waiter may outlast the entry of its key.
            turn.unwrap_or_else(|| {
                self.remove_displaced(key, waiter, wakers);
                SlotTurn::Reject(1)
            })
        })
    }

    /// A waiter leaves; if it has its slots already, they go to the next. `now` is called only in that case.
    pub(crate) fn leave_queue(
        &self,
        key: &CounterKey,
        cost: u64,
        waiter: &SlotWaiter,
        now: impl FnOnce() -> Now,
    ) {
        waking(|wakers| {
            let left = self.table.update_existing(key, waiter.overflow, |entry, queues, params| {
                let mut slots = queues.read_entry(*entry);
                match queues.waiters.remove_waiter(&mut slots.queue, waiter.node, wakers) {
                    Some((WaiterState::Waiting, _)) => {
                        params.waiting.fetch_sub(1, Relaxed);
                        queues.write_entry(entry, slots);
                    }
                    Some((WaiterState::Departed(..), _)) => {
                        params.free_slots(entry, queues, cost, now(), wakers)
                    }
                    Some((WaiterState::Displaced, _)) | None => {}
                }
            });
            if left.is_none() {
                self.remove_displaced(key, waiter, wakers);
            }
        });
    }

    fn remove_displaced(&self, key: &CounterKey, waiter: &SlotWaiter, wakers: &mut Wakers) {
        self.table.update_charged(key, waiter.overflow, |_, queues, _| {
            queues.waiters.remove_waiter(&mut { NO_NODE }, waiter.node, wakers);
        });
    }

    /// Wakes the next waiter of every key, to take slots that the limit has now.
    #[cold]
    pub(super) fn wake_heads(&self) {
        self.table.for_each_extra(|queues| {
            let mut wakers = Wakers::new();
            queues.wake_heads(&mut wakers);
            wakers
        });
    }

    /// Units that wait for slots of a key.
    pub(crate) fn waiting_units(&self, key: &CounterKey) -> u64 {
        self.table
            .peek_entry(key, |entry, queues, _| queues.waiters.queued_units(queues.read_entry(*entry).queue))
    }

    /// The slots of a key as one more request would find them.
    pub(crate) fn peek_slots(&self, units: &Units, now: Now) -> SlotOutlook {
        self.table.peek_entry(&units.key, |entry, queues, params| {
            let params = self.params_here(params);
            let slots = queues.read_entry(*entry);
            let (in_flight, allowed) = (u64::from(slots.in_flight), params.max.allowed_slots());
            let free = if slots.queue == NO_NODE { allowed.saturating_sub(in_flight) } else { 0 };
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
            match params.find_position(&slots, queues, units.fair_hash) {
                Some(found) => outlook(LimitOutcome::Wait, found.before + 1),
                None => outlook(LimitOutcome::Reject, 0),
            }
        })
    }
}

// === impl ConcurrencyParams ===

impl ConcurrencyParams {
    /// Hands free slots to the waiters, each in its turn.
    pub(super) fn hand_over(
        &self,
        entry: &mut ConcurrencyEntry,
        queues: &mut SlotQueues,
        now: Now,
        wakers: &mut Wakers,
    ) {
        if entry.has_waiters() {
            self.free_slots(entry, queues, 0, now, wakers);
        }
    }

    /// Frees slots, and hands those that are free to the waiters.
    pub(super) fn free_slots(
        &self,
        entry: &mut ConcurrencyEntry,
        queues: &mut SlotQueues,
        freed: u64,
        now: Now,
        wakers: &mut Wakers,
    ) {
        let mut slots = queues.read_entry(*entry);
        let mut in_flight = u64::from(slots.in_flight).saturating_sub(freed);
        while slots.queue != NO_NODE {
            let cost = queues.waiters.head_cost(slots.queue);
            if in_flight.saturating_add(cost) > self.max.allowed_slots() {
                break;
            }
            in_flight += cost;
            slots.freed.count_slots(cost, now);
            queues.waiters.release_head(&mut slots.queue, wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
        if let SlotLimit::Adaptive(adaptive) = &self.max {
            adaptive.record_peak(in_flight);
        }
        // Cannot overflow: it is at most the number that the limit allows, or less than before.
        slots.in_flight = in_flight as u32;
        queues.write_entry(entry, slots);
    }

    /// Adds a waiter, which may displace another.
    fn join_queue(
        &self,
        (entry, queues): Locked<'_, Self>,
        units: &Units,
        overflow: bool,
        now: Now,
        wakers: &mut Wakers,
    ) -> SlotStep {
        let mut slots = queues.read_entry(*entry);
        let Some(FoundPosition { displaced, .. }) = self.find_position(&slots, queues, units.fair_hash)
        else {
            return SlotStep::Full(queues.estimate_wait(&slots, now));
        };
        if slots.queue == NO_NODE {
            slots.freed = FreedRate::starting(now);
        }
        if displaced != NO_NODE {
            queues.waiters.displace_waiter(&mut slots.queue, displaced, wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
        let fair_hash = if self.is_fair { units.fair_hash } else { 0 };
        let (cost, span) = (units.cost, units.cost.into());
        let waiter = NewWaiter { fair_hash, cost, span, until: None, since: now };
        let node = queues.waiters.push_waiter(&mut slots.queue, waiter);
        self.waiting.fetch_add(1, Relaxed);
        queues.write_entry(entry, slots);
        SlotStep::Waits(SlotWaiter { node, overflow, joined: now })
    }

    /// The position of one more waiter; `None` = the queue is full.
    fn find_position(
        &self,
        slots: &WaitedSlots,
        queues: &SlotQueues,
        fair_hash: u64,
    ) -> Option<FoundPosition> {
        queues.waiters.find_position(slots.queue, self.queue, self.is_fair.then_some(fair_hash))
    }
}

// === impl SlotQueues ===

impl SlotQueues {
    /// The slots of an entry; without waiters they have an empty queue.
    pub(super) fn read_entry(&self, entry: ConcurrencyEntry) -> WaitedSlots {
        let alone = WaitedSlots {
            in_flight: entry.0,
            queue: NO_NODE,
            freed: FreedRate::starting(Default::default()),
        };
        match entry.has_waiters() {
            true => self.waited.get(entry.0 - WAITED).copied().unwrap_or(alone),
            false => alone,
        }
    }

    /// Stores the slots of an entry: with it if no request waits, else here.
    pub(super) fn write_entry(&mut self, entry: &mut ConcurrencyEntry, slots: WaitedSlots) {
        match (entry.has_waiters(), slots.queue == NO_NODE) {
            (false, true) => entry.0 = slots.in_flight,
            (false, false) => entry.0 = WAITED + self.waited.insert(slots),
            (true, true) => {
                self.waited.remove(entry.0 - WAITED);
                entry.0 = slots.in_flight;
            }
            (true, false) => {
                if let Some(place) = self.waited.get_mut(entry.0 - WAITED) {
                    *place = slots;
                }
            }
        }
    }

    /// Wakes all waiters for slots of an entry.
    pub(super) fn wake_waiters(&self, entry: ConcurrencyEntry, wakers: &mut Wakers) {
        self.waiters.wake_all_waiters(self.read_entry(entry).queue, wakers);
    }

    /// Wakes the next waiter of every key.
    pub(super) fn wake_heads(&self, wakers: &mut Wakers) {
        self.waited.values().for_each(|slots| self.waiters.wake_head(slots.queue, wakers));
    }
    /// The wait of one more request behind all waiters.
    fn estimate_wait(&self, slots: &WaitedSlots, now: Now) -> u64 {
        let ahead = self.waiters.queued_units(slots.queue);
        match slots.queue {
            NO_NODE => 1,
            _ => slots.freed.estimate_wait(ahead.saturating_add(1), now),
        }
    }
}
