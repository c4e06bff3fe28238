//! Looking at a chain says what judging it would say, and changes nothing.

use proptest::prelude::*;
use sluicegate::admission::chain::{ChainForecast, ChainRejection, ChainVerdict, LimitDemand};
use sluicegate::base::clock::Now;
use sluicegate::limit::Limit;

use crate::any::{any_limit, any_traffic, gate_of};
use crate::support::*;

/// What a refusal says; limits are told apart by their place in the chain.
fn said(gate: &Gate, refusal: &ChainRejection) -> String {
    let place = refusal
        .limit
        .as_ref()
        .and_then(|limit| gate.chain.limits().iter().position(|known| std::sync::Arc::ptr_eq(known, limit)));
    format!("{:?} {place:?} {} {:?}", refusal.cause, refusal.rate, refusal.retry_after_ns)
}

fn look(gate: &Gate, at: u64, ask: LimitDemand) -> ChainForecast {
    gate.chain.peek(Now(START + at), &gate.waiting, |_| ask)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn what_is_foreseen_comes_true(
        limits in proptest::collection::vec(any_limit(), 1..4),
        (waiting_max, patience) in (prop_oneof![Just(0_usize), Just(2), Just(100)], prop_oneof![Just(u64::MAX), 0..SECOND]),
        traffic in any_traffic(),
    ) {
        let mut gate = gate_of(&limits);
        gate.chain = gate.chain.with_max_wait(patience);
        gate.waiting = std::sync::Arc::new(sluicegate::admission::chain::WaitingCap::new(waiting_max));
        let (mut at, mut held) = (0, vec![]);
        for asked in traffic {
            at += asked.gap;
            let ask = |limit: &Limit| LimitDemand::Units(asked.units(limit));
            let foreseen = gate.chain.peek(Now(START + at), &gate.waiting, ask);
            let again = gate.chain.peek(Now(START + at), &gate.waiting, ask);
            prop_assert_eq!(format!("{foreseen:?}"), format!("{again:?}"), "looking changes nothing");
            let told = foreseen.rejection.as_ref().map(|refusal| said(&gate, refusal));
            match gate.chain.judge(Now(START + at), &gate.waiting, ask).verdict {
                ChainVerdict::Reject(refusal) => prop_assert_eq!(told, Some(said(&gate, &refusal))),
                ChainVerdict::Admit(mut passage) => {
                    prop_assert_eq!(foreseen.wait.map_or(0, |(wait, _)| wait), passage.wait_ns());
                    if !passage.must_wait() {
                        let refused = passage.take_slots(Now(START + at)).err();
                        prop_assert_eq!(told, refused.map(|refusal| said(&gate, &refusal)));
                        passage.mark_forwarded();
                    } else {
                        prop_assert_eq!(told, None);
                    }
                    if asked.fate < 3 {
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
    assert_eq!(
        said(&gate, &look(&gate, 0, LimitDemand::MissingKey).rejection.unwrap()),
        "MissingKey Some(1) 0 None"
    );
}

#[test]
fn slots_in_use_are_told() {
    let gate = Gate::one(concurrency(2));
    let mut passage = admitted(gate.judge(0, 1, 1));
    passage.take_slots(Now(START)).unwrap();
    assert_eq!(look(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 1);
    drop(passage);
    assert_eq!(look(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 2);
}
