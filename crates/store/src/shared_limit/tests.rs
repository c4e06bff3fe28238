//! Tests of remembered answers and of the local share.

use std::task::Waker;

use super::*;
use sluicegate_config as config;
use sluicegate_limit::Turn;
use sluicegate_model::LimitId;

const SECOND: u64 = 1_000_000_000;

fn limit(max_keys: usize) -> SharedLimit {
    limit_of("rate: 10/s, burst: 30", max_keys)
}

fn limit_of(words: &str, max_keys: usize) -> SharedLimit {
    let location = "{ path: /, limits: a, respond: { status: 200 } }";
    let text = format!("limits: {{ a: {{ {words} }} }}\nlocations: [{location}]");
    let config = config::parse(&text, "test").unwrap().config;
    SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, max_keys)
}

fn left(remaining: u64) -> Decision {
    Decision { remaining, ..Decision::without_numbers(LimitOutcome::Admit) }
}

fn units(key: u128, cost: u64) -> Units {
    Units::new(CounterKey::new(key, 0), cost)
}

fn rejection(retry_after_ns: u64) -> Decision {
    Decision { remaining: 2, retry_after_ns, ..Decision::without_numbers(LimitOutcome::Reject) }
}

#[test]
fn a_rejection_holds_until_its_time_for_all_that_cost_as_much() {
    let limit = limit(100);
    let (sent, now) = (Now(10 * SECOND), Now(10 * SECOND + 1));
    limit.record_answer(0, &units(1, 3), sent, &answer(rejection(SECOND)));
    assert_eq!(limit.known_rejection(0, &units(1, 3), now).map(|d| d.retry_after_ns), Some(SECOND - 1));
    assert!(limit.known_rejection(0, &units(1, 4), now).is_some());
    assert_eq!(limit.known_rejection(0, &units(1, 2), now), None, "fewer may fit");
    assert_eq!(limit.known_rejection(0, &units(2, 3), now), None, "another key");
    assert_eq!(limit.known_rejection(0, &units(1, 3), Now(11 * SECOND)), None, "the time has come");
}

#[test]
fn a_rejection_that_no_waiting_cures_is_not_remembered() {
    let limit = limit(100);
    limit.record_answer(0, &units(1, 1), Now(SECOND), &answer(rejection(u64::MAX)));
    assert_eq!(limit.known_rejection(0, &units(1, 1), Now(SECOND)), None);
}

#[test]
fn a_rejection_shows_the_remainder_of_its_time_whatever_overtook_it() {
    let limit = limit(100);
    limit.record_answer(0, &units(1, 3), Now(SECOND), &answer(rejection(SECOND)));
    limit.record_answer(0, &units(1, 1), Now(SECOND + 1), &answer(left(7)));
    let known = limit.known_rejection(0, &units(1, 3), Now(SECOND + 2));
    assert_eq!(known.map(|decision| decision.remaining), Some(2));
    limit.record_answer(0, &units(1, 1), Now(2 * SECOND), &answer(left(7)));
    let seen = limit.last_decision(0, &units(1, 1), Now(2 * SECOND));
    assert_eq!(seen.map(|decision| decision.remaining), Some(7), "the time has come");
}

#[test]
fn an_older_answer_does_not_overrule_a_newer_one() {
    let limit = limit(100);
    limit.record_answer(0, &units(1, 1), Now(5 * SECOND), &answer(rejection(SECOND)));
    limit.record_answer(
        0,
        &units(1, 1),
        Now(4 * SECOND),
        &answer(Decision::without_numbers(LimitOutcome::Admit)),
    );
    assert!(limit.known_rejection(0, &units(1, 1), Now(5 * SECOND)).is_some());
}

/// What other requests have reserved may come back before the retry time.
#[test]
fn a_rejection_beside_reservations_is_not_repeated() {
    let limit = limit(100);
    let rejected = RateAnswer { has_reserved: true, ..answer(rejection(SECOND)) };
    limit.record_answer(0, &units(1, 1), Now(SECOND), &rejected);
    assert!(limit.known_rejection(0, &units(1, 1), Now(SECOND)).is_none());
    limit.record_answer(0, &units(1, 1), Now(SECOND), &answer(rejection(SECOND)));
    assert!(limit.known_rejection(0, &units(1, 1), Now(SECOND)).is_some());
    limit.forget_rejection(0, &units(1, 1).key);
    assert!(limit.known_rejection(0, &units(1, 1), Now(SECOND)).is_none());
}

