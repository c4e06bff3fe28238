//! The bounded table under every limit: sharded, two-choice sets of eight slots, a hard cap on keys.
//!
//! A slot is reused only when its entry is idle, so no counter that still says something is ever forgotten.
//! When the table is full, newcomers share one overflow counter per key prefix, and a newcomer that gets a
//! slot later starts from that counter: a flood of keys neither grows memory nor refills anybody's budget.
//!
//! The numbers that entries are expressed in stand beside them, under the same lock: when they change, each shard is
//! converted at once, and whoever comes, by whatever gateway, judges an entry by the numbers it is expressed in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use parking_lot::Mutex;

use crate::base::clock::Now;

mod capacity;
pub mod persistent;
mod shard;

pub use capacity::TableCapacity;
use shard::{KeyHash, Shard};

/// Whom a counter belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterKey {
    /// Keyed 128-bit hash of the identity; the text itself is not kept.
    pub id: u128,
    /// Hash of the wider group (a network, say) whose overflow counter a newcomer shares when the table is full.
    pub prefix: u64,
}

/// A counter that lives in a [`Table`].
pub trait TableEntry: Copy + Default {
    /// What the entries of one shard share under its lock: queues, say.
    type Extra: Default;

    /// True when the entry says no more than a fresh one would: its slot may be reused.
    fn is_idle(&self, now: Now) -> bool;

    /// What a newcomer with a slot of its own starts from, `self` being the overflow counter it would have
    /// shared; `None`: it must go on sharing.
    fn inherit_overflow(&self) -> Option<Self>;

    /// The slot of this idle entry is about to be used again: what it holds in `extra` is given back.
    fn release_extra(self, _extra: &mut Self::Extra) {}
}

/// Numbers that entries are expressed in.
pub trait TableParams<E: TableEntry> {
    /// Expresses in these numbers, as of `now`, an entry that was expressed in `before`. Whom that calls is woken once
    /// the lock is free.
    fn convert_entry(
        &self,
        entry: &mut E,
        extra: &mut E::Extra,
        before: &Self,
        now: Now,
        called: &mut Vec<Waker>,
    );
}

/// For entries that mean the same whatever the numbers are.
impl<E: TableEntry> TableParams<E> for () {
    fn convert_entry(&self, _: &mut E, _: &mut E::Extra, (): &(), _: Now, _: &mut Vec<Waker>) {}
}

const OVERFLOW_SHARDS: usize = 16;
const OVERFLOW_PER_SHARD: usize = 64;
/// Sets that each newcomer frees of idle entries, so that forgetting needs no task of its own.
const SWEEP_SETS: usize = 2;
/// A shard of at most this many sets is swept whole, which makes tiny caps exact.
const SWEEP_ALL_SETS: usize = 16;

/// A bounded map from [`Key`] to `E`, expressed in `N`.
pub struct Table<E: TableEntry, N: TableParams<E> = ()> {
    shards: Box<[CacheAligned<Shard<E, N>>]>,
    overflow: Box<[CacheAligned<OverflowShard<E, N>>]>,
    /// Set by the first newcomer that found no slot, so that until then nobody asks the overflow counters.
    overflowed: AtomicBool,
    /// Updates of overflow counters.
    overflow_updates: AtomicU64,
    keys_stored: AtomicUsize,
    /// The limit that counts here, as the warning of the first overflow names it.
    owner: Arc<str>,
    capacity: TableCapacity,
}

/// Keeps neighbouring locks off each other's cache lines.
#[repr(align(128))]
struct CacheAligned<T>(Mutex<T>);

struct OverflowShard<E: TableEntry, N> {
    entries: Vec<E>,
    extra: E::Extra,
    numbers: Arc<N>,
}

// === impl Table ===

impl<E: TableEntry> Table<E> {
    /// A table of at most `keys_max` keys (at least 1); memory grows with the keys really held.
    pub fn new(keys_max: usize) -> Table<E> {
        Table::with_params((), keys_max, Arc::from(""))
    }
}

impl<E: TableEntry, N: TableParams<E>> Table<E, N> {
    /// As [`Table::new`]; `owner` is the limit that counts here, as the warning of the first overflow names it.
    pub fn with_params(numbers: impl Into<Arc<N>>, keys_max: usize, owner: Arc<str>) -> Table<E, N> {
        let numbers = numbers.into();
        let shards = TableCapacity::shards_for(keys_max);
        Table {
            shards: (0..shards).map(|_| CacheAligned(Mutex::new(Shard::new(numbers.clone())))).collect(),
            overflow: (0..OVERFLOW_SHARDS)
                .map(|_| CacheAligned(Mutex::new(OverflowShard::new(numbers.clone()))))
                .collect(),
            overflowed: AtomicBool::new(false),
            overflow_updates: AtomicU64::new(0),
            keys_stored: AtomicUsize::new(0),
            owner,
            capacity: TableCapacity::new(keys_max, shards),
        }
    }

