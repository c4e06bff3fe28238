//! Counters of calls to the store, and a report of its state.

use std::sync::atomic::{AtomicU64, Ordering::*};

use super::fault::StoreFault;

/// The calls of one process.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    answered: AtomicU64,
    failed: [AtomicU64; StoreFault::ALL.len()],
}

/// The state of the store at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReport {
    /// Calls that were answered, since the start.
    pub answered: u64,
    /// Calls without an answer, in the order of [`StoreFault::ALL`].
    pub failed: [u64; StoreFault::ALL.len()],
    /// Servers by address, and whether calls to each are admitted.
    pub servers: Vec<(String, bool)>,
    /// The number of live gateways.
    pub nodes: u64,
}

// === impl CallCounts ===

impl CallCounts {
    pub(super) fn record_result<T>(&self, result: &Result<T, StoreFault>) {
        match result {
            Ok(_) => &self.answered,
            Err(fault) => &self.failed[*fault as usize],
        }
        .fetch_add(1, Relaxed);
    }

    pub(super) fn answered_count(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub(super) fn failed_counts(&self) -> [u64; StoreFault::ALL.len()] {
        std::array::from_fn(|index| self.failed[index].load(Relaxed))
    }
}
