//! The test vectors of windows, as arithmetic.

use std::sync::Arc;

use sluicegate_admission::chain::Chain;
use sluicegate_base::clock;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{self as model, LimitId, WindowAlign};

use crate::support::*;

/// The remaining units after each of `count` requests at `at`; `None` for a rejected one.
fn remaining(gate: &Gate, at: u64, count: usize) -> Vec<Option<u64>> {
    let one = |(passed, decision): (bool, sluicegate_limit::Decision)| passed.then_some(decision.remaining);
    (0..count).map(|_| one(gate.ask(at, 1, 1))).collect()
}

fn count_passing(gate: &Gate, at: u64, count: usize) -> usize {
    (0..count).filter(|_| gate.passes(at)).count()
}

#[test]
fn fixed_window_vector() {
    let gate = Gate::one(fixed(10, 10 * SECOND, WindowAlign::First));
    assert_eq!(count_passing(&gate, 0, 12), 10);
    assert_eq!(gate.send(0, 1, 1), Err((10 * SECOND, 0)));
    assert_eq!(gate.send(10 * SECOND - 1, 1, 1), Err((1, 0)));
    assert_eq!(count_passing(&gate, 10 * SECOND, 12), 10);
}

#[test]
fn twice_the_number_may_pass_across_an_edge() {
    let gate = Gate::one(fixed(10, 10 * SECOND, WindowAlign::First));
    assert!(gate.passes(0));
    assert_eq!(count_passing(&gate, 10 * SECOND - 1, 20), 9);
    assert_eq!(count_passing(&gate, 10 * SECOND, 20), 10);
}

#[test]
fn a_window_begins_with_its_first_charged_request() {
    let window = limit(fixed(2, 10 * SECOND, WindowAlign::First));
    let gate = Gate::new(vec![window.clone()]);
    assert!(
        Gate::new(vec![window, limit(token(1, DAY, 1))]).send(0, 1, 2).is_err(),
        "rejected by the second limit"
    );
    drop(admitted(gate.judge(SECOND, 1, 1)));
    assert!(gate.passes(4 * SECOND));
    assert_eq!(count_passing(&gate, 14 * SECOND - 1, 2), 1);
    assert_eq!(count_passing(&gate, 14 * SECOND, 3), 2);
}

#[test]
fn windows_by_the_clock_end_at_multiples_of_the_period() {
    let gate = Gate::one(fixed(10, 10 * SECOND, WindowAlign::Clock));
    let now = START + clock::unix_at_zero();
    let edge = now.next_multiple_of(10 * SECOND) - now + 10 * SECOND;
    assert_eq!(count_passing(&gate, edge - SECOND, 12), 10);
    assert_eq!(gate.send(edge - SECOND, 1, 1), Err((SECOND, 0)));
    assert_eq!(count_passing(&gate, edge - 1, 12), 0);
    assert_eq!(count_passing(&gate, edge, 12), 10);
    assert_eq!(count_passing(&gate, edge + 10 * SECOND - 1, 12), 0);
    assert_eq!(count_passing(&gate, edge + 10 * SECOND, 12), 10);
    assert_eq!(
        count_passing(&gate, edge + 49 * SECOND, 12),
        10,
        "a window begins by the clock, not by the request"
    );
    assert_eq!(count_passing(&gate, edge + 50 * SECOND, 12), 10);
}

#[test]
fn two_per_minute() {
    for algorithm in all_windows(2, 60 * SECOND) {
        assert_eq!(remaining(&Gate::one(algorithm), 0, 4), [Some(1), Some(0), None, None]);
    }
    for algorithm in all_windows(3, 60 * SECOND) {
        assert_eq!(remaining(&Gate::one(algorithm), 0, 4), [Some(2), Some(1), Some(0), None]);
    }
}

#[test]
fn one_per_second() {
    for algorithm in [fixed(1, SECOND, WindowAlign::First), log(1, SECOND)] {
        let gate = Gate::one(algorithm);
        let passed = [0, 0, SECOND, SECOND].map(|at| gate.passes(at));
        assert_eq!(passed, [true, false, true, false]);
    }
    let gate = Gate::one(sliding(1, SECOND, 10));
    let passed = [0, 0, SECOND + 100 * MS, SECOND + 100 * MS].map(|at| gate.passes(at));
    assert_eq!(passed, [true, false, true, false]);
}

#[test]
fn remaining_counts_down() {
    for algorithm in all_windows(10, 100 * SECOND) {
        let mut expected: Vec<_> = (0..10).rev().map(Some).collect();
        expected.extend([None, None]);
        assert_eq!(remaining(&Gate::one(algorithm), 0, 12), expected);
    }
}

#[test]
fn a_rejection_never_adds() {
    for algorithm in all_windows(2, 5 * SECOND) {
        let gate = Gate::one(algorithm.clone());
        assert_eq!(count_passing(&gate, 0, 2), 2);
        let (_, first) = gate.ask(0, 1, 1);
        for _ in 0..100 {
            assert_eq!(gate.ask(0, 1, 1), (false, first), "{algorithm:?}");
        }
        assert_eq!(count_passing(&gate, first.retry_after_ns, 3), 2, "{algorithm:?}");
    }
}

