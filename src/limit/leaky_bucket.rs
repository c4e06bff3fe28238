//! leaky_bucket: requests leave evenly, in arrival order; `burst` at once from idle, up to `queue` wait.
//!
//! The TAT of a key runs to the end of its queue. The head is due when the TAT without all that waits is no
//! more than burst − 1 units ahead; as the TAT shrinks by a leaver's cost, everyone behind moves up by itself.

use std::task::Waker;
use std::time::Duration;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::pace::{Level, Pace};
use super::queue::{NONE, Queues, Wakers};
use super::{Charge, Decision, Outcome, Units};
use crate::clock::Now;
use crate::config::LeakyBucketRate;
use crate::table::{Entry, Key, Table};

/// One rate of a leaky bucket with its counters and queues.
pub(super) struct LeakyBucket {
    pace: Pace,
    capacity: u64,
    /// Ticks by which `burst` − 1 units may run ahead of the clock.
    ahead: u128,
    /// The same in ns, rounded down.
    ahead_ns: u64,
    /// The longest wait that queue and max_wait allow, in ticks.
    wait_max: u128,
    /// Backlog at which not one unit more is accepted.
    depth: u128,
    /// A dry run never waits, but counts as if departures followed the schedule.
    dry_run: bool,
    waiting: AtomicUsize,
    pub(super) table: Table<Line>,
}

/// What one key has used, and its queue if anyone waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    level: Level,
    queue: u32,
}

/// What a waiter finds when it looks at its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It may go.
    Go,
    /// It is the head and must see to it that somebody looks again then.
    Due(Now),
    /// The head will call.
    Stand,
}

// === impl LeakyBucket ===

