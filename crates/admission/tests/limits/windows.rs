//! Properties of the window algorithms over random and adversarial traffic, against the plain models.

use proptest::prelude::*;
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::WindowAlign;

use crate::models_windows::{Admitted, FixedModel};
use crate::support::*;

/// Units and period (ns), from a few per nanosecond to many per day.
fn any_rate() -> impl Strategy<Value = (u64, u64)> {
    (prop_oneof![1..6u64, 1..60u64], prop_oneof![3..50u64, Just(SECOND), Just(7 * SECOND), Just(DAY)])
}

/// Gaps between requests as a share of the period (in ‰, and ns more or less), with their costs: random ones, bursts,
/// and returns at the very edge of a window.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, i64, u64)>> {
    let share = prop_oneof![4 => Just(0), 3 => 0..120u64, 1 => 0..2500u64, 1 => Just(1000), 1 => Just(100)];
    let nudge = prop_oneof![4 => Just(0), 1 => -1..=1i64, 1 => -20..20i64];
    proptest::collection::vec((share, nudge, prop_oneof![5 => Just(1), 1 => 1..9u64]), 1..250)
}

/// Far enough from the start for traffic that goes back all the time.
const BEGIN: u64 = START + 1000 * DAY;

/// The moments of the traffic after a start; some go back if `backwards`.
fn moments(traffic: &[(u64, i64, u64)], max: u64, period: u64, backwards: bool) -> Vec<(u64, u64)> {
    let mut at = i128::from(BEGIN);
    let step = |&(share, nudge, cost): &(u64, i64, u64)| {
        let gap = i128::from(share) * i128::from(period) / 1000 + i128::from(nudge);
        at += if backwards { gap } else { gap.max(0) };
        if backwards && share == 100 {
            at -= i128::from(period / 3) + gap;
        }
        (at as u64, cost.min(max))
    };
    traffic.iter().map(step).collect()
}

fn ask(gate: &Gate, at: u64, cost: u64) -> (bool, Decision) {
    gate.ask(at - START, 1, cost)
}

