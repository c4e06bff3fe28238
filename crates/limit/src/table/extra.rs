//! Access to the data of a shard beside its entries, whether an entry still exists or not.

use std::task::Waker;

use super::{CounterKey, Table, TableEntry, TableParams};

impl<E: TableEntry, N: TableParams<E>> Table<E, N> {
    /// [`Table::update_existing`] with a `step` that runs as well if the entry was dropped.
    pub fn update_charged<R>(
        &self,
        key: &CounterKey,
        shared: bool,
        step: impl FnOnce(Option<&mut E>, &mut E::Extra, &N) -> R,
    ) -> R {
        if shared {
            let (overflow, index) = self.find_overflow(key);
            let mut guard = overflow.lock();
            let (entry, extra, params) = guard.entry_at(index);
            return step(Some(entry), extra, params);
        }
        let hash = self.hash_key(key);
        let mut guard = self.shards[hash.shard].0.lock();
        let shard = &mut *guard;
        let entry = shard.find_slot(&hash).map(|index| &mut shard.slots[index].entry);
        step(entry, &mut shard.extra, &shard.params)
    }

    /// Runs `step` on the data beside the entry of `key`, whether that entry still exists or not. `shared` is the flag
    /// that [`Table::update_entry`] passed.
    pub fn update_extra(&self, key: &CounterKey, shared: bool, step: impl FnOnce(&mut E::Extra)) {
        match shared {
            true => step(&mut self.find_overflow(key).0.lock().extra),
            false => step(&mut self.shards[self.hash_key(key).shard].0.lock().extra),
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
