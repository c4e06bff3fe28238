//! What others ask about the store.

use super::Store;
use super::fault::StoreFault;
use crate::observe::metrics::StoreReading;

impl Store {
    /// What the names of all keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A number that names this process to the store.
    pub fn node(&self) -> u64 {
        // Cannot fail: it was written as such a number; and any other number names a process as well.
        u64::from_str_radix(&self.node, 16).unwrap_or_default()
    }

    /// What metrics tell.
    pub fn reading(&self) -> StoreReading {
        let report = self.report();
        let failed =
            StoreFault::ALL.iter().zip(report.failed).map(|(failure, calls)| (failure.label(), calls));
        StoreReading {
            calls: std::iter::once(("ok", report.answered)).chain(failed).collect(),
            servers: report.servers,
            nodes: report.nodes,
        }
    }
}
