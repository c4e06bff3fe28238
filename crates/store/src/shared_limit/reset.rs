//! Resets of keys in the memory of this process; the store has to forget them as well.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::SharedLimit;
use crate::{Debts, SharedKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::ResetFault;
use sluicegate_limit::table::CounterKey;

/// The last reset of a key of the limit, as far as this process knows.
#[derive(Default)]
pub(super) struct LastReset(AtomicU64);

// === impl LastReset ===

impl LastReset {
    /// True if the reset came before the moment `at`.
    pub(super) fn is_before(&self, at: u64) -> bool {
        let reset_at = self.0.load(Relaxed);
        reset_at == 0 || reset_at < at
    }
}

// === impl SharedLimit ===

impl SharedLimit {
    /// A response has made room for a key: forgets the rejections that are repeated here.
    pub fn forget_rejection(&self, rate: usize, key: &CounterKey) {
        for table in self.places_of(rate).filter_map(|rate| self.last_answers.get(rate)) {
            for key in self.answer_keys(key) {
                table.update_existing(&key, false, |last, (), ()| last.forget_rejection());
            }
        }
    }

    /// A key was reset in the store, by this gateway or by another one: forgets its debts, and every rejection of this
    /// limit that was asked for until `now`. Rejections are remembered under other names than the store's, and the
    /// requests that they would have rejected ask the store once.
    pub fn forget_key(&self, rates: Range<usize>, key: &SharedKey, debts: &Debts, now: Now) {
        self.resets.0.fetch_max(now.0, Relaxed);
        self.rules[rates.clone()].iter().for_each(|rule| self.leases.forget_key(rule.id, key));
        self.departures[rates.clone()].iter().for_each(|own| own.forget_spares(key));
        debts.forget_key(self, rates, key);
    }

    /// Forgets the rejections that are repeated here, and the counts of the local share for `key`. An answer to a
    /// question from before is no longer recorded.
    ///
    /// # Errors
    /// The share counts the key together with others; the rejections are forgotten all the same.
    pub fn reset_key(&self, rates: Range<usize>, key: &CounterKey, now: Now) -> Result<(), ResetFault> {
        for rate in rates.clone() {
            let Some(table) = self.last_answers.get(rate) else { continue };
            for (class, key) in self.answer_keys(key).enumerate() {
                let capacity = self.rules[rate].capacity_of(class as u8).min(u32::MAX.into()) as u32;
                table.update_existing(&key, false, |last, (), ()| {
                    (last.at, last.remaining, last.seeded) = (now.0.max(last.at), capacity, true);
                    last.forget_rejection();
                });
            }
        }
        match self.existing_share() {
            Some(share) if !share.is_concurrency() => share.reset_key(rates, key, now).map(drop),
            _ => Ok(()),
        }
    }
}
