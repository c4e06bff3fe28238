//! The parameters of a leaky bucket, and the steps that judge by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::position::BucketState;
use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::algorithm::queue::{NO_NODE, NewWaiter, ShardQueues};
use crate::algorithm::schedule::{BucketUsage, Schedule};
use crate::{ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, LeakyBucketRate};

/// The numbers of a leaky bucket at one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueNumbers {
    burst: u64,
    queue: u64,
    max_wait_ns: Option<u64>,
    /// The burst and queue together, at the place of the views where they are greatest.
    capacity_max: u64,
    is_fair: bool,
    dry_run: bool,
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
        }
    }

    /// The same with another burst.
    pub(super) fn with_burst_of(self, other: &QueueNumbers) -> QueueNumbers {
        QueueNumbers { burst: other.burst, ..self }
    }
}

// === impl LeakyBucketParams ===

impl<S: Schedule> LeakyBucketParams<S> {
    pub(super) fn new(
        numbers: QueueNumbers,
        schedule: S,
        waiting: Arc<AtomicUsize>,
        epoch: Epoch,
    ) -> LeakyBucketParams<S> {
        let QueueNumbers { burst, queue, max_wait_ns, capacity_max, is_fair, dry_run } = numbers;
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
            is_fair,
            dry_run,
            waiting,
            epoch,
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

    /// Judges units and takes them from an entry, at once or by a position in its queue.
    #[inline]
    pub(super) fn charge_entry(
        &self,
        entry: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        units: &Units,
        now: Now,
        shared: bool,
    ) -> (Decision, Option<ChargeRecord>) {
        let dry_run = self.dry_run || units.unenforced;
        let state = self.look_at(entry, queues, now, dry_run);
        let present = state.present;
        let position = match state.find_position(units.fair_hash) {
            Ok(position) => position,
            Err(ticks) => return (state.build_decision(Err(ticks), now), None),
        };
        let (since, span) = self.schedule.charge_usage(&mut entry.used, present, units.cost);
        let epoch = queues.charges.charge_epoch(self.epoch);
        let displaces = position.undisturbed > 0;
        let mut charge = ChargeRecord { since, node: NO_NODE, shared, displaces, epoch };
        if position.wait > 0 && !dry_run {
            let until = self.give_up_ns.map(|ns| Now(present.0.saturating_add(ns)));
            let fair = if self.is_fair { units.fair_hash } else { 0 };
            let waiter = NewWaiter { fair, cost: units.cost, span, until, since: present };
            charge.node = queues.push_waiter(&mut entry.queue, waiter);
            self.waiting.fetch_add(1, Relaxed);
        }
        let state = self.look_at(entry, queues, present, dry_run);
        (state.build_decision(Ok(position.wait), now), Some(charge))
    }

    /// Judges units that would join the queue of an entry; due waiters have departed.
    pub(super) fn peek_queue(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        units: &Units,
        now: Now,
    ) -> Decision {
        let state = self.look_at(entry, queues, now, self.dry_run || units.unenforced);
        state.build_decision(state.find_position(units.fair_hash).map(|position| position.wait), now)
    }
}

fn duration_ns(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}
