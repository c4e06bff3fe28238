//! Changes the counter of one key, but never one that it shares with others.

use std::sync::atomic::Ordering::Relaxed;

use super::{CounterKey, Table, TableEntry, TableParams};
use sluicegate_base::clock::Now;

/// The counter of a key, as [`Table::update_own`] found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnEntry<R> {
    Updated(R),
    /// There is none: the key has used nothing.
    Absent,
    /// The table is full, and the key shares an overflow counter with others.
    Shared,
}

// === impl Table ===

impl<E: TableEntry, N: TableParams<E>> Table<E, N> {
    /// Runs `step` on the entry of `key`, unless it shares an overflow counter.
    pub fn update_own<R>(
        &self,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N) -> R,
    ) -> OwnEntry<R> {
        let hash = self.hash_key(key);
        let mut guard = self.shards[hash.shard].0.lock();
        let shard = &mut *guard;
        if let Some(index) = shard.find_slot(&hash) {
            return OwnEntry::Updated(step(&mut shard.slots[index].entry, &mut shard.extra, &shard.params));
        }
        // The shard stays locked, so that the key gets no slot meanwhile.
        match self.overflowed.load(Relaxed) && self.is_overflow_used(key, now) {
            true => OwnEntry::Shared,
            false => OwnEntry::Absent,
        }
    }

    /// True if `key` shares an overflow counter with others.
    pub fn is_shared(&self, key: &CounterKey, now: Now) -> bool {
        // Checked once more under the lock of the shard by [`Table::update_own`].
        let hash = self.hash_key(key);
        let has_slot = self.shards[hash.shard].0.lock().find_slot(&hash).is_some();
        !has_slot && self.overflowed.load(Relaxed) && self.is_overflow_used(key, now)
    }

    fn is_overflow_used(&self, key: &CounterKey, now: Now) -> bool {
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let (entry, _, params) = guard.entry_at(index);
        !params.is_idle(entry, now)
    }
}
