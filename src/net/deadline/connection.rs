//! The deadlines of a client connection: what holds whatever is asked on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use tokio::task::AbortHandle;

use super::{Admission, Broken, ClientSpans, Ticks};

/// Ticks without a request after which a connection gives back what it needs for serving one.
const REST_AFTER: u64 = 2;

/// Ticks that a connection which shall end stays open after its last answer: the next request may be on its way
/// already, and is told that it is the last one.
const LEAVE_AFTER: u64 = 5;

/// Bytes of a piece that costs more to copy than to write by itself.
const LARGE: usize = 16 * 1024;

/// Ticks that a client of HTTP/2 may take to part with us.
const GOODBYE: u64 = 10;

/// What a client connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A PROXY header or a TLS handshake is on its way.
    Opening,
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
    pub(super) ticks: Rc<Ticks>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    requests: Cell<u32>,
    /// Requests come as streams, beside frames that are no request.
    multiplexed: Cell<bool>,
    /// The client of a connection that shall end knows which of its streams is the last.
    parted: Cell<bool>,
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
    closes_answer: Cell<bool>,
    resting: Cell<bool>,
    /// Its answers are large.
    large: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    abort: RefCell<Option<AbortHandle>>,
    /// The deadline for which it was ended.
    broken: Cell<Option<Broken>>,
    /// The terms on which it was let in.
    admission: RefCell<Option<Arc<Admission>>>,
    /// It is asked more now than it was: no request that is on its way is answered.
    revoked: Cell<bool>,
}

impl ConnectionWatch {
    pub(super) fn new(ticks: Rc<Ticks>) -> ConnectionWatch {
        let since = Cell::new(ticks.now());
        ConnectionWatch {
            ticks,
            phase: Cell::new(Phase::Idle),
            since,
            requests: Cell::new(0),
            multiplexed: Cell::new(false),
            parted: Cell::new(false),
            frame_since: Cell::new(0),
            last_read: Cell::new(0),
            write_blocked: Cell::new(0),
            closing_since: Cell::new(0),
            body_unread: Cell::new(false),
            shut: Cell::new(false),
            closes_answer: Cell::new(false),
            resting: Cell::new(false),
            large: Cell::new(false),
            waker: RefCell::new(None),
            abort: RefCell::new(None),
            broken: Cell::new(None),
            admission: RefCell::new(None),
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

    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Several requests may be in flight at a time from now on, each with a task of its own.
    pub fn multiplex(&self) {
        self.multiplexed.set(true);
        self.enter(Phase::Idle);
    }

    pub fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    /// Something else comes before the first request, and has to be complete in time.
    pub fn opening_begins(&self) {
        self.enter(Phase::Opening);
    }

    pub fn opening_ends(&self) {
        self.enter(Phase::Idle);
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.ticks.now());
    }

    // === what the client does ===

    /// Bytes came from the client.
    #[inline]
    pub fn bytes_read(&self) {
        self.last_read.set(self.ticks.now());
        self.resting.set(false);
        // Between two streams come frames that are no head; what stays idle is told by its streams alone.
        if self.phase.get() == Phase::Idle && !self.multiplexed.get() {
            self.enter(Phase::Head);
        }
    }

    /// Between frames there is nothing to wait for; within one the client owes the rest.
    pub fn frame_pending(&self, is_pending: bool) {
        if !is_pending {
            self.frame_since.set(0);
        } else if self.frame_since.get() == 0 {
            self.frame_since.set(self.ticks.now());
        }
    }

    /// The client answered a PING. We send one only with the word that the connection shall end, and name the last
    /// stream when the answer is there: what was asked before it came is known by then.
    pub fn ping_answered(&self) {
        self.parted.set(self.closing());
    }

    /// The tick of now.
    pub fn now(&self) -> u64 {
        self.ticks.now()
    }

    /// A whole head came: the request is ours to answer.
    #[inline]
    pub(super) fn request_begins(&self) {
        self.requests.set(self.requests.get() + 1);
        self.enter(Phase::Busy);
        self.body_unread.set(false);
    }

    /// An answer is complete, or given up.
    #[inline]
    pub(super) fn request_ends(&self) {
        let left = self.requests.get().saturating_sub(1);
        self.requests.set(left);
        if left == 0 {
            self.enter(Phase::Idle);
        }
    }

    #[inline]
    pub fn write_blocked(&self) {
        if self.write_blocked.get() == 0 {
            self.write_blocked.set(self.ticks.now());
        }
    }

    #[inline]
    pub fn write_moved(&self) {
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
    pub(super) fn break_off(&self, broken: Broken) {
        self.broken.set(Some(broken));
        self.abort_now();
    }

    pub(super) fn broken(&self) -> Option<Broken> {
        self.broken.get()
    }

    /// Ends the connection's task without another word.
    pub fn abort_now(&self) {
        if let Some(abort) = self.abort.borrow_mut().take() {
            abort.abort();
        }
    }

    /// Asks the connection to end after the requests in flight, at once when there is none.
    pub fn close_gracefully(&self) {
        if !self.closing() {
            self.closing_since.set(self.ticks.now());
            self.wake();
        }
    }

    /// Remembers the terms on which it was let in.
    pub fn set_admission(&self, admission: Arc<Admission>) {
        *self.admission.borrow_mut() = Some(admission);
    }

    /// Asks the connection to end if it would be refused now.
    pub fn recheck_admission(&self) {
        let admission = self.admission.borrow();
        let is_over = |one: &&Arc<Admission>| one.is_over(self.is_multiplexed());
        if let Some(admission) = admission.as_ref().filter(is_over) {
            self.revoked.set(admission.is_tightened());
            self.close_gracefully();
            self.wake();
        }
    }

    /// Whether nothing may be asked on it any more.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.get()
    }

    #[inline]
    pub fn closing(&self) -> bool {
        self.closing_since.get() != 0
    }

    /// Whether a client of HTTP/2 that was asked to part with us has had its time.
    pub fn may_part(&self) -> bool {
        self.ticks.overdue(self.closing_since.get(), GOODBYE)
    }

    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.phase.get() == Phase::Busy
    }

