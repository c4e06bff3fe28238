//! A refused call changes nothing, in whatever order its limits are named and however late it is refused.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{LimitDemand, RateDecision, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{self as model, WindowAlign};
use tokio::time::{sleep, timeout};

use crate::any::gate_of;
use crate::support::*;

/// A request that waits for so long at most.
fn judge(gate: &Gate, cost: u64, max_wait_ms: u64) -> Verdict {
    let bytes = || 0;
    let waiter = WaitingRequest::new(&gate.waiting, &bytes).with_max_wait(max_wait_ms * MS);
    let ask = |limit: &Limit| {
        LimitDemand::Units(units(
            1,
            if matches!(limit.config.algorithm, model::Algorithm::Concurrency { .. }) { 1 } else { cost },
        ))
    };
    gate.chain.judge_request(Now::read_clock(), waiter, ask).verdict
}

/// The numbers of each limit as a further request would find them, and the requests that wait.
fn visible_state(gate: &Gate) -> (Vec<RateDecision>, Vec<usize>, usize) {
    let limits = gate.chain.limits();
    let look = |limit: &Arc<Limit>| {
        let alone = Gate::new(vec![limit.clone()]);
        alone.chain.look(Now::read_clock(), &alone.waiting, |_| LimitDemand::Units(units(1, 1))).decisions
    };
    let decisions = limits.iter().flat_map(|limit| look(limit)).collect();
    (decisions, limits.iter().map(|limit| limit.waiter_count()).collect(), gate.waiting.count_waiting())
}

fn any_named_limit() -> impl Strategy<Value = model::LimitConfig> {
    let max_wait = || prop::option::of((1..800_u64).prop_map(Duration::from_millis));
    let algorithm = prop_oneof![
        2 => (1..4_u32, 0..3_u64, max_wait()).prop_map(|(max, queue, wait)| slots(max, queue, wait)),
        2 => (1..4_u64, 0..5_u64, max_wait()).prop_map(|(burst, queue, wait)| leaky_within(10, SECOND, burst, queue, wait)),
        1 => (1..9_u64).prop_map(|burst| token(5, SECOND, burst)),
        1 => (2..9_u64).prop_map(|units| fixed(units, SECOND, WindowAlign::First)),
        1 => (2..9_u64).prop_map(|units| sliding(units, SECOND, 10)),
        1 => (2..9_u64).prop_map(|units| log(units, SECOND)),
    ];
    (algorithm, prop::bool::weighted(0.15))
        .prop_map(|(algorithm, dry_run)| model::LimitConfig { dry_run, ..config(algorithm) })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// A twin sees all calls but the refused ones. After each refusal, also one in a queue, both show the same numbers
    /// and go on alike.
    #[test]
    fn a_refused_call_leaves_every_counter_as_it_was(
        limits in prop::collection::vec(any_named_limit(), 1..5),
        calls in prop::collection::vec((0..300_u64, 1..4_u64, prop::option::of(0..900_u64), 0..4_u8), 1..25),
    ) {
        paused(async move {
            let (gate, twin) = (gate_of(&limits), gate_of(&limits));
            let mut held = Vec::new();
            for (gap, cost, max_wait_ms, fate) in calls {
                sleep(Duration::from_millis(gap)).await;
                let max_wait_ms = max_wait_ms.unwrap_or(0);
                let arrived = Now::read_clock();
                let admitted = match judge(&gate, cost, max_wait_ms) {
                    Verdict::Reject(_) => None,
                    Verdict::Admit(mut accepted) => {
                        let passed = async {
                            accepted.wait_turn().await.ok()?;
                            accepted.take_slots().await.ok()
                        };
                        let passed = timeout(Duration::from_millis(max_wait_ms), passed).await;
                        passed.ok().flatten().map(|()| accepted)
                    }
                };
                match admitted {
                    // The twin cannot be given the same wait after the fact, so a call that waited is taken back, too.
                    Some(accepted) if Now::read_clock() > arrived => drop(accepted),
                    Some(mut accepted) => {
                        let Verdict::Admit(mut other) = judge(&twin, cost, max_wait_ms) else {
                            panic!("the twin has less room");
                        };
                        accepted.keep_charges();
                        other.keep_charges();
                        held.push((accepted, other));
                    }
                    None => {}
                }
                assert_eq!(visible_state(&gate), visible_state(&twin), "max wait {max_wait_ms}, arrived {arrived:?}");
                if fate == 0 {
                    held.pop();
                }
            }
            drop(held);
            assert_eq!(visible_state(&gate), visible_state(&twin));
        });
    }
}

/// Slots of a limit that is named before the one that is full.
#[test]
fn a_call_that_does_not_wait_gives_the_slots_of_other_limits_back() {
    paused(async {
        for limits in [[2, 1], [1, 2]] {
            let gate = Gate::new(limits.map(|max| limit(slots(max, 5, None))).to_vec());
            let Verdict::Admit(holder) = judge(&gate, 1, 0) else { panic!("slots are free") };
            for _ in 0..5 {
                assert!(matches!(judge(&gate, 1, 0), Verdict::Reject(_)));
            }
            drop(holder);
            for (one, max) in gate.chain.limits().iter().zip(limits) {
                assert_eq!(free_slots(one), u64::from(max));
            }
        }
    });
}

/// A turn that came and led to no slot is the turn of the next caller.
#[test]
fn a_turn_that_leads_to_no_slot_is_given_back() {
    paused(async {
        let gate = Gate::new(vec![
            limit(leaky(10, SECOND, 1, 5)),
            limit(slots(1, 5, Some(Duration::from_millis(20)))),
        ]);
        let Verdict::Admit(_holder) = judge(&gate, 1, 0) else { panic!("a slot is free") };
        let Verdict::Admit(mut late) = judge(&gate, 1, 1000) else { panic!("it may wait") };
        late.wait_turn().await.unwrap();
        assert!(late.take_slots().await.is_err());
        let paced = Gate::new(vec![Arc::clone(&gate.chain.limits()[0])]);
        // 120 ms after the only call that passed.
        assert!(matches!(judge(&paced, 1, 0), Verdict::Admit(_)));
    });
}
