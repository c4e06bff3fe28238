//! leaky_bucket: requests depart evenly, in arrival order; `burst` at once from idle, up to `queue` wait.
//!
//! With `fair_by` the waiters of one queue take turns by its value. A full queue then accepts a newcomer if its value
//! has fewer waiters than another's, and the newest waiter of the value with most is displaced. As others may come in
//! between, each waiter has its own time at which it gives up.
//!
//! A view has a queue and a longest wait of its own, which decide whether a request to its place joins the one queue of
//! the key. The burst is the same everywhere, because it spaces the departures of all waiters.
//!
//! The TAT of a key runs to the end of its queue. The head is due when the TAT, less the units that wait, is no more
//! than burst − 1 units ahead; a waiter that leaves reduces the TAT by its cost, which moves up everyone behind it.

mod convert;
mod params;
mod position;
mod reset;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use super::queue::{NO_NODE, ShardQueues, WaiterState, Wakers, waking};
use super::rate::{ChargeMark, TickRate};
use super::schedule::{BucketUsage, Schedule};
use crate::algorithm::table_spec::TableSpec;
use crate::table::persistent::PersistentEntry;
use crate::table::{CounterKey, Table, TableEntry};
use crate::{ChargeRecord, Decision, Epoch, Units};
pub(crate) use params::QueueNumbers;
use sluicegate_base::clock::{ClockShift, Now};

/// One rate of a leaky bucket with its counters and queues.
pub(crate) struct LeakyBucket<S: Schedule = TickRate> {
    pub(crate) params: Arc<LeakyBucketParams<S>>,
    /// The bucket judges by its own queue and longest wait, and counts in the table of the limit's own rate.
    is_view: bool,
    pub(crate) table: Arc<Table<LeakyBucketEntry<S::Used>, LeakyBucketParams<S>>>,
}

pub(crate) struct LeakyBucketParams<S> {
    schedule: S,
    numbers: QueueNumbers,
    capacity: u64,
    /// Units that may wait.
    queue: u64,
    /// Ticks by which `burst` − 1 units may run ahead of the clock.
    ahead: u128,
    /// The same in ns, rounded down.
    ahead_ns: u64,
    /// The longest wait that `queue` and `max_wait` allow, in ticks; in a fair queue, behind all its waiters.
    queue_wait_max: u128,
    /// The longest wait in a fair queue when values take turns, in ticks.
    fair_wait_max: u128,
    /// The time after which a waiter of a fair queue gives up.
    give_up_ns: Option<u64>,
    /// The backlog at which no further unit is accepted, in ticks.
    depth: u128,
    /// A bound of the same at all places.
    deepest: u128,
    /// The values of a key take turns, by `fair_by`.
    is_fair: bool,
    /// A dry run never waits, but counts as if departures followed the schedule.
    dry_run: bool,
    /// The waiters of all keys.
    waiting: Arc<AtomicUsize>,
    epoch: Epoch,
}

/// The usage of one key, and its queue if a request waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeakyBucketEntry<U> {
    used: U,
    queue: u32,
}

/// The state of a waiter's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The waiter may go.
    Go,
    /// The waiter has to check again at that moment: it is the head, or its own wait ends then.
    Due(Now),
    /// The waiter is woken when it becomes the head or its state changes.
    Wait,
    /// The waiter was displaced, or waited too long. A retry is accepted after so many ns if no other request comes.
    Reject(u64),
}

// === impl LeakyBucket ===

impl<S: Schedule> LeakyBucket<S> {
    pub(crate) fn new(
        numbers: QueueNumbers,
        schedule: S,
        spec: &TableSpec<'_, LeakyBucket<S>>,
    ) -> LeakyBucket<S> {
        let waiting = spec.counted_by.or(spec.previous).map(|known| known.params.waiting.clone());
        let mut params = LeakyBucketParams::new(numbers, schedule, waiting.unwrap_or_default(), 0);
        params.epoch = spec.next_epoch(|LeakyBucket { params: before, .. }| {
            (before.epoch, before.schedule == params.schedule && before.ahead == params.ahead)
        });
        let params = Arc::new(params);
        let table = spec.build_table(&params, |before| &before.table);
        LeakyBucket { params, is_view: spec.counted_by.is_some(), table }
    }

    pub fn max_units(&self) -> u64 {
        self.params.capacity
    }

    /// Units that fit when nothing is used: `max_wait` may allow fewer than the queue has room for.
    pub fn idle_capacity(&self) -> u64 {
        let LeakyBucketParams { schedule, depth, .. } = &*self.params;
        schedule.tick_rate().remaining_units(*depth, 0).remaining
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.params.waiting.load(Relaxed)
    }

