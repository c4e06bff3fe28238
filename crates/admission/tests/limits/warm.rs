//! `warm_up`: the climb from cold, the cooling down, and the unchanged promises of a bucket.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{self as model, Algorithm, LimitId};

use crate::support::*;

fn gate(algorithm: Algorithm, warm_up: u64) -> Gate {
    Gate::new(vec![warm(algorithm, warm_up)])
}

/// The times at which units pass, each sent as soon as it fits, until `end`.
fn saturate(gate: &Gate, from: u64, end: u64) -> Vec<u64> {
    let (mut at, mut passed) = (from, vec![]);
    while at < end {
        match gate.send(at, 1, 1) {
            Ok(_) => passed.push(at),
            Err((retry, _)) => at += retry,
        }
    }
    passed
}

#[test]
fn saturated_from_cold_it_warms_up_in_time() {
    for (units, period, warm_up) in
        [(10, SECOND, 10 * SECOND), (7, SECOND, 60 * SECOND), (1000, 7 * SECOND, SECOND)]
    {
        let gate = gate(token(units, period, 1), warm_up);
        let passed = saturate(&gate, 0, 2 * warm_up);
        let half = u128::from(warm_up) * u128::from(units) / u128::from(period) / 2;
        let climbing = passed.iter().filter(|&&at| at < warm_up).count() as i128;
        let warm = passed.len() as i128 - climbing;
        assert!((climbing - half as i128).abs() <= 1, "{climbing} of {half} while it climbs");
        assert!((warm - 2 * half as i128).abs() <= 1, "{warm} of {} when warm", 2 * half);
        assert_eq!(passed[1] - passed[0], (3 * period).div_ceil(units), "a third of the rate at first");
        let gaps: Vec<u64> = passed.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.windows(2).all(|pair| pair[1] <= pair[0] + 1), "it only climbs: {gaps:?}");
    }
}

#[test]
fn idle_time_cools_down_as_fast_as_it_warmed() {
    let gate = gate(token(10, SECOND, 1), 10 * SECOND);
    let gaps = |from: u64| {
        let passed = saturate(&gate, from, from + 30 * SECOND);
        (passed[1] - passed[0], passed[passed.len() - 1] + 100 * MS)
    };
    let (first, warm_until) = gaps(0);
    assert_eq!(first, 300 * MS);
    let (first, warm_until) = gaps(warm_until + 5 * SECOND);
    assert_eq!(first, 200 * MS, "half cold after half the time");
    let (first, warm_until) = gaps(warm_until + 2 * SECOND);
    assert_eq!(first, 140 * MS);
    let (first, warm_until) = gaps(warm_until + 10 * SECOND);
    assert_eq!(first, 300 * MS, "cold again");
    assert_eq!(gaps(warm_until).0, 100 * MS, "no idle time");
}

#[test]
fn a_cold_bucket_takes_fewer_at_once_and_any_cost_it_can_hold() {
    let cold = gate(token(10, SECOND, 20), 60 * SECOND);
    let at_once = (0..20).take_while(|_| cold.passes(0)).count();
    assert_eq!(at_once, 7, "three times as long each, behind no more than 19 at the full rate");
    let whole = gate(token(10, SECOND, 20), 60 * SECOND);
    assert_eq!(whole.send(0, 1, 20), Ok((0, 0)));
    let (retry, _) = whole.send(0, 1, 20).unwrap_err();
    assert!(whole.send(retry - 1, 1, 20).is_err() && whole.send(retry, 1, 20).is_ok());
}

#[test]
fn a_queue_holds_as_many_when_cold() {
    let gate = gate(leaky(10, SECOND, 1, 5), 2 * SECOND);
    let waits: Vec<u64> = (0..8).filter_map(|_| enqueue(&gate, 0)).collect();
    // 300, 280, 260 … ms: the heat of one unit is 200 ms, and the climb is 100 ms · 2 · h/2 s.
    assert_eq!(waits, [0, 300, 580, 840, 1080, 1300]);
    assert_eq!(gate.send(0, 1, 1), Err((300 * MS, 0)));
    assert_eq!(enqueue(&gate, 300 * MS - 1), None);
    assert_eq!(enqueue(&gate, 300 * MS), Some(1200));
}

