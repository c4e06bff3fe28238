//! leaky_bucket: requests leave evenly, in arrival order; `burst` at once from idle, up to `queue` wait.
//!
//! With `fair_by` the waiters of one queue take turns by its value. A full queue then takes a newcomer whose value
//! holds fewer waiters than another's, and the newest of the fullest value makes room. As others may come in
//! between, each waiter has a time of its own at which it gives up.
//!
//! The TAT of a key runs to the end of its queue. The head is due when the TAT without all that waits is no
//! more than burst − 1 units ahead; as the TAT shrinks by a leaver's cost, everyone behind moves up by itself.

mod convert;
mod position;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;

use super::queue::{NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers};
use super::rate::{RemainingUnits, TickRate};
use super::schedule::{BucketUsage, Schedule};
use crate::base::clock::{ClockShift, Now};
use crate::config::{self, LeakyBucketRate};
use crate::limit::algorithm::table_spec::TableSpec;
use crate::limit::table::persistent::PersistentEntry;
use crate::limit::table::{CounterKey, Table, TableEntry};
use crate::limit::{Charge, Decision, Epoch, LimitOutcome, Units};

/// One rate of a leaky bucket with its counters and queues.
pub(crate) struct LeakyBucket<S: Schedule = TickRate> {
    numbers: Arc<LeakyBucketParams<S>>,
    pub(crate) table: Arc<Table<LeakyBucketEntry<S::Used>, LeakyBucketParams<S>>>,
}

/// The numbers beside what was used and who waits.
pub(crate) struct LeakyBucketParams<S> {
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
pub(crate) struct LeakyBucketEntry<U> {
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
    Wait,
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
        config: &config::LimitConfig,
        make: &TableSpec<'_, LeakyBucket<S>>,
    ) -> LeakyBucket<S> {
        let pace = *schedule.tick_rate();
        let bucket = rate.burst.saturating_add(rate.queue);
        let capacity = pace.units_within_reach(bucket.saturating_mul(S::SLOWEST)).div_ceil(S::SLOWEST);
        let burst = rate.burst.clamp(1, capacity);
        let in_queue = u128::from(S::SLOWEST) * pace.units_to_ticks(capacity - burst);
        let max_wait_ns = max_wait.map(duration_ns);
        let in_time = max_wait_ns.map_or(u128::MAX, |ns| pace.ns_to_ticks(ns));
        let fair = !config.fair_by.is_empty();
        let wait_max = if fair { in_queue } else { in_queue.min(in_time) };
        let ahead = pace.units_to_ticks(burst - 1);
        let epoch = make.next_epoch(|LeakyBucket { numbers: before, .. }| {
            (before.epoch, before.schedule == schedule && before.ahead == ahead)
        });
        let numbers = Arc::new(LeakyBucketParams {
            schedule,
            capacity,
            queue: capacity - burst,
            ahead,
            ahead_ns: pace.ticks_to_ns(ahead).saturating_sub(1),
            wait_max,
            turns_max: in_time,
            max_wait_ns: max_wait_ns.filter(|_| fair),
            depth: pace.units_to_ticks(burst) + wait_max,
            fair,
            dry_run: config.dry_run,
            waiting: make.before.map(|before| before.numbers.waiting.clone()).unwrap_or_default(),
            epoch,
        });
        let table = make.build_table(&numbers, |before| &before.table);
        LeakyBucket { numbers, table }
    }

    pub(crate) fn apply_params(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.replace_params(&self.numbers, keys_max, clock);
    }

    pub(crate) fn max_units(&self) -> u64 {
        self.numbers.capacity
    }

    /// Units that fit when nothing is used: `max_wait` may keep a queue shorter than it is.
    pub(crate) fn idle_capacity(&self) -> u64 {
        let LeakyBucketParams { schedule, depth, .. } = &*self.numbers;
        schedule.tick_rate().remaining_units(*depth, 0).remaining
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.numbers.waiting.load(Relaxed)
    }

    /// Judges units and takes them, from the schedule at once or by a place in the queue.
    #[inline]
    pub(crate) fn charge_units(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let mut wakers = Wakers::new();
        let cost = units.cost;
        let answer = self.table.update_entry(&units.key, now, |line, queues, flow, shared| {
            flow.depart_due_waiters(line, queues, now, &mut wakers);
            let present = line.used.level().clamp_now(now);
            let backlog = flow.backlog_ticks(line, present);
            let place = match flow.find_position(line, queues, backlog, units.fair) {
                Ok(place) => place,
                Err(ticks) => {
                    let room = flow.remaining_units(line, queues, present, backlog);
                    return (flow.build_decision(Err(ticks), room, present.ns_since(now)), None);
                }
            };
            let (since, span) = flow.schedule.charge_usage(&mut line.used, present, cost);
            let epoch = flow.epoch;
            let mut charge = Charge { since, node: NO_NODE, shared, displaces: place.undisturbed > 0, epoch };
            if place.wait > 0 && !flow.dry_run {
                let until = flow.max_wait_ns.map(|ns| Now(present.0.saturating_add(ns)));
                let fair = if flow.fair { units.fair } else { 0 };
                charge.node = queues.push_waiter(&mut line.queue, NewWaiter { fair, cost, span, until });
                flow.waiting.fetch_add(1, Relaxed);
            }
            let room = flow.remaining_units(line, queues, present, flow.backlog_ticks(line, present));
            (flow.build_decision(Ok(place.wait), room, present.ns_since(now)), Some(charge))
        });
        wake_all(wakers);
        answer
    }

