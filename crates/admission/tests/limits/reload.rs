//! The counters of a limit after a reload that changes its numbers.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{Chain, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{
    self as model, Algorithm, ChargeConfig, ChargedUnits, KeyPart, LeakyBucketRate, LimitId, MissingUnits,
    OverrunAction, Reserve, ResponseSet, TokenBucketRate, WindowAlign,
};

use crate::support::*;

impl Gate {
    /// The gate after a reload at `at` to the limit `config`.
    pub fn reloaded(&self, at: u64, config: &model::LimitConfig, max_keys: usize) -> Gate {
        let limit =
            Arc::new(Limit::continue_from(Some(&self.chain.limits()[0]), LimitId(0), config, max_keys));
        limit.apply_numbers(&|| Now(START + at));
        Gate { chain: Chain::new(vec![limit]), waiting: self.waiting.clone() }
    }

    pub fn changed(&self, at: u64, algorithm: Algorithm) -> Gate {
        self.reloaded(at, &config(algorithm), 1000)
    }

    fn take(&self, at: u64, times: usize) -> usize {
        (0..times).filter(|_| self.passes(at)).count()
    }
}

#[test]
fn a_changed_rate_keeps_the_used_units() {
    let gate = Gate::one(token(10, SECOND, 20));
    assert_eq!(gate.take(0, 15), 15);
    // Half a unit has been regained: 14.5 are used, at any rate.
    let slow = gate.changed(50 * MS, token(1, SECOND, 20));
    assert_eq!(slow.ask(50 * MS, 1, 1).1.remaining, 4);
    assert_eq!(slow.take(50 * MS, 10), 4);
    assert_eq!(slow.send(50 * MS, 1, 1), Err((500 * MS, 0)));
    // The previous gateway sees the same counter by the same numbers.
    assert_eq!(gate.send(50 * MS, 1, 1), Err((500 * MS, 0)));
    let fast = slow.changed(50 * MS, token(100, SECOND, 20));
    assert_eq!(fast.send(50 * MS, 1, 1), Err((5 * MS, 0)));
    assert!(fast.passes(55 * MS) && !fast.passes(55 * MS));
}

#[test]
fn a_changed_burst_applies_at_once() {
    let gate = Gate::one(token(10, SECOND, 20));
    assert_eq!(gate.take(0, 20), 20);
    let wide = gate.changed(0, token(10, SECOND, 30));
    assert_eq!(wide.take(0, 100), 10);
    // A bucket holds no debt: the smaller one is empty.
    let narrow = wide.changed(0, token(10, SECOND, 5));
    assert_eq!(narrow.send(0, 1, 1), Err((100 * MS, 0)));
    assert_eq!(narrow.take(300 * MS, 9), 3);
}

#[test]
fn a_key_that_is_idle_is_as_if_new_after_any_change() {
    let gate = Gate::one(token(999_983, 7 * SECOND, 3));
    assert_eq!(gate.take(0, 3), 3);
    let next = gate.changed(60 * SECOND, token(3, SECOND, 2));
    assert_eq!(next.take(60 * SECOND, 9), 2);
}

#[test]
fn a_dry_run_remembers_requests_that_would_have_waited() {
    let dry = |rate| model::LimitConfig { dry_run: true, ..config(leaky(rate, SECOND, 1, 5)) };
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &dry(10), 1000))]);
    (0..9).for_each(|_| assert!(gate.ask(0, 1, 1).0));
    let next = gate.reloaded(50 * MS, &dry(1), 1000);
    let (passes, decision) = next.ask(50 * MS, 1, 1);
    assert!(passes);
    assert_eq!((decision.remaining, decision.retry_after_ns), (0, 500 * MS));
}

/// Limits of 2, then 1, then 3 in one window.
#[test]
fn windows_keep_their_counts() {
    for window in
        [fixed(2, 10 * SECOND, WindowAlign::First), sliding(2, 10 * SECOND, 10), log(2, 10 * SECOND)]
    {
        let of = |units| {
            let mut all = all_windows(units, 10 * SECOND).into_iter();
            all.find(|other| std::mem::discriminant(other) == std::mem::discriminant(&window)).unwrap()
        };
        let two = Gate::one(of(2));
        assert_eq!(two.take(0, 9), 2);
        let one = two.changed(SECOND, of(1));
        assert_eq!(one.take(SECOND, 9), 0);
        let three = one.changed(2 * SECOND, of(3));
        assert_eq!((three.take(2 * SECOND, 9), two.take(2 * SECOND, 9)), (1, 0));
        assert_eq!(three.take(60 * SECOND, 9), 3);
    }
}

