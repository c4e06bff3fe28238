//! Counters at the cost of a plain addition: every worker has its own cells, and the scrape sums them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `N` counters per worker.
#[derive(Debug)]
pub struct Counters<const N: usize> {
    blocks: Box<[CounterBlock<N>]>,
}

/// Aligned, so that no two workers write to the same cache line.
#[derive(Debug)]
#[repr(align(64))]
struct CounterBlock<const N: usize>([AtomicU64; N]);

/// Durations counted in fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds_ns: &'static Bounds,
    /// One slot per bucket; the last slot is the sum, in nanoseconds.
    slots: Counters<{ BOUNDS + 2 }>,
}

/// Upper bounds of the buckets, in nanoseconds; one more bucket counts longer durations.
pub type Bounds = [u64; BOUNDS];

/// Cells that start at zero.
pub trait CellStorage {
    /// Cells for `workers` workers, all zero.
    fn zeroed_for(workers: usize) -> Self;
}

impl<const N: usize> CellStorage for Counters<N> {
    fn zeroed_for(workers: usize) -> Counters<N> {
        Counters::new(workers)
    }
}

impl CellStorage for Histogram {
    fn zeroed_for(workers: usize) -> Histogram {
        Histogram { bounds_ns: &REQUEST_BOUNDS, slots: Counters::new(workers) }
    }
}

const BOUNDS: usize = 14;

/// Buckets for requests, 1 ms to 30 s.
pub static REQUEST_BOUNDS: Bounds = bounds_of_us([
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
]);

/// Buckets for calls to a store nearby, 50 µs to 1 s.
pub static STORE_BOUNDS: Bounds = bounds_of_us([
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
]);

const fn bounds_of_us(mut bounds: Bounds) -> Bounds {
    let mut index = 0;
    while index < BOUNDS {
        bounds[index] *= 1_000;
        index += 1;
    }
    bounds
}

/// One bucket per bound, and one for longer durations.
pub const BUCKETS: usize = BOUNDS + 1;

/// Observations by bucket.
pub type BucketCounts = [u64; BUCKETS];

const SUM: usize = BUCKETS;

/// The counts of a histogram, summed over all workers.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramReading {
    /// The sum of all durations, in seconds.
    pub sum_seconds: f64,
    /// The number of durations.
    pub count: u64,
    /// Upper bounds in seconds, each with the observations in this bucket alone.
    pub buckets: Vec<(f64, u64)>,
}

impl<const N: usize> CounterBlock<N> {
    #[inline]
    fn add(&self, slot: usize, n: u64) {
        if let Some(cell) = self.0.get(slot) {
            cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}

impl<const N: usize> Counters<N> {
    /// Counters of so many workers, all zero; 0 workers count as one.
    pub fn new(workers: usize) -> Counters<N> {
        let block = |_| CounterBlock(std::array::from_fn(|_| AtomicU64::new(0)));
        Counters { blocks: (0..workers.max(1)).map(block).collect() }
    }

    /// Adds to the cell of a worker. Only this worker may call it: with one writer per cell, a load and a store are
    /// enough.
    #[inline]
    pub fn add(&self, worker: usize, slot: usize, n: u64) {
        if let Some(block) = self.blocks.get(worker) {
            block.add(slot, n);
        }
    }

    /// Adds from any thread, at the cost of a locked instruction. A cell has either this or [`Counters::add`].
    pub fn add_shared(&self, slot: usize, n: u64) {
        if let Some(cell) = self.blocks.first().and_then(|block| block.0.get(slot)) {
            cell.fetch_add(n, Relaxed);
        }
    }

    /// The sum over all workers.
    pub fn sum(&self, slot: usize) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.wrapping_add(block.0[slot].load(Relaxed)))
    }
}

impl Histogram {
    /// A histogram for [`Histogram::observe_shared`] alone.
    pub fn new_shared(bounds_ns: &'static Bounds) -> Histogram {
        Histogram { bounds_ns, slots: Counters::new(1) }
    }