#[test]
fn without_room_no_key_answers_for_a_neighbour() {
    let limit = limit(1);
    for key in 0..1000 {
        limit.record_answer(0, &units(key, 1), Now(SECOND), &answer(rejection(SECOND)));
    }
    let rejected = (0..2000).filter(|key| limit.known_rejection(0, &units(*key, 1), Now(SECOND)).is_some());
    assert_eq!(rejected.collect::<Vec<_>>(), [0]);
}

/// An answer with this decision, as the store gives it to a bucket.
fn answer(decision: Decision) -> RateAnswer {
    RateAnswer {
        decision,
        mark: 0,
        skipped: false,
        window_ns: None,
        has_reserved: false,
        window: None,
        fired: 0,
        turn_ns: None,
    }
}

/// The share of one of so many gateways.
fn share_of(limit: &SharedLimit, nodes: u64) -> Arc<Limit> {
    limit.fleet.set_nodes_least(nodes, 1);
    limit.local_share()
}

#[test]
fn the_share_begins_with_the_last_answer_and_is_not_renewed() {
    let limit = limit(100);
    let admits = |key: u128, at: u64| {
        let share = share_of(&limit, 3);
        let charge = |_: &u32| {
            limit.seed_share(&share, 0, &units(key, 1));
            share.charge_units(0, &units(key, 1), Now(at)).1.is_some()
        };
        (0..30).filter(charge).count()
    };
    limit.record_answer(0, &units(1, 1), Now(10 * SECOND), &answer(left(13)));
    assert_eq!(
        (admits(1, 10 * SECOND), admits(2, 10 * SECOND)),
        (5, 10),
        "13 ÷ 3 of what was left, else 30 ÷ 3"
    );
    limit.record_answer(0, &units(1, 1), Now(10 * SECOND), &answer(left(30)));
    assert_eq!(admits(1, 10 * SECOND), 0, "another outage goes on where the one before ended");
    assert_eq!(admits(1, 11 * SECOND), 3, "what has been refilled since counts: 10/3 in one second");
    limit.record_answer(0, &units(3, 1), Now(9 * SECOND), &answer(left(0)));
    assert_eq!(admits(3, 10 * SECOND), 3);
}

/// A window that has begun in the store ends here when it ends there.
#[test]
fn a_window_of_the_share_ends_with_that_of_the_store() {
    let limit = limit_of("algorithm: fixed_window, rate: 30/60s", 100);
    let seen = RateAnswer { window_ns: Some(20 * SECOND), ..answer(left(9)) };
    limit.record_answer(0, &units(1, 1), Now(100 * SECOND), &seen);
    let share = share_of(&limit, 3);
    limit.seed_share(&share, 0, &units(1, 1));
    let left = |second: u64| share.peek_units(0, &units(1, 1), Now(second * SECOND)).remaining;
    assert_eq!([left(100), left(119), left(120)], [3, 3, 10]);
}

/// Units used elsewhere take no position in the queue, because no waiter would ever leave it.
#[test]
fn units_used_elsewhere_take_no_position_in_the_queue() {
    let (limit, at) = (limit_of("algorithm: leaky_bucket, rate: 10/s, queue: 9", 100), Now(10 * SECOND));
    let share = share_of(&limit, 1);
    for remaining in [4, 2] {
        limit.record_answer(0, &units(1, 1), at, &answer(left(remaining)));
        limit.seed_share(&share, 0, &units(1, 1));
    }
    assert_eq!(share.waiter_count(), 0);
    let (decision, charge) = share.charge_units(0, &units(1, 1), at);
    assert_eq!((decision.wait_ns, decision.remaining), (800_000_000, 1));
    let turn = share.check_turn(0, &units(1, 1).key, &mut charge.unwrap(), at, Waker::noop());
    assert_eq!(turn, Turn::Due(Now(at.0 + 800_000_000)), "it is the head");
}

/// A queue that `max_wait` keeps shorter than `queue` never has its capacity left.
#[test]
fn an_unused_share_is_whole() {
    let limit = limit_of("algorithm: leaky_bucket, rate: 10/s, queue: 100, max_wait: 500ms", 100);
    let (share, at) = (share_of(&limit, 1), Now(10 * SECOND));
    let remaining = || share.peek_units(0, &units(1, 1), at).remaining;
    let whole = remaining();
    assert_eq!((whole, limit.local_share.used_units(0, &units(1, 1), at)), (6, 0));
    limit.record_answer(0, &units(1, 1), at, &answer(left(whole)));
    limit.seed_share(&share, 0, &units(1, 1));
    assert_eq!(remaining(), whole);
    assert!(share.charge_units(0, &units(1, 1), at).1.is_some());
    assert_eq!(limit.local_share.used_units(0, &units(1, 1), at), 1);
}

