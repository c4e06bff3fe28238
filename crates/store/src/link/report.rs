//! Counters of calls to the store, and a report of its state.

use std::sync::atomic::{AtomicU64, Ordering::*};

use super::fault::StoreFault;
use super::server::StoreServer;
use sluicegate_base::clock::Now;

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
    /// Servers by address, with true for those that admit calls.
    pub servers: Vec<(String, bool)>,
    /// The number of live gateways.
    pub nodes: u64,
}

/// One server of the store at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreServerState {
    /// The host and port of the server.
    pub name: String,
    /// True if it is known to be the primary of a group; a single server is not asked.
    pub is_primary: bool,
    pub breaker: BreakerState,
    /// Calls that were made, until their reply or their deadline.
    pub calls: u64,
    /// Their mean time; `None` = no calls.
    pub mean_seconds: Option<f64>,
    /// The policy by which the server may drop counters.
    pub evicts_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls are made.
    Closed,
    /// A part of the calls is made, because the server answers again since a moment ago.
    Recovering,
    /// No calls are made.
    Open,
}

// === impl StoreServerState ===

impl StoreServerState {
    pub(super) fn of_server(server: &StoreServer, is_primary: bool, now: Now) -> StoreServerState {
        let times = server.call_times.read_buckets();
        StoreServerState {
            name: server.name.clone(),
            is_primary,
            breaker: match (server.breaker.is_open(), server.breaker.is_settled(now)) {
                (true, _) => BreakerState::Open,
                (false, true) => BreakerState::Closed,
                (false, false) => BreakerState::Recovering,
            },
            calls: times.count,
            mean_seconds: (times.count > 0).then(|| times.sum_seconds / times.count as f64),
            evicts_by: server.eviction.lock().policy.clone(),
        }
    }
}

// === impl BreakerState ===

impl BreakerState {
    /// The word of the state in answers.
    pub fn label(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Recovering => "recovering",
            BreakerState::Open => "open",
        }
    }
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
