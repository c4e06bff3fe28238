//! Guaranteed shares in Redis: decisions as in memory, and the laws that no order of calls breaks.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Decision, Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, LimitId, ShareClass, Shares, WindowAlign};
use sluicegate_store::{
    CallItem, RateAnswer, RateRule, ScriptOp, ScriptReply, SettleItem, SettledKey, StoreReset,
};

use crate::limits::{self, SECOND as SECOND_NS, fixed, rate, sliding, token};
use crate::script::settle::charging;
use crate::script::support::*;

const GOLD: u8 = 0;
const SILVER: u8 = 1;
const OTHERS: u8 = 2;

/// A half for gold, 30 % for silver that never takes more than 80 %, and at most 60 % for the others.
const PARTS: [(u32, u32); 3] = [(500_000, 1_000_000), (300_000, 800_000), (0, 600_000)];

fn shared(mut config: model::LimitConfig, parts: &[(u32, u32)]) -> Shared {
    let name = |(index, (least, most)): (usize, &(u32, u32))| ShareClass {
        name: format!("class {index}"),
        least: *least,
        most: *most,
    };
    let classes = parts.iter().enumerate().map(name).collect();
    config.shares = Some(Arc::new(Shares { by: model::KeyPart::Tier, classes, lend: Shares::WHOLE }));
    Shared::new(vec![config])
}

fn bucket(units: u64, burst: u64) -> Shared {
    shared(limits::config(token(units, SECOND_NS, burst)), &PARTS)
}

fn item(shared: &Shared, class: u8, cost: u64) -> CallItem<'_> {
    CallItem { class, ..CallItem::new(&shared.rules[0][0], key(1), cost) }
}

fn call(counters: &mut Counters, op: ScriptOp, item: CallItem<'_>, now: u64) -> ScriptReply {
    counters.call(op, &[item], now)
}

/// The answer to a charge, or the decision that refuses it.
fn take(
    counters: &mut Counters,
    shared: &Shared,
    class: u8,
    cost: u64,
    now: u64,
) -> Result<RateAnswer, Decision> {
    let reply = call(counters, ScriptOp::Take, item(shared, class, cost), now);
    if reply.admitted { Ok(reply.answers[0]) } else { Err(reply.answers[0].decision) }
}

fn remaining(counters: &mut Counters, shared: &Shared, now: u64) -> Vec<u64> {
    let classes = shared.configs[0].shares.as_ref().unwrap().classes.len() as u8;
    let mut left =
        |class| call(counters, ScriptOp::Peek, item(shared, class, 1), now).answers[0].decision.remaining;
    (0..classes).map(&mut left).collect()
}

fn give(counters: &mut Counters, shared: &Shared, class: u8, (cost, mark): (u64, u64), now: u64) {
    call(counters, ScriptOp::Refund, CallItem { mark, ..item(shared, class, cost) }, now);
}

/// Corrects a charge; returns the units that were forgiven, or `None` if the call was run before.
fn settle(
    counters: &mut Counters,
    shared: &Shared,
    class: u8,
    (mark, reserved, used): (u64, u64, u64),
    (sequence, forgets, now): (u64, bool, u64),
) -> Option<u64> {
    let rule = &shared.rules[0][0];
    let item = SettleItem { rule, mark, reserved, used, forgets, anchor: None, class };
    let keys = [SettledKey { key: key(1), sequence, items: vec![item] }];
    let bytes = counters.settle(&keys, now);
    SettledKey::parse_reply(&keys, &bytes).unwrap()[0][0]
}

/// Microseconds since the previous request, class, cost, and fate: 0 = given back at once.
type Request = (u64, u8, u64, u8);

fn any_requests(cost_max: u64) -> impl Strategy<Value = Vec<Request>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..60_000u64, 1 => 0..3_000_000u64];
    let cost = prop_oneof![4 => Just(1), 1 => 1..cost_max];
    proptest::collection::vec((gap, 0..3u8, cost, 0..6u8), 1..120)
}

