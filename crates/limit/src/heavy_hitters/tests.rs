//! The promised error, against exact counts.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// SplitMix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn next_share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// An id as evenly distributed as a hash.
fn id_of(item: usize) -> u128 {
    u128::from(mix(item as u64 + 1)) << 64 | u128::from(mix(!(item as u64)))
}

/// Items of which the n-th comes with a frequency of 1/n^`exponent`.
struct Zipf {
    cumulated: Vec<f64>,
    random: Random,
}

impl Zipf {
    fn new(items: usize, exponent: f64, seed: u64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=items).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf { cumulated: cumulated.collect(), random: Random(seed) }
    }

    fn next_item(&mut self) -> usize {
        let at = self.random.next_share() * self.cumulated[self.cumulated.len() - 1];
        self.cumulated.partition_point(|&sum| sum < at).min(self.cumulated.len() - 1)
    }
}

const M: usize = 1024;
const NOW: Now = Now(1 << 40);

/// Checks every error, and that the twenty most frequent items are found in their order as far as the error allows.
fn check_zipf(exponent: f64, events: usize, seed: u64) {
    let mut zipf = Zipf::new(100_000, exponent, seed);
    let mut summary = FrequentItems::new(M, NOW);
    let mut exact = vec![0_u64; 100_000];
    for _ in 0..events {
        let item = zipf.next_item();
        exact[item] += 1;
        summary.count_units(id_of(item), 1.0, NOW, || item);
    }
    let bound = events as f64 / M as f64;
    assert!(summary.error_at(NOW) <= bound, "{} > {bound}", summary.error_at(NOW));
    for (item, &count) in exact.iter().enumerate() {
        let (least, error) = (summary.count_of(id_of(item), NOW), summary.error_at(NOW));
        assert!((least..=least + error).contains(&(count as f64)), "{item}: {count} {least} {error}");
    }
    let mut by_count: Vec<usize> = (0..exact.len()).collect();
    by_count.sort_by_key(|&item| std::cmp::Reverse(exact[item]));
    let mut found = summary.copy_counts(NOW, 1.0);
    found.keep_top(20);
    let found: Vec<usize> = found.items.iter().map(|item| item.label).collect();
    for item in &by_count[..20] {
        assert!(found.contains(item), "{item} of {exponent} is not among {found:?}");
    }
}

#[test]
fn the_errors_of_ten_million_events_are_bounded() {
    check_zipf(1.0, 10_000_000, 3);
    check_zipf(1.3, 10_000_000, 4);
}

#[test]
fn few_items_are_counted_exactly_and_take_little_memory() {
    let mut summary = FrequentItems::new(M, NOW);
    assert_eq!((summary.counters.capacity(), summary.index.len()), (0, 0));
    for round in 0..3 {
        for item in 0..7_usize {
            assert_eq!(summary.count_units(id_of(item), item as f64, NOW, || (round, item)), item);
        }
    }
    assert_eq!((summary.counters.capacity(), summary.index.len()), (8, 16));
    assert_eq!(summary.count_of(id_of(5), NOW), 15.0);
    assert_eq!(summary.count_of(id_of(99), NOW), 0.0);
    assert_eq!(summary.error_at(NOW), 0.0);
    assert_eq!(summary.item_at(6), Some((id_of(6), &(0, 6))), "the label of the first time");
    assert_eq!(summary.label_of(id_of(99)), None);
}

#[test]
fn a_full_summary_never_grows() {
    let mut summary = FrequentItems::new(16, NOW);
    for item in 0..10_000 {
        summary.count_units(id_of(item), 1.0, NOW, || item);
        assert!(summary.counters.capacity() <= 32 && summary.labels.capacity() <= 32);
        assert_eq!(summary.index.len(), (2 * summary.counters.capacity()).next_power_of_two());
    }
    assert!(summary.error_at(NOW) <= 10_000.0 / 16.0);
}

/// Ids that collide in the index are told apart.
#[test]
fn equal_low_bits_are_different_items() {
    let mut summary = FrequentItems::new(M, NOW);
    let ids: Vec<u128> = (0..50).map(|item| item << 64 | 7).collect();
    for (item, id) in ids.iter().enumerate() {
        summary.count_units(*id, (item + 1) as f64, NOW, || ());
    }
    assert!((0..50).all(|item| summary.count_of(ids[item], NOW) == (item + 1) as f64));
}

