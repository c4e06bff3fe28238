//! Event counters of a shared limit: decisions without the store, rejections without asking it, and losses.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::SharedLimit;
use sluicegate_model::OnFailure;

/// Event counters of the limit of this name.
#[derive(Default)]
pub(super) struct LimitCounts {
    /// Decisions without the store, in the order of [`OnFailure::WORDS`].
    fallbacks: [AtomicU64; 3],
    /// Rejections without asking the store.
    cache_hits: AtomicU64,
    /// Requests that the store counts by network.
    overflow: AtomicU64,
    /// Lost refunds, settlements and debts.
    lost: AtomicU64,
    /// Units that responses used beyond a whole debt.
    overrun: AtomicU64,
}

// === impl SharedLimit ===

impl SharedLimit {
    /// Counts a decision without the store.
    pub fn count_fallback(&self) {
        self.counts.fallbacks[self.on_failure as usize].fetch_add(1, Relaxed);
    }

    /// The number of decisions without the store that fell back to `how`.
    pub fn fallback_count(&self, how: OnFailure) -> u64 {
        self.counts.fallbacks[how as usize].load(Relaxed)
    }

    /// Counts a rejection that the store was not asked about.
    pub fn count_cache_hit(&self) {
        self.counts.cache_hits.fetch_add(1, Relaxed);
    }

    /// The number of rejections that the store was not asked about.
    pub fn cache_hit_count(&self) -> u64 {
        self.counts.cache_hits.load(Relaxed)
    }

    /// Counts a request that the store counts by network.
    pub fn count_overflow(&self) {
        self.counts.overflow.fetch_add(1, Relaxed);
    }

    /// The number of requests that the store counted by network instead of by key.
    pub fn overflow_count(&self) -> u64 {
        self.counts.overflow.load(Relaxed)
    }

    /// Counts units that the store forgave when it settled a charge.
    pub(crate) fn count_overrun(&self, units: u64) {
        self.counts.overrun.fetch_add(units, Relaxed);
    }

    /// The units that the store forgave.
    pub fn overrun_units(&self) -> u64 {
        self.counts.overrun.load(Relaxed)
    }

    /// Counts a lost refund, settlement or debt.
    pub fn count_lost(&self) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    /// The number of lost refunds, settlements and debts.
    pub fn lost_count(&self) -> u64 {
        self.counts.lost.load(Relaxed)
    }
}
