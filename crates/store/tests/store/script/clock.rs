//! The store's clock is stepped while limits are busy.

use sluicegate_model::{Algorithm, WindowAlign};
use sluicegate_store::{ScriptOp, SlotCount};

use crate::limits::{SECOND as SECOND_NS, concurrency, config as limit, fixed, leaky, log, sliding, token};
use crate::script::settle::charging;
use crate::script::support::*;

const GAP_US: u64 = 20 * MS_US;
const CAPACITY: usize = 5;

/// Departure times of requests that come every 20 ms for 4 s, in real time, before, between and after the steps.
fn departures(algorithm: Algorithm, steps: [i64; 2]) -> Vec<u64> {
    let (mut counters, shared) = (Counters::start(), Shared::one(algorithm));
    let (mut leave, mut offset) = (vec![], 0);
    for request in 0..600 {
        if request > 0 && request % 200 == 0 {
            offset += steps[request / 200 - 1];
        }
        let real = START_US + request as u64 * GAP_US;
        let now = real.checked_add_signed(offset).unwrap();
        if let Some(answer) = shared.pass(&mut counters, now) {
            leave.push(real + answer.decision.wait_ns / 1_000);
        }
    }
    // A clock set forward lets departures overtake those that wait.
    leave.sort_unstable();
    leave
}

fn every_kind() -> [Algorithm; 6] {
    let units = CAPACITY as u64;
    [
        token(units, SECOND_NS, units),
        leaky(units, SECOND_NS, 2, 3),
        fixed(units, SECOND_NS, WindowAlign::First),
        fixed(units, SECOND_NS, WindowAlign::Clock),
        sliding(units, SECOND_NS, 5),
        log(units, SECOND_NS),
    ]
}

#[test]
fn a_stepped_clock_neither_freezes_nor_floods() {
    const HOUR: i64 = HOUR_US as i64;
    for steps in [[-HOUR, HOUR], [HOUR, -HOUR], [-3_000_000, -500_000], [-HOUR, -HOUR]] {
        for algorithm in every_kind() {
            let shown = format!("{algorithm:?}, {steps:?}");
            let leave = departures(algorithm, steps);
            let longest = leave.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            // A window, its sub-window, and one more for units used right before.
            assert!(longest <= 2 * SECOND_US + 200 * MS_US, "{longest} us, {shown}");
            assert!(leave.last() > Some(&(START_US + 10 * SECOND_US)), "{shown}");
            for (index, first) in leave.iter().enumerate() {
                let second = leave[index..].iter().take_while(|at| **at < first + SECOND_US).count();
                assert!(second <= 3 * CAPACITY, "{second} in a second, {shown}");
            }
        }
    }
}

#[test]
fn a_clock_set_back_lets_no_more_pass_than_a_bucket_holds() {
    const BACK: i64 = -(HOUR_US as i64);
    let leave = departures(token(5, SECOND_NS, 5), [BACK, BACK]);
    for (index, first) in leave.iter().enumerate() {
        for (more, at) in leave[index..].iter().enumerate() {
            assert!(
                (more as u64) * 200 * MS_US < 1_000 * MS_US + (at - first) + 1,
                "{more} from {first} to {at}"
            );
        }
    }
    let leave = departures(leaky(5, SECOND_NS, 1, 3), [BACK, BACK]);
    assert!(leave.windows(2).all(|pair| pair[1] - pair[0] >= 200 * MS_US), "{leave:?}");
}

