//! All workers as one: who has how many connections, and the hand-over that keeps them even.
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
use crate::net::socket::StdSocket;

/// Connections on their way to another worker.
const INBOX_SIZE: usize = 1024;

pub type WorkerInbox = mpsc::Receiver<(StdSocket, AcceptContext)>;

/// What a connection has from its accept.
pub struct AcceptContext {
    pub permit: ConnectionPermit,
    /// Where it came in.
    pub protocol: Arc<ListenerProtocol>,
}

pub struct ConnectionLimits {
    worker_slots: Vec<WorkerSlot>,
    open: AtomicUsize,
    max_open: AtomicUsize,
    /// Accepted connections that find no place.
    waiting: AtomicUsize,
    per_ip: PerIpCounts,
}

/// Somebody wants a place; no longer when dropped.
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
    /// A crew of `workers` and the inbox of each.
    pub fn new(
        workers: usize,
        max_open: usize,
        per_ip: Option<u32>,
    ) -> (Arc<ConnectionLimits>, Vec<WorkerInbox>) {
        let (seats, inboxes) = (0..workers)
            .map(|_| {
                let (sender, receiver) = mpsc::channel(INBOX_SIZE);
                (WorkerSlot { load: AtomicUsize::new(0), inbox: sender }, receiver)
            })
            .unzip();
        let per_ip = PerIpCounts { max: AtomicU32::new(per_ip.unwrap_or(0)), open: Mutex::default() };
        let (open, max_open) = (AtomicUsize::new(0), AtomicUsize::new(max_open));
        let wanting = AtomicUsize::new(0);
        (
            Arc::new(ConnectionLimits { worker_slots: seats, open, max_open, waiting: wanting, per_ip }),
            inboxes,
        )
    }

    /// Holds to other numbers from now on; connections that are open stay. Without `per_ip` so far, those were not
    /// counted for their clients.
    pub fn set_limits(&self, max_open: usize, per_ip: Option<u32>) {
        self.max_open.store(max_open, Ordering::Relaxed);
        self.per_ip.max.store(per_ip.unwrap_or(0), Ordering::Relaxed);
    }

    /// Connections open now, over all workers.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A place for one more connection; `None` when `max_connections` are open.
    pub fn try_acquire(self: &Arc<Self>, worker: usize) -> Option<ConnectionPermit> {
        let max_open = self.max_open.load(Ordering::Relaxed);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max_open).then_some(open + 1))
            .ok()?;
        self.worker_slots[worker].load.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { limits: self.clone(), worker, ip: None })
    }

    /// A place for a connection that nobody else would take, however many are open.
    pub fn acquire_forced(self: &Arc<Self>, worker: usize) -> ConnectionPermit {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.worker_slots[worker].load.fetch_add(1, Ordering::Relaxed);
        ConnectionPermit { limits: self.clone(), worker, ip: None }
    }

    /// Tells that a connection waits for a place.
    pub fn register_waiter(&self) -> PermitWaiter<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        PermitWaiter(self)
    }

    /// Whether connections wait for a place.
    pub fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The worker with the fewest connections, if it clearly has fewer than the one whose `place` this is.
    pub fn less_loaded_worker(&self, place: &ConnectionPermit) -> Option<usize> {
        let load = |seat: &WorkerSlot| seat.load.load(Ordering::Relaxed);
        let own = load(&self.worker_slots[place.worker]).saturating_sub(1);
        let (least, seat) = self.worker_slots.iter().enumerate().min_by_key(|(_, seat)| load(seat))?;
        // A sixteenth more is even enough: each hand-over costs a wake-up of the other thread.
        (own > load(seat) + own / 16).then_some(least)
    }

    /// Gives the connection to the worker at `seat`; hands it back when that one's inbox is full.
    pub fn hand_to_worker(
        &self,
        seat: usize,
        arrival: StdSocket,
        mut ticket: AcceptContext,
    ) -> Option<(StdSocket, AcceptContext)> {
        let from = ticket.permit.worker;
        ticket.permit.move_to_worker(seat);
        match self.worker_slots[seat].inbox.try_send((arrival, ticket)) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => {
                let (arrival, mut ticket) = back;
                ticket.permit.move_to_worker(from);
                Some((arrival, ticket))
            }
        }
    }
}

/// One open connection in everybody's counts; gone when dropped.
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    worker: usize,
    ip: Option<IpAddr>,
}

impl ConnectionPermit {
    /// Counts the connection for its client; false when `connections_per_ip` are open.
    pub fn count_client(&mut self, ip: IpAddr) -> bool {
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
    use crate::config::{ListenAddress, ListenConfig};

    #[test]
    fn no_more_than_max_places_exist_at_once() {
        let (crew, _inboxes) = ConnectionLimits::new(2, 2, None);
        let first = crew.try_acquire(0).unwrap();
        let _second = crew.try_acquire(1).unwrap();
        assert!(crew.try_acquire(0).is_none());
        drop(first);
        assert!(crew.try_acquire(0).is_some());
    }

    #[test]
    fn other_numbers_hold_for_who_comes_next() {
        let (crew, _inboxes) = ConnectionLimits::new(1, 1, None);
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = crew.try_acquire(0).unwrap();
        assert!(first.count_client(ip) && crew.try_acquire(0).is_none());
        crew.set_limits(4, Some(1));
        let [mut second, mut third] = [(); 2].map(|()| crew.try_acquire(0).unwrap());
        // The first was not counted.
        assert!(second.count_client(ip) && !third.count_client(ip));
        crew.set_limits(2, None);
        assert!(third.count_client(ip) && crew.try_acquire(0).is_none());
        drop((first, second, third));
        assert!(crew.open_count() == 0 && crew.per_ip.open.lock().is_empty());
    }

    #[test]
    fn one_client_gets_no_more_than_its_share_and_gets_it_back() {
        let (crew, _inboxes) = ConnectionLimits::new(1, 10, Some(1));
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = crew.try_acquire(0).unwrap();
        let mut second = crew.try_acquire(0).unwrap();
        assert!(first.count_client(ip));
        assert!(!second.count_client(ip));
        drop(first);
        assert!(second.count_client(ip));
        drop(second);
        assert_eq!(crew.open_count(), 0);
        assert!(crew.per_ip.open.lock().is_empty());
    }

    #[test]
    fn the_second_of_two_connections_goes_to_the_idle_worker() {
        let (crew, mut inboxes) = ConnectionLimits::new(2, 10, None);
        let first = crew.try_acquire(0).unwrap();
        assert_eq!(crew.less_loaded_worker(&first), None);
        let second = crew.try_acquire(0).unwrap();
        assert_eq!(crew.less_loaded_worker(&second), Some(1));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listen = ListenConfig::with_address(ListenAddress::Port(0));
        let door = Arc::new(ListenerProtocol::new(&listen, None).unwrap());
        assert!(
            crew.hand_to_worker(1, StdSocket::Unix(one), AcceptContext { permit: second, protocol: door })
                .is_none()
        );
        assert!(inboxes[1].try_recv().is_ok());
    }
}
