//! Coarse deadlines: one sweep per worker every [`TICK`] looks at all of its connections and requests.
//!
//! A timer per request costs more than the request's own judgement, so a connection and its requests only note
//! *since when* they wait for what, and the sweep acts on those that waited too long. A deadline is met within one
//! tick after it is due, never before.

mod admission;
mod connection;
mod request;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

pub use admission::Admission;
pub use connection::ConnectionWatch;
pub use request::{Due, RequestWatch};

/// How often a worker sweeps.
pub const TICK: Duration = Duration::from_millis(100);

/// A span in ticks, rounded up: over when more than this many ticks were counted, so never early.
pub fn ticks(span: Duration) -> u64 {
    span.as_millis().div_ceil(TICK.as_millis()) as u64
}

/// The longest spans a client may make us wait, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct ClientSpans {
    pub header: u64,
    pub idle: u64,
    /// A connection that stands unused for longer makes room for another.
    pub spare: u64,
    pub body: u64,
    pub write: u64,
    pub handshake: u64,
}

/// The worker's count of ticks, shared by all its connections. Starts at 1: 0 means "not waiting" everywhere.
#[derive(Debug)]
pub struct Ticks(Cell<u64>);

impl Default for Ticks {
    fn default() -> Self {
        Ticks(Cell::new(1))
    }
}

impl Ticks {
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.get()
    }

    /// Whether more than `span` ticks passed since `since`, a mark that is 0 while nobody waits.
    #[inline]
    fn overdue(&self, since: u64, span: u64) -> bool {
        since != 0 && self.now().saturating_sub(since) > span
    }
}

/// Which of its deadlines a client broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// What comes before the first request: a PROXY header, a TLS handshake.
    Opening,
    Idle,
    Header,
    Body,
    /// An answer is not read.
    Write,
    /// `location.timeout`, of an answer that is not read just then.
    Request,
}

/// All client connections of one worker, and the requests on them.
pub struct Watches {
    pub ticks: Rc<Ticks>,
    started: Instant,
    connections: RefCell<Vec<Weak<ConnectionWatch>>>,
    requests: RefCell<Vec<Weak<RequestWatch>>>,
}

impl Default for Watches {
    fn default() -> Self {
        Watches {
            ticks: Rc::default(),
            started: Instant::now(),
            connections: RefCell::default(),
            requests: RefCell::default(),
        }
    }
}

impl Watches {
    /// A watch for a new connection.
    pub fn open(&self) -> Rc<ConnectionWatch> {
        let watch = Rc::new(ConnectionWatch::new(self.ticks.clone()));
        self.connections.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// A watch for requests on `connection`: for all of them where one follows the other, else for a single one.
    pub fn open_request(&self, connection: &Rc<ConnectionWatch>) -> Rc<RequestWatch> {
        let watch = Rc::new(RequestWatch::new(connection.clone()));
        self.requests.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Sets the ticks to the time that passed and ends what broke a deadline, telling `broken` of each.
    pub fn sweep(&self, spans: &ClientSpans, mut broken: impl FnMut(Broken)) {
        self.ticks.0.set(1 + (self.started.elapsed().as_millis() / TICK.as_millis()) as u64);
        self.connections.borrow_mut().retain(|weak| {
            let Some(watch) = weak.upgrade() else { return false };
            let Some(which) = watch.sweep(spans) else { return true };
            broken(which);
            watch.break_off(which);
            false
        });
        self.requests.borrow_mut().retain(|weak| {
            let Some(watch) = weak.upgrade() else { return false };
            let Some(which) = watch.sweep(spans) else { return true };
            broken(which);
            watch.break_off(which);
            false
        });
    }

    /// Does this to every connection that is open.
    pub fn each(&self, act: impl Fn(&ConnectionWatch)) {
        self.connections.borrow().iter().filter_map(Weak::upgrade).for_each(|watch| act(&watch));
    }

    /// Connections that are still open.
    pub fn open_count(&self) -> usize {
        self.connections.borrow().iter().filter(|weak| weak.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests;