#[test]
fn with_another_period_units_count_as_charged_now() {
    let cases = [
        (fixed(5, 10 * SECOND, WindowAlign::First), fixed(6, 60 * SECOND, WindowAlign::First)),
        (sliding(5, 10 * SECOND, 10), sliding(6, 60 * SECOND, 10)),
        (log(5, 10 * SECOND), log(6, 60 * SECOND)),
    ];
    for (before, after) in cases {
        let gate = Gate::one(before.clone());
        assert_eq!(gate.take(0, 2) + gate.take(4 * SECOND, 9), 5);
        let long = gate.changed(5 * SECOND, after);
        assert_eq!((long.take(5 * SECOND, 9), long.take(64 * SECOND, 9)), (1, 0));
        assert!(long.take(78 * SECOND, 1) == 1);
        let short = long.changed(78 * SECOND, before);
        assert!(short.take(78 * SECOND, 9) < 5);
        assert_eq!(short.take(100 * SECOND, 9), 5);
    }
}

#[test]
fn a_charge_under_other_numbers_is_not_refunded() {
    let pairs = [
        (token(10, SECOND, 5), token(1, SECOND, 5)),
        (token(10, SECOND, 5), token(10, SECOND, 4)),
        (leaky(10, SECOND, 5, 0), leaky(1, SECOND, 5, 0)),
        (fixed(5, 10 * SECOND, WindowAlign::First), fixed(5, 5 * SECOND, WindowAlign::First)),
        (sliding(5, 10 * SECOND, 10), sliding(5, 5 * SECOND, 10)),
        (log(5, 10 * SECOND), log(5, 5 * SECOND)),
    ];
    for (before, after) in pairs {
        let gate = Gate::one(before.clone());
        let permit = admitted(gate.judge(0, 1, 2));
        let next = gate.changed(MS, after);
        let left = next.ask(2 * MS, 1, 1).1.remaining;
        drop(permit);
        assert_eq!(
            next.chain
                .look(Now(START + 2 * MS), &next.waiting, |_| LimitDemand::Units(units(1, 1)))
                .decisions[0]
                .decision
                .remaining,
            left,
            "{before:?}"
        );
    }
}

#[test]
fn a_charge_under_the_same_numbers_is_refunded_across_reloads() {
    for algorithm in [token(10, SECOND, 5), leaky(10, SECOND, 5, 0)].into_iter().chain(all_windows(5, SECOND))
    {
        let gate = Gate::one(algorithm.clone());
        let permit = admitted(gate.judge(0, 1, 3));
        let next = (1..100).fold(gate, |gate, _| gate.changed(0, algorithm.clone()));
        assert_eq!(next.ask(0, 1, 1).1.remaining, 1, "{algorithm:?}");
        drop(permit);
        assert_eq!(next.ask(0, 1, 1).1.remaining, 3, "{algorithm:?}");
    }
}

#[test]
fn slots_are_released_to_the_current_counters() {
    let gate = Gate::one(concurrency(3));
    let enter = |gate: &Gate| match gate.judge(0, 1, 1).verdict {
        Verdict::Admit(permit) => Some(permit),
        Verdict::Reject(_) => None,
    };
    let in_flight: Vec<_> = (0..3).map(|_| enter(&gate).unwrap()).collect();
    let one = gate.changed(0, concurrency(1));
    assert!(enter(&one).is_none() && enter(&gate).is_none());
    let mut in_flight = in_flight.into_iter();
    drop((in_flight.next(), in_flight.next()));
    assert!(enter(&one).is_none(), "one is still in flight");
    drop(in_flight);
    let two = one.changed(0, concurrency(2));
    let last = (enter(&two).unwrap(), enter(&gate).unwrap());
    assert!(enter(&two).is_none());
    drop(last);
    assert_eq!(two.chain.limits()[0].key_count(), 1, "the slots of the key are free, its slot is reused");
    assert!(enter(&two).is_some());
}

/// Five units a day, settled in these.
fn charging(units: &[ChargedUnits], counts_kib: bool) -> model::LimitConfig {
    let charge = ChargeConfig {
        when: None,
        clear: ResponseSet::default(),
        units: units.to_vec(),
        reserve: Reserve::Cost,
        missing: MissingUnits::Estimate,
        over: OverrunAction::Finish,
        counts_kib,
        pricing: None,
    };
    model::LimitConfig { charge: Some(charge), ..config(token(5, DAY, 5)) }
}

#[test]
fn a_charge_in_the_same_units_keeps_the_used_ones() {
    let plain = config(token(5, DAY, 5));
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &plain, 1000))]);
    assert_eq!(gate.take(0, 3), 3);
    assert_eq!(gate.reloaded(0, &charging(&[ChargedUnits::Request], false), 1000).take(0, 9), 2);
}