    /// Takes units from the schedule as if they had departed.
    pub(crate) fn spend_units(&self, units: &Units, now: Now) {
        self.table.update_entry(&units.key, now, |line, _, flow, _| {
            let present = line.used.level().clamp_now(now);
            flow.schedule.charge_usage(&mut line.used, present, units.cost);
        });
    }

    /// Judges units and takes nothing; only who is due departs.
    pub(crate) fn peek_units(&self, units: &Units, now: Now) -> Decision {
        let mut wakers = Wakers::new();
        let decision = self.table.peek_entry(&units.key, |line, queues, flow| {
            flow.depart_due_waiters(line, queues, now, &mut wakers);
            let present = line.used.level().clamp_now(now);
            let backlog = flow.backlog_ticks(line, present);
            let room = flow.remaining_units(line, queues, present, backlog);
            let place = flow.find_position(line, queues, backlog, units.fair);
            flow.build_decision(place.map(|place| place.wait), room, present.ns_since(now))
        });
        wake_all(wakers);
        decision
    }

    /// The whole chain accepted a newcomer that found the queue full: the newest waiter of the value that holds
    /// most makes room for it, unless somebody has left meanwhile.
    pub(crate) fn displace_waiter(&self, key: &CounterKey, charge: &Charge, now: Now) {
        let mut wakers = Wakers::new();
        self.table.update_existing(key, charge.shared, |line, queues, flow| {
            flow.depart_due_waiters(line, queues, now, &mut wakers);
            let present = line.used.level().clamp_now(now);
            let Some(newest) =
                flow.waiter_to_displace(line, queues, charge.node, flow.backlog_ticks(line, present))
            else {
                return;
            };
            queues.displace_waiter(&mut line.queue, newest.place, &mut wakers);
            flow.waiting.fetch_sub(1, Relaxed);
            flow.schedule.withdraw_usage(&mut line.used, newest.cost, newest.span);
        });
        wake_all(wakers);
    }

    /// Gives a charge back: a waiter leaves its queue, a departure is undone as far as that is still sound.
    /// `now` is asked for only if somebody may move up because of it.
    pub(crate) fn refund_charge(
        &self,
        key: &CounterKey,
        cost: u64,
        charge: &Charge,
        now: impl FnOnce() -> Now,
    ) {
        let mut wakers = Wakers::new();
        self.table.update_existing(key, charge.shared, |line, queues, flow| {
            let (mut since, mut epoch) = (charge.since, charge.epoch);
            if charge.is_waiting() {
                match queues.remove_waiter(&mut line.queue, charge.node, &mut wakers) {
                    Some((WaiterState::Departed(departed, then), _)) => (since, epoch) = (departed, then),
                    Some((WaiterState::Waiting, own)) => {
                        flow.waiting.fetch_sub(1, Relaxed);
                        return flow.schedule.withdraw_usage(&mut line.used, cost, own.span);
                    }
                    Some((WaiterState::Displaced, _)) | None => return,
                }
            }
            if epoch != flow.epoch {
                return;
            }
            let pace = flow.schedule.tick_rate();
            let before = pace.tat_ticks(line.used.level());
            flow.schedule.refund_usage(&mut line.used, cost, since);
            if line.queue != NO_NODE {
                // The bucket was never idle while somebody stood here, so the schedule restarts now at the earliest.
                let now = now();
                let earliest = pace.ns_to_ticks(now.0) + queues.queued_ticks(line.queue);
                let tat = pace.tat_ticks(line.used.level()).max(earliest.min(before));
                pace.set_tat(line.used.level_mut(), tat);
                if flow.head_due(line, queues) <= pace.ns_to_ticks(now.0) {
                    // Who departs now does so later than its schedule says.
                    line.used.level_mut().record_departure(now.0, 0);
                }
                flow.depart_due_waiters(line, queues, now, &mut wakers);
            }
        });
        wake_all(wakers);
    }