/// Parts that need not be round.
fn any_parts() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let odd = (0..500_000u32, 0..500_000u32, 0..500_000u32, 1..500_000u32)
        .prop_map(|(one, two, more, rest)| vec![(one, 1_000_000), (two, two + more.max(1)), (0, rest)]);
    prop_oneof![Just(PARTS.to_vec()), odd]
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let period = prop_oneof![Just(SECOND_US), 1_000..2_000_000u64];
    (0..4, 1..60u64, 1..90u64, period, 1..12u8).prop_map(|(kind, units, burst, us, buckets)| match kind {
        0 => token(units, us * 1_000, burst),
        1 => fixed(units, us * 1_000, WindowAlign::First),
        2 => fixed(units, us * 1_000, WindowAlign::Clock),
        _ => {
            let rates = vec![rate(units, us.div_ceil(buckets.into()) * u64::from(buckets) * 1_000)];
            Algorithm::SlidingWindow { rates, buckets }
        }
    })
}

/// The local engine's decision, in microseconds rounded up.
fn in_us(decision: Decision) -> Decision {
    let up = |ns: u64| if ns == u64::MAX { ns } else { ns.div_ceil(1_000) * 1_000 };
    Decision {
        reset_ns: up(decision.reset_ns),
        retry_after_ns: up(decision.retry_after_ns),
        full_ns: up(decision.full_ns),
        ..decision
    }
}

fn same(counters: &mut Counters, shared: &Shared, requests: &[Request]) {
    counters.flush();
    let local = Limit::new(LimitId(0), &shared.configs[0], 10);
    let mut now = START_US;
    for (index, (gap, class, cost, fate)) in requests.iter().enumerate() {
        now += gap;
        let cost = (*cost).min(local.max_units(0, *class)).max(1);
        let units = Units::new(CounterKey { class: *class, ..CounterKey::new(1, 0) }, cost);
        let at = Now(now * 1_000);
        let peeked = call(counters, ScriptOp::Peek, item(shared, *class, cost), now).answers[0].decision;
        assert_eq!(peeked, in_us(local.peek_units(0, &units, at)), "peek {index}");
        let (decision, charge) = local.charge_units(0, &units, at);
        let ours = take(counters, shared, *class, cost, now);
        match (ours, charge) {
            (Ok(answer), Some(charge)) => {
                assert_eq!(answer.decision, in_us(decision), "request {index}");
                if *fate == 0 {
                    local.refund_charge(0, &units.key, cost, &charge, || at);
                    give(counters, shared, *class, (cost, answer.mark), now);
                }
            }
            (ours, charge) => {
                assert!(charge.is_none(), "request {index}: {ours:?}");
                assert_eq!(ours.unwrap_err(), in_us(decision), "request {index}");
            }
        }
    }
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}

#[test]
fn shares_are_judged_as_in_memory() {
    let counters = RefCell::new(Counters::start());
    proptest!(cases(300), |(algorithm in any_algorithm(), parts in any_parts(), requests in any_requests(30))| {
        same(&mut counters.borrow_mut(), &shared(limits::config(algorithm), &parts), &requests);
    });
}

/// Whatever is given back and settled, however late: of the units that were used at most B + r·Δ count in any span,
/// and a class that keeps to its own rate and depth is never refused.
#[test]
fn late_corrections_break_neither_the_envelope_nor_a_floor() {
    let counters = RefCell::new(Counters::start());
    proptest!(cases(150), |(requests in any_requests(20), settles in any::<bool>())| {
        let counters = &mut *counters.borrow_mut();
        counters.flush();
        let config = if settles { charging } else { limits::config };
        let shared = shared(config(token(100, SECOND_NS, 100)), &PARTS);
        let (mut now, mut passed, mut open, mut gold) = (START_US, vec![], vec![], (25.0, START_US));
        for (sequence, (gap, class, cost, fate)) in requests.iter().enumerate() {
            now += gap;
            gold = (f64::min(25.0, gold.0 + (now - gold.1) as f64 * 50.0 / 1e6), now);
            let cost = if *class == GOLD { 1 } else { *cost };
            if *class == GOLD && gold.0 < 1.000_001 {
                continue;
            }
            let taken = take(counters, &shared, *class, cost, now);
            if *class == GOLD {
                gold.0 -= 1.0;
                prop_assert!(taken.is_ok(), "gold within its floor");
            }
            match taken {
                Ok(answer) if *class != GOLD && *fate < 3 => open.push((*class, cost, answer.mark)),
                Ok(_) => passed.push((now, cost)),
                Err(_) => {}
            }
            if fate % 2 == 0 && !open.is_empty() {
                let (class, cost, mark) = open.swap_remove(usize::from(*fate) % open.len());
                match settles {
                    true => {
                        let twice = [0, 1].map(|_| {
                            settle(counters, &shared, class, (mark, cost, 0), (sequence as u64 + 1, false, now))
                        });
                        prop_assert_eq!(twice, [Some(0), None]);
                    }
                    false => give(counters, &shared, class, (cost, mark), now),
                }
            }
        }
        for first in 0..passed.len() {
            let mut sum = 0;
            for (at, cost) in &passed[first..] {
                sum += cost;
                prop_assert!(sum <= 100 + (at - passed[first].0) * 100 / SECOND_US + 1);
            }
        }
    });
}

