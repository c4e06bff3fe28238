//! Refunds of units that a request took and did not use.

use proptest::prelude::*;
use sluicegate_model::{Algorithm, WindowAlign};
use sluicegate_store::{RateAnswer, ScriptOp};

use crate::limits::{SECOND as SECOND_NS, config as limit, fixed, leaky, log, sliding, token};
use crate::script::support::*;

#[track_caller]
fn give(counters: &mut Counters, shared: &Shared, answers: &[RateAnswer], cost: u64, now: u64) {
    let mut items = shared.items(&[key(1)], cost);
    items.iter_mut().zip(answers).for_each(|(item, answer)| item.mark = answer.mark);
    assert!(counters.call(ScriptOp::Refund, &items, now).answers.is_empty());
}

fn remaining(counters: &mut Counters, shared: &Shared, now: u64) -> Vec<u64> {
    let items = shared.items(&[key(1)], 1);
    let reply = counters.call(ScriptOp::Peek, &items, now);
    reply.answers.iter().map(|answer| answer.decision.remaining).collect()
}

/// Costs of a chain, all of which were accepted.
#[track_caller]
fn taken(counters: &mut Counters, shared: &Shared, cost: u64, now: u64) -> Vec<RateAnswer> {
    let reply = counters.call(ScriptOp::Take, &shared.items(&[key(1)], cost), now);
    assert!(reply.admitted);
    reply.answers.to_vec()
}

fn every_kind(units: u64) -> Vec<Algorithm> {
    vec![
        token(units, SECOND_NS, units),
        leaky(units, SECOND_NS, 1, units - 1),
        fixed(units, SECOND_NS, WindowAlign::First),
        fixed(units, SECOND_NS, WindowAlign::Clock),
        sliding(units, SECOND_NS, 5),
        log(units, SECOND_NS),
    ]
}

#[test]
fn the_newest_charge_is_refunded_in_full() {
    let mut counters = Counters::start();
    let shared = Shared::new(every_kind(10).into_iter().map(limit).collect());
    give(&mut counters, &shared, &[], 1, START_US);
    assert_eq!(counters.dump(), [], "nothing to give back to");
    let first = taken(&mut counters, &shared, 2, START_US);
    let second = taken(&mut counters, &shared, 3, START_US);
    assert_eq!(remaining(&mut counters, &shared, START_US), [5; 6]);
    give(&mut counters, &shared, &second, 3, START_US + 1);
    assert_eq!(remaining(&mut counters, &shared, START_US + 1), [8; 6]);
    give(&mut counters, &shared, &first, 2, START_US + 2);
    assert_eq!(remaining(&mut counters, &shared, START_US + 2), [10; 6]);
    assert_eq!(counters.dump(), [], "what says nothing is not kept");
}

#[test]
fn an_uncharged_request_has_no_mark() {
    let mut counters = Counters::start();
    let dry = |algorithm| sluicegate_model::LimitConfig { dry_run: true, ..limit(algorithm) };
    let shared = Shared::new(vec![dry(token(1, SECOND_NS, 1)), limit(token(1, SECOND_NS, 9))]);
    assert!(taken(&mut counters, &shared, 1, START_US).iter().all(|answer| answer.mark == START_US));
    let answers = taken(&mut counters, &shared, 1, START_US + 1);
    assert_eq!([answers[0].mark, answers[1].mark], [0, START_US + 1]);
    give(&mut counters, &shared, &answers, 1, START_US + 1);
    assert_eq!(remaining(&mut counters, &shared, START_US + 1), [0, 8], "and is not given back");
}

#[test]
fn a_departure_is_given_back_if_it_is_the_last_and_lapses_else() {
    let (mut counters, shared) = (Counters::start(), Shared::one(leaky(10, SECOND_NS, 1, 5)));
    let waits_ms = |answers: &[RateAnswer]| answers[0].decision.wait_ns / 1_000_000;
    let line: Vec<_> = (0..4).map(|_| taken(&mut counters, &shared, 1, START_US)).collect();
    assert_eq!(line.iter().map(|one| waits_ms(one)).collect::<Vec<_>>(), [0, 100, 200, 300]);
    let now = START_US + 50 * MS_US;
    give(&mut counters, &shared, &line[2], 1, now);
    assert_eq!(remaining(&mut counters, &shared, now), [2], "the third lapses");
    give(&mut counters, &shared, &line[3], 1, now);
    assert_eq!(waits_ms(&taken(&mut counters, &shared, 1, now)), 250, "the fourth is handed out anew");
}

#[test]
fn units_that_left_a_window_are_not_refunded_again() {
    let mut counters = Counters::start();
    let shared = Shared::new(every_kind(10)[2..].iter().cloned().map(limit).collect());
    let old = taken(&mut counters, &shared, 4, START_US);
    let later = START_US + 3 * SECOND_US;
    taken(&mut counters, &shared, 5, later);
    give(&mut counters, &shared, &old, 4, later);
    assert_eq!(remaining(&mut counters, &shared, later), [5; 4]);
}

