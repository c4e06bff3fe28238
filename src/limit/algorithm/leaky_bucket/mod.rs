//! leaky_bucket: requests leave evenly, in arrival order; `burst` at once from idle, up to `queue` wait.
//!
//! With `fair_by` the waiters of one queue take turns by its value. A full queue then takes a newcomer whose value
//! holds fewer waiters than another's, and the newest of the fullest value makes room. As others may come in
//! between, each waiter has a time of its own at which it gives up.
//!
//! The TAT of a key runs to the end of its queue. The head is due when the TAT without all that waits is no
//! more than burst − 1 units ahead; as the TAT shrinks by a leaver's cost, everyone behind moves up by itself.

mod convert;
mod judge;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;

use super::queue::{NONE, Newcomer, Queues, State, Wakers};
use super::rate::{Pace, Room};
use super::schedule::{Schedule, Used};
use crate::base::clock::{Now, Shift};
use crate::config::{self, LeakyBucketRate};
use crate::limit::algorithm::table_spec::Make;
use crate::limit::table::saved::Saved;
use crate::limit::table::{Entry, Key, Table};
use crate::limit::{Charge, Decision, Epoch, Outcome, Units};

/// One rate of a leaky bucket with its counters and queues.
pub(crate) struct LeakyBucket<S: Schedule = Pace> {
    numbers: Arc<Flow<S>>,
    pub(crate) table: Arc<Table<Line<S::Used>, Flow<S>>>,
}

/// The numbers beside what was used and who waits.
pub(crate) struct Flow<S> {
    schedule: S,
    capacity: u64,
    /// Units that may wait.
    queue: u64,
    /// Ticks by which `burst` − 1 units may run ahead of the clock.
    ahead: u128,
    /// The same in ns, rounded down.
    ahead_ns: u64,
    /// The longest wait that queue and max_wait allow, in ticks; of a fair queue behind all that stand in it.
    wait_max: u128,
    /// The longest wait of a fair queue in turns, in ticks.
    turns_max: u128,
    /// After which a waiter of a fair queue gives up.
    max_wait_ns: Option<u64>,
    /// Backlog at which not one unit more is accepted.
    depth: u128,
    /// The waiters take turns.
    fair: bool,
    /// A dry run never waits, but counts as if departures followed the schedule.
    dry_run: bool,
    /// Of all keys.
    waiting: Arc<AtomicUsize>,
    epoch: Epoch,
}

/// What one key has used, and its queue if anyone waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<U> {
    used: U,
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
    /// It has left the queue: another displaced it, or it waited as long as it may. The same request is accepted
    /// after so many nanoseconds if nobody else comes.
    Reject(u64),
}

// === impl LeakyBucket ===

impl<S: Schedule> LeakyBucket<S> {
    pub(crate) fn new(
        rate: &LeakyBucketRate,
        schedule: S,
        max_wait: Option<Duration>,
        config: &config::Limit,
        make: &Make<'_, LeakyBucket<S>>,
    ) -> LeakyBucket<S> {
        let pace = *schedule.pace();
        let bucket = rate.burst.saturating_add(rate.queue);
        let capacity = pace.units_within_reach(bucket.saturating_mul(S::SLOWEST)).div_ceil(S::SLOWEST);
        let burst = rate.burst.clamp(1, capacity);
        let in_queue = u128::from(S::SLOWEST) * pace.span(capacity - burst);
        let max_wait_ns = max_wait.map(nanos);
        let in_time = max_wait_ns.map_or(u128::MAX, |ns| pace.ticks(ns));
        let fair = !config.fair_by.is_empty();
        let wait_max = if fair { in_queue } else { in_queue.min(in_time) };
        let ahead = pace.span(burst - 1);
        let epoch = make.epoch(|LeakyBucket { numbers: before, .. }| {
            (before.epoch, before.schedule == schedule && before.ahead == ahead)
        });
        let numbers = Arc::new(Flow {
            schedule,
            capacity,
            queue: capacity - burst,
            ahead,
            ahead_ns: pace.ns_up(ahead).saturating_sub(1),
            wait_max,
            turns_max: in_time,
            max_wait_ns: max_wait_ns.filter(|_| fair),
            depth: pace.span(burst) + wait_max,
            fair,
            dry_run: config.dry_run,
            waiting: make.before.map(|before| before.numbers.waiting.clone()).unwrap_or_default(),
            epoch,
        });
        let table = make.table(&numbers, |before| &before.table);
        LeakyBucket { numbers, table }
    }

    pub(crate) fn apply(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.convert(&self.numbers, keys_max, clock);
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.numbers.capacity
    }

    /// Units that fit when nothing is used: `max_wait` may keep a queue shorter than it is.
    pub(crate) fn room(&self) -> u64 {
        let Flow { schedule, depth, .. } = &*self.numbers;
        schedule.pace().room(*depth, 0).remaining
    }

