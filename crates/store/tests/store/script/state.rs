//! The script's state in the store: unchanged by a rejection, never permanent, and robust against foreign values.

use proptest::prelude::*;
use sluicegate_model::{self as model, Algorithm};
use sluicegate_store::{RateRule, ScriptOp};

use crate::limits::{SECOND as SECOND_NS, concurrency, config as limit, fixed, leaky, log, sliding, token};
use crate::script::model::{any_algorithm, any_requests, cost_max};
use crate::script::support::*;

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// Maximum microseconds until a limit has recovered fully.
fn recovery_us(config: &model::LimitConfig) -> u64 {
    let us = |rate: &model::Rate| rate.period.as_micros() as u64;
    let slowest = |(rate, most): (model::Rate, u64)| (2 * most * us(&rate)).div_ceil(rate.units.get());
    match &config.algorithm {
        Algorithm::FixedWindow { rates, .. } | Algorithm::SlidingLog { rates } => rates.iter().map(us).max(),
        Algorithm::SlidingWindow { rates, buckets } => {
            rates.iter().map(|rate| us(rate) + us(rate).div_ceil((*buckets).into())).max()
        }
        // The last departure and one full cost.
        buckets => buckets.rate_quotas().into_iter().map(slowest).max(),
    }
    .unwrap()
}

#[test]
fn rejections_change_nothing_and_keys_live_no_longer_than_needed() {
    let counters = std::cell::RefCell::new(Counters::start());
    let chains = proptest::collection::vec((any_algorithm(), proptest::bool::weighted(0.2)), 1..4);
    proptest!(cases(200), |(chain in chains, requests in any_requests(SECOND_US))| {
        let mut counters = counters.borrow_mut();
        counters.mortal = true;
        counters.flush();
        let configs = chain.into_iter().map(|(algorithm, dry_run)| model::LimitConfig { dry_run, ..limit(algorithm) });
        let shared = Shared::new(configs.collect());
        let (most, mut now) = (cost_max(&shared.configs), START_US);
        let longest_ms = shared.configs.iter().map(recovery_us).max().unwrap() / 1_000 + 1_000;
        for (gap, id, cost) in requests {
            now += gap;
            let before = counters.dump();
            if !shared.take(&mut counters, &[key(id)], cost.min(most), now).admitted {
                // A slow machine may see some keys expire.
                prop_assert!(counters.dump().iter().all(|kept| before.contains(kept)));
            }
            for ttl in counters.ttls() {
                prop_assert!(0 < ttl && ttl as u64 <= longest_ms, "{ttl} of {longest_ms} ms");
            }
        }
    });
}

#[test]
fn a_peek_says_the_same_as_a_take_and_changes_nothing() {
    let counters = std::cell::RefCell::new(Counters::start());
    let chains = proptest::collection::vec(any_algorithm(), 1..4);
    proptest!(cases(50), |(chain in chains, requests in any_requests(SECOND_US))| {
        let mut counters = counters.borrow_mut();
        counters.flush();
        let shared = Shared::new(chain.into_iter().map(limit).collect());
        let (most, mut now) = (cost_max(&shared.configs), START_US);
        for (gap, id, cost) in requests {
            now += gap;
            let items = shared.items(&[key(id)], cost.min(most));
            let before = counters.dump();
            let peeked = counters.call(ScriptOp::Peek, &items, now);
            prop_assert_eq!(counters.dump(), before);
            let taken = counters.call(ScriptOp::Take, &items, now);
            prop_assert_eq!(peeked.admitted, taken.admitted);
            for (peeked, taken) in peeked.answers.iter().zip(&taken.answers) {
                prop_assert_eq!(peeked.decision.outcome, taken.decision.outcome);
                prop_assert_eq!(peeked.decision.retry_after_ns, taken.decision.retry_after_ns);
                prop_assert_eq!(peeked.decision.wait_ns, taken.decision.wait_ns);
                prop_assert_eq!(peeked.mark, 0);
            }
        }
    });
}

fn every_kind() -> Shared {
    let all = [
        token(5, SECOND_NS, 3),
        leaky(5, SECOND_NS, 1, 2),
        fixed(3, SECOND_NS, model::WindowAlign::First),
        sliding(3, SECOND_NS, 4),
        log(3, SECOND_NS),
        concurrency(3),
    ];
    Shared::new(all.into_iter().map(limit).collect())
}

/// Foreign values in the place of our counters.
#[derive(Debug, Clone)]
enum Foreign {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    /// Our own bytes, some of them cut off and one altered.
    Bitten(usize, usize, u8),
}

