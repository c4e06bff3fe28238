//! One shard of a table: two-choice sets of eight cells, found by one-byte tags; and how many sets the shards need.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{TableEntry, TableParams};
use sluicegate_base::clock::Now;

/// Cells per set: one word of tags.
pub(super) const WAYS: usize = 8;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

pub(super) struct Shard<E: TableEntry, N> {
    /// One word per set, one byte per cell; 0 = free.
    pub(super) tags: Vec<u64>,
    pub(super) cells: Vec<TableCell<E>>,
    /// The next set to sweep.
    next_sweep: usize,
    pub(super) extra: E::Extra,
    pub(super) params: Arc<N>,
}

/// One cell. It keeps 96 bits of the key: two of a million keys collide with a probability of 1 in 10^17.
#[derive(Clone, Copy, Default)]
pub(super) struct TableCell<E> {
    /// The low bits in halves, so that a cell needs no more alignment than its entry.
    low: [u32; 2],
    pub(super) high: u32,
    pub(super) entry: E,
}

/// The location of a key: two sets of one shard, scaled to its size when used.
pub(super) struct KeyHash {
    pub(super) shard: usize,
    first: u32,
    second: u32,
    tag: u8,
    low: u64,
    high: u32,
}

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

// === impl Shard ===

impl<E: TableEntry, N: TableParams<E>> Shard<E, N> {
    pub(super) fn new(params: Arc<N>) -> Shard<E, N> {
        Shard { tags: Vec::new(), cells: Vec::new(), next_sweep: 0, extra: E::Extra::default(), params }
    }

    #[inline]
    pub(super) fn find_cell(&self, hash: &KeyHash) -> Option<usize> {
        let sets = self.tags.len();
        self.find_in_set(scale_bits(hash.first, sets), hash)
            .or_else(|| self.find_in_set(scale_bits(hash.second, sets), hash))
    }

    #[inline]
    fn find_in_set(&self, set: usize, hash: &KeyHash) -> Option<usize> {
        let mut hits = bytes_zero(*self.tags.get(set)? ^ (LOW_BITS * u64::from(hash.tag)));
        while hits != 0 {
            let index = set * WAYS + hits.trailing_zeros() as usize / 8;
            let cell = &self.cells[index];
            if cell.id_low() == hash.low && cell.high == hash.high {
                return Some(index);
            }
            hits &= hits - 1;
        }
        None
    }

    /// A free cell in the emptier of the two sets.
    pub(super) fn find_free(&self, hash: &KeyHash) -> Option<usize> {
        let [first, second] = self.candidate_sets(hash)?;
        let (free_first, free_second) = (bytes_zero(self.tags[first]), bytes_zero(self.tags[second]));
        let is_second = free_second.count_ones() > free_first.count_ones();
        let (set, free) = if is_second { (second, free_second) } else { (first, free_first) };
        (free != 0).then(|| set * WAYS + free.trailing_zeros() as usize / 8)
    }

    /// Frees a cell of the two sets with an idle entry.
    pub(super) fn reuse_idle(&mut self, hash: &KeyHash, now: Now) -> Option<usize> {
        let sets = self.candidate_sets(hash)?;
        let mut cells = sets.into_iter().flat_map(|set| set * WAYS..(set + 1) * WAYS);
        cells.find(|index| self.free_if_idle(*index, now))
    }

    fn free_if_idle(&mut self, index: usize, now: Now) -> bool {
        let entry = self.cells[index].entry;
        let is_idle = self.tag_at(index) != 0 && self.params.may_reuse(&entry, &self.extra, now);
        if is_idle {
            entry.release_extra(&mut self.extra);
            self.set_tag(index, 0);
        }
        is_idle
    }

    /// Frees a cell of the two sets by moving its key to the key's other set.
    pub(super) fn move_resident(&mut self, hash: &KeyHash) -> Option<usize> {
        let sets = self.candidate_sets(hash)?;
        for index in sets.into_iter().flat_map(|set| set * WAYS..(set + 1) * WAYS) {
            let cell = self.cells[index];
            let resident = KeyHash::from_halves(cell.id_low(), cell.high);
            if let Some(free) = self.find_free(&resident) {
                self.store_entry(free, &resident, cell.entry);
                self.set_tag(index, 0);
                return Some(index);
            }
        }
        None
    }

    fn candidate_sets(&self, hash: &KeyHash) -> Option<[usize; 2]> {
        let sets = self.tags.len();
        (sets > 0).then(|| [scale_bits(hash.first, sets), scale_bits(hash.second, sets)])
    }

