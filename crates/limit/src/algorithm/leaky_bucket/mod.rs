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

mod params;
mod position;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use super::meter::Meter;
use super::queue::{NO_NODE, ShardQueues, WaiterState, waking};
use super::schedule::{BucketUsage, Schedule};
use crate::table::persistent::PersistentEntry;
use crate::table::{CounterKey, TableEntry};
use crate::{ChargeRecord, Epoch, Units};
pub(crate) use params::QueueNumbers;
use sluicegate_base::clock::{ClockShift, Now};

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

// === impl Turn ===

impl Turn {
    /// A waiter that is the head checks when it is `due`, and each one when its own wait ends.
    pub fn wait_until(due: Option<Now>, until: Option<Now>) -> Turn {
        due.into_iter().chain(until).min().map_or(Turn::Wait, Turn::Due)
    }

    /// The state of a waiter that outlasted the entry of its key, which was idle: it has departed, or was displaced.
    pub(crate) fn of_left(charge: &mut ChargeRecord, queues: &mut ShardQueues) -> Turn {
        match queues.forget_waiter(std::mem::replace(&mut charge.node, NO_NODE)) {
            Some(WaiterState::Displaced) => Turn::Reject(1),
            _ => Turn::Go,
        }
    }
}

// === impl Meter ===

impl<S: Schedule> Meter<LeakyBucketParams<S>> {
    /// Units that fit when nothing is used: `max_wait` may allow fewer than the queue has room for.
    pub(crate) fn idle_capacity(&self) -> u64 {
        let LeakyBucketParams { schedule, depth, .. } = &*self.params;
        schedule.tick_rate().remaining_units(*depth, 0).remaining
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.params.waiting.load(Relaxed)
    }

    /// Units of a key that wait.
    pub(crate) fn waiting_units(&self, key: &CounterKey) -> u64 {
        self.table.peek_entry(key, |entry, queues, _| queues.queued_units(entry.queue))
    }

    /// Takes units as if they had departed.
    pub(crate) fn spend_units(&self, units: &Units, now: Now) {
        self.table.update_entry(&units.key, now, |entry, _, params, _| {
            let present = entry.used.level().clamp_now(now);
            params.schedule.charge_usage(&mut entry.used, present, units.cost);
        });
    }

    /// The whole chain accepted a newcomer that found the queue full: the newest waiter of the value with most makes
    /// room for it, unless a waiter has left meanwhile.
    pub(crate) fn displace_waiter(&self, key: &CounterKey, charge: &ChargeRecord, now: Now) {
        waking(|wakers| {
            self.table.update_existing(key, charge.overflow, |entry, queues, params| {
                params.depart_due_waiters(entry, queues, now, wakers);
                let state = params.look_at(entry, queues, now, params.numbers.dry_run);
                let Some(newest) = state.waiter_to_displace(charge.node) else { return };
                queues.displace_waiter(&mut entry.queue, newest.node, wakers);
                params.waiting.fetch_sub(1, Relaxed);
                params.schedule.withdraw_usage(&mut entry.used, newest.cost, newest.span);
            })
        });
    }

    /// Gives a charge back: a waiter leaves its queue; a departure is undone as far as that is still exact. `now` is
    /// called only if a waiter may move up because of it.
    pub(crate) fn refund_charge(
        &self,
        key: &CounterKey,
        cost: u64,
        charge: &ChargeRecord,
        now: impl FnOnce() -> Now,
    ) {
        waking(|wakers| {
            self.table.update_charged(key, charge.overflow, |entry, queues, params| {
                let Some(entry) = entry else {
                    queues.forget_waiter(charge.node);
                    return;
                };
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
    pub(crate) fn check_turn(
        &self,
        key: &CounterKey,
        charge: &mut ChargeRecord,
        now: Now,
        waker: &Waker,
    ) -> Turn {
        if !charge.is_waiting() {
            return Turn::Go;
        }
        let node = charge.node;
        waking(|wakers| {
            self.table.update_charged(key, charge.overflow, |entry, queues, params| {
                let Some(entry) = entry else { return Turn::of_left(charge, queues) };
                params.depart_due_waiters(entry, queues, now, wakers);
                let until = queues.wait_deadline(node);
                let is_in_time = until.is_none_or(|until| now < until);
                if is_in_time && matches!(queues.waiter_state(node), Some(WaiterState::Waiting)) {
                    let is_head = queues.set_waker(entry.queue, node, waker, wakers);
                    let due = Now(params.schedule.tick_rate().ticks_to_ns(params.head_due(entry, queues)));
                    return Turn::wait_until(is_head.then_some(due), until);
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
                let state = params.look_at(entry, queues, now, params.numbers.dry_run);
                Turn::Reject(state.accepted_after_ns(own.fair_hash, now))
            })
        })
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

    /// The newcomer comes after all waiters of the overflow counter, but has its own queue.
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
        bytes: &mut &[u8],
        shift: ClockShift,
        queues: &mut ShardQueues,
    ) -> Option<LeakyBucketEntry<U>> {
        Some(LeakyBucketEntry { used: U::decode_entry(bytes, shift, &mut queues.charges)?, queue: NO_NODE })
    }
}
