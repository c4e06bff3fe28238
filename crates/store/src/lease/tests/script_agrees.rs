//! The script beside the model of the store: the same calls at the same times have the same answers.

use sluicegate_testkit::Redis;

use super::super::{HomeCall, HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseTerms, PendingRun};
use super::simulation::{Random, Setting};
use super::store_model::StoreModel;
use crate::LuaScript;
use crate::script::rule_shape::RuleShape;
use sluicegate_model::WindowAlign;

/// The time at which a script begins, in microseconds since 1970.
pub(super) const START_US: u64 = 1_700_000_000_000_000;

pub(super) struct Script {
    _redis: Redis,
    connection: redis::Connection,
}

// === impl Script ===

impl Script {
    pub(super) fn start() -> Script {
        let redis = Redis::start();
        let connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let mut script = Script { _redis: redis, connection };
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(LuaScript::lease_script().code);
        load.query::<String>(&mut script.connection).unwrap();
        script
    }

    fn answer_call(
        &mut self,
        terms: &LeaseTerms,
        now: u64,
        node: u64,
        key: &str,
        call: &LeaseCall,
    ) -> LeaseAnswer {
        self.answer(terms, (now, node), key, call, None).0
    }

    /// The answer at a moment, in a region if its part of the call is given.
    pub(super) fn answer(
        &mut self,
        terms: &LeaseTerms,
        (now, node): (u64, u64),
        key: &str,
        call: &LeaseCall,
        region: Option<(HomeTerms, Option<HomeReport>, u64)>,
    ) -> (LeaseAnswer, Option<HomeCall>) {
        let mut eval = redis::cmd("EVALSHA");
        eval.arg(&LuaScript::lease_script().sha).arg(1).arg(key);
        eval.arg(call.encode(terms, node, region)).arg(now);
        LeaseAnswer::decode(&eval.query::<Vec<u8>>(&mut self.connection).unwrap()).unwrap()
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, key: &str) {
        redis::cmd("DEL").arg(key).query::<i64>(&mut self.connection).unwrap();
    }
}

/// A call that a node might make, or a broken one.
fn any_call(random: &mut Random, terms: &LeaseTerms, numbers: &mut u64) -> LeaseCall {
    let units = |random: &mut Random| random.below(terms.leased_max / terms.unit + 2) * terms.unit;
    if random.below(8) > 0 {
        *numbers += 1;
    }
    let held = units(random);
    let run =
        |random: &mut Random| PendingRun { count: random.below(30) as u32, cost: 1 + random.below(3) as u32 };
    let runs = random.below(3);
    LeaseCall {
        number: *numbers,
        applied: *numbers - random.below(3).min(*numbers),
        held,
        keep: if random.below(2) == 0 { held } else { random.below(held / terms.unit + 1) * terms.unit },
        want: units(random),
        owed: if random.below(6) == 0 { units(random) } else { 0 },
        owed_since: *numbers - random.below(2).min(*numbers),
        refund: if random.below(4) == 0 { units(random) } else { 0 },
        refund_age: random.below(terms.term),
        demand: random.below(2) * random.below(3_000_000),
        stopped: random.below(3) == 0,
        pending: (0..runs).map(|_| run(random)).collect(),
    }
}

/// Those of a bucket, or of windows.
fn any_terms(random: &mut Random) -> LeaseTerms {
    let max = [300, 1_000, 20_000][random.below(3) as usize];
    let align = [WindowAlign::First, WindowAlign::Clock][random.below(2) as usize];
    let (period, buckets) = (1_000_000 * (1 + random.below(3)), 1 + random.below(6) as u8);
    let shape = match random.below(4) {
        0 => RuleShape::FixedWindow { max, period, align },
        1 => RuleShape::SlidingWindow { max, period, buckets },
        _ => return Setting::new(0, 3, max, max).terms(),
    };
    LeaseTerms::new(shape).unwrap()
}

#[test]
fn the_script_answers_as_the_model_does() {
    let mut script = Script::start();
    for seed in 0..120 {
        let mut random = Random(seed);
        let terms = any_terms(&mut random);
        let (mut model, mut now) = (StoreModel::full(&terms, START_US), START_US);
        let mut numbers = [0; 3];
        for step in 0..80 {
            now += match random.below(8) {
                0 => terms.hold + terms.guard + random.below(terms.term),
                1 => 700_000_000,
                2 => 0,
                _ => random.below(terms.term),
            };
            let node = random.below(3);
            let call = any_call(&mut random, &terms, &mut numbers[node as usize]);
            let told = script.answer_call(&terms, now, node, &format!("key-{seed}"), &call);
            let expected = model.answer_call(&terms, now, node, &call);
            assert_eq!(told, expected, "seed {seed}, step {step}: {terms:?} {call:?}");
        }
    }
}

