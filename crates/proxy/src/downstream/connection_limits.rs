//! Counts the connections of all workers and clients against their limits, and keeps the workers evenly loaded.
//!
//! The kernel spreads connections over SO_REUSEPORT sockets by hash, so that with few connections one worker may
//! get all of them. A worker that accepts one while another clearly has fewer hands it over.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::listener_protocol::ListenerProtocol;
use crate::gateway::worker::WorkerThread;
use sluicegate_http::net::socket::StdSocket;

/// Connections on their way to one worker.
const INBOX_SIZE: usize = 1024;

/// The accepted connections that other workers hand over to one worker.
pub type WorkerInbox = mpsc::Receiver<(StdSocket, AcceptContext)>;

/// The permit of an accepted connection, and the protocol of its listener.
pub struct AcceptContext {
    /// The permit, which counts the connection until it is dropped.
    pub permit: ConnectionPermit,
    /// The protocol that was in force when the connection was accepted.
    pub protocol: Arc<ListenerProtocol>,
}

/// The connections of all workers and clients, and their limits.
pub struct ConnectionLimits {
    worker_slots: Vec<WorkerSlot>,
    open: AtomicUsize,
    max_open: AtomicUsize,
    /// Accepted connections that wait for a permit.
    waiting: AtomicUsize,
    per_ip: PerIpCounts,
}

/// Counts a connection as waiting for a permit until it is dropped.
pub struct PermitWaiter<'a>(&'a ConnectionLimits);

struct WorkerSlot {
    load: AtomicUsize,
    inbox: mpsc::Sender<(StdSocket, AcceptContext)>,
}

struct PerIpCounts {
    /// 0 = no limit, and nothing is counted.
    max: AtomicU32,
    open: Mutex<HashMap<IpAddr, u32>>,
}

impl ConnectionLimits {
    /// The limits over `workers` threads, and the inbox of each.
    pub fn new(
        workers: usize,
        max_open: usize,
        per_ip: Option<u32>,
    ) -> (Arc<ConnectionLimits>, Vec<WorkerInbox>) {
        let (worker_slots, inboxes) = (0..workers)
            .map(|_| {
                let (sender, receiver) = mpsc::channel(INBOX_SIZE);
                (WorkerSlot { load: AtomicUsize::new(0), inbox: sender }, receiver)
            })
            .unzip();
        let per_ip = PerIpCounts { max: AtomicU32::new(per_ip.unwrap_or(0)), open: Mutex::default() };
        let (open, max_open) = (AtomicUsize::new(0), AtomicUsize::new(max_open));
        let waiting = AtomicUsize::new(0);
        (Arc::new(ConnectionLimits { worker_slots, open, max_open, waiting, per_ip }), inboxes)
    }

    /// Changes the limits; open connections stay. Those opened while `per_ip` was off are not counted for their
    /// clients.
    pub fn set_limits(&self, max_open: usize, per_ip: Option<u32>) {
        self.max_open.store(max_open, Ordering::Relaxed);
        self.per_ip.max.store(per_ip.unwrap_or(0), Ordering::Relaxed);
    }

    /// Connections open now, over all workers.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A permit for one more connection; `None` when `max_connections` are open.
    pub fn try_acquire(self: &Arc<Self>, worker: usize) -> Option<ConnectionPermit> {
        let max_open = self.max_open.load(Ordering::Relaxed);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max_open).then_some(open + 1))
            .ok()?;
        self.worker_slots[worker].load.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { limits: self.clone(), worker, ip: None })
    }

    /// A permit beyond all limits, for a connection that no other listener would accept.
    pub fn acquire_forced(self: &Arc<Self>, worker: usize) -> ConnectionPermit {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.worker_slots[worker].load.fetch_add(1, Ordering::Relaxed);
        ConnectionPermit { limits: self.clone(), worker, ip: None }
    }

    /// Counts a connection as waiting until the guard is dropped.
    pub fn register_waiter(&self) -> PermitWaiter<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        PermitWaiter(self)
    }

    /// True if connections wait for a permit.
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The worker with the fewest connections, if it clearly has fewer than the worker of this permit.
    pub fn less_loaded_worker(&self, permit: &ConnectionPermit) -> Option<usize> {
        let load = |slot: &WorkerSlot| slot.load.load(Ordering::Relaxed);
        let own = load(&self.worker_slots[permit.worker]).saturating_sub(1);
        let (least, slot) = self.worker_slots.iter().enumerate().min_by_key(|(_, slot)| load(slot))?;
        // A difference of a sixteenth is tolerated: each hand-over wakes the other thread.
        (own > load(slot) + own / 16).then_some(least)
    }

    /// Sends the connection to `worker`; returns it when that worker's inbox is full.
    pub fn hand_to_worker(
        &self,
        worker: usize,
        socket: StdSocket,
        mut context: AcceptContext,
    ) -> Option<(StdSocket, AcceptContext)> {
        let from = context.permit.worker;
        context.permit.move_to_worker(worker);
        match self.worker_slots[worker].inbox.try_send((socket, context)) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => {
                let (socket, mut context) = back;
                context.permit.move_to_worker(from);
                Some((socket, context))
            }
        }
    }
}