#[test]
fn an_idle_class_lends_all_and_has_its_reserve_at_once() {
    let (mut counters, shared) = (Counters::start(), bucket(100, 100));
    let passed = (0..200).filter(|_| take(&mut counters, &shared, OTHERS, 1, START_US).is_ok()).count();
    assert_eq!((passed, remaining(&mut counters, &shared, START_US)), (60, vec![25, 15, 0]));
}

#[test]
fn an_excess_is_never_paid_by_another_class() {
    let mut counters = Counters::start();
    let shared = shared(charging(token(100, SECOND_NS, 100)), &PARTS);
    let (now, later) = (START_US, START_US + 100 * MS_US);
    let one = take(&mut counters, &shared, OTHERS, 1, now).unwrap();
    assert!(one.decision.remaining == 59 && one.mark == now);
    let excess = settle(&mut counters, &shared, OTHERS, (one.mark, 1, 120), (1, false, now));
    assert_eq!((excess, remaining(&mut counters, &shared, now)), (Some(0), vec![25, 15, 0]));
    let debt = take(&mut counters, &shared, OTHERS, 1, now).unwrap_err();
    assert!(debt.retry_after_ns >= 600_000_000, "{debt:?}");
    let two = take(&mut counters, &shared, GOLD, 1, later).unwrap();
    let peeked = call(&mut counters, ScriptOp::Peek, item(&shared, OTHERS, 1), later).answers[0];
    assert!(peeked.has_reserved, "so a rejection is not repeated without a question");
    let forgiven = settle(&mut counters, &shared, GOLD, (two.mark, 1, 501), (2, false, later));
    // There are 24 of its own and a debt of 60 less 10 that have come back, and at most 100 are owed.
    assert_eq!(forgiven, Some(500 - (24 + 100 - 50)));
}

#[test]
fn a_reset_by_a_response_keeps_what_is_reserved() {
    let mut counters = Counters::start();
    let shared = shared(charging(token(100, SECOND_NS, 100)), &PARTS);
    let (one, two) = (
        take(&mut counters, &shared, OTHERS, 30, START_US).unwrap(),
        take(&mut counters, &shared, GOLD, 40, START_US).unwrap(),
    );
    settle(&mut counters, &shared, OTHERS, (one.mark, 30, 30), (1, true, START_US));
    assert_eq!(
        remaining(&mut counters, &shared, START_US),
        [45, 35, 20],
        "40 are reserved, of the common bucket"
    );
    settle(&mut counters, &shared, GOLD, (two.mark, 40, 10), (2, false, START_US));
    assert_eq!(remaining(&mut counters, &shared, START_US), [75, 65, 50]);
    settle(&mut counters, &shared, GOLD, (two.mark, 40, 0), (3, false, START_US));
    assert_eq!(remaining(&mut counters, &shared, START_US), [75, 65, 50], "nothing is given back twice");
}

