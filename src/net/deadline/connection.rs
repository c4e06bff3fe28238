//! The deadlines of a client connection: what holds whatever is asked on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::task::AbortHandle;

use super::{ClientSpans, ListenerTerms, MissedDeadline, TickCounter};

/// Ticks without a request after which a connection gives back what it needs for serving one.
const HIBERNATE_AFTER: u64 = 2;

/// Ticks that a connection which shall end stays open after its last answer: the next request may be on its way
/// already, and is told that it is the last one.
const CLOSE_AFTER: u64 = 5;

/// Bytes of a piece that costs more to copy than to write by itself.
const LARGE_PIECE: usize = 16 * 1024;

/// Ticks that a client of HTTP/2 may take to part with us.
const GOAWAY_TICKS: u64 = 10;

/// What a client connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// A PROXY header or a TLS handshake is on its way.
    Handshake,
    /// Between requests, or before the first byte.
    Idle,
    /// Some bytes of a head have come.
    Head,
    /// At least one request is being answered.
    Busy,
}

/// The watch over one client connection.
#[derive(Debug)]
pub struct ConnectionWatch {
    pub(super) ticks: Rc<TickCounter>,
    phase: Cell<ConnectionPhase>,
    since: Cell<u64>,
    requests: Cell<u32>,
    /// Requests come as streams, beside frames that are no request.
    multiplexed: Cell<bool>,
    /// The client of a connection that shall end knows which of its streams is the last.
    goaway_acked: Cell<bool>,
    /// Since when a frame or a header block has begun and not ended.
    frame_since: Cell<u64>,
    last_read: Cell<u64>,
    write_blocked: Cell<u64>,
    /// Since when it shall end.
    closing_since: Cell<u64>,
    body_unread: Cell<bool>,
    /// Our side has said its last word.
    shut: Cell<bool>,
    /// Only the end of the connection tells that an answer is whole.
    close_delimited: Cell<bool>,
    hibernating: Cell<bool>,
    /// Its answers are large.
    large_responses: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    abort: RefCell<Option<AbortHandle>>,
    /// The deadline for which it was ended.
    missed_deadline: Cell<Option<MissedDeadline>>,
    /// The terms on which it was let in.
    terms: RefCell<Option<Arc<ListenerTerms>>>,
    /// It is asked more now than it was: no request that is on its way is answered.
    revoked: Cell<bool>,
}

