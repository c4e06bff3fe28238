//! The keys that a limit sees most: a summary of bounded size with a known error.
//!
//! It is the summary of Misra and Gries ("Finding repeated elements", 1982) in the batched form of Anderson, Bevin,
//! Lang, Liberty, Rhodes and Thaler ("A High-Performance Algorithm for Identifying Frequent Items in Data Streams",
//! 2017): up to 2·m counters, and whenever all are in use, their median is subtracted from each. At least m counters
//! lose all of it, so the sum of all medians is at most N/m for a stream of N units. A key's true count lies between
//! its counter and its counter plus that sum. Space-Saving (Metwally, Agrawal and El Abbadi, 2005) has the same bound
//! (Agarwal et al., "Mergeable Summaries", 2012), which is also the proof that summaries add up.
//!
//! Old units fade by forward decay (Cormode, Shkapenyuk, Srivastava and Xu, 2009): a unit at t weighs 2^(t/half-life),
//! and a count is divided by the weight of the moment at which it is read.

mod decay;

use std::collections::HashMap;

use decay::ForwardDecay;
use sluicegate_base::clock::Now;

pub use decay::{HALF_LIFE, rate_factor};

/// The most frequent items of a stream, each with a label that is made when the item is first counted.
///
/// Memory grows with the number of items, by doubling; once it has its final size, nothing is allocated.
#[derive(Debug)]
pub struct FrequentItems<L> {
    counters: Vec<Counter>,
    /// The label of each counter.
    labels: Vec<L>,
    /// Positions of counters, by open addressing over the low bits of their ids. Its length is a power of two and at
    /// least twice the number of counters; before the first item it is empty.
    index: Box<[u16]>,
    counters_max: usize,
    /// The sum of all subtracted medians.
    subtracted: f64,
    decay: ForwardDecay,
    /// The memory to find a median in.
    scratch: Vec<f64>,
}

/// The id is split, because an aligned `u128` would waste a quarter of the memory.
#[derive(Debug, Clone, Copy)]
struct Counter {
    id_low: u64,
    id_high: u64,
    count: f64,
}

/// The counted items of one summary, or of several together.
#[derive(Debug, Clone)]
pub struct ItemCounts<L> {
    /// The items with a counter, in no order.
    pub items: Vec<ItemCount<L>>,
    /// The most by which each count may be too low, also that of an item which is absent.
    pub error: f64,
}

/// One item with the lower bound of its count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemCount<L> {
    /// The id of the item; its bits are evenly distributed.
    pub id: u128,
    /// The lower bound of its count, in faded units times the factor of the copy.
    pub count: f64,
    /// The label that was made when the item was first counted.
    pub label: L,
}

/// A slot of the index without a counter.
const EMPTY: u16 = u16::MAX;
/// Counters that the first item makes room for.
const COUNTERS_AT_FIRST: usize = 8;
/// The most that m may be, so that a copy of all counters takes less than a millisecond.
pub const ERROR_SHARE_MAX: usize = 1 << 12;

impl<L: Copy> FrequentItems<L> {
    /// A summary with an error of at most 1/`error_share` of all units, m in the module's text. Old units fade.
    pub fn new(error_share: usize, now: Now) -> FrequentItems<L> {
        FrequentItems {
            counters: Vec::new(),
            labels: Vec::new(),
            index: Box::default(),
            counters_max: 2 * error_share.clamp(1, ERROR_SHARE_MAX),
            subtracted: 0.0,
            decay: ForwardDecay::begin(now),
            scratch: Vec::new(),
        }
    }

    /// Counts `units` of the item `id`, the bits of which must be evenly distributed, and returns the position of its
    /// counter, which is valid until another item is counted.
    #[inline]
    pub fn count_units(&mut self, id: u128, units: f64, now: Now, label: impl FnOnce() -> L) -> usize {
        if now >= self.decay.renew_at {
            self.renew_weight(now);
        }
        let weighted = units * self.decay.weight;
        match self.find_counter(id) {
            Some(position) => {
                self.counters[position].count += weighted;
                position
            }
            None => self.insert_counter(id, weighted, label()),
        }
    }

    /// The id and the label of the counter at a position that [`FrequentItems::count_units`] returned.
    pub fn item_at(&self, position: usize) -> Option<(u128, &L)> {
        Some((self.counters.get(position)?.id(), self.labels.get(position)?))
    }

    /// The label of an item that has a counter.
    pub fn label_of(&self, id: u128) -> Option<&L> {
        self.labels.get(self.find_counter(id)?)
    }

    /// The lower bound of an item's count; [`FrequentItems::error_at`] above it is the upper one.
    pub fn count_of(&self, id: u128, now: Now) -> f64 {
        self.find_counter(id)
            .map_or(0.0, |position| self.counters[position].count / self.decay.weight_at(now))
    }

    /// The most by which a count may be too low.
    pub fn error_at(&self, now: Now) -> f64 {
        self.subtracted / self.decay.weight_at(now)
    }

