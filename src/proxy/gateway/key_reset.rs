//! Changes of one key of a limit by an operator.

use std::fmt;

use super::Gateway;
use crate::base::clock::Now;
use crate::config::GrantKey;
use crate::limit::table::CounterKey;
use crate::limit::{KeyReset, ResetFault};
use crate::shared::SharedKey;

/// A key of a limit, named by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// As operators write it, e.g. `ip=192.0.2.7,account=acme`.
    pub name: String,
    pub key: CounterKey,
    pub shared: SharedKey,
}

/// Why a key is not reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyResetFault {
    UnknownLimit,
    /// The limit has no numbers of its own for this tier.
    UnknownTier,
    Counter(ResetFault),
}

/// A key that was reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyResetDone {
    pub reset: KeyReset,
    /// For a shared limit: the rules whose entries under the key the store still has to delete.
    pub in_store: Option<Vec<u32>>,
}

// === impl Gateway ===

impl Gateway {
    /// Forgets what a key has used in every rate of a limit, or in those of a tier. Waiting requests keep their
    /// departures.
    ///
    /// # Errors
    /// The key cannot be reset; then nothing has changed.
    pub fn reset_key(
        &self,
        limit: &str,
        key: &KeyRef,
        tier: Option<&str>,
        now: Now,
    ) -> Result<KeyResetDone, KeyResetFault> {
        let id = self.find_limit(limit).ok_or(KeyResetFault::UnknownLimit)?;
        let limit = &self.limits[id.0];
        let rates = limit.rates_of(tier).ok_or(KeyResetFault::UnknownTier)?;
        let reset = limit.reset_key(rates.clone(), &key.key, now).map_err(KeyResetFault::Counter)?;
        let Some(shared) = &self.shared[id.0] else { return Ok(KeyResetDone { reset, in_store: None }) };
        shared.reset_key(rates.clone(), &key.key, now).map_err(KeyResetFault::Counter)?;
        Ok(KeyResetDone { reset, in_store: Some(shared.rules_to_delete(rates).collect()) })
    }
}

// === impl KeyRef ===

impl KeyRef {
    pub(super) fn to_grant_key(&self) -> GrantKey {
        GrantKey { id: self.key.id.to_le_bytes(), prefix: self.key.prefix, shared: self.shared.0 }
    }
}

// === impl KeyResetFault ===

impl fmt::Display for KeyResetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyResetFault::UnknownLimit => f.write_str("there is no such limit"),
            KeyResetFault::UnknownTier => f.write_str("the limit has no numbers of its own for this tier"),
            KeyResetFault::Counter(fault) => fault.fmt(f),
        }
    }
}
