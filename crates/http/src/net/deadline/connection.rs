//! The deadlines and the closing of a client connection, independent of the requests on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::task::AbortHandle;

use super::request_boundary::{RequestBoundary, UnreadBody};
use super::{ClientSpans, ListenerTerms, MissedDeadline, SweepCounter};

/// Ticks without a request after which a connection releases the buffers for serving one.
const HIBERNATE_AFTER: u64 = 2;

/// Ticks that a closing connection stays open after its last response: the next request may be on its way already,
/// and is answered as the last one.
const CLOSE_AFTER: u64 = 5;

/// Bytes from which a piece costs more to copy than to write by itself.
const LARGE_PIECE: usize = 16 * 1024;

/// Ticks that a client of HTTP/2 may take to end its streams after the GOAWAY.
const GOAWAY_TICKS: u64 = 10;

/// The phase of a client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// A PROXY header or a TLS handshake is not complete.
    Handshake,
    /// No request is in flight, or the first byte has not come.
    Idle,
    /// Some bytes of a head have come.
    Head,
    /// One request or more is being answered.
    Busy,
}

/// The watch over one client connection.
#[derive(Debug)]
pub struct ConnectionWatch {
    pub(super) ticks: Rc<SweepCounter>,
    phase: Cell<ConnectionPhase>,
    since: Cell<u64>,
    boundary: RequestBoundary,
    /// HTTP/2: requests come as streams, among frames that are no request.
    multiplexed: Cell<bool>,
    /// The client of a closing connection has acknowledged the GOAWAY, so the last stream is known.
    goaway_acked: Cell<bool>,
    /// The tick since which a frame or a header block is incomplete.
    frame_since: Cell<u64>,
    last_read: Cell<u64>,
    write_blocked: Cell<u64>,
    closing_since: Cell<u64>,
    /// The gateway will write nothing more.
    shut: Cell<bool>,
    /// The end of the connection marks the end of the response.
    close_delimited: Cell<bool>,
    hibernating: Cell<bool>,
    large_responses: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    abort: RefCell<Option<AbortHandle>>,
    missed_deadline: Cell<Option<MissedDeadline>>,
    terms: RefCell<Option<Arc<ListenerTerms>>>,
    /// The listener now requires more: not even requests on their way are answered.
    revoked: Cell<bool>,
}

impl ConnectionWatch {
    pub(super) fn new(ticks: Rc<SweepCounter>) -> ConnectionWatch {
        let since = Cell::new(ticks.current_tick());
        ConnectionWatch {
            ticks,
            phase: Cell::new(ConnectionPhase::Idle),
            since,
            boundary: RequestBoundary::default(),
            multiplexed: Cell::new(false),
            goaway_acked: Cell::new(false),
            frame_since: Cell::new(0),
            last_read: Cell::new(0),
            write_blocked: Cell::new(0),
            closing_since: Cell::new(0),
            shut: Cell::new(false),
            close_delimited: Cell::new(false),
            hibernating: Cell::new(false),
            large_responses: Cell::new(false),
            waker: RefCell::new(None),
            abort: RefCell::new(None),
            missed_deadline: Cell::new(None),
            terms: RefCell::new(None),
            revoked: Cell::new(false),
        }
    }

    /// Sets the task to end when the client misses a deadline.
    pub fn set_abort(&self, handle: AbortHandle) {
        *self.abort.borrow_mut() = Some(handle);
    }

