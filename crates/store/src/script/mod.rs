//! The scripts that run in the store. A script is identified by its hash, so old and new gateways can share a store.

pub mod bans;
pub(crate) mod call;
mod numbers;
pub mod operator;
pub(crate) mod reply;
pub mod reset;
pub(crate) mod rule;
pub(crate) mod settle;

use std::sync::LazyLock;

/// A script with its hash.
#[derive(Debug)]
pub struct LuaScript {
    pub code: &'static str,
    /// The SHA-1 that `EVALSHA` takes.
    pub sha: String,
}

static TAKE_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| {
    let settled = include_str!("settled.lua");
    let code = include_str!("take.lua").replacen("-- settled.lua stands here.", settled, 1);
    LuaScript::new(code.leak())
});

// === impl LuaScript ===

impl LuaScript {
    pub fn new(code: &'static str) -> LuaScript {
        LuaScript { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The script that judges requests: see [`super::PackedCall`] and [`super::ScriptReply`].
    pub fn take_script() -> &'static LuaScript {
        &TAKE_SCRIPT
    }
}