/// Sends one unit of key 1 that stays in its queue; returns its wait in ms.
fn enqueue(gate: &Gate, at: u64) -> Option<u64> {
    let judgement = gate.judge(at, 1, 1);
    let wait = judgement.decisions[0].decision.wait_ns / MS;
    match judgement.verdict {
        Verdict::Admit(permit) => {
            std::mem::forget(permit);
            Some(wait)
        }
        Verdict::Reject(_) => None,
    }
}

#[test]
fn a_leaver_gives_its_own_interval_back() {
    paused(async {
        let gate = gate(leaky(10, SECOND, 1, 5), 2 * SECOND);
        let start = tokio::time::Instant::now();
        let mut permits: Vec<_> = (0..6)
            .map(|_| {
                admitted(
                    gate.chain
                        .judge_request(Now::read_clock(), &gate.waiting, |_| LimitDemand::Units(units(1, 1))),
                )
            })
            .collect();
        drop(permits.remove(2));
        let mut left = vec![];
        for permit in &mut permits {
            permit.wait_turn().await.unwrap();
            permit.keep_charges();
            left.push(start.elapsed().as_millis());
        }
        // Without the 260 ms of the third; no other interval changes.
        assert_eq!(left, [0, 300, 580, 820, 1040]);
    });
}

#[test]
fn a_late_refund_does_not_cool_it_twice() {
    let gate = gate(token(10, SECOND, 4), 400 * MS);
    let last = saturate(&gate, 0, 3 * SECOND).pop().expect("many pass");
    let (early, late) = (last + 401 * MS, last + 802 * MS);
    let refunded_late = admitted(gate.judge(early, 1, 4));
    let refunded = admitted(gate.judge(late, 1, 1));
    assert!(gate.send(late, 1, 2).is_ok());
    drop(refunded_late);
    drop(refunded);
    assert!(gate.send(late, 1, 4).is_err(), "2 of 4 are used");
    assert!(gate.send(late, 1, 1).is_ok());
}

