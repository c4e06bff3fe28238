//! Forgets this process's memory of a key that was reset.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::super::Debts;
use super::super::SharedKey;
use super::SharedLimit;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;

/// The last reset of a key of the limit, as far as this process knows.
#[derive(Default)]
pub(super) struct LastReset(AtomicU64);

// === impl LastReset ===

impl LastReset {
    /// True if the reset came before the moment `at`.
    #[inline]
    pub(super) fn is_before(&self, at: u64) -> bool {
        let reset_at = self.0.load(Relaxed);
        reset_at == 0 || reset_at < at
    }
}

// === impl SharedLimit ===

impl SharedLimit {
    /// The rates that count in entries of the store; of a concurrency limit none.
    pub fn counted_rates(&self) -> Range<usize> {
        0..self.last_answers.len()
    }

    /// A response has made room for a key: forgets the rejections that are repeated here.
    pub fn forget_rejection(&self, rate: usize, key: &CounterKey) {
        for table in self.places_of(rate).filter_map(|rate| self.last_answers.get(rate)) {
            table.update_existing(key, false, |last, (), ()| {
                (last.rejected_until, last.rejected_at, last.rejected_cost) = (0, 0, 0);
            });
        }
    }

    /// A key was reset in the store, by this gateway or by another one: forgets its debts, and every rejection of this
    /// limit that was asked for until `now`. Rejections are remembered under other names than the store's, and the
    /// requests that they would have rejected ask the store once.
    pub fn forget_key(&self, rates: Range<usize>, key: &SharedKey, debts: &Debts, now: Now) {
        self.resets.0.fetch_max(now.0, Relaxed);
        debts.forget_key(self, rates, key);
    }
}