fn asking(number: u64, count: u32) -> LeaseCall {
    let pending = vec![PendingRun { count, cost: 1 }];
    LeaseCall { number, stopped: true, pending, ..LeaseCall::default() }
}

/// A clock that is set back stops refill for no longer than a bucket takes, and foreign state counts as none.
#[test]
fn odd_clocks_and_foreign_state_do_no_harm() {
    let (mut script, terms) = (Script::start(), Setting::new(1, 1, 100, 100).terms());
    let mut ask =
        |now: u64, number: u64| script.answer_call(&terms, now, 1, "key", &asking(number, 1_000)).granted;
    assert_eq!([ask(START_US, 1), ask(START_US, 2)], [100, 0]);
    let back = START_US - 1_000_000_000;
    assert_eq!([ask(back, 3), ask(back + 500_000, 4)], [0, 50]);
    for state in
        [vec![0xff; 48], [f64::NAN; 6].iter().flat_map(|one| one.to_le_bytes()).collect(), vec![1, 2]]
    {
        let mut set = redis::cmd("HSET");
        set.arg("key").arg("1").arg(state).arg("stranger").arg("x");
        set.query::<i64>(&mut script.connection).unwrap();
        let next = script.answer_call(&terms, back + 600_000, 1, "key", &asking(5, 1_000));
        assert_eq!((next.granted, next.left), (100, 0));
    }
    for (number, record) in (6..).zip([vec![0xff_u8; 20], vec![1], vec![0; 26]]) {
        let mut set = redis::cmd("HSET");
        set.arg("key")
            .arg(1_u64.to_le_bytes().as_slice())
            .arg(record)
            .query::<i64>(&mut script.connection)
            .unwrap();
        let next = script.answer_call(&terms, back + 600_000, 1, "key", &asking(number, 1_000));
        assert_eq!((next.granted, next.left), (0, 0));
    }
    redis::cmd("DEL").arg("key").query::<i64>(&mut script.connection).unwrap();
    redis::cmd("SET").arg("key").arg("x").query::<String>(&mut script.connection).unwrap();
    assert_eq!(script.answer_call(&terms, back, 1, "key", &asking(9, 7)).granted, 7);
}

/// What is owed is charged once, however often it is sent; a debt is paid before anybody gets more.
#[test]
fn what_is_owed_is_charged_once() {
    let (mut script, terms) = (Script::start(), Setting::new(1, 1, 100, 100).terms());
    let owed = 150 * terms.unit;
    let mut ask = |now: u64, number: u64, owed_since: u64| {
        let call = LeaseCall { owed, owed_since, ..asking(number, 1) };
        let answer = script.answer_call(&terms, now, 1, "key", &call);
        (answer.granted, answer.wait)
    };
    // The wait is that for all of the debt and one unit more.
    assert_eq!(ask(START_US, 1, 1), (0, 510_000));
    assert_eq!(ask(START_US + 400_000, 2, 1), (0, 110_000));
    // After 51 units have come.
    assert_eq!(ask(START_US + 510_000, 3, 1), (1, 0));
    assert_eq!(ask(START_US + 510_000, 4, 1), (0, 0));
    // A call of another node does not have the numbers forgotten before.
    script.answer_call(&terms, START_US + 510_000, 2, "key", &asking(5, 0));
    let left_ms = redis::cmd("PTTL").arg("key").query::<u64>(&mut script.connection).unwrap();
    assert!(left_ms > 59_000, "{left_ms} ms");
}

/// Fifty gateways, whether they hold units or a part of the rate, and a region with as many, take about 2 kB.
#[test]
fn a_key_of_many_gateways_is_small() {
    let mut script = Script::start();
    let bucket = Setting::new(0, 50, 20_000, 20_000).terms();
    let sliding = RuleShape::SlidingWindow { max: 20_000, period: 10_000_000, buckets: 10 };
    let sliding = LeaseTerms::new(sliding).unwrap();
    let home = HomeTerms::new(&bucket, 400_000);
    for (key, terms, most, count, is_region) in [
        ("units", bucket, 1_900, 1, false),
        ("rates", bucket, 2_200, 20_000, false),
        ("window", sliding, 1_900, 1, false),
        ("region", bucket, 2_200, 1, true),
    ] {
        for (number, node) in (0..3 * 50).map(|call| (1 + call / 50, call % 50)) {
            let call = LeaseCall {
                applied: number - 1,
                want: 100 * terms.unit,
                demand: 400_000,
                stopped: number == 1,
                ..asking(number, count)
            };
            let region = is_region.then_some((home, None, 7));
            script.answer(&terms, (START_US + number * 1_000 + node, node), key, &call, region);
        }
        let mut memory = redis::cmd("MEMORY");
        let bytes = memory.arg("USAGE").arg(key).query::<u64>(&mut script.connection).unwrap();
        assert!(bytes < most, "{key}: {bytes} bytes");
    }
}
