//! The capacity of a table: the most keys it may store, and the number of sets its shards need for them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::shard::WAYS;

/// The capacity of a table; only newcomers read it.
pub struct TableCapacity {
    keys_max: AtomicUsize,
    /// Sets of a shard at its first key; doubling leads to exactly `sets_max`.
    pub(super) sets_first: usize,
    sets_max: AtomicUsize,
}

/// The target of keys per shard: small enough that doubling a shard is quick.
const SHARD_KEYS: usize = 4096;
const SHARDS_MAX: usize = 4096;

const SETS_FIRST: usize = 8;
/// The most sets: beyond any memory, and set numbers fit 32 bits.
const SETS_MAX: usize = 1 << 31;

impl TableCapacity {
    /// The number of shards for at most `keys_max` keys.
    pub fn shards_for(keys_max: usize) -> usize {
        (keys_max.max(1) / SHARD_KEYS).next_power_of_two().min(SHARDS_MAX)
    }

    pub(super) fn new(keys_max: usize, shards: usize) -> TableCapacity {
        let sets = sets_per_shard(keys_max, shards);
        let doublings = (sets / SETS_FIRST).checked_ilog2().unwrap_or(0);
        let sets_first = sets.div_ceil(1 << doublings);
        let sets_max = AtomicUsize::new(sets_first << doublings);
        TableCapacity { keys_max: AtomicUsize::new(keys_max.max(1)), sets_first, sets_max }
    }

    /// Changes the cap. The number of shards stays, and no shard shrinks.
    pub(super) fn change_keys_max(&self, keys_max: usize, shards: usize) {
        if self.keys_max.swap(keys_max.max(1), Relaxed) < keys_max {
            let wanted = sets_per_shard(keys_max, shards).div_ceil(self.sets_first).next_power_of_two();
            self.sets_max.fetch_max((self.sets_first * wanted).min(SETS_MAX), Relaxed);
        }
    }

    pub fn keys_max(&self) -> usize {
        self.keys_max.load(Relaxed)
    }

    pub(super) fn sets_max(&self) -> usize {
        self.sets_max.load(Relaxed)
    }
}

/// Sets for a quarter more slots than keys: two-choice sets then hardly ever lack a slot below the cap.
fn sets_per_shard(keys_max: usize, shards: usize) -> usize {
    let slots = keys_max.max(1).div_ceil(shards).saturating_mul(5) / 4;
    slots.div_ceil(WAYS).clamp(1, SETS_MAX)
}
