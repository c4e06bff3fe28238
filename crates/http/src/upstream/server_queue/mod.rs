//! The queue of an upstream: requests that find every server at `max_connections` wait here, first in, first out over
//! all workers.
//!
//! A place is room for one request at a server. A request that ends, a server that comes up and a reload hand free
//! places to the first waiters. A place is counted as taken when it is handed over, so no newcomer gets it in between,
//! and a waiter that has left meanwhile hands it on by dropping it.
//!
//! A request that ends (`QueueSignal`) looks at the number of waiters without the lock: see `lock_free`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::balance::NoServer;
use super::lock_free::WaiterCount;
use super::server::ServerInFlight;
use super::server_state::QueueSignal;
use super::{QueueStatus, Upstream};
use sluicegate_base::clock::Now;
use sluicegate_model::{ServerId, ServerQueueConfig};

/// The search for a place: one that is counted in, or the reason why there is none.
pub type ServerPlace = Result<ServerInFlight, NoServer>;

/// The waiters of one upstream. It survives a reload.
#[derive(Default)]
pub(super) struct ServerQueue {
    waiting: Arc<WaiterCount>,
    line: Mutex<WaiterLine>,
    totals: QueueTotals,
}

/// The waiters by their tickets, which are given out in ascending order.
#[derive(Default)]
struct WaiterLine {
    next_ticket: u64,
    waiters: BTreeMap<u64, WaiterEntry>,
    /// Turns that have come and are not taken yet.
    turns: BTreeMap<u64, ServerPlace>,
}

struct WaiterEntry {
    /// The upstream of its gateway; a reload may have replaced it.
    upstream: Arc<Upstream>,
    hash: u64,
    tried: SmallVec<[ServerId; 4]>,
    waker: Waker,
}

type Wakers = SmallVec<[Waker; 4]>;

/// All waits that have ended.
#[derive(Default)]
struct QueueTotals {
    waits: AtomicU64,
    wait_ns: AtomicU64,
    timeouts: AtomicU64,
}

/// A request in the queue. Dropping it leaves the queue, or hands its place to the next waiter.
pub struct ServerWaiter {
    queue: Arc<ServerQueue>,
    ticket: u64,
    since: Now,
}

// === impl Upstream ===

impl Upstream {
    /// `None` = a request that finds every server full does not wait.
    #[inline]
    pub fn queue(&self) -> Option<&ServerQueueConfig> {
        self.queue.as_ref()
    }

    /// Takes a place at a server as [`Upstream::choose_server`] chooses it. While other requests wait, the upstream
    /// counts as full.
    pub fn take_place(&self, hash: u64, tried: &[ServerId]) -> ServerPlace {
        if self.state.queue.has_waiters() { Err(NoServer::Full) } else { self.find_place(hash, tried) }
    }

    /// Enters the queue.
    ///
    /// # Errors
    /// The request need not wait or may not: there is a place after all, the queue is full, or no server is usable.
    pub fn join_queue(
        self: &Arc<Self>,
        hash: u64,
        tried: &[ServerId],
        now: Now,
    ) -> Result<ServerWaiter, ServerPlace> {
        let size = self.queue.as_ref().map_or(0, |queue| queue.size);
        let queue = &self.state.queue;
        let mut wakers = Wakers::new();
        let entered = queue.line.lock().enter(queue, self, (hash, tried), size, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        entered.map(|ticket| ServerWaiter { queue: queue.clone(), ticket, since: now })
    }

    /// Hands out the places of ejected servers when their time is over: no event tells of them.
    pub fn recheck_queue(&self) {
        if self.state.queue.has_waiters() {
            self.state.queue.hand_out_places();
        }
    }

    /// Puts `max_connections` into force, also for the requests that wait already.
    pub fn apply_numbers(&self) {
        for server in &self.servers {
            server.state.set_max_connections(self.max_connections);
        }
        self.state.queue.hand_out_places();
    }

    /// Requests that wait for a place.
    pub fn waiting_count(&self) -> usize {
        self.state.queue.line.lock().waiters.len()
    }

    fn find_place(&self, hash: u64, tried: &[ServerId]) -> ServerPlace {
        // Another worker may take the place of the chosen server first. It looks at the queue again when it ends, so
        // giving up after some rounds loses no place.
        for _ in 0..=self.servers.len() {
            if let Some(in_flight) = self.choose_server(hash, tried)?.try_begin_request() {
                return Ok(in_flight);
            }
        }
        Err(NoServer::Full)
    }
}

// === impl ServerQueue ===

impl ServerQueue {
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiting.is_zero()
    }

