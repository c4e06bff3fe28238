//! Readings of the store for other crates: its key prefix, node number, state and metrics.

use super::Store;
use super::fault::StoreFault;
use super::outages::OutageReport;
use super::report::StoreServerState;
use sluicegate_base::clock::Now;
use sluicegate_model::RedisServers;
use sluicegate_observe::metrics::StoreReading;
use sluicegate_observe::metrics::cells::HistogramReading;

impl Store {
    /// The prefix of all key names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number that names this process in the store.
    pub fn node(&self) -> u64 {
        // Cannot fail: `node` was formatted from such a number, and any other number would do as well.
        u64::from_str_radix(&self.node, 16).unwrap_or_default()
    }

    /// The servers that the store has now, with their breakers and calls.
    pub fn server_states(&self, now: Now) -> Vec<StoreServerState> {
        let is_primary = !matches!(self.servers, RedisServers::Single(..));
        let topology = self.topology.load();
        topology.servers.iter().map(|server| StoreServerState::of_server(server, is_primary, now)).collect()
    }

    /// The outages so far.
    pub fn outages(&self) -> OutageReport {
        self.outages.report()
    }

    /// The time of calls to each server that the store has now.
    fn call_times(&self) -> Vec<(String, HistogramReading)> {
        let topology = self.topology.load();
        topology
            .servers
            .iter()
            .map(|server| (server.name.clone(), server.call_times.read_buckets()))
            .collect()
    }

    /// The values for the metrics.
    pub fn reading(&self) -> StoreReading {
        let report = self.report();
        let servers = &self.topology.load().servers;
        let failed = StoreFault::ALL.iter().zip(report.failed).map(|(fault, calls)| (fault.label(), calls));
        StoreReading {
            calls: std::iter::once(("ok", report.answered)).chain(failed).collect(),
            servers: report.servers,
            call_times: self.call_times(),
            evicted_keys: servers.iter().map(|one| (one.name.clone(), one.eviction.lock().dropped)).collect(),
            nodes: report.nodes,
        }
    }
}
