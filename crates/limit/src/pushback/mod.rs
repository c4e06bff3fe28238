//! Pushback: an upstream says "not so fast", and its requests pause for as long as it asks, each key apart.
//!
//! Each key has one entry, written when a response begins a pause and read before a request is sent. While a pause
//! lasts, and while the pace climbs after it ([`pace`]), requests that may wait queue here in the order of their
//! arrival; only the head has a timer that is shorter than its own longest wait. All others are refused with the exact
//! time. A pause that begins while requests wait holds them as well.

mod entry;
mod pace;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

use crate::algorithm::leaky_bucket::Turn;
use crate::algorithm::queue::{NO_NODE, NewWaiter, waking};
use crate::table::persistent::SnapshotTable;
use crate::table::{CounterKey, Table};
use entry::PushbackEntry;
pub use entry::{Pause, PauseCheck};
use sluicegate_base::clock::Now;

/// No limit in front: its interval never matters.
pub const NO_FRONT: u64 = u64::MAX;

/// The pauses of all keys of one upstream.
pub struct Pauses {
    table: Table<PushbackEntry>,
    /// The latest end of a pause of any key, ns.
    latest_end: AtomicU64,
    pauses: AtomicU64,
    waits: AtomicU64,
    refused: AtomicU64,
}

/// The terms on which a request may wait for the end of a pause.
#[derive(Debug, Clone, Copy)]
pub struct WaitTerms {
    /// The moment at which it gives up.
    pub latest: Now,
    /// The interval of the limit in front, which the pace never exceeds, ns.
    pub front_ns: u64,
}

/// Whether a request pauses.
pub enum PauseDecision {
    /// The request may pass now.
    Pass,
    /// The request waits for its turn after the pause.
    Wait(PauseWaiter),
    /// The request may not wait so long, or not at all, and is rejected.
    Refuse(Pause),
}

/// A request in the queue of its key. Dropping it leaves the queue.
pub struct PauseWaiter {
    pauses: Arc<Pauses>,
    key: CounterKey,
    /// The entry is an overflow entry.
    overflow: bool,
    /// The node in the queue; [`NO_NODE`] once it has left.
    node: u32,
}

/// The effect of one pushback on the pause of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseChange {
    /// No pause lasted before.
    pub began: bool,
    /// The time by which it ends later than was known, ns.
    pub gained_ns: u64,
}

/// Numbers since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushbackCounts {
    /// Pauses that began; the extension of one is not counted.
    pub pauses: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Requests that a pause rejected.
    pub refused: u64,
}

// === impl Pauses ===

