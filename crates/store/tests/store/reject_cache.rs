//! A rejection by Redis is repeated without asking until its retry time, and no other is.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use sluicegate_base::clock::Now;
use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{LimitId, OnFailure};
use sluicegate_store::{RateAnswer, SharedKey, SharedLimit};

use crate::script::model::{Request, any_algorithm, any_requests, cost_max};
use crate::script::support::{Counters, START_US, Shared};

/// The same requests to the same limit, once with two gateways that remember rejections, and once without.
fn compare(shared: &Shared, requests: &[Request], counters: &mut Counters) -> (usize, usize) {
    counters.flush();
    let gateways = [0, 1].map(|_| SharedLimit::new(LimitId(0), &shared.configs[0], OnFailure::Local, 1000));
    let (mut now, mut spared, mut refusals) = (START_US, 0, 0);
    for (turn, (gap, key, cost)) in requests.iter().enumerate() {
        now += gap;
        let at = Now(now * 1_000);
        let without = shared.take(counters, &[SharedKey([*key; 16])], *cost, now);
        let units = Units::new(CounterKey::new((*key).into(), 0), *cost);
        let gateway = &gateways[turn % 2];
        let remembered =
            (0..without.decisions.len()).filter_map(|rate| gateway.known_rejection(rate, &units, at));
        let remembered: Vec<_> = remembered.collect();
        refusals += usize::from(!without.admitted);
        if let Some(longest) = remembered.iter().map(|rejection| rejection.retry_after_ns).max() {
            spared += 1;
            assert!(!without.admitted, "request {turn} was rejected too long: {remembered:?}");
            assert!(longest <= without.retry_us * 1_000, "{longest} beside {without:?}");
            continue;
        }
        let fresh = shared.take(counters, &[SharedKey([*key | 128; 16])], *cost, now);
        assert_eq!(fresh, without, "request {turn}");
        for (rate, decision) in fresh.decisions.iter().enumerate() {
            let answer = RateAnswer {
                decision: *decision,
                mark: 0,
                skipped: false,
                window_ns: None,
                has_reserved: false,
                window: None,
                fired: 0,
                turn_ns: None,
            };
            gateway.record_answer(rate, &units, at, &answer);
        }
    }
    (spared, refusals)
}

#[test]
fn decisions_with_and_without_it_are_the_same() {
    let counters = RefCell::new(Counters::start());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    });
    let (all_spared, all_refusals) = (Cell::new(0), Cell::new(0));
    let cases = (any_algorithm(), any_requests(200_000));
    let run = runner.run(&cases, |(algorithm, requests)| {
        let shared = Shared::one(algorithm);
        let most = cost_max(&shared.configs);
        let requests: Vec<_> =
            requests.iter().map(|(gap, key, cost)| (*gap, *key, (*cost).min(most))).collect();
        let (spared, refusals) = compare(&shared, &requests, &mut counters.borrow_mut());
        all_spared.set(all_spared.get() + spared);
        all_refusals.set(all_refusals.get() + refusals);
        Ok(())
    });
    run.unwrap();
    let (spared, refusals) = (all_spared.get(), all_refusals.get());
    assert!(refusals > 1000 && spared * 4 > refusals, "{spared} of {refusals} refusals were remembered");
}