impl LeakyBucket {
    pub(super) fn new(
        rate: &LeakyBucketRate,
        max_wait: Option<Duration>,
        dry_run: bool,
        keys_max: usize,
    ) -> LeakyBucket {
        let pace = Pace::new(rate.rate);
        let capacity = pace.units_within_reach(rate.burst.saturating_add(rate.queue));
        let burst = rate.burst.clamp(1, capacity);
        let wait_max = max_wait.map_or(u128::MAX, |wait| pace.ticks(nanos(wait)));
        let wait_max = wait_max.min(pace.span(capacity - burst));
        LeakyBucket {
            pace,
            capacity,
            ahead: pace.span(burst - 1),
            ahead_ns: pace.ns_up(pace.span(burst - 1)).saturating_sub(1),
            wait_max,
            depth: pace.span(burst) + wait_max,
            dry_run,
            waiting: AtomicUsize::new(0),
            table: Table::new(keys_max),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Judges units and takes them, from the schedule at once or by a place in the queue.
    #[inline]
    pub(super) fn charge(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let mut wakers = Wakers::new();
        let cost = units.cost;
        let answer = self.table.update(&units.key, now, |line, queues, shared| {
            self.depart_due(line, queues, now, &mut wakers);
            let present = line.level.present(now);
            let backlog = self.pace.backlog(&line.level, present);
            let wait = match self.step(backlog) {
                Ok(wait) => wait,
                Err(ticks) => return (self.decision(Err(ticks), backlog, present.since(now)), None),
            };
            let mut node = NONE;
            if wait > 0 && !self.dry_run {
                node = queues.join(&mut line.queue, cost);
                self.waiting.fetch_add(1, Relaxed);
            }
            let since = self.pace.charge(&mut line.level, present, cost);
            let backlog = self.pace.backlog(&line.level, present);
            (self.decision(Ok(wait), backlog, present.since(now)), Some(Charge { since, node, shared }))
        });
        wake(wakers);
        answer
    }

    /// Judges units and takes nothing.
    pub(super) fn peek(&self, units: &Units, now: Now) -> Decision {
        let level = self.table.peek(&units.key, |line, _| line.level);
        let present = level.present(now);
        let backlog = self.pace.backlog(&level, present);
        self.decision(self.step(backlog), backlog, present.since(now))
    }

    /// Gives a charge back: a waiter leaves its queue, a departure is undone as far as that is still sound.
    /// `now` is asked for only if somebody may move up because of it.
    pub(super) fn refund(&self, key: &Key, cost: u64, charge: &Charge, now: impl FnOnce() -> Now) {
        let mut wakers = Wakers::new();
        self.table.revisit(key, charge.shared, |line, queues| {
            let mut since = charge.since;
            if charge.waits() {
                match queues.leave(&mut line.queue, charge.node, &mut wakers) {
                    Some(departed) => since = departed,
                    None => {
                        self.waiting.fetch_sub(1, Relaxed);
                        let tat = self.pace.tat(&line.level).saturating_sub(self.pace.span(cost));
                        return self.pace.set_tat(&mut line.level, tat);
                    }
                }
            }
            let before = self.pace.tat(&line.level);
            self.pace.refund(&mut line.level, cost, since);
            if line.queue != NONE {
                // The bucket was never idle while somebody stood here, so the schedule restarts now at the earliest.
                let now = now();
                let earliest = self.pace.ticks(now.0) + self.pace.span(queues.units(line.queue));
                let tat = self.pace.tat(&line.level).max(earliest.min(before));
                self.pace.set_tat(&mut line.level, tat);
                if self.head_due(line, queues) <= self.pace.ticks(now.0) {
                    // Who departs now does so later than its schedule says.
                    line.level.depart(now.0, 0);
                }
                self.depart_due(line, queues, now, &mut wakers);
            }
        });
        wake(wakers);
    }

    /// A waiter looks at its queue. Unless it may go it leaves its waker there; if it may, it gives up its place
    /// in the lists, and the charge stands like any other departure.
    pub(super) fn turn(&self, key: &Key, charge: &mut Charge, now: Now, waker: &Waker) -> Turn {
        if !charge.waits() {
            return Turn::Go;
        }
        let mut wakers = Wakers::new();
        let node = charge.node;
        let turn = self.table.revisit(key, charge.shared, |line, queues| {
            self.depart_due(line, queues, now, &mut wakers);
            if queues.departed(node) {
                charge.since = queues.leave(&mut line.queue, node, &mut wakers).unwrap_or_default();
                charge.node = NONE;
                return Turn::Go;
            }
            match queues.watch(node, waker, &mut wakers) {
                true => Turn::Due(Now(self.pace.ns_up(self.head_due(line, queues)))),
                false => Turn::Stand,
            }
        });
        wake(wakers);
        turn.unwrap_or(Turn::Go)
    }

    /// The pure step, in ticks: the wait of a request that comes now, or how long until one is accepted.
    #[inline]
    fn step(&self, backlog: u128) -> Result<u128, u128> {
        let wait = backlog.saturating_sub(self.ahead);
        if wait > self.wait_max { Err(wait - self.wait_max) } else { Ok(wait) }
    }

    /// Lets everyone go whose departure is due, for timers may be late.
    #[inline]
    fn depart_due(&self, line: &mut Line, queues: &mut Queues, now: Now, wakers: &mut Wakers) {
        while line.queue != NONE {
            let due = self.head_due(line, queues);
            if due > self.pace.ticks(now.0) {
                return;
            }
            let due_ns = self.pace.ns_up(due);
            let since = line.level.depart(due_ns, self.ahead_ns);
            queues.depart(&mut line.queue, since, wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// When the head is due, in ticks since the beginning of time.
    fn head_due(&self, line: &Line, queues: &Queues) -> u128 {
        let waiting = self.pace.span(queues.units(line.queue));
        self.pace.tat(&line.level).saturating_sub(waiting).saturating_sub(self.ahead)
    }

    /// `behind_ns` is how far the caller's clock is behind the bucket's.
    #[inline]
    fn decision(&self, step: Result<u128, u128>, backlog: u128, behind_ns: u64) -> Decision {
        let room = self.pace.room(self.depth, backlog);
        let (outcome, wait_ns, retry_after_ns) = match step {
            Ok(0) => (Outcome::Admit, 0, 0),
            Ok(ticks) => (Outcome::Wait, self.pace.ns_up(ticks).saturating_add(behind_ns), 0),
            Err(ticks) => (Outcome::Reject, 0, self.pace.ns_up(ticks).saturating_add(behind_ns)),
        };
        Decision { outcome, remaining: room.remaining, reset_ns: room.reset_ns, retry_after_ns, wait_ns }
    }
}

fn nanos(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}

/// Outside every lock, for a waker may run a task's destructor.
#[inline]
fn wake(wakers: Wakers) {
    for waker in wakers {
        waker.wake();
    }
}

// === impl Line ===

impl Default for Line {
    fn default() -> Line {
        Line { level: Level::default(), queue: NONE }
    }
}

impl Entry for Line {
    type Extra = Queues;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.queue == NONE && self.level.is_idle(now)
    }

    /// The newcomer comes after all that waits there, but has a queue of its own.
    fn inherit(&self) -> Option<Line> {
        Some(Line { level: self.level, queue: NONE })
    }
}