    /// Whether something can still be asked on a connection that shall end. Where one request follows the other, the
    /// one that is being answered is the last.
    pub fn may_ask(&self) -> bool {
        if self.multiplexed.get() { !self.parted.get() } else { !self.is_busy() && !self.shut.get() }
    }

    /// Whether an answer has been written and the client may still be sending, so that closing would be a reset.
    pub fn is_parting(&self) -> bool {
        self.shut.get() || self.body_unread.get()
    }

    /// Whether a connection that shall end may do so now, without losing a request that is on its way.
    pub fn may_leave(&self) -> bool {
        match self.phase.get() {
            Phase::Idle | Phase::Opening => self.ticks.now() >= self.since.get() + LEAVE_AFTER,
            // It is answered as the last one; the deadline of heads holds meanwhile.
            Phase::Head => false,
            Phase::Busy => true,
        }
    }

    /// A body has to be read before the next head, whatever becomes of its request: it begins, or is given up.
    pub fn leave_body_unread(&self) {
        self.body_unread.set(true);
    }

    /// It has been read to its end; bytes that came since the answer were no head.
    pub fn body_was_read(&self) {
        self.body_unread.set(false);
        if self.phase.get() == Phase::Head {
            self.enter(Phase::Idle);
        }
    }

    /// Whether the client may still be sending something that nobody will read: over HTTP/2 streams beyond the last,
    /// which it does not know yet.
    pub fn owes_bytes(&self) -> bool {
        self.body_unread.get() || self.phase.get() == Phase::Head || self.parted.get()
    }

    /// Nothing more will be written.
    pub fn shut(&self) {
        self.shut.set(true);
    }

    /// An answer begins that ends with the connection: HTTP/1.0 knows no chunks.
    pub fn close_ends_answer(&self) {
        self.closes_answer.set(true);
    }

    /// Whether closing now would make an answer look whole that is not.
    pub fn is_within_answer(&self) -> bool {
        self.closes_answer.get() && !self.shut.get()
    }

    /// Only the socket is kept, until bytes come.
    pub fn rest(&self) {
        self.resting.set(true);
    }

    /// Whether the connection has stood unused so long that only its socket is worth keeping.
    #[inline]
    pub fn may_rest(&self) -> bool {
        self.ticks.now() >= self.since.get() + REST_AFTER && self.is_unused()
    }

    /// Whether there is nothing to read for a request, and nothing to write of an answer.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.phase.get() == Phase::Idle
            && !(self.multiplexed.get()
                || self.body_unread.get()
                || self.shut.get()
                || self.is_write_blocked())
    }

    /// A piece of an answer with that many bytes is handed on.
    #[inline]
    pub fn piece_handed_on(&self, bytes: usize) {
        if bytes >= LARGE {
            self.large.set(true);
        }
    }

    /// Whether some of its answers came in large pieces.
    #[inline]
    pub fn has_large_answers(&self) -> bool {
        self.large.get()
    }

    pub(super) fn sweep(&self, spans: &ClientSpans) -> Option<Broken> {
        let overdue = |since: u64, span: u64| self.ticks.overdue(since, span);
        // While the client takes nothing, we may read nothing either: then it is told by that.
        if overdue(self.frame_since.get(), spans.header) && !self.is_write_blocked() {
            return Some(Broken::Header);
        }
        match self.phase.get() {
            Phase::Opening if overdue(self.since.get(), spans.handshake) => return Some(Broken::Opening),
            Phase::Idle if self.multiplexed.get() && overdue(self.since.get(), spans.idle) => {
                // Told that no more is served here, the client may send elsewhere what is on its way already.
                if overdue(self.since.get(), spans.idle + GOODBYE) {
                    return Some(Broken::Idle);
                }
                self.close_gracefully();
            }
            Phase::Idle if overdue(self.since.get(), spans.idle) => return Some(Broken::Idle),
            Phase::Idle if overdue(self.since.get(), spans.spare) => self.close_gracefully(),
            Phase::Head if overdue(self.since.get(), spans.header) => return Some(Broken::Header),
            Phase::Opening | Phase::Idle | Phase::Head | Phase::Busy => {}
        }
        if overdue(self.write_blocked.get(), spans.write) {
            return Some(Broken::Write);
        }
        if (self.may_rest() && !self.resting.get()) || (self.closing() && self.may_leave()) {
            self.wake();
        }
        None
    }
}