impl ConnectionWatch {
    pub(super) fn new(ticks: Rc<TickCounter>) -> ConnectionWatch {
        let since = Cell::new(ticks.current_tick());
        ConnectionWatch {
            ticks,
            phase: Cell::new(ConnectionPhase::Idle),
            since,
            requests: Cell::new(0),
            multiplexed: Cell::new(false),
            goaway_acked: Cell::new(false),
            frame_since: Cell::new(0),
            last_read: Cell::new(0),
            write_blocked: Cell::new(0),
            closing_since: Cell::new(0),
            body_unread: Cell::new(false),
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

    /// The task to end when the client breaks a deadline.
    pub fn set_abort(&self, handle: AbortHandle) {
        *self.abort.borrow_mut() = Some(handle);
    }

    /// Remembers whom to wake.
    pub fn set_waker(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    pub fn wake_task(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Several requests may be in flight at a time from now on, each with a task of its own.
    pub fn set_multiplexed(&self) {
        self.multiplexed.set(true);
        self.enter_phase(ConnectionPhase::Idle);
    }

    pub fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    /// Something else comes before the first request, and has to be complete in time.
    pub fn begin_handshake(&self) {
        self.enter_phase(ConnectionPhase::Handshake);
    }

    pub fn end_handshake(&self) {
        self.enter_phase(ConnectionPhase::Idle);
    }

    fn enter_phase(&self, phase: ConnectionPhase) {
        self.phase.set(phase);
        self.since.set(self.ticks.current_tick());
    }

    // === what the client does ===

    /// Bytes came from the client.
    #[inline]
    pub fn record_read(&self) {
        self.last_read.set(self.ticks.current_tick());
        self.hibernating.set(false);
        // Between two streams come frames that are no head; what stays idle is told by its streams alone.
        if self.phase.get() == ConnectionPhase::Idle && !self.multiplexed.get() {
            self.enter_phase(ConnectionPhase::Head);
        }
    }

    /// Between frames there is nothing to wait for; within one the client owes the rest.
    pub fn set_frame_pending(&self, is_pending: bool) {
        if !is_pending {
            self.frame_since.set(0);
        } else if self.frame_since.get() == 0 {
            self.frame_since.set(self.ticks.current_tick());
        }
    }

    /// The client answered a PING. We send one only with the word that the connection shall end, and name the last
    /// stream when the answer is there: what was asked before it came is known by then.
    pub fn record_pong(&self) {
        self.goaway_acked.set(self.is_closing());
    }

    /// The tick of now.
    pub fn current_tick(&self) -> u64 {
        self.ticks.current_tick()
    }

    /// A whole head came: the request is ours to answer.
    #[inline]
    pub(super) fn begin_request(&self) {
        self.requests.set(self.requests.get() + 1);
        self.enter_phase(ConnectionPhase::Busy);
        self.body_unread.set(false);
    }

    /// An answer is complete, or given up.
    #[inline]
    pub(super) fn end_request(&self) {
        let left = self.requests.get().saturating_sub(1);
        self.requests.set(left);
        if left == 0 {
            self.enter_phase(ConnectionPhase::Idle);
        }
    }

    #[inline]
    pub fn mark_write_blocked(&self) {
        if self.write_blocked.get() == 0 {
            self.write_blocked.set(self.ticks.current_tick());
        }
    }

    #[inline]
    pub fn clear_write_blocked(&self) {
        self.write_blocked.set(0);
    }

    /// The tick at which something last came that can only be the body of the one request in flight.
    pub(super) fn last_body_read(&self) -> u64 {
        if self.multiplexed.get() { 0 } else { self.last_read.get() }
    }

    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked.get() != 0
    }

    // === leaving ===

    /// Ends the connection's task because of a deadline.
    pub(super) fn abort_for(&self, broken: MissedDeadline) {
        self.missed_deadline.set(Some(broken));
        self.abort_now();
    }

    pub(super) fn missed_deadline(&self) -> Option<MissedDeadline> {
        self.missed_deadline.get()
    }

    /// Ends the connection's task without another word.
    pub fn abort_now(&self) {
        if let Some(abort) = self.abort.borrow_mut().take() {
            abort.abort();
        }
    }

    /// Asks the connection to end after the requests in flight, at once when there is none.
    pub fn close_gracefully(&self) {
        if !self.is_closing() {
            self.closing_since.set(self.ticks.current_tick());
            self.wake_task();
        }
    }

    /// Remembers the terms on which it was let in.
    pub fn set_terms(&self, admission: Arc<ListenerTerms>) {
        *self.terms.borrow_mut() = Some(admission);
    }

    /// Asks the connection to end if it would be refused now.
    pub fn recheck_terms(&self) {
        let admission = self.terms.borrow();
        let is_over = |one: &&Arc<ListenerTerms>| one.is_outdated_for(self.is_multiplexed());
        if let Some(admission) = admission.as_ref().filter(is_over) {
            self.revoked.set(admission.is_tightened());
            self.close_gracefully();
            self.wake_task();
        }
    }

    /// Whether nothing may be asked on it any more.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.get()
    }

    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing_since.get() != 0
    }

    /// Whether a client of HTTP/2 that was asked to part with us has had its time.
    pub fn is_goaway_overdue(&self) -> bool {
        self.ticks.is_overdue(self.closing_since.get(), GOAWAY_TICKS)
    }

    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.phase.get() == ConnectionPhase::Busy
    }