    pub(crate) fn waiting(&self) -> usize {
        self.numbers.waiting.load(Relaxed)
    }

    /// Judges units and takes them, from the schedule at once or by a place in the queue.
    #[inline]
    pub(crate) fn charge(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let mut wakers = Wakers::new();
        let cost = units.cost;
        let answer = self.table.update(&units.key, now, |line, queues, flow, shared| {
            flow.depart_due(line, queues, now, &mut wakers);
            let present = line.used.level().present(now);
            let backlog = flow.backlog(line, present);
            let place = match flow.place(line, queues, backlog, units.fair) {
                Ok(place) => place,
                Err(ticks) => {
                    let room = flow.room(line, queues, present, backlog);
                    return (flow.decision(Err(ticks), room, present.since(now)), None);
                }
            };
            let (since, span) = flow.schedule.charge(&mut line.used, present, cost);
            let epoch = flow.epoch;
            let mut charge = Charge { since, node: NONE, shared, displaces: place.clear > 0, epoch };
            if place.wait > 0 && !flow.dry_run {
                let until = flow.max_wait_ns.map(|ns| Now(present.0.saturating_add(ns)));
                let fair = if flow.fair { units.fair } else { 0 };
                charge.node = queues.join(&mut line.queue, Newcomer { fair, cost, span, until });
                flow.waiting.fetch_add(1, Relaxed);
            }
            let room = flow.room(line, queues, present, flow.backlog(line, present));
            (flow.decision(Ok(place.wait), room, present.since(now)), Some(charge))
        });
        wake(wakers);
        answer
    }

    /// Takes units from the schedule as if they had departed.
    pub(crate) fn spend(&self, units: &Units, now: Now) {
        self.table.update(&units.key, now, |line, _, flow, _| {
            let present = line.used.level().present(now);
            flow.schedule.charge(&mut line.used, present, units.cost);
        });
    }

    /// Judges units and takes nothing; only who is due departs.
    pub(crate) fn peek(&self, units: &Units, now: Now) -> Decision {
        let mut wakers = Wakers::new();
        let decision = self.table.peek(&units.key, |line, queues, flow| {
            flow.depart_due(line, queues, now, &mut wakers);
            let present = line.used.level().present(now);
            let backlog = flow.backlog(line, present);
            let room = flow.room(line, queues, present, backlog);
            let place = flow.place(line, queues, backlog, units.fair);
            flow.decision(place.map(|place| place.wait), room, present.since(now))
        });
        wake(wakers);
        decision
    }

    /// The whole chain accepted a newcomer that found the queue full: the newest waiter of the value that holds
    /// most makes room for it, unless somebody has left meanwhile.
    pub(crate) fn displace(&self, key: &Key, charge: &Charge, now: Now) {
        let mut wakers = Wakers::new();
        self.table.revisit(key, charge.shared, |line, queues, flow| {
            flow.depart_due(line, queues, now, &mut wakers);
            let present = line.used.level().present(now);
            let Some(newest) = flow.in_the_way(line, queues, charge.node, flow.backlog(line, present)) else {
                return;
            };
            queues.displace(&mut line.queue, newest.place, &mut wakers);
            flow.waiting.fetch_sub(1, Relaxed);
            flow.schedule.withdraw(&mut line.used, newest.cost, newest.span);
        });
        wake(wakers);
    }

    /// Gives a charge back: a waiter leaves its queue, a departure is undone as far as that is still sound.
    /// `now` is asked for only if somebody may move up because of it.
    pub(crate) fn refund(&self, key: &Key, cost: u64, charge: &Charge, now: impl FnOnce() -> Now) {
        let mut wakers = Wakers::new();
        self.table.revisit(key, charge.shared, |line, queues, flow| {
            let (mut since, mut epoch) = (charge.since, charge.epoch);
            if charge.waits() {
                match queues.leave(&mut line.queue, charge.node, &mut wakers) {
                    Some((State::Departed(departed, then), _)) => (since, epoch) = (departed, then),
                    Some((State::Stands, own)) => {
                        flow.waiting.fetch_sub(1, Relaxed);
                        return flow.schedule.withdraw(&mut line.used, cost, own.span);
                    }
                    Some((State::Displaced, _)) | None => return,
                }
            }
            if epoch != flow.epoch {
                return;
            }
            let pace = flow.schedule.pace();
            let before = pace.tat(line.used.level());
            flow.schedule.refund(&mut line.used, cost, since);
            if line.queue != NONE {
                // The bucket was never idle while somebody stood here, so the schedule restarts now at the earliest.
                let now = now();
                let earliest = pace.ticks(now.0) + queues.span(line.queue);
                let tat = pace.tat(line.used.level()).max(earliest.min(before));
                pace.set_tat(line.used.level_mut(), tat);
                if flow.head_due(line, queues) <= pace.ticks(now.0) {
                    // Who departs now does so later than its schedule says.
                    line.used.level_mut().depart(now.0, 0);
                }
                flow.depart_due(line, queues, now, &mut wakers);
            }
        });
        wake(wakers);
    }

