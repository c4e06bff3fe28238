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

use super::listener_protocol::Door;
use crate::net::socket::Arrival;

/// Connections on their way to another worker.
const INBOX: usize = 1024;

pub type Inbox = mpsc::Receiver<(Arrival, Ticket)>;

/// What a connection has from its accept.
pub struct Ticket {
    pub place: Place,
    /// Where it came in.
    pub door: Arc<Door>,
}

pub struct Crew {
    seats: Vec<Seat>,
    open: AtomicUsize,
    max_open: AtomicUsize,
    /// Accepted connections that find no place.
    wanting: AtomicUsize,
    per_ip: PerIp,
}

/// Somebody wants a place; no longer when dropped.
pub struct Wanting<'a>(&'a Crew);

struct Seat {
    load: AtomicUsize,
    inbox: mpsc::Sender<(Arrival, Ticket)>,
}

struct PerIp {
    /// 0 = no limit, and nothing is counted.
    max: AtomicU32,
    open: Mutex<HashMap<IpAddr, u32>>,
}

impl Crew {
    /// A crew of `workers` and the inbox of each.
    pub fn new(workers: usize, max_open: usize, per_ip: Option<u32>) -> (Arc<Crew>, Vec<Inbox>) {
        let (seats, inboxes) = (0..workers)
            .map(|_| {
                let (sender, receiver) = mpsc::channel(INBOX);
                (Seat { load: AtomicUsize::new(0), inbox: sender }, receiver)
            })
            .unzip();
        let per_ip = PerIp { max: AtomicU32::new(per_ip.unwrap_or(0)), open: Mutex::default() };
        let (open, max_open) = (AtomicUsize::new(0), AtomicUsize::new(max_open));
        let wanting = AtomicUsize::new(0);
        (Arc::new(Crew { seats, open, max_open, wanting, per_ip }), inboxes)
    }

    /// Holds to other numbers from now on; connections that are open stay. Without `per_ip` so far, those were not
    /// counted for their clients.
    pub fn resize(&self, max_open: usize, per_ip: Option<u32>) {
        self.max_open.store(max_open, Ordering::Relaxed);
        self.per_ip.max.store(per_ip.unwrap_or(0), Ordering::Relaxed);
    }

    /// Connections open now, over all workers.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A place for one more connection; `None` when `max_connections` are open.
    pub fn reserve(self: &Arc<Self>, worker: usize) -> Option<Place> {
        let max_open = self.max_open.load(Ordering::Relaxed);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max_open).then_some(open + 1))
            .ok()?;
        self.seats[worker].load.fetch_add(1, Ordering::Relaxed);
        Some(Place { crew: self.clone(), worker, ip: None })
    }

    /// A place for a connection that nobody else would take, however many are open.
    pub fn reserve_beyond(self: &Arc<Self>, worker: usize) -> Place {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.seats[worker].load.fetch_add(1, Ordering::Relaxed);
        Place { crew: self.clone(), worker, ip: None }
    }

    /// Tells that a connection waits for a place.
    pub fn want(&self) -> Wanting<'_> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        Wanting(self)
    }

    /// Whether connections wait for a place.
    pub fn is_full(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0
    }

    /// The worker with the fewest connections, if it clearly has fewer than the one whose `place` this is.
    pub fn emptier_seat(&self, place: &Place) -> Option<usize> {
        let load = |seat: &Seat| seat.load.load(Ordering::Relaxed);
        let own = load(&self.seats[place.worker]).saturating_sub(1);
        let (least, seat) = self.seats.iter().enumerate().min_by_key(|(_, seat)| load(seat))?;
        // A sixteenth more is even enough: each hand-over costs a wake-up of the other thread.
        (own > load(seat) + own / 16).then_some(least)
    }

    /// Gives the connection to the worker at `seat`; hands it back when that one's inbox is full.
    pub fn hand_over(&self, seat: usize, arrival: Arrival, mut ticket: Ticket) -> Option<(Arrival, Ticket)> {
        let from = ticket.place.worker;
        ticket.place.move_to(seat);
        match self.seats[seat].inbox.try_send((arrival, ticket)) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => {
                let (arrival, mut ticket) = back;
                ticket.place.move_to(from);
                Some((arrival, ticket))
            }
        }
    }
}

/// One open connection in everybody's counts; gone when dropped.
pub struct Place {
    crew: Arc<Crew>,
    worker: usize,
    ip: Option<IpAddr>,
}

impl Place {
    /// Counts the connection for its client; false when `connections_per_ip` are open.
    pub fn count_for(&mut self, ip: IpAddr) -> bool {
        let per_ip = &self.crew.per_ip;
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

    fn move_to(&mut self, worker: usize) {
        self.crew.seats[self.worker].load.fetch_sub(1, Ordering::Relaxed);
        self.crew.seats[worker].load.fetch_add(1, Ordering::Relaxed);
        self.worker = worker;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crew.open.fetch_sub(1, Ordering::Relaxed);
        self.crew.seats[self.worker].load.fetch_sub(1, Ordering::Relaxed);
        if let Some(ip) = self.ip {
            let mut open = self.crew.per_ip.open.lock();
            if let Some(count) = open.get_mut(&ip) {
                *count -= 1;
                if *count == 0 {
                    open.remove(&ip);
                }
            }
        }
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.wanting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Listen, ListenAddress};

    #[test]
    fn no_more_than_max_places_exist_at_once() {
        let (crew, _inboxes) = Crew::new(2, 2, None);
        let first = crew.reserve(0).unwrap();
        let _second = crew.reserve(1).unwrap();
        assert!(crew.reserve(0).is_none());
        drop(first);
        assert!(crew.reserve(0).is_some());
    }

    #[test]
    fn other_numbers_hold_for_who_comes_next() {
        let (crew, _inboxes) = Crew::new(1, 1, None);
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = crew.reserve(0).unwrap();
        assert!(first.count_for(ip) && crew.reserve(0).is_none());
        crew.resize(4, Some(1));
        let [mut second, mut third] = [(); 2].map(|()| crew.reserve(0).unwrap());
        // The first was not counted.
        assert!(second.count_for(ip) && !third.count_for(ip));
        crew.resize(2, None);
        assert!(third.count_for(ip) && crew.reserve(0).is_none());
        drop((first, second, third));
        assert!(crew.open() == 0 && crew.per_ip.open.lock().is_empty());
    }

    #[test]
    fn one_client_gets_no_more_than_its_share_and_gets_it_back() {
        let (crew, _inboxes) = Crew::new(1, 10, Some(1));
        let ip = IpAddr::from([127, 0, 0, 1]);
        let mut first = crew.reserve(0).unwrap();
        let mut second = crew.reserve(0).unwrap();
        assert!(first.count_for(ip));
        assert!(!second.count_for(ip));
        drop(first);
        assert!(second.count_for(ip));
        drop(second);
        assert_eq!(crew.open(), 0);
        assert!(crew.per_ip.open.lock().is_empty());
    }

    #[test]
    fn the_second_of_two_connections_goes_to_the_idle_worker() {
        let (crew, mut inboxes) = Crew::new(2, 10, None);
        let first = crew.reserve(0).unwrap();
        assert_eq!(crew.emptier_seat(&first), None);
        let second = crew.reserve(0).unwrap();
        assert_eq!(crew.emptier_seat(&second), Some(1));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listen = Listen::plain(ListenAddress::Port(0));
        let door = Arc::new(Door::new(&listen, None).unwrap());
        assert!(crew.hand_over(1, Arrival::Unix(one), Ticket { place: second, door }).is_none());
        assert!(inboxes[1].try_recv().is_ok());
    }
}
