//! Leaky buckets with shares: the numbers they tell, units that come back, and snapshots. Their laws are proved beside
//! a plain simulation in `crates/admission/tests/limits/share_queues.rs`.

use std::task::Waker;

use proptest::prelude::*;

use super::tests::{CLASSES, GOLD, OTHERS, SILVER, limit_with, units};
use crate::{ChargeRecord, Decision, Limit, LimitOutcome, Turn};
use sluicegate_base::clock::{ClockShift, Now};

const MS: u64 = 1_000_000;
const START: u64 = 1 << 60;

fn queue_with(fields: &str) -> Limit {
    limit_with(&format!("algorithm: leaky_bucket, max_wait: none, {fields}"))
}

fn charge(limit: &Limit, class: u8, cost: u64, ms: u64) -> (Decision, Option<ChargeRecord>) {
    limit.charge_units(0, &units(class, cost), Now(START + ms * MS))
}

fn turn(limit: &Limit, class: u8, charge: &mut ChargeRecord, ms: u64) -> Turn {
    limit.check_turn(0, &units(class, 1).key, charge, Now(START + ms * MS), Waker::noop())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A class that has all decides as the plain queue does, in all numbers.
    #[test]
    fn one_class_is_the_plain_queue(
        (burst, queue) in (1..5u64, 0..9u64),
        requests in proptest::collection::vec(
            (prop_oneof![Just(0), 0..300u64], prop_oneof![5 => Just(1u64), 1 => 1..4u64]), 1..100),
    ) {
        let fields = format!("rate: 10/s, burst: {burst}, queue: {queue}");
        let plain = queue_with(&fields);
        let shared = queue_with(&format!("{fields}, shares: {{ by: tier, classes: {{ gold: {{ least: 100% }} }} }}"));
        let (mut ms, mut costly) = (0, false);
        for (gap, cost) in requests {
            ms += gap;
            let cost = cost.min(burst + queue);
            costly |= cost > 1;
            let [one, other] = [&plain, &shared].map(|limit| charge(limit, GOLD, cost, ms).0);
            // A queue beyond its size says when it is empty.
            let told = |decision: Decision| Decision { retry_after_ns: 0, reset_ns: 0, ..decision };
            prop_assert_eq!(told(one), told(other));
            prop_assert!(other.retry_after_ns >= one.retry_after_ns && other.reset_ns >= one.reset_ns);
            prop_assert!(costly || one == other, "{:?} {:?}", one, other);
        }
    }
}

#[test]
fn a_class_is_told_its_own_numbers() {
    let limit = queue_with(&format!("rate: 10/s, burst: 5, queue: 10, {CLASSES}"));
    let left = |class, ms| limit.peek_units(0, &units(class, 1), Now(START + ms * MS)).remaining;
    assert_eq!([GOLD, SILVER, OTHERS].map(|class| left(class, 0)), [15, 14, 13], "4 and 3 of 5 at once");
    for _ in 0..13 {
        assert_ne!(charge(&limit, OTHERS, 1, 0).0.outcome, LimitOutcome::Reject);
    }
    assert_eq!([GOLD, SILVER, OTHERS].map(|class| left(class, 0)), [5, 3, 0], "the places of the others");
    let (decision, _) = charge(&limit, OTHERS, 1, 0);
    assert_eq!((decision.outcome, decision.retry_after_ns / MS), (LimitOutcome::Reject, 166), "6 per second");
    assert_eq!(charge(&limit, GOLD, 1, 0).0.outcome, LimitOutcome::Admit, "the burst is free");
}

#[test]
fn units_that_come_back_let_waiters_go() {
    let limit = queue_with(&format!("rate: 10/s, burst: 1, queue: 10, {CLASSES}"));
    let first = charge(&limit, OTHERS, 1, 0).1.unwrap();
    let [mut others, mut gold] = [OTHERS, GOLD].map(|class| charge(&limit, class, 1, 0).1.unwrap());
    assert_eq!(turn(&limit, GOLD, &mut gold, 20), Turn::Due(Now(START + 100 * MS)));
    assert_eq!(turn(&limit, OTHERS, &mut others, 20), Turn::Wait);
    limit.refund_charge(0, &units(OTHERS, 1).key, 1, &first, || Now(START + 30 * MS));
    assert_eq!(turn(&limit, GOLD, &mut gold, 30), Turn::Go);
    assert_eq!(turn(&limit, OTHERS, &mut others, 30), Turn::Due(Now(START + 130 * MS)), "by then");
    limit.refund_charge(0, &units(OTHERS, 1).key, 1, &others, || Now(START + 40 * MS));
    assert_eq!((limit.waiter_count(), limit.waiting_units(0, &units(GOLD, 1).key)), (0, 0));
    assert_eq!(charge(&limit, SILVER, 1, 130).0.outcome, LimitOutcome::Admit);
}

#[test]
fn a_snapshot_lets_the_departures_of_waiters_lapse() {
    let fields = format!("rate: 10/s, burst: 1, queue: 10, {CLASSES}");
    let (before, after) = (queue_with(&fields), queue_with(&fields));
    assert!(
        [GOLD, GOLD, SILVER, OTHERS, OTHERS].iter().all(|class| charge(&before, *class, 1, 0).1.is_some())
    );
    let [from, to] = [&before, &after].map(|limit| limit.rate_tables().remove(0));
    for block in 0..from.table.block_count() {
        let (mut bytes, now) = (Vec::new(), Now(START));
        from.table.encode_block(block, now, &mut bytes);
        assert_eq!(to.table.restore_block(&bytes, ClockShift::new(now, 0, now), now), Some(0));
    }
    assert_eq!(charge(&after, GOLD, 1, 0).0.wait_ns / MS, 500);
    assert_eq!(charge(&after, GOLD, 1, 700).0.wait_ns, 0);
}
