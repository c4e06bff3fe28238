//! The script of shared bans, with the local judge as its model, and its invariants whatever the server does.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluicegate_admission::ban::{BanStart, Bans, StrikeOutcome};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_store::script::bans::{
    self, BANS_GROUP, Ban, BanCursor, BanRules, StrikeAnswer, StrikeReport,
};

use crate::bans::support::*;

/// A client and a number of strikes.
type Step = (u64, Vec<(u64, u32)>);

fn rules() -> impl Strategy<Value = BanRules> {
    // The server forgets by its own clock, so no period is shorter than a trace takes.
    (1..8_u32, 60..300_u64, 1..600_u64, 1..20_u64).prop_map(|(after, period, first, times)| BanRules {
        after,
        period_us: period * SECOND_US,
        first_us: first * SECOND_US,
        longest_us: first * SECOND_US * times,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        4 => 0..30 * SECOND_US,
        3 => (0..20_u64).prop_map(|n| n * 15 * SECOND_US),
        1 => 0..HOUR_US,
        1 => Just(0),
    ];
    let clients = proptest::collection::btree_map(0..4_u64, 1..4_u32, 1..4);
    let step = (gap, clients.prop_map(|clients| clients.into_iter().collect()));
    proptest::collection::vec(step, 1..60)
}

#[test]
fn bans_start_and_last_as_the_local_judge_says() {
    let (judge, traces) = (RefCell::new(Judge::start()), Cell::new(0));
    let config = Config { failure_persistence: None, max_shrink_iters: 500, ..Config::with_cases(300) };
    let outcome = TestRunner::new(config).run(&(rules(), steps()), |(rules, steps)| {
        let mut judge = judge.borrow_mut();
        judge.prefix = format!("trace{}", traces.replace(traces.get() + 1));
        judge.rules = rules;
        let (local, mut at) = (local(&rules), 0);
        for (gap, clients) in steps {
            at += gap;
            let offences: Vec<_> = clients.iter().map(|(id, strikes)| offence(*id, *strikes)).collect();
            let judgements = judge.ask(&offences, BanCursor::default(), Some(at)).answers;
            for ((id, strikes), judgement) in clients.into_iter().zip(judgements) {
                prop_assert_eq!(
                    comparable(judgement),
                    model(&local, id, strikes, at),
                    "client {} at {}",
                    id,
                    at
                );
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The local judge's answer to so many strikes of one moment. For a ban that was active before, only the time left is
/// compared.
fn model(local: &Bans, id: u64, strikes: u32, at_us: u64) -> StrikeAnswer {
    let (key, now) = (CounterKey::new(u128::from(id), 0), Now((START_US + at_us) * 1000));
    if let Some(left) = local.ban_left_ns(&key, now) {
        return StrikeAnswer::Banned(Ban { left_us: left / 1000, lasts_us: 0, repeats: 0 });
    }
    for _ in 0..strikes {
        match local.count_strike(&key, now) {
            StrikeOutcome::Counted => {}
            StrikeOutcome::Started(BanStart { lasts_ns, repeats, .. }) => {
                let lasts_us = lasts_ns / 1000;
                return StrikeAnswer::Started(Ban { left_us: lasts_us, lasts_us, repeats });
            }
            other => panic!("{other:?}"),
        }
    }
    StrikeAnswer::NotBanned
}

fn comparable(judgement: StrikeAnswer) -> StrikeAnswer {
    match judgement {
        StrikeAnswer::Banned(ban) => StrikeAnswer::Banned(Ban { lasts_us: 0, repeats: 0, ..ban }),
        other => other,
    }
}

#[test]
fn strikes_count_from_when_they_were_noted() {
    let mut judge = Judge::start();
    let at = |age_us: u64| [StrikeReport { age_us, ..offence(1, 1) }];
    let mut ask = |age: u64, now: u64| judge.ask(&at(age), BanCursor::default(), Some(now)).answers[0];
    assert_eq!(ask(30 * SECOND_US, HOUR_US), StrikeAnswer::NotBanned);
    assert_eq!(ask(0, HOUR_US + 10 * SECOND_US), StrikeAnswer::NotBanned);
    // The first strike is a whole period old.
    assert_eq!(ask(0, HOUR_US + 30 * SECOND_US), StrikeAnswer::NotBanned);
    assert!(matches!(ask(5 * SECOND_US, HOUR_US + 74 * SECOND_US), StrikeAnswer::Started(_)));
    // Counted before the ban had ended, reported afterwards.
    let end = HOUR_US + 74 * SECOND_US + 10 * MINUTE_US;
    assert_eq!(
        (ask(2, end + 1), ask(0, end + 1), ask(0, end + 1)),
        (StrikeAnswer::NotBanned, StrikeAnswer::NotBanned, StrikeAnswer::NotBanned)
    );
    assert!(matches!(ask(0, end + 1), StrikeAnswer::Started(_)));
}

#[test]
fn many_strikes_are_remembered_one_by_one() {
    let mut judge = Judge::start();
    judge.rules.after = 10_000;
    assert_eq!(judge.strike(1, 5_000, 0), StrikeAnswer::NotBanned);
    assert_eq!(judge.strike(1, 4_999, 30 * SECOND_US), StrikeAnswer::NotBanned);
    assert_eq!(judge.strike(1, 5_000, MINUTE_US), StrikeAnswer::NotBanned);
    assert_eq!(judge.command::<u64>(&["LLEN", &(judge.name(1) + ":L")]), 9_999);
    assert!(matches!(judge.strike(1, 1, 80 * SECOND_US), StrikeAnswer::Started(_)));
    assert!(matches!(judge.strike(2, u32::MAX, 80 * SECOND_US), StrikeAnswer::Started(_)));
}

#[test]
fn nothing_stays_for_ever() {
    let mut judge = Judge::start();
    let offences = [offence(1, 1), offence(2, 3), offence(3, 2)];
    judge.ask(&offences, BanCursor::default(), None);
    let names: Vec<String> = judge.command(&["KEYS", "*"]);
    assert_eq!(names.len(), 4 + 3, "{names:?}");
    for name in names {
        let left_ms: i64 = judge.command(&["PTTL", &name]);
        let most = match name.as_str() {
            "sg:{bans}:clock" | "sg:{bans}:store" => 121 * 60_000,
            "sg:{bans}" | "sg:{bans}:ends" => 60 * 60_000,
            strikes if strikes.ends_with(":L") => 60_000,
            _ => 70 * 60_000,
        };
        assert!((most - 60_000..=most + 1).contains(&left_ms), "{name}: {left_ms} ms");
    }
    // A poll of a server without any state leaves only the time.
    judge.command::<()>(&["FLUSHALL"]);
    judge.ask(&[], BanCursor::default(), None);
    let mut names: Vec<String> = judge.command(&["KEYS", "*"]);
    names.sort_unstable();
    assert_eq!(names, ["sg:{bans}:clock", "sg:{bans}:store"]);
    assert!(names.iter().all(|name| judge.command::<i64>(&["PTTL", name]) > 0));
}

#[test]
fn a_clock_set_back_neither_lengthens_a_ban_nor_stops_the_time() {
    let mut judge = Judge::start();
    let begin = 2 * HOUR_US;
    assert_eq!(judge.ban(1, begin).left_us, 10 * MINUTE_US);
    judge.strike(2, 2, begin);
    judge.ask(&[], BanCursor::default(), Some(begin + 4 * MINUTE_US));
    // An hour back, then forward from there.
    let back = |minutes: u64| begin + (4 + minutes) * MINUTE_US - HOUR_US;
    assert_eq!(judge.announced(back(0))[0].1.left_us, 6 * MINUTE_US);
    assert_eq!(judge.announced(back(1))[0].1.left_us, 5 * MINUTE_US);
    assert!(matches!(judge.strike(1, 1, back(1)), StrikeAnswer::Banned(ban) if ban.left_us == 5 * MINUTE_US));
    assert_eq!(judge.strike(2, 2, back(1)), StrikeAnswer::NotBanned, "the first two are old");
    assert_eq!(judge.announced(back(6)), []);
    assert_eq!(judge.ban(1, back(6)).repeats, 1, "it ended just now");
    // And back once more.
    assert_eq!(judge.announced(back(7) - HOUR_US)[0].1.left_us, 20 * MINUTE_US);
    assert_eq!(judge.announced(back(8) - HOUR_US)[0].1.left_us, 19 * MINUTE_US);
}

#[test]
fn a_clock_set_forward_and_back_again_freezes_no_client() {
    let mut judge = Judge::start();
    judge.ban(1, 0);
    assert_eq!(judge.announced(HOUR_US), []);
    assert!(matches!(judge.strike(1, 3, HOUR_US), StrikeAnswer::Started(ban) if ban.repeats == 1));
    assert_eq!(judge.announced(MINUTE_US)[0].1.left_us, 20 * MINUTE_US);
    assert_eq!(judge.announced(11 * MINUTE_US)[0].1.left_us, 10 * MINUTE_US);
    assert_eq!(judge.announced(21 * MINUTE_US), []);
}

#[test]
fn values_of_others_count_as_absent() {
    let mut judge = Judge::start();
    let (nan, late) = ([0xff; 24], f64::to_le_bytes(1e300));
    let strings: [&[u8]; 6] = [b"", b"x", &nan, &nan[..20], &late.repeat(3), &late.repeat(3)[..20]];
    let names = [
        "sg:{bans}".into(),
        "sg:{bans}:ends".into(),
        "sg:{bans}:clock".into(),
        "sg:{bans}:store".into(),
        judge.name(1),
        judge.name(1) + ":L",
    ];
    for name in &names {
        for kind in ["SADD", "RPUSH", "HSET", "ZADD", "SET"] {
            for value in strings {
                judge.command::<()>(&["FLUSHALL"]);
                judge.ban(2, 0);
                let mut foreign = redis::cmd(kind);
                foreign.arg(name);
                if kind == "ZADD" {
                    foreign.arg("1e300");
                } else if kind == "HSET" {
                    foreign.arg("x");
                }
                judge.command::<()>(&["DEL", name]);
                foreign.arg(value).exec(&mut judge.connection).unwrap();
                let what = format!("{kind} {name} {value:?}");
                assert_eq!(judge.strike(1, 2, 1), StrikeAnswer::NotBanned, "{what}");
                assert!(
                    matches!(judge.strike(1, 1, 2), StrikeAnswer::Started(ban) if ban.repeats == 0),
                    "{what}"
                );
                assert!(matches!(judge.strike(1, 1, 3), StrikeAnswer::Banned(_)), "{what}");
                assert!(judge.announced(4).iter().any(|(id, _)| *id == 1), "{what}");
                assert!(judge.announced(11 * MINUTE_US).is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn without_memory_strikes_are_rejected_and_bans_are_announced() {
    let mut judge = Judge::start();
    judge.ban(1, 0);
    judge.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let packed = bans::pack_call("sg", &judge.rules, &[offence(2, 1)], &[], BanCursor::default());
    let error = evalsha(&mut judge.connection, &packed, Some(START_US + 2 * SECOND_US)).unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    assert_eq!(judge.announced(3 * SECOND_US).len(), 1);
    judge.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(
        judge.strike(2, 2, 4 * SECOND_US),
        StrikeAnswer::NotBanned,
        "the rejected call counted nothing"
    );
}

#[test]
fn all_keys_are_of_the_slot_of_the_call() {
    let mut judge = Judge::start_with(&["--cluster-enabled", "yes"]);
    for name in ["sg:{bans}".to_owned(), judge.name(1)] {
        assert_eq!(judge.command::<u16>(&["CLUSTER", "KEYSLOT", &name]), BANS_GROUP.0);
    }
}
