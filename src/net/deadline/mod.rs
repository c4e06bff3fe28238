//! Coarse deadlines: one sweep per worker every [`TICK`] looks at all of its connections and requests.
//!
//! A timer per request costs more than the request's own judgement, so a connection and its requests only note
//! *since when* they wait for what, and the sweep acts on those that waited too long. A deadline is met within one
//! tick after it is due, never before.

mod connection;
mod listener_terms;
mod request;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

pub use connection::ConnectionWatch;
pub use listener_terms::ListenerTerms;
pub use request::{GatewayDeadline, RequestWatch};

/// How often a worker sweeps.
pub const TICK: Duration = Duration::from_millis(100);

/// A span in ticks, rounded up: over when more than this many ticks were counted, so never early.
pub fn ticks_for(span: Duration) -> u64 {
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
pub struct TickCounter(Cell<u64>);

impl Default for TickCounter {
    fn default() -> Self {
        TickCounter(Cell::new(1))
    }
}

impl TickCounter {
    #[inline]
    pub fn current_tick(&self) -> u64 {
        self.0.get()
    }

    /// Whether more than `span` ticks passed since `since`, a mark that is 0 while nobody waits.
    #[inline]
    fn is_overdue(&self, since: u64, span: u64) -> bool {
        since != 0 && self.current_tick().saturating_sub(since) > span
    }
}

/// Which of its deadlines a client broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedDeadline {
    /// What comes before the first request: a PROXY header, a TLS handshake.
    Handshake,
    Idle,
    Header,
    Body,
    /// An answer is not read.
    Write,
    /// `location.timeout`, of an answer that is not read just then.
    Request,
}

/// All client connections of one worker, and the requests on them.
pub struct WatchList {
    pub ticks: Rc<TickCounter>,
    started: Instant,
    connections: RefCell<Vec<Weak<ConnectionWatch>>>,
    requests: RefCell<Vec<Weak<RequestWatch>>>,
}

impl Default for WatchList {
    fn default() -> Self {
        WatchList {
            ticks: Rc::default(),
            started: Instant::now(),
            connections: RefCell::default(),
            requests: RefCell::default(),
        }
    }
}

impl WatchList {
    /// A watch for a new connection.
    pub fn watch_connection(&self) -> Rc<ConnectionWatch> {
        let watch = Rc::new(ConnectionWatch::new(self.ticks.clone()));
        self.connections.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// A watch for requests on `connection`: for all of them where one follows the other, else for a single one.
    pub fn watch_request(&self, connection: &Rc<ConnectionWatch>) -> Rc<RequestWatch> {
        let watch = Rc::new(RequestWatch::new(connection.clone()));
        self.requests.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Sets the ticks to the time that passed and ends what broke a deadline, telling `broken` of each.
    pub fn sweep_deadlines(&self, spans: &ClientSpans, mut broken: impl FnMut(MissedDeadline)) {
        self.ticks.0.set(1 + (self.started.elapsed().as_millis() / TICK.as_millis()) as u64);
        self.connections.borrow_mut().retain(|weak| {
            let Some(watch) = weak.upgrade() else { return false };
            let Some(which) = watch.check_deadlines(spans) else { return true };
            broken(which);
            watch.abort_for(which);
            false
        });
        self.requests.borrow_mut().retain(|weak| {
            let Some(watch) = weak.upgrade() else { return false };
            let Some(which) = watch.check_deadlines(spans) else { return true };
            broken(which);
            watch.abort_for(which);
            false
        });
    }

    /// Does this to every connection that is open.
    pub fn for_each_connection(&self, act: impl Fn(&ConnectionWatch)) {
        self.connections.borrow().iter().filter_map(Weak::upgrade).for_each(|watch| act(&watch));
    }

    /// Connections that are still open.
    pub fn open_count(&self) -> usize {
        self.connections.borrow().iter().filter(|weak| weak.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests;