    pub(super) fn tag_at(&self, index: usize) -> u8 {
        self.tags[index / WAYS].to_le_bytes()[index % WAYS]
    }

    fn set_tag(&mut self, index: usize, tag: u8) {
        let mut bytes = self.tags[index / WAYS].to_le_bytes();
        bytes[index % WAYS] = tag;
        self.tags[index / WAYS] = u64::from_le_bytes(bytes);
    }

    pub(super) fn store_entry(&mut self, index: usize, hash: &KeyHash, entry: E) {
        self.set_tag(index, hash.tag);
        self.cells[index] =
            TableCell { low: [hash.low as u32, (hash.low >> 32) as u32], high: hash.high, entry };
    }

    /// Frees the idle cells of the next set; returns their number.
    pub(super) fn sweep_next_set(&mut self, now: Now) -> usize {
        let set = self.next_sweep % self.tags.len();
        self.next_sweep = set + 1;
        (set * WAYS..(set + 1) * WAYS).filter(|index| self.free_if_idle(*index, now)).count()
    }

    /// Doubles the sets and drops idle entries; returns their number. The keys of a set go to its two halves only, so
    /// all others fit.
    pub(super) fn double_sets(&mut self, sets_first: usize, now: Now) -> usize {
        let sets = self.tags.len();
        let sets_new = if sets == 0 { sets_first } else { sets * 2 };
        let tags = std::mem::replace(&mut self.tags, vec![0; sets_new]);
        let cells = std::mem::replace(&mut self.cells, vec![TableCell::default(); sets_new * WAYS]);
        let mut dropped = 0;
        for (index, cell) in cells.into_iter().enumerate() {
            if tags[index / WAYS].to_le_bytes()[index % WAYS] == 0 {
                continue;
            }
            let hash = KeyHash::from_halves(cell.id_low(), cell.high);
            let choice = if scale_bits(hash.first, sets) == index / WAYS { hash.first } else { hash.second };
            let set = scale_bits(choice, sets_new);
            let free = bytes_zero(self.tags[set]);
            if self.params.may_reuse(&cell.entry, &self.extra, now) || free == 0 {
                cell.entry.release_extra(&mut self.extra);
                dropped += 1;
            } else {
                self.store_entry(set * WAYS + free.trailing_zeros() as usize / 8, &hash, cell.entry);
            }
        }
        dropped
    }
}

// === impl TableCell ===

impl<E> TableCell<E> {
    #[inline]
    pub(super) fn id_low(&self) -> u64 {
        u64::from(self.low[0]) | u64::from(self.low[1]) << 32
    }
}

// === impl KeyHash ===

impl KeyHash {
    #[inline]
    pub(super) fn from_halves(low: u64, high: u32) -> KeyHash {
        let mixed = mix_bits(low, high.into());
        let shard = (mixed >> 16) as usize & 0xFFFF;
        // 0 means free, so only 255 tags are used.
        let tag = ((mixed >> 8) as u8).max(1);
        let second = (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        KeyHash { shard, first: (mixed >> 32) as u32, second, tag, low, high }
    }
}

/// Mixes all bits, so that plain numbers work as well as hashes.
#[inline]
pub(super) fn mix_bits(low: u64, high: u64) -> u64 {
    let product = u128::from(low ^ 0x243F_6A88_85A3_08D3) * u128::from(high ^ 0x1319_8A2E_0370_7345);
    let folded = (product as u64) ^ (product >> 64) as u64;
    let product = u128::from(folded) * 0xA409_3822_299F_31D1;
    (product as u64) ^ (product >> 64) as u64
}

/// Maps 32 uniform bits to `0..sets`; doubling `sets` splits each range in two.
#[inline]
fn scale_bits(bits: u32, sets: usize) -> usize {
    ((u64::from(bits) * sets as u64) >> 32) as usize
}

/// The high bit of each byte that is 0.
#[inline]
fn bytes_zero(word: u64) -> u64 {
    !(((word & !HIGH_BITS) + !HIGH_BITS) | word) & HIGH_BITS
}

// === impl TableCapacity ===

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

    /// The most keys that the table may hold, at least 1.
    pub fn keys_max(&self) -> usize {
        self.keys_max.load(Relaxed)
    }

    pub(super) fn sets_max(&self) -> usize {
        self.sets_max.load(Relaxed)
    }
}

/// Sets for a quarter more cells than keys: two-choice sets then hardly ever lack a cell below the cap.
fn sets_per_shard(keys_max: usize, shards: usize) -> usize {
    let cells = keys_max.max(1).div_ceil(shards).saturating_mul(5) / 4;
    cells.div_ceil(WAYS).clamp(1, SETS_MAX)
}