/// Units that were admitted without the store: judged as used until they are charged, all classes in one call.
#[test]
fn debts_of_several_classes_are_owed_and_charged_apart() {
    let mut counters = Counters::start();
    for algorithm in [token(100, SECOND_NS, 100), fixed(100, SECOND_NS, WindowAlign::First)] {
        counters.flush();
        let shared = shared(limits::config(algorithm), &PARTS);
        let [gold, silver] = if shared.rules[0][0].window_ns().is_some() { [50, 30] } else { [25, 15] };
        let common = 100 - gold - silver;
        let owing =
            |class, owed, owed_by_others| CallItem { owed, owed_by_others, ..item(&shared, class, 1) };
        let mut left =
            |item| call(&mut counters, ScriptOp::Peek, item, START_US).answers[0].decision.remaining;
        assert_eq!(left(owing(GOLD, gold, common)), 0, "its own are owed, and the common ones by others");
        assert_eq!(left(owing(GOLD, gold + 5, 0)), common - 5);
        assert_eq!(left(owing(GOLD, 0, 1000)), gold, "debts of others leave it its own");
        let charge = |class, cost| CallItem { mark: 1, ..item(&shared, class, cost) };
        for _ in 0..2 {
            let charges = [charge(GOLD, gold + 5), charge(SILVER, 7)];
            counters.call(ScriptOp::ChargeDebt, &charges, START_US);
        }
        let left = remaining(&mut counters, &shared, START_US);
        assert_eq!(left[..2], [common - 5, silver - 7 + (common - 5)], "once, whatever is repeated");
    }
}

#[test]
fn another_list_of_classes_deals_the_same_units_anew() {
    let mut counters = Counters::start();
    let two = |algorithm, least| {
        let mut other = shared(limits::config(algorithm), &[(least, 1_000_000), (0, 1_000_000)]);
        let shares = Arc::make_mut(other.configs[0].shares.as_mut().unwrap());
        shares.classes[0].name = "iron".into();
        other.rules = other.configs.iter().map(RateRule::rules_of).collect();
        other
    };
    take(&mut counters, &bucket(100, 100), GOLD, 50, START_US).unwrap();
    let other = two(token(1000, SECOND_NS, 200), 200_000);
    // 50 of 200 are used: three quarters of 20 and of 180.
    assert_eq!(remaining(&mut counters, &other, START_US), [150, 135]);
    take(&mut counters, &other, 0, 0, START_US).unwrap();
    assert_eq!(
        remaining(&mut counters, &bucket(100, 100), START_US),
        [50 - 8, 50 - 13, 30],
        "and back again"
    );
    for algorithm in [fixed(100, SECOND_NS, WindowAlign::First), sliding(100, SECOND_NS, 10)] {
        counters.flush();
        let gold = shared(limits::config(algorithm.clone()), &PARTS);
        take(&mut counters, &gold, GOLD, 60, START_US).unwrap();
        // 60 % of each part are used.
        let other = two(algorithm.clone(), 200_000);
        assert_eq!(remaining(&mut counters, &other, START_US), [40, 32]);
        assert_eq!(
            remaining(&mut counters, &shared(limits::config(algorithm), &PARTS), START_US),
            [10, 40, 10]
        );
    }
}

#[test]
fn windows_of_another_list_admit_no_more_than_their_number() {
    let mut counters = Counters::start();
    for algorithm in [fixed(10, SECOND_NS, WindowAlign::First), sliding(10, SECOND_NS, 10)] {
        counters.flush();
        let before = shared(limits::config(algorithm.clone()), &PARTS);
        take(&mut counters, &before, GOLD, 7, START_US).unwrap();
        // None of the parts of a third holds 70 % of its units as a whole number.
        let parts = [(300_000, 1_000_000), (300_000, 1_000_000), (300_000, 1_000_000), (0, 1_000_000)];
        let after = shared(limits::config(algorithm), &parts);
        let mut admitted = 7;
        for class in 0..4 {
            while take(&mut counters, &after, class, 1, START_US).is_ok() {
                admitted += 1;
            }
        }
        assert_eq!(admitted, 10);
    }
}

