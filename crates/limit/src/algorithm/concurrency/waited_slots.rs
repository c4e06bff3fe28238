//! The slots and the queue of each key that has waiters, beside the table under the lock of its shard.

use super::freed_rate::FreedRate;
use super::{ConcurrencyEntry, WAITED};
use crate::algorithm::queue::{NO_NODE, ShardQueues, Wakers};
use crate::algorithm::slab::Slab;

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
}