#[test]
fn the_share_follows_the_number_of_gateways_and_keeps_used_units() {
    let (limit, at) = (limit(100), Now::read_clock());
    assert_eq!(share_of(&limit, 1).max_units(0, 0), 30);
    assert!(share_of(&limit, 1).charge_units(0, &units(1, 4), at).1.is_some());
    let share = share_of(&limit, 5);
    assert_eq!((share.max_units(0, 0), share.peek_units(0, &units(1, 1), at).remaining), (6, 2));
    assert!(Arc::ptr_eq(&share, &share_of(&limit, 5)));
}

/// Calls may fail without an outage: the share must not admit in addition to the store.
#[test]
fn later_answers_count_too_and_nothing_twice() {
    let (limit, at) = (limit(100), Now(10 * SECOND));
    let share = share_of(&limit, 1);
    let remaining = |seen: u64| {
        limit.record_answer(0, &units(1, 1), at, &answer(left(seen)));
        limit.seed_share(&share, 0, &units(1, 1));
        limit.seed_share(&share, 0, &units(1, 1));
        share.peek_units(0, &units(1, 1), at).remaining
    };
    assert_eq!(
        [remaining(30), remaining(20), remaining(20), remaining(25), remaining(0)],
        [30, 20, 20, 20, 0]
    );
}

#[test]
fn a_cost_beyond_what_is_kept_is_not_remembered_as_less() {
    let limit = limit(100);
    limit.record_answer(0, &units(1, 1 << 33), Now(SECOND), &answer(rejection(SECOND)));
    assert_eq!(limit.known_rejection(0, &units(1, 1 << 32), Now(SECOND)), None);
}

/// A deletion in the store is noticed a second later.
#[test]
fn a_rejection_is_believed_for_a_second() {
    let limit = limit(100);
    limit.record_answer(0, &units(1, 1), Now(10 * SECOND), &answer(rejection(86_400 * SECOND)));
    let known =
        |at: u64| limit.known_rejection(0, &units(1, 1), Now(at)).map(|decision| decision.retry_after_ns);
    assert_eq!(
        known(10 * SECOND + SECOND / 2),
        Some(86_400 * SECOND - SECOND / 2),
        "the whole time is shown"
    );
    assert_eq!(known(11 * SECOND), None);
    limit.record_answer(0, &units(1, 1), Now(11 * SECOND), &answer(rejection(86_399 * SECOND)));
    assert_eq!(known(11 * SECOND + 1), Some(86_399 * SECOND - 1));
    assert_eq!(known(12 * SECOND), None);
}

#[test]
fn the_share_is_foreseen_as_it_will_begin_and_is_not_begun() {
    let (limit, now) = (limit(100), Now::read_clock());
    limit.fleet.set_nodes_least(3, 1);
    let left_of =
        |key: u128| limit.preview_share(&units(key, 1)).peek_units(0, &units(key, 1), now).remaining;
    limit.record_answer(0, &units(1, 1), now, &answer(left(13)));
    for _ in 0..3 {
        assert_eq!((left_of(1), left_of(2)), (5, 10), "13 ÷ 3 of what was left, else 30 ÷ 3");
    }
    let share = share_of(&limit, 3);
    for key in [1, 2] {
        limit.seed_share(&share, 0, &units(key, 1));
        assert!(share.charge_units(0, &units(key, 1), now).1.is_some());
    }
    assert_eq!((left_of(1), left_of(2)), (4, 9), "it has begun");
}

/// A gateway with other numbers has no share of slots of its own.
#[test]
fn slots_have_no_own_part() {
    let limit = limit_of("algorithm: concurrency, max_concurrent: 5", 100);
    let differs = crate::fleet::FleetCount { nodes: 2, differs: true, collides: false };
    limit.fleet.apply_count(differs, false);
    assert!(limit.admitting_share(&units(1, 1), Now::read_clock()).is_none());
}

