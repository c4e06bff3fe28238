//! Chains of every algorithm are one transaction: a refused request changed nothing.

use proptest::prelude::*;
use sluicegate::admission::chain::{ChainJudgement, ChainPermit, ChainVerdict, LimitDemand, RateDecision};
use sluicegate::base::clock::Now;
use sluicegate::config::{self, Algorithm};

use crate::any::{Asked, any_limit, any_traffic, gate_of};
use crate::support::*;

fn tells_its_retry(limit: &config::LimitConfig) -> bool {
    !matches!(limit.algorithm, Algorithm::LeakyBucket { .. } | Algorithm::Concurrency { .. })
}

fn judge(gate: &Gate, at: u64, asked: &Asked) -> ChainJudgement {
    gate.chain.judge(Now(START + at), &gate.waiting, |limit| LimitDemand::Units(asked.units(limit)))
}

/// What is left and when more fits, told to those who ask for more than there ever is: nothing is charged for that.
/// And who waits.
fn look(gate: &Gate, at: u64) -> (Vec<RateDecision>, Vec<usize>, usize) {
    let of = |id| (0..2).map(move |variant| Asked { gap: 0, id, cost: 1000, fair: 0, variant, fate: 0 });
    let told = (1..3).flat_map(of).flat_map(|asked| judge(gate, at, &asked).decisions).collect();
    let waiting = gate.chain.limits().iter().map(|limit| limit.waiter_count()).collect();
    (told, waiting, gate.waiting.count_waiting())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// A twin never sees the refused requests; if they changed anything in the gate, be it that somebody made room
    /// for them, the two diverge.
    #[test]
    fn a_refused_request_changed_nothing(
        limits in proptest::collection::vec(any_limit(), 1..6),
        patience in proptest::option::weighted(0.3, 0..SECOND),
        traffic in any_traffic(),
    ) {
        let (mut gate, mut twin) = (gate_of(&limits), gate_of(&limits));
        for gate in [&mut gate, &mut twin] {
            gate.chain = gate.chain.clone().with_max_wait(patience.unwrap_or(u64::MAX));
        }
        let (mut held, mut standing): (Vec<(ChainPermit, ChainPermit)>, Vec<_>) = (vec![], vec![]);
        let mut at = 0;
        for asked in traffic {
            at += asked.gap;
            let judgement = judge(&gate, at, &asked);
            let ChainVerdict::Admit(mut passage) = judgement.verdict else {
                prop_assert_eq!(look(&gate, at), look(&twin, at));
                continue;
            };
            prop_assert!(passage.wait_ns() <= patience.unwrap_or(u64::MAX));
            let judgement_twin = judge(&twin, at, &asked);
            prop_assert_eq!(&judgement.decisions, &judgement_twin.decisions);
            let mut passage_twin = admitted(judgement_twin);
            if passage.must_wait() {
                // Half of the waiters leave at once, the others stay: their departure is the schedule's.
                if asked.fate % 2 == 0 {
                    standing.push((passage, passage_twin));
                }
                continue;
            }
            let entered = passage.take_slots(Now(START + at));
            prop_assert_eq!(entered.clone().ok(), passage_twin.take_slots(Now(START + at)).ok());
            if entered.is_err() {
                continue;
            }
            // Some are given back before they were forwarded, in both.
            if asked.fate < 4 {
                passage.mark_forwarded();
                passage_twin.mark_forwarded();
            }
            match asked.fate {
                0 => held.push((passage, passage_twin)),
                1 => held.truncate(held.len() / 2),
                _ => {}
            }
        }
        prop_assert_eq!(gate.waiting.count_waiting(), standing.len());
        drop((standing, held));
        for limit in gate.chain.limits() {
            prop_assert_eq!(limit.waiter_count(), 0, "everyone has left");
        }
        prop_assert_eq!(gate.waiting.count_waiting(), 0);
    }

    /// The retry of a chain of rates holds for the whole chain, to the nanosecond.
    #[test]
    fn the_retry_of_a_chain_is_exact(
        limits in proptest::collection::vec(any_limit().prop_filter("never waits", tells_its_retry), 1..5),
        traffic in any_traffic(),
    ) {
        let quotas = limits.iter().flat_map(config::LimitConfig::algorithm_variants).flat_map(Algorithm::rate_quotas);
        let most = quotas.map(|(_, quota)| quota).min().unwrap_or(1);
        let gate = gate_of(&limits);
        let passes = |at: u64, asked: &Asked| match judge(&gate, at, asked).verdict {
            ChainVerdict::Admit(mut passage) => {
                passage.mark_forwarded();
                Ok(())
            }
            ChainVerdict::Reject(refusal) => Err(refusal.retry_after_ns.unwrap_or(u64::MAX)),
        };
        let mut at = 0;
        for asked in traffic {
            at += asked.gap;
            let asked = Asked { cost: asked.cost.min(most), id: 1, ..asked };
            if let Err(retry) = passes(at, &asked) {
                prop_assert!(retry > 0 && retry != u64::MAX);
                prop_assert!(passes(at + retry - 1, &asked).is_err(), "too long by 1 ns at least");
                at += retry;
                prop_assert!(passes(at, &asked).is_ok(), "too short");
            }
        }
    }
}
