//! Limits in a dry run are judged on their own counters and never act.

use sluicegate_admission::chain::{LimitDemand, RateDecision};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::Algorithm;

use crate::support::*;

#[test]
fn dry_run_never_vetoes_and_counts_alone() {
    let (token, leaky) = (dry(token(1, 60 * SECOND, 1)), dry(leaky(1, SECOND, 1, 1)));
    let gate = Gate::new(vec![token, leaky]);
    let outcomes = |at| {
        let judgement = gate.judge(at, 1, 1);
        let outcomes: Vec<_> = judgement.decisions.iter().map(|judged| judged.decision.outcome).collect();
        let mut permit = admitted(judgement);
        assert!(!permit.must_wait());
        permit.keep_charges();
        outcomes
    };
    assert_eq!(outcomes(0), [LimitOutcome::Admit, LimitOutcome::Admit]);
    assert_eq!(outcomes(0), [LimitOutcome::Reject, LimitOutcome::Wait]);
    assert_eq!(outcomes(0), [LimitOutcome::Reject, LimitOutcome::Reject]);
    assert_eq!(outcomes(SECOND), [LimitOutcome::Reject, LimitOutcome::Wait]);
}

#[test]
fn dry_run_concurrency_only_counts() {
    let gate = Gate::new(vec![dry(concurrency(1))]);
    let first = admitted(gate.judge(0, 1, 1));
    let second = admitted(gate.judge(0, 1, 1));
    let outcome = |accepted: &Accepted| {
        let permit = accepted.permit();
        let [judged] = permit.slot_decisions().collect::<Vec<_>>().try_into().unwrap();
        assert!(judged.dry_run);
        judged.decision.outcome
    };
    assert_eq!(outcome(&first), LimitOutcome::Admit);
    assert_eq!(outcome(&second), LimitOutcome::Reject);
    drop(first);
    let third = admitted(gate.judge(0, 1, 1));
    assert_eq!(outcome(&third), LimitOutcome::Admit, "the second was never counted");
}

/// A request that one rate would reject is not counted by the others, as if the limit were enforced.
#[test]
fn the_rates_of_a_dry_run_are_one_transaction() {
    let rates = |first: u64, second: u64| Algorithm::SlidingLog {
        rates: vec![rate(first, 60 * SECOND), rate(second, 120 * SECOND)],
    };
    for (first, second) in [(1, 3), (3, 1)] {
        let gate = Gate::new(vec![dry(rates(first, second))]);
        for index in 0..5 {
            let judgement = gate.judge(0, 1, 1);
            let left: Vec<_> = judgement.decisions.iter().map(|judged| judged.decision.remaining).collect();
            assert_eq!(left, [first - 1, second - 1], "request {index}");
            admitted(judgement).keep_charges();
        }
    }
}

#[test]
fn a_rejection_by_others_costs_a_dry_run_nothing() {
    let bucket = || dry(token(1, SECOND, 3));
    let gate = Gate::new(vec![bucket(), limit(token(1, SECOND, 1)), bucket()]);
    let left = |decisions: &[RateDecision]| [0, 2].map(|index| decisions[index].decision.remaining);
    let judgement = gate.judge(0, 1, 1);
    assert_eq!(left(&judgement.decisions), [2, 2]);
    admitted(judgement).keep_charges();
    for _ in 0..9 {
        let judgement = gate.judge(0, 1, 1);
        assert_eq!(left(&judgement.decisions), [2, 2]);
        rejected(judgement);
    }
}

#[test]
fn a_dry_run_reports_a_missing_key_and_too_high_a_cost() {
    let gate = Gate::new(vec![dry(token(1, SECOND, 1)), dry(concurrency(1))]);
    for ask in [LimitDemand::MissingKey, LimitDemand::Units(units(1, 2))] {
        let judgement = gate.chain.judge_request(Now(START), &gate.waiting, |_| ask);
        let seen =
            |judged: &RateDecision| (judged.dry_run, judged.decision.outcome, judged.decision.retry_after_ns);
        let seen: Vec<_> = judgement.decisions.iter().map(seen).collect();
        assert_eq!(seen, [(true, LimitOutcome::Reject, u64::MAX); 2], "{ask:?}");
        assert_eq!(admitted(judgement).permit().slot_decisions().count(), 0);
    }
}
