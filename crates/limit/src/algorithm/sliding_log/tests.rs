//! The log's memory: its bound, its accounting, and the effect of merging.

use super::*;
use crate::algorithm::meter::{Meter, SettleTerms};
use crate::table::CounterKey;
use crate::{ChargeRecord, LimitOutcome, Units};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

fn log(units: u64, keys_max: usize) -> Meter<SlidingLogParams> {
    let units = NonZeroU64::new(units).unwrap();
    let (owner, settle_terms) = (Arc::from("test"), SettleTerms::default());
    let spec = MeterSpec { keys_max, owner: &owner, settle_terms, previous: None, counted_by: None };
    Meter::new(SlidingLogParams::new(Rate::new(units, Duration::from_secs(60)), &spec), &spec)
}

fn key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

fn charge(log: &Meter<SlidingLogParams>, id: u128, at: u64) -> (Decision, Option<ChargeRecord>) {
    log.charge_units(&Units::new(key(id), 1), Now(at))
}

/// The capacity of all rings, and the capacity by the shard's own accounting.
fn ring_capacity(log: &Meter<SlidingLogParams>, keys: u128) -> (usize, usize) {
    let rings = (0..keys).map(|id| {
        log.table.peek_entry(&key(id), |log, rings, _| rings.slab.get(log.ring).map_or(0, VecDeque::capacity))
    });
    let rings: Vec<usize> = rings.filter(|capacity| *capacity > 0).collect();
    let growth = log.table.peek_entry(&key(0), |_, rings, _| rings.growth);
    (rings.iter().sum(), growth + RING_FIRST * rings.len())
}

#[test]
fn entries_and_runs_are_small() {
    assert_eq!(
        (size_of::<SlidingLogEntry>(), align_of::<SlidingLogEntry>(), size_of::<ChargeRun>()),
        (16, 4, 12)
    );
}

#[test]
fn memory_is_bounded_accounted_for_and_given_back() {
    let (keys, units) = (64, 500);
    let log = log(units, keys as usize);
    for at in 0..units {
        for id in 0..keys {
            charge(&log, id, SECOND + at * 1000);
        }
    }
    let (all, accounted) = ring_capacity(&log, keys);
    assert_eq!(all, accounted);
    assert!(all <= 8 * keys as usize + units as usize, "{all} runs");
    assert!(log.table.key_count() == keys as usize);
    for id in 0..keys {
        charge(&log, id, 1000 * SECOND);
    }
    assert_eq!(ring_capacity(&log, keys), (0, 0), "all but the newest charge has left");
}

#[test]
fn one_key_alone_is_exact_up_to_its_number() {
    let log = log(5000, 1);
    assert!((0..5000).all(|at| charge(&log, 0, SECOND + at).1.is_some()));
    assert!((1..5000).all(|at| {
        let early = charge(&log, 0, 60 * SECOND + SECOND + at - 1).0;
        early.outcome == LimitOutcome::Admit && early.remaining == 0
    }));
}

#[test]
fn a_log_that_may_not_grow_is_late_by_a_sub_window_at_most_and_never_early() {
    let (log, other) = (log(300, 1), 2);
    // An overflow counter's ring stays at four runs: sub-windows of half a period.
    charge(&log, 0, SECOND);
    let admitted: Vec<u64> = (SECOND..600 * SECOND)
        .step_by(SECOND as usize / 5)
        .filter(|at| {
            charge(&log, 0, *at);
            charge(&log, other, *at).1.is_some()
        })
        .collect();
    let within =
        |at: u64, span: u64| admitted.iter().filter(|when| **when <= at && **when + span > at).count();
    assert!(admitted.iter().all(|at| within(*at, 60 * SECOND) <= 300));
    let ring =
        log.table.peek_entry(&key(other), |log, rings, _| rings.slab.get(log.ring).map(VecDeque::capacity));
    assert_eq!(ring, Some(RING_FIRST));
    let rejected = (SECOND..600 * SECOND).step_by(SECOND as usize / 5).filter(|at| !admitted.contains(at));
    for at in rejected {
        assert!(within(at, 90 * SECOND) >= 300, "rejected at {at}");
    }
}

#[test]
fn a_refund_finds_a_merged_charge() {
    let mut ring: VecDeque<ChargeRun> = (0..8).map(|at| ChargeRun { at: at * 10, units: 1 }).collect();
    merge_runs(&mut ring, 25);
    let runs: Vec<(u64, u32)> = ring.iter().map(|run| (run.at, run.units)).collect();
    assert_eq!(runs, [(20, 3), (40, 2), (70, 3)]);
    let mut rings = LogRings::default();
    let mut log = SlidingLogEntry { until: 130, used: 8, ring: rings.slab.insert(ring) };
    for at in [0, 10, 30, 70] {
        rings.refund_units(&mut log, at, 1);
    }
    let runs: Vec<(u64, u32)> = rings.key_runs(&log).map(|run| (run.at, run.units)).collect();
    assert_eq!(({ log.used }, runs), (4, vec![(20, 1), (40, 1), (70, 2)]));
}
