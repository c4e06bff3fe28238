//! A look at a chain forecasts the judgement and changes nothing.

use proptest::prelude::*;
use sluicegate_admission::chain::{ChainRejection, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;

use crate::any::{any_limit, any_traffic, gate_of};
use crate::support::*;

/// A rejection as text; limits are identified by their index in the chain.
fn describe(gate: &Gate, rejection: &ChainRejection) -> String {
    let index = rejection
        .limit
        .as_ref()
        .and_then(|limit| gate.chain.limits().iter().position(|known| std::sync::Arc::ptr_eq(known, limit)));
    format!("{:?} {index:?} {} {:?}", rejection.cause, rejection.rate, rejection.retry_after_ns)
}

fn look(gate: &Gate, at: u64, ask: LimitDemand) -> Judgement {
    gate.chain.look(Now(START + at), &gate.waiting, |_| ask)
}

/// The verdict as text: the wait of an accepted request, or the rejection.
fn foretell(gate: &Gate, verdict: &Verdict) -> Result<u64, String> {
    match verdict {
        Verdict::Admit(accepted) => Ok(accepted.wait_ns()),
        Verdict::Reject(rejection) => Err(describe(gate, rejection)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_forecast_comes_true(
        limits in proptest::collection::vec(any_limit(), 1..4),
        waiting_max in prop_oneof![Just(0_usize), Just(2), Just(100)],
        max_wait in prop_oneof![Just(u64::MAX), 0..SECOND],
        traffic in any_traffic(),
    ) {
        let mut gate = gate_of(&limits);
        gate.chain = gate.chain.with_max_wait(max_wait);
        gate.waiting = std::sync::Arc::new(sluicegate_admission::chain::WaitingCap::new(waiting_max));
        let (mut at, mut in_flight) = (0, vec![]);
        for request in traffic {
            at += request.gap;
            let ask = |limit: &Limit| LimitDemand::Units(request.units(limit));
            let forecast = gate.chain.look(Now(START + at), &gate.waiting, ask);
            let again = gate.chain.look(Now(START + at), &gate.waiting, ask);
            prop_assert_eq!(&forecast.decisions, &again.decisions, "looking changes nothing");
            let waiters = |gate: &Gate| gate.chain.limits().iter().map(|limit| limit.waiter_count()).sum::<usize>();
            let before = (waiters(&gate), gate.waiting.count_waiting());
            let expected = foretell(&gate, &forecast.verdict);
            prop_assert_eq!(&expected, &foretell(&gate, &again.verdict), "looking changes nothing");
            drop((forecast, again));
            prop_assert_eq!(before, (waiters(&gate), gate.waiting.count_waiting()));
            let judgement = gate.chain.judge_request(Now(START + at), &gate.waiting, ask);
            prop_assert_eq!(expected, foretell(&gate, &judgement.verdict));
            if let Verdict::Admit(mut permit) = judgement.verdict {
                if !permit.must_wait() {
                    permit.keep_charges();
                }
                if request.fate < 3 {
                    in_flight.push(permit);
                }
            }
        }
    }
}

#[test]
fn a_missing_key_is_forecast_as_a_rejection_and_not_for_a_dry_run() {
    let gate = Gate::new(vec![dry(token(1, SECOND, 1)), limit(token(1, SECOND, 1))]);
    let judgement = look(&gate, 0, LimitDemand::MissingKey);
    assert_eq!(describe(&gate, &rejected(judgement)), "MissingKey Some(1) 0 None");
}

#[test]
fn slots_in_use_are_reported() {
    let gate = Gate::one(concurrency(2));
    let permit = admitted(gate.judge(0, 1, 1));
    assert_eq!(look(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 1);
    drop(permit);
    assert_eq!(look(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 2);
}