#[test]
fn a_bucket_keeps_units_it_might_have_regained() {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(10, SECOND_NS, 10)));
    let first = taken(&mut counters, &shared, 10, START_US);
    let later = START_US + 500 * MS_US;
    taken(&mut counters, &shared, 5, later);
    give(&mut counters, &shared, &first, 10, later);
    // If full until then, it would have 5 now: not 10 from the refund of the first.
    assert_eq!(remaining(&mut counters, &shared, later), [5]);
    give(&mut counters, &shared, &first, 10, later + HOUR_US);
    assert_eq!(counters.dump(), [], "what is idle is not kept");
}

#[test]
fn giving_back_leaves_the_moment_of_the_last_charge() {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(10, SECOND_NS, 20)));
    let first = taken(&mut counters, &shared, 10, START_US);
    taken(&mut counters, &shared, 10, START_US);
    let last = taken(&mut counters, &shared, 5, START_US + 500 * MS_US);
    let now = START_US + 900 * MS_US;
    give(&mut counters, &shared, &last, 5, now);
    assert_eq!(remaining(&mut counters, &shared, now), [9]);
    give(&mut counters, &shared, &first, 10, now);
    assert_eq!(remaining(&mut counters, &shared, now), [14], "5 of 10 were regained until the last charge");
}

#[test]
fn a_slow_bucket_gives_back_too_little_rather_than_too_much() {
    let mut counters = Counters::start();
    for odd in 0..40 {
        counters.flush();
        let unit_us = 100_000 * SECOND_US + odd * 7_919;
        let shared = Shared::one(token(1, unit_us * 1_000, 2));
        let first = taken(&mut counters, &shared, 1, START_US);
        let now = START_US + 12_345 * SECOND_US + odd;
        taken(&mut counters, &shared, 1, now);
        give(&mut counters, &shared, &first, 1, now);
        let verdict = shared.take(&mut counters, &[key(1)], 1, now);
        let short =
            if verdict.admitted { verdict.decisions[0].reset_ns / 1_000 } else { unit_us + verdict.retry_us };
        assert!((unit_us..unit_us + 100 * MS_US).contains(&short), "{short} of {unit_us}");
    }
}

/// Gap, cost, and fate: forwarded, or refunded later.
type Request = (u64, u64, usize);

fn any_requests() -> impl Strategy<Value = Vec<Request>> {
    let gap = prop_oneof![Just(0), 0..60_000u64, 0..700_000u64];
    proptest::collection::vec((gap, 1..4u64, 0..6usize), 1..80)
}

/// Time and cost of the forwarded requests.
fn pass_and_give_back(counters: &mut Counters, shared: &Shared, requests: &[Request]) -> Vec<(u64, u64)> {
    counters.flush();
    let (mut now, mut passed, mut pending) = (START_US, vec![], vec![]);
    for (gap, cost, fate) in requests {
        now += gap;
        let reply = counters.call(ScriptOp::Take, &shared.items(&[key(1)], *cost), now);
        if reply.admitted && *fate < 3 {
            passed.push((now, *cost));
        } else if reply.admitted {
            pending.push((reply.answers, *cost));
        }
        if fate % 3 == 0 && !pending.is_empty() {
            let (answers, cost) = pending.swap_remove(fate % pending.len());
            give(counters, shared, &answers, cost, now);
        }
    }
    passed
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) }
}

#[test]
fn giving_back_never_lets_more_pass_than_an_exact_bucket() {
    let counters = std::cell::RefCell::new(Counters::start());
    proptest!(cases(), |(units in 1..20u64, burst in 4..20u64, requests in any_requests())| {
        let shared = Shared::one(token(units, SECOND_NS, burst));
        let (mut used, mut last) = (0, START_US);
        for (at, cost) in pass_and_give_back(&mut counters.borrow_mut(), &shared, &requests) {
            used = (used + cost * SECOND_US).saturating_sub((at - last) * units).max(cost * SECOND_US);
            last = at;
            prop_assert!(used <= burst * SECOND_US, "{used} at {at}");
        }
    });
}

#[test]
fn giving_back_never_lets_more_pass_than_a_window_allows() {
    let counters = std::cell::RefCell::new(Counters::start());
    proptest!(cases(), |(units in 4..12u64, requests in any_requests(), is_log in any::<bool>())| {
        let algorithm = if is_log { log(units, SECOND_NS) } else { sliding(units, SECOND_NS, 4) };
        let passed = pass_and_give_back(&mut counters.borrow_mut(), &Shared::one(algorithm), &requests);
        for (index, (first, _)) in passed.iter().enumerate() {
            let window = passed[index..].iter().take_while(|(at, _)| *at < first + SECOND_US);
            prop_assert!(window.map(|(_, cost)| cost).sum::<u64>() <= units);
        }
    });
}
