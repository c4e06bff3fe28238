//! The script on a server of the test's own, driven call by call at times that the test chooses.

use std::sync::Arc;

use sluicegate_admission::chain::{
    Chain, ChainVerdict, Charge, Decisions, LimitDemand, RateDecision, WaitingCap,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit, LimitOutcome};
use sluicegate_model::{self as model, LimitId};
use sluicegate_store::{
    CallItem, LuaScript, PackedCall, RateAnswer, RateRule, ScriptOp, ScriptReply, SettledKey, SharedKey,
};

use crate::limits;
use crate::support::Redis;

/// The start of the tests' time, microseconds since 1970.
pub const START_US: u64 = 1_700_000_000_000_000;
pub const MS_US: u64 = 1_000;
pub const SECOND_US: u64 = 1_000_000;
pub const HOUR_US: u64 = 3_600 * SECOND_US;

/// A server with the script.
pub struct Counters {
    _redis: Redis,
    pub connection: redis::Connection,
    /// The gateway that calls.
    pub node: u64,
    /// Keys expire when the script says, by the server's own clock, which is independent of the test's.
    pub mortal: bool,
}

/// Limits as the script judges them.
#[derive(Debug)]
pub struct Shared {
    pub configs: Vec<model::LimitConfig>,
    pub rules: Vec<Vec<RateRule>>,
}

/// The same limits as the local engine judges them.
pub struct Local {
    chain: Chain,
    waiting: Arc<WaitingCap>,
}

/// The answer of either: whether the request may pass, and the decision of each rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptVerdict {
    pub admitted: bool,
    /// For a rejection: the longest retry, microseconds.
    pub retry_us: u64,
    pub decisions: Vec<Decision>,
}

pub fn key(id: u8) -> SharedKey {
    SharedKey([id; 16])
}