fn any_foreign() -> impl Strategy<Value = Foreign> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Foreign::Text),
        proptest::collection::vec(prop_oneof![bytes(), proptest::collection::vec(any::<u8>(), 8)], 1..9)
            .prop_map(Foreign::List),
        proptest::collection::vec(
            (bytes(), prop_oneof![bytes(), proptest::collection::vec(any::<u8>(), 24)]),
            1..5
        )
        .prop_map(Foreign::Hash),
        (0..40usize, 0..200usize, any::<u8>()).prop_map(|(cut, at, byte)| Foreign::Bitten(cut, at, byte)),
    ]
}

fn plant(counters: &mut Counters, name: &[u8], foreign: &Foreign) {
    let connection = &mut counters.connection;
    match foreign {
        Foreign::Bitten(cut, at, byte) => {
            let own: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(name).query(connection);
            let Ok(mut own) = own else { return };
            own.truncate(own.len().saturating_sub(*cut));
            if let Some(index) = own.len().checked_sub(1).map(|last| at % (last + 1)) {
                own[index] = *byte;
            }
            redis::cmd("SET").arg(name).arg(own).exec(connection).unwrap();
        }
        Foreign::Text(text) => redis::cmd("SET").arg(name).arg(text).exec(connection).unwrap(),
        Foreign::List(list) => {
            redis::cmd("DEL").arg(name).exec(connection).unwrap();
            redis::cmd("RPUSH").arg(name).arg(list).exec(connection).unwrap();
        }
        Foreign::Hash(fields) => {
            redis::cmd("DEL").arg(name).exec(connection).unwrap();
            redis::cmd("HSET").arg(name).arg(fields).exec(connection).unwrap();
        }
    }
}

#[test]
fn foreign_state_is_never_an_error() {
    let counters = std::cell::RefCell::new(Counters::start());
    let shared = every_kind();
    proptest!(cases(400), |(planted in proptest::collection::vec(any_foreign(), 1..4), op in 0..5usize)| {
        let mut counters = counters.borrow_mut();
        counters.flush();
        let mut items = shared.items(&[key(1)], 1);
        for item in &mut items {
            (item.slot_count.slots, item.slot_count.sequence, item.mark) = (1, 7, START_US);
        }
        counters.call(ScriptOp::Take, &items, START_US);
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
        prop_assert_eq!(names.len(), 3);
        for (name, foreign) in names.iter().zip(&planted) {
            plant(&mut counters, name, foreign);
        }
        let op = [ScriptOp::Take, ScriptOp::Peek, ScriptOp::Refund, ScriptOp::ReportSlots, ScriptOp::ChargeDebt][op];
        counters.call(op, &items, START_US + 1);
        counters.call(ScriptOp::Take, &items, START_US + 2 * SECOND_US);
        // Whatever it was, it is gone after the longest recovery.
        let reply = counters.call(ScriptOp::Take, &items, START_US + HOUR_US);
        prop_assert!(reply.answers.len() == 6);
    });
}

/// A refund keeps a bucket whose time lies thousands of years ahead; the key gets a time to live all the same.
#[test]
fn an_impossible_time_is_no_error() {
    let (mut counters, shared) = (Counters::start(), every_kind());
    let mut items = shared.items(&[key(1)], 1);
    items.iter_mut().for_each(|item| item.mark = START_US);
    for byte in 0..80 {
        counters.flush();
        counters.call(ScriptOp::Take, &items, START_US);
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
        names.iter().for_each(|name| plant(&mut counters, name, &Foreign::Bitten(0, byte, 0x44)));
        counters.call(ScriptOp::Refund, &items, START_US + 1);
    }
}

#[test]
fn unsound_state_counts_as_absent() {
    let mut counters = Counters::start();
    let shared = every_kind();
    let mut items = shared.items(&[key(1)], 1);
    items.iter_mut().for_each(|item| item.slot_count.slots = 1);
    counters.call(ScriptOp::Peek, &items, START_US);
    let fresh = counters.call(ScriptOp::Take, &items, START_US);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
    let strangers = [
        Foreign::Text(vec![]),
        Foreign::Text(b"17".to_vec()),
        Foreign::Text(vec![0xFF; 199]),
        Foreign::Text(vec![0xFF; 100_000]),
        Foreign::List(vec![b"12345678".to_vec(), b"x".to_vec()]),
        Foreign::List(vec![vec![0xFF; 8]; 3]),
        Foreign::Hash(vec![(b"a".to_vec(), b"1".to_vec()), (vec![9; 8], vec![0xFF; 24])]),
    ];
    for foreign in &strangers {
        for name in &names {
            plant(&mut counters, name, foreign);
        }
        counters.mortal = true;
        assert_eq!(counters.call(ScriptOp::Take, &items, START_US), fresh, "{foreign:?}");
        assert_eq!(counters.ttls().iter().filter(|ttl| **ttl <= 0).count(), 0, "{foreign:?}");
    }
}

