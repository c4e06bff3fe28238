//! Slots with guaranteed shares in Redis: decisions as in memory, and what several gateways add.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, LimitId, ShareClass, Shares};
use sluicegate_store::{CallItem, GatewayTurn, ScriptOp, ScriptReply, SlotCount};

use crate::limits::{self, concurrency};
use crate::script::support::*;

const GOLD: u8 = 0;
const SILVER: u8 = 1;
const OTHERS: u8 = 2;
const CLASSES: u8 = 3;

/// Gateways that hold slots by class.
struct Slots {
    counters: Counters,
    shared: Shared,
    held: HashMap<(u64, u8), u64>,
    sequence: u64,
}

/// A half for gold, 30 % for silver that never takes more than 80 %, and at most 60 % for the others.
fn limit(max: u32, lend: u32) -> model::LimitConfig {
    let class = |name: &str, least: u32, most: u32| ShareClass {
        name: name.to_owned(),
        least: least * 10_000,
        most: most * 10_000,
    };
    let classes = vec![class("gold", 50, 100), class("silver", 30, 80), class("default", 0, 60)];
    let shares = Shares { by: model::KeyPart::Tier, classes, lend: lend * 10_000 };
    model::LimitConfig { shares: Some(Arc::new(shares)), ..limits::config(concurrency(max)) }
}

impl Slots {
    fn of(max: u32, lend: u32) -> Slots {
        let shared = Shared::new(vec![limit(max, lend)]);
        Slots { counters: Counters::start(), shared, held: HashMap::new(), sequence: 0 }
    }

    fn say(
        &mut self,
        op: ScriptOp,
        (node, class): (u64, u8),
        (slots, cost): (u64, u64),
        turn: Option<GatewayTurn>,
        now: u64,
    ) -> ScriptReply {
        self.sequence += 1;
        self.counters.node = node;
        let asked = if op == ScriptOp::ReportSlots { 0 } else { cost };
        let slot_count = SlotCount { slots, asked, oldest: self.sequence, sequence: self.sequence, turn };
        let item = CallItem { class, slot_count, ..CallItem::new(&self.shared.rules[0][0], key(1), cost) };
        self.counters.call(op, &[item], START_US + now)
    }

    /// What is left if it has the slots, else what the class can take.
    fn take(&mut self, at: (u64, u8), cost: u64, now: u64) -> Result<u64, u64> {
        let slots = self.held.get(&at).unwrap_or(&0) + cost;
        let reply = self.say(ScriptOp::Take, at, (slots, cost), None, now);
        let left = reply.answers[0].decision.remaining;
        if reply.admitted {
            self.held.insert(at, slots);
            return Ok(left);
        }
        Err(left)
    }

    fn free(&mut self, at: (u64, u8), cost: u64, now: u64) {
        let held = self.held.get_mut(&at).unwrap();
        *held -= cost;
        let slots = *held;
        self.say(ScriptOp::ReportSlots, at, (slots, 1), None, now);
    }

    /// Asks for a slot in the place of the first that waits there, `waiting` in all.
    fn asks(&mut self, op: ScriptOp, at: (u64, u8), (waited_ms, waiting): (u64, u64), now: u64) -> bool {
        let waited_us = Some(waited_ms * MS_US);
        let turn = GatewayTurn { gateway: at.0, waited_us, poll_us: 10 * MS_US, waiting };
        let slots = self.held.get(&at).unwrap_or(&0) + 1;
        let admitted = self.say(op, at, (slots, 1), Some(turn), now).admitted;
        if admitted && op == ScriptOp::Take {
            self.held.insert(at, slots);
        }
        admitted
    }
}

/// Milliseconds since the previous request, gateway, class, cost, and whether a request ends instead.
type Step = (u64, u64, u8, u64, bool);

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..60u64, 1 => 0..1_500u64];
    let cost = prop_oneof![4 => Just(1), 1 => 1..4u64];
    proptest::collection::vec((gap, 1..4u64, 0..CLASSES, cost, any::<bool>()), 1..150)
}