    /// The signal by which the servers of the upstream notify the queue.
    pub(super) fn signal(self: &Arc<Self>) -> QueueSignal {
        QueueSignal { waiting: self.waiting.clone(), queue: Waker::from(self.clone()) }
    }

    /// Hands free places to the first waiters.
    #[cold]
    pub(super) fn hand_out_places(&self) {
        let mut wakers = Wakers::new();
        let mut line = self.line.lock();
        line.hand_out(&mut wakers);
        self.waiting.set(line.waiters.len());
        drop(line);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The state for the operator of a queue of this `size`.
    pub(super) fn status(&self, size: usize) -> QueueStatus {
        let QueueTotals { waits, wait_ns, timeouts } = &self.totals;
        QueueStatus {
            size,
            waiting: self.line.lock().waiters.len(),
            waits: waits.load(Ordering::Relaxed),
            wait_seconds: (wait_ns.load(Ordering::Relaxed) / 1_000_000) as f64 / 1_000.0,
            timeouts: timeouts.load(Ordering::Relaxed),
        }
    }
}

impl Wake for ServerQueue {
    fn wake(self: Arc<Self>) {
        self.hand_out_places();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.hand_out_places();
    }
}

// === impl WaiterLine ===

// A `ServerInFlight` must not be dropped here: it would lock the line again.
impl WaiterLine {
    fn enter(
        &mut self,
        queue: &ServerQueue,
        upstream: &Arc<Upstream>,
        (hash, tried): (u64, &[ServerId]),
        size: usize,
        wakers: &mut Wakers,
    ) -> Result<u64, ServerPlace> {
        queue.waiting.announce(self.waiters.len());
        self.hand_out(wakers);
        let entered = match upstream.find_place(hash, tried) {
            Err(NoServer::Full) if self.waiters.len() < size => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                // The first poll names the task.
                let waker = Waker::noop().clone();
                let entry = WaiterEntry { upstream: upstream.clone(), hash, tried: tried.into(), waker };
                self.waiters.insert(ticket, entry);
                Ok(ticket)
            }
            place => Err(place),
        };
        queue.waiting.set(self.waiters.len());
        entered
    }

    /// Gives the waiters their turns in order. A waiter is passed over only if no free server is one for it: it has
    /// tried the server, or its gateway does not know it.
    fn hand_out(&mut self, wakers: &mut Wakers) {
        let mut next = 0;
        // The upstream of a waiter that found every server full. Later waiters with it need not look.
        let mut full: Option<Arc<Upstream>> = None;
        while let Some((&ticket, waiter)) = self.waiters.range(next..).next() {
            next = ticket + 1;
            if full.as_ref().is_some_and(|full| Arc::ptr_eq(full, &waiter.upstream)) {
                continue;
            }
            match waiter.upstream.find_place(waiter.hash, &waiter.tried) {
                Err(NoServer::Full) if !waiter.tried.is_empty() => {}
                Err(NoServer::Full) => {
                    let upstream = waiter.upstream.clone();
                    let last = self.waiters.last_key_value();
                    if last.is_none_or(|(_, last)| Arc::ptr_eq(&last.upstream, &upstream)) {
                        return;
                    }
                    full = Some(upstream);
                }
                turn => {
                    wakers.extend(self.waiters.remove(&ticket).map(|waiter| waiter.waker));
                    self.turns.insert(ticket, turn);
                }
            }
        }
    }
}

// === impl ServerWaiter ===

impl ServerWaiter {
    /// The place of the waiter, or the reason why it need not wait any longer.
    pub fn poll_turn(&self, cx: &Context<'_>) -> Poll<ServerPlace> {
        let mut line = self.queue.line.lock();
        if let Some(waiter) = line.waiters.get_mut(&self.ticket) {
            waiter.waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        // Without a turn it has taken it before.
        Poll::Ready(line.turns.remove(&self.ticket).unwrap_or(Err(NoServer::Full)))
    }

    /// Leaves the queue after the longest wait.
    pub fn time_out(self) {
        self.queue.totals.timeouts.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ServerWaiter {
    fn drop(&mut self) {
        let ServerWaiter { queue, ticket, since } = self;
        queue.totals.waits.fetch_add(1, Ordering::Relaxed);
        queue.totals.wait_ns.fetch_add(Now::read_clock().ns_since(*since), Ordering::Relaxed);
        let mut line = queue.line.lock();
        let left = line.waiters.remove(ticket);
        let turn = line.turns.remove(ticket);
        queue.waiting.set(line.waiters.len());
        drop(line);
        // Only now: a place that is dropped goes to the next waiter, under the lock.
        drop((left, turn));
    }
}

#[cfg(test)]
mod tests;