    /// All counted items with the lower bounds of their counts, times `factor`.
    pub fn copy_counts(&self, now: Now, factor: f64) -> ItemCounts<L> {
        let scale = factor / self.decay.weight_at(now);
        let items = self.counters.iter().zip(&self.labels);
        let item = |(counter, label): (&Counter, &L)| ItemCount {
            id: counter.id(),
            count: counter.count * scale,
            label: *label,
        };
        ItemCounts { items: items.map(item).collect(), error: self.subtracted * scale }
    }

    #[inline]
    fn find_counter(&self, id: u128) -> Option<usize> {
        let (low, high) = (id as u64, (id >> 64) as u64);
        let mut slot = low as usize;
        loop {
            // The length is a power of two, or nothing is found in an empty index.
            slot &= self.index.len().wrapping_sub(1);
            let position = *self.index.get(slot)?;
            if position == EMPTY {
                return None;
            }
            let counter = &self.counters[usize::from(position)];
            if counter.id_low == low && counter.id_high == high {
                return Some(usize::from(position));
            }
            slot += 1;
        }
    }

    #[inline(never)]
    fn insert_counter(&mut self, id: u128, count: f64, label: L) -> usize {
        if self.counters.len() == self.counters_max {
            self.subtract_median();
        }
        if self.counters.len() == self.counters.capacity() {
            self.grow();
        }
        let position = self.counters.len();
        self.counters.push(Counter { id_low: id as u64, id_high: (id >> 64) as u64, count });
        self.labels.push(label);
        link_counter(&mut self.index, id as u64, position);
        position
    }

    /// Makes room for twice as many counters.
    #[cold]
    fn grow(&mut self) {
        let known = self.counters.len();
        let room = (known * 2).max(COUNTERS_AT_FIRST).min(self.counters_max);
        self.counters.reserve_exact(room - known);
        self.labels.reserve_exact(room - known);
        if self.index.len() < 2 * room {
            self.index = vec![EMPTY; (2 * room).next_power_of_two()].into_boxed_slice();
            self.link_all();
        }
    }

    /// Subtracts the median of all counters from each, and drops those that reach zero: at least half of them.
    #[cold]
    fn subtract_median(&mut self) {
        self.scratch.clear();
        self.scratch.reserve_exact(self.counters_max);
        self.scratch.extend(self.counters.iter().map(|counter| counter.count));
        let middle = self.scratch.len() / 2;
        let (_, &mut median, _) = self.scratch.select_nth_unstable_by(middle, f64::total_cmp);
        let mut kept = 0;
        for position in 0..self.counters.len() {
            let counter = self.counters[position];
            if counter.count > median {
                self.counters[kept] = Counter { count: counter.count - median, ..counter };
                self.labels[kept] = self.labels[position];
                kept += 1;
            }
        }
        self.counters.truncate(kept);
        self.labels.truncate(kept);
        self.subtracted += median;
        self.index.fill(EMPTY);
        self.link_all();
    }

    fn link_all(&mut self) {
        for (position, counter) in self.counters.iter().enumerate() {
            link_counter(&mut self.index, counter.id_low, position);
        }
    }

    #[cold]
    fn renew_weight(&mut self, now: Now) {
        if let Some(factor) = self.decay.renew_weight(now) {
            self.counters.iter_mut().for_each(|counter| counter.count *= factor);
            self.subtracted *= factor;
        }
    }
}

/// Adds a counter to the index, which has a free slot.
fn link_counter(index: &mut [u16], id_low: u64, position: usize) {
    let mask = index.len() - 1;
    let mut slot = id_low as usize & mask;
    while index[slot] != EMPTY {
        slot = (slot + 1) & mask;
    }
    index[slot] = position as u16;
}

impl Counter {
    #[inline]
    fn id(&self) -> u128 {
        u128::from(self.id_high) << 64 | u128::from(self.id_low)
    }
}

// === impl ItemCounts ===

impl<L> Default for ItemCounts<L> {
    fn default() -> ItemCounts<L> {
        ItemCounts { items: Vec::new(), error: 0.0 }
    }
}

impl<L> ItemCounts<L> {
    /// The sum of several summaries: counts of equal ids add up, and so do the errors.
    pub fn merge_all(parts: impl IntoIterator<Item = ItemCounts<L>>) -> ItemCounts<L> {
        let (mut merged, mut positions) = (ItemCounts::default(), HashMap::new());
        for part in parts {
            merged.error += part.error;
            for item in part.items {
                let position = *positions.entry(item.id).or_insert(merged.items.len());
                match merged.items.get_mut(position) {
                    Some(known) => known.count += item.count,
                    None => merged.items.push(item),
                }
            }
        }
        merged
    }

    /// Keeps the `top` items with the greatest counts, the greatest first.
    pub fn keep_top(&mut self, top: usize) {
        self.items.sort_unstable_by(|one, other| {
            other.count.total_cmp(&one.count).then_with(|| one.id.cmp(&other.id))
        });
        self.items.truncate(top);
    }
}

#[cfg(test)]
mod tests;
