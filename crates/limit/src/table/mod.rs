//! The bounded table under every limit: sharded, two-choice sets of eight cells, a hard cap on keys.
//!
//! A cell is reused only when its entry is idle, so no counter that still matters is ever lost. When the table is
//! full, newcomers share one overflow counter per network, and a newcomer that gets a cell later starts from that
//! counter: a flood of keys neither grows memory nor refills any key's budget.
//!
//! The parameters that entries are expressed in stand beside them, under the same lock. A change converts each shard
//! at once, so every request, from whichever gateway, judges an entry by the parameters it is expressed in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;

use sluicegate_base::clock::Now;

mod existing;
pub mod persistent;
mod shard;

pub use existing::OwnEntry;
pub use shard::TableCapacity;
use shard::{KeyHash, Shard};

/// The key of a counter in a [`Table`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterKey {
    /// Keyed 128-bit hash of the key's text, which itself is not kept.
    pub id: u128,
    /// Hash of the client's network; a newcomer shares the overflow counter of it when the table is full. It is no part
    /// of the key: a counter of its own is found from every network.
    pub prefix: u64,
    /// The class of the request in a limit with shares; else 0. It is no part of the key: all classes of a key are
    /// judged by one counter.
    pub class: u8,
}

/// A counter that lives in a [`Table`].
pub trait TableEntry: Copy + Default {
    /// Data that the entries of one shard share under its lock, such as queues.
    type Extra: Default;

    /// True if the entry says no more than a fresh one, unless [`TableParams::is_idle`] knows more.
    fn is_idle(&self, now: Now) -> bool;

    /// The first entry of a newcomer with its own cell, `self` being the overflow counter it would have shared;
    /// `None`: the newcomer has to go on sharing. By default all of it is inherited.
    fn inherit_overflow(&self) -> Option<Self> {
        Some(*self)
    }

    /// Releases the data this idle entry holds in `extra`, before its cell is reused.
    fn release_extra(self, _extra: &mut Self::Extra) {}
}

/// The parameters that entries are expressed in.
pub trait TableParams<E: TableEntry> {
    /// True if an entry says no more than a fresh one: its cell may be reused.
    #[inline]
    fn is_idle(&self, entry: &E, now: Now) -> bool {
        entry.is_idle(now)
    }

    /// [`TableParams::is_idle`] of an entry whose data beside it tell more.
    #[inline]
    fn may_reuse(&self, entry: &E, _extra: &E::Extra, now: Now) -> bool {
        self.is_idle(entry, now)
    }

    /// Converts an entry from the parameters `before` to these, as of `now`. The wakers added to `to_wake` are woken
    /// once the lock is released.
    fn convert_entry(
        &self,
        counter: (&mut E, &mut E::Extra),
        before: &Self,
        now: Now,
        to_wake: &mut Vec<Waker>,
    );
}

/// The parameters of entries without any.
impl<E: TableEntry> TableParams<E> for () {
    fn convert_entry(&self, _: (&mut E, &mut E::Extra), (): &(), _: Now, _: &mut Vec<Waker>) {}
}

const OVERFLOW_SHARDS: usize = 16;
const OVERFLOW_PER_SHARD: usize = 64;
/// Sets that each newcomer clears of idle entries, so that expiry needs no task of its own.
const SWEEP_SETS: usize = 2;
/// A shard of at most this many sets is swept as a whole, which makes tiny caps exact.
const SWEEP_ALL_SETS: usize = 16;

/// A bounded map from [`CounterKey`] to `E`, expressed in `N`.
pub struct Table<E: TableEntry, N: TableParams<E> = ()> {
    shards: Box<[CacheAligned<Shard<E, N>>]>,
    overflow: Box<[CacheAligned<OverflowShard<E, N>>]>,
    /// Set by the first newcomer that found no cell; until then the overflow counters need no look-up.
    overflowed: AtomicBool,
    /// The number of updates of overflow counters.
    overflow_updates: AtomicU64,
    keys_stored: AtomicUsize,
    /// The name of the limit, for the warning of the first overflow.
    owner: Arc<str>,
    capacity: TableCapacity,
}

/// Keeps neighbouring locks off each other's cache lines.
#[repr(align(128))]
struct CacheAligned<T>(Mutex<T>);

struct OverflowShard<E: TableEntry, N> {
    entries: Vec<E>,
    extra: E::Extra,
    params: Arc<N>,
}

// === impl CounterKey ===

impl CounterKey {
    /// A key of the first class.
    #[inline]
    pub const fn new(id: u128, prefix: u64) -> CounterKey {
        CounterKey { id, prefix, class: 0 }
    }
}

// === impl Table ===

