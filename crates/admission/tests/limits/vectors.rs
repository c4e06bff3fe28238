//! The test vectors of token buckets, queues and chains, as arithmetic.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::{Chain, ChainCause, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{self as model, Algorithm, LimitId, TokenBucketRate};

use crate::support::*;

/// The waits (ms) of the accepted ones of `count` requests at `at`, and the number rejected.
fn waits(gate: &Gate, at: u64, count: usize) -> (Vec<u64>, usize) {
    let answers: Vec<_> = (0..count).map(|_| enqueue(gate, at)).collect();
    let waits: Vec<u64> = answers.iter().flatten().copied().collect();
    let rejected = count - waits.len();
    (waits, rejected)
}

/// Sends one unit of key 1 that stays in its queue; returns its wait in ms.
fn enqueue(gate: &Gate, at: u64) -> Option<u64> {
    let judgement = gate.judge(at, 1, 1);
    let wait_ns = judgement.decisions[0].decision.wait_ns;
    match judgement.verdict {
        Verdict::Admit(permit) => {
            std::mem::forget(permit);
            Some(wait_ns / MS)
        }
        Verdict::Reject(_) => None,
    }
}

fn count_passing(gate: &Gate, at: u64, count: usize) -> usize {
    (0..count).filter(|_| gate.passes(at)).count()
}

#[test]
fn token_bucket_vector() {
    let gate = Gate::one(token(10, SECOND, 20));
    assert_eq!(count_passing(&gate, 0, 20), 20);
    for _ in 0..5 {
        assert_eq!(gate.send(0, 1, 1), Err((100 * MS, 0)));
    }
    assert!(!gate.passes(100 * MS - 1));
    assert!(gate.passes(100 * MS));
    assert!(!gate.passes(100 * MS));
}

#[test]
fn leaky_bucket_vector() {
    let gate = Gate::one(leaky(10, SECOND, 1, 5));
    assert_eq!(waits(&gate, 0, 10), (vec![0, 100, 200, 300, 400, 500], 4));
    assert_eq!(rejected(gate.judge(0, 1, 1)).retry_after_ns, Some(100 * MS));
    assert_eq!(rejected(gate.judge(0, 1, 1)).cause, ChainCause::Queue);
    assert_eq!(enqueue(&gate, 100 * MS - 1), None);
    assert_eq!(enqueue(&gate, 100 * MS), Some(500));
}

#[test]
fn queue_of_five() {
    let gate = Gate::one(leaky(10, SECOND, 1, 5));
    assert_eq!(waits(&gate, 0, 20), (vec![0, 100, 200, 300, 400, 500], 14));
}

#[test]
fn no_delay() {
    let gate = Gate::one(token(10, SECOND, 6));
    assert_eq!(count_passing(&gate, 0, 20), 6);
    assert_eq!(count_passing(&gate, 350 * MS, 20), 3);
}

#[test]
fn delay_threshold() {
    let gate = Gate::one(leaky(10, SECOND, 4, 2));
    assert_eq!(waits(&gate, 0, 20), (vec![0, 0, 0, 0, 100, 200], 14));
}

#[test]
fn trace_with_queue() {
    let gate = Gate::one(leaky(10, SECOND, 1, 5));
    let leaves: Vec<u64> = (0..40).filter_map(|i| Some(i * 50 + enqueue(&gate, i * 50 * MS)?)).collect();
    assert_eq!(leaves, (0..25).map(|i| i * 100).collect::<Vec<_>>());
}

#[test]
fn trace_without_delay() {
    let gate = Gate::one(token(10, SECOND, 6));
    let passed: Vec<u64> = (0..40).filter(|i| gate.passes(i * 50 * MS)).collect();
    assert_eq!(passed.len(), 25);
    assert_eq!(passed[..11], (0..11).collect::<Vec<_>>());
    assert!(passed[11..].windows(2).all(|pair| pair[1] - pair[0] == 2), "then one per 100 ms: {passed:?}");
}