    /// A waiter looks at its queue. Unless it may go it leaves its waker there; if it may, it gives up its place
    /// in the lists, and the charge stands like any other departure.
    pub(crate) fn check_turn(&self, key: &CounterKey, charge: &mut Charge, now: Now, waker: &Waker) -> Turn {
        if !charge.is_waiting() {
            return Turn::Go;
        }
        let mut wakers = Wakers::new();
        let node = charge.node;
        let turn = self.table.update_existing(key, charge.shared, |line, queues, flow| {
            flow.depart_due_waiters(line, queues, now, &mut wakers);
            let until = queues.wait_deadline(node);
            let stays = until.is_none_or(|until| now < until);
            if let Some(WaiterState::Waiting) = queues.waiter_state(node)
                && stays
            {
                let is_head = queues.set_waker(line.queue, node, waker, &mut wakers);
                let due = Now(flow.schedule.tick_rate().ticks_to_ns(flow.head_due(line, queues)));
                let due = is_head.then(|| until.map_or(due, |until| due.min(until)));
                return due.or(until).map_or(Turn::Wait, Turn::Due);
            }
            charge.node = NO_NODE;
            let Some((state, own)) = queues.remove_waiter(&mut line.queue, node, &mut wakers) else {
                return Turn::Go;
            };
            match state {
                WaiterState::Departed(since, epoch) => {
                    (charge.since, charge.epoch) = (since, epoch);
                    return Turn::Go;
                }
                WaiterState::Displaced => {}
                WaiterState::Waiting => {
                    flow.waiting.fetch_sub(1, Relaxed);
                    flow.schedule.withdraw_usage(&mut line.used, own.cost, own.span);
                }
            }
            let present = line.used.level().clamp_now(now);
            let ticks = flow.until_accepted(line, queues, flow.backlog_ticks(line, present), own.fair);
            Turn::Reject(
                flow.schedule.tick_rate().ticks_to_ns(ticks).saturating_add(present.ns_since(now)).max(1),
            )
        });
        wake_all(wakers);
        turn.unwrap_or(Turn::Go)
    }
}

// === impl Flow ===

impl<S: Schedule> LeakyBucketParams<S> {
    fn backlog_ticks(&self, line: &LeakyBucketEntry<S::Used>, now: Now) -> u128 {
        self.schedule.tick_rate().backlog_ticks(line.used.level(), now)
    }

    /// Lets everyone go whose departure is due, for timers may be late.
    #[inline]
    fn depart_due_waiters(
        &self,
        line: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        now: Now,
        wakers: &mut Wakers,
    ) {
        let pace = self.schedule.tick_rate();
        while line.queue != NO_NODE {
            let due = self.head_due(line, queues);
            if due > pace.ns_to_ticks(now.0) {
                return;
            }
            let since = line.used.level_mut().record_departure(pace.ticks_to_ns(due), self.ahead_ns);
            queues.depart_head(&mut line.queue, (since, self.epoch), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// When the head is due, in ticks since the beginning of time.
    fn head_due(&self, line: &LeakyBucketEntry<S::Used>, queues: &ShardQueues) -> u128 {
        let tat = self.schedule.tick_rate().tat_ticks(line.used.level());
        tat.saturating_sub(queues.queued_ticks(line.queue)).saturating_sub(self.ahead)
    }

    /// `behind_ns` is how far the caller's clock is behind the bucket's.
    #[inline]
    fn build_decision(&self, step: Result<u128, u128>, room: RemainingUnits, behind_ns: u64) -> Decision {
        let pace = self.schedule.tick_rate();
        let (outcome, wait_ns, retry_after_ns) = match step {
            Ok(0) => (LimitOutcome::Admit, 0, 0),
            Ok(ticks) => (LimitOutcome::Wait, pace.ticks_to_ns(ticks).saturating_add(behind_ns), 0),
            Err(ticks) => (LimitOutcome::Reject, 0, pace.ticks_to_ns(ticks).saturating_add(behind_ns)),
        };
        Decision { outcome, remaining: room.remaining, reset_ns: room.reset_ns, retry_after_ns, wait_ns }
    }
}

fn duration_ns(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}

/// Outside every lock, for a waker may run a task's destructor.
#[inline]
fn wake_all(wakers: Wakers) {
    for waker in wakers {
        waker.wake();
    }
}

// === impl Line ===

impl<U: BucketUsage> Default for LeakyBucketEntry<U> {
    fn default() -> LeakyBucketEntry<U> {
        LeakyBucketEntry { used: U::default(), queue: NO_NODE }
    }
}

impl<U: BucketUsage> TableEntry for LeakyBucketEntry<U> {
    type Extra = ShardQueues;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.queue == NO_NODE && self.used.is_idle(now)
    }

    /// The newcomer comes after all that waits there, but has a queue of its own.
    fn inherit_overflow(&self) -> Option<LeakyBucketEntry<U>> {
        Some(LeakyBucketEntry { used: self.used, queue: NO_NODE })
    }
}

/// Waiters do not survive a restart, but what they were charged stands: the places they leave lapse, so that an
/// upstream never sees more than the rate.
impl<U: BucketUsage + PersistentEntry> PersistentEntry for LeakyBucketEntry<U> {
    fn encode_entry(&self, _: &ShardQueues, out: &mut Vec<u8>) {
        self.used.encode_entry(&(), out);
    }

    fn decode_entry(bytes: &[u8], shift: ClockShift, _: &mut ShardQueues) -> Option<LeakyBucketEntry<U>> {
        Some(LeakyBucketEntry { used: U::decode_entry(bytes, shift, &mut ())?, queue: NO_NODE })
    }
}
