//! What holds for every algorithm alike: no drift, a clock that steps back, extremes, bytes of a broken snapshot.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate::admission::chain::{ChainVerdict, LimitDemand, WaitingCap};
use sluicegate::base::clock::{ClockShift, Now};
use sluicegate::config::LimitId;
use sluicegate::config::{self, Algorithm, KeyPart, WindowAlign};
use sluicegate::limit::{Decision, Limit, LimitOutcome, Units};

use crate::any::{any_limit, any_traffic, gate_of};
use crate::support::*;

/// Takes turns, warms up, both or neither.
fn variants_of(algorithm: &Algorithm, warm_up: Duration) -> Vec<config::LimitConfig> {
    let plain = config(algorithm.clone());
    let warm = config::LimitConfig { warm_up: Some(warm_up), ..plain.clone() };
    let turns = |limit: &config::LimitConfig| config::LimitConfig {
        fair_by: vec![KeyPart::Account],
        ..limit.clone()
    };
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

/// Three a second, asked for as soon as they are there: 259,200 a day, from the moment it is warm.
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
                if let ChainVerdict::Admit(mut passage) = judgement.verdict {
                    passed += i64::from((WARM..WARM + DAY).contains(&(at + wait_ns)));
                    passage.mark_forwarded();
                    std::mem::forget(passage);
                }
                at += retry_after_ns;
            }
            assert!((passed - 259_200).abs() <= 1, "{passed}: {limit:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// A clock that steps back says what it said when the last unit was taken; with one rate, so that none is
    /// taken that another refuses.
    #[test]
    fn a_clock_that_steps_back_stands_still(
        limit in any_limit().prop_filter("one rate", |limit| limit.algorithm.rate_quotas().len() == 1),
        traffic in any_traffic(),
        back in proptest::collection::vec(prop_oneof![2 => Just(0), 1 => 0..3 * SECOND, 1 => Just(START)], 120),
    ) {
        // A dry run accepts what it does not take.
        let limit = config::LimitConfig { dry_run: false, ..limit };
        let (gate, twin) = (gate_of(slice::from_ref(&limit)), gate_of(&[limit]));
        let (mut at, mut last) = (START, 0);
        for (asked, back) in traffic.iter().zip(back) {
            at += asked.gap;
            let ask = |limit: &Limit| LimitDemand::Units(Units { key: key(1), variant: 0, ..asked.units(limit) });
            let early = gate.chain.judge(Now(at - back), &gate.waiting, ask);
            let present = last.max(at - back);
            let expected = twin.chain.judge(Now(present), &twin.waiting, ask);
            let behind = present - (at - back);
            for (told, expected) in early.decisions.iter().zip(&expected.decisions) {
                let (told, expected) = (told.decision, expected.decision);
                prop_assert_eq!((told.outcome, told.remaining), (expected.outcome, expected.remaining));
                if told.outcome == LimitOutcome::Reject && told.retry_after_ns != u64::MAX {
                    prop_assert_eq!(told.retry_after_ns, expected.retry_after_ns + behind);
                }
            }
            for (verdict, of_gate) in [(early.verdict, true), (expected.verdict, false)] {
                if let ChainVerdict::Admit(mut passage) = verdict {
                    last = if of_gate { last } else { present };
                    passage.mark_forwarded();
                    std::mem::forget(passage);
                }
            }
        }
    }

    /// Whatever stands in the bytes of an entry, it is refused or judged.
    #[test]
    fn a_broken_snapshot_harms_nobody(
        limit in any_limit(),
        traffic in any_traffic(),
        noise in proptest::collection::vec((0..200usize, any::<u8>()), 0..20),
        shift in prop_oneof![Just(0), any::<u64>()],
        moments in proptest::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), START..START + DAY], 6),
    ) {
        let limits = [Arc::new(Limit::new(LimitId(0), &limit, 10)), Arc::new(Limit::new(LimitId(0), &limit, 10))];
        let [old, new] = limits.clone().map(|limit| Gate::new(vec![limit]));
        let mut at = START;
        for asked in &traffic {
            at += asked.gap;
            let ask = |limit: &Limit| LimitDemand::Units(asked.units(limit));
            std::mem::forget(old.chain.judge(Now(at), &old.waiting, ask).verdict);
        }
        for (from, to) in limits[0].rate_tables().iter().zip(limits[1].rate_tables()) {
            for block in 0..from.table.block_count() {
                let mut bytes = vec![];
                from.table.encode_block(block, Now(at), &mut bytes);
                for (place, byte) in &noise {
                    // The head of a block and the identity and length of its first entry stay whole.
                    if let Some(one) = bytes.get_mut(17 + place) {
                        *one = *byte;
                    }
                }
                to.table.restore_block(&bytes, ClockShift::new(Now(at), 0, Now(at.wrapping_add(shift))), Now(at));
            }
        }
        for (now, asked) in moments.iter().zip(traffic.iter().cycle()) {
            let ask = |limit: &Limit| LimitDemand::Units(asked.units(limit));
            drop(new.chain.peek(Now(*now), &new.waiting, ask));
            std::mem::forget(new.chain.judge(Now(*now), &new.waiting, ask).verdict);
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
                        let units = Units { key: key(1), cost, variant: 0, fair: fair as u64 % 2 };
                        drop(gate.chain.peek(Now(now), &gate.waiting, |_| LimitDemand::Units(units)));
                        let verdict =
                            gate.chain.judge(Now(now), &gate.waiting, |_| LimitDemand::Units(units)).verdict;
                        if now != START {
                            // Those of the first moment are given back.
                            std::mem::forget(verdict);
                        }
                    }
                }
            }
        }
    }
}
