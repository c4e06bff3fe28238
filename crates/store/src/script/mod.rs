//! The scripts that run in the store. A script is identified by its hash, so old and new gateways can share a store.

pub mod bans;
pub(crate) mod call;
pub mod operator;
pub(crate) mod reply;
pub(crate) mod rule;
pub(crate) mod rule_shape;
pub(crate) mod settle;
mod share_reply;
pub(crate) mod shares;

use std::sync::LazyLock;

use sluicegate_limit::table::persistent::take_bytes;

/// A script with its hash.
#[derive(Debug)]
pub struct LuaScript {
    /// The text of the script, in Lua.
    pub code: &'static str,
    /// The SHA-1 that `EVALSHA` takes.
    pub sha: String,
}

static COUNTER_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| {
    let code = include_str!("calls.lua").replacen("-- take.lua stands here.", include_str!("take.lua"), 1);
    let code = code.replacen("-- settled.lua stands here.", include_str!("settled.lua"), 1);
    let code = code.replacen("-- calendar.lua stands here.", include_str!("calendar.lua"), 1);
    let code = code.replacen("-- shares.lua stands here.", include_str!("shares.lua"), 1);
    let code = code.replacen("-- slot_shares.lua stands here.", include_str!("slot_shares.lua"), 1);
    LuaScript::new(code.leak())
});

static LEASE_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new(include_str!("lease.lua")));

/// The remainder of a rate, after the charge or without one.
#[derive(Default)]
pub(crate) struct RateRemainder {
    pub remaining: u64,
    pub reset_us: u64,
    pub mark: u64,
    /// Microseconds until a fixed window ends.
    pub window_us: Option<u64>,
    /// Microseconds until nothing is used; of a log or a settled window at most, because the newest charge is not told.
    pub full_us: u64,
}

/// Below this, a double holds all whole numbers exactly.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

pub(crate) fn read_double(bytes: &mut &[u8]) -> Option<f64> {
    take_bytes(bytes).map(f64::from_le_bytes)
}

/// A non-negative number; a fraction, which only foreign state has, is rounded up.
pub(crate) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    read_double(bytes).filter(|number| (0.0..EXACT_MAX).contains(number)).map(|number| number.ceil() as u64)
}

/// Numbers from here on are not exact in the arithmetic of the scripts about bans and entries.
const WHOLE_MAX: u64 = 1 << 52;

fn encode_whole(number: u64) -> [u8; 8] {
    (number.min(WHOLE_MAX) as f64).to_le_bytes()
}

/// Reads as [`read_number`] does, by the bound of [`encode_whole`].
fn read_whole(bytes: &mut &[u8]) -> Option<u64> {
    read_number(bytes).filter(|number| *number <= WHOLE_MAX)
}

/// Ticks in microseconds, rounded up.
fn ticks_to_us(ticks: u64, num: u64) -> u64 {
    ticks.div_ceil(num)
}

pub(crate) fn bucket_remainder(num: u64, unit: u64, depth: u64, level: u64) -> RateRemainder {
    let remaining = depth.saturating_sub(level) / unit;
    let reset_us = match remaining {
        0 => ticks_to_us(level.saturating_add(unit).saturating_sub(depth), num),
        _ => 0,
    };
    RateRemainder { remaining, reset_us, full_us: ticks_to_us(level, num), ..RateRemainder::default() }
}

// === impl LuaScript ===

impl LuaScript {
    /// The script with this code and the hash of it.
    pub fn new(code: &'static str) -> LuaScript {
        LuaScript { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The script that judges requests: see [`super::PackedCall`] and [`super::ScriptReply`].
    pub fn counter_script() -> &'static LuaScript {
        &COUNTER_SCRIPT
    }

    /// The script that leases units of limits: see [`crate::lease`].
    pub fn lease_script() -> &'static LuaScript {
        &LEASE_SCRIPT
    }
}