    /// Expresses everything in `numbers` from now on, one shard locked at a time; `clock` is read under each lock. At
    /// most `keys_max` keys are held from now on: who is beyond stays until it is idle.
    pub fn replace_params(&self, numbers: &Arc<N>, keys_max: usize, clock: impl Fn() -> Now) {
        self.capacity.change_keys_max(keys_max, self.shards.len());
        let mut called = Vec::new();
        for shard in &self.shards {
            let mut guard = shard.0.lock();
            let shard = &mut *guard;
            let (now, before) = (clock(), std::mem::replace(&mut shard.numbers, numbers.clone()));
            for index in 0..shard.slots.len() {
                if shard.tag_at(index) != 0 {
                    let entry = &mut shard.slots[index].entry;
                    numbers.convert_entry(entry, &mut shard.extra, &before, now, &mut called);
                }
            }
            drop(guard);
            called.drain(..).for_each(Waker::wake);
        }
        for overflow in &self.overflow {
            let mut guard = overflow.0.lock();
            let overflow = &mut *guard;
            let (now, before) = (clock(), std::mem::replace(&mut overflow.numbers, numbers.clone()));
            for entry in &mut overflow.entries {
                numbers.convert_entry(entry, &mut overflow.extra, &before, now, &mut called);
            }
            drop(guard);
            called.drain(..).for_each(Waker::wake);
        }
    }

    /// Shards, each with one [`Entry::Extra`].
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Keys that hold a slot.
    pub fn key_count(&self) -> usize {
        self.keys_stored.load(Relaxed)
    }

    /// How often [`Table::update`] was at a shared overflow counter.
    pub fn overflow_updates(&self) -> u64 {
        self.overflow_updates.load(Relaxed)
    }

    /// Runs `step` on the entry of `key` under its lock, making one if there is none. The flag tells whether
    /// the entry is a shared overflow counter.
    #[inline]
    pub fn update_entry<R>(
        &self,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let spot = self.hash_key(key);
        let mut guard = self.shards[spot.shard].0.lock();
        let shard = &mut *guard;
        match shard.find_slot(&spot) {
            Some(index) => step(&mut shard.slots[index].entry, &mut shard.extra, &shard.numbers, false),
            None => self.insert_newcomer(shard, &spot, key, now, step),
        }
    }

    /// Runs `look` on what `update` would start from, making no entry: it may bring up to date what is there.
    #[inline]
    pub fn peek_entry<R>(&self, key: &CounterKey, look: impl FnOnce(&mut E, &mut E::Extra, &N) -> R) -> R {
        let spot = self.hash_key(key);
        let mut guard = self.shards[spot.shard].0.lock();
        let shard = &mut *guard;
        if let Some(index) = shard.find_slot(&spot) {
            return look(&mut shard.slots[index].entry, &mut shard.extra, &shard.numbers);
        }
        if !self.overflowed.load(Relaxed) {
            return look(&mut E::default(), &mut shard.extra, &shard.numbers);
        }
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let overflow = &mut *guard;
        look(&mut overflow.entries[index], &mut overflow.extra, &overflow.numbers)
    }

    /// Shows every entry that has a slot, one shard locked at a time.
    pub fn for_each_entry(&self, mut see: impl FnMut(&E)) {
        for shard in &self.shards {
            let shard = shard.0.lock();
            let held = |index: &usize| shard.tag_at(*index) != 0;
            (0..shard.slots.len()).filter(held).for_each(|index| see(&shard.slots[index].entry));
        }
    }

    /// Runs `step` on an entry that [`Table::update`] was at before; `None` if it has been forgotten, which
    /// happens to idle entries only. `shared` is the flag `update` told.
    pub fn update_existing<R>(
        &self,
        key: &CounterKey,
        shared: bool,
        step: impl FnOnce(&mut E, &mut E::Extra, &N) -> R,
    ) -> Option<R> {
        if shared {
            let (overflow, index) = self.find_overflow(key);
            let mut guard = overflow.lock();
            let overflow = &mut *guard;
            return Some(step(&mut overflow.entries[index], &mut overflow.extra, &overflow.numbers));
        }
        let spot = self.hash_key(key);
        let mut guard = self.shards[spot.shard].0.lock();
        let shard = &mut *guard;
        let index = shard.find_slot(&spot)?;
        Some(step(&mut shard.slots[index].entry, &mut shard.extra, &shard.numbers))
    }