/// Counts one open connection, for its worker and its client, until it is dropped.
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    worker: usize,
    ip: Option<IpAddr>,
}

impl ConnectionPermit {
    /// Counts the connection for its client, unless that is a trusted proxy; false when the client has
    /// `connections_per_ip` already.
    pub fn try_count_peer(&mut self, thread: &WorkerThread, peer: IpAddr) -> bool {
        let worker = thread.current_worker();
        let clients = &worker.gateway.clients;
        let fits = clients.trusts_proxy(peer) || self.count_client(clients.mask_address(peer));
        if !fits {
            worker.gateway.metrics.count_rejected_per_ip(worker.id);
        }
        fits
    }

    /// Counts the connection for its client; false when `connections_per_ip` are open.
    fn count_client(&mut self, ip: IpAddr) -> bool {
        let per_ip = &self.limits.per_ip;
        let max = per_ip.max.load(Ordering::Relaxed);
        if max == 0 {
            return true;
        }
        let mut open = per_ip.open.lock();
        let count = open.entry(ip).or_insert(0);
        if *count >= max {
            return false;
        }
        *count += 1;
        self.ip = Some(ip);
        true
    }

    fn move_to_worker(&mut self, worker: usize) {
        self.limits.worker_slots[self.worker].load.fetch_sub(1, Ordering::Relaxed);
        self.limits.worker_slots[worker].load.fetch_add(1, Ordering::Relaxed);
        self.worker = worker;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.open.fetch_sub(1, Ordering::Relaxed);
        self.limits.worker_slots[self.worker].load.fetch_sub(1, Ordering::Relaxed);
        if let Some(ip) = self.ip {
            let mut open = self.limits.per_ip.open.lock();
            if let Some(count) = open.get_mut(&ip) {
                *count -= 1;
                if *count == 0 {
                    open.remove(&ip);
                }
            }
        }
    }
}

impl Drop for PermitWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_model::{ListenAddress, ListenConfig};

    #[test]
    fn no_more_than_max_permits_exist_at_once() {
        let (limits, _inboxes) = ConnectionLimits::new(2, 2, None);
        let first = limits.try_acquire(0).unwrap();
        let _second = limits.try_acquire(1).unwrap();
        assert!(limits.try_acquire(0).is_none());
        drop(first);
        assert!(limits.try_acquire(0).is_some());
    }

    #[test]
    fn changed_limits_hold_for_new_connections() {
        let (limits, _inboxes) = ConnectionLimits::new(1, 1, None);
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = limits.try_acquire(0).unwrap();
        assert!(first.count_client(ip) && limits.try_acquire(0).is_none());
        limits.set_limits(4, Some(1));
        let [mut second, mut third] = [(); 2].map(|()| limits.try_acquire(0).unwrap());
        // The first was not counted.
        assert!(second.count_client(ip) && !third.count_client(ip));
        limits.set_limits(2, None);
        assert!(third.count_client(ip) && limits.try_acquire(0).is_none());
        drop((first, second, third));
        assert!(limits.open_count() == 0 && limits.per_ip.open.lock().is_empty());
    }

    #[test]
    fn one_client_gets_no_more_than_its_share_and_gets_it_back() {
        let (limits, _inboxes) = ConnectionLimits::new(1, 10, Some(1));
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = limits.try_acquire(0).unwrap();
        let mut second = limits.try_acquire(0).unwrap();
        assert!(first.count_client(ip));
        assert!(!second.count_client(ip));
        drop(first);
        assert!(second.count_client(ip));
        drop(second);
        assert_eq!(limits.open_count(), 0);
        assert!(limits.per_ip.open.lock().is_empty());
    }

    #[test]
    fn the_second_of_two_connections_goes_to_the_idle_worker() {
        let (limits, mut inboxes) = ConnectionLimits::new(2, 10, None);
        let first = limits.try_acquire(0).unwrap();
        assert_eq!(limits.less_loaded_worker(&first), None);
        let second = limits.try_acquire(0).unwrap();
        assert_eq!(limits.less_loaded_worker(&second), Some(1));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listen = ListenConfig::with_address(ListenAddress::Port(0));
        let protocol = Arc::new(ListenerProtocol::new(&listen, None).unwrap());
        assert!(
            limits
                .hand_to_worker(1, (one.into(), None), AcceptContext { permit: second, protocol })
                .is_none()
        );
        assert!(inboxes[1].try_recv().is_ok());
    }
}
