//! Waits for slots: joins the queue of a key, checks a waiter's turn, leaves, and hands freed slots over. The queue
//! and the slots of a key that has waiters are beside the table, under the lock of its shard.

use std::sync::atomic::Ordering::Relaxed;

use super::freed_rate::FreedRate;
use super::{ConcurrencyEntry, ConcurrencyParams, SlotGrant, SlotLimit, WAITED};
use crate::algorithm::meter::{Locked, Meter};
use crate::algorithm::queue::{FoundPosition, NO_NODE, NewWaiter, ShardQueues, Wakers};
use crate::algorithm::slab::Slab;
use crate::table::CounterKey;
use crate::{LimitOutcome, Units};
use sluicegate_base::clock::Now;

/// The slots and waiters of one shard.
#[derive(Default)]
pub(crate) struct SlotQueues {
    waited: Slab<WaitedSlots>,
    pub(crate) waiters: ShardQueues,
}

/// The slots of a key with its queue; kept as long as a request waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitedSlots {
    pub in_flight: u32,
    /// The queue in [`ShardQueues`]; [`NO_NODE`] = no request waits.
    pub queue: u32,
    pub freed: FreedRate,
}

/// A request in the queue of a key.
#[derive(Debug, Clone, Copy)]
pub struct SlotWaiter {
    pub(crate) node: u32,
    /// The request waits for an overflow counter.
    pub overflow: bool,
    pub(crate) joined: Now,
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
    /// Units that wait for slots of a key.
    pub(crate) fn waiting_units(&self, key: &CounterKey) -> u64 {
        self.table
            .peek_entry(key, |entry, queues, _| queues.waiters.queued_units(queues.read_entry(*entry).queue))
    }
}

// === impl ConcurrencyParams ===

impl ConcurrencyParams {
    /// Hands free slots to the waiters, each in its turn.
    pub(crate) fn hand_over(
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
    pub(crate) fn free_slots(
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
    pub(crate) fn join_queue(
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
    pub(crate) fn find_position(
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
    pub(crate) fn read_entry(&self, entry: ConcurrencyEntry) -> WaitedSlots {
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
    pub(crate) fn write_entry(&mut self, entry: &mut ConcurrencyEntry, slots: WaitedSlots) {
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

    /// The wakers of the next waiter of every key.
    pub(crate) fn wake_heads(&self) -> Wakers {
        let mut wakers = Wakers::new();
        self.waited.values().for_each(|slots| self.waiters.wake_head(slots.queue, &mut wakers));
        wakers
    }

    /// The wait of one more request behind all waiters.
    pub(crate) fn estimate_wait(&self, slots: &WaitedSlots, now: Now) -> u64 {
        let ahead = self.waiters.queued_units(slots.queue);
        match slots.queue {
            NO_NODE => 1,
            _ => slots.freed.estimate_wait(ahead.saturating_add(1), now),
        }
    }
}