    /// A waiter looks at its queue. Unless it may go it leaves its waker there; if it may, it gives up its place
    /// in the lists, and the charge stands like any other departure.
    pub(crate) fn turn(&self, key: &Key, charge: &mut Charge, now: Now, waker: &Waker) -> Turn {
        if !charge.waits() {
            return Turn::Go;
        }
        let mut wakers = Wakers::new();
        let node = charge.node;
        let turn = self.table.revisit(key, charge.shared, |line, queues, flow| {
            flow.depart_due(line, queues, now, &mut wakers);
            let until = queues.until(node);
            let stays = until.is_none_or(|until| now < until);
            if let Some(State::Stands) = queues.state(node)
                && stays
            {
                let is_head = queues.watch(line.queue, node, waker, &mut wakers);
                let due = Now(flow.schedule.pace().ns_up(flow.head_due(line, queues)));
                let due = is_head.then(|| until.map_or(due, |until| due.min(until)));
                return due.or(until).map_or(Turn::Stand, Turn::Due);
            }
            charge.node = NONE;
            let Some((state, own)) = queues.leave(&mut line.queue, node, &mut wakers) else {
                return Turn::Go;
            };
            match state {
                State::Departed(since, epoch) => {
                    (charge.since, charge.epoch) = (since, epoch);
                    return Turn::Go;
                }
                State::Displaced => {}
                State::Stands => {
                    flow.waiting.fetch_sub(1, Relaxed);
                    flow.schedule.withdraw(&mut line.used, own.cost, own.span);
                }
            }
            let present = line.used.level().present(now);
            let ticks = flow.until_accepted(line, queues, flow.backlog(line, present), own.fair);
            Turn::Reject(flow.schedule.pace().ns_up(ticks).saturating_add(present.since(now)).max(1))
        });
        wake(wakers);
        turn.unwrap_or(Turn::Go)
    }
}

// === impl Flow ===

impl<S: Schedule> Flow<S> {
    fn backlog(&self, line: &Line<S::Used>, now: Now) -> u128 {
        self.schedule.pace().backlog(line.used.level(), now)
    }

    /// Lets everyone go whose departure is due, for timers may be late.
    #[inline]
    fn depart_due(&self, line: &mut Line<S::Used>, queues: &mut Queues, now: Now, wakers: &mut Wakers) {
        let pace = self.schedule.pace();
        while line.queue != NONE {
            let due = self.head_due(line, queues);
            if due > pace.ticks(now.0) {
                return;
            }
            let since = line.used.level_mut().depart(pace.ns_up(due), self.ahead_ns);
            queues.depart(&mut line.queue, (since, self.epoch), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// When the head is due, in ticks since the beginning of time.
    fn head_due(&self, line: &Line<S::Used>, queues: &Queues) -> u128 {
        let tat = self.schedule.pace().tat(line.used.level());
        tat.saturating_sub(queues.span(line.queue)).saturating_sub(self.ahead)
    }

    /// `behind_ns` is how far the caller's clock is behind the bucket's.
    #[inline]
    fn decision(&self, step: Result<u128, u128>, room: Room, behind_ns: u64) -> Decision {
        let pace = self.schedule.pace();
        let (outcome, wait_ns, retry_after_ns) = match step {
            Ok(0) => (Outcome::Admit, 0, 0),
            Ok(ticks) => (Outcome::Wait, pace.ns_up(ticks).saturating_add(behind_ns), 0),
            Err(ticks) => (Outcome::Reject, 0, pace.ns_up(ticks).saturating_add(behind_ns)),
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

impl<U: Used> Default for Line<U> {
    fn default() -> Line<U> {
        Line { used: U::default(), queue: NONE }
    }
}

impl<U: Used> Entry for Line<U> {
    type Extra = Queues;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.queue == NONE && self.used.is_idle(now)
    }

    /// The newcomer comes after all that waits there, but has a queue of its own.
    fn inherit(&self) -> Option<Line<U>> {
        Some(Line { used: self.used, queue: NONE })
    }
}

/// Waiters do not survive a restart, but what they were charged stands: the places they leave lapse, so that an
/// upstream never sees more than the rate.
impl<U: Used + Saved> Saved for Line<U> {
    fn encode(&self, _: &Queues, out: &mut Vec<u8>) {
        self.used.encode(&(), out);
    }

    fn decode(bytes: &[u8], shift: Shift, _: &mut Queues) -> Option<Line<U>> {
        Some(Line { used: U::decode(bytes, shift, &mut ())?, queue: NONE })
    }
}