    #[cold]
    #[inline(never)]
    fn insert_newcomer<R>(
        &self,
        shard: &mut Shard<E, N>,
        spot: &KeyHash,
        key: &CounterKey,
        now: Now,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let seat = self.claim_slot(shard, spot, now);
        if let Some(seat) = seat
            && !self.overflowed.load(Relaxed)
        {
            return self.store_newcomer(shard, spot, seat, now, E::default(), step);
        }
        // The shard stays locked: nobody may give this key a slot while it is charged to the shared counter.
        if !self.overflowed.swap(true, Relaxed) {
            let (limit, keys_max) = (&*self.owner, self.capacity.keys_max());
            tracing::warn!(limit, keys_max, "the table is full; new keys share overflow counters");
        }
        let (overflow, index) = self.find_overflow(key);
        let mut guard = overflow.lock();
        let overflow = &mut *guard;
        match (seat, overflow.entries[index].inherit_overflow()) {
            (Some(seat), Some(mut entry)) => {
                if !Arc::ptr_eq(&overflow.numbers, &shard.numbers) {
                    // One of both is converted already. Nobody waits in what a newcomer starts from.
                    let extra = &mut shard.extra;
                    shard.numbers.convert_entry(&mut entry, extra, &overflow.numbers, now, &mut Vec::new());
                }
                drop(guard);
                self.store_newcomer(shard, spot, seat, now, entry, step)
            }
            (seat, _) => {
                self.keys_stored.fetch_sub(usize::from(seat.is_some()), Relaxed);
                self.overflow_updates.fetch_add(1, Relaxed);
                step(&mut overflow.entries[index], &mut overflow.extra, &overflow.numbers, true)
            }
        }
    }

    /// Runs `step` on a newcomer's entry and stores it unless it is still idle.
    fn store_newcomer<R>(
        &self,
        shard: &mut Shard<E, N>,
        spot: &KeyHash,
        seat: usize,
        now: Now,
        mut entry: E,
        step: impl FnOnce(&mut E, &mut E::Extra, &N, bool) -> R,
    ) -> R {
        let result = step(&mut entry, &mut shard.extra, &shard.numbers, false);
        if entry.is_idle(now) {
            entry.release_extra(&mut shard.extra);
            self.keys_stored.fetch_sub(1, Relaxed);
        } else {
            shard.store_entry(seat, spot, entry);
        }
        result
    }

    /// The slot a newcomer may have, counted under the cap: a free one while the cap allows, else one whose
    /// entry is idle.
    fn claim_slot(&self, shard: &mut Shard<E, N>, spot: &KeyHash, now: Now) -> Option<usize> {
        self.sweep_sets(shard, now);
        let fits = self.keys_stored.fetch_add(1, Relaxed) < self.capacity.keys_max();
        loop {
            if let Some(index) = shard.find_free(spot)
                && fits
            {
                return Some(index);
            }
            if let Some(index) = shard.reuse_idle(spot, now) {
                self.keys_stored.fetch_sub(1, Relaxed);
                return Some(index);
            }
            if !fits || shard.tags.len() >= self.capacity.sets_max() {
                let moved = if fits { shard.move_resident(spot) } else { None };
                self.keys_stored.fetch_sub(usize::from(moved.is_none()), Relaxed);
                return moved;
            }
            let dropped = shard.double_sets(self.capacity.sets_first, now);
            self.keys_stored.fetch_sub(dropped, Relaxed);
        }
    }

    fn sweep_sets(&self, shard: &mut Shard<E, N>, now: Now) {
        let sets = shard.tags.len();
        let turns = if sets <= SWEEP_ALL_SETS { sets } else { SWEEP_SETS };
        let freed = (0..turns).map(|_| shard.sweep_next_set(now)).sum();
        self.keys_stored.fetch_sub(freed, Relaxed);
    }

    fn find_overflow(&self, key: &CounterKey) -> (&Mutex<OverflowShard<E, N>>, usize) {
        let mixed = shard::mix_bits(key.prefix, 0);
        let shard = mixed as usize % OVERFLOW_SHARDS;
        (&self.overflow[shard].0, (mixed >> 32) as usize % OVERFLOW_PER_SHARD)
    }

    #[inline]
    fn hash_key(&self, key: &CounterKey) -> KeyHash {
        let low = key.id as u64;
        let high = (key.id >> 64) as u32 ^ (key.id >> 96) as u32;
        self.hash_id(low, high)
    }

    #[inline]
    fn hash_id(&self, low: u64, high: u32) -> KeyHash {
        let mut spot = KeyHash::from_halves(low, high);
        spot.shard &= self.shards.len() - 1;
        spot
    }
}

// === impl Overflow ===

impl<E: TableEntry, N> OverflowShard<E, N> {
    fn new(numbers: Arc<N>) -> OverflowShard<E, N> {
        OverflowShard { entries: vec![E::default(); OVERFLOW_PER_SHARD], extra: E::Extra::default(), numbers }
    }
}

#[cfg(test)]
mod tests;
