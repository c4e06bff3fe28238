//! The parameters of a leaky bucket, the steps that judge by them, and conversions when they change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;

use super::position::BucketState;
use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::algorithm::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams};
use crate::algorithm::queue::{NO_NODE, NewWaiter, ShardQueues, Wakers};
use crate::algorithm::rate::ChargeMark;
use crate::algorithm::schedule::{BucketUsage, Schedule};
use crate::table::{TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_model::{self as model, LeakyBucketRate};

/// The numbers of a leaky bucket at one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueNumbers {
    burst: u64,
    queue: u64,
    max_wait_ns: Option<u64>,
    /// The burst and queue together, at the place of the views where they are greatest.
    capacity_max: u64,
    /// The values of a key take turns, by `fair_by`.
    pub(super) is_fair: bool,
    /// A dry run never waits, but counts as if departures followed the schedule.
    pub(super) dry_run: bool,
    /// An operator has paused it: its waiters leave.
    is_paused: bool,
}

// === impl QueueNumbers ===

impl QueueNumbers {
    /// The numbers of one rate with its longest wait; `capacity_max`: burst and queue where they are greatest.
    pub(crate) fn new(
        (rate, max_wait): (&LeakyBucketRate, Option<Duration>),
        capacity_max: u64,
        config: &model::LimitConfig,
    ) -> QueueNumbers {
        QueueNumbers {
            burst: rate.burst,
            queue: rate.queue,
            max_wait_ns: max_wait.map(duration_ns),
            capacity_max: if config.views.is_empty() { 0 } else { capacity_max },
            is_fair: !config.fair_by.is_empty(),
            dry_run: config.dry_run,
            is_paused: config.pause.is_some(),
        }
    }
}

// === impl LeakyBucketParams ===

impl<S: Schedule> LeakyBucketParams<S> {
    pub(crate) fn new(
        numbers: QueueNumbers,
        schedule: S,
        spec: &MeterSpec<'_, Self>,
    ) -> LeakyBucketParams<S> {
        let waiting = spec.counted_by.or(spec.previous).map(|known| known.params.waiting.clone());
        let mut params = LeakyBucketParams::with_waiting(numbers, schedule, waiting.unwrap_or_default());
        params.epoch =
            spec.next_epoch(|before| before.schedule == params.schedule && before.ahead == params.ahead);
        params
    }

    /// Parameters of the first epoch.
    fn with_waiting(numbers: QueueNumbers, schedule: S, waiting: Arc<AtomicUsize>) -> LeakyBucketParams<S> {
        let QueueNumbers { burst, queue, max_wait_ns, capacity_max, is_fair, .. } = numbers;
        let tick_rate = *schedule.tick_rate();
        let within_reach =
            |units: u64| tick_rate.units_within_reach(units.saturating_mul(S::SLOWEST)).div_ceil(S::SLOWEST);
        let capacity = within_reach(burst.saturating_add(queue));
        let burst = burst.clamp(1, capacity);
        let queue_ticks = |capacity: u64| u128::from(S::SLOWEST) * tick_rate.units_to_ticks(capacity - burst);
        let in_time = max_wait_ns.map_or(u128::MAX, |ns| tick_rate.ns_to_ticks(ns));
        let in_queue = queue_ticks(capacity);
        let wait_max = if is_fair { in_queue } else { in_queue.min(in_time) };
        let ahead = tick_rate.units_to_ticks(burst - 1);
        let depth = tick_rate.units_to_ticks(burst) + wait_max;
        let depth_viewed =
            tick_rate.units_to_ticks(burst) + queue_ticks(within_reach(capacity_max).max(burst));
        LeakyBucketParams {
            schedule,
            numbers,
            capacity,
            queue: capacity - burst,
            ahead,
            ahead_ns: tick_rate.ticks_to_ns(ahead).saturating_sub(1),
            queue_wait_max: wait_max,
            fair_wait_max: in_time,
            give_up_ns: max_wait_ns.filter(|_| is_fair),
            depth,
            deepest: depth.max(depth_viewed),
            waiting,
            epoch: 0,
        }
    }