#[test]
fn two_locations_share_a_counter() {
    let shared = limit(token(2, SECOND, 2));
    let (first, second) = (Gate::new(vec![shared.clone()]), Gate::new(vec![shared]));
    assert_eq!(count_passing(&first, 0, 3), 2);
    assert!(!second.passes(0));
    assert!(first.passes(600 * MS), "rejections are not charged");
}

#[test]
fn idle_time_is_not_saved() {
    let gate = Gate::one(token(1000, SECOND, 2));
    assert!(gate.passes(0) && gate.passes(100 * MS));
    assert_eq!(count_passing(&gate, 100 * MS, 5), 1);
}

#[test]
fn each_rule_has_its_own_key() {
    for fast_slow in [
        [token(1000, SECOND, 2), token(1, 60 * SECOND, 1)],
        [leaky(1000, SECOND, 1, 9), leaky(1, 60 * SECOND, 1, 0)],
    ] {
        let [fast, slow] = fast_slow.map(limit);
        let gate = Gate::new(vec![fast.clone(), slow]);
        let ask = |a: Option<u128>, b: Option<u128>| {
            let judgement = gate.chain.judge_request(Now(START), &gate.waiting, |limit| {
                let id = if std::ptr::eq(limit, Arc::as_ptr(&fast)) { b } else { a };
                id.map_or(LimitDemand::Skip, |id| LimitDemand::Units(units(id, 1)))
            });
            match judgement.verdict {
                Verdict::Admit(mut permit) => {
                    permit.keep_charges();
                    true
                }
                Verdict::Reject(_) => false,
            }
        };
        assert_eq!([ask(None, Some(1)), ask(None, Some(1))], [true, true]);
        assert_eq!([ask(Some(1), None), ask(Some(1), None)], [true, false]);
        assert_eq!([ask(Some(2), Some(2)), ask(Some(2), Some(2))], [true, false]);
        assert_eq!([ask(None, None), ask(None, None)], [true, true]);
    }
}

#[test]
fn thirty_per_minute() {
    let gate = Gate::one(leaky(30, 60 * SECOND, 2, 1));
    assert_eq!(waits(&gate, 0, 4), (vec![0, 0, 2000], 1));
}

#[test]
fn eighty_in_sequence() {
    let gate = Gate::one(leaky(40, SECOND, 1, 40));
    let total = (0..80).fold(0, |at, _| at + gate.send(at, 1, 1).unwrap().0);
    assert_eq!(total, 1975 * MS);
}

#[test]
fn delays_per_key() {
    let gate = Gate::one(leaky(2, SECOND, 1, 10));
    let permits: Vec<_> = [1, 1, 2, 2].map(|id| admitted(gate.judge(0, id, 1))).into();
    let waits: Vec<u64> = permits.iter().map(|permit| permit.wait_ns() / MS).collect();
    assert_eq!(waits, [0, 500, 0, 500]);
}

#[test]
fn first_reject() {
    for burst in 1..=3 {
        let gate = Gate::one(token(2, SECOND, burst));
        assert_eq!(count_passing(&gate, 0, 10) as u64, burst);
    }
}

#[test]
fn costs() {
    let gate = Gate::one(token(1, SECOND, 5));
    let too_costly = rejected(gate.judge(0, 1, 6));
    assert_eq!((too_costly.cause, too_costly.retry_after_ns), (ChainCause::TooCostly, None));
    for left in (0..5).rev() {
        assert_eq!(gate.send(0, 1, 1), Ok((0, left)));
    }
    assert_eq!(gate.send(0, 1, 1), Err((SECOND, 0)));
    for (at_ms, left) in [(3000, 2), (3100, 1), (4000, 1), (8000, 4), (9500, 4)] {
        assert_eq!(gate.send(at_ms * MS, 1, 1), Ok((0, left)), "at {at_ms} ms");
    }
    assert_eq!(gate.send(9500 * MS, 1, 2), Ok((0, 2)));
    assert_eq!(gate.send(9500 * MS, 1, 5), Err((3 * SECOND, 2)));
    assert_eq!(gate.send(9500 * MS, 1, 2), Ok((0, 0)), "a rejection changes nothing");
}