fn same(slots: &mut Slots, (max, lend): (u32, u32), steps: Vec<Step>) {
    slots.counters.flush();
    slots.held.clear();
    slots.shared = Shared::new(vec![limit(max, lend)]);
    let local = Limit::new(LimitId(0), &slots.shared.configs[0], 10);
    let (mut now, mut flying) = (0, Vec::new());
    for (index, (gap, mut node, mut class, cost, ends)) in steps.into_iter().enumerate() {
        // Without reports, slots lapse after ten seconds.
        now = (now + gap * MS_US).min(9 * SECOND_US);
        let at = Now((START_US + now) * 1_000);
        if ends && !flying.is_empty() {
            let (place, cost): ((u64, u8), u64) = flying.swap_remove(index % flying.len());
            let key = CounterKey { class: place.1, ..CounterKey::new(1, 0) };
            local.release_slots(0, &key, cost, false, || at);
            if index % 3 > 0 {
                slots.free(place, cost, now);
                continue;
            }
            // The next question tells of it.
            *slots.held.get_mut(&place).unwrap() -= cost;
            (node, class) = place;
        }
        let key = CounterKey { class, ..CounterKey::new(1, 0) };
        let free = local.peek_slots(0, &Units::new(key, 1), at).free;
        let ours = slots.take((node, class), cost, now);
        let theirs = local.acquire_slots(0, &key, cost, false, at);
        assert_eq!(ours, theirs.map(|grant| u64::from(grant.free)).ok_or(free), "step {index}");
        if ours.is_ok() {
            flying.push(((node, class), cost));
        }
        let held: u64 = slots.held.values().sum();
        assert!(held <= u64::from(max));
        for class in 0..CLASSES {
            let ours = slots.say(ScriptOp::Peek, (9, class), (1, 1), None, now).answers[0].decision.remaining;
            let key = CounterKey { class, ..CounterKey::new(1, 0) };
            let theirs = local.peek_slots(0, &Units::new(key, 1), at).free;
            assert_eq!(ours, theirs, "class {class} after step {index}");
        }
    }
}

/// Three gateways decide as one with the limit in its memory does, to the slot.
#[test]
fn slots_of_classes_are_dealt_as_in_memory() {
    let slots = RefCell::new(Slots::of(1, 100));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let lend = prop_oneof![Just(100u32), 0..101u32];
    proptest!(config, |(max in 1..24u32, lend in lend, steps in any_steps())| {
        same(&mut slots.borrow_mut(), (max, lend), steps);
    });
}

/// Slots that a class was refused come back to it one after the other, at whatever gateway.
#[test]
fn a_lent_floor_comes_back_when_requests_end() {
    let mut slots = Slots::of(10, 100);
    let others = (0..10).filter(|turn| slots.take((turn % 3, OTHERS), 1, 0).is_ok()).count();
    let silver = (0..10).filter(|turn| slots.take((turn % 3, SILVER), 1, 0).is_ok()).count();
    assert_eq!((others, silver), (6, 4), "`most` of the others, and what is left");
    // Gold is refused twice: two of the slots that are given back are its own.
    assert_eq!((slots.take((1, GOLD), 1, 1_000), slots.take((2, GOLD), 1, 1_000)), (Err(0), Err(0)));
    slots.free((0, OTHERS), 1, 2_000);
    assert_eq!(slots.take((0, OTHERS), 1, 3_000), Err(0));
    slots.free((1, OTHERS), 1, 4_000);
    assert_eq!(slots.take((2, OTHERS), 1, 5_000), Err(0));
    assert_eq!((slots.take((1, GOLD), 1, 6_000), slots.take((2, GOLD), 1, 6_000)), (Ok(1), Ok(0)));
    slots.free((2, OTHERS), 1, 7_000);
    assert_eq!(slots.take((0, SILVER), 1, 8_000), Ok(0), "what nobody was refused is common");
}

/// A class that does not come for a second needs nothing.
#[test]
fn what_is_kept_is_lent_again_after_a_second() {
    let mut slots = Slots::of(10, 100);
    (0..5).for_each(|_| assert!(slots.take((1, GOLD), 1, 0).is_ok()));
    (0..5).for_each(|_| slots.free((1, GOLD), 1, 100 * MS_US));
    let others =
        |slots: &mut Slots, now: u64| (0..10).filter(|_| slots.take((2, OTHERS), 1, now).is_ok()).count();
    assert_eq!((others(&mut slots, 900 * MS_US), others(&mut slots, 1_600 * MS_US)), (5, 1));
}