impl<E: TableEntry> Table<E> {
    /// A table of at most `keys_max` keys (at least 1); memory grows with the keys stored.
    pub fn new(keys_max: usize) -> Table<E> {
        Table::with_params((), keys_max, Arc::from(""))
    }
}

impl<E: TableEntry, N: TableParams<E>> Table<E, N> {
    /// [`Table::new`] with parameters; `owner` names the limit in the warning of the first overflow.
    pub fn with_params(params: impl Into<Arc<N>>, keys_max: usize, owner: Arc<str>) -> Table<E, N> {
        let params = params.into();
        let shards = TableCapacity::shards_for(keys_max);
        let overflow = || {
            let (entries, extra) = (Vec::new(), E::Extra::default());
            CacheAligned(Mutex::new(OverflowShard { entries, extra, params: params.clone() }))
        };
        Table {
            shards: (0..shards).map(|_| CacheAligned(Mutex::new(Shard::new(params.clone())))).collect(),
            overflow: (0..OVERFLOW_SHARDS).map(|_| overflow()).collect(),
            overflowed: AtomicBool::new(false),
            overflow_updates: AtomicU64::new(0),
            keys_stored: AtomicUsize::new(0),
            owner,
            capacity: TableCapacity::new(keys_max, shards),
        }
    }

    /// Converts all entries to `numbers`, one shard locked at a time; `clock` is read under each lock. From now on at
    /// most `keys_max` keys are stored; keys beyond that stay until they are idle.
    pub fn replace_params(&self, params: &Arc<N>, keys_max: usize, clock: impl Fn() -> Now) {
        self.capacity.change_keys_max(keys_max, self.shards.len());
        let mut to_wake = Vec::new();
        for shard in &self.shards {
            let mut guard = shard.0.lock();
            let shard = &mut *guard;
            let (now, before) = (clock(), std::mem::replace(&mut shard.params, params.clone()));
            for index in 0..shard.cells.len() {
                if shard.tag_at(index) != 0 {
                    let entry = &mut shard.cells[index].entry;
                    params.convert_entry((entry, &mut shard.extra), &before, now, &mut to_wake);
                }
            }
            drop(guard);
            to_wake.drain(..).for_each(Waker::wake);
        }
        for overflow in &self.overflow {
            let mut guard = overflow.0.lock();
            let overflow = &mut *guard;
            let (now, before) = (clock(), std::mem::replace(&mut overflow.params, params.clone()));
            for entry in &mut overflow.entries {
                params.convert_entry((entry, &mut overflow.extra), &before, now, &mut to_wake);
            }
            drop(guard);
            to_wake.drain(..).for_each(Waker::wake);
        }
    }

    /// The number of shards, each with one [`TableEntry::Extra`].
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The number of keys with their own cell.
    pub fn key_count(&self) -> usize {
        self.keys_stored.load(Relaxed)
    }

    /// The number of times that [`Table::update_entry`] updated an overflow counter.
    pub fn overflow_updates(&self) -> u64 {
        self.overflow_updates.load(Relaxed)
    }

    /// Runs `step` on the entry of `key` under its lock, making one if there is none. The flag says whether the entry
    /// is an overflow counter.
    #[inline]
    pub fn update_entry<R>(
        &self,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let hash = self.hash_key(key);
        let shard = &mut *self.shards[hash.shard].0.lock();
        match shard.find_cell(&hash) {
            Some(index) => step(&mut shard.cells[index].entry, &mut shard.extra, &shard.params, false),
            None => self.insert_newcomer(shard, &hash, key, now, step),
        }
    }

    /// Runs `read` on the entry that [`Table::update_entry`] would start from, without making one. `read` may bring
    /// an existing entry up to date.
    #[inline]
    pub fn peek_entry<R>(&self, key: &CounterKey, read: impl FnOnce(&mut E, &mut E::Extra, &N) -> R) -> R {
        self.peek_either(key, |entry, extra, params, _| read(entry, extra, params))
    }

    /// [`Table::peek_entry`], where `read` is also told whether it gets an overflow entry.
    #[inline]
    pub fn peek_either<R>(
        &self,
        key: &CounterKey,
        read: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let hash = self.hash_key(key);
        let shard = &mut *self.shards[hash.shard].0.lock();
        if let Some(index) = shard.find_cell(&hash) {
            return read(&mut shard.cells[index].entry, &mut shard.extra, &shard.params, false);
        }
        if !self.overflowed.load(Relaxed) {
            return read(&mut E::default(), &mut shard.extra, &shard.params, false);
        }
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let (entry, extra, params) = guard.entry_at(index);
        read(entry, extra, params, true)
    }

