//! Event counters of a shared limit: decisions without the store, rejections without asking it, and losses.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::SharedLimit;

/// Event counters of the limit of this name.
#[derive(Default)]
pub struct LimitCounts {
    /// Decisions without the store, in the order of [`sluicegate_model::OnFailure::WORDS`].
    pub fallbacks: [AtomicU64; 3],
    /// Rejections without asking the store.
    pub cache_hits: AtomicU64,
    /// Requests that the store counts by network.
    pub overflow: AtomicU64,
    /// Lost refunds, settlements and debts.
    lost: AtomicU64,
    /// Units that responses used beyond a whole debt.
    pub overrun: AtomicU64,
}

// === impl SharedLimit ===

impl SharedLimit {
    /// Counts a decision without the store.
    pub fn count_fallback(&self) {
        self.counts.fallbacks[self.on_failure as usize].fetch_add(1, Relaxed);
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
