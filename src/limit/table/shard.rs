//! One shard of a table: two-choice sets of eight slots, found by one-byte tags.

use std::sync::Arc;

use super::TableEntry;
use crate::base::clock::Now;

/// Slots per set: one word of tags.
pub(super) const WAYS: usize = 8;

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

pub(super) struct Shard<E: TableEntry, N> {
    /// One word per set, one byte per slot; 0 = free.
    pub(super) tags: Vec<u64>,
    pub(super) slots: Vec<TableSlot<E>>,
    /// The next set to be swept.
    next_sweep: usize,
    pub(super) extra: E::Extra,
    pub(super) numbers: Arc<N>,
}

/// 96 bits of the identity are kept: among a million keys two meet with a probability of 1 in 10^17.
#[derive(Clone, Copy, Default)]
pub(super) struct TableSlot<E> {
    /// In halves, so that a slot needs no more alignment than its entry.
    low: [u32; 2],
    pub(super) high: u32,
    pub(super) entry: E,
}

/// Where a key may live: two sets of one shard, scaled to its size when used.
pub(super) struct KeyHash {
    pub(super) shard: usize,
    first: u32,
    second: u32,
    tag: u8,
    low: u64,
    high: u32,
}

// === impl Shard ===

impl<E: TableEntry, N> Shard<E, N> {
    pub(super) fn new(numbers: Arc<N>) -> Shard<E, N> {
        Shard { tags: Vec::new(), slots: Vec::new(), next_sweep: 0, extra: E::Extra::default(), numbers }
    }

    #[inline]
    pub(super) fn find_slot(&self, spot: &KeyHash) -> Option<usize> {
        let sets = self.tags.len();
        self.find_in_set(scale_bits(spot.first, sets), spot)
            .or_else(|| self.find_in_set(scale_bits(spot.second, sets), spot))
    }

    #[inline]
    fn find_in_set(&self, set: usize, spot: &KeyHash) -> Option<usize> {
        let mut hits = bytes_equal(*self.tags.get(set)?, spot.tag);
        while hits != 0 {
            let index = set * WAYS + hits.trailing_zeros() as usize / 8;
            let slot = &self.slots[index];
            if slot.id_low() == spot.low && slot.high == spot.high {
                return Some(index);
            }
            hits &= hits - 1;
        }
        None
    }

    /// A free slot in the emptier of the two sets.
    pub(super) fn find_free(&self, spot: &KeyHash) -> Option<usize> {
        let [first, second] = self.candidate_sets(spot)?;
        let (free_first, free_second) = (bytes_zero(self.tags[first]), bytes_zero(self.tags[second]));
        let (set, free) = if free_second.count_ones() > free_first.count_ones() {
            (second, free_second)
        } else {
            (first, free_first)
        };
        (free != 0).then(|| set * WAYS + free.trailing_zeros() as usize / 8)
    }

    /// Frees a slot of the two sets whose entry is idle.
    pub(super) fn reuse_idle(&mut self, spot: &KeyHash, now: Now) -> Option<usize> {
        let sets = self.candidate_sets(spot)?;
        let mut slots = sets.into_iter().flat_map(|set| set * WAYS..(set + 1) * WAYS);
        let index = slots.find(|&index| self.tag_at(index) != 0 && self.slots[index].entry.is_idle(now))?;
        self.slots[index].entry.release_extra(&mut self.extra);
        self.set_tag(index, 0);
        Some(index)
    }

    /// Frees a slot of the two sets by moving its key to the other set where it may live.
    pub(super) fn move_resident(&mut self, spot: &KeyHash) -> Option<usize> {
        let sets = self.candidate_sets(spot)?;
        for index in sets.into_iter().flat_map(|set| set * WAYS..(set + 1) * WAYS) {
            let slot = self.slots[index];
            let resident = KeyHash::from_halves(slot.id_low(), slot.high);
            if let Some(free) = self.find_free(&resident) {
                self.store_entry(free, &resident, slot.entry);
                self.set_tag(index, 0);
                return Some(index);
            }
        }
        None
    }

    fn candidate_sets(&self, spot: &KeyHash) -> Option<[usize; 2]> {
        let sets = self.tags.len();
        (sets > 0).then(|| [scale_bits(spot.first, sets), scale_bits(spot.second, sets)])
    }

