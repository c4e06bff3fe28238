//! Places that use a limit with other numbers, counted in Redis: one entry, judged by each place's own burst.

use proptest::prelude::*;
use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, LimitId};
use sluicegate_store::{CallItem, RateRule, ScriptOp};

use crate::limits::{config as limit, leaky, token, units};
use crate::script::model::any_requests;
use crate::script::settle::charging;
use crate::script::support::*;

/// A limit with its own numbers and those of further places.
fn config_of(places: &[Algorithm]) -> model::LimitConfig {
    model::LimitConfig { views: places[1..].to_vec(), ..limit(places[0].clone()) }
}

fn item<'a>(rules: &'a [RateRule], place: usize, id: u8, cost: u64) -> CallItem<'a> {
    CallItem::new(&rules[place], key(id), cost)
}

/// The decision of the local engine, in whole microseconds.
fn judge_locally(
    chain: &Chain,
    waiting: &std::sync::Arc<WaitingCap>,
    place: usize,
    id: u8,
    cost: u64,
    now: u64,
) -> Decision {
    let mut found = Decisions::new();
    let ask = |_: &Limit| {
        LimitDemand::Units(Units { variant: place, ..units(u128::from_le_bytes(key(id).0), cost) })
    };
    match chain.judge::<Charge>(Now(now * 1_000), waiting, true, ask, &mut found) {
        ChainVerdict::Admit(mut permit) => permit.keep_charges(),
        // It stays in its queue.
        ChainVerdict::Wait(queued) => std::mem::forget(queued),
        ChainVerdict::Reject(_) => {}
        ChainVerdict::AskStore(_) => panic!("a local limit"),
    }
    let up = |ns: u64| ns.div_ceil(1_000) * 1_000;
    let decision = found[0].decision;
    Decision {
        reset_ns: up(decision.reset_ns),
        retry_after_ns: up(decision.retry_after_ns),
        wait_ns: up(decision.wait_ns),
        full_ns: up(decision.full_ns),
        ..decision
    }
}

fn check(places: impl Strategy<Value = Vec<Algorithm>>) {
    let counters = std::cell::RefCell::new(Counters::start());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    let places_of = proptest::collection::vec(0..3usize, 60);
    proptest!(config, |(places in places, requests in any_requests(SECOND_US), asked in places_of)| {
        let counters = &mut *counters.borrow_mut();
        counters.flush();
        let config = config_of(&places);
        let rules = RateRule::rules_of(&config);
        prop_assert!(rules.iter().all(|rule| rule.id == rules[0].id), "one entry");
        let chain = Chain::new(vec![std::sync::Arc::new(Limit::new(LimitId(0), &config, 1000))]);
        let waiting = std::sync::Arc::new(WaitingCap::new(100_000));
        let mut now = START_US;
        for ((gap, id, cost), place) in requests.into_iter().zip(asked) {
            now += gap;
            let place = place % places.len();
            let cost = cost.min(rules[place].capacity());
            let items = [item(&rules, place, id, cost)];
            let ours = counters.call(ScriptOp::Take, &items, now).answers[0].decision;
            prop_assert_eq!(ours, judge_locally(&chain, &waiting, place, id, cost, now));
        }
    });
}

fn period() -> impl Strategy<Value = u64> {
    prop_oneof![Just(50 * MS_US), Just(SECOND_US), 1..2_000_000u64].prop_map(|period| period * 1_000)
}

#[test]
fn the_script_judges_buckets_of_several_places_as_the_local_engine_does() {
    let bursts = proptest::collection::vec(1..30u64, 2..4);
    let places = |(units, period, bursts): (u64, u64, Vec<u64>)| {
        bursts.into_iter().map(|burst| token(units, period, burst)).collect::<Vec<_>>()
    };
    check((1..20u64, period(), bursts).prop_map(places));
}

#[test]
fn the_script_judges_queues_of_several_places_as_the_local_engine_does() {
    let queues = proptest::collection::vec(0..8u64, 2..4);
    let places = |(units, period, burst, queues): (u64, u64, u64, Vec<u64>)| {
        queues.into_iter().map(|queue| leaky(units, period, burst, queue)).collect::<Vec<_>>()
    };
    check((1..20u64, period(), 1..5u64, queues).prop_map(places));
}

/// A settled charge may leave a debt of one burst of the widest place.
#[test]
fn charges_of_several_places_are_settled_in_one_entry() {
    let mut counters = Counters::start();
    let config = model::LimitConfig {
        views: vec![token(10, 1_000_000_000, 20)],
        ..charging(token(10, 1_000_000_000, 5))
    };
    let rules = RateRule::rules_of(&config);
    let mut take = |place, cost, now| {
        let items = [item(&rules, place, 1, cost)];
        counters.call(ScriptOp::Take, &items, now).answers[0].decision
    };
    assert_eq!(take(1, 12, START_US).remaining, 8);
    let narrow = take(0, 1, START_US);
    assert_eq!((narrow.outcome, narrow.retry_after_ns), (LimitOutcome::Reject, 800_000_000));
    assert_eq!(take(1, 8, START_US).remaining, 0);
    assert_eq!(take(0, 1, START_US + 1_600_000).remaining, 0);
}
