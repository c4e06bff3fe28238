//! The deadlines of a request: for its body, its upstream, the reader of its response, and the request as a whole.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::task::AbortHandle;

use super::{ClientSpans, ConnectionWatch, MissedDeadline, SweepCounter};

/// Ticks after which a request is slow and watches for a client that hangs up; for a quick request the watching
/// would cost more than the request.
const SLOW_AFTER: u64 = 1;

/// Ticks after which a client counts as sending nothing: one less than a second, because marks may be a tick old.
const BODY_IDLE_AFTER: u64 = 9;

/// A deadline on the gateway's side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayDeadline {
    /// The upstream's response, or the next piece of its body.
    Upstream,
    /// The whole request (`location.timeout`).
    Request,
}

/// The watch over one request of HTTP/2, or over all requests of an HTTP/1 connection in turn.
#[derive(Debug)]
pub struct RequestWatch {
    /// The connection on which the request came.
    pub connection: Rc<ConnectionWatch>,
    // All marks are sweep ticks; 0 = off.
    /// The tick at which the request began; 0 between requests.
    since: Cell<u64>,
    body_blocked: Cell<u64>,
    body_expired: Cell<bool>,
    /// The tick since which a piece of the response waits for its stream's window.
    unread: Cell<u64>,
    upstream_since: Cell<u64>,
    upstream_span: Cell<u64>,
    /// The head of the response has come: from then on a pending request body excuses no pause.
    has_answered: Cell<bool>,
    /// The tick at which the request must be over, unlike the marks above, which are begins.
    request_due: Cell<u64>,
    fired_deadline: Cell<Option<GatewayDeadline>>,
    slow: Cell<bool>,
    /// The request's own task; `None` if the connection's task does everything.
    task: RefCell<Option<RequestTask>>,
    /// The missed deadline that ended it.
    missed_deadline: Cell<Option<MissedDeadline>>,
}

#[derive(Debug)]
struct RequestTask {
    abort: AbortHandle,
    waker: Option<Waker>,
}

impl RequestWatch {
    pub(super) fn new(connection: Rc<ConnectionWatch>) -> RequestWatch {
        RequestWatch {
            connection,
            since: Cell::new(0),
            body_blocked: Cell::new(0),
            body_expired: Cell::new(false),
            unread: Cell::new(0),
            upstream_since: Cell::new(0),
            upstream_span: Cell::new(0),
            has_answered: Cell::new(false),
            request_due: Cell::new(0),
            fired_deadline: Cell::new(None),
            slow: Cell::new(false),
            task: RefCell::new(None),
            missed_deadline: Cell::new(None),
        }
    }

    /// A watch over a request of the gateway itself. No sweep reaches it, so its deadlines never fire.
    pub fn unswept(ticks: &Rc<SweepCounter>) -> RequestWatch {
        RequestWatch::new(Rc::new(ConnectionWatch::new(ticks.clone())))
    }

    fn ticks(&self) -> &SweepCounter {
        &self.connection.ticks
    }

    /// Names the request's own task, which is ended instead of the connection's.
    pub fn set_task(&self, abort: AbortHandle) {
        *self.task.borrow_mut() = Some(RequestTask { abort, waker: None });
    }