    /// The state of a bucket as one more request finds it; due waiters have departed.
    #[inline]
    pub(super) fn look_at<'a>(
        &'a self,
        entry: &'a LeakyBucketEntry<S::Used>,
        queues: &'a ShardQueues,
        now: Now,
        dry_run: bool,
    ) -> BucketState<'a, S> {
        let present = entry.used.level().clamp_now(now);
        let backlog = self.schedule.tick_rate().backlog_ticks(entry.used.level(), present);
        BucketState { params: self, entry, queues, present, backlog, dry_run }
    }

    /// Lets all waiters go that are due, because timers may be late; and those of a paused limit, which count as in a
    /// dry run.
    #[inline]
    pub(super) fn depart_due_waiters(
        &self,
        entry: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        now: Now,
        wakers: &mut Wakers,
    ) {
        let tick_rate = self.schedule.tick_rate();
        let present = tick_rate.ns_to_ticks(now.0);
        while entry.queue != NO_NODE {
            let due = self.head_due(entry, queues);
            if due > present && !self.numbers.is_paused {
                return;
            }
            let due = due.min(present);
            let since = entry.used.level_mut().record_departure(tick_rate.ticks_to_ns(due), self.ahead_ns);
            let epoch = queues.charges.charge_epoch(self.epoch);
            queues.depart_head(&mut entry.queue, (since, epoch), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// The departure of the head, in ticks since `Now(0)`.
    pub(super) fn head_due(&self, entry: &LeakyBucketEntry<S::Used>, queues: &ShardQueues) -> u128 {
        let tat = self.schedule.tick_rate().tat_ticks(entry.used.level());
        tat.saturating_sub(queues.queued_ticks(entry.queue)).saturating_sub(self.ahead)
    }

    /// Gives back units that departed at `since`, as far as that is still exact. `now` is called only if a waiter may
    /// move up because of it.
    pub(super) fn undo_departure(
        &self,
        (entry, queues): Locked<'_, Self>,
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

    /// The most ticks that departed units may take.
    fn burst_span(&self) -> u128 {
        u128::from(S::SLOWEST) * (self.ahead + u128::from(self.schedule.tick_rate().unit_ticks()))
    }
}

impl<S: Schedule> MeterParams for LeakyBucketParams<S> {
    type Entry = LeakyBucketEntry<S::Used>;

    fn max_units(&self, _: u8) -> u64 {
        self.capacity
    }
}

impl<S: Schedule> RateParams for LeakyBucketParams<S> {
    type Wakers = Wakers;
    const HAS_VIEWS: bool = true;

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn at_pace_of(&self, in_force: &Self) -> Option<Self> {
        let numbers = QueueNumbers { burst: in_force.numbers.burst, ..self.numbers };
        let own =
            LeakyBucketParams::with_waiting(numbers, in_force.schedule.clone(), in_force.waiting.clone());
        Some(LeakyBucketParams { epoch: in_force.epoch, ..own })
    }

    #[inline]
    fn advance_entry(&self, (entry, queues): Locked<'_, Self>, now: Now, wakers: &mut Wakers) {
        self.depart_due_waiters(entry, queues, now, wakers);
    }

    /// Takes the units at once, or by a position in the queue.
    #[inline]
    fn charge_entry(
        &self,
        (entry, queues): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let dry_run = self.numbers.dry_run || units.unenforced;
        let state = self.look_at(entry, queues, now, dry_run);
        let present = state.present;
        let position = match state.find_position(units.fair_hash) {
            Ok(position) => position,
            Err(ticks) => return (state.build_decision(Err(ticks), now), None),
        };
        let (since, span) = self.schedule.charge_usage(&mut entry.used, present, units.cost);
        let epoch = queues.charges.charge_epoch(self.epoch);
        let displaces = position.undisturbed > 0;
        let mut charge = ChargeRecord { since, node: NO_NODE, overflow, displaces, epoch };
        if position.wait > 0 && !dry_run {
            let until = self.give_up_ns.map(|ns| Now(present.0.saturating_add(ns)));
            let fair_hash = if self.numbers.is_fair { units.fair_hash } else { 0 };
            let waiter = NewWaiter { fair_hash, cost: units.cost, span, until, since: present };
            charge.node = queues.push_waiter(&mut entry.queue, waiter);
            self.waiting.fetch_add(1, Relaxed);
        }
        let state = self.look_at(entry, queues, present, dry_run);
        (state.build_decision(Ok(position.wait), now), Some(charge))
    }

    fn peek_entry(&self, (entry, queues): Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        let state = self.look_at(entry, queues, now, self.numbers.dry_run || units.unenforced);
        state.build_decision(state.find_position(units.fair_hash).map(|position| position.wait), now)
    }

    /// While requests wait, nothing is forgotten: all used units of the key space their departures, and a newcomer has
    /// to queue behind them.
    fn reset_entry(&self, (entry, queues): Locked<'_, Self>, now: Now, wakers: &mut Wakers) -> u64 {
        self.depart_due_waiters(entry, queues, now, wakers);
        if entry.queue == NO_NODE {
            let present = entry.used.level().clamp_now(now);
            self.schedule.reset_usage(&mut entry.used, present);
        }
        queues.queued_units(entry.queue)
    }
}

impl<S: Schedule> TableParams<LeakyBucketEntry<S::Used>> for LeakyBucketParams<S> {
    /// Keeps the number of departed units, up to a burst, and the order of the waiters; each unit now lasts as long as
    /// the new rate says.
    fn convert_entry(
        &self,
        (entry, queues): Locked<'_, Self>,
        before: &Self,
        now: Now,
        to_wake: &mut Vec<Waker>,
    ) {
        let mut wakers = Wakers::new();
        if self.epoch == before.epoch {
            self.depart_due_waiters(entry, queues, now, &mut wakers);
            return to_wake.extend(wakers);
        }
        before.depart_due_waiters(entry, queues, now, &mut wakers);
        if entry.is_idle(now) {
            entry.used = S::Used::default();
        } else {
            let tick_rate = self.schedule.tick_rate();
            let BucketState { present, backlog, .. } = before.look_at(entry, queues, now, false);
            let departed = backlog.saturating_sub(queues.queued_ticks(entry.queue));
            // More than a burst is ahead only where requests passed as if they had waited.
            let depth_used = if departed > before.burst_span() { self.deepest } else { 0 };
            let departed = tick_rate.convert_ticks(departed, before.schedule.tick_rate());
            self.schedule.convert_usage(&mut entry.used, &before.schedule, present);
            queues.convert_spans(entry.queue, |span| {
                tick_rate.convert_ticks(span, before.schedule.tick_rate())
            });
            let ticks = departed
                .min(self.burst_span().max(depth_used))
                .saturating_add(queues.queued_ticks(entry.queue));
            tick_rate.set_backlog(entry.used.level_mut(), present, ticks);
            self.depart_due_waiters(entry, queues, now, &mut wakers);
            // The head's timer is set for its old departure.
            queues.wake_head(entry.queue, &mut wakers);
        }
        to_wake.extend(wakers);
    }
}
