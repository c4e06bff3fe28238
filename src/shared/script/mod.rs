//! The scripts that run in the store. A script is known by its hash, so old and new gateways can share a store.

pub mod bans;
pub(crate) mod call;
pub(crate) mod reply;
pub(crate) mod rule;

use std::sync::LazyLock;

/// One script.
#[derive(Debug)]
pub struct LuaScript {
    pub code: &'static str,
    /// What EVALSHA calls it by.
    pub sha: String,
}

static TAKE_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new(include_str!("take.lua")));

// === impl Script ===

impl LuaScript {
    pub fn new(code: &'static str) -> LuaScript {
        LuaScript { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The one that judges: see [`super::PackedCall`] and [`super::Reply`].
    pub fn take_script() -> &'static LuaScript {
        &TAKE_SCRIPT
    }
}
