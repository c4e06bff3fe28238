//! Turns that the script hands out: those of the local engine, for the same requests.

use std::sync::Arc;

use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{self as model, Algorithm, KeyPart, LimitId, TokenBucketRate, WindowAlign};
use sluicegate_store::{CallItem, ScriptOp, ScriptReply};

use crate::crowd::Crowd;
use crate::limits::{self, fixed, leaky, log, rate, sliding, token};
use crate::script::support::*;
use crate::support::dice::Dice;

const SECOND: u64 = limits::SECOND;
const AT_MOST_US: u64 = 10 * SECOND_US;

/// Limits of which the last one tells turns; none counts callers, of whom each would hold one turn here.
fn shared(algorithms: Vec<Algorithm>) -> Shared {
    let config = |algorithm| model::LimitConfig { key: vec![KeyPart::Global], ..limits::config(algorithm) };
    Shared::new(algorithms.into_iter().map(config).collect())
}

fn items<'a>(shared: &'a Shared, keys: &[u8], cost: u64) -> Vec<CallItem<'a>> {
    let keys: Vec<_> = keys.iter().map(|id| key(*id)).collect();
    let mut items = shared.items(&keys, cost);
    let last = shared.configs.len() - 1;
    let own = items.iter_mut().filter(|item| usize::from(item.limit_index) == last);
    own.for_each(|item| item.turns_us = AT_MOST_US);
    items
}

/// What a rejected request is told: the turn, or else the longest wait; in microseconds.
fn told(reply: &ScriptReply) -> Result<(), (u64, bool)> {
    let exact = || reply.answers.iter().map(|answer| answer.decision.retry_after_ns).max().unwrap_or(0);
    let turn = reply.answers.iter().find_map(|answer| answer.turn_ns);
    if reply.admitted { Ok(()) } else { Err((turn.unwrap_or_else(exact) / 1_000, turn.is_some())) }
}

struct Twin {
    chain: Chain,
    waiting: Arc<WaitingCap>,
}

impl Twin {
    fn new(shared: &Shared) -> Twin {
        let limit = |(id, config)| Arc::new(Limit::new(LimitId(id), config, 10_000));
        let limits = shared.configs.iter().enumerate().map(limit).collect();
        let last = shared.configs.len() - 1;
        let turns = |limit: &Limit| if limit.id.0 == last { AT_MOST_US * 1_000 } else { 0 };
        Twin { chain: Chain::new(limits).with_turns(turns), waiting: Arc::new(WaitingCap::new(100_000)) }
    }

    fn told(&self, keys: &[u8], cost: u64, now_us: u64) -> Result<(), (u64, bool)> {
        let demand = |limit: &Limit| LimitDemand::Units(limits::units(keys[limit.id.0].into(), cost));
        let (now, mut decisions) = (Now(now_us * 1_000), Decisions::new());
        match self.chain.judge::<Charge>(now, &self.waiting, true, demand, &mut decisions) {
            ChainVerdict::Admit(mut permit) => {
                permit.keep_charges();
                Ok(())
            }
            ChainVerdict::Wait(queued) => {
                std::mem::forget(queued);
                Ok(())
            }
            ChainVerdict::Reject(rejection) => {
                Err((rejection.retry_after_ns.unwrap().div_ceil(1_000), rejection.is_turn))
            }
            ChainVerdict::AskStore(_) => panic!("a shared limit"),
        }
    }
}

/// Algorithms with whole microseconds for each unit.
fn algorithms() -> Vec<Algorithm> {
    let two = Algorithm::TokenBucket {
        rates: vec![
            TokenBucketRate { rate: rate(5, SECOND), burst: 6 },
            TokenBucketRate { rate: rate(10, 4 * SECOND), burst: 20 },
        ],
    };
    vec![
        two,
        token(5, SECOND, 10),
        leaky(5, SECOND, 2, 2),
        fixed(5, 2 * SECOND, WindowAlign::First),
        fixed(5, 2 * SECOND, WindowAlign::Clock),
        sliding(5, 2 * SECOND, 10),
        log(5, 2 * SECOND),
    ]
}

