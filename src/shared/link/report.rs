//! What is counted about the store, for whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering::*};

use super::fault::StoreFault;

/// Of one process.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    answered: AtomicU64,
    failed: [AtomicU64; StoreFault::ALL.len()],
}

/// What is known at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReport {
    /// Calls that were answered, since the start.
    pub answered: u64,
    /// Calls that were not, by the places of [`Failure::ALL`].
    pub failed: [u64; StoreFault::ALL.len()],
    /// Servers by address, and whether each is asked.
    pub servers: Vec<(String, bool)>,
    /// Gateways that live.
    pub nodes: u64,
}

// === impl Counts ===

impl CallCounts {
    pub(super) fn record_result<T>(&self, result: &Result<T, StoreFault>) {
        match result {
            Ok(_) => &self.answered,
            Err(failure) => &self.failed[*failure as usize],
        }
        .fetch_add(1, Relaxed);
    }

    pub(super) fn answered_count(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub(super) fn failed_counts(&self) -> [u64; StoreFault::ALL.len()] {
        std::array::from_fn(|place| self.failed[place].load(Relaxed))
    }
}
