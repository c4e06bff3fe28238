//! Access to counters that exist, and to the data beside them in their shard.

use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use super::{CounterKey, Table, TableEntry, TableParams};
use sluicegate_base::clock::Now;

/// The counter of a key, as [`Table::update_own`] found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnEntry<R> {
    /// The counter exists, and `step` returned this.
    Updated(R),
    /// There is none: the key has used nothing.
    Absent,
    /// The table is full, and the key shares an overflow counter with others.
    Overflow,
}

// === impl Table ===

impl<E: TableEntry, N: TableParams<E>> Table<E, N> {
    /// Runs `step` on an entry that [`Table::update_entry`] updated before; `None` if it was dropped since, which
    /// happens to idle entries only. `overflow` is the flag that [`Table::update_entry`] passed.
    pub fn update_existing<R>(
        &self,
        key: &CounterKey,
        overflow: bool,
        step: impl FnOnce(&mut E, &mut E::Extra, &N) -> R,
    ) -> Option<R> {
        self.update_charged(key, overflow, |entry, extra, params| {
            entry.map(|entry| step(entry, extra, params))
        })
    }

    /// [`Table::update_existing`] with a `step` that runs as well if the entry was dropped.
    pub fn update_charged<R>(
        &self,
        key: &CounterKey,
        overflow: bool,
        step: impl FnOnce(Option<&mut E>, &mut E::Extra, &N) -> R,
    ) -> R {
        if overflow {
            let (shard, index) = self.find_overflow(key);
            let mut guard = shard.lock();
            let (entry, extra, params) = guard.entry_at(index);
            return step(Some(entry), extra, params);
        }
        let hash = self.hash_key(key);
        let shard = &mut *self.shards[hash.shard].0.lock();
        let entry = shard.find_cell(&hash).map(|index| &mut shard.cells[index].entry);
        step(entry, &mut shard.extra, &shard.params)
    }

    /// Runs `step` on the entry of `key`, unless it shares an overflow counter.
    pub fn update_own<R>(
        &self,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N) -> R,
    ) -> OwnEntry<R> {
        let hash = self.hash_key(key);
        let shard = &mut *self.shards[hash.shard].0.lock();
        if let Some(index) = shard.find_cell(&hash) {
            return OwnEntry::Updated(step(&mut shard.cells[index].entry, &mut shard.extra, &shard.params));
        }
        if !self.overflowed.load(Relaxed) {
            return OwnEntry::Absent;
        }
        // The shard stays locked, so that the key gets no cell meanwhile.
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let (entry, extra, params) = guard.entry_at(index);
        if params.may_reuse(entry, extra, now) { OwnEntry::Absent } else { OwnEntry::Overflow }
    }

    /// Calls `visit` for every entry with a cell, one shard locked at a time.
    pub fn for_each_entry(&self, mut visit: impl FnMut(&E, &E::Extra, &N)) {
        for shard in &self.shards {
            let shard = shard.0.lock();
            let is_used = |index: &usize| shard.tag_at(*index) != 0;
            let cells = (0..shard.cells.len()).filter(is_used);
            cells.for_each(|index| visit(&shard.cells[index].entry, &shard.extra, &shard.params));
        }
    }

    /// Calls `read` for the data beside the entries of each shard, one locked at a time, and wakes its wakers once
    /// the lock is released.
    pub fn for_each_extra<W: IntoIterator<Item = Waker>>(&self, read: impl Fn(&E::Extra) -> W) {
        for shard in &self.shards {
            let wakers = read(&shard.0.lock().extra);
            wakers.into_iter().for_each(Waker::wake);
        }
        for overflow in &self.overflow {
            let wakers = read(&overflow.0.lock().extra);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
