//! Chains of every algorithm are one transaction: a rejected request changes nothing.

use proptest::prelude::*;
use sluicegate_admission::chain::{LimitDemand, RateDecision};
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, Algorithm};

use crate::any::{RandomRequest, any_limit, any_traffic, gate_of};
use crate::support::*;

fn has_exact_retry(limit: &model::LimitConfig) -> bool {
    !matches!(limit.algorithm, Algorithm::LeakyBucket { .. } | Algorithm::Concurrency { .. })
}

fn judge(gate: &Gate, at: u64, request: &RandomRequest) -> Judgement {
    gate.chain.judge_request(Now(START + at), &gate.waiting, |limit| LimitDemand::Units(request.units(limit)))
}

/// The visible state: the decisions for requests that exceed every capacity and so are never charged, and the
/// numbers of waiters.
fn visible_state(gate: &Gate, at: u64) -> (Vec<RateDecision>, Vec<usize>, usize) {
    let of =
        |id| (0..3).map(move |variant| RandomRequest { gap: 0, id, cost: 1000, fair: 0, variant, fate: 0 });
    let decisions = (1..3).flat_map(of).flat_map(|request| judge(gate, at, &request).decisions).collect();
    let waiting = gate.chain.limits().iter().map(|limit| limit.waiter_count()).collect();
    (decisions, waiting, gate.waiting.count_waiting())
}

/// Slots with a queue are among them.
fn any_chained_limit() -> impl Strategy<Value = model::LimitConfig> {
    prop_oneof![
        5 => any_limit(),
        1 => (1..5u32, 1..4u64).prop_map(|(max, queue)| config(slots(max, queue, None))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// A twin never sees the rejected requests; if they changed anything in the gate, even by displacing a waiter,
    /// the two diverge.
    #[test]
    fn a_rejected_request_changes_nothing(
        limits in proptest::collection::vec(any_chained_limit(), 1..6),
        max_wait in proptest::option::weighted(0.3, 0..SECOND),
        traffic in any_traffic(),
    ) {
        let (mut gate, mut twin) = (gate_of(&limits), gate_of(&limits));
        for gate in [&mut gate, &mut twin] {
            gate.chain = gate.chain.clone().with_max_wait(max_wait.unwrap_or(u64::MAX));
        }
        let (mut in_flight, mut waiters): (Vec<(Accepted, Accepted)>, Vec<_>) = (vec![], vec![]);
        let mut at = 0;
        for request in traffic {
            at += request.gap;
            let judgement = judge(&gate, at, &request);
            let mut permit = match judgement.verdict {
                Verdict::Admit(permit) => permit,
                Verdict::Reject(_) => {
                    prop_assert_eq!(visible_state(&gate, at), visible_state(&twin, at));
                    continue;
                }
            };
            prop_assert!(permit.wait_ns() <= max_wait.unwrap_or(u64::MAX));
            let judgement_twin = judge(&twin, at, &request);
            prop_assert_eq!(&judgement.decisions, &judgement_twin.decisions);
            let mut permit_twin = admitted(judgement_twin);
            if permit.must_wait() {
                // Half of the waiters leave at once, the others stay and depart by the schedule.
                if request.fate % 2 == 0 {
                    waiters.push((permit, permit_twin));
                }
                continue;
            }
            // Some are refunded before they were forwarded, in both.
            if request.fate < 4 {
                permit.keep_charges();
                permit_twin.keep_charges();
            }
            match request.fate {
                0 => in_flight.push((permit, permit_twin)),
                1 => in_flight.truncate(in_flight.len() / 2),
                _ => {}
            }
        }
        prop_assert_eq!(gate.waiting.count_waiting(), waiters.len());
        drop((waiters, in_flight));
        for limit in gate.chain.limits() {
            prop_assert_eq!(limit.waiter_count(), 0, "all waiters have left");
        }
        prop_assert_eq!(gate.waiting.count_waiting(), 0);
    }

    /// The retry of a chain of rates holds for the whole chain, to the nanosecond.
    #[test]
    fn the_retry_of_a_chain_is_exact(
        limits in proptest::collection::vec(any_limit().prop_filter("never waits", has_exact_retry), 1..5),
        traffic in any_traffic(),
    ) {
        let quotas = limits.iter().flat_map(model::LimitConfig::algorithm_variants).flat_map(Algorithm::rate_quotas);
        let most = quotas.map(|(_, quota)| quota).min().unwrap_or(1);
        let gate = gate_of(&limits);
        let passes = |at: u64, request: &RandomRequest| match judge(&gate, at, request).verdict {
            Verdict::Admit(mut permit) => {
                permit.keep_charges();
                Ok(())
            }
            Verdict::Reject(rejection) => Err(rejection.retry_after_ns.unwrap_or(u64::MAX)),
        };
        let mut at = 0;
        for request in traffic {
            at += request.gap;
            let request = RandomRequest { cost: request.cost.min(most), id: 1, ..request };
            if let Err(retry) = passes(at, &request) {
                prop_assert!(retry > 0 && retry != u64::MAX);
                prop_assert!(passes(at + retry - 1, &request).is_err(), "too long by 1 ns at least");
                at += retry;
                prop_assert!(passes(at, &request).is_ok(), "too short");
            }
        }
    }
}