    /// Whether something can still be asked on a connection that shall end. Where one request follows the other, the
    /// one that is being answered is the last.
    pub fn may_receive_request(&self) -> bool {
        if self.multiplexed.get() { !self.goaway_acked.get() } else { !self.is_busy() && !self.shut.get() }
    }

    /// Whether an answer has been written and the client may still be sending, so that closing would be a reset.
    pub fn would_reset(&self) -> bool {
        self.shut.get() || self.body_unread.get()
    }

    /// Whether a connection that shall end may do so now, without losing a request that is on its way.
    pub fn may_close(&self) -> bool {
        match self.phase.get() {
            ConnectionPhase::Idle | ConnectionPhase::Handshake => {
                self.ticks.current_tick() >= self.since.get() + CLOSE_AFTER
            }
            // It is answered as the last one; the deadline of heads holds meanwhile.
            ConnectionPhase::Head => false,
            ConnectionPhase::Busy => true,
        }
    }

    /// A body has to be read before the next head, whatever becomes of its request: it begins, or is given up.
    pub fn mark_body_unread(&self) {
        self.body_unread.set(true);
    }

    /// It has been read to its end; bytes that came since the answer were no head.
    pub fn mark_body_read(&self) {
        self.body_unread.set(false);
        if self.phase.get() == ConnectionPhase::Head {
            self.enter_phase(ConnectionPhase::Idle);
        }
    }

    /// Whether the client may still be sending something that nobody will read: over HTTP/2 streams beyond the last,
    /// which it does not know yet.
    pub fn owes_bytes(&self) -> bool {
        self.body_unread.get() || self.phase.get() == ConnectionPhase::Head || self.goaway_acked.get()
    }

    /// Nothing more will be written.
    pub fn mark_shut(&self) {
        self.shut.set(true);
    }

    /// An answer begins that ends with the connection: HTTP/1.0 knows no chunks.
    pub fn mark_close_delimited(&self) {
        self.close_delimited.set(true);
    }

    /// Whether closing now would make an answer look whole that is not.
    pub fn is_response_unfinished(&self) -> bool {
        self.close_delimited.get() && !self.shut.get()
    }

    /// Only the socket is kept, until bytes come.
    pub fn mark_hibernating(&self) {
        self.hibernating.set(true);
    }

    /// Whether the connection has stood unused so long that only its socket is worth keeping.
    #[inline]
    pub fn may_hibernate(&self) -> bool {
        self.ticks.current_tick() >= self.since.get() + HIBERNATE_AFTER && self.is_unused()
    }

    /// Whether there is nothing to read for a request, and nothing to write of an answer.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.phase.get() == ConnectionPhase::Idle
            && !(self.multiplexed.get()
                || self.body_unread.get()
                || self.shut.get()
                || self.is_write_blocked())
    }

    /// A piece of an answer with that many bytes is handed on.
    #[inline]
    pub fn record_piece(&self, bytes: usize) {
        if bytes >= LARGE_PIECE {
            self.large_responses.set(true);
        }
    }

    /// Whether some of its answers came in large pieces.
    #[inline]
    pub fn has_large_responses(&self) -> bool {
        self.large_responses.get()
    }

    pub(super) fn check_deadlines(&self, spans: &ClientSpans) -> Option<MissedDeadline> {
        let overdue = |since: u64, span: u64| self.ticks.is_overdue(since, span);
        // While the client takes nothing, we may read nothing either: then it is told by that.
        if overdue(self.frame_since.get(), spans.header) && !self.is_write_blocked() {
            return Some(MissedDeadline::Header);
        }
        match self.phase.get() {
            ConnectionPhase::Handshake if overdue(self.since.get(), spans.handshake) => {
                return Some(MissedDeadline::Handshake);
            }
            ConnectionPhase::Idle if self.multiplexed.get() && overdue(self.since.get(), spans.idle) => {
                // Told that no more is served here, the client may send elsewhere what is on its way already.
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
