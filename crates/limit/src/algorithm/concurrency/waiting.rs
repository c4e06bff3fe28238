//! Waits for slots: joins the queue of a key, checks a waiter's turn, leaves, and hands freed slots over. The queue
//! and the slots of a key that has waiters are beside the table, under the lock of its shard.

use std::sync::atomic::Ordering::Relaxed;

use super::freed_rate::FreedRate;
use super::slot_queues::{ClassSlots, SlotQueues, WaitedSlots};
use super::{ConcurrencyEntry, ConcurrencyParams, SlotGrant, WAITED};
use crate::algorithm::meter::{Locked, Meter};
use crate::algorithm::queue::{FoundPosition, NO_NODE, NewWaiter, Wakers};
use crate::table::CounterKey;
use crate::{LimitOutcome, Units};
use sluicegate_base::clock::Now;

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
        self.table.peek_entry(key, |entry, queues, _| {
            queues.queues_of(*entry).map(|queue| queues.waiters.queued_units(queue)).sum()
        })
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
            self.free_slots(entry, queues, (0, 0), now, wakers);
        }
    }

    /// Frees slots of a class, and hands those that are free to the waiters.
    pub(crate) fn free_slots(
        &self,
        entry: &mut ConcurrencyEntry,
        queues: &mut SlotQueues,
        (class, freed): (u8, u64),
        now: Now,
        wakers: &mut Wakers,
    ) {
        if let Some(shares) = &self.shares {
            return self.free_class_slots(shares, (entry, queues), (class, freed), now, wakers);
        }
        let mut slots = queues.read_entry(*entry, class);
        let mut in_flight = u64::from(slots.in_flight).saturating_sub(freed);
        while slots.queue != NO_NODE {
            let cost = queues.waiters.head_cost(slots.queue);
            if in_flight.saturating_add(cost) > self.max.allowed_slots() && !self.is_paused {
                break;
            }
            in_flight += cost;
            slots.freed.count_slots(cost, now);
            queues.waiters.release_head(&mut slots.queue, wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
        self.max.record_peak(in_flight);
        // Cannot overflow: it is at most the number that the limit allows, or less than before.
        slots.in_flight = in_flight as u32;
        queues.write_entry(entry, class, slots);
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
        let class = units.key.class;
        let mut slots = queues.read_entry(*entry, class);
        let Some((FoundPosition { displaced, .. }, from)) = self.find_position(*entry, queues, units) else {
            queues.note_full(*entry, class, units.cost);
            return SlotStep::Full(queues.estimate_wait(&slots, now));
        };
        if slots.queue == NO_NODE {
            slots.freed = FreedRate::starting(now);
        }
        if displaced != NO_NODE {
            if from == class {
                queues.waiters.displace_waiter(&mut slots.queue, displaced, wakers);
            } else {
                let mut other = queues.read_entry(*entry, from);
                queues.waiters.displace_waiter(&mut other.queue, displaced, wakers);
                queues.write_entry(entry, from, other);
            }
            self.waiting.fetch_sub(1, Relaxed);
        }
        let fair_hash = if self.is_fair { units.fair_hash } else { 0 };
        let (cost, span) = (units.cost, units.cost.into());
        let waiter = NewWaiter { fair_hash, cost, span, until: None, since: now };
        let node = queues.waiters.push_waiter(&mut slots.queue, waiter);
        self.waiting.fetch_add(1, Relaxed);
        queues.write_entry(entry, class, slots);
        SlotStep::Waits(SlotWaiter { node, overflow, joined: now })
    }

    /// The position of one more waiter, and the class of the one that has to make room; `None` = the queue is full.
    pub(crate) fn find_position(
        &self,
        entry: ConcurrencyEntry,
        queues: &SlotQueues,
        units: &Units,
    ) -> Option<(FoundPosition, u8)> {
        let (class, fair_hash) = (units.key.class, self.is_fair.then_some(units.fair_hash));
        if let Some(shares) = &self.shares {
            return self.find_class_position(shares, entry, queues, (class, fair_hash));
        }
        let queue = queues.read_entry(entry, class).queue;
        queues.waiters.find_position(queue, self.queue, fair_hash).map(|found| (found, class))
    }
}

// === impl SlotQueues ===

impl SlotQueues {
    /// The slots of an entry, with the queue of a class; without waiters it is empty.
    pub(crate) fn read_entry(&self, entry: ConcurrencyEntry, class: u8) -> WaitedSlots {
        if let Some(slots) = self.classes_of(entry) {
            return slots.read_queue(class);
        }
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
    pub(crate) fn write_entry(&mut self, entry: &mut ConcurrencyEntry, class: u8, slots: WaitedSlots) {
        if let Some(slots_of) = self.classes_of_mut(*entry) {
            return slots_of.write_queue(class, slots);
        }
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

    /// The queues of an entry, one for each class.
    pub(crate) fn queues_of(&self, entry: ConcurrencyEntry) -> impl Iterator<Item = u32> {
        let one = entry.class_place().is_none().then(|| self.read_entry(entry, 0).queue);
        one.into_iter().chain(self.classes_of(entry).into_iter().flat_map(ClassSlots::queues))
    }

    /// The wakers of the next waiter of every key, and of each class.
    pub(crate) fn wake_heads(&self) -> Wakers {
        let mut wakers = Wakers::new();
        let queues = self.waited.values().map(|slots| slots.queue);
        let queues = queues.chain(self.by_class.values().flat_map(ClassSlots::queues));
        queues.for_each(|queue| self.waiters.wake_head(queue, &mut wakers));
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
