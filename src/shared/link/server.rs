//! One server, as all threads of the process know it.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::breaker::Breaker;
use super::fault::{StoreAddress, StoreFault};
use crate::base::clock::Now;
use crate::shared::Fleet;
use crate::shared::fleet::{FleetCount, LimitAnnouncement};

/// Calls under way at one server, over all workers.
const IN_FLIGHT_MAX: u32 = 2048;

pub(super) struct StoreServer {
    pub address: StoreAddress,
    /// How log lines and metrics call it.
    pub name: String,
    pub breaker: Breaker,
    /// Told when calls opened the breaker.
    pub opened: Notify,
    /// Gateways that live, as this server counted them last; 0 before it did.
    pub nodes: AtomicU64,
    /// The same of each limit, as it was announced.
    pub fleets: Mutex<Vec<(LimitAnnouncement, FleetCount)>>,
    /// The number in the name of the key that gateways are counted under: one whose slot this server owns.
    pub tag: AtomicU32,
    in_flight: AtomicU32,
    /// Place in [`Failure::ALL`] of what opened the breaker.
    breaker_cause: AtomicUsize,
}

/// Room for one call; dropping it gives it back.
pub(super) struct CallPermit<'a>(&'a StoreServer);

// === impl Server ===

impl StoreServer {
    pub(super) fn new(address: StoreAddress) -> StoreServer {
        let colons = address.host.contains(':');
        let host = if colons { format!("[{}]", address.host) } else { address.host.clone() };
        StoreServer {
            name: format!("{host}:{}", address.port),
            address,
            breaker: Breaker::new(),
            opened: Notify::new(),
            nodes: AtomicU64::new(0),
            fleets: Mutex::default(),
            tag: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            breaker_cause: AtomicUsize::new(StoreFault::Down as usize),
        }
    }

    pub(super) fn acquire_call(&self) -> Option<CallPermit<'_>> {
        let room = CallPermit(self);
        (self.in_flight.fetch_add(1, Relaxed) < IN_FLIGHT_MAX).then_some(room)
    }

    /// A call, a connect or a beat that began in `epoch` failed.
    pub(super) fn record_fault(&self, epoch: u64, failure: StoreFault) {
        if self.breaker.record_call(Now::read_clock(), epoch, true) {
            self.breaker_cause.store(failure as usize, Relaxed);
            self.opened.notify_one();
        }
    }

    pub(super) fn breaker_cause(&self) -> StoreFault {
        StoreFault::ALL[self.breaker_cause.load(Relaxed).min(StoreFault::ALL.len() - 1)]
    }

    /// The key under which this server counts the gateways.
    pub(super) fn nodes_key(&self, prefix: &str) -> String {
        format!("{prefix}:{{nodes.{}}}", self.tag.load(Relaxed))
    }

    /// The key under which it keeps what they count.
    pub(super) fn limits_key(&self, prefix: &str) -> String {
        format!("{}:limits", self.nodes_key(prefix))
    }

    /// The gateways that count a limit, as this server counted them last.
    pub(super) fn count_of(&self, fleet: &Fleet) -> Option<FleetCount> {
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
        let rooms: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| server.acquire_call().unwrap()).collect();
        assert!(server.acquire_call().is_none() && server.acquire_call().is_none());
        drop(rooms);
        assert!(server.acquire_call().is_some());
        assert_eq!(server.in_flight.load(Relaxed), 0);
        assert_eq!(server.name, "[::1]:7");
    }
}