#[test]
fn turns_are_those_of_the_local_engine() {
    let mut counters = Counters::start();
    let mut turns = [0; 7];
    for round in 0..30 {
        for (kind, algorithm) in algorithms().into_iter().enumerate() {
            let mut dice = Dice(round * 7 + kind as u64);
            let front = token(4, SECOND, 4);
            let shared = shared(vec![front, algorithm]);
            let twin = Twin::new(&shared);
            counters.flush();
            let mut now = START_US;
            for _ in 0..40 {
                now += dice.below(200) as u64 * MS_US;
                let keys = [dice.pick(&[1, 2, 3, 4]), dice.pick(&[10, 11])];
                let cost = dice.pick(&[1, 1, 2]);
                let looked = counters.call(ScriptOp::Peek, &items(&shared, &keys, cost), now);
                let reply = counters.call(ScriptOp::Take, &items(&shared, &keys, cost), now);
                let (told, expected) = (told(&reply), twin.told(&keys, cost, now));
                // Times of the store are rounded up to whole microseconds.
                let is_same = match (&told, &expected) {
                    (Err((one, turn)), Err((other, is_turn))) => one.abs_diff(*other) <= 1 && turn == is_turn,
                    _ => told == expected,
                };
                assert!(is_same, "{told:?} {expected:?} at {} of {shared:?}", now - START_US);
                assert_eq!(
                    self::told(&looked).map_err(|(us, _)| us),
                    told.map_err(|(us, _)| us),
                    "a look sees it"
                );
                turns[kind] += usize::from(matches!(told, Err((_, true))));
            }
        }
    }
    assert!(turns.iter().all(|turns| *turns > 30), "{turns:?}");
}

#[test]
fn foreign_and_impossible_promises_are_none() {
    let mut counters = Counters::start();
    let shared = shared(vec![token(10, SECOND, 1)]);
    let ask =
        |counters: &mut Counters, now| told(&counters.call(ScriptOp::Take, &items(&shared, &[1], 1), now));
    assert_eq!(ask(&mut counters, START_US), Ok(()));
    assert_eq!(ask(&mut counters, START_US), Err((100_000, true)));
    assert_eq!(ask(&mut counters, START_US), Err((200_000, true)));
    let is_promise = |name: &&Vec<u8>| name.windows(3).any(|part| part == b":P:");
    let name =
        counters.dump().into_iter().map(|(name, _)| name).find(|name| is_promise(&name)).expect("a row");
    for foreign in [&b"text"[..], &f64::NAN.to_le_bytes(), &(-1f64).to_le_bytes()] {
        redis::cmd("SET").arg(&name).arg(foreign).exec(&mut counters.connection).unwrap();
        assert_eq!(ask(&mut counters, START_US), Err((100_000, true)), "{foreign:?}");
    }
    // The clock was set back: the exact time is told until then.
    redis::cmd("SET").arg(&name).arg(&(2e15f64).to_le_bytes()).exec(&mut counters.connection).unwrap();
    assert_eq!(ask(&mut counters, START_US), Err((100_000, false)));
    redis::cmd("DEL").arg(&name).exec(&mut counters.connection).unwrap();
    redis::cmd("LPUSH").arg(&name).arg("x").exec(&mut counters.connection).unwrap();
    assert_eq!(ask(&mut counters, START_US), Err((100_000, true)), "a list is replaced");
}

#[test]
fn a_crowd_that_obeys_is_refused_once() {
    let mut counters = Counters::start();
    let shared = shared(vec![token(100, SECOND, 100)]);
    let crowd = Crowd { clients: 1_000, whole_seconds: true, hasty_gap: None };
    let mut run = |at_most_us| {
        counters.flush();
        crowd.run(|now, _| {
            let mut items = items(&shared, &[1], 1);
            items[0].turns_us = at_most_us;
            let reply = counters.call(ScriptOp::Take, &items, START_US + now / 1_000);
            told(&reply).map_err(|(us, _)| us * 1_000)
        })
    };
    let (turns, exact) = (run(AT_MOST_US), run(0));
    assert!(turns.refusals_per_client <= 1.05 && turns.last_ns <= 10 * SECOND, "{turns:?}");
    assert!(exact.refusals_per_client >= 3.0, "{exact:?}");
}