#[test]
fn extremes_do_not_panic() {
    let counts = [1, 3, u64::from(u32::MAX), u64::MAX];
    for (period, units) in [1, 7, SECOND, u64::MAX].into_iter().flat_map(|p| counts.map(|units| (p, units))) {
        for (burst, warm_up) in counts.into_iter().flat_map(|b| [1, SECOND, u64::MAX].map(|w| (b, w))) {
            for algorithm in [token(units, period, burst), leaky(units, period, burst, u64::MAX)] {
                let gate = gate(algorithm, warm_up);
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

/// The curve by its definition, in shares of W ticks; heat is capped and cools, and no sum telescopes.
struct WarmModel {
    unit: u128,
    ticks_per_ns: u128,
    warm: u128,
    burst: u128,
    tat: u128,
    heat: u128,
}

impl WarmModel {
    fn new(units: u64, period: u64, burst: u64, warm_up: u64) -> WarmModel {
        let (unit, ticks_per_ns) = (period.into(), u128::from(units));
        let warm = u128::from(warm_up) * ticks_per_ns;
        WarmModel { unit, ticks_per_ns, warm, burst: burst.into(), tat: 0, heat: 0 }
    }

    /// Whether `cost` fits at `at`, and its distance from the edge in ns; taken if `take` returns true.
    fn ask(&mut self, at: u64, cost: u64, take: impl FnOnce(bool) -> bool) -> (bool, u128) {
        let now = u128::from(at) * self.ticks_per_ns * self.warm;
        let start = self.tat.max(now);
        let mut heat = self.heat.saturating_sub((start - self.tat) / self.warm);
        let mut spans = vec![];
        for _ in 0..cost {
            spans.push(self.unit * (3 * self.warm - 2 * heat));
            heat = (heat + 2 * self.unit).min(self.warm);
        }
        let edge = (self.burst - 1) * self.unit * self.warm;
        let others: u128 = spans[..spans.len() - 1].iter().sum();
        let ahead = start - now + others.min(edge);
        if take(ahead <= edge) {
            (self.tat, self.heat) = (start + spans.iter().sum::<u128>(), heat);
        }
        (ahead <= edge, ahead.abs_diff(edge) / self.warm / self.ticks_per_ns)
    }
}

/// Gaps as a share of one unit's time (in percent), with costs.
fn any_traffic() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((prop_oneof![Just(0), 0..400u64, 0..5000u64], 1..4u64), 1..150)
}

fn any_warm_up() -> impl Strategy<Value = u64> {
    prop_oneof![1..100u64, (1..600u64).prop_map(|tenths| tenths * SECOND / 10), 1..20 * SECOND]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_warm_token_bucket_is_the_curve(
        (units, burst) in (1..50u64, 1..30u64), warm_up in any_warm_up(), traffic in any_traffic(),
    ) {
        let gate = gate(token(units, SECOND, burst), warm_up);
        let mut model = WarmModel::new(units, SECOND, burst, warm_up);
        let (mut at, mut passed) = (START, vec![]);
        for (gap, cost) in traffic {
            at += gap * SECOND / units / 100;
            let cost = cost.min(burst);
            let fits = gate.send(at - START, 1, cost).is_ok();
            let (model_fits, clear) = model.ask(at, cost, |_| fits);
            // Each rounding error is a few nanoseconds, and may be stretched by 2T/W.
            let stretch = 2 * SECOND / units / warm_up + 1;
            prop_assert!(fits == model_fits || clear < u128::from(stretch) * 1000, "at {} off by {}", at, clear);
            if fits {
                passed.push((at, cost));
            }
        }
        for (first, &(from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for &(at, cost) in &passed[first..] {
                sum += cost;
                let most = u128::from(burst) * u128::from(SECOND) + u128::from(units) * u128::from(at - from);
                prop_assert!(u128::from(sum) * u128::from(SECOND) <= most, "never faster than the plain bucket");
            }
        }
    }

    #[test]
    fn retry_remaining_and_reset_are_exact(
        (units, burst, queue) in (1..50u64, 1..9u64, proptest::option::of(0..9u64)),
        (warm_up, wait_ms) in (any_warm_up(), proptest::option::of(1..2000u64)),
        traffic in proptest::collection::vec((0..300 * MS, 1..4u64), 1..40),
    ) {
        let max_wait = wait_ms.map(Duration::from_millis);
        let gate = gate(match queue {
            None => token(units, SECOND, burst + 3),
            Some(queue) => leaky_within(units, SECOND, burst, queue, max_wait),
        }, warm_up);
        let mut at = 0;
        for (gap, cost) in traffic {
            at += gap;
            // Costs above one may fill a queue beyond its size, and then the retry is only long enough.
            let cost = if queue.is_some() { 1 } else { cost };
            let Err((retry, remaining)) = gate.send(at, 1, cost) else { continue };
            prop_assert!(retry > 0 && retry != u64::MAX);
            prop_assert!(queue.is_none() || remaining == 0);
            let decision = gate.judge(at, 1, burst + 3).decisions[0].decision;
            prop_assert_eq!(decision.remaining == 0, decision.reset_ns > 0);
            if remaining == 0 {
                prop_assert!(gate.send(at + decision.reset_ns - 1, 1, 1).is_err(), "reset too long");
            }
            prop_assert!(gate.send(at + retry - 1, 1, cost).is_err(), "too long by 1 ns at least");
            at += retry;
            let announced = gate.judge(at, 1, 1000).decisions.first().map(|judged| judged.decision.remaining);
            prop_assert!(gate.send(at, 1, cost).is_ok(), "too short");
            if gap % 3 == 0 {
                let more = (0..100).take_while(|_| enqueue(&gate, at).is_some()).count() as u64;
                let fits = Some(more + 1);
                prop_assert!(queue.is_none() || announced == fits, "{announced:?} announced, {fits:?} fit");
            }
        }
    }

    #[test]
    fn remaining_is_the_number_that_still_fits(
        (units, burst) in (1..50u64, 1..60u64), warm_up in any_warm_up(), traffic in any_traffic(),
    ) {
        let gate = gate(token(units, SECOND, burst), warm_up);
        let mut at = 0;
        for (gap, _) in traffic {
            at += gap * SECOND / units / 100;
            if let Ok((_, mut left)) = gate.send(at, 1, 1) {
                while left > 0 {
                    prop_assert_eq!(gate.send(at, 1, 1), Ok((0, left - 1)));
                    left -= 1;
                }
                prop_assert!(!gate.passes(at));
            }
        }
    }

    /// A second gate never sees the requests that a later limit rejected.
    #[test]
    fn a_rejection_gives_the_heat_back(
        (units, burst, queue) in (1..30u64, 1..9u64, proptest::option::of(0..6u64)), warm_up in any_warm_up(),
        traffic in proptest::collection::vec((0..400 * MS, 1..4u64, any::<bool>()), 1..100),
    ) {
        let algorithm = queue.map_or(token(units, SECOND, burst), |queue| leaky(units, SECOND, burst, queue));
        let (own, twin) = (warm(algorithm.clone(), warm_up), gate(algorithm, warm_up));
        let narrow = limit(token(1, DAY, 1));
        let (refuses, spent) = (Gate::new(vec![own.clone(), narrow.clone()]), Gate::new(vec![narrow]));
        prop_assert!(refuses.chain.limits()[0].config.warm_up.is_some() && spent.passes(0));
        let alone = Gate::new(vec![own]);
        let mut at = 0;
        for (gap, cost, is_rejected) in traffic {
            at += gap;
            let cost = if queue.is_some() { 1 } else { cost.min(burst) };
            if is_rejected {
                prop_assert!(matches!(refuses.judge(at, 1, cost).verdict, Verdict::Reject(_)));
                continue;
            }
            let (judgement, expected) = (alone.judge(at, 1, cost), twin.judge(at, 1, cost));
            prop_assert_eq!(&judgement.decisions, &expected.decisions);
            for verdict in [judgement.verdict, expected.verdict] {
                if let Verdict::Admit(mut permit) = verdict {
                    permit.keep_charges();
                    std::mem::forget(permit);
                }
            }
        }
    }

    /// Requests that are refunded late never let too many others through.
    #[test]
    fn late_refunds_never_break_the_bound(
        (units, burst) in (1..30u64, 1..6u64), warm_up in any_warm_up(), smooth in any::<bool>(),
        traffic in proptest::collection::vec((0..900 * MS, 1..4u64, 0..6usize), 1..150),
    ) {
        let algorithm = if smooth { leaky(units, SECOND, burst, 0) } else { token(units, SECOND, burst) };
        let gate = gate(algorithm, warm_up);
        let passed = send_and_refund(&gate, if smooth { 1 } else { burst }, traffic);
        for (first, &(from, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for &(at, cost) in &passed[first..] {
                sum += cost;
                prop_assert!((sum.saturating_sub(burst)) * SECOND <= (at - from) * units, "{:?}", passed);
            }
        }
    }

    /// A dry run decides as the limit would, numbers included.
    #[test]
    fn a_dry_run_decides_the_same(
        (units, burst, queue) in (1..30u64, 1..5u64, 0..8u64), warm_up in any_warm_up(),
        gaps in proptest::collection::vec(prop_oneof![Just(0), 0..400 * MS, 0..9 * SECOND], 1..100),
    ) {
        let algorithm = leaky(units, SECOND, burst, queue);
        let dry = model::LimitConfig {
            dry_run: true, warm_up: Some(Duration::from_nanos(warm_up)), ..config(algorithm.clone())
        };
        let dry = Gate::new(vec![std::sync::Arc::new(Limit::new(LimitId(0), &dry, 1000))]);
        let gate = gate(algorithm, warm_up);
        let mut at = 0;
        for gap in gaps {
            at += gap;
            let judgement = dry.judge(at, 1, 1);
            let decision = gate.judge(at, 1, 1);
            prop_assert_eq!(judgement.decisions[0].decision, decision.decisions[0].decision);
            admitted(judgement).keep_charges();
            if let Verdict::Admit(permit) = decision.verdict {
                std::mem::forget(permit);
            }
        }
    }
}