/// A queue with `fair_by` is as long as configured, whatever `max_wait` is.
#[test]
fn the_used_units_of_a_fair_queue_are_measured() {
    let limit =
        limit_of("algorithm: leaky_bucket, rate: 10/s, queue: 100, max_wait: 2s, fair_by: account", 100);
    let (share, at) = (limit.local_share(), Now(10 * SECOND));
    assert_eq!(limit.local_share.used_units(0, &units(1, 1), at), 0);
    for used in 1..=20 {
        assert!(share.charge_units(0, &units(1, 1), at).1.is_some());
        assert_eq!(limit.local_share.used_units(0, &units(1, 1), at), used);
    }
}

/// Units that the store admits while numbers differ fill the own share and no more.
#[test]
fn an_own_part_is_never_overdrawn() {
    let limit = limit_of("algorithm: leaky_bucket, rate: 10/s, queue: 9", 100);
    limit.fleet.apply_count(crate::fleet::FleetCount { nodes: 1, differs: true, collides: false }, false);
    let at = Now(10 * SECOND);
    for _ in 0..1000 {
        limit.count_in_share(0, &units(1, 1), at);
    }
    let later = Now(11 * SECOND);
    assert_eq!(
        limit.local_share().peek_units(0, &units(1, 1), later).remaining,
        10,
        "refilled within a second"
    );
}

/// Slots of running requests are given back, whatever else a reload changes.
#[test]
fn slots_outlive_a_reload_that_starts_the_limit_fresh() {
    let before = Arc::new(limit_of("algorithm: concurrency, max_concurrent: 5", 100));
    let (slots, slot_key) =
        (crate::slots::WorkerSlots::default(), before.slot_key(0, crate::SharedKey([1; 16]), 0));
    slots.request_slots(&before, 0, slot_key, 1);
    let other = limit_of("algorithm: concurrency, max_concurrent: 5, missing_key: shared", 100);
    let after =
        Arc::new(SharedLimit::adopt_from(Some(&before), LimitId(0), &other.config, OnFailure::Local, 100));
    assert_eq!(slots.request_slots(&after, 0, slot_key, 1).1, 2);
    slots.release_slots(&slot_key, 2);
    assert_eq!(after.slots_held(&slot_key), 0);
}

/// Slots of classes that the file does not name any more count in the local share, and are reported by the new rule.
#[test]
fn slots_of_former_classes_count_in_the_local_share() {
    let limit = |shares: &str| limit_of(&format!("algorithm: concurrency, max_concurrent: 10{shares}"), 100);
    let of = |classes: &str| limit(&format!(", shares: {{ by: account, classes: {{ {classes} }} }}"));
    let key = crate::SharedKey([1; 16]);
    let before = Arc::new(of("a: { least: 20% }, b: { least: 20% }"));
    let slots = crate::slots::WorkerSlots::default();
    let (others, first) = (before.slot_key(0, key, 2), before.slot_key(0, key, 0));
    slots.request_slots(&before, 0, others, 6);
    slots.request_slots(&before, 0, first, 1);
    assert_eq!((before.local_slots(0, &first), before.local_slots(0, &others)), (2, 6));
    for (changed, left) in [(of("a: { least: 20% }"), 4), (limit(""), 3)] {
        let after =
            SharedLimit::adopt_from(Some(&before), LimitId(0), &changed.config, OnFailure::Local, 100);
        let after = Arc::new(after);
        let own = after.slot_key(0, key, 0);
        assert_eq!(after.local_slots(0, &own), left);
        let (count, in_process) = slots.request_slots(&after, 0, own, 1);
        assert_eq!(after.grants_slots_locally(0, &own, in_process), left > 0);
        slots.end_asking(&own, count.sequence);
        slots.release_slots(&own, 1);
        let reports = slots.report_all();
        let current = reports.iter().filter(|report| report.slot_key == own);
        assert!(current.clone().all(|report| Arc::ptr_eq(&report.limit, &after)));
        reports.iter().for_each(|report| slots.finish_report(report, true));
    }
}