    /// Counts a duration. Only the worker itself may call it; see [`Counters::add`].
    #[inline]
    pub fn observe(&self, worker: usize, ns: u64) {
        if let Some(block) = self.slots.blocks.get(worker) {
            block.add(self.bucket_of(ns), 1);
            block.add(SUM, ns);
        }
    }

    /// Counts a duration, from any thread.
    pub fn observe_shared(&self, ns: u64) {
        self.slots.add_shared(self.bucket_of(ns), 1);
        self.slots.add_shared(SUM, ns);
    }

    #[inline]
    fn bucket_of(&self, ns: u64) -> usize {
        // Most durations are short.
        if ns <= self.bounds_ns[0] { 0 } else { self.bounds_ns.partition_point(|bound| *bound < ns) }
    }

    pub(crate) fn read_counts(&self) -> BucketCounts {
        std::array::from_fn(|bucket| self.slots.sum(bucket))
    }

    /// The buckets with their bounds, the sum and the count, over all workers.
    pub fn read_buckets(&self) -> HistogramReading {
        let bounds = self.bounds_ns.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.enumerate().map(|(slot, bound)| (bound, self.slots.sum(slot))).collect();
        HistogramReading {
            sum_seconds: self.slots.sum(SUM) as f64 / 1e9,
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

/// The duration that this `share` of the observations does not exceed, in nanoseconds, estimated within its bucket;
/// `None` without observations. Durations beyond the last bound count as that bound.
pub fn estimate_quantile(counts: &BucketCounts, share: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let rank = share * total as f64;
    let mut below = 0;
    for (bucket, count) in counts.iter().enumerate() {
        if *count > 0 && (below + count) as f64 >= rank {
            let least = bucket.checked_sub(1).map_or(0, |before| REQUEST_BOUNDS[before]);
            let most = REQUEST_BOUNDS.get(bucket).copied().unwrap_or(least);
            let part = (rank - below as f64).max(0.0) / *count as f64;
            return Some(least + ((most - least) as f64 * part) as u64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_count_apart_and_are_summed() {
        let counters = Counters::<3>::new(2);
        counters.add(0, 1, 5);
        counters.add(1, 1, 7);
        counters.add(1, 2, 1);
        counters.add(9, 0, 1);
        assert_eq!([0, 1, 2].map(|slot| counters.sum(slot)), [0, 12, 1]);
        assert_eq!(align_of::<CounterBlock<3>>(), 64);
    }

    #[test]
    fn threads_share_a_histogram() {
        let histogram = Histogram::new_shared(&STORE_BOUNDS);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.observe_shared(60_000)));
            }
        });
        let reading = histogram.read_buckets();
        assert_eq!((reading.count, reading.buckets[1]), (4000, (0.0001, 4000)));
        assert!((reading.sum_seconds - 0.24).abs() < 1e-9);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let histogram = Histogram::zeroed_for(1);
        assert_eq!(estimate_quantile(&histogram.read_counts(), 0.5), None);
        (0..90).for_each(|_| histogram.observe(0, 1_500_000));
        (0..10).for_each(|_| histogram.observe(0, 80_000_000));
        let quantile = |share| estimate_quantile(&histogram.read_counts(), share).unwrap();
        assert!((1_000_000..=2_500_000).contains(&quantile(0.5)), "{}", quantile(0.5));
        assert!((50_000_000..=100_000_000).contains(&quantile(0.99)), "{}", quantile(0.99));
        histogram.observe(0, u64::MAX / 2);
        assert_eq!(quantile(1.0), 30_000_000_000);
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::zeroed_for(1);
        for ns in [0, 1_000_000, 1_000_001, 30_000_000_000, 30_000_000_001] {
            histogram.observe(0, ns);
        }
        let reading = histogram.read_buckets();
        let filled: Vec<(f64, u64)> = reading.buckets.iter().copied().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled, [(0.001, 2), (0.0025, 1), (30.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(reading.count, 5);
        assert!((reading.sum_seconds - 60.002_000_002).abs() < 1e-9);
    }
}
