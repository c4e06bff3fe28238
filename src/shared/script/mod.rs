//! The scripts that run in the store. A script is known by its hash, so old and new gateways can share a store.

pub mod bans;
pub(crate) mod call;
pub(crate) mod derive;
pub(crate) mod rule;

use std::sync::LazyLock;

/// One script.
#[derive(Debug)]
pub struct Script {
    pub code: &'static str,
    /// What EVALSHA calls it by.
    pub sha: String,
}

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("take.lua")));

// === impl Script ===

impl Script {
    pub fn new(code: &'static str) -> Script {
        Script { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }

    /// The one that judges: see [`super::Packed`] and [`super::Reply`].
    pub fn take() -> &'static Script {
        &TAKE
    }
}