#[test]
fn even_a_rejection_brings_back_state_from_an_impossible_future() {
    let mut counters = Counters::start();
    let start = START_US + 300 * MS_US;
    for algorithm in every_kind() {
        counters.flush();
        let by_clock = matches!(algorithm, Algorithm::FixedWindow { align: WindowAlign::Clock, .. });
        let shared = Shared::new(vec![limit(algorithm), limit(token(1, SECOND_NS, 1000))]);
        let mut admitted = 0;
        while shared.take(&mut counters, &[key(1)], 1, start).admitted {
            admitted += 1;
        }
        assert_eq!(admitted, CAPACITY);
        let back = start - HOUR_US;
        let before = counters.dump();
        counters.mortal = true;
        let verdict = shared.take(&mut counters, &[key(1)], 1, back);
        counters.mortal = false;
        assert!(!verdict.admitted && verdict.retry_us <= SECOND_US + 200 * MS_US, "{verdict:?}");
        assert!(!by_clock || (back + verdict.retry_us).is_multiple_of(SECOND_US), "{verdict:?}");
        assert_ne!(counters.dump(), before);
        assert_eq!(verdict.decisions[1].remaining, 1000 - CAPACITY as u64, "no time has passed");
        for ttl in counters.ttls() {
            assert!(ttl > 0 && ttl <= 6_000, "{ttl}");
        }
        let before = counters.dump();
        assert!(!shared.take(&mut counters, &[key(1)], 1, back + verdict.retry_us - 1).admitted);
        assert_eq!(counters.dump(), before, "{verdict:?}");
        assert!(shared.take(&mut counters, &[key(1)], 1, back + verdict.retry_us).admitted, "{verdict:?}");
    }
}

#[test]
fn a_dry_run_thaws_too() {
    let mut counters = Counters::start();
    for algorithm in every_kind() {
        counters.flush();
        let dry = sluicegate_model::LimitConfig { dry_run: true, ..limit(algorithm) };
        let shared = Shared::new(vec![dry]);
        let mut would_pass = |now| {
            let verdict = shared.take(&mut counters, &[key(1)], 1, now);
            assert!(verdict.admitted);
            verdict.decisions[0].retry_after_ns == 0
        };
        assert_eq!((0..9).filter(|_| would_pass(START_US)).count(), CAPACITY);
        assert!(!would_pass(START_US - HOUR_US));
        assert!(would_pass(START_US - HOUR_US + 2 * SECOND_US));
    }
}

#[test]
fn slots_of_a_dead_gateway_lapse_although_the_clock_was_set_back() {
    let (mut counters, shared) = (Counters::start(), Shared::one(concurrency(2)));
    let mut take = |node, now| {
        counters.node = node;
        let mut items = shared.items(&[key(1)], 1);
        items[0].slot_count = SlotCount { slots: 1, asked: 1, oldest: now, sequence: now, turn: None };
        counters.call(ScriptOp::Take, &items, now).admitted
    };
    assert!(take(1, START_US) && take(2, START_US));
    let back = START_US - HOUR_US;
    assert!(!take(3, back));
    assert!(!take(3, back + 9 * SECOND_US));
    assert!(take(3, back + 10 * SECOND_US));
}

/// One request a second, as many as a limit admits: before and after the clock is set back by 20 s.
#[test]
fn a_clock_set_back_hardly_interrupts_a_steady_flow() {
    const UNITS: u64 = 60;
    let period = UNITS * SECOND_NS;
    let (sub_window_s, step_s) = (10, 20);
    for at in [30, 61, 70, 95] {
        for (algorithm, pause_s) in [
            (token(UNITS, period, UNITS), 1),
            (sliding(UNITS, period, 6), 1 + sub_window_s + step_s),
            (log(UNITS, period), 2),
            (fixed(UNITS, period, WindowAlign::First), 1 + step_s),
            (fixed(UNITS, period, WindowAlign::Clock), 1 + step_s),
        ] {
            for config in [limit(algorithm.clone()), charging(algorithm)] {
                let shown =
                    format!("{:?}, settled: {}, at {at} s", config.algorithm, config.charge.is_some());
                let (mut counters, shared) = (Counters::start(), Shared::new(vec![config]));
                let passes = |real: &u64| {
                    let set_back = if *real >= at { step_s } else { 0 };
                    shared.pass(&mut counters, START_US + (real - set_back) * SECOND_US).is_some()
                };
                let passed: Vec<u64> = (0..200).filter(passes).collect();
                let longest = passed.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
                assert!(longest <= pause_s, "{longest} s, {shown}");
                assert!(passed.last() > Some(&190), "{shown}");
            }
        }
    }
}