#[test]
fn reset_is_the_time_until_one_more_fits() {
    let gate = Gate::one(token(3, SECOND, 3));
    let resets: Vec<u64> = (0..3).map(|_| gate.judge(0, 1, 1)).map(keep_first).collect();
    assert_eq!(resets, [0, 0, 333_333_334]);
    let gate = Gate::one(leaky_within(10, SECOND, 1, 5, Some(Duration::from_millis(250))));
    let resets: Vec<u64> = (0..4).map(|_| gate.judge(0, 1, 1)).map(keep_first).collect();
    assert_eq!(resets, [0, 0, 50 * MS, 50 * MS]);
}

fn keep_first(judgement: Judgement) -> u64 {
    let reset_ns = judgement.decisions[0].decision.reset_ns;
    if let Verdict::Admit(permit) = judgement.verdict {
        std::mem::forget(permit);
    }
    reset_ns
}

#[test]
fn no_rate_drifts_over_a_day() {
    let rates = [(3, SECOND), (7, SECOND), (300, 7 * SECOND), (20, DAY), (999_983, DAY), (1_000_000, DAY)];
    for (units, period) in rates {
        let gate = Gate::one(token(units, period, 2));
        let (mut at, mut passed) = (0, 0);
        while at < DAY {
            match gate.send(at, 1, 1) {
                Ok(_) => passed += 1,
                Err((retry, _)) => at += retry,
            }
        }
        let due = (u128::from(DAY) * u128::from(units)).div_ceil(period.into()) as i64;
        assert!((passed - due - 1).abs() <= 1, "{units}/{period} ns: {passed} of {due} and the burst");
    }
}

#[test]
fn fast_rates_do_not_gain() {
    for units in [3_000_000, 30_000_000, 600_000_000, 5_000_000_000] {
        let gate = Gate::one(token(units, SECOND, 1000));
        let mut passed = 0;
        for at in (0..MS).step_by(10) {
            while gate.passes(at) {
                passed += 1;
            }
        }
        let due = units / 1000 + 1000;
        assert!(passed <= due && passed + 100 >= due, "{units}/s: {passed} of {due}");
    }
}

#[test]
fn several_rates_must_all_hold() {
    let rates = vec![
        TokenBucketRate { rate: rate(10, SECOND), burst: 10 },
        TokenBucketRate { rate: rate(15, 60 * SECOND), burst: 15 },
    ];
    let gate = Gate::one(Algorithm::TokenBucket { rates });
    assert_eq!(count_passing(&gate, 0, 20), 10);
    assert_eq!(count_passing(&gate, SECOND, 20), 5);
    let rejection = rejected(gate.judge(SECOND, 1, 1));
    assert_eq!((rejection.rate, rejection.retry_after_ns), (1, Some(3 * SECOND)));
}

#[test]
fn the_longest_retry_is_named_and_holds() {
    let short = limit(token(10, SECOND, 1));
    let long = limit(token(1, SECOND, 1));
    let wide = limit(token(1, SECOND, 100));
    let gate = Gate::new(vec![wide, short, long.clone()]);
    assert!(gate.passes(0));
    let judgement = gate.judge(0, 1, 1);
    let left: Vec<u64> = judgement.decisions.iter().map(|judged| judged.decision.remaining).collect();
    assert_eq!(left, [99, 0, 0], "the first limit's budget is reported unspent");
    assert_eq!(judgement.decisions[0].decision.outcome, LimitOutcome::Admit);
    let rejection = rejected(judgement);
    assert!(Arc::ptr_eq(&rejection.limit.unwrap(), &long));
    assert_eq!(rejection.retry_after_ns, Some(SECOND));
    assert!(!gate.passes(SECOND - 1));
    assert!(gate.passes(SECOND));
}

#[test]
fn concurrency_gives_every_slot_back() {
    let gate = Gate::one(concurrency(1000));
    let enter = || match gate.judge(0, 1, 1).verdict {
        Verdict::Admit(permit) => Ok(permit),
        Verdict::Reject(rejection) => Err(rejection),
    };
    for _ in 0..2 {
        let inside: Vec<_> = (0..1000).map(|_| enter().unwrap()).collect();
        let rejection = enter().map(drop).unwrap_err();
        assert_eq!((rejection.cause, rejection.retry_after_ns), (ChainCause::Concurrency, None));
        drop(inside);
    }
}