    pub(super) fn tag_at(&self, index: usize) -> u8 {
        self.tags[index / WAYS].to_le_bytes()[index % WAYS]
    }

    fn set_tag(&mut self, index: usize, tag: u8) {
        let mut bytes = self.tags[index / WAYS].to_le_bytes();
        bytes[index % WAYS] = tag;
        self.tags[index / WAYS] = u64::from_le_bytes(bytes);
    }

    pub(super) fn store_entry(&mut self, index: usize, spot: &KeyHash, entry: E) {
        self.set_tag(index, spot.tag);
        self.slots[index] =
            TableSlot { low: [spot.low as u32, (spot.low >> 32) as u32], high: spot.high, entry };
    }

    /// Frees the idle slots of the next set; answers how many.
    pub(super) fn sweep_next_set(&mut self, now: Now) -> usize {
        let set = self.next_sweep % self.tags.len();
        self.next_sweep = set + 1;
        let mut freed = 0;
        for index in set * WAYS..(set + 1) * WAYS {
            if self.tag_at(index) != 0 && self.slots[index].entry.is_idle(now) {
                self.slots[index].entry.release_extra(&mut self.extra);
                self.set_tag(index, 0);
                freed += 1;
            }
        }
        freed
    }

    /// Doubles the sets, leaving idle entries behind; answers how many those were. The keys of a set go to
    /// its two halves only, so everyone else finds a place.
    pub(super) fn double_sets(&mut self, sets_first: usize, now: Now) -> usize {
        let sets = self.tags.len();
        let sets_new = if sets == 0 { sets_first } else { sets * 2 };
        let tags = std::mem::replace(&mut self.tags, vec![0; sets_new]);
        let slots = std::mem::replace(&mut self.slots, vec![TableSlot::default(); sets_new * WAYS]);
        let mut dropped = 0;
        for (index, slot) in slots.into_iter().enumerate() {
            if tags[index / WAYS].to_le_bytes()[index % WAYS] == 0 {
                continue;
            }
            let spot = KeyHash::from_halves(slot.id_low(), slot.high);
            let choice = if scale_bits(spot.first, sets) == index / WAYS { spot.first } else { spot.second };
            let set = scale_bits(choice, sets_new);
            let free = bytes_zero(self.tags[set]);
            if slot.entry.is_idle(now) || free == 0 {
                slot.entry.release_extra(&mut self.extra);
                dropped += 1;
            } else {
                self.store_entry(set * WAYS + free.trailing_zeros() as usize / 8, &spot, slot.entry);
            }
        }
        dropped
    }
}

// === impl Slot ===

impl<E> TableSlot<E> {
    #[inline]
    pub(super) fn id_low(&self) -> u64 {
        u64::from(self.low[0]) | u64::from(self.low[1]) << 32
    }
}

// === impl Spot ===

impl KeyHash {
    #[inline]
    pub(super) fn from_halves(low: u64, high: u32) -> KeyHash {
        let mixed = mix_bits(low, high.into());
        let shard = (mixed >> 16) as usize & 0xFFFF;
        // 0 means free, so one of 256 tags is given up.
        let tag = ((mixed >> 8) as u8).max(1);
        let second = (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        KeyHash { shard, first: (mixed >> 32) as u32, second, tag, low, high }
    }
}

/// Spreads over all bits, so that a caller's plain numbers do as well as hashes.
#[inline]
pub(super) fn mix_bits(low: u64, high: u64) -> u64 {
    let product = u128::from(low ^ 0x243F_6A88_85A3_08D3) * u128::from(high ^ 0x1319_8A2E_0370_7345);
    let folded = (product as u64) ^ (product >> 64) as u64;
    let product = u128::from(folded) * 0xA409_3822_299F_31D1;
    (product as u64) ^ (product >> 64) as u64
}

/// Maps 32 even bits to `0..sets`; doubling `sets` splits each range in two.
#[inline]
fn scale_bits(bits: u32, sets: usize) -> usize {
    ((u64::from(bits) * sets as u64) >> 32) as usize
}

/// The high bit of each byte of `tags` that equals `tag`.
#[inline]
fn bytes_equal(tags: u64, tag: u8) -> u64 {
    bytes_zero(tags ^ (LOW_BITS * u64::from(tag)))
}

#[inline]
fn bytes_zero(word: u64) -> u64 {
    !(((word & !HIGH_BITS) + !HIGH_BITS) | word) & HIGH_BITS
}
