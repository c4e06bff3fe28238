//! The values of one series: a ring of seconds and a ring of minutes.

use sluicegate_observe::metrics::cells::{BucketCounts, estimate_quantile};

/// The last seconds and the last minutes that a series has.
pub(super) const SECONDS: u64 = 600;
pub(super) const MINUTES: u64 = 1_440;
/// The seconds of a minute.
pub(super) const MINUTE: u64 = 60;
/// Counts over at most this many seconds are spread over them, after a late sample; of a longer gap nothing is known.
const SPREAD_MAX: u64 = 10;
/// The columns of times: the median and the 99th percentile, in microseconds.
pub(super) const TIMES: usize = 4;

/// One more than each value of a second or minute; 0 = there is none. Counts, or four counts and the times.
pub(super) type SeriesRow = [u32; 6];

/// The values of one source, or of the sum of several.
pub(super) struct HistorySeries {
    /// The seconds, then the minutes, each at its number modulo the length of its ring.
    pub rows: Vec<SeriesRow>,
    /// The response times until the last second and until the last minute.
    times: [BucketCounts; 2],
}

impl Default for HistorySeries {
    fn default() -> HistorySeries {
        HistorySeries { rows: vec![[0; 6]; (SECONDS + MINUTES) as usize], times: Default::default() }
    }
}

/// The place of a second or minute.
fn place_of(number: u64, of_minutes: bool) -> usize {
    (if of_minutes { SECONDS + number % MINUTES } else { number % SECONDS }) as usize
}

impl HistorySeries {
    /// The memory of one.
    pub(super) const BYTES: usize =
        size_of::<HistorySeries>() + size_of::<SeriesRow>() * (SECONDS + MINUTES) as usize;

    /// Appends the seconds from `end - span` to `end`, over which `added` is spread.
    pub(super) fn append(&mut self, (end, span): (u64, u64), added: &[u64; 5], times: Option<BucketCounts>) {
        let is_known = span <= SPREAD_MAX;
        let last = times.filter(|_| is_known).map(|times| quantiles_between(&self.times[0], &times));
        for at in 0..span {
            let part =
                |count: &u64| store(count.saturating_mul(at + 1) / span - count.saturating_mul(at) / span);
            let counts = added.each_ref().map(|count| if is_known { part(count) } else { 0 });
            let second = end - span + at;
            self.rows[place_of(second, false)] = with_times(counts, last);
            if (second + 1).is_multiple_of(MINUTE) {
                let mut sums = [0; 5];
                for second in second + 1 - MINUTE..=second {
                    add_counts(&mut sums, &self.rows[place_of(second, false)]);
                }
                let whole = times.map(|times| quantiles_between(&self.times[1], &times));
                self.rows[place_of(second / MINUTE, true)] = with_times(sums, whole);
                self.times[1] = times.unwrap_or_default();
            }
        }
        self.times[0] = times.unwrap_or_default();
    }

    /// Adds the counts of `other`; times have no sum.
    pub(super) fn add_series(&mut self, other: &HistorySeries) {
        for (own, row) in self.rows.iter_mut().zip(&other.rows) {
            add_counts(&mut own[..5], row);
        }
    }

    /// The values of a column before the second or minute `end`, the oldest first; values that were overwritten
    /// until `newest` are absent.
    pub(super) fn column(
        &self,
        column: usize,
        (end, newest): (u64, u64),
        of_minutes: bool,
    ) -> impl Iterator<Item = Option<u32>> {
        let length = if of_minutes { MINUTES } else { SECONDS };
        (0..length).map(move |at| {
            let number = (end + at).checked_sub(length).filter(|number| number + length >= newest)?;
            self.rows[place_of(number, of_minutes)][column].checked_sub(1)
        })
    }
}

fn store(count: u64) -> u32 {
    u32::try_from(count.saturating_add(1)).unwrap_or(u32::MAX)
}

fn with_times([a, b, c, d, e]: [u32; 5], times: Option<[u32; 2]>) -> SeriesRow {
    let [median, slow] = times.unwrap_or([e, 0]);
    [a, b, c, d, median, slow]
}

/// Adds the values that are there.
fn add_counts(sums: &mut [u32], row: &SeriesRow) {
    for (sum, count) in sums.iter_mut().zip(row).filter(|(_, count)| **count > 0) {
        *sum = store(u64::from(sum.saturating_sub(1)) + u64::from(count - 1));
    }
}

fn quantiles_between(before: &BucketCounts, now: &BucketCounts) -> [u32; 2] {
    // Counts that are smaller than before began anew.
    let counts = std::array::from_fn(|bucket| now[bucket].checked_sub(before[bucket]).unwrap_or(now[bucket]));
    [0.5, 0.99].map(|share| estimate_quantile(&counts, share).map_or(0, |ns| store(ns / 1_000)))
}