#[test]
fn a_bucket_of_numbers_that_are_none_counts_as_absent() {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(5, SECOND_NS, 3)));
    let items = shared.items(&[key(1)], 1);
    let fresh = counters.call(ScriptOp::Take, &items, START_US);
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
    let soon = (START_US + 100 * MS_US) as f64;
    let none = [
        (f64::NAN, 0.0),
        (f64::NEG_INFINITY, 0.0),
        (f64::INFINITY, f32::INFINITY),
        (1e300, f32::NAN),
        (1e300, 1e38),
        (soon, f32::NAN),
        (soon, -1e9),
    ];
    for (tat, lead) in none {
        let entry =
            [&items[0].rule.id.to_le_bytes()[..], &tat.to_le_bytes(), &[0; 4], &lead.to_le_bytes()].concat();
        plant(&mut counters, &names[0], &Foreign::Text(entry));
        assert_eq!(counters.call(ScriptOp::Take, &items, START_US), fresh, "{tat} {lead}");
    }
}

#[test]
fn entries_that_a_call_does_not_name_stay_until_they_are_idle() {
    let mut counters = Counters::start();
    let configs = |names: &[&str]| {
        let named = |name: &&str| model::LimitConfig {
            name: (*name).to_owned(),
            ..limit(match *name {
                "window" => sliding(2, 10 * SECOND_NS, 5),
                _ => token(1, SECOND_NS, 2),
            })
        };
        Shared::new(names.iter().map(named).collect())
    };
    let remaining = |verdict: ScriptVerdict| {
        verdict.decisions.iter().map(|decision| decision.remaining).collect::<Vec<_>>()
    };
    let stored = |counters: &mut Counters| {
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
        redis::cmd("GET").arg(&names[0]).query::<Vec<u8>>(&mut counters.connection).unwrap().len()
    };
    let mut take = |names: &[&str], now| {
        let verdict = configs(names).take(&mut counters, &[key(1)], 1, START_US + now);
        (remaining(verdict), stored(&mut counters))
    };
    // A bucket takes 24 bytes, this window 36.
    assert_eq!(take(&["a", "window", "b"], 0), (vec![1, 1, 1], 84));
    assert_eq!(take(&["b"], 1), (vec![0], 84));
    assert_eq!(take(&["c", "b", "a"], 2).1, 84, "b has nothing left, so nothing is written");
    assert_eq!(take(&["c", "a"], 2), (vec![1, 0], 108));
    assert_eq!(take(&["window", "d"], 3), (vec![0, 1], 132));
    assert_eq!(take(&["e", "window"], 3).1, 132);
    assert_eq!(take(&["e", "d", "c"], 4), (vec![1, 0, 0], 156));
    assert_eq!(take(&["f", "e"], 4), (vec![1, 0], 180), "the second stood first");
    assert_eq!(take(&["b", "a", "d", "c", "window"], 5), (vec![0, 0, 0, 0, 0], 180));
    assert_eq!(take(&["g"], 30 * SECOND_US), (vec![1], 24), "idle entries are gone");
}

#[test]
fn changed_numbers_share_used_units() {
    let mut counters = Counters::start();
    let few = Shared::one(token(1, SECOND_NS, 2));
    let many = Shared::one(token(1, SECOND_NS, 10));
    for remaining in (2..10).rev() {
        assert_eq!(many.pass(&mut counters, START_US).unwrap().decision.remaining, remaining);
    }
    let before = counters.dump();
    let verdict = few.take(&mut counters, &[key(1)], 1, START_US);
    assert_eq!(
        (verdict.admitted, verdict.retry_us),
        (false, 7 * SECOND_US),
        "what was used under the old numbers counts"
    );
    assert_eq!(counters.dump(), before, "and is not cut down to the new ones");
    assert_eq!(many.pass(&mut counters, START_US).unwrap().decision.remaining, 1);
    let faster = Shared::one(token(100, SECOND_NS, 10));
    let verdict = faster.take(&mut counters, &[key(1)], 1, START_US);
    assert_eq!((verdict.admitted, verdict.decisions[0].remaining), (true, 0), "nine are used at any rate");
    let retry_us = faster.take(&mut counters, &[key(1)], 1, START_US).retry_us;
    assert_eq!(retry_us, 10 * MS_US - 1, "what was used is known to seven digits");
    assert_eq!(RateRule::rules_of(&few.configs[0])[0].id, RateRule::rules_of(&faster.configs[0])[0].id);
}