    /// Judges units and takes them, at once or by a position in the queue.
    #[inline]
    pub fn charge_units(&self, units: &Units, now: Now) -> (Decision, Option<ChargeRecord>) {
        waking(|wakers| {
            self.table.update_entry(&units.key, now, |entry, queues, params, shared| {
                params.depart_due_waiters(entry, queues, now, wakers);
                match self.is_view {
                    false => params.charge_entry(entry, queues, units, now, shared),
                    true => self
                        .with_view(params, |params| params.charge_entry(entry, queues, units, now, shared)),
                }
            })
        })
    }

    /// Takes units as if they had departed.
    pub fn spend_units(&self, units: &Units, now: Now) {
        self.table.update_entry(&units.key, now, |entry, _, params, _| {
            let present = entry.used.level().clamp_now(now);
            params.schedule.charge_usage(&mut entry.used, present, units.cost);
        });
    }

    /// Judges units and takes none; waiters that are due depart.
    pub fn peek_units(&self, units: &Units, now: Now) -> Decision {
        waking(|wakers| {
            self.table.peek_entry(&units.key, |entry, queues, params| {
                params.depart_due_waiters(entry, queues, now, wakers);
                match self.is_view {
                    false => params.peek_queue(entry, queues, units, now),
                    true => self.with_view(params, |params| params.peek_queue(entry, queues, units, now)),
                }
            })
        })
    }

    /// Judges by the parameters of a view, at the pace that is in force in the table: a request may come from before a
    /// reload that has changed it.
    #[cold]
    fn with_view<R>(
        &self,
        in_force: &LeakyBucketParams<S>,
        judge: impl FnOnce(&LeakyBucketParams<S>) -> R,
    ) -> R {
        let own = &*self.params;
        if own.epoch == in_force.epoch {
            return judge(own);
        }
        let numbers = own.numbers.with_burst_of(&in_force.numbers);
        let LeakyBucketParams { schedule, waiting, epoch, .. } = in_force;
        judge(&LeakyBucketParams::new(numbers, schedule.clone(), waiting.clone(), *epoch))
    }

    /// The whole chain accepted a newcomer that found the queue full: the newest waiter of the value with most makes
    /// room for it, unless a waiter has left meanwhile.
    pub fn displace_waiter(&self, key: &CounterKey, charge: &ChargeRecord, now: Now) {
        waking(|wakers| {
            self.table.update_existing(key, charge.shared, |entry, queues, params| {
                params.depart_due_waiters(entry, queues, now, wakers);
                let state = params.look_at(entry, queues, now, params.dry_run);
                let Some(newest) = state.waiter_to_displace(charge.node) else { return };
                queues.displace_waiter(&mut entry.queue, newest.node, wakers);
                params.waiting.fetch_sub(1, Relaxed);
                params.schedule.withdraw_usage(&mut entry.used, newest.cost, newest.span);
            })
        });
    }

    /// Gives a charge back: a waiter leaves its queue; a departure is undone as far as that is still exact. `now` is
    /// called only if a waiter may move up because of it.
    pub fn refund_charge(
        &self,
        key: &CounterKey,
        cost: u64,
        charge: &ChargeRecord,
        now: impl FnOnce() -> Now,
    ) {
        waking(|wakers| {
            self.table.update_existing(key, charge.shared, |entry, queues, params| {
                let (mut since, mut epoch) = (charge.since, charge.epoch);
                if charge.is_waiting() {
                    match queues.remove_waiter(&mut entry.queue, charge.node, wakers) {
                        Some((WaiterState::Departed(departed, then), _)) => (since, epoch) = (departed, then),
                        Some((WaiterState::Waiting, own)) => {
                            params.waiting.fetch_sub(1, Relaxed);
                            return params.schedule.withdraw_usage(&mut entry.used, cost, own.span);
                        }
                        Some((WaiterState::Displaced, _)) | None => return,
                    }
                }
                if epoch == queues.charges.charge_epoch(params.epoch) {
                    params.undo_departure((entry, queues), cost, since, now, wakers);
                }
            })
        });
    }