#[test]
fn another_limit_starts_fresh() {
    let leaky = config(leaky(1, DAY, 5, 0));
    let fixed = config(fixed(5, DAY, WindowAlign::First));
    let sliding_10 = config(sliding(5, DAY, 10));
    let others = [
        (leaky.clone(), config(token(1, DAY, 5))),
        (leaky.clone(), model::LimitConfig { name: "other".into(), ..leaky.clone() }),
        (leaky.clone(), model::LimitConfig { key: vec![KeyPart::Account], ..leaky.clone() }),
        (leaky.clone(), model::LimitConfig { fair_by: vec![KeyPart::Account], ..leaky.clone() }),
        (leaky.clone(), model::LimitConfig { warm_up: Some(Duration::from_secs(1)), ..leaky }),
        (fixed, config(crate::support::fixed(5, DAY, WindowAlign::Clock))),
        (sliding_10.clone(), config(sliding(5, DAY, 20))),
        (sliding_10, config(sliding(5, DAY, 5))),
        (config(token(5, DAY, 5)), charging(&[ChargedUnits::Bytes], false)),
        (charging(&[ChargedUnits::Bytes], false), charging(&[ChargedUnits::Bytes], true)),
        (charging(&[ChargedUnits::Bytes], false), charging(&[ChargedUnits::Request], false)),
    ];
    for (before, after) in others {
        let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &before, 1000))]);
        assert_eq!(gate.take(0, 9), 5, "{before:?}");
        assert!(gate.reloaded(0, &after, 1000).take(0, 1) == 1, "{after:?}");
        assert_eq!(gate.take(0, 9), 0, "the one before counts apart");
    }
}

#[test]
fn rates_and_tiers_are_recognised() {
    let one = |units, period| TokenBucketRate { rate: rate(units, period), burst: units };
    let both = Algorithm::TokenBucket { rates: vec![one(5, SECOND), one(8, DAY)] };
    let gate = Gate::one(both);
    assert_eq!(gate.take(0, 9), 5);
    let daily = gate.changed(0, Algorithm::TokenBucket { rates: vec![one(8, DAY)] });
    assert_eq!(daily.take(0, 9), 3, "the day's counter, not the second's");
    let tiered = |tiers| model::LimitConfig { tiers, ..config(token(1, DAY, 5)) };
    let own = |burst| Some(token(1, DAY, burst));
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &tiered(vec![("b".into(), own(7))]), 1000))]);
    let spend = |gate: &Gate, variant| {
        let ask = |_: &Limit| LimitDemand::Units(sluicegate_limit::Units { variant, ..units(1, 1) });
        (0..9)
            .filter(|_| match gate.chain.judge_request(Now(START), &gate.waiting, ask).verdict {
                Verdict::Admit(mut permit) => {
                    permit.keep_charges();
                    true
                }
                Verdict::Reject(_) => false,
            })
            .count()
    };
    assert_eq!((spend(&gate, 0), spend(&gate, 1)), (5, 7));
    let tiers = vec![("a".into(), own(3)), ("b".into(), own(8))];
    let next = gate.reloaded(0, &tiered(tiers), 1000);
    assert_eq!((spend(&next, 0), spend(&next, 1), spend(&next, 2)), (0, 3, 1));
}

#[test]
fn the_cap_on_keys_changes_with_the_counters_kept() {
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config(token(1, DAY, 1)), 10))]);
    let admitted_count =
        |gate: &Gate, ids: std::ops::Range<u128>| ids.filter(|id| gate.send(0, *id, 1).is_ok()).count();
    assert_eq!(admitted_count(&gate, 0..10), 10);
    let wide = gate.reloaded(0, &config(token(1, DAY, 1)), 1000);
    assert_eq!((admitted_count(&wide, 0..10), admitted_count(&wide, 10..1000)), (0, 990));
    assert_eq!((wide.chain.limits()[0].key_count(), wide.chain.limits()[0].overflow_count()), (1000, 0));
    let narrow = wide.reloaded(0, &config(token(1, DAY, 1)), 10);
    assert_eq!(
        (admitted_count(&narrow, 0..1000), admitted_count(&narrow, 1000..2000)),
        (0, 1),
        "newcomers share one counter"
    );
}

/// A newcomer that starts from a shared counter is judged by the current numbers.
#[test]
fn shared_counters_are_converted_too() {
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config(token(1, SECOND, 4)), 1))]);
    assert!(gate.send(0, 1, 4).is_ok() && gate.send(0, 2, 2).is_ok());
    let slow = gate.reloaded(0, &config(token(1, 10 * SECOND, 4)), 1000);
    assert_eq!(slow.send(0, 3, 4), Err((20 * SECOND, 2)));
}