/// 300 requests spread over the previous window, 20 more in the first 0.4 s of the new one.
#[test]
fn the_window_slides() {
    for algorithm in [sliding(400, 3 * SECOND, 10), sliding(400, 3 * SECOND, 60), log(400, 3 * SECOND)] {
        let gate = Gate::one(algorithm.clone());
        let begin = (3 * SECOND).wrapping_sub(START % (3 * SECOND));
        assert!((0..300).all(|n| gate.passes(begin + n * 10 * MS)));
        let remaining: Vec<u64> =
            (1..=20).map(|n| gate.ask(begin + 3 * SECOND + n * 20 * MS, 1, 1).1.remaining).collect();
        assert!(remaining.iter().all(|left| (80..=130).contains(left)), "{algorithm:?}: {remaining:?}");
    }
}

#[test]
fn the_true_time_is_reported() {
    for algorithm in [fixed(10, 6 * SECOND, WindowAlign::First), log(10, 6 * SECOND)] {
        let gate = Gate::one(algorithm);
        assert_eq!(count_passing(&gate, 0, 10), 10);
        assert_eq!(gate.send(0, 1, 1), Err((6 * SECOND, 0)));
        assert_eq!(gate.send(3 * SECOND, 1, 1), Err((3 * SECOND, 0)));
        assert_eq!(gate.send(5_999_999_999, 1, 1), Err((1, 0)));
        assert!(gate.passes(6 * SECOND));
    }
}

#[test]
fn each_key_has_its_own_window() {
    for algorithm in all_windows(10, 60 * SECOND) {
        let gate = Gate::one(algorithm);
        for id in 1..=4 {
            let passed = (0..11).filter(|_| gate.send(0, id, 1).is_ok()).count();
            assert_eq!(passed, 10);
        }
    }
}

#[test]
fn two_limits_count_one_key_apart() {
    for algorithm in all_windows(2, 60 * SECOND) {
        let (first, second) = (Gate::one(algorithm.clone()), Gate::one(algorithm));
        assert_eq!((count_passing(&first, 0, 3), count_passing(&second, 0, 3)), (2, 2));
    }
}

#[test]
fn costs_take_several_units() {
    for algorithm in all_windows(10, 10 * SECOND) {
        let gate = Gate::one(algorithm.clone());
        let taken = [4, 4, 4, 2, 1].map(|cost| gate.ask(0, 1, cost));
        let passed = taken.map(|(passed, decision)| (passed, decision.remaining));
        assert_eq!(passed, [(true, 6), (true, 2), (false, 2), (true, 0), (false, 0)], "{algorithm:?}");
        assert_eq!(taken[3].1.reset_ns, taken[4].1.retry_after_ns);
        assert_eq!(rejected(gate.judge(0, 1, 11)).retry_after_ns, None, "never accepted");
    }
}

/// The log frees units one by one, so a large cost waits until enough have left.
#[test]
fn a_log_knows_when_enough_has_left() {
    let gate = Gate::one(log(5, 10 * SECOND));
    assert!((0..5).all(|at| gate.passes(at * SECOND)));
    for cost in 1..=5 {
        assert_eq!(gate.send(5 * SECOND, 1, cost), Err(((4 + cost) * SECOND, 0)));
    }
    assert_eq!(gate.send(11 * SECOND, 1, 2), Ok((0, 0)));
}

#[test]
fn dry_run_judges_by_itself() {
    for algorithm in all_windows(1, 60 * SECOND) {
        let gate = Gate::new(vec![dry(algorithm)]);
        let outcomes =
            [gate.ask(0, 1, 1), gate.ask(0, 1, 1)].map(|(passed, decision)| (passed, decision.outcome));
        assert_eq!(outcomes, [(true, LimitOutcome::Admit), (true, LimitOutcome::Reject)]);
    }
}

#[test]
fn a_full_table_shares_and_never_refills() {
    for algorithm in all_windows(2, 60 * SECOND) {
        let limit = Arc::new(Limit::new(LimitId(0), &config(algorithm.clone()), 1));
        let gate = Gate { chain: Chain::new(vec![limit.clone()]), ..Gate::one(concurrency(1)) };
        let answers = [1, 1, 1, 2, 3, 2, 3].map(|id| gate.send(0, id, 1).is_ok());
        assert_eq!(answers, [true, true, false, true, true, false, false], "{algorithm:?}");
        assert_eq!(limit.key_count(), 1);
        drop(admitted(gate.judge(200 * SECOND, 4, 1)));
        assert!(gate.send(300 * SECOND, 5, 2).is_ok(), "{algorithm:?}: all that was shared has left");
    }
}

/// A newcomer that gets a slot starts from the shared counter; later refunds there do not affect it.
#[test]
fn a_newcomer_starts_from_the_shared_counter() {
    for algorithm in all_windows(3, 60 * SECOND) {
        let config = model::LimitConfig { name: "full".into(), ..config(algorithm.clone()) };
        let limit = Arc::new(Limit::new(LimitId(0), &config, 1));
        let gate = Gate { chain: Chain::new(vec![limit.clone()]), ..Gate::one(concurrency(1)) };
        let begin = (60 * SECOND).wrapping_sub(START % (60 * SECOND));
        assert!(gate.send(begin, 1, 3).is_ok());
        let shared = admitted(gate.judge(begin + 30 * SECOND, 2, 1));
        assert!(gate.send(begin + 30 * SECOND, 3, 1).is_ok());
        drop(shared);
        // The first key's slot is free a period, or a period and a bucket, after its charge.
        let (_, decision) = gate.ask(begin + 67 * SECOND, 4, 1);
        let left = if matches!(algorithm, model::Algorithm::FixedWindow { align: WindowAlign::Clock, .. }) {
            2
        } else {
            1
        };
        assert_eq!(decision.remaining, left, "{algorithm:?}");
    }
}
