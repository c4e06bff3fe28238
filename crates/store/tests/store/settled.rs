//! The state of settled charges in Redis: bounded, whatever its server's clock or another program does to it.

use sluicegate_model::{self as model, WindowAlign};
use sluicegate_store::{ScriptOp, SettleItem, SettledKey};

use crate::limits::{self, SECOND as SECOND_NS};
use crate::script::settle::charging;
use crate::script::support::*;

const HOUR_NS: u64 = 3_600 * SECOND_NS;

/// The units of key 1 that are left.
fn remaining(counters: &mut Counters, shared: &Shared, now: u64) -> u64 {
    let reply = counters.call(ScriptOp::Peek, &shared.items(&[key(1)], 1), now);
    reply.answers[0].decision.remaining
}

/// Corrects the charge of `mark` on the only rate.
fn correct(
    counters: &mut Counters,
    shared: &Shared,
    mark: u64,
    (reserved, used): (u64, u64),
    now: u64,
) -> u64 {
    let item = SettleItem {
        rule: &shared.rules[0][0],
        mark,
        reserved,
        used,
        forgets: false,
        anchor: None,
        class: 0,
    };
    // Each call has another sender, so that the numbers do not matter.
    counters.node += 1;
    let keys = [SettledKey { key: key(1), sequence: 1, items: vec![item] }];
    let bytes = counters.settle(&keys, now);
    SettledKey::parse_reply(&keys, &bytes).unwrap()[0][0].unwrap()
}

/// A log of very many requests gets coarser: units leave up to 0.4 % of the period late and never early, and each
/// request is settled to the unit.
#[test]
fn a_long_log_is_bounded_and_settled_to_the_unit() {
    let (mut counters, shared) =
        (Counters::start(), Shared::new(vec![charging(limits::log(100_000, HOUR_NS))]));
    let (mut now, mut marks) = (START_US, vec![]);
    for _ in 0..3_000 {
        now += SECOND_US;
        let reply = counters.call(ScriptOp::Take, &shared.items(&[key(1)], 10), now);
        marks.push((now, reply.answers[0].mark));
    }
    assert_eq!(remaining(&mut counters, &shared, now), 100_000 - 30_000);
    for (index, (_, mark)) in marks.iter().enumerate() {
        assert_eq!(correct(&mut counters, &shared, *mark, (10, 5 + index as u64 % 11), now), 0);
    }
    let used: u64 = (0..3_000).map(|index| 5 + index % 11).sum();
    assert_eq!(remaining(&mut counters, &shared, now), 100_000 - used);
    let mut left = 0;
    for (index, (at, _)) in marks.iter().enumerate() {
        let early = 100_000 - remaining(&mut counters, &shared, at + HOUR_US - 1);
        assert!(early >= used - left, "{early} left too early at request {index}");
        left += 5 + index as u64 % 11;
        let late = 100_000 - remaining(&mut counters, &shared, at + HOUR_US + HOUR_US / 250);
        assert!(late <= used - left, "{late} stay too long at request {index}");
    }
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*:S:*").query(&mut counters.connection).unwrap();
    let length: usize = redis::cmd("STRLEN").arg(&names[0]).query(&mut counters.connection).unwrap();
    assert!(length <= 16 + 24 * 513, "{length} bytes");
}

/// A busy bucket with very many requests in flight gives back what they did not use, and remembers no more of them than
/// it may.
#[test]
fn a_bucket_of_many_open_reservations_is_bounded_and_gives_back() {
    let shared = Shared::new(vec![charging(limits::token(1_000, HOUR_NS, 100_000))]);
    let (mut counters, mut now, mut marks) = (Counters::start(), START_US, vec![]);
    for _ in 0..2_000 {
        now += 1;
        let reply = counters.call(ScriptOp::Take, &shared.items(&[key(1)], 40), now);
        marks.push(reply.answers[0].mark);
    }
    assert_eq!(remaining(&mut counters, &shared, now), 100_000 - 80_000);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*:S:*").query(&mut counters.connection).unwrap();
    let length: usize = redis::cmd("STRLEN").arg(&names[0]).query(&mut counters.connection).unwrap();
    assert!(length <= 40 + 24 * 513, "{length} bytes");
    // The oldest reservations are those that a merged record may give back less of.
    for mark in marks[100..].iter().rev() {
        correct(&mut counters, &shared, *mark, (40, 10), now);
    }
    assert_eq!(remaining(&mut counters, &shared, now), 100_000 - 100 * 40 - 1_900 * 10);
}