/// A limit is raised gateway by gateway: used units count as used, and no more than those.
#[test]
fn a_used_up_day_leaves_the_units_that_a_raised_limit_adds() {
    const DAY: u64 = 86_400 * SECOND_NS;
    let mut counters = Counters::start();
    for (few, many) in [
        (token(10, DAY, 10), token(20, DAY, 20)),
        (leaky(10, DAY, 10, 0), leaky(20, DAY, 20, 0)),
        (fixed(10, DAY, model::WindowAlign::First), fixed(20, DAY, model::WindowAlign::First)),
        (sliding(10, DAY, 4), sliding(20, DAY, 4)),
        (log(10, DAY), log(20, DAY)),
    ] {
        counters.flush();
        let (few, many) = (Shared::one(few), Shared::one(many));
        let mut admits = |shared: &Shared, now| {
            (0..30).filter(|_| shared.pass(&mut counters, START_US + now).is_some()).count()
        };
        assert_eq!([admits(&few, 0), admits(&many, 1), admits(&few, 2), admits(&many, 3)], [10, 10, 0, 0]);
    }
}

/// Units that were admitted while the store did not answer are charged once, however often the charge is sent, even
/// beyond the limit.
#[test]
fn a_charge_counts_once_and_may_go_below_zero() {
    let mut counters = Counters::start();
    for algorithm in [
        token(10, 10 * SECOND_NS, 10),
        leaky(10, 10 * SECOND_NS, 10, 0),
        fixed(10, 10 * SECOND_NS, model::WindowAlign::First),
        sliding(10, 10 * SECOND_NS, 4),
        log(10, 10 * SECOND_NS),
    ] {
        counters.flush();
        let shown = format!("{algorithm:?}");
        let shared = Shared::one(algorithm);
        let charge = |counters: &mut Counters, cost, sequence| {
            let mut items = shared.items(&[key(1)], cost);
            items.iter_mut().for_each(|item| item.mark = sequence);
            assert!(counters.call(ScriptOp::ChargeDebt, &items, START_US).answers.is_empty());
        };
        let remaining = |counters: &mut Counters, owed| {
            let mut items = shared.items(&[key(1)], 1);
            items.iter_mut().for_each(|item| item.owed = owed);
            counters.call(ScriptOp::Peek, &items, START_US).answers[0].decision.remaining
        };
        shared.pass(&mut counters, START_US).unwrap();
        assert_eq!([remaining(&mut counters, 0), remaining(&mut counters, 4)], [9, 5], "{shown}");
        charge(&mut counters, 4, 7);
        charge(&mut counters, 4, 7);
        charge(&mut counters, 4, 6);
        assert_eq!(remaining(&mut counters, 0), 5, "{shown}");
        charge(&mut counters, 8, 8);
        assert_eq!(remaining(&mut counters, 0), 0, "{shown}");
        let verdict = shared.take(&mut counters, &[key(1)], 1, START_US + 3 * SECOND_US);
        assert!(!verdict.admitted, "{shown}: three more than the limit are used: {verdict:?}");
        let verdict = shared.take(&mut counters, &[key(1)], 1, START_US + 14 * SECOND_US);
        assert!(verdict.admitted, "{shown}: {verdict:?}");
    }
}

#[test]
fn three_limits_on_one_key_are_one_call_and_one_write() {
    let mut counters = Counters::start();
    let shared = Shared::new(vec![
        limit(token(300, 60 * SECOND_NS, 300)),
        limit(token(100, 5 * SECOND_NS, 100)),
        limit(token(3, SECOND_NS, 30)),
    ]);
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut counters.connection).unwrap();
    let items = shared.items(&[key(1)], 1);
    counters.mortal = true;
    counters.raw(ScriptOp::Take, &items, None);
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut counters.connection).unwrap();
    for command in ["evalsha", "time", "get", "set"] {
        assert!(stats.contains(&format!("cmdstat_{command}:calls=1,")), "{command}: {stats}");
    }
    assert_eq!(
        stats.matches("cmdstat_").count() - usize::from(stats.contains("cmdstat_config")),
        4,
        "{stats}"
    );
    let name: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut counters.connection).unwrap();
    assert_eq!(name, [b"sg:{AQEBAQEBAQEBAQEBAQEBAQ}".to_vec()]);
    let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(&name[0]).query(&mut counters.connection).unwrap();
    assert!(bytes <= 210, "{bytes}");
}

#[test]
fn the_store_has_the_clock() {
    let (mut counters, shared) = (Counters::start(), Shared::one(token(1, SECOND_NS, 2)));
    let items = shared.items(&[key(1)], 1);
    let unix =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    let before = unix();
    let bytes = counters.raw(ScriptOp::Take, &items, None);
    let reply = sluicegate_store::ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes).unwrap();
    assert!((before..=unix()).contains(&reply.now_us));
}