/// One call on a connection to a server with the script.
#[track_caller]
pub fn ask(
    connection: &mut redis::Connection,
    op: ScriptOp,
    items: &[CallItem<'_>],
    now_us: Option<u64>,
) -> Vec<u8> {
    let packed = PackedCall::new(op, "sg", 1, now_us.unwrap_or(0) / 1_000_000, items);
    let mut command = redis::cmd("EVALSHA");
    command.arg(&LuaScript::counter_script().sha).arg(packed.keys.len());
    packed.keys.iter().for_each(|key| {
        command.arg(key);
    });
    command.arg(&packed.body);
    if let Some(now_us) = now_us {
        command.arg(now_us);
    }
    command.query(connection).unwrap()
}

// === impl Counters ===

impl Counters {
    pub fn start() -> Counters {
        let redis = Redis::start();
        let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
        let sha: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(LuaScript::counter_script().code)
            .query(&mut connection)
            .unwrap();
        assert_eq!(sha, LuaScript::counter_script().sha);
        Counters { _redis: redis, connection, node: 1, mortal: false }
    }

    /// The script's answer to `items` by its own clock, or at `now_us`.
    #[track_caller]
    pub fn raw(&mut self, op: ScriptOp, items: &[CallItem<'_>], now_us: Option<u64>) -> Vec<u8> {
        self.send(&PackedCall::new(op, "sg", self.node, now_us.unwrap_or(0) / 1_000_000, items), now_us)
    }

    #[track_caller]
    fn send(&mut self, packed: &PackedCall, now_us: Option<u64>) -> Vec<u8> {
        self.send_all(std::slice::from_ref(packed), now_us)
    }

    /// The script's answer to several calls that are sent as one.
    #[track_caller]
    pub fn send_all<T: redis::FromRedisValue>(&mut self, calls: &[PackedCall], now_us: Option<u64>) -> T {
        let keys = || calls.iter().flat_map(|call| &call.keys);
        let mut pipe = redis::pipe();
        pipe.cmd("EVALSHA").arg(&LuaScript::counter_script().sha).arg(keys().count());
        for part in keys().chain(calls.iter().map(|call| &call.body)) {
            pipe.arg(part);
        }
        if let Some(now_us) = now_us {
            pipe.arg(now_us);
        }
        if !self.mortal {
            keys().for_each(|key| {
                pipe.cmd("PERSIST").arg(key).ignore();
            });
        }
        let (answer,): (T,) = pipe.query(&mut self.connection).unwrap();
        answer
    }

    /// The script's answer to settlements at `now_us`.
    #[track_caller]
    pub fn settle(&mut self, keys: &[SettledKey<'_>], now_us: u64) -> Vec<u8> {
        self.send(&PackedCall::settle("sg", self.node, now_us / 1_000_000, keys), Some(now_us))
    }

    #[track_caller]
    pub fn call(&mut self, op: ScriptOp, items: &[CallItem<'_>], now_us: u64) -> ScriptReply {
        let bytes = self.raw(op, items, Some(now_us));
        let reply =
            ScriptReply::parse_reply(op, items, &bytes).unwrap_or_else(|| panic!("garbled: {bytes:?}"));
        assert_eq!(reply.now_us, now_us);
        reply
    }

    /// Everything the server holds, by name.
    pub fn dump(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.sort();
        let mut dump = |key: &Vec<u8>| redis::cmd("DUMP").arg(key).query(&mut self.connection).unwrap();
        keys.iter().map(|key| (key.clone(), dump(key))).collect()
    }

    /// Milliseconds that every key has left to live.
    pub fn ttls(&mut self) -> Vec<i64> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        let mut ttl = |key| redis::cmd("PTTL").arg(key).query::<i64>(&mut self.connection).unwrap();
        // A key that expires right now is gone.
        keys.iter().map(&mut ttl).filter(|ttl| *ttl != -2).collect()
    }

    pub fn flush(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }
}

// === impl Shared ===

impl Shared {
    /// Limits with distinct names, unless they have some.
    pub fn new(configs: Vec<model::LimitConfig>) -> Shared {
        let mut configs = configs;
        for (limit_index, config) in configs.iter_mut().enumerate() {
            model::check_redis_range(config).unwrap();
            if config.name == "test" {
                config.name = format!("test {limit_index}");
            }
        }
        let rules = configs.iter().map(RateRule::rules_of).collect();
        Shared { configs, rules }
    }

    pub fn one(algorithm: model::Algorithm) -> Shared {
        Shared::new(vec![limits::config(algorithm)])
    }

    /// One request of `cost` to all limits; `keys` in their order, the last one for all that follow.
    pub fn items(&self, keys: &[SharedKey], cost: u64) -> Vec<CallItem<'_>> {
        let mut items = Vec::new();
        for (limit_index, (config, rules)) in self.configs.iter().zip(&self.rules).enumerate() {
            let key = keys[limit_index.min(keys.len() - 1)];
            let rates = config.algorithm.rate_count();
            for rule in &rules[..rates] {
                let limit_index = limit_index as u16;
                let item = CallItem::new(rule, key, cost);
                items.push(CallItem { limit_index, dry_run: config.dry_run, ..item });
            }
        }
        items
    }

    #[track_caller]
    pub fn take(&self, counters: &mut Counters, keys: &[SharedKey], cost: u64, now_us: u64) -> ScriptVerdict {
        let items = self.items(keys, cost);
        let reply = counters.call(ScriptOp::Take, &items, now_us);
        let mut verdict = verdict_of(&items, &reply);
        let undone = may_undo(verdict.admitted, &verdict.decisions);
        for (item, decision) in items.iter().zip(&mut verdict.decisions) {
            if undone || is_log(&self.configs[usize::from(item.limit_index)]) {
                decision.full_ns = 0;
            }
        }
        verdict
    }

    /// One unit of key 1: its first answer, if it was accepted.
    #[track_caller]
    pub fn pass(&self, counters: &mut Counters, now_us: u64) -> Option<RateAnswer> {
        let items = self.items(&[key(1)], 1);
        let reply = counters.call(ScriptOp::Take, &items, now_us);
        reply.admitted.then(|| reply.answers[0])
    }
}

/// Charges that were undone, also those of a dry run, are not known exactly by the local engine.
fn may_undo(admitted: bool, decisions: &[Decision]) -> bool {
    !admitted || decisions.iter().any(|decision| decision.outcome == LimitOutcome::Reject)
}

/// The store does not tell when the newest unit of a log leaves.
fn is_log(config: &model::LimitConfig) -> bool {
    matches!(config.algorithm, model::Algorithm::SlidingLog { .. })
}

pub fn verdict_of(items: &[CallItem<'_>], reply: &ScriptReply) -> ScriptVerdict {
    let decisions: Vec<Decision> = reply.answers.iter().map(|answer| answer.decision).collect();
    let rejects = |(item, decision): (&CallItem<'_>, &Decision)| {
        (!item.dry_run && decision.outcome == LimitOutcome::Reject).then_some(decision.retry_after_ns / 1_000)
    };
    let retry_us = items.iter().zip(&decisions).filter_map(rejects).max().unwrap_or(0);
    ScriptVerdict { admitted: reply.admitted, retry_us, decisions }
}

// === impl Local ===

impl Local {
    pub fn new(configs: &[model::LimitConfig]) -> Local {
        let limits = configs
            .iter()
            .enumerate()
            .map(|(limit_index, config)| Arc::new(Limit::new(LimitId(limit_index), config, 1000)));
        Local { chain: Chain::new(limits.collect()), waiting: Arc::new(WaitingCap::new(100_000)) }
    }

    /// The same request as [`Shared::take`], in whole microseconds.
    pub fn take(&self, keys: &[SharedKey], cost: u64, now_us: u64) -> ScriptVerdict {
        let demand_of = |limit: &Limit| {
            let key = keys[limit.id.0.min(keys.len() - 1)];
            LimitDemand::Units(limits::units(u128::from_le_bytes(key.0), cost))
        };
        let (now, mut found) = (Now(now_us * 1_000), Decisions::new());
        let verdict = self.chain.judge::<Charge>(now, &self.waiting, true, demand_of, &mut found);
        let up = |ns: u64| ns.div_ceil(1_000) * 1_000;
        let full_ns = |judged: &RateDecision| {
            let config = &self.chain.limits()[usize::from(judged.limit_index)].config;
            if is_log(config) { 0 } else { up(judged.decision.full_ns) }
        };
        let decisions = found.iter().map(|judged| Decision {
            full_ns: full_ns(judged),
            reset_ns: up(judged.decision.reset_ns),
            retry_after_ns: up(judged.decision.retry_after_ns),
            wait_ns: up(judged.decision.wait_ns),
            ..judged.decision
        });
        let mut decisions: Vec<Decision> = decisions.collect();
        if may_undo(!matches!(verdict, ChainVerdict::Reject(_)), &decisions) {
            decisions.iter_mut().for_each(|decision| decision.full_ns = 0);
        }
        match verdict {
            ChainVerdict::Admit(mut passage) => {
                passage.keep_charges();
                ScriptVerdict { admitted: true, retry_us: 0, decisions }
            }
            ChainVerdict::Wait(queued) => {
                // It stays in its queue.
                std::mem::forget(queued);
                ScriptVerdict { admitted: true, retry_us: 0, decisions }
            }
            ChainVerdict::AskStore(_) => panic!("a shared limit"),
            ChainVerdict::Reject(rejection) => {
                let retry_us = rejection.retry_after_ns.map_or(u64::MAX, |ns| ns.div_ceil(1_000));
                ScriptVerdict { admitted: false, retry_us, decisions }
            }
        }
    }
}
