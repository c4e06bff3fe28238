//! Coarse deadlines: every [`TICK`], one sweep per worker checks all of its connections and requests.
//!
//! A timer per request costs more than judging the request, so connections and requests only note the tick at which
//! a wait began, and the sweep ends those that waited too long. A deadline fires at most one tick late, never early.
//! It serves the client's `header`, `idle`, `body` and `write`, the upstream's `response` and `body`, and a location's
//! `timeout`. Turns in a queue and connects to upstreams have timers of their own.

mod connection;
mod listener_terms;
mod request;
mod request_boundary;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

pub use connection::ConnectionWatch;
pub use listener_terms::ListenerTerms;
pub use request::{GatewayDeadline, RequestWatch};
pub use request_boundary::UnreadBody;

/// The time between two sweeps of a worker.
pub const TICK: Duration = Duration::from_millis(100);

/// A span in ticks, rounded up. It has passed when more than this many ticks were counted, so never early.
pub fn ticks_for(span: Duration) -> u64 {
    span.as_millis().div_ceil(TICK.as_millis()) as u64
}

/// The longest spans a client may make the gateway wait, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct ClientSpans {
    /// The time from the first byte of a head, or of a frame of HTTP/2, to its end.
    pub header: u64,
    /// The time between two requests on a connection.
    pub idle: u64,
    /// An idle connection closes after this span to make room for another.
    pub spare: u64,
    /// The longest gap between two reads of a request's body.
    pub body: u64,
    /// The longest time in which a write to the client makes no progress.
    pub write: u64,
    /// The time for the PROXY header and the TLS handshake together.
    pub handshake: u64,
}

/// The worker's count of ticks, shared by all its connections. Starts at 1: 0 means "not waiting" everywhere.
#[derive(Debug)]
pub struct SweepCounter(Cell<u64>);

impl Default for SweepCounter {
    fn default() -> Self {
        SweepCounter(Cell::new(1))
    }
}

impl SweepCounter {
    /// The tick of the last sweep, counted from the start of the worker; at least 1.
    #[inline]
    pub fn current_tick(&self) -> u64 {
        self.0.get()
    }

    /// True if more than `span` ticks passed since `since`; 0 = not waiting.
    #[inline]
    fn is_overdue(&self, since: u64, span: u64) -> bool {
        since != 0 && self.current_tick().saturating_sub(since) > span
    }
}

/// A deadline that a client missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedDeadline {
    /// A PROXY header or a TLS handshake is not complete.
    Handshake,
    /// No request came in time on an idle connection.
    Idle,
    /// A head, or a frame of HTTP/2, is not complete.
    Header,
    /// The client sends nothing of a request body that the gateway waits for.
    Body,
    /// The client does not read a response.
    Write,
    /// `location.timeout` passed while the client does not read the response.
    Request,
}

/// All client connections of one worker, and the requests on them.
pub struct WatchList {
    /// The count of ticks, which the connections share.
    pub ticks: Rc<SweepCounter>,
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

    /// A watch for requests on `connection`: over HTTP/1 for all of them in turn, over HTTP/2 for a single one.
    pub fn watch_request(&self, connection: &Rc<ConnectionWatch>) -> Rc<RequestWatch> {
        let watch = Rc::new(RequestWatch::new(connection.clone()));
        self.requests.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Updates the ticks, ends all that missed a deadline, and reports each to `on_missed`.
    pub fn sweep_deadlines(&self, spans: &ClientSpans, mut on_missed: impl FnMut(MissedDeadline)) {
        self.ticks.0.set(1 + (self.started.elapsed().as_millis() / TICK.as_millis()) as u64);
        let mut is_in_time = |missed: Option<MissedDeadline>| missed.map(&mut on_missed).is_none();
        self.connections
            .borrow_mut()
            .retain(|weak| weak.upgrade().is_some_and(|watch| is_in_time(watch.end_overdue(spans))));
        self.requests
            .borrow_mut()
            .retain(|weak| weak.upgrade().is_some_and(|watch| is_in_time(watch.end_overdue(spans))));
    }

    /// Calls `act` for every open connection.
    pub fn for_each_connection(&self, act: impl Fn(&ConnectionWatch)) {
        self.connections.borrow().iter().filter_map(Weak::upgrade).for_each(|watch| act(&watch));
    }

    /// The number of open connections.
    pub fn open_count(&self) -> usize {
        self.connections.borrow().iter().filter(|weak| weak.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests;
