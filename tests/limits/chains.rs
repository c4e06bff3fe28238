//! Chains of every algorithm are one transaction: a refused request changed nothing.

use proptest::prelude::*;
use sluicegate::chain::{Passage, Verdict};
use sluicegate::clock::Now;
use sluicegate::config::{Algorithm, Align, LeakyBucketRate, Rate, TokenBucketRate};

use crate::support::*;

/// One to three rates, from a handful in 50 ms to dozens in 10 s.
fn any_rates() -> impl Strategy<Value = Vec<Rate>> {
    let period = prop_oneof![Just(50 * MS), Just(SECOND), Just(10 * SECOND), 1..2000 * MS];
    proptest::collection::vec((1..30u64, period).prop_map(|(units, period)| rate(units, period)), 1..4)
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let bucket = |rate: Rate| TokenBucketRate { rate, burst: rate.units.get() };
    let queue = |rate: Rate| LeakyBucketRate { rate, burst: 2, queue: rate.units.get() % 4 };
    prop_oneof![
        any_rates()
            .prop_map(move |rates| Algorithm::TokenBucket { rates: rates.into_iter().map(bucket).collect() }),
        any_rates().prop_map(move |rates| Algorithm::LeakyBucket {
            rates: rates.into_iter().map(queue).collect(),
            max_wait: None,
        }),
        any_rates().prop_map(|rates| Algorithm::FixedWindow { rates, align: Align::First }),
        any_rates().prop_map(|rates| Algorithm::FixedWindow { rates, align: Align::Clock }),
        (any_rates(), 1..=60u8).prop_map(|(rates, buckets)| Algorithm::SlidingWindow { rates, buckets }),
        any_rates().prop_map(|rates| Algorithm::SlidingLog { rates }),
        (1..9u32).prop_map(concurrency),
    ]
}

fn chain_of(algorithms: &[(Algorithm, bool)]) -> Gate {
    let limit = |(algorithm, dry_run): &(Algorithm, bool)| match dry_run {
        true => dry(algorithm.clone()),
        false => limit(algorithm.clone()),
    };
    Gate::new(algorithms.iter().map(limit).collect())
}

fn tells_its_retry(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::LeakyBucket { .. } | Algorithm::Concurrency { .. })
}

/// What is left and when more fits, told to one who asks for more than there ever is: nothing is charged for that.
fn look(gate: &Gate, at: u64, id: u128) -> Vec<sluicegate::chain::Judged> {
    gate.judge(at, id, 1000).decisions.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// A twin never sees the refused requests; if they changed anything in the gate, the two diverge.
    #[test]
    fn a_refused_request_changed_nothing(
        algorithms in proptest::collection::vec((any_algorithm(), proptest::bool::weighted(0.15)), 1..6),
        traffic in proptest::collection::vec((prop_oneof![0..20 * MS, 0..300 * MS], 1..3u128, 1..5u64, 0..5u8), 1..120),
    ) {
        let (gate, twin) = (chain_of(&algorithms), chain_of(&algorithms));
        let (mut held, mut standing): (Vec<(Passage, Passage)>, Vec<_>) = (vec![], vec![]);
        let mut at = 0;
        for (gap, id, cost, fate) in traffic {
            at += gap;
            let judgement = gate.judge(at, id, cost);
            let Verdict::Admit(mut passage) = judgement.verdict else {
                for id in [1, 2] {
                    prop_assert_eq!(look(&gate, at, id), look(&twin, at, id));
                }
                continue;
            };
            let judgement_twin = twin.judge(at, id, cost);
            prop_assert_eq!(&judgement.decisions, &judgement_twin.decisions);
            let mut passage_twin = admitted(judgement_twin);
            if passage.must_wait() {
                // Half of the waiters leave at once, the others stay: their departure is the schedule's.
                if fate % 2 == 0 {
                    standing.push((passage, passage_twin));
                }
                continue;
            }
            let entered = passage.enter(Now(START + at));
            prop_assert_eq!(entered.clone().ok(), passage_twin.enter(Now(START + at)).ok());
            if entered.is_err() {
                continue;
            }
            // Some are given back before they were forwarded, in both.
            if fate < 4 {
                passage.forwarded();
                passage_twin.forwarded();
            }
            match fate {
                0 => held.push((passage, passage_twin)),
                1 => held.truncate(held.len() / 2),
                _ => {}
            }
        }
    }

    /// The retry of a chain of windows holds for the whole chain, to the nanosecond.
    #[test]
    fn the_retry_of_a_chain_is_exact(
        algorithms in proptest::collection::vec(any_algorithm().prop_filter("never waits", tells_its_retry), 1..5),
        traffic in proptest::collection::vec((0..300 * MS, 1..4u64), 1..60),
    ) {
        let quotas = algorithms.iter().flat_map(Algorithm::quotas);
        let most = quotas.map(|(_, quota)| quota).min().unwrap_or(1);
        let gate = Gate::new(algorithms.iter().cloned().map(limit).collect());
        let mut at = 0;
        for (gap, cost) in traffic {
            at += gap;
            let cost = cost.min(most);
            if let Err((retry, _)) = gate.send(at, 1, cost) {
                prop_assert!(retry > 0 && retry != u64::MAX);
                prop_assert!(gate.send(at + retry - 1, 1, cost).is_err(), "too long by 1 ns at least");
                at += retry;
                prop_assert!(gate.send(at, 1, cost).is_ok(), "too short");
            }
        }
    }
}