#[test]
fn a_reset_key_is_asked_about_again_and_has_its_whole_share() {
    let limit = limit(100);
    for key in [1, 2] {
        limit.record_answer(0, &units(key, 1), Now(10 * SECOND), &answer(rejection(SECOND)));
    }
    let (share, now) = (share_of(&limit, 3), Now(10 * SECOND + 5));
    limit.seed_share(&share, 0, &units(1, 1));
    assert!(share.peek_units(0, &units(1, 1), now).remaining < 10);
    limit.reset_key(0..1, &units(1, 1).key, now).unwrap();
    assert_eq!(limit.known_rejection(0, &units(1, 1), now), None);
    assert!(limit.known_rejection(0, &units(2, 1), now).is_some(), "another key");
    limit.seed_share(&share, 0, &units(1, 1));
    assert_eq!(share.peek_units(0, &units(1, 1), now).remaining, 10);
    limit.record_answer(0, &units(1, 1), Now(10 * SECOND + 4), &answer(rejection(SECOND)));
    assert_eq!(limit.known_rejection(0, &units(1, 1), now), None, "the answer to a question from before");
    limit.record_answer(0, &units(1, 1), Now(10 * SECOND + 6), &answer(rejection(SECOND)));
    assert!(limit.known_rejection(0, &units(1, 1), now).is_some());
}

#[test]
fn another_grant_keeps_the_answers_about_all_other_keys() {
    let before = limit(100);
    before.record_answer(0, &units(1, 1), Now(10 * SECOND), &answer(rejection(SECOND)));
    let grant = |name: &str, numbers: &str| model::GrantConfig {
        name: model::GrantConfig::name_for(name),
        key: model::GrantKey::default(),
        numbers: config::read_grant(&before.config, numbers).unwrap(),
        at_ns: 0,
        until_ns: u64::MAX,
        reason: String::new(),
        by: String::new(),
    };
    let with = |before: &SharedLimit, grants| {
        let config = model::LimitConfig { grants, ..before.config.clone() };
        SharedLimit::adopt_from(Some(before), LimitId(0), &config, OnFailure::Local, 100)
    };
    let known =
        |limit: &SharedLimit, rate| limit.known_rejection(rate, &units(1, 1), Now(10 * SECOND)).is_some();
    let one = with(&before, vec![grant("a", "{ burst: 50 }")]);
    assert!(known(&one, 0) && !known(&one, 1));
    one.record_answer(1, &units(1, 1), Now(10 * SECOND), &answer(rejection(SECOND)));
    let two = with(&one, vec![grant("b", "{ burst: 60 }"), grant("a", "{ burst: 50 }")]);
    assert!(known(&two, 0) && !known(&two, 1) && known(&two, 2), "each rate keeps its own");
    let other = with(&two, vec![grant("a", "{ burst: 51 }")]);
    assert!(known(&other, 0) && !known(&other, 1), "other numbers");
    assert!(known(&with(&other, vec![]), 0));
    let mut paused = before.config.clone();
    let (limit, by, reason) = (paused.name.clone(), String::new(), String::new());
    paused.change(model::LimitChange { limit, until_unix_ns: u64::MAX, by, reason, numbers: None }, None);
    let paused = SharedLimit::adopt_from(Some(&before), LimitId(0), &paused, OnFailure::Local, 100);
    assert!(known(&paused, 0), "a pause keeps them too");
    assert!(!Arc::ptr_eq(&paused.local_share, &before.local_share), "and acts no more");
    assert!(Arc::ptr_eq(&before.fleet, &other.fleet));
}

#[test]
fn a_rejection_is_remembered_for_its_class() {
    let location = "{ path: /, limits: a, respond: { status: 200 } }";
    let text = format!(
        "account: {{ from: header:x-account, tier: {{ from: header:x-tier }} }}\n\
         limits: {{ a: {{ rate: 10/s, burst: 30, shares: {{ by: tier, classes: {{ gold: {{ least: 50% }} }} }} }} }}\n\
         locations: [{location}]"
    );
    let config = config::parse(&text, "test").unwrap().config;
    let limit = SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, 100);
    let of = |class| Units { key: CounterKey { class, ..units(1, 1).key }, ..units(1, 1) };
    let known = |class| limit.known_rejection(0, &of(class), Now(SECOND)).is_some();
    limit.record_answer(0, &of(1), Now(SECOND), &answer(rejection(SECOND)));
    assert_eq!([known(0), known(1)], [false, true]);
    limit.record_answer(0, &of(0), Now(SECOND), &answer(rejection(SECOND)));
    limit.forget_rejection(0, &of(0).key);
    assert_eq!([known(0), known(1)], [false, false], "what one gives back may flow to all");
    // The share of one of three gateways has shares as well: 2 of 5 are of gold, and the common bucket has the rest.
    let share = limit.share_of(3);
    assert_eq!([share.max_units(0, 0), share.max_units(0, 1)], [10, 7]);
}
