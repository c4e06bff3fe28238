//! Coarse deadlines: one sweep per worker every [`TICK`] looks at all of its connections.
//!
//! A timer per request costs more than the request's own judgement, so a connection only notes *since when* it
//! waits for what, and the sweep acts on those that waited too long. A deadline is met within one tick after it
//! is due, never before.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How often a worker sweeps.
pub const TICK: Duration = Duration::from_millis(100);

/// Ticks after which a request is slow: watching each for a client that leaves would cost the quick ones more than
/// they take.
const SLOW: u64 = 1;

/// A span in ticks, rounded up: over when more than this many ticks were counted, so never early.
pub fn ticks(span: Duration) -> u64 {
    span.as_millis().div_ceil(TICK.as_millis()) as u64
}

/// The longest spans a client may make us wait, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct ClientSpans {
    pub header: u64,
    pub idle: u64,
    pub body: u64,
    pub write: u64,
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
}

/// What a client connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between requests, or before the first byte.
    Idle,
    /// Some bytes of a head have come.
    Head,
    /// A request is being answered.
    Busy,
}

/// What the request in flight waits for, on our side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The upstream's answer, or the next piece of its body.
    Upstream,
    /// The whole request (`location.timeout`).
    Request,
}

/// The deadlines of one client connection.
#[derive(Debug)]
pub struct Watch {
    ticks: Rc<Ticks>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    body_blocked: Cell<u64>,
    body_expired: Cell<bool>,
    write_blocked: Cell<u64>,
    upstream_since: Cell<u64>,
    upstream_span: Cell<u64>,
    /// Unlike the marks above this is a moment to come.
    request_due: Cell<u64>,
    fired: Cell<Option<Due>>,
    closing: Cell<bool>,
    body_unread: Cell<bool>,
    slow: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    abort: RefCell<Option<AbortHandle>>,
}

impl Watch {
    pub fn new(ticks: Rc<Ticks>) -> Watch {
        let since = Cell::new(ticks.now());
        Watch {
            ticks,
            phase: Cell::new(Phase::Idle),
            since,
            body_blocked: Cell::new(0),
            body_expired: Cell::new(false),
            write_blocked: Cell::new(0),
            upstream_since: Cell::new(0),
            upstream_span: Cell::new(0),
            request_due: Cell::new(0),
            fired: Cell::new(None),
            closing: Cell::new(false),
            body_unread: Cell::new(false),
            slow: Cell::new(false),
            waker: RefCell::new(None),
            abort: RefCell::new(None),
        }
    }

    /// The task to end when the client breaks a deadline.
    pub fn set_abort(&self, handle: AbortHandle) {
        *self.abort.borrow_mut() = Some(handle);
    }

    /// Remembers whom to wake; hyper polls everything of the connection from this one task.
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

    // === what the client does ===

    /// Bytes came from the client.
    #[inline]
    pub fn bytes_read(&self) {
        self.body_blocked.set(0);
        if self.phase.get() == Phase::Idle {
            self.phase.set(Phase::Head);
            self.since.set(self.ticks.now());
        }
    }

    /// A whole head came: the request is ours to answer.
    #[inline]
    pub fn request_begins(&self) {
        self.phase.set(Phase::Busy);
        self.since.set(self.ticks.now());
        self.fired.set(None);
        self.body_expired.set(false);
        self.body_unread.set(false);
    }

    /// The answer is complete, or given up.
    #[inline]
    pub fn request_ends(&self) {
        self.phase.set(Phase::Idle);
        self.since.set(self.ticks.now());
        self.slow.set(false);
        self.body_blocked.set(0);
        self.upstream_since.set(0);
        self.request_due.set(0);
    }

