//! Peeking at a chain forecasts the judgement and changes nothing.

use proptest::prelude::*;
use sluicegate::admission::chain::{ChainForecast, ChainRejection, ChainVerdict, LimitDemand};
use sluicegate::base::clock::Now;
use sluicegate::limit::Limit;

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

fn peek(gate: &Gate, at: u64, ask: LimitDemand) -> ChainForecast {
    gate.chain.peek(Now(START + at), &gate.waiting, |_| ask)
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
        gate.waiting = std::sync::Arc::new(sluicegate::admission::chain::WaitingCap::new(waiting_max));
        let (mut at, mut in_flight) = (0, vec![]);
        for request in traffic {
            at += request.gap;
            let ask = |limit: &Limit| LimitDemand::Units(request.units(limit));
            let forecast = gate.chain.peek(Now(START + at), &gate.waiting, ask);
            let again = gate.chain.peek(Now(START + at), &gate.waiting, ask);
            prop_assert_eq!(format!("{forecast:?}"), format!("{again:?}"), "peeking changes nothing");
            let expected = forecast.rejection.as_ref().map(|rejection| describe(&gate, rejection));
            match gate.chain.judge(Now(START + at), &gate.waiting, ask).verdict {
                ChainVerdict::Reject(rejection) => prop_assert_eq!(expected, Some(describe(&gate, &rejection))),
                ChainVerdict::Admit(mut permit) => {
                    prop_assert_eq!(forecast.wait.map_or(0, |(wait, _)| wait), permit.wait_ns());
                    if !permit.must_wait() {
                        let rejected = permit.take_slots(Now(START + at)).err();
                        prop_assert_eq!(expected, rejected.map(|rejection| describe(&gate, &rejection)));
                        permit.keep_charges();
                    } else {
                        prop_assert_eq!(expected, None);
                    }
                    if request.fate < 3 {
                        in_flight.push(permit);
                    }
                }
            }
        }
    }
}

#[test]
fn a_missing_key_is_forecast_as_a_rejection_and_not_for_a_dry_run() {
    let gate = Gate::new(vec![dry(token(1, SECOND, 1)), limit(token(1, SECOND, 1))]);
    assert_eq!(
        describe(&gate, &peek(&gate, 0, LimitDemand::MissingKey).rejection.unwrap()),
        "MissingKey Some(1) 0 None"
    );
}

#[test]
fn slots_in_use_are_reported() {
    let gate = Gate::one(concurrency(2));
    let mut permit = admitted(gate.judge(0, 1, 1));
    permit.take_slots(Now(START)).unwrap();
    assert_eq!(peek(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 1);
    drop(permit);
    assert_eq!(peek(&gate, 0, LimitDemand::Units(units(1, 1))).decisions[0].decision.remaining, 2);
}
