//! One server of the store, as all threads of the process see it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::breaker::Breaker;
use super::fault::{StoreAddress, StoreFault};
use crate::Fleet;
use crate::fleet::{FleetCount, LimitAnnouncement};
use sluicegate_base::clock::Now;
use sluicegate_observe::metrics::cells::{Histogram, STORE_BOUNDS};

/// Maximum number of calls in flight to one server, over all workers.
const IN_FLIGHT_MAX: u32 = 2048;

pub(super) struct StoreServer {
    pub address: StoreAddress,
    /// The name in log lines and metrics.
    pub name: String,
    pub breaker: Breaker,
    /// Notified when a heartbeat is due: calls have opened the breaker, or the limits to announce have changed.
    pub beat_due: Notify,
    /// The first probe has ended, so that an open breaker means an outage.
    pub is_probed: AtomicBool,
    /// Live gateways, as this server last counted them; 0 before that.
    pub nodes: AtomicU64,
    /// The gateways that count each limit, as it was announced.
    pub fleets: Mutex<Vec<(LimitAnnouncement, FleetCount)>>,
    /// The number in the name of the key that counts gateways: this server owns the slot of that name.
    pub tag: AtomicU32,
    /// The time of calls, until their reply or their deadline; calls that were not tried are not counted.
    pub call_times: Histogram,
    pub eviction: Mutex<Eviction>,
    in_flight: AtomicU32,
    /// The fault that opened the breaker.
    pub breaker_cause: Mutex<StoreFault>,
}

/// The eviction of keys for want of memory, as the server reports it; empty if it reports nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Eviction {
    /// The policy by which it may drop keys.
    pub policy: Option<String>,
    /// Keys dropped since its start.
    pub dropped: u64,
}

/// A permit for one call; dropping it gives it back.
pub(super) struct CallPermit<'a>(&'a StoreServer);

// === impl Eviction ===

impl Eviction {
    /// Reads the reply to INFO.
    pub(super) fn parse_info(text: &str) -> Eviction {
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.unwrap_or_default().trim_end()
        };
        let (memory, policy) = (field("maxmemory"), field("maxmemory_policy"));
        let may_evict = !matches!(memory, "" | "0") && !matches!(policy, "" | "noeviction");
        // No policy has a longer name.
        let policy = may_evict.then(|| policy.chars().take(32).collect());
        Eviction { policy, dropped: field("evicted_keys").parse().unwrap_or_default() }
    }
}

// === impl StoreServer ===

impl StoreServer {
    pub(super) fn new(address: StoreAddress) -> StoreServer {
        let colons = address.host.contains(':');
        let host = if colons { format!("[{}]", address.host) } else { address.host.clone() };
        StoreServer {
            name: format!("{host}:{}", address.port),
            address,
            breaker: Breaker::default(),
            beat_due: Notify::new(),
            is_probed: AtomicBool::new(false),
            nodes: AtomicU64::new(0),
            fleets: Mutex::default(),
            tag: AtomicU32::new(0),
            call_times: Histogram::new_shared(&STORE_BOUNDS),
            eviction: Mutex::default(),
            in_flight: AtomicU32::new(0),
            breaker_cause: Mutex::new(StoreFault::Down),
        }
    }

    pub(super) fn acquire_call(&self) -> Option<CallPermit<'_>> {
        let permit = CallPermit(self);
        (self.in_flight.fetch_add(1, Relaxed) < IN_FLIGHT_MAX).then_some(permit)
    }

    /// Records the failure of a call, a connect or a heartbeat that began in `epoch`.
    pub(super) fn record_fault(&self, epoch: u64, fault: StoreFault) {
        if self.breaker.record_call(Now::read_clock(), epoch, true) {
            *self.breaker_cause.lock() = fault;
            self.beat_due.notify_one();
        }
    }

    /// The Redis key of the set of live nodes.
    pub(super) fn nodes_key(&self, prefix: &str) -> String {
        format!("{prefix}:{{nodes.{}}}", self.tag.load(Relaxed))
    }

    /// The Redis key of the limits that the nodes announced.
    pub(super) fn limits_key(&self, prefix: &str) -> String {
        format!("{}:limits", self.nodes_key(prefix))
    }

    /// The last reply of this server about the nodes that share the limit of `fleet`.
    pub(super) fn fleet_count(&self, fleet: &Fleet) -> Option<FleetCount> {
        let fleets = self.fleets.lock();
        fleets.iter().find(|(announced, _)| *announced == fleet.announcement).map(|(_, count)| *count)
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_calls_and_no_more() {
        let server = StoreServer::new(StoreAddress { host: "::1".into(), port: 7 });
        let permits: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| server.acquire_call().unwrap()).collect();
        assert!(server.acquire_call().is_none() && server.acquire_call().is_none());
        drop(permits);
        assert!(server.acquire_call().is_some());
        assert_eq!(server.in_flight.load(Relaxed), 0);
        assert_eq!(server.name, "[::1]:7");
    }
}