    /// Checks a waiter's turn. While it has to wait, its waker stays in the queue; once it may go, its node is freed
    /// and the charge stands like any other departure.
    pub fn check_turn(&self, key: &CounterKey, charge: &mut ChargeRecord, now: Now, waker: &Waker) -> Turn {
        if !charge.is_waiting() {
            return Turn::Go;
        }
        let node = charge.node;
        let turn = waking(|wakers| {
            self.table.update_existing(key, charge.shared, |entry, queues, params| {
                params.depart_due_waiters(entry, queues, now, wakers);
                let until = queues.wait_deadline(node);
                let is_in_time = until.is_none_or(|until| now < until);
                if is_in_time && matches!(queues.waiter_state(node), Some(WaiterState::Waiting)) {
                    let is_head = queues.set_waker(entry.queue, node, waker, wakers);
                    let due = Now(params.schedule.tick_rate().ticks_to_ns(params.head_due(entry, queues)));
                    let due = is_head.then(|| until.map_or(due, |until| due.min(until)));
                    return due.or(until).map_or(Turn::Wait, Turn::Due);
                }
                charge.node = NO_NODE;
                let Some((state, own)) = queues.remove_waiter(&mut entry.queue, node, wakers) else {
                    return Turn::Go;
                };
                match state {
                    WaiterState::Departed(since, epoch) => {
                        (charge.since, charge.epoch) = (since, epoch);
                        return Turn::Go;
                    }
                    WaiterState::Displaced => {}
                    WaiterState::Waiting => {
                        params.waiting.fetch_sub(1, Relaxed);
                        params.schedule.withdraw_usage(&mut entry.used, own.cost, own.span);
                    }
                }
                let state = params.look_at(entry, queues, now, params.dry_run);
                Turn::Reject(state.accepted_after_ns(own.fair, now))
            })
        });
        turn.unwrap_or(Turn::Go)
    }
}

// === impl LeakyBucketParams ===

impl<S: Schedule> LeakyBucketParams<S> {
    /// Lets all waiters go that are due, because timers may be late.
    #[inline]
    fn depart_due_waiters(
        &self,
        entry: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        now: Now,
        wakers: &mut Wakers,
    ) {
        let tick_rate = self.schedule.tick_rate();
        while entry.queue != NO_NODE {
            let due = self.head_due(entry, queues);
            if due > tick_rate.ns_to_ticks(now.0) {
                return;
            }
            let since = entry.used.level_mut().record_departure(tick_rate.ticks_to_ns(due), self.ahead_ns);
            let epoch = queues.charges.charge_epoch(self.epoch);
            queues.depart_head(&mut entry.queue, (since, epoch), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// The departure of the head, in ticks since `Now(0)`.
    fn head_due(&self, entry: &LeakyBucketEntry<S::Used>, queues: &ShardQueues) -> u128 {
        let tat = self.schedule.tick_rate().tat_ticks(entry.used.level());
        tat.saturating_sub(queues.queued_ticks(entry.queue)).saturating_sub(self.ahead)
    }

    /// Gives back units that departed at `since`, as far as that is still exact. `now` is called only if a waiter may
    /// move up because of it.
    fn undo_departure(
        &self,
        (entry, queues): (&mut LeakyBucketEntry<S::Used>, &mut ShardQueues),
        cost: u64,
        since: ChargeMark,
        now: impl FnOnce() -> Now,
        wakers: &mut Wakers,
    ) {
        let tick_rate = self.schedule.tick_rate();
        let before = tick_rate.tat_ticks(entry.used.level());
        self.schedule.refund_usage(&mut entry.used, cost, since);
        if entry.queue == NO_NODE {
            return;
        }
        // The bucket was never idle while a request waited, so the schedule restarts now at the earliest.
        let now = now();
        let earliest = tick_rate.ns_to_ticks(now.0) + queues.queued_ticks(entry.queue);
        let tat = tick_rate.tat_ticks(entry.used.level()).max(earliest.min(before));
        tick_rate.set_tat(entry.used.level_mut(), tat);
        if self.head_due(entry, queues) <= tick_rate.ns_to_ticks(now.0) {
            // A departure now is later than its schedule says.
            entry.used.level_mut().record_departure(now.0, 0);
        }
        self.depart_due_waiters(entry, queues, now, wakers);
    }
}

// === impl LeakyBucketEntry ===

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

    /// The newcomer comes after all waiters of the shared counter, but has its own queue.
    fn inherit_overflow(&self) -> Option<LeakyBucketEntry<U>> {
        Some(LeakyBucketEntry { used: self.used, queue: NO_NODE })
    }
}

/// Waiters do not survive a restart, but their charges stand: their departures lapse, so that an upstream never sees
/// more than the rate.
impl<U: BucketUsage + PersistentEntry> PersistentEntry for LeakyBucketEntry<U> {
    fn encode_entry(&self, queues: &ShardQueues, out: &mut Vec<u8>) {
        self.used.encode_entry(&queues.charges, out);
    }

    fn decode_entry(
        bytes: &[u8],
        shift: ClockShift,
        queues: &mut ShardQueues,
    ) -> Option<LeakyBucketEntry<U>> {
        Some(LeakyBucketEntry { used: U::decode_entry(bytes, shift, &mut queues.charges)?, queue: NO_NODE })
    }
}