/// The server's clock is set back by an hour: the key is judged as if no time had passed, and freed in its time.
#[test]
fn a_clock_that_is_set_back_locks_no_key() {
    let hour = 3_600 * SECOND_US;
    for algorithm in [
        limits::fixed(10, SECOND_NS, WindowAlign::First),
        limits::fixed(10, SECOND_NS, WindowAlign::Clock),
        limits::sliding(10, SECOND_NS, 10),
        limits::log(10, SECOND_NS),
        limits::token(10, SECOND_NS, 10),
    ] {
        let (mut counters, shared) = (Counters::start(), Shared::new(vec![charging(algorithm.clone())]));
        let reply = counters.call(ScriptOp::Take, &shared.items(&[key(1)], 10), START_US + hour);
        assert!(reply.admitted);
        assert!(!shared.take(&mut counters, &[key(1)], 1, START_US).admitted, "{algorithm:?}");
        let later = START_US + 2 * SECOND_US;
        assert!(shared.take(&mut counters, &[key(1)], 10, later).admitted, "{algorithm:?}");
    }
}

/// Whatever stands at the key of a counter, the script judges and settles.
#[test]
fn foreign_values_count_as_none() {
    let (mut counters, shared) = (Counters::start(), Shared::new(vec![charging(limits::log(10, SECOND_NS))]));
    counters.call(ScriptOp::Take, &shared.items(&[key(1)], 10), START_US);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*:S:*").query(&mut counters.connection).unwrap();
    let of_length = |length: usize, byte: u8| vec![byte; length];
    let values = [
        vec![],
        of_length(7, 1),
        of_length(40, 255),
        of_length(64, 0),
        of_length(40, 0x7f),
        of_length(40_000, 1),
    ];
    for value in values {
        redis::cmd("SET").arg(&names[0]).arg(&value).exec(&mut counters.connection).unwrap();
        correct(&mut counters, &shared, START_US, (3, 1), START_US);
        redis::cmd("SET").arg(&names[0]).arg(&value).exec(&mut counters.connection).unwrap();
        assert_eq!(remaining(&mut counters, &shared, START_US), 10, "{} bytes", value.len());
        assert!(shared.take(&mut counters, &[key(1)], 10, START_US).admitted);
        assert_eq!(remaining(&mut counters, &shared, START_US), 0);
    }
    redis::cmd("DEL").arg(&names[0]).exec(&mut counters.connection).unwrap();
    redis::cmd("LPUSH").arg(&names[0]).arg("x").exec(&mut counters.connection).unwrap();
    assert!(shared.take(&mut counters, &[key(1)], 10, START_US).admitted);
}

/// A charge of a limit that was reset is not given back from those that came later.
#[test]
fn what_was_forgotten_is_not_given_back() {
    let algorithm = limits::fixed(10, SECOND_NS, WindowAlign::Clock);
    let (mut counters, shared) = (Counters::start(), Shared::new(vec![charging(algorithm)]));
    let mark = counters.call(ScriptOp::Take, &shared.items(&[key(1)], 10), START_US).answers[0].mark;
    counters.flush();
    counters.call(ScriptOp::Take, &shared.items(&[key(1)], 4), START_US);
    correct(&mut counters, &shared, mark, (10, 0), START_US);
    assert_eq!(remaining(&mut counters, &shared, START_US), 6);
}

/// A reload to another rate: as many units count as before, and what is open is still given back.
#[test]
fn a_changed_rate_keeps_units_and_reservations() {
    let named = |algorithm| model::LimitConfig { name: "same".into(), ..charging(algorithm) };
    let before = Shared::new(vec![named(limits::token(7, 10 * HOUR_NS, 10))]);
    let after = Shared::new(vec![named(limits::token(3, 7 * HOUR_NS, 20))]);
    let mut counters = Counters::start();
    let first = counters.call(ScriptOp::Take, &before.items(&[key(1)], 4), START_US).answers[0].mark;
    counters.call(ScriptOp::Take, &before.items(&[key(1)], 2), START_US + 1);
    let now = START_US + 2;
    assert_eq!(remaining(&mut counters, &after, now), 14);
    assert_eq!(correct(&mut counters, &after, first, (4, 1), now), 0);
    assert_eq!(remaining(&mut counters, &after, now), 17);
    assert_eq!(correct(&mut counters, &after, first, (1, 90), now), 52, "20 beyond the limit are debt");
    assert_eq!(remaining(&mut counters, &after, now), 0);
}
