//! The changes of an operator to single keys: a grant lets a key be judged by other numbers for a while, and a reset
//! lets it begin again.

use std::ops::Range;

use super::Limit;
use super::counters::{each, rated};
use crate::table::{CounterKey, OwnEntry};
use sluicegate_base::clock::Now;
use sluicegate_model as model;

/// A key that is judged by other numbers.
#[derive(Debug)]
pub(super) struct GrantedKey {
    /// The id of the local counter, or of that in the store where the limit is counted there.
    id: u128,
    until: Now,
    variant: usize,
}

/// The counters of a key after a reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyReset {
    /// Counters that the key had.
    pub counters: usize,
    /// Units that wait in the queue, of the rate with most. They keep their departures, so their counter is unchanged.
    pub waiting: u64,
}

/// Why the counters of a key are not reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResetFault {
    /// The limit counts requests in flight, which return their slots themselves.
    #[error("a concurrency limit counts requests in flight, and each returns its slots when it ends")]
    Concurrency,
    /// The table is full, and the key shares a counter with others.
    #[error("the key shares a counter with others, because the table of the limit is full")]
    SharedCounter,
}

// === impl GrantedKey ===

impl GrantedKey {
    /// The grants of a limit, by id.
    pub(super) fn all_of(config: &model::LimitConfig) -> Box<[GrantedKey]> {
        let first = config.file_variants().count();
        let granted = |(index, grant): (usize, &model::GrantConfig)| GrantedKey {
            id: grant.key.id_in(config),
            until: Now(grant.until_ns),
            variant: first + index,
        };
        let mut keys: Box<[GrantedKey]> = config.grants.iter().enumerate().map(granted).collect();
        keys.sort_unstable_by_key(|key| key.id);
        keys
    }
}

// === impl Limit ===

impl Limit {
    /// The variant that judges a key by the numbers an operator granted it, until its grant ends. `id`: as of
    /// [`model::GrantKey::id_in`].
    #[inline]
    pub fn granted_variant(&self, id: u128, now: Now) -> Option<usize> {
        if self.granted.is_empty() {
            return None;
        }
        let index = self.granted.binary_search_by_key(&id, |granted| granted.id).ok()?;
        Some(&self.granted[index]).filter(|granted| now < granted.until).map(|granted| granted.variant)
    }

    /// The rates that judge callers of `tier`; without one, those of every variant. `None` = the limit has no other
    /// numbers for this tier.
    pub fn rates_of(&self, tier: Option<&str>) -> Option<Range<usize>> {
        let Some(tier) = tier else { return Some(0..self.spans.last().map_or(0, |span| span.end)) };
        (0..self.spans.len())
            .find(|variant| self.config.variant_tier(*variant) == Some(tier))
            .map(|variant| self.rate_range(variant))
    }

    /// True if a key shares the counter of a rate with others, because the table is full.
    pub fn shares_counter(&self, rate: usize, key: &CounterKey, now: Now) -> bool {
        let own = each!(&self.meters, meters => meters[rate].table.update_own(key, now, |_, _, _| {}));
        own == OwnEntry::Overflow
    }

    /// Forgets the used units of `key` in each of `rates`. Later refunds of earlier charges are lost, so the key
    /// never gets more than a fresh one. A warm key stays warm.
    ///
    /// # Errors
    /// The counters cannot be reset; then none has changed.
    pub fn reset_key(&self, rates: Range<usize>, key: &CounterKey, now: Now) -> Result<KeyReset, ResetFault> {
        if self.is_concurrency() {
            return Err(ResetFault::Concurrency);
        }
        // Checked once more by each reset, under the lock of the shard.
        if rates.clone().any(|rate| self.shares_counter(rate, key, now)) {
            return Err(ResetFault::SharedCounter);
        }
        let mut reset = KeyReset::default();
        let mut counted: Vec<usize> = rates.map(|rate| self.config.counter_rate(rate)).collect();
        counted.sort_unstable();
        counted.dedup();
        for rate in counted {
            match rated!(&self.meters, rate, meter => meter.reset_key(key, now)) {
                OwnEntry::Updated(waiting) => {
                    reset.counters += 1;
                    reset.waiting = reset.waiting.max(waiting);
                }
                OwnEntry::Absent => {}
                OwnEntry::Overflow => return Err(ResetFault::SharedCounter),
            }
        }
        Ok(reset)
    }
}