#[test]
fn a_key_is_reset_and_its_state_is_one_string_that_ends() {
    let mut counters = Counters::start();
    for shared in [bucket(100, 100), shared(limits::config(sliding(100, SECOND_NS, 10)), &PARTS)] {
        counters.mortal = true;
        take(&mut counters, &shared, GOLD, 50, START_US).unwrap();
        take(&mut counters, &shared, OTHERS, 5, START_US).unwrap();
        let ttls = counters.ttls();
        assert!(ttls.len() == 1 && (1_000..4_000).contains(&ttls[0]), "{ttls:?}");
        let packed = StoreReset::pack_call("sg", &shared.rules[0], &key(1));
        let mut command = redis::cmd("EVAL");
        command.arg(StoreReset::script().code).arg(packed.keys.len());
        packed.keys.iter().for_each(|key| {
            command.arg(key);
        });
        let answer: Vec<u8> =
            command.arg(&packed.body).arg(START_US).query(&mut counters.connection).unwrap();
        assert_eq!(StoreReset::parse_reply(&answer).map(|reset| reset.forgotten), Some(1));
        assert_eq!(counters.dump(), []);
    }
}

#[test]
fn a_clock_that_is_set_back_locks_nobody_out() {
    let mut counters = Counters::start();
    for algorithm in
        [token(100, SECOND_NS, 100), fixed(100, SECOND_NS, WindowAlign::First), sliding(100, SECOND_NS, 10)]
    {
        counters.flush();
        let shared = shared(limits::config(algorithm), &PARTS);
        let now = START_US - HOUR_US;
        let used = (0..100).filter(|_| take(&mut counters, &shared, OTHERS, 1, START_US).is_ok()).count();
        assert!(used >= 20);
        assert!(take(&mut counters, &shared, OTHERS, 1, now).is_err(), "no time has passed");
        let refused = take(&mut counters, &shared, OTHERS, 1, now + SECOND_US * 11 / 10);
        assert!(refused.is_ok(), "{refused:?}");
    }
}

/// State of another program, or of a broken one.
#[test]
fn foreign_state_is_no_state_and_no_fault() {
    let counters = RefCell::new(Counters::start());
    let number =
        prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(START_US as f64), 0.0..1e6f64];
    let state =
        (0..3usize, proptest::collection::vec(number, 0..60), proptest::collection::vec(any::<u8>(), 0..8));
    proptest!(cases(300), |((kind, numbers, rest) in state)| {
        let counters = &mut *counters.borrow_mut();
        counters.flush();
        let algorithm = [token(10, SECOND_NS, 40), fixed(40, SECOND_NS, WindowAlign::Clock), sliding(40, SECOND_NS, 5)];
        let shared = shared(charged_if_bucket(kind, &algorithm), &PARTS);
        take(counters, &shared, GOLD, 1, START_US).unwrap();
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*:G:*").query(&mut counters.connection).unwrap();
        let own: Vec<u8> = redis::cmd("GET").arg(&names[0]).query(&mut counters.connection).unwrap();
        let mut value = own[..8].to_vec();
        value.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        value.extend(rest);
        let _: () = redis::cmd("SET").arg(&names[0]).arg(&value).query(&mut counters.connection).unwrap();
        for op in [ScriptOp::Peek, ScriptOp::Take, ScriptOp::Refund, ScriptOp::ChargeDebt] {
            let items = [CallItem { mark: START_US, ..item(&shared, SILVER, 2) }];
            let bytes = counters.raw(op, &items, Some(START_US));
            prop_assert!(ScriptReply::parse_reply(op, &items, &bytes).is_some(), "{:?}", bytes);
        }
        // Whatever it was, it ends.
        let later = START_US + 3 * 3_600 * SECOND_US;
        prop_assert!(take(counters, &shared, GOLD, 10, later).is_ok());
    });
}

fn charged_if_bucket(kind: usize, algorithms: &[Algorithm; 3]) -> model::LimitConfig {
    let algorithm = algorithms[kind].clone();
    if kind == 0 { charging(algorithm) } else { limits::config(algorithm) }
}

#[test]
fn a_dry_run_judges_and_counts_apart() {
    let (mut counters, mut shared) = (Counters::start(), bucket(100, 100));
    shared.configs[0].dry_run = true;
    for turn in 0..70 {
        let dry = CallItem { dry_run: true, ..item(&shared, OTHERS, 1) };
        let reply = call(&mut counters, ScriptOp::Take, dry, START_US);
        let refused = reply.answers[0].decision.outcome == LimitOutcome::Reject;
        assert_eq!((reply.admitted, refused), (true, turn >= 60));
    }
}
