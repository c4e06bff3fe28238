//! The state of the store for other crates: its names, its servers, its calls, and the values for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::Store;
use super::fault::StoreFault;
use super::outages::OutageReport;
use super::server::StoreServer;
use sluicegate_base::clock::Now;
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::RedisServers;
use sluicegate_observe::metrics::StoreReading;

/// The calls of one process.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    answered: AtomicU64,
    failed: [AtomicU64; StoreFault::ALL.len()],
}

/// One server of the store at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreServerState {
    /// The host and port of the server.
    pub name: String,
    /// `primary` if it is known to be that of a group, `home` for servers of the home of a region.
    pub role: Option<&'static str>,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// Calls that were made, until their reply or their deadline.
    pub calls: u64,
    /// Their mean time; `None` = no calls.
    pub mean_seconds: Option<f64>,
    /// The policy by which the server may drop counters.
    pub evicts_by: Option<String>,
}

labelled_enum! {
    /// The state of a breaker; `label` is its word in answers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BreakerState: label -> &'static str {
        /// All calls are made.
        Closed = "closed",
        /// A part of the calls is made, because the server answers again since a moment ago.
        Recovering = "recovering",
        /// No calls are made.
        Open = "open",
    }
}

// === impl Store ===

impl Store {
    /// The prefix of all key names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number that names this process in the store.
    pub fn process_node(&self) -> u64 {
        self.process_node
    }

    /// The name of this process in the store.
    pub fn node_name(&self) -> String {
        format!("{:016x}", self.process_node)
    }

    /// The servers that the store has now, with their breakers and calls, and then those of its home.
    pub fn server_states(&self, now: Now) -> Vec<StoreServerState> {
        // A single server is not asked.
        let role = (!matches!(self.servers, RedisServers::Single(..))).then_some("primary");
        let states = |store: &Store, role| {
            let topology = store.topology.load();
            let state = |server: &Arc<StoreServer>| StoreServerState::of_server(server, role, now);
            topology.servers.iter().map(state).collect::<Vec<_>>()
        };
        let of_home = self.home().map(|home| states(home, Some("home"))).unwrap_or_default();
        states(self, role).into_iter().chain(of_home).collect()
    }

    /// The outages so far.
    pub fn outages(&self) -> OutageReport {
        *self.outages.lock()
    }

    /// The values for the metrics.
    pub fn reading(&self) -> StoreReading {
        let servers = &self.topology.load().servers;
        let named = servers.iter().map(|server| (server.name.clone(), server));
        StoreReading {
            calls: self.counts.by_result(),
            servers: named.clone().map(|(name, server)| (name, !server.breaker.is_open())).collect(),
            call_times: named
                .clone()
                .map(|(name, server)| (name, server.call_times.read_buckets()))
                .collect(),
            evicted_keys: named.map(|(name, server)| (name, server.eviction.lock().dropped)).collect(),
            nodes: self.nodes(),
        }
    }
}

// === impl StoreServerState ===

impl StoreServerState {
    pub(super) fn of_server(server: &StoreServer, role: Option<&'static str>, now: Now) -> StoreServerState {
        let times = server.call_times.read_buckets();
        StoreServerState {
            name: server.name.clone(),
            role,
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

// === impl CallCounts ===

impl CallCounts {
    pub(super) fn record_result<T>(&self, result: &Result<T, StoreFault>) {
        match result {
            Ok(_) => &self.answered,
            Err(fault) => &self.failed[*fault as usize],
        }
        .fetch_add(1, Relaxed);
    }

    /// Calls by result, since the start: answered ones, then those without an answer, in the order of
    /// [`StoreFault::ALL`].
    fn by_result(&self) -> Vec<(&'static str, u64)> {
        let failed = StoreFault::ALL.iter().zip(&self.failed).map(|(fault, calls)| (fault.label(), calls));
        let all = std::iter::once(("ok", &self.answered)).chain(failed);
        all.map(|(result, calls)| (result, calls.load(Relaxed))).collect()
    }
}