/// Whether a request passes exactly at the announced moment, and not a nanosecond before.
fn is_exact_retry(gate: &Gate, at: u64, cost: u64, decision: &Decision) -> bool {
    let early = gate.ask((at - START) + decision.retry_after_ns - 1, 1, cost);
    decision.retry_after_ns > 0 && !early.0 && early.1.retry_after_ns == 1
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn fixed_window_is_the_plain_window(
        (max, period) in any_rate(),
        traffic in any_traffic(),
        clock in any::<bool>(),
        backwards in any::<bool>(),
    ) {
        let align = if clock { WindowAlign::Clock } else { WindowAlign::First };
        let gate = Gate::one(fixed(max, period, align));
        let mut model = FixedModel::new(max, period, align);
        for (at, cost) in moments(&traffic, max, period, backwards) {
            let (admitted, decision) = ask(&gate, at, cost);
            let (fits, left, ends) = model.take(at, cost);
            prop_assert_eq!((admitted, decision.remaining), (fits, left), "at {} cost {}", at, cost);
            prop_assert_eq!(decision.retry_after_ns, if fits { 0 } else { ends - at });
            prop_assert_eq!(decision.reset_ns, if left == 0 { ends - at } else { 0 });
        }
        prop_assert!(model.windows.iter().all(|(_, used)| *used <= max));
    }

    #[test]
    fn sliding_log_is_the_plain_list(
        (max, period) in any_rate(),
        traffic in any_traffic(),
        backwards in any::<bool>(),
    ) {
        let gate = Gate::one(log(max, period));
        let mut model = Admitted::default();
        for (at, cost) in moments(&traffic, max, period, backwards) {
            let (admitted, decision) = ask(&gate, at, cost);
            let present = model.present(at);
            let fits_from = model.fits_from(present, cost, max, period);
            prop_assert_eq!(admitted, fits_from == present, "at {} cost {}", at, cost);
            if admitted {
                model.add(at, cost);
                prop_assert_eq!(decision.retry_after_ns, 0);
            } else {
                prop_assert_eq!(decision.retry_after_ns, fits_from - at);
            }
            let left = max - model.within(present, period);
            prop_assert_eq!(decision.remaining, left);
            let reset = if left == 0 { model.fits_from(present, 1, max, period) - at } else { 0 };
            prop_assert_eq!(decision.reset_ns, reset);
        }
        prop_assert!(model.bound_holds(max, period));
    }

    #[test]
    fn sliding_window_keeps_its_bound_and_admits_late_by_a_bucket_at_most(
        (max, period) in any_rate(),
        buckets in prop_oneof![Just(10u8), 1..=60u8],
        traffic in any_traffic(),
        backwards in any::<bool>(),
    ) {
        let gate = Gate::one(sliding(max, period, buckets));
        let mut model = Admitted::default();
        let width = period.div_ceil(buckets.into());
        for (at, cost) in moments(&traffic, max, period, backwards) {
            let present = model.present(at);
            let must = model.within(present, period + width) + cost <= max;
            let may = model.within(present, period) + cost <= max;
            let (admitted, decision) = ask(&gate, at, cost);
            prop_assert!(admitted || !must || backwards && at < present, "under-admitted at {} cost {}", at, cost);
            prop_assert!(!admitted || may, "over-admitted at {} cost {}", at, cost);
            if admitted {
                model.add(at, cost);
            } else {
                prop_assert!(is_exact_retry(&gate, at, cost, &decision), "{:?}", decision);
                let exact = model.fits_from(present, cost, max, period + width) - at;
                prop_assert!(decision.retry_after_ns <= exact);
            }
            prop_assert_eq!(decision.reset_ns == 0, decision.remaining > 0);
        }
        prop_assert!(model.bound_holds(max, period));
    }

    /// A request dropped before it was forwarded leaves no trace; the others are judged as before.
    #[test]
    fn refunds_are_exact(
        (max, period) in any_rate(),
        traffic in any_traffic(),
        fates in proptest::collection::vec(0..8usize, 250),
    ) {
        let (logs, counts) = (Gate::one(log(max, period)), Gate::one(sliding(max, period, 10)));
        let mut models = [Admitted::default(), Admitted::default()];
        let mut pending: Vec<(u64, usize, u64, Accepted)> = vec![];
        for ((at, cost), fate) in moments(&traffic, max, period, false).into_iter().zip(fates) {
            for (which, gate) in [&logs, &counts].into_iter().enumerate() {
                let (before, model) = (models[which].within(at, period), &mut models[which]);
                let judgement = gate.judge(at - START, 1, cost);
                let Verdict::Admit(mut permit) = judgement.verdict else {
                    prop_assert!(which == 1 || before + cost > max);
                    continue;
                };
                prop_assert!(before + cost <= max, "over-admitted at {} cost {}", at, cost);
                let when = model.add(at, cost);
                if fate < 4 {
                    permit.keep_charges();
                } else {
                    pending.push((when, which, cost, permit));
                }
            }
            if fate % 3 == 0 && !pending.is_empty() {
                let (when, which, cost, permit) = pending.swap_remove(fate % pending.len());
                drop(permit);
                models[which].remove(when, cost);
            }
        }
        prop_assert!(models.iter().all(|model| model.bound_holds(max, period)));
    }

    /// A refund leaves a window as if the request had never come, even if windows began or ended meanwhile.
    #[test]
    fn a_refund_restores_a_window(used in 0..5u64, cost in 1..5u64, later in 0..30 * SECOND, gap in 0..15 * SECOND) {
        for algorithm in all_windows(9, 10 * SECOND) {
            let (gate, twin) = (Gate::one(algorithm.clone()), Gate::one(algorithm.clone()));
            for _ in 0..used {
                prop_assert_eq!(gate.ask(0, 1, 1), twin.ask(0, 1, 1));
            }
            drop(admitted(gate.judge(gap, 1, cost)));
            prop_assert_eq!(gate.ask(gap, 1, 9 - used), twin.ask(gap, 1, 9 - used), "{:?}", &algorithm);
            prop_assert_eq!(gate.ask(gap + later, 1, 4), twin.ask(gap + later, 1, 4), "{:?}", &algorithm);
            prop_assert_eq!(gate.ask(gap + later, 1, 9), twin.ask(gap + later, 1, 9), "{:?}", &algorithm);
        }
    }
}

