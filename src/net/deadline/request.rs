//! The deadlines of a request: its body, its upstream, its reader, and the whole of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use tokio::task::AbortHandle;

use super::{Broken, ClientSpans, ConnectionWatch, Ticks};

/// Ticks after which a request is slow: watching each for a client that leaves would cost the quick ones more than
/// they take.
const SLOW: u64 = 1;

/// Ticks after which a client counts as sending nothing: one less than a second has, for marks are up to one tick old.
const IDLE: u64 = 9;

/// What the request in flight waits for, on our side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The upstream's answer, or the next piece of its body.
    Upstream,
    /// The whole request (`location.timeout`).
    Request,
}

/// The watch over one request, or over all of a connection that follow one another.
#[derive(Debug)]
pub struct RequestWatch {
    pub connection: Rc<ConnectionWatch>,
    /// 0 between requests.
    since: Cell<u64>,
    body_blocked: Cell<u64>,
    body_expired: Cell<bool>,
    /// Since when a piece of the answer waits for its stream's window.
    unread: Cell<u64>,
    upstream_since: Cell<u64>,
    upstream_span: Cell<u64>,
    /// The head of the answer has come: what the client still sends excuses no pause.
    has_answered: Cell<bool>,
    /// Unlike the marks above this is a moment to come.
    request_due: Cell<u64>,
    fired: Cell<Option<Due>>,
    slow: Cell<bool>,
    /// The request's own task; `None` where the connection's task does everything.
    task: RefCell<Option<Task>>,
    /// The deadline for which it was ended.
    broken: Cell<Option<Broken>>,
}

