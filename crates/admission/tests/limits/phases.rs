//! The phases of a request, from the judgement to the end of its answer.

use std::sync::Arc;

use sluicegate_admission::chain::{
    Chain, ChainCause, ChainMode, ChainVerdict, Charge, Decisions, LimitDemand, Look, PendingStore,
    WaitingCap,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::OnFailure;
use sluicegate_store::{SharedKey, SharedLimit};

use crate::support::*;

/// Judges a request that no location serves.
fn judge_unserved<M: ChainMode>(gate: &Gate, decisions: &mut Decisions) -> ChainVerdict<PendingStore<M>> {
    let demand_of = |_: &Limit| LimitDemand::Units(units(1, 1));
    gate.chain.judge::<M>(Now(START), &gate.waiting, false, demand_of, decisions)
}

/// A bucket of three here, and one of five in the store.
fn chain_with_store() -> Chain {
    let (here, stored) = (limit(token(1, DAY, 3)), config(token(1, DAY, 5)));
    let shared = Arc::new(SharedLimit::new(sluicegate_model::LimitId(1), &stored, OnFailure::Allow, 10));
    let stored = Arc::new(Limit::new(sluicegate_model::LimitId(1), &stored, 10));
    Chain::new(vec![here, stored]).with_shared(&[None, Some(shared)])
}

fn judge_shared<M: ChainMode>(
    chain: &Chain,
    decisions: &mut Decisions,
    cost: u64,
) -> ChainVerdict<PendingStore<M>> {
    let demand_of = |limit: &Limit| match limit.id.0 {
        0 => LimitDemand::Units(units(1, cost)),
        _ => LimitDemand::Shared(units(1, 1), SharedKey([1; 16])),
    };
    chain.judge::<M>(Now(START), &Arc::new(WaitingCap::new(1)), true, demand_of, decisions)
}

#[test]
fn an_unserved_request_is_charged_and_takes_no_slot() {
    let gate = Gate::new(vec![limit(token(1, DAY, 3)), limit(concurrency(1))]);
    let _holder = admitted(gate.judge(0, 1, 1));
    for left in [1, 0] {
        let mut looked = Decisions::new();
        assert!(matches!(judge_unserved::<Look>(&gate, &mut looked), ChainVerdict::Admit(_)));
        assert_eq!((looked.len(), looked[0].decision.remaining), (1, left + 1));
        let mut decisions = Decisions::new();
        let ChainVerdict::Admit(mut permit) = judge_unserved::<Charge>(&gate, &mut decisions) else {
            panic!("no slot is free, but none is needed");
        };
        assert_eq!((decisions.len(), decisions[0].decision.remaining), (1, left));
        assert_eq!(permit.slot_decisions().count(), 0);
        permit.keep_charges();
    }
    let ChainVerdict::Reject(rejection) = judge_unserved::<Charge>(&gate, &mut Decisions::new()) else {
        panic!("all three units are used");
    };
    assert_eq!((rejection.cause, rejection.late), (ChainCause::Rate, false));
}

#[test]
fn a_response_keeps_charges_and_releases_slots() {
    let gate = Gate::new(vec![limit(token(1, DAY, 2)), limit(concurrency(1))]);
    for left in [1, 0] {
        let Accepted::Passing(mut permit) = admitted(gate.judge(0, 1, 1)) else { panic!("it waits") };
        permit.keep_charges();
        drop(permit);
        let looked = gate.chain.look(Now(START), &gate.waiting, |_| LimitDemand::Units(units(1, 1)));
        let remaining: Vec<u64> = looked.decisions.iter().map(|judged| judged.decision.remaining).collect();
        assert_eq!(remaining, [left, 1]);
    }
}

/// The slots may be free when the turn has come.
#[test]
fn a_look_needs_no_free_slot_for_a_request_that_waits() {
    let gate = Gate::new(vec![limit(leaky(1, SECOND, 1, 5)), limit(concurrency(1))]);
    let _holder = admitted(gate.judge(0, 1, 1));
    for at in [0, SECOND] {
        let looked = gate.chain.look(Now(START + at), &gate.waiting, |_| LimitDemand::Units(units(1, 1)));
        assert_eq!(looked.decisions[1].decision.outcome, LimitOutcome::Reject);
        assert_eq!(looked.decisions[1].decision.remaining, 0);
        match (at, looked.verdict) {
            (0, Verdict::Admit(accepted)) => assert_eq!(accepted.wait_ns(), SECOND),
            (_, Verdict::Reject(rejection)) if at > 0 => assert_eq!(rejection.cause, ChainCause::Concurrency),
            _ => panic!("{at}: the other verdict"),
        }
    }
    assert_eq!(gate.waiting.count_waiting(), 0);
}

#[test]
fn a_turn_whose_charges_are_kept_is_spent() {
    paused(async {
        let gate = Gate::new(vec![limit(token(1, DAY, 9)), limit(leaky(10, SECOND, 1, 5))]);
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        for keeps in [true, false] {
            // The first request of each round finds the queue empty.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let judge = || admitted(gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask));
            let mut first = judge();
            if keeps {
                first.keep_charges();
            }
            let mut second = judge();
            second.wait_turn().await.unwrap();
            let Accepted::TurnTaken(turn) = second else { panic!("it did not wait") };
            assert_eq!(gate.waiting.count_waiting(), 1, "it may still have to wait for its upstream");
            match keeps {
                true => turn.keep_charges(),
                false => drop(turn),
            }
            drop(first);
            let looked = gate.chain.look(Now::read_clock(), &gate.waiting, ask);
            assert_eq!(looked.decisions[0].decision.remaining, 7, "two of nine, those that were kept");
        }
    });
}

#[test]
fn a_request_that_does_not_ask_the_store_gives_its_charges_back() {
    let (chain, waiting) = (chain_with_store(), Arc::new(WaitingCap::new(1)));
    for _ in 0..5 {
        let mut decisions = Decisions::new();
        let verdict = judge_shared::<Charge>(&chain, &mut decisions, 3);
        assert!(matches!(&verdict, ChainVerdict::AskStore(_)));
        assert_eq!((decisions.len(), decisions[0].decision.remaining), (1, 0));
        drop(verdict);
    }
    let mut decisions = Decisions::new();
    let ChainVerdict::AskStore(pending) = judge_shared::<Charge>(&chain, &mut decisions, 3) else {
        panic!("a limit is shared");
    };
    let mut undecided = Vec::new();
    let ChainVerdict::Admit(mut permit) = pending.assume_admitted(&waiting, &mut decisions, &mut undecided)
    else {
        panic!("the limit here accepts");
    };
    permit.keep_charges();
    assert!(matches!(judge_shared::<Charge>(&chain, &mut Decisions::new(), 1), ChainVerdict::Reject(_)));
}

/// Without a store, a look lists the limits that are counted there, also for a request that is rejected here.
#[test]
fn a_look_without_a_store_lists_the_limits_not_asked() {
    let (chain, waiting) = (chain_with_store(), Arc::new(WaitingCap::new(1)));
    for (cost, admits) in [(3, true), (4, false)] {
        let (mut decisions, mut undecided) = (Decisions::new(), Vec::new());
        let ChainVerdict::AskStore(pending) = judge_shared::<Look>(&chain, &mut decisions, cost) else {
            panic!("{cost}: a limit is shared");
        };
        let verdict = pending.assume_admitted(&waiting, &mut decisions, &mut undecided);
        assert_eq!(matches!(verdict, ChainVerdict::Admit(_)), admits);
        let [limit] = undecided.try_into().expect("one limit");
        assert_eq!((limit.limit_index, limit.fallback, limit.share.is_none()), (1, None, true));
        assert_eq!((decisions.len(), decisions[0].decision.remaining), (1, 3));
    }
}
