//! Promises of every algorithm: no drift, a clock that steps back, extremes, bytes of a broken snapshot.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{LimitDemand, WaitingCap};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_limit::{Decision, Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, KeyPart, LimitId, WindowAlign};

use crate::any::{any_limit, any_traffic, gate_of};
use crate::support::*;

/// The algorithm with `fair_by`, with `warm_up`, with both and with neither.
fn variants_of(algorithm: &Algorithm, warm_up: Duration) -> Vec<model::LimitConfig> {
    let plain = config(algorithm.clone());
    let warm = model::LimitConfig { warm_up: Some(warm_up), ..plain.clone() };
    let turns =
        |limit: &model::LimitConfig| model::LimitConfig { fair_by: vec![KeyPart::Account], ..limit.clone() };
    match algorithm {
        Algorithm::TokenBucket { .. } => vec![plain, warm],
        Algorithm::LeakyBucket { .. } => vec![turns(&plain), turns(&warm), plain, warm],
        _ => vec![plain],
    }
}

fn all(units: u64, period_ns: u64) -> Vec<Algorithm> {
    let mut algorithms = all_windows(units, period_ns);
    algorithms.extend([token(units, period_ns, units), leaky(units, period_ns, units, units)]);
    algorithms
}

/// Three units a second, each taken as soon as it is there: 259,200 a day, once warm.
#[test]
fn nothing_drifts_over_a_day() {
    const WARM: u64 = 10 * SECOND;
    let queue = leaky(3, SECOND, 1, 2);
    for algorithm in [token(3, SECOND, 1), queue, fixed(3, SECOND, WindowAlign::First), log(3, SECOND)] {
        for limit in variants_of(&algorithm, Duration::from_nanos(WARM)) {
            let mut gate = gate_of(slice::from_ref(&limit));
            gate.waiting = Arc::new(WaitingCap::new(1 << 20));
            let (mut at, mut passed) = (0, 0_i64);
            while at < WARM + DAY {
                let judgement = gate.judge(at, 1, 1);
                let Decision { wait_ns, retry_after_ns, .. } = judgement.decisions[0].decision;
                if let Verdict::Admit(mut permit) = judgement.verdict {
                    passed += i64::from((WARM..WARM + DAY).contains(&(at + wait_ns)));
                    permit.keep_charges();
                    std::mem::forget(permit);
                }
                at += retry_after_ns;
            }
            assert!((passed - 259_200).abs() <= 1, "{passed}: {limit:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// After a step back of the clock, decisions are those of the moment of the last charge; with one rate, so that
    /// no unit is taken that another rate rejects.
    #[test]
    fn a_clock_that_steps_back_stands_still(
        limit in any_limit().prop_filter("one rate", |limit| limit.algorithm.rate_quotas().len() == 1),
        traffic in any_traffic(),
        back in proptest::collection::vec(prop_oneof![2 => Just(0), 1 => 0..3 * SECOND, 1 => Just(START)], 120),
    ) {
        // A dry run accepts requests without taking their units.
        let limit = model::LimitConfig { dry_run: false, ..limit };
        let (gate, twin) = (gate_of(slice::from_ref(&limit)), gate_of(&[limit]));
        let (mut at, mut last) = (START, 0);
        for (request, back) in traffic.iter().zip(back) {
            at += request.gap;
            let ask = |limit: &Limit| LimitDemand::Units(Units { key: key(1), variant: 0, ..request.units(limit) });
            let early = gate.chain.judge_request(Now(at - back), &gate.waiting, ask);
            let present = last.max(at - back);
            let expected = twin.chain.judge_request(Now(present), &twin.waiting, ask);
            let behind = present - (at - back);
            for (decision, expected) in early.decisions.iter().zip(&expected.decisions) {
                let (decision, expected) = (decision.decision, expected.decision);
                prop_assert_eq!((decision.outcome, decision.remaining), (expected.outcome, expected.remaining));
                if decision.outcome == LimitOutcome::Reject && decision.retry_after_ns != u64::MAX {
                    prop_assert_eq!(decision.retry_after_ns, expected.retry_after_ns + behind);
                }
            }
            for (verdict, of_gate) in [(early.verdict, true), (expected.verdict, false)] {
                if let Verdict::Admit(mut permit) = verdict {
                    last = if of_gate { last } else { present };
                    permit.keep_charges();
                    std::mem::forget(permit);
                }
            }
        }
    }

    /// Any bytes of an entry are rejected, or restored to an entry that can be judged.
    #[test]
    fn a_broken_snapshot_is_harmless(
        limit in any_limit(),
        traffic in any_traffic(),
        noise in proptest::collection::vec((0..200usize, any::<u8>()), 0..20),
        shift in prop_oneof![Just(0), any::<u64>()],
        moments in proptest::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), START..START + DAY], 6),
    ) {
        let limits = [Arc::new(Limit::new(LimitId(0), &limit, 10)), Arc::new(Limit::new(LimitId(0), &limit, 10))];
        let [old, new] = limits.clone().map(|limit| Gate::new(vec![limit]));
        let mut at = START;
        for request in &traffic {
            at += request.gap;
            let ask = |limit: &Limit| LimitDemand::Units(request.units(limit));
            std::mem::forget(old.chain.judge_request(Now(at), &old.waiting, ask).verdict);
        }
        for (from, to) in limits[0].rate_tables().iter().zip(limits[1].rate_tables()) {
            for block in 0..from.table.block_count() {
                let mut bytes = vec![];
                from.table.encode_block(block, Now(at), &mut bytes);
                for (offset, byte) in &noise {
                    // The head of a block and the key and length of its first entry stay unchanged.
                    if let Some(one) = bytes.get_mut(17 + offset) {
                        *one = *byte;
                    }
                }
                to.table.restore_block(&bytes, ClockShift::new(Now(at), 0, Now(at.wrapping_add(shift))), Now(at));
            }
        }
        for (now, request) in moments.iter().zip(traffic.iter().cycle()) {
            let ask = |limit: &Limit| LimitDemand::Units(request.units(limit));
            drop(new.chain.look(Now(*now), &new.waiting, ask));
            std::mem::forget(new.chain.judge_request(Now(*now), &new.waiting, ask).verdict);
        }
    }
}

#[test]
fn extremes_do_not_panic() {
    let counts = [1, 3, u64::from(u32::MAX), u64::MAX];
    for (period, units) in [1, 7, SECOND, u64::MAX].into_iter().flat_map(|p| counts.map(|units| (p, units))) {
        for (algorithm, warm_up) in
            all(units, period).into_iter().flat_map(|a| [1, u64::MAX].map(|w| (a.clone(), w)))
        {
            for limit in variants_of(&algorithm, Duration::from_nanos(warm_up)) {
                let gate = gate_of(&[limit]);
                for now in [0, 1, START, u64::MAX, START, u64::MAX] {
                    for (fair, cost) in [0, 1, 2, units, u64::MAX].into_iter().enumerate() {
                        let units = Units {
                            key: key(1),
                            cost,
                            variant: 0,
                            fair_hash: fair as u64 % 2,
                            unenforced: false,
                            anchor: None,
                        };
                        drop(gate.chain.look(Now(now), &gate.waiting, |_| LimitDemand::Units(units)));
                        let verdict = gate
                            .chain
                            .judge_request(Now(now), &gate.waiting, |_| LimitDemand::Units(units))
                            .verdict;
                        if now != START {
                            // The charges of the first moment are refunded.
                            std::mem::forget(verdict);
                        }
                    }
                }
            }
        }
    }
}