    /// Keeps the waker of the connection's task, for [`ConnectionWatch::wake_task`].
    pub fn set_waker(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    /// Wakes the connection's task, if it has left a waker.
    pub fn wake_task(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Allows several requests in flight at a time from now on, each with a task of its own.
    pub fn set_multiplexed(&self) {
        self.multiplexed.set(true);
        self.enter_phase(ConnectionPhase::Idle);
    }

    /// True if several requests may be in flight at a time, as over HTTP/2.
    pub fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    /// A handshake begins, and has to be complete in time before the first request.
    pub fn begin_handshake(&self) {
        self.enter_phase(ConnectionPhase::Handshake);
    }

    /// The connection waits for a request from now on, within the `idle` deadline.
    pub fn begin_idle(&self) {
        self.enter_phase(ConnectionPhase::Idle);
    }

    fn enter_phase(&self, phase: ConnectionPhase) {
        self.phase.set(phase);
        self.since.set(self.ticks.current_tick());
    }

    // === the client ===

    /// Bytes came from the client.
    #[inline]
    pub fn record_read(&self) {
        self.last_read.set(self.ticks.current_tick());
        self.hibernating.set(false);
        // Frames between two streams are no head; over HTTP/2 only streams end the idle phase.
        if self.phase.get() == ConnectionPhase::Idle && !self.multiplexed.get() {
            self.enter_phase(ConnectionPhase::Head);
        }
    }

    /// Notes if the client still has to send the rest of a frame.
    pub fn set_frame_pending(&self, is_pending: bool) {
        if !is_pending {
            self.frame_since.set(0);
        } else if self.frame_since.get() == 0 {
            self.frame_since.set(self.ticks.current_tick());
        }
    }

    /// The client answered a PING. One is sent only with the first GOAWAY, and its answer settles the last stream:
    /// all requests that were on their way have come by then.
    pub fn record_pong(&self) {
        self.goaway_acked.set(self.is_closing());
    }

    /// The tick of the worker's last sweep.
    pub fn current_tick(&self) -> u64 {
        self.ticks.current_tick()
    }

    /// A complete head has come, so a request begins.
    #[inline]
    pub(super) fn begin_request(&self) {
        self.boundary.begin_request();
        self.enter_phase(ConnectionPhase::Busy);
    }

    /// A response is complete, or given up.
    #[inline]
    pub(super) fn end_request(&self) {
        if self.boundary.end_request() {
            self.enter_phase(ConnectionPhase::Idle);
        }
    }

    #[inline]
    pub(crate) fn mark_write_blocked(&self) {
        if self.write_blocked.get() == 0 {
            self.write_blocked.set(self.ticks.current_tick());
        }
    }

    #[inline]
    pub(crate) fn clear_write_blocked(&self) {
        self.write_blocked.set(0);
    }

    /// The tick of the last read that can only have been the body of the one request in flight; 0 over HTTP/2.
    pub(super) fn last_body_read(&self) -> u64 {
        if self.multiplexed.get() { 0 } else { self.last_read.get() }
    }

    /// True if a write waits because the client does not read.
    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked.get() != 0
    }

    // === closing ===

    /// Ends the connection's task if its client has missed a deadline.
    pub(super) fn end_overdue(&self, spans: &ClientSpans) -> Option<MissedDeadline> {
        self.missed_deadline.set(Some(self.check_deadlines(spans)?));
        self.abort_now();
        self.missed_deadline.get()
    }

    pub(super) fn missed_deadline(&self) -> Option<MissedDeadline> {
        self.missed_deadline.get()
    }

    /// Ends the connection's task at once.
    pub fn abort_now(&self) {
        if let Some(abort) = self.abort.borrow_mut().take() {
            abort.abort();
        }
    }

    /// Closes the connection after the requests in flight; at once if there are none.
    pub fn close_gracefully(&self) {
        if !self.is_closing() {
            self.closing_since.set(self.ticks.current_tick());
            self.wake_task();
        }
    }

    /// Keeps the terms of the listener that accepted the connection.
    pub fn set_terms(&self, terms: Arc<ListenerTerms>) {
        *self.terms.borrow_mut() = Some(terms);
    }

    /// Closes the connection if its listener would not accept it now.
    pub fn recheck_terms(&self) {
        let terms = self.terms.borrow();
        let is_outdated = |terms: &&Arc<ListenerTerms>| terms.is_outdated_for(self.is_multiplexed());
        if let Some(terms) = terms.as_ref().filter(is_outdated) {
            self.revoked.set(terms.is_tightened());
            self.close_gracefully();
            self.wake_task();
        }
    }

    /// True if no request on it may be answered any more.
    pub fn is_revoked(&self) -> bool {
        self.revoked.get()
    }

    /// True if the connection closes after the requests in flight.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing_since.get() != 0
    }

    /// True if a client of HTTP/2 has had its time to end its streams after the GOAWAY.
    pub fn is_goaway_overdue(&self) -> bool {
        self.ticks.is_overdue(self.closing_since.get(), GOAWAY_TICKS)
    }

    /// True if a request is in flight.
    pub fn is_busy(&self) -> bool {
        self.phase.get() == ConnectionPhase::Busy
    }

    /// True if a closing connection may still receive a request. Over HTTP/1 the request in flight is the last.
    pub fn may_receive_request(&self) -> bool {
        if self.multiplexed.get() { !self.goaway_acked.get() } else { !self.is_busy() && !self.shut.get() }
    }

    /// True if a response was written and the client may still be sending, so that closing would be a reset.
    pub fn would_reset(&self) -> bool {
        self.shut.get() || self.boundary.is_body_unread()
    }

