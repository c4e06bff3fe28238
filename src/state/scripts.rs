//! The scripts that run in the store. A script is known by its hash, so old and new gateways can share a store.

/// One script.
#[derive(Debug)]
pub struct Script {
    pub code: &'static str,
    /// What EVALSHA calls it by.
    pub sha: String,
}

// === impl Script ===

impl Script {
    pub fn take() -> &'static Script {
        unimplemented!()
    }
    pub fn new(code: &'static str) -> Script {
        Script { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }
}