    /// We want more of the request body and the client sends none.
    #[inline]
    pub fn body_blocked(&self) {
        if self.body_blocked.get() == 0 {
            self.body_blocked.set(self.ticks.now());
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

    // === what the upstream does ===

    /// Gives the upstream `span` ticks from now.
    #[inline]
    pub fn await_upstream(&self, span: u64) {
        self.upstream_since.set(self.ticks.now());
        self.upstream_span.set(span);
    }

    /// As [`Watch::await_upstream`], but keeps a span that is already running.
    #[inline]
    pub fn await_upstream_more(&self, span: u64) {
        if self.upstream_since.get() == 0 {
            self.await_upstream(span);
        }
    }

    /// A piece of the request went on its way: the upstream's time to answer starts anew.
    #[inline]
    pub fn upstream_fed(&self) {
        if self.upstream_since.get() != 0 {
            self.upstream_since.set(self.ticks.now());
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
        self.request_due.set(self.ticks.now().saturating_add(span).saturating_add(1));
    }

    /// The deadline that passed, if one did.
    #[inline]
    pub fn fired(&self) -> Option<Due> {
        self.fired.get()
    }

    // === leaving ===

    /// The request in flight takes long enough that its client may leave meanwhile.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.slow.get()
    }

    /// Ends the connection's task without another word.
    pub fn abort_now(&self) {
        if let Some(abort) = self.abort.borrow_mut().take() {
            abort.abort();
        }
    }

    /// Asks the connection to end after the request in flight, at once when there is none.
    pub fn close_gracefully(&self) {
        if !self.closing.replace(true) {
            self.wake();
        }
    }

    #[inline]
    pub fn closing(&self) -> bool {
        self.closing.get()
    }

    /// The request was answered although its body was not read to the end.
    pub fn leave_body_unread(&self) {
        self.body_unread.set(true);
    }

    /// What was left unread has been read after all; bytes that came since the answer were no head.
    pub fn body_was_read(&self) {
        self.body_unread.set(false);
        if self.phase.get() == Phase::Head {
            self.phase.set(Phase::Idle);
            self.since.set(self.ticks.now());
        }
    }

    /// Whether the client may still be sending something that nobody will read.
    pub fn owes_bytes(&self) -> bool {
        self.body_unread.get() || self.phase.get() == Phase::Head
    }

    /// Whether the connection stands between two requests.
    pub fn is_idle(&self) -> bool {
        self.phase.get() == Phase::Idle
    }

    fn sweep(&self, spans: &ClientSpans) -> Option<Broken> {
        let now = self.ticks.now();
        let overdue = |since: u64, span: u64| since != 0 && now.saturating_sub(since) > span;
        match self.phase.get() {
            Phase::Idle if overdue(self.since.get(), spans.idle) => return Some(Broken::Idle),
            Phase::Head if overdue(self.since.get(), spans.header) => return Some(Broken::Header),
            Phase::Busy if !self.slow.get() && overdue(self.since.get(), SLOW) => {
                self.slow.set(true);
                self.wake();
            }
            Phase::Idle | Phase::Head | Phase::Busy => {}
        }
        let late = self.request_due.get() != 0 && now >= self.request_due.get();
        // A client that does not read could not be told that its request took too long.
        if overdue(self.write_blocked.get(), spans.write) || (late && self.write_blocked.get() != 0) {
            return Some(Broken::Write);
        }
        if overdue(self.body_blocked.get(), spans.body) {
            if self.body_expired.replace(true) {
                // One tick was time enough to answer 408.
                return Some(Broken::Body);
            }
            self.wake();
        }
        self.sweep_own_side(now, late);
        None
    }

    fn sweep_own_side(&self, now: u64, late: bool) {
        if late {
            self.request_due.set(0);
            self.fired.set(Some(Due::Request));
            self.wake();
        } else if self.upstream_since.get() != 0 {
            if self.body_blocked.get() != 0 || self.write_blocked.get() != 0 {
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

/// Which of its deadlines a client broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Idle,
    Header,
    Body,
    Write,
}

/// All client connections of one worker.
pub struct Watches {
    pub ticks: Rc<Ticks>,
    started: Instant,
    live: RefCell<Vec<Weak<Watch>>>,
}

impl Default for Watches {
    fn default() -> Self {
        Watches { ticks: Rc::default(), started: Instant::now(), live: RefCell::default() }
    }
}

impl Watches {
    /// A watch for a new connection.
    pub fn open(&self) -> Rc<Watch> {
        let watch = Rc::new(Watch::new(self.ticks.clone()));
        self.live.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Sets the ticks to the time that passed and ends the connections that broke a deadline, telling `broken` of each.
    pub fn sweep(&self, spans: &ClientSpans, mut broken: impl FnMut(Broken)) {
        self.ticks.0.set(1 + (self.started.elapsed().as_millis() / TICK.as_millis()) as u64);
        self.live.borrow_mut().retain(|weak| {
            let Some(watch) = weak.upgrade() else { return false };
            let Some(which) = watch.sweep(spans) else { return true };
            broken(which);
            watch.abort_now();
            false
        });
    }

    /// Does this to every connection that is open.
    pub fn each(&self, act: impl Fn(&Watch)) {
        self.live.borrow().iter().filter_map(Weak::upgrade).for_each(|watch| act(&watch));
    }

    /// Connections that are still open.
    pub fn open_count(&self) -> usize {
        self.live.borrow().iter().filter(|weak| weak.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests;
