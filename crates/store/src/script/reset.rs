//! Calls of the script that resets the counters of a limit for a key.

use std::sync::LazyLock;

use super::call::{PackedCall, rule_key_name};
use super::rule::RuleShape;
use crate::{LuaScript, RateRule, SharedKey};

static RESET_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new(include_str!("reset.lua")));

/// The counters of a key in the store after a reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreReset {
    /// Counters that the key had.
    pub forgotten: u32,
    /// Counters of leaky buckets that stay, because requests wait for departures they handed out.
    pub kept: u32,
}

// === impl StoreReset ===

impl StoreReset {
    /// The script of such calls.
    pub fn script() -> &'static LuaScript {
        &RESET_SCRIPT
    }

    /// Packs the reset of the counters of `rules` for `key`. Slots of concurrency limits are left out: each request
    /// returns its own.
    pub fn pack_call<'a>(
        prefix: &str,
        rules: impl Iterator<Item = &'a RateRule>,
        key: &SharedKey,
    ) -> PackedCall {
        let mut packed =
            PackedCall { keys: [rule_key_name(prefix, key, None)].into_iter().collect(), body: Vec::new() };
        let mut seen: Vec<u32> = Vec::new();
        for rule in rules {
            // Views have the entry of the limit's own rate.
            if seen.contains(&rule.id) {
                continue;
            }
            seen.push(rule.id);
            if rule.settles || matches!(rule.shape, RuleShape::SlidingLog { .. }) {
                packed.keys.push(rule_key_name(prefix, key, Some(rule)));
                continue;
            }
            let at_once = match rule.shape {
                RuleShape::Concurrency { .. } => continue,
                RuleShape::LeakyBucket { unit, queue, .. } => queue.ahead / unit.max(1) + 1,
                _ => 0,
            };
            packed.body.extend(rule.id.to_le_bytes());
            packed.body.extend((at_once as f64).to_le_bytes());
        }
        packed
    }

    /// Parses the reply; `None` if it is malformed.
    pub fn parse_reply(bytes: &[u8]) -> Option<StoreReset> {
        let (forgotten, kept) = bytes.split_first_chunk()?;
        let (forgotten, kept) = (u32::from_le_bytes(*forgotten), u32::from_le_bytes(kept.try_into().ok()?));
        Some(StoreReset { forgotten, kept })
    }
}