#[test]
fn a_concurrency_rejection_refunds_everything() {
    let (bucket, queue) = (limit(token(1, 60 * SECOND, 10)), limit(leaky(1, 60 * SECOND, 5, 0)));
    let gate = Gate::new(vec![bucket, queue, limit(concurrency(1))]);
    let mut first = admitted(gate.judge(0, 1, 1));
    first.keep_charges();
    for _ in 0..7 {
        let judgement = gate.judge(0, 1, 1);
        let left: Vec<u64> = judgement.decisions.iter().map(|judged| judged.decision.remaining).collect();
        assert_eq!(left, [9, 4], "as if the rejected request had not come");
        let rejection = rejected(judgement);
        assert_eq!((rejection.cause, rejection.late), (ChainCause::Concurrency, true));
    }
}

#[test]
fn missing_key_rejects() {
    let gate = Gate::one(token(1, SECOND, 1));
    let judgement = gate.chain.judge_request(Now(START), &gate.waiting, |_| LimitDemand::MissingKey);
    assert_eq!(rejected(judgement).cause, ChainCause::MissingKey);
    assert!(gate.passes(0));
}

#[test]
fn a_limit_named_twice_counts_once() {
    let bucket = limit(token(1, SECOND, 2));
    let gate = Gate::new(vec![bucket.clone(), bucket]);
    assert_eq!(count_passing(&gate, 0, 5), 2);
}

#[test]
fn dropped_before_forwarding_is_uncharged() {
    let gate = Gate::one(token(1, SECOND, 5));
    for _ in 0..20 {
        drop(admitted(gate.judge(0, 1, 5)));
    }
    assert_eq!(gate.send(0, 1, 5), Ok((0, 0)));
}

#[test]
fn a_clock_that_goes_back_counts_as_standing_still() {
    let gate = Gate::one(token(1, SECOND, 2));
    assert!(gate.passes(10 * SECOND) && gate.passes(0));
    assert!(!gate.passes(0) && !gate.passes(10 * SECOND));
    assert!(gate.passes(11 * SECOND));
}

#[test]
fn extremes_do_not_panic() {
    let periods = [1, 7, SECOND, u64::MAX];
    let counts = [1, 3, u64::from(u32::MAX), u64::MAX];
    for (period, units) in periods.into_iter().flat_map(|p| counts.map(|units| (p, units))) {
        for burst in counts {
            for algorithm in [token(units, period, burst), leaky(units, period, burst, u64::MAX)] {
                let gate = Gate::one(algorithm);
                for now in [0, 1, START, u64::MAX] {
                    for cost in [0, 1, 2, burst, u64::MAX] {
                        let ask = |_: &Limit| LimitDemand::Units(crate::support::units(1, cost));
                        drop(gate.chain.judge_request(Now(now), &gate.waiting, ask));
                    }
                }
            }
        }
    }
}

#[test]
fn huge_buckets_are_exact() {
    let burst = 5_000_000_000;
    let gate = Gate::one(token(999_983, DAY, burst));
    assert_eq!(gate.send(0, 1, burst - 1), Ok((0, 1)));
    assert_eq!(gate.send(0, 1, 1), Ok((0, 0)));
    assert_eq!(gate.send(0, 1, 1), Err((DAY.div_ceil(999_983), 0)));
    let (retry, _) = gate.send(0, 1, burst).unwrap_err();
    assert!(gate.send(retry - 1, 1, burst).is_err());
    assert!(gate.send(retry, 1, burst).is_ok());
}

#[test]
fn a_full_table_shares_and_never_refills() {
    let config = model::LimitConfig { ..config(token(1, 60 * SECOND, 1)) };
    let limit = Arc::new(Limit::new(LimitId(0), &config, 1));
    let gate = Gate { chain: Chain::new(vec![limit.clone()]), ..Gate::one(concurrency(1)) };
    let answers = [1, 1, 2, 2, 1, 3].map(|id| gate.send(0, id, 1).is_ok());
    assert_eq!(answers, [true, false, true, false, false, false]);
    assert_eq!(limit.key_count(), 1);
}