    /// True if a closing connection can end now without losing a request that is on its way.
    pub fn may_close(&self) -> bool {
        match self.phase.get() {
            ConnectionPhase::Idle | ConnectionPhase::Handshake => {
                self.ticks.current_tick() >= self.since.get() + CLOSE_AFTER
            }
            // The request is answered as the last one; the `header` deadline bounds the wait for it.
            ConnectionPhase::Head => false,
            ConnectionPhase::Busy => true,
        }
    }

    /// The body of the request that hyper has just handed out; `None` if it is empty, and over HTTP/2.
    #[inline]
    pub fn begin_body(&self, is_empty: bool) -> Option<UnreadBody> {
        self.boundary.begin_body(is_empty || self.multiplexed.get())
    }

    /// hyper has yielded the end of the body.
    pub fn end_body(&self, body: UnreadBody) {
        // Bytes that came since the response belong to the body, and the next head begins behind them at most.
        if self.boundary.end_body(body) && self.phase.get() == ConnectionPhase::Head {
            self.enter_phase(ConnectionPhase::Idle);
        }
    }

    /// The client may be sending bytes that will not be read.
    pub fn leave_unread(&self) {
        self.boundary.leave_unread();
    }

    /// True if the client may still be sending bytes that will not be read: over HTTP/2, streams beyond the last one,
    /// which the client does not know yet.
    pub fn owes_bytes(&self) -> bool {
        self.boundary.is_body_unread() || self.phase.get() == ConnectionPhase::Head || self.goaway_acked.get()
    }

    /// Nothing more will be written.
    pub fn mark_shut(&self) {
        self.shut.set(true);
    }

    /// A response begins that ends with the connection: HTTP/1.0 has no chunks.
    pub fn mark_close_delimited(&self) {
        self.close_delimited.set(true);
    }

    /// True if closing now would make an incomplete response look complete.
    pub fn is_response_unfinished(&self) -> bool {
        self.close_delimited.get() && !self.shut.get()
    }

    /// The connection keeps only its socket until bytes come.
    pub fn mark_hibernating(&self) {
        self.hibernating.set(true);
    }

    /// True if the connection has been unused so long that it should keep only its socket.
    pub fn may_hibernate(&self) -> bool {
        self.ticks.current_tick() >= self.since.get() + HIBERNATE_AFTER && self.is_unused()
    }

    /// True if nothing is left to read or write of a request, so that an HTTP/1 connection may be taken from hyper.
    pub fn is_unused(&self) -> bool {
        self.phase.get() == ConnectionPhase::Idle
            && self.boundary.is_reached()
            && !(self.multiplexed.get() || self.shut.get() || self.is_write_blocked())
    }

    /// A piece of a response with that many bytes is passed on.
    #[inline]
    pub fn record_piece(&self, bytes: usize) {
        if bytes >= LARGE_PIECE {
            self.large_responses.set(true);
        }
    }

    /// True if some responses came in large pieces.
    pub fn has_large_responses(&self) -> bool {
        self.large_responses.get()
    }

    pub(super) fn check_deadlines(&self, spans: &ClientSpans) -> Option<MissedDeadline> {
        let overdue = |since: u64, span: u64| self.ticks.is_overdue(since, span);
        // While the client does not read, the gateway may not read either: then the `write` deadline applies.
        if overdue(self.frame_since.get(), spans.header) && !self.is_write_blocked() {
            return Some(MissedDeadline::Header);
        }
        match self.phase.get() {
            ConnectionPhase::Handshake if overdue(self.since.get(), spans.handshake) => {
                return Some(MissedDeadline::Handshake);
            }
            ConnectionPhase::Idle if self.multiplexed.get() && overdue(self.since.get(), spans.idle) => {
                // A GOAWAY first: the client then knows that requests on their way are safe to send elsewhere.
                if overdue(self.since.get(), spans.idle + GOAWAY_TICKS) {
                    return Some(MissedDeadline::Idle);
                }
                self.close_gracefully();
            }
            ConnectionPhase::Idle if overdue(self.since.get(), spans.idle) => {
                return Some(MissedDeadline::Idle);
            }
            ConnectionPhase::Idle if overdue(self.since.get(), spans.spare) => self.close_gracefully(),
            ConnectionPhase::Head if overdue(self.since.get(), spans.header) => {
                return Some(MissedDeadline::Header);
            }
            ConnectionPhase::Handshake
            | ConnectionPhase::Idle
            | ConnectionPhase::Head
            | ConnectionPhase::Busy => {}
        }
        if overdue(self.write_blocked.get(), spans.write) {
            return Some(MissedDeadline::Write);
        }
        if (self.may_hibernate() && !self.hibernating.get()) || (self.is_closing() && self.may_close()) {
            self.wake_task();
        }
        None
    }
}