#[derive(Debug)]
struct Task {
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
            fired: Cell::new(None),
            slow: Cell::new(false),
            task: RefCell::new(None),
            broken: Cell::new(None),
        }
    }

    fn ticks(&self) -> &Ticks {
        &self.connection.ticks
    }

    /// The request is handled by a task of its own, which is ended in the connection's place.
    pub fn set_task(&self, abort: AbortHandle) {
        *self.task.borrow_mut() = Some(Task { abort, waker: None });
    }

    /// Remembers the task this is awaited in as the one to wake in the connection's place.
    pub async fn know_task(&self) {
        std::future::poll_fn(|cx| {
            self.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
    }

    /// Remembers whom to wake in the connection's place.
    pub fn set_waker(&self, waker: &Waker) {
        if let Some(task) = self.task.borrow_mut().as_mut()
            && !task.waker.as_ref().is_some_and(|kept| kept.will_wake(waker))
        {
            task.waker = Some(waker.clone());
        }
    }

    fn wake(&self) {
        match self.task.borrow().as_ref() {
            Some(Task { waker: Some(waker), .. }) => waker.wake_by_ref(),
            Some(_) => {}
            None => self.connection.wake(),
        }
    }

    /// Ends the request because of a deadline.
    pub(super) fn break_off(&self, broken: Broken) {
        self.broken.set(Some(broken));
        self.abort_now();
    }

    /// Ends the request without another word, and its connection if others cannot go on there.
    pub fn abort_now(&self) {
        match self.task.borrow_mut().take() {
            Some(task) => task.abort.abort(),
            None => self.connection.abort_now(),
        }
    }

    /// The deadline for which the request, or its connection, was ended.
    pub fn broken(&self) -> Option<Broken> {
        self.broken.get().or(self.connection.broken())
    }

    /// A whole head came: the request is ours to answer.
    #[inline]
    pub fn begins(&self) {
        self.connection.request_begins();
        self.since.set(self.ticks().now());
        self.fired.set(None);
        self.body_expired.set(false);
    }

    /// The answer is complete, or given up.
    #[inline]
    pub fn ends(&self) {
        self.connection.request_ends();
        self.since.set(0);
        self.slow.set(false);
        self.body_blocked.set(0);
        self.unread.set(0);
        self.upstream_since.set(0);
        self.request_due.set(0);
    }

    /// The request in flight takes long enough that its client may leave meanwhile.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.slow.get()
    }

    // === what the client does ===

    /// We want more of the request body and the client sends none.
    #[inline]
    pub fn body_blocked(&self) {
        if self.body_blocked.get() == 0 {
            self.body_blocked.set(self.ticks().now());
        }
    }

    #[inline]
    pub fn body_moved(&self) {
        self.body_blocked.set(0);
    }

    /// True once the client's body stalled for too long.
    #[inline]
    pub fn body_expired(&self) -> bool {
        self.body_expired.get()
    }

    /// Whether the client sent nothing of the body that is wanted for about a second.
    pub fn is_body_idle(&self) -> bool {
        let last_read = self.connection.last_body_read().max(1);
        self.ticks().overdue(self.body_blocked.get(), IDLE) && self.ticks().overdue(last_read, IDLE)
    }

    /// A piece of the answer is handed on. Streams of one connection are read at different speeds, so each notes
    /// for itself since when its reader gave no room for the next piece.
    #[inline]
    pub fn handed_on(&self) {
        if self.connection.is_multiplexed() {
            self.unread.set(self.ticks().now());
        }
    }

    /// There is room for the next piece.
    #[inline]
    pub fn wanted(&self) {
        self.unread.set(0);
    }

    // === what the upstream does ===

    /// Gives the upstream `span` ticks from now.
    #[inline]
    pub fn await_upstream(&self, span: u64) {
        self.upstream_since.set(self.ticks().now());
        self.upstream_span.set(span);
        self.has_answered.set(false);
    }

    /// The same for the next piece of an answer that has begun; keeps a span that is already running.
    #[inline]
    pub fn await_upstream_more(&self, span: u64) {
        if self.upstream_since.get() == 0 {
            self.await_upstream(span);
            self.has_answered.set(true);
        }
    }

    /// A piece of the request went on its way: the upstream's time to answer starts anew.
    #[inline]
    pub fn upstream_fed(&self) {
        if self.upstream_since.get() != 0 && !self.has_answered.get() {
            self.upstream_since.set(self.ticks().now());
        }
    }

    #[inline]
    pub fn upstream_moved(&self) {
        self.upstream_since.set(0);
    }

    /// Gives the whole request `span` ticks from now, even if the span before has passed.
    #[inline]
    pub fn await_request(&self, span: u64) {
        self.fired.set(None);
        self.request_due.set(self.ticks().now().saturating_add(span).saturating_add(1));
    }

    /// The request goes on as something that no location's timeout is meant for.
    pub fn switched(&self) {
        self.fired.set(None);
        self.request_due.set(0);
    }

    /// The deadline that passed, if one did.
    #[inline]
    pub fn fired(&self) -> Option<Due> {
        self.fired.get()
    }

    pub(super) fn sweep(&self, spans: &ClientSpans) -> Option<Broken> {
        let (ticks, now) = (self.ticks(), self.ticks().now());
        if !self.slow.get() && ticks.overdue(self.since.get(), SLOW) {
            self.slow.set(true);
            self.wake();
        }
        let late = self.request_due.get() != 0 && now >= self.request_due.get();
        if ticks.overdue(self.unread.get(), spans.write) {
            return Some(Broken::Write);
        }
        // A client that does not read could not be told that its request took too long.
        if late && self.is_unread() {
            return Some(Broken::Request);
        }
        // What came is not the client's delay, even if the upstream gives no room for it yet.
        let last_read = self.connection.last_body_read();
        if ticks.overdue(self.body_blocked.get(), spans.body) && ticks.overdue(last_read.max(1), spans.body) {
            if self.body_expired.replace(true) {
                // One tick was time enough to answer 408.
                return Some(Broken::Body);
            }
            self.wake();
        }
        self.sweep_own_side(late);
        None
    }

    /// The client takes nothing.
    fn is_unread(&self) -> bool {
        self.connection.is_write_blocked() || self.unread.get() != 0
    }

    fn sweep_own_side(&self, late: bool) {
        let now = self.ticks().now();
        if late {
            self.request_due.set(0);
            self.fired.set(Some(Due::Request));
            self.wake();
        } else if self.upstream_since.get() != 0 {
            let is_fed = self.has_answered.get() || self.body_blocked.get() == 0;
            if !is_fed || self.is_unread() {
                // The client holds things up; the upstream's time does not run meanwhile.
                self.upstream_since.set(now);
            } else if now.saturating_sub(self.upstream_since.get()) > self.upstream_span.get() {
                self.upstream_since.set(0);
                self.fired.set(Some(Due::Upstream));
                self.wake();
            }
        }
    }
}