impl Pauses {
    /// Own entries for `keys_max` keys; `owner` names the upstream in the warning of the first overflow.
    pub fn new(keys_max: usize, owner: Arc<str>) -> Pauses {
        Pauses {
            table: Table::with_params((), keys_max, owner),
            latest_end: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Begins or extends the pause of a key. `sent` is when the refused request was.
    pub fn record_pause(
        &self,
        key: &CounterKey,
        sent: Now,
        now: Now,
        span_ns: u64,
        status: u16,
    ) -> PauseChange {
        let until = now.0.saturating_add(span_ns);
        self.change_pause(key, now, (sent, until, status), false)
    }

    /// [`Pauses::record_pause`] for a pause that `began` at another gateway and is told here. A key that has
    /// no entry of its own is left alone: others share that entry.
    pub fn adopt_pause(
        &self,
        key: &CounterKey,
        began: Now,
        now: Now,
        until: Now,
        status: u16,
    ) -> PauseChange {
        self.change_pause(key, now, (began, until.0, status), true)
    }

    /// `is_own`: only the key's own entry is changed.
    fn change_pause(
        &self,
        key: &CounterKey,
        now: Now,
        (sent, until, status): (Now, u64, u16),
        is_own: bool,
    ) -> PauseChange {
        let change = waking(|wakers| {
            self.table.update_entry(key, now, |entry, queues, (), is_shared| {
                let known = entry.until.max(now.0);
                let began = !(is_own && is_shared) && entry.begin_pause(sent, now, until, status);
                // The head has to move its timer, or finds that it can wait no longer.
                queues.wake_head(entry.queue, wakers);
                PauseChange { began, gained_ns: entry.until.saturating_sub(known) }
            })
        });
        self.pauses.fetch_add(change.began.into(), Relaxed);
        if change.gained_ns > 0 {
            self.latest_end.fetch_max(until, Relaxed);
        }
        change
    }

    /// Why a request must not pass now; `None` = it may.
    pub fn find_pause(&self, key: &CounterKey, now: Now) -> Option<Pause> {
        waking(|wakers| {
            self.table.peek_entry(key, |entry, queues, ()| {
                entry.depart_due(queues, now, wakers);
                entry.find_pause(queues, now, NO_FRONT)
            })
        })
    }

    /// Lets a request pass, or wait on its `terms`; without any it never waits.
    pub fn enter(self: &Arc<Self>, key: CounterKey, now: Now, terms: Option<WaitTerms>) -> PauseDecision {
        let front = terms.map_or(NO_FRONT, |terms| terms.front_ns);
        let decision = waking(|wakers| {
            self.table.update_entry(&key, now, |entry, queues, (), overflow| {
                entry.depart_due(queues, now, wakers);
                let Some(paused) = entry.find_pause(queues, now, front) else {
                    entry.pass_request(now, front);
                    return PauseDecision::Pass;
                };
                let due = Now(now.0.saturating_add(paused.wait_ns));
                let Some(terms) = terms.filter(|terms| due <= terms.latest) else {
                    return PauseDecision::Refuse(paused);
                };
                // The queue of a limit knows the span of each waiter; here it is the interval of its limit.
                let span = u128::from(front);
                let own = NewWaiter { fair_hash: 0, cost: 1, span, until: Some(terms.latest), since: now };
                let node = queues.push_waiter(&mut entry.queue, own);
                PauseDecision::Wait(PauseWaiter { pauses: self.clone(), key, overflow, node })
            })
        });
        self.waits.fetch_add(u64::from(matches!(decision, PauseDecision::Wait(_))), Relaxed);
        decision
    }

    /// Counts a request that a pause rejected.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The numbers of all keys since the start.
    pub fn counts(&self) -> PushbackCounts {
        let [pauses, waits, refused] =
            [&self.pauses, &self.waits, &self.refused].map(|count| count.load(Relaxed));
        PushbackCounts { pauses, waits, refused }
    }

    /// The pauses for another process, which recognises them by the `name` and the fingerprint of their upstream.
    pub fn saved_table<'a>(&'a self, name: &'a str, fingerprint: u64) -> SnapshotTable<'a> {
        SnapshotTable { name, fingerprint, table: &self.table }
    }

    /// Counts the pauses that another process saved.
    pub fn count_restored(&self) {
        self.table.for_each_entry(|entry, _, _| {
            self.latest_end.fetch_max(entry.until, Relaxed);
        });
    }

    /// The rest of the longest pause of any key, ns.
    pub fn pause_left_ns(&self, now: Now) -> u64 {
        Now(self.latest_end.load(Relaxed)).ns_since(now)
    }

    /// The turn of the place. Its waker stays in the queue while it waits.
    fn check_turn(&self, place: &mut PauseWaiter, now: Now, waker: &Waker) -> Result<Turn, Pause> {
        if place.node == NO_NODE {
            return Ok(Turn::Go);
        }
        let node = place.node;
        let turn = waking(|wakers| {
            self.table.update_existing(&place.key, place.overflow, |entry, queues, ()| {
                entry.depart_due(queues, now, wakers);
                let waiting = queues.find_waiting(node).map(|(own, _)| (own.until, own.span));
                let Some((latest, front)) = waiting else {
                    queues.remove_waiter(&mut entry.queue, node, wakers);
                    return Ok(Turn::Go);
                };
                let latest = latest.unwrap_or(Now(u64::MAX));
                let is_head = queues.set_waker(entry.queue, node, waker, wakers);
                let due = Now(entry.head_due(now));
                if now < latest && !(is_head && due > latest) {
                    return Ok(Turn::Due(if is_head { due } else { latest }));
                }
                queues.remove_waiter(&mut entry.queue, node, wakers);
                let front = u64::try_from(front).unwrap_or(NO_FRONT);
                let paused = entry.find_pause(queues, now, front);
                Err(paused.unwrap_or(Pause { until: now, wait_ns: 1, status: 0 }))
            })
        });
        let turn = turn.unwrap_or(Ok(Turn::Go));
        if !matches!(turn, Ok(Turn::Due(_) | Turn::Wait)) {
            place.node = NO_NODE;
        }
        turn
    }
}

// === impl PauseWaiter ===

impl PauseWaiter {
    /// Waits for the turn of the request. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// The wait would be longer than the request may wait: a new pause began meanwhile.
    pub async fn wait_turn(mut self) -> Result<(), Pause> {
        let pauses = self.pauses.clone();
        // A placeholder: each check of the turn sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(tokio::time::Instant::now()));
        poll_fn(|cx| {
            loop {
                match pauses.check_turn(&mut self, Now::read_clock(), cx.waker()) {
                    Err(paused) => return Poll::Ready(Err(paused)),
                    Ok(Turn::Due(due)) => sleep.as_mut().reset(due.to_instant()),
                    Ok(Turn::Wait) => return Poll::Pending,
                    Ok(Turn::Go | Turn::Reject(_)) => return Poll::Ready(Ok(())),
                }
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl Drop for PauseWaiter {
    fn drop(&mut self) {
        if self.node == NO_NODE {
            return;
        }
        waking(|wakers| {
            self.pauses.table.update_existing(&self.key, self.overflow, |entry, queues, ()| {
                queues.remove_waiter(&mut entry.queue, self.node, wakers);
            })
        });
    }
}

#[cfg(test)]
mod tests;
