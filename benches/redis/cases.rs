//! The decisions measured on a server: by this gateway's script, and by common scripts of others.

use sluicegate_config as config;
use sluicegate_model as model;
use sluicegate_store::{CallItem, LuaScript, PackedCall, RateRule, ScriptOp, SharedKey};

use crate::child::Result;
use crate::store::command;

/// One limit as other gateways commonly implement it.
pub const GCRA: &str = include_str!("gcra.lua");
const EMPTY: &str = "return";

/// A kind of decision.
pub struct Case {
    pub name: &'static str,
    script: Code,
    /// The first call admits, all others reject.
    pub refuses: bool,
}

enum Code {
    /// Limits as in the configuration file, on one key or on a key each.
    Own {
        limits: &'static [&'static str],
        keys: Keys,
    },
    /// So many calls, each for its own key.
    Gcra {
        calls: usize,
        rate: [&'static str; 3],
    },
    Empty,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    One,
    Each,
}

const FAST: &str = "rate: 1000000/s, burst: 100000";
const SLOW: &str = "rate: 1/h, burst: 1000";
const ONCE: &str = "rate: 1/h, burst: 1";
const WINDOW: &str = "algorithm: sliding_window, rate: 1000000/s, buckets: 10";
const SLOW_WINDOW: &str = "algorithm: sliding_window, rate: 1000/h, buckets: 10";
const LOG: &str = "algorithm: sliding_log, rate: 100/h, cost: 100";

/// The cases whose processor time is measured.
pub fn of_time() -> Vec<Case> {
    let own = |name, limits, keys| Case { name, script: Code::Own { limits, keys }, refuses: false };
    let gcra = |name, calls| Case {
        name,
        script: Code::Gcra { calls, rate: ["1000000", "1", "100000"] },
        refuses: false,
    };
    vec![
        own("1 token bucket", &[FAST], Keys::One),
        own("3 token buckets, one key", &[FAST; 3], Keys::One),
        own("5 token buckets, one key", &[FAST; 5], Keys::One),
        own("3 token buckets, three keys", &[FAST; 3], Keys::Each),
        own("sliding window of 10", &[WINDOW], Keys::One),
        Case { refuses: true, ..own("3 token buckets, one key, refused", &[FAST, FAST, ONCE], Keys::One) },
        Case { refuses: true, ..own("sliding log of 100, refused", &[LOG], Keys::One) },
        gcra("others: 1 GCRA", 1),
        gcra("others: 3 GCRA, a call and a key each", 3),
        Case { name: "an empty script", script: Code::Empty, refuses: false },
    ]
}

/// The cases whose memory is measured.
pub fn of_memory() -> Vec<Case> {
    let own = |name, limits| Case { name, script: Code::Own { limits, keys: Keys::One }, refuses: false };
    let rate = ["1", "3600", "1000"];
    vec![
        own("1 token bucket", &[SLOW]),
        own("3 token buckets, one key", &[SLOW; 3]),
        own("sliding window of 10", &[SLOW_WINDOW]),
        own("sliding log of 100, full", &[LOG]),
        Case { name: "others: 1 GCRA", script: Code::Gcra { calls: 1, rate }, refuses: false },
        Case { name: "others: 3 GCRA, a key each", script: Code::Gcra { calls: 3, rate }, refuses: false },
    ]
}

// === impl Case ===

impl Case {
    pub fn code(&self) -> &'static str {
        match self.script {
            Code::Own { .. } => LuaScript::counter_script().code,
            Code::Gcra { .. } => GCRA,
            Code::Empty => EMPTY,
        }
    }

    /// Calls that one decision takes.
    pub fn calls(&self) -> usize {
        if let Code::Gcra { calls, .. } = self.script { calls } else { 1 }
    }

    /// One decision for each of so many clients.
    pub fn decisions(&self, clients: u64) -> Result<Vec<Vec<u8>>> {
        let sha = LuaScript::new(self.code()).sha;
        let Code::Own { limits, keys } = &self.script else {
            return Ok((0..clients).map(|client| self.others(&sha, client)).collect());
        };
        let (rules, cost) = rules(limits)?;
        let decide = |client: u64| {
            let key = |place: usize| {
                let place = if *keys == Keys::Each { place as u64 } else { 0 };
                // Spread like the hash that names keys.
                let spread = u128::from(client + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_D6E8_FEB8_6659_FD93);
                SharedKey((spread ^ u128::from(place)).to_be_bytes())
            };
            let item = |(place, rule)| CallItem {
                limit_index: u16::try_from(place).unwrap_or(u16::MAX),
                ..CallItem::new(rule, key(place), cost)
            };
            let items: Vec<CallItem<'_>> = rules.iter().enumerate().map(item).collect();
            let packed = PackedCall::new(ScriptOp::Take, "sg", 1, 0, &items);
            let count = packed.keys.len().to_string();
            let mut words: Vec<&[u8]> = vec![b"EVALSHA", sha.as_bytes(), count.as_bytes()];
            words.extend(packed.keys.iter().map(Vec::as_slice));
            words.push(&packed.body);
            command(&words)
        };
        Ok((0..clients).map(decide).collect())
    }

    fn others(&self, sha: &str, client: u64) -> Vec<u8> {
        let Code::Gcra { calls, rate } = self.script else {
            return command(&[b"EVALSHA", sha.as_bytes(), b"0"]);
        };
        let call = |place: usize| {
            let [b, c] = [(client >> 8) % 256, client % 256];
            let name =
                format!("rl:10.{}.{b}.{c}:{}", client >> 16, ["per-second", "per-minute", "per-hour"][place]);
            let [requests, seconds, burst] = rate.map(str::as_bytes);
            command(&[b"EVALSHA", sha.as_bytes(), b"1", name.as_bytes(), requests, seconds, burst])
        };
        (0..calls).flat_map(call).collect()
    }

    /// Whether a reply is the expected one.
    pub fn is_sound(&self, answer: &[u8]) -> bool {
        match self.script {
            Code::Own { .. } => {
                let body = answer.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                answer.get(body + 8) == Some(&u8::from(!self.refuses))
            }
            Code::Gcra { .. } => answer.starts_with(b"*3\r\n:1\r\n"),
            Code::Empty => answer == b"$-1\r\n",
        }
    }
}

/// The rules of limits, and the cost of one request.
fn rules(limits: &[&str]) -> Result<(Vec<RateRule>, u64)> {
    let named =
        limits.iter().enumerate().map(|(place, limit)| format!("  limit-{place}: {{ key: ip, {limit} }}\n"));
    let text = format!("locations: [{{ path: /, upstream: demo }}]\nlimits:\n{}", named.collect::<String>());
    let loaded = config::parse(&text, "bench.yaml").map_err(|report| format!("{text}{report:?}"))?;
    let cost = match loaded.config.limits.first().map(|limit| &limit.cost) {
        Some(model::Cost::Units(cost)) => *cost,
        _ => 1,
    };
    Ok((loaded.config.limits.iter().flat_map(RateRule::rules_of).collect(), cost))
}