/// The needs of those that wait count by gateway, and a waiter takes what is its class's own, however long others wait.
#[test]
fn slots_of_its_own_go_to_a_class_that_waits_and_common_ones_to_the_first() {
    use ScriptOp::{Peek, Take};
    let mut slots = Slots::of(10, 100);
    (0..6).for_each(|_| assert!(slots.take((1, OTHERS), 1, 0).is_ok()));
    (0..4).for_each(|_| assert!(slots.take((1, SILVER), 1, 0).is_ok()));
    assert!(!slots.asks(Peek, (2, SILVER), (500, 3), 1_000) && !slots.asks(Peek, (3, GOLD), (100, 1), 1_000));
    slots.free((1, OTHERS), 1, 2_000);
    assert!(!slots.asks(Take, (2, SILVER), (501, 3), 2_000), "it has its floor, and the free slot is gold's");
    assert!(slots.asks(Take, (3, GOLD), (101, 1), 2_000));
    slots.asks(Peek, (3, GOLD), (1, 0), 2_500);
    slots.free((1, OTHERS), 1, 3_000);
    assert!(!slots.asks(Take, (1, OTHERS), (50, 1), 3_000), "the others came later");
    assert!(slots.asks(Take, (2, SILVER), (502, 3), 3_000));
}

/// Slots of classes that the file does not name any more count in the sum, and unsound state counts as none.
#[test]
fn another_list_and_foreign_state_keep_the_sum() {
    let mut slots = Slots::of(10, 100);
    (0..4).for_each(|_| assert!(slots.take((1, OTHERS), 1, 0).is_ok()));
    let mut two = limit(10, 100);
    let shares = two.shares.as_ref().unwrap();
    let classes = vec![shares.classes[0].clone(), shares.classes[2].clone()];
    two.shares = Some(Arc::new(Shares { classes, ..(**shares).clone() }));
    slots.shared = Shared::new(vec![two]);
    let passed = (0..10).filter(|_| slots.take((2, GOLD), 1, 1_000).is_ok()).count();
    assert_eq!(passed, 6, "four of ten are in use");
    for value in ["", "x", &"\u{1}".repeat(80), &"\u{7f}".repeat(80)] {
        let name = slots.counters.dump().remove(0).0;
        redis::cmd("HSET").arg(name).arg("classes").arg(value).exec(&mut slots.counters.connection).unwrap();
        assert_eq!(slots.take((3, GOLD), 1, 2_000), Err(0), "{value:?}");
    }
    slots.free((2, GOLD), 1, 3_000);
    assert!(slots.take((3, GOLD), 1, 4_000).is_ok());
}

/// A waiter that would take its class above its `most` holds nobody up, and what is forgotten needs no memory.
#[test]
fn a_waiter_above_most_leaves_common_slots_to_others() {
    let mut slots = Slots::of(10, 100);
    (0..5).for_each(|_| assert!(slots.take((1, OTHERS), 1, 0).is_ok()));
    let turn =
        |gateway, waited| GatewayTurn { gateway, waited_us: Some(waited), poll_us: 10 * MS_US, waiting: 2 };
    // Two slots, where one is left of its `most` of six.
    assert!(!slots.say(ScriptOp::Peek, (1, OTHERS), (7, 2), Some(turn(1, 500 * MS_US)), 1_000).admitted);
    assert!(slots.say(ScriptOp::Take, (2, SILVER), (1, 1), Some(turn(2, 0)), 1_000).admitted);
    slots.held.insert((2, SILVER), 1);
    slots.free((2, SILVER), 1, 2_000);
    (0..5).for_each(|_| slots.free((1, OTHERS), 1, 3_000));
    let mut names = slots.counters.dump().into_iter().map(|(name, _)| name);
    let slots_of = names.find(|name| name.windows(3).any(|part| part == b":C:")).unwrap();
    slots.counters.mortal = true;
    assert!(slots.take((1, GOLD), 1, 4_000).is_ok());
    slots.free((1, GOLD), 1, 5_000);
    let ms: i64 = redis::cmd("PTTL").arg(slots_of).query(&mut slots.counters.connection).unwrap();
    assert!((1..=1_250).contains(&ms), "{ms}");
}