#[test]
fn merged_summaries_keep_the_bound() {
    let mut zipf = Zipf::new(20_000, 1.0, 5);
    let mut parts = [(); 4].map(|()| FrequentItems::new(64, NOW));
    let mut exact: HashMap<u128, f64> = HashMap::new();
    for event in 0..200_000_usize {
        let id = id_of(zipf.next_item());
        *exact.entry(id).or_default() += 1.0;
        // Unequal shares: a worker sees what its connections bring.
        parts[event % 7 % 4].count_units(id, 1.0, NOW, || ());
    }
    let mut merged = ItemCounts::merge_all(parts.iter().map(|part| part.copy_counts(NOW, 1.0)));
    assert!(merged.error <= 200_000.0 / 64.0, "{}", merged.error);
    let counts: HashMap<u128, f64> = merged.items.iter().map(|item| (item.id, item.count)).collect();
    assert_eq!(counts.len(), merged.items.len(), "an item is listed once");
    for (id, count) in exact {
        let least = counts.get(&id).copied().unwrap_or(0.0);
        assert!((least..=least + merged.error).contains(&count), "{count} {least} {}", merged.error);
    }
    merged.keep_top(10);
    assert_eq!(merged.items.len(), 10);
    assert_eq!(merged.items[0].id, id_of(0));
    assert!(merged.items.is_sorted_by(|one, next| one.count >= next.count));
}

fn after(seconds: u64) -> Now {
    Now(NOW.0 + Duration::from_secs(seconds).as_nanos() as u64)
}

#[test]
fn a_unit_loses_half_of_its_weight_each_minute() {
    let mut summary = FrequentItems::new(M, NOW);
    summary.count_units(id_of(1), 64.0, NOW, || ());
    for minute in 0..5 {
        let count = summary.count_of(id_of(1), after(60 * minute));
        assert!((count - 64.0 / (1 << minute) as f64).abs() < 1e-9, "{count} after {minute} minutes");
    }
    summary.count_units(id_of(2), 8.0, after(180), || ());
    let (early, late) = (summary.count_of(id_of(1), after(180)), summary.count_of(id_of(2), after(180)));
    assert!((early - 8.0).abs() < 1e-9 && (late - 8.0).abs() < 1e-9, "{early} {late}");
}

#[test]
fn a_long_life_neither_overflows_nor_forgets() {
    let mut summary = FrequentItems::new(2, NOW);
    let day = 24 * 60;
    for minute in 0..3 * day {
        for item in 0..9 {
            summary.count_units(id_of(item), (item + 1) as f64, after(60 * minute), || ());
        }
    }
    let now = after(60 * (3 * day - 1));
    let (count, error) = (summary.count_of(id_of(8), now), summary.error_at(now));
    // 9 + 9/2 + 9/4 + … = 18.
    assert!(count <= 18.001 && count + error >= 17.999, "{count} {error}");
    assert!(error <= 2.0 * 45.0 / 2.0 + 0.001, "{error}");
    // After a silence of a month the weight would exceed any float.
    let later = after(30 * 86_400);
    assert!(summary.count_of(id_of(8), later) < 1e-9);
    summary.count_units(id_of(8), 1.0, later, || ());
    assert!((summary.count_of(id_of(8), later) - 1.0).abs() < 1e-9);
}

#[test]
fn a_steady_rate_is_told_early_and_late() {
    let mut summary = FrequentItems::new(M, NOW);
    for tenth in 0..9_000_u64 {
        let now = Now(NOW.0 + tenth * 100_000_000);
        summary.count_units(id_of(1), 5.0, now, || ());
        if tenth >= 20 {
            let rate = summary.count_of(id_of(1), now) * rate_factor(now.ns_since(NOW));
            assert!((48.0..54.0).contains(&rate), "{rate} per second after {tenth} tenths");
        }
    }
    assert!(rate_factor(0).is_finite());
}

proptest! {
    /// Of any stream, with units of any size.
    #[test]
    fn each_count_is_within_the_error(
        m in 1_usize..6,
        stream in prop::collection::vec((0_usize..20, 1_u32..50), 0..400),
    ) {
        let mut summary = FrequentItems::new(m, NOW);
        let mut exact = [0.0; 20];
        for (item, units) in stream {
            exact[item] += f64::from(units);
            let position = summary.count_units(id_of(item), units.into(), NOW, || item);
            prop_assert_eq!(summary.item_at(position), Some((id_of(item), &item)));
        }
        let error = summary.error_at(NOW);
        prop_assert!(error <= exact.iter().sum::<f64>() / m as f64);
        for (item, count) in exact.into_iter().enumerate() {
            let least = summary.count_of(id_of(item), NOW);
            prop_assert!(least <= count && count <= least + error, "{} {} {}", least, count, error);
        }
    }
}