    /// Makes the task that awaits this the one to wake, instead of the connection's.
    pub async fn adopt_current_task(&self) {
        std::future::poll_fn(|cx| {
            self.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
    }

    /// Sets the waker used instead of the connection's.
    pub fn set_waker(&self, waker: &Waker) {
        if let Some(task) = self.task.borrow_mut().as_mut()
            && !task.waker.as_ref().is_some_and(|kept| kept.will_wake(waker))
        {
            task.waker = Some(waker.clone());
        }
    }

    fn wake_task(&self) {
        match self.task.borrow().as_ref() {
            Some(RequestTask { waker: Some(waker), .. }) => waker.wake_by_ref(),
            Some(_) => {}
            None => self.connection.wake_task(),
        }
    }

    /// Ends the request if its client has missed a deadline.
    pub(super) fn end_overdue(&self, spans: &ClientSpans) -> Option<MissedDeadline> {
        self.missed_deadline.set(Some(self.check_deadlines(spans)?));
        self.abort_now();
        self.missed_deadline.get()
    }

    /// Ends the request at once, and its connection unless the request has a task of its own.
    pub fn abort_now(&self) {
        match self.task.borrow_mut().take() {
            Some(task) => task.abort.abort(),
            None => self.connection.abort_now(),
        }
    }

    /// The missed deadline that ended the request or its connection.
    pub fn missed_deadline(&self) -> Option<MissedDeadline> {
        self.missed_deadline.get().or(self.connection.missed_deadline())
    }

    /// A complete head has come, so a request begins.
    #[inline]
    pub fn begin_request(&self) {
        self.connection.begin_request();
        self.since.set(self.ticks().current_tick());
        self.fired_deadline.set(None);
        self.body_expired.set(false);
    }

    /// The response is complete, or given up.
    #[inline]
    pub fn end_request(&self) {
        self.connection.end_request();
        self.since.set(0);
        self.slow.set(false);
        self.body_blocked.set(0);
        self.unread.set(0);
        self.upstream_since.set(0);
        self.request_due.set(0);
    }

    /// True if the request takes long enough that its client may leave meanwhile.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.slow.get()
    }

    // === the client ===

    /// The gateway wants more of the request body and the client sends none.
    #[inline]
    pub fn mark_body_blocked(&self) {
        if self.body_blocked.get() == 0 {
            self.body_blocked.set(self.ticks().current_tick());
        }
    }

    #[inline]
    pub(crate) fn clear_body_blocked(&self) {
        self.body_blocked.set(0);
    }

    /// True if the client's body stalled for too long.
    #[inline]
    pub fn body_expired(&self) -> bool {
        self.body_expired.get()
    }

    /// True if the gateway has waited about a second for the body and the client sent none of it.
    pub fn is_body_idle(&self) -> bool {
        let last_read = self.connection.last_body_read().max(1);
        self.ticks().is_overdue(self.body_blocked.get(), BODY_IDLE_AFTER)
            && self.ticks().is_overdue(last_read, BODY_IDLE_AFTER)
    }

    /// A piece of the response is passed on. Streams of one connection are read at different speeds, so each notes
    /// since when its reader has left no room for the next piece.
    #[inline]
    pub fn mark_response_unread(&self) {
        if self.connection.is_multiplexed() {
            self.unread.set(self.ticks().current_tick());
        }
    }

    /// There is room for the next piece.
    #[inline]
    pub fn clear_unread(&self) {
        self.unread.set(0);
    }

    // === the upstream ===

    /// Gives the upstream `span` ticks from now.
    #[inline]
    pub fn set_upstream_deadline(&self, span: u64) {
        self.upstream_since.set(self.ticks().current_tick());
        self.upstream_span.set(span);
        self.has_answered.set(false);
    }

    /// The same for the next piece of a response that has begun; keeps a span that is already running.
    #[inline]
    pub fn set_piece_deadline(&self, span: u64) {
        if self.upstream_since.get() == 0 {
            self.set_upstream_deadline(span);
            self.has_answered.set(true);
        }
    }

    /// A piece of the request was sent: the upstream's time to respond starts anew.
    #[inline]
    pub fn restart_upstream_span(&self) {
        if self.upstream_since.get() != 0 && !self.has_answered.get() {
            self.upstream_since.set(self.ticks().current_tick());
        }
    }

    /// Ends the wait for the upstream, so that its deadline no longer applies.
    #[inline]
    pub fn clear_upstream_span(&self) {
        self.upstream_since.set(0);
    }

    /// Gives the whole request `span` ticks from now, even if the previous span has passed.
    #[inline]
    pub fn set_request_deadline(&self, span: u64) {
        self.fired_deadline.set(None);
        self.request_due.set(self.ticks().current_tick().saturating_add(span).saturating_add(1));
    }

    /// Removes the request's deadline: it has become a tunnel, to which no location's timeout applies.
    pub fn clear_request_deadline(&self) {
        self.fired_deadline.set(None);
        self.request_due.set(0);
    }

    /// The deadline that passed, if any.
    #[inline]
    pub fn fired_deadline(&self) -> Option<GatewayDeadline> {
        self.fired_deadline.get()
    }

    pub(super) fn check_deadlines(&self, spans: &ClientSpans) -> Option<MissedDeadline> {
        let (ticks, now) = (self.ticks(), self.ticks().current_tick());
        if !self.slow.get() && ticks.is_overdue(self.since.get(), SLOW_AFTER) {
            self.slow.set(true);
            self.wake_task();
        }
        let late = self.request_due.get() != 0 && now >= self.request_due.get();
        if ticks.is_overdue(self.unread.get(), spans.write) {
            return Some(MissedDeadline::Write);
        }
        // A client that does not read would not receive an error response.
        if late && self.is_unread() {
            return Some(MissedDeadline::Request);
        }
        // Received bytes are not the client's delay, even if the upstream has no room for them yet.
        let last_read = self.connection.last_body_read();
        if ticks.is_overdue(self.body_blocked.get(), spans.body)
            && ticks.is_overdue(last_read.max(1), spans.body)
        {
            if self.body_expired.replace(true) {
                // One tick was enough time to send the 408.
                return Some(MissedDeadline::Body);
            }
            self.wake_task();
        }
        self.check_gateway_deadlines(late);
        None
    }

    /// True if the client leaves no room for more of the response.
    fn is_unread(&self) -> bool {
        self.connection.is_write_blocked() || self.unread.get() != 0
    }

    fn check_gateway_deadlines(&self, late: bool) {
        let now = self.ticks().current_tick();
        if late {
            self.request_due.set(0);
            self.fired_deadline.set(Some(GatewayDeadline::Request));
            self.wake_task();
        } else if self.upstream_since.get() != 0 {
            let is_fed = self.has_answered.get() || self.body_blocked.get() == 0;
            if !is_fed || self.is_unread() {
                // The client causes the delay, so the upstream's time does not run meanwhile.
                self.upstream_since.set(now);
            } else if now.saturating_sub(self.upstream_since.get()) > self.upstream_span.get() {
                self.upstream_since.set(0);
                self.fired_deadline.set(Some(GatewayDeadline::Upstream));
                self.wake_task();
            }
        }
    }
}
