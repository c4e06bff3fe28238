//! Changes of one key of a limit by an operator.

use std::ops::Range;
use std::sync::Arc;

use super::Gateway;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{KeyReset, ResetFault};
use sluicegate_model::GrantKey;
use sluicegate_store::{SharedKey, SharedLimit, StoreFault};

/// A key of a limit, named by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// The name that operators write, e.g. `ip=192.0.2.7,account=acme`.
    pub name: String,
    /// The key of its counters in this process.
    pub key: CounterKey,
    /// The key of its counters in the store.
    pub shared: SharedKey,
}

/// Why a key is not reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyResetFault {
    /// No limit has this name.
    #[error("there is no such limit")]
    UnknownLimit,
    /// The limit has no numbers of its own for this tier.
    #[error("the limit has no numbers of its own for this tier")]
    UnknownTier,
    /// The counters in this process do not allow it.
    #[error(transparent)]
    Counter(ResetFault),
    /// The store did not answer: the key may or may not be reset there.
    #[error("Redis does not answer, so the key may not be reset there; try again")]
    Store(StoreFault),
}

/// A reset that was made in this process; the store may still have to follow.
#[derive(Clone)]
pub struct KeyResetDone {
    /// The counters of the key in this process.
    pub reset: KeyReset,
    /// The shared limit, and its rates that the store still has to reset.
    pub in_store: Option<SharedRates>,
}

/// Rates of a limit that the store counts.
#[derive(Clone)]
pub struct SharedRates {
    /// The shared side of the limit.
    pub limit: Arc<SharedLimit>,
    /// The indices of the rates in the limit.
    pub rates: Range<usize>,
}

// === impl Gateway ===

impl Gateway {
    /// Forgets the used units of a key in every rate of a limit, or in those of a tier. Waiting requests keep their
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
        Ok(KeyResetDone { reset, in_store: Some(SharedRates { limit: shared.clone(), rates }) })
    }
}

// === impl KeyRef ===

impl KeyRef {
    /// The key as the configuration holds it for a grant.
    pub fn to_grant_key(&self) -> GrantKey {
        GrantKey { id: self.key.id.to_le_bytes(), prefix: self.key.prefix, shared: self.shared.0 }
    }
}