/// A charge refunded after the end of its window changes nothing in the next one.
#[test]
fn a_refund_comes_too_late_for_a_window_that_is_over() {
    for algorithm in all_windows(3, SECOND) {
        let gate = Gate::one(algorithm.clone());
        let late = admitted(gate.judge(0, 1, 2));
        assert!(gate.ask(3 * SECOND, 1, 3).0);
        drop(late);
        let (passed, decision) = gate.ask(3 * SECOND, 1, 1);
        assert_eq!((passed, decision.remaining), (false, 0), "{algorithm:?}");
    }
}

#[test]
fn several_rates_must_all_hold() {
    for mut algorithm in all_windows(300, 60 * SECOND) {
        let (sluicegate_model::Algorithm::FixedWindow { rates, .. }
        | sluicegate_model::Algorithm::SlidingWindow { rates, .. }
        | sluicegate_model::Algorithm::SlidingLog { rates }) = &mut algorithm
        else {
            panic!("a window")
        };
        rates.push(rate(100, 5 * SECOND));
        let gate = Gate::one(algorithm.clone());
        // Far enough apart for every sub-window, and at the beginning of one.
        let begin = (60 * SECOND).wrapping_sub(START % (60 * SECOND));
        let passed: Vec<usize> =
            [0, 10, 20, 30].map(|at| (0..150).filter(|_| gate.passes(begin + at * SECOND)).count()).to_vec();
        assert_eq!(passed, [100, 100, 100, 0], "{algorithm:?}");
        let rejection = rejected(gate.judge(begin + 30 * SECOND, 1, 1));
        assert_eq!(rejection.rate, 0, "{algorithm:?}");
        let judgement = gate.judge(begin + 30 * SECOND, 1, 1);
        assert_eq!(judgement.decisions[1].decision.remaining, 100, "the other rate is not charged");
    }
}

#[test]
fn extremes_do_not_panic() {
    let numbers = [1, 3, u64::from(u32::MAX), u64::MAX];
    for period in [1, 2, 7, SECOND, u64::MAX] {
        for algorithm in numbers.into_iter().flat_map(|units| all_windows(units, period)) {
            let gate = Gate::one(algorithm);
            for now in [0, 1, START, u64::MAX - START - 1, u64::MAX - START] {
                for cost in [0, 1, 2, u64::from(u32::MAX), u64::MAX] {
                    let ask = |_: &sluicegate_limit::Limit| {
                        sluicegate_admission::chain::LimitDemand::Units(units(1, cost))
                    };
                    let now = sluicegate_base::clock::Now(now.wrapping_add(START));
                    let judgement = gate.chain.judge_request(now, &gate.waiting, ask);
                    let outcome = judgement.decisions[0].decision.outcome;
                    assert_eq!(
                        matches!(judgement.verdict, Verdict::Admit(_)),
                        outcome == LimitOutcome::Admit
                    );
                }
            }
        }
    }
}

/// Greedy clients get N per period over a day; in sliding windows, N per period plus a bucket.
#[test]
fn no_window_drifts_over_a_day() {
    for (index, algorithm) in all_windows(3, SECOND).into_iter().enumerate() {
        let gate = Gate::one(algorithm.clone());
        let (mut at, mut passed) = (0, 0u64);
        while at < DAY {
            let (admitted, decision) = gate.ask(at, 1, 1);
            passed += u64::from(admitted);
            at += decision.retry_after_ns;
        }
        let least = match index {
            2 => 86_400 * 3 * 10 / 11,
            3 => 86_400 * 3 * 60 / 61,
            _ => 86_400 * 3 - 1,
        };
        // Clock-aligned windows are cut at the beginning and the end of the day.
        assert!((least..=86_400 * 3 + 3).contains(&passed), "{algorithm:?}: {passed}");
    }
}