/// (gap in percent of a unit, cost, fate; numbers to reload to).
type Event = (u64, u64, usize, Option<(u64, u64)>);

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let reload = proptest::option::weighted(0.15, (1..60u64, 1..30u64));
    proptest::collection::vec((0..300u64, 1..3u64, 0..9usize, reload), 1..150)
}

/// Runs traffic through reloads, some of it refunded late; returns the times and costs of the forwarded requests.
fn run(
    first: Algorithm,
    step: u64,
    events: Vec<Event>,
    change: impl Fn(u64, u64) -> Algorithm,
) -> Vec<(u64, u64)> {
    let (mut gates, mut at, mut passed, mut pending) = (vec![Gate::one(first)], 0, vec![], vec![]);
    for (gap, cost, fate, reload) in events {
        at += gap * step / 100;
        if let Some((units, burst)) = reload {
            let next = gates.last().unwrap().changed(at, change(units, burst));
            gates.push(next);
        }
        // Requests of the previous gateway come in between.
        let gate = &gates[gates.len().saturating_sub(1 + fate % 2)];
        if let Verdict::Admit(mut permit) = gate.judge(at, 1, cost).verdict {
            if fate < 6 {
                permit.keep_charges();
                passed.push((at, cost));
            } else {
                pending.push(permit);
            }
        }
        if fate % 3 == 0 && !pending.is_empty() {
            drop(pending.swap_remove(fate % pending.len()));
        }
    }
    passed
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn buckets_never_exceed_the_larger_numbers(events in any_events()) {
        let rate_max = events.iter().filter_map(|event| event.3).map(|(units, _)| units).max().unwrap_or(0).max(10);
        let burst_max = events.iter().filter_map(|event| event.3).map(|(_, burst)| burst).max().unwrap_or(0).max(5);
        let leaky = |units, burst| Algorithm::LeakyBucket {
            rates: vec![LeakyBucketRate { rate: rate(units, SECOND), burst, queue: 0 }], max_wait: None };
        for passed in [
            run(token(10, SECOND, 5), 100 * MS, events.clone(), |units, burst| token(units, SECOND, burst)),
            run(leaky(10, 5), 100 * MS, events.clone(), leaky),
        ] {
            for first in 0..passed.len() {
                let mut sum = 0;
                for &(at, cost) in &passed[first..] {
                    sum += cost;
                    // A cost above one may take a leaky bucket beyond its size.
                    let bound = burst_max + 2 + (at - passed[first].0) * rate_max / SECOND;
                    prop_assert!(sum <= bound, "{} > {}", sum, bound);
                }
            }
        }
    }

    #[test]
    fn windows_never_exceed_the_larger_number(events in any_events(), periods in proptest::bool::ANY) {
        // With changed periods all of them promise only the shortest.
        let period = |burst: u64| if periods { SECOND * (1 + burst % 4) } else { SECOND };
        let max = events.iter().filter_map(|event| event.3).map(|(units, _)| units).max().unwrap_or(0).max(10);
        for passed in [
            run(sliding(10, SECOND, 10), 100 * MS, events.clone(), |units, burst| sliding(units, period(burst), 10)),
            run(log(10, SECOND), 100 * MS, events.clone(), |units, burst| log(units, period(burst))),
        ] {
            for &(last, _) in &passed {
                let within = passed.iter().filter(|(at, _)| *at <= last && last - at < SECOND);
                let sum: u64 = within.map(|(_, cost)| cost).sum();
                prop_assert!(sum <= max, "{} > {}", sum, max);
            }
        }
    }
}

/// Every request is judged while another thread reloads continuously.
#[test]
fn threads_and_reloads_together_admit_no_more_than_the_larger_burst() {
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config(token(1, DAY, 100)), 10_000))]);
    let passed = std::thread::scope(|scope| {
        let judges: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| (0..40_000_u128).filter(|n| gate.send(0, n % 50, 1).is_ok()).count()))
            .collect();
        scope.spawn(|| {
            (0..200).fold(gate.changed(0, token(2, DAY, 50)), |gate, n| {
                gate.changed(0, token(1 + n % 3, DAY, 50 + 50 * (n % 2)))
            });
        });
        judges.into_iter().map(|judge| judge.join().unwrap()).sum::<usize>()
    });
    assert!(passed >= 50 * 50, "{passed}");
    assert!(passed <= 50 * 100 + 50 * 50 * 100, "{passed}");
}