    #[cold]
    #[inline(never)]
    fn insert_newcomer<R>(
        &self,
        shard: &mut Shard<E, N>,
        hash: &KeyHash,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let cell = self.claim_cell(shard, hash, now);
        if let Some(cell) = cell
            && !self.overflowed.load(Relaxed)
        {
            return self.store_newcomer(shard, hash, cell, now, E::default(), step);
        }
        // The shard stays locked, so that the key gets no cell while it is charged to the overflow counter.
        if !self.overflowed.swap(true, Relaxed) {
            let (limit, keys_max) = (&*self.owner, self.capacity.keys_max());
            tracing::warn!(limit, keys_max, "the table is full; new keys get no counter of their own");
        }
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let (counter, extra, params) = guard.entry_at(index);
        // Nobody can take over its data, but they say nothing any more.
        if counter.inherit_overflow().is_none() && params.may_reuse(counter, extra, now) {
            std::mem::take(counter).release_extra(extra);
        }
        match (cell, counter.inherit_overflow()) {
            (Some(cell), Some(mut entry)) => {
                if !Arc::ptr_eq(params, &shard.params) {
                    // One of the two is already converted. An inherited entry has no waiters to wake.
                    let counter = (&mut entry, &mut shard.extra);
                    shard.params.convert_entry(counter, params, now, &mut Vec::new());
                }
                drop(guard);
                self.store_newcomer(shard, hash, cell, now, entry, step)
            }
            (cell, _) => {
                self.keys_stored.fetch_sub(usize::from(cell.is_some()), Relaxed);
                self.overflow_updates.fetch_add(1, Relaxed);
                step(counter, extra, params, true)
            }
        }
    }

    /// Runs `step` on a newcomer's entry and stores it unless it is still idle.
    fn store_newcomer<R>(
        &self,
        shard: &mut Shard<E, N>,
        hash: &KeyHash,
        cell: usize,
        now: Now,
        mut entry: E,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let result = step(&mut entry, &mut shard.extra, &shard.params, false);
        if shard.params.may_reuse(&entry, &shard.extra, now) {
            entry.release_extra(&mut shard.extra);
            self.keys_stored.fetch_sub(1, Relaxed);
        } else {
            shard.store_entry(cell, hash, entry);
        }
        result
    }

    /// A cell for a newcomer, counted under the cap: a free one while the cap allows it, else an idle entry's.
    fn claim_cell(&self, shard: &mut Shard<E, N>, hash: &KeyHash, now: Now) -> Option<usize> {
        let sets = shard.tags.len();
        let turns = if sets <= SWEEP_ALL_SETS { sets } else { SWEEP_SETS };
        let freed = (0..turns).map(|_| shard.sweep_next_set(now)).sum();
        self.keys_stored.fetch_sub(freed, Relaxed);
        let fits = self.keys_stored.fetch_add(1, Relaxed) < self.capacity.keys_max();
        loop {
            if let Some(index) = shard.find_free(hash)
                && fits
            {
                return Some(index);
            }
            if let Some(index) = shard.reuse_idle(hash, now) {
                self.keys_stored.fetch_sub(1, Relaxed);
                return Some(index);
            }
            if !fits || shard.tags.len() >= self.capacity.sets_max() {
                let moved = if fits { shard.move_resident(hash) } else { None };
                self.keys_stored.fetch_sub(usize::from(moved.is_none()), Relaxed);
                return moved;
            }
            let dropped = shard.double_sets(self.capacity.sets_first, now);
            self.keys_stored.fetch_sub(dropped, Relaxed);
        }
    }

    fn find_overflow(&self, key: &CounterKey) -> (&Mutex<OverflowShard<E, N>>, usize) {
        let mixed = shard::mix_bits(key.prefix, 0);
        let shard = mixed as usize % OVERFLOW_SHARDS;
        (&self.overflow[shard].0, (mixed >> 32) as usize % OVERFLOW_PER_SHARD)
    }

    #[inline]
    fn hash_key(&self, key: &CounterKey) -> KeyHash {
        self.hash_id(key.id as u64, (key.id >> 64) as u32 ^ (key.id >> 96) as u32)
    }

    #[inline]
    fn hash_id(&self, low: u64, high: u32) -> KeyHash {
        let mut hash = KeyHash::from_halves(low, high);
        hash.shard &= self.shards.len() - 1;
        hash
    }
}

// === impl OverflowShard ===

impl<E: TableEntry, N> OverflowShard<E, N> {
    /// The entry at `index` with its parameters. Memory is taken at the first overflow: most tables have none.
    fn entry_at(&mut self, index: usize) -> (&mut E, &mut E::Extra, &Arc<N>) {
        if self.entries.is_empty() {
            self.entries.resize(OVERFLOW_PER_SHARD, E::default());
        }
        (&mut self.entries[index], &mut self.extra, &self.params)
    }
}

#[cfg(test)]
mod tests;
