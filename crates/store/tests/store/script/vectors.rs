//! The contract's test vectors, and arithmetic at its edges.

use sluicegate_limit::LimitOutcome;
use sluicegate_model::{Algorithm, TokenBucketRate, WindowAlign};

use crate::limits::{self, fixed, leaky, log, rate, sliding, token};
use crate::script::support::*;

const SECOND_NS: u64 = limits::SECOND;

/// The waits of the accepted ones of `count` requests at once, ms, and the retry of the others, ms.
fn burst(counters: &mut Counters, shared: &Shared, count: usize, now: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut waits, mut retries) = (vec![], vec![]);
    for _ in 0..count {
        let verdict = shared.take(counters, &[key(1)], 1, now);
        match verdict.admitted {
            true => waits.push(verdict.decisions[0].wait_ns / 1_000_000),
            false => retries.push(verdict.retry_us / 1_000),
        }
    }
    (waits, retries)
}

#[test]
fn token_bucket_vector() {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(10, SECOND_NS, 20)));
    assert_eq!(burst(&mut counters, &shared, 25, START_US), (vec![0; 20], vec![100; 5]));
    assert!(shared.pass(&mut counters, START_US + 100 * MS_US - 1).is_none());
    assert!(shared.pass(&mut counters, START_US + 100 * MS_US).is_some());
    assert!(shared.pass(&mut counters, START_US + 100 * MS_US).is_none());
}

#[test]
fn leaky_bucket_vector() {
    let (mut counters, shared) = (Counters::start(), Shared::one(leaky(10, SECOND_NS, 1, 5)));
    let waits = vec![0, 100, 200, 300, 400, 500];
    assert_eq!(burst(&mut counters, &shared, 10, START_US), (waits, vec![100; 4]));
}

#[test]
fn a_queue_of_none_rejects_and_never_waits() {
    let (mut counters, shared) = (Counters::start(), Shared::one(leaky(10, SECOND_NS, 3, 0)));
    assert_eq!(burst(&mut counters, &shared, 5, START_US), (vec![0; 3], vec![100; 2]));
}

#[test]
fn window_vectors() {
    let mut counters = Counters::start();
    let start = START_US / (10 * SECOND_US) * 10 * SECOND_US + 4 * SECOND_US;
    let ends = [
        (fixed(10, 10 * SECOND_NS, WindowAlign::First), 10_000),
        (fixed(10, 10 * SECOND_NS, WindowAlign::Clock), 6_000),
        // The second of the request leaves once the tenth second after it is over.
        (sliding(10, 10 * SECOND_NS, 10), 11_000),
        (log(10, 10 * SECOND_NS), 10_000),
    ];
    for (algorithm, end_ms) in ends {
        counters.flush();
        let shared = Shared::one(algorithm);
        assert_eq!(burst(&mut counters, &shared, 12, start), (vec![0; 10], vec![end_ms; 2]), "{shared:?}");
        assert!(shared.pass(&mut counters, start + end_ms * MS_US - 1).is_none(), "{shared:?}");
        assert!(shared.pass(&mut counters, start + end_ms * MS_US).is_some(), "{shared:?}");
    }
}

/// From an empty bucket, `cost` tokens are taken in the very microsecond in which they are available, and not one
/// earlier.
#[track_caller]
fn drifts_never(cost: u64, times: u64) {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(3, SECOND_NS, 2 * cost)));
    assert!(shared.take(&mut counters, &[key(1)], 2 * cost, START_US).admitted);
    for taken in 1..=times {
        let due = START_US + (taken * cost * SECOND_US).div_ceil(3);
        let early = shared.take(&mut counters, &[key(1)], cost, due - 1);
        assert_eq!((early.admitted, early.retry_us), (false, 1), "{taken}");
        assert!(shared.take(&mut counters, &[key(1)], cost, due).admitted, "{taken}");
    }
}

#[test]
fn three_a_second_never_drift() {
    drifts_never(1_000_001, 100);
}

#[test]
fn three_a_second_are_259_200_a_day() {
    drifts_never(16, 259_200 / 16);
}

#[test]
fn buckets_at_the_edges_of_the_arithmetic() {
    let mut counters = Counters::start();
    let day = 86_400 * SECOND_NS;
    let bursts = [
        (1, day, 26_062),
        (100_000, day, 2_606_000_000),
        (999_999_937, SECOND_NS, 2_251_000_000),
        (1_000_000, SECOND_NS, 1 << 50),
        (1, 1_000, 1 << 50),
        (1_000, 1_000, 1 << 50),
    ];
    for (units, period, burst) in bursts {
        counters.flush();
        let rate = rate(units, period);
        let shared = Shared::one(Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst }] });
        let local = Local::new(&shared.configs);
        let mut now = START_US;
        for (gap, cost) in
            [(0, burst), (0, 1), (1, 1), (999_999, burst), (86_400_000_000, 7), (1 << 51, burst), (3, 1)]
        {
            now += gap;
            let (ours, theirs) =
                (shared.take(&mut counters, &[key(1)], cost, now), local.take(&[key(1)], cost, now));
            assert_eq!(ours, theirs, "{units} per {period} ns, burst {burst}: {cost} after {gap}");
        }
    }
}

#[test]
fn a_chain_names_the_longest_retry_and_charges_no_limit() {
    let mut counters = Counters::start();
    let shared = Shared::new(vec![
        limits::config(token(1, SECOND_NS, 9)),
        limits::config(token(1, SECOND_NS, 1)),
        limits::config(fixed(1, 60 * SECOND_NS, WindowAlign::First)),
    ]);
    assert!(shared.take(&mut counters, &[key(1)], 1, START_US).admitted);
    let before = counters.dump();
    let verdict = shared.take(&mut counters, &[key(1)], 1, START_US);
    assert_eq!((verdict.admitted, verdict.retry_us), (false, 60 * SECOND_US));
    let outcomes: Vec<LimitOutcome> = verdict.decisions.iter().map(|decision| decision.outcome).collect();
    assert_eq!(outcomes, [LimitOutcome::Admit, LimitOutcome::Reject, LimitOutcome::Reject]);
    assert_eq!(verdict.decisions[0].remaining, 8, "unspent");
    assert_eq!(counters.dump(), before);
}
