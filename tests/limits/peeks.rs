//! Looking at a chain says what judging it would say, and changes nothing.

use proptest::prelude::*;
use sluicegate::chain::{Ask, Foreseen, Refusal, Verdict};
use sluicegate::clock::Now;
use sluicegate::config::Algorithm;

use crate::support::*;

fn any_limit() -> impl Strategy<Value = (Algorithm, bool)> {
    let token = (1..20u64, 1..10u64).prop_map(|(units, burst)| token(units, SECOND, burst));
    let leaky =
        (1..20u64, 1..4u64, 0..5u64).prop_map(|(units, burst, queue)| leaky(units, SECOND, burst, queue));
    let slots = (1..5u32).prop_map(concurrency);
    (prop_oneof![token, leaky, slots], proptest::bool::weighted(0.2))
}

/// What a refusal says; limits are told apart by their place in the chain.
fn said(gate: &Gate, refusal: &Refusal) -> String {
    let place = refusal
        .limit
        .as_ref()
        .and_then(|limit| gate.chain.limits().iter().position(|known| std::sync::Arc::ptr_eq(known, limit)));
    format!("{:?} {place:?} {} {:?}", refusal.cause, refusal.rate, refusal.retry_after_ns)
}

fn look(gate: &Gate, at: u64, cost: u64, missing: bool) -> Foreseen {
    gate.chain.peek(Now(START + at), &gate.waiting, |_| match missing {
        true => Ask::MissingKey,
        false => Ask::Units(units(1, cost)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn what_is_foreseen_comes_true(
        algorithms in proptest::collection::vec(any_limit(), 1..4),
        traffic in proptest::collection::vec((0..300 * MS, 1..4u64, any::<bool>()), 1..40),
        waiting_max in prop_oneof![Just(0_usize), Just(2), Just(100)],
    ) {
        let limits = algorithms.iter().map(|(algorithm, dry_run)| match dry_run {
            true => dry(algorithm.clone()),
            false => limit(algorithm.clone()),
        });
        let mut gate = Gate::new(limits.collect());
        gate.waiting = std::sync::Arc::new(sluicegate::chain::Waiting::new(waiting_max));
        let (mut at, mut held) = (0, vec![]);
        for (gap, cost, keep) in traffic {
            at += gap;
            let foreseen = look(&gate, at, cost, false);
            let again = look(&gate, at, cost, false);
            prop_assert_eq!(format!("{foreseen:?}"), format!("{again:?}"), "looking changes nothing");
            let told = foreseen.refusal.as_ref().map(|refusal| said(&gate, refusal));
            match gate.judge(at, 1, cost).verdict {
                Verdict::Reject(refusal) => prop_assert_eq!(told, Some(said(&gate, &refusal))),
                Verdict::Admit(mut passage) => {
                    prop_assert_eq!(foreseen.wait.map_or(0, |(wait, _)| wait), passage.wait_ns());
                    if !passage.must_wait() {
                        let refused = passage.enter(Now(START + at)).err();
                        prop_assert_eq!(told, refused.map(|refusal| said(&gate, &refusal)));
                        passage.forwarded();
                    } else {
                        prop_assert_eq!(told, None);
                    }
                    if keep {
                        held.push(passage);
                    }
                }
            }
        }
    }
}

#[test]
fn a_missing_key_is_foreseen_as_a_refusal_and_not_for_a_dry_run() {
    let gate = Gate::new(vec![dry(token(1, SECOND, 1)), limit(token(1, SECOND, 1))]);
    assert_eq!(said(&gate, &look(&gate, 0, 1, true).refusal.unwrap()), "MissingKey Some(1) 0 None");
}

#[test]
fn slots_in_use_are_told() {
    let gate = Gate::one(concurrency(2));
    let mut passage = admitted(gate.judge(0, 1, 1));
    passage.enter(Now(START)).unwrap();
    assert_eq!(look(&gate, 0, 1, false).decisions[0].decision.remaining, 1);
    drop(passage);
    assert_eq!(look(&gate, 0, 1, false).decisions[0].decision.remaining, 2);
}
