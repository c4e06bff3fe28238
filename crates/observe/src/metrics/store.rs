//! Values about limits that gateways share, and about their store, which the scrape reads.

use super::Metrics;
use super::cells::HistogramReading;

/// The counts of the store that gateways share.
#[derive(Debug, Clone, Default)]
pub struct StoreReading {
    /// Calls by result.
    pub calls: Vec<(&'static str, u64)>,
    /// The servers, with true for each that replies.
    pub servers: Vec<(String, bool)>,
    /// The time of calls to each server.
    pub call_times: Vec<(String, HistogramReading)>,
    /// Keys that each server has dropped for want of memory.
    pub evicted_keys: Vec<(String, u64)>,
    /// Gateways that share the store.
    pub nodes: u64,
}

impl Metrics {
    /// The counts of the store.
    pub fn watch_store(&self, read: impl Fn() -> StoreReading + Send + Sync + 'static) {
        *self.store.lock() = Some(Box::new(read));
    }
}
