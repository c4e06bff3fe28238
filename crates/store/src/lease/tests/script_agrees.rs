//! The script beside the model of the store: the same calls at the same times have the same answers.

use sluicegate_testkit::Redis;

use super::super::{LeaseAnswer, LeaseCall, LeaseTerms, PendingRun};
use super::simulation::{Random, Setting};
use super::store_model::StoreModel;
use crate::LuaScript;

const START_US: u64 = 1_700_000_000_000_000;

struct Script {
    _redis: Redis,
    connection: redis::Connection,
}

// === impl Script ===

impl Script {
    fn start() -> Script {
        let redis = Redis::start();
        let connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        Script { _redis: redis, connection }
    }

    fn answer_call(
        &mut self,
        terms: &LeaseTerms,
        now: u64,
        node: u64,
        key: &str,
        call: &LeaseCall,
    ) -> LeaseAnswer {
        let mut eval = redis::cmd("EVAL");
        eval.arg(LuaScript::lease_script().code).arg(1).arg(key).arg(call.encode(terms, node)).arg(now);
        LeaseAnswer::decode(&eval.query::<Vec<u8>>(&mut self.connection).unwrap()).unwrap()
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
        owed: if random.below(6) == 0 { units(random) as i64 - units(random) as i64 } else { 0 },
        owed_since: *numbers - random.below(2).min(*numbers),
        demand: random.below(2) * random.below(3_000_000),
        stopped: random.below(3) == 0,
        pending: (0..runs).map(|_| run(random)).collect(),
    }
}

#[test]
fn the_script_answers_as_the_model_does() {
    let mut script = Script::start();
    for seed in 0..60 {
        let mut random = Random(seed);
        let rate = [300, 1_000, 20_000][random.below(3) as usize];
        let terms = Setting::new(seed, 3, rate, rate).terms();
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
            assert_eq!(told, expected, "seed {seed}, step {step}: {call:?}");
        }
    }
}
