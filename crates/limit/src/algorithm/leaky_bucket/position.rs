//! Decides whether a leaky bucket accepts one more request, and at which position of the queue.

use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::algorithm::queue::{NO_NODE, NewestWaiter, ShardQueues};
use crate::algorithm::schedule::{Schedule, greatest_where};
use crate::{Decision, LimitOutcome};
use sluicegate_base::clock::Now;

/// A bucket and its queue as one more request finds them.
pub(super) struct BucketState<'a, S: Schedule> {
    pub params: &'a LeakyBucketParams<S>,
    pub entry: &'a LeakyBucketEntry<S::Used>,
    pub queues: &'a ShardQueues,
    /// The moment of the request, or of the last charge if that is later.
    pub present: Now,
    /// The backlog at that moment, in ticks.
    pub backlog: u128,
    /// The request would not wait, but counts as if its departure followed the schedule.
    pub dry_run: bool,
}

/// The position that a request would have.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePosition {
    /// Ticks until its turn, if no request comes after it.
    pub wait: u128,
    /// Ticks until it would be accepted without displacing a waiter.
    pub undisturbed: u128,
}

// === impl BucketState ===

impl<S: Schedule> BucketState<'_, S> {
    /// The pure step, in ticks: the position of a request that comes now, or how long until one is accepted.
    #[inline]
    pub(super) fn find_position(&self, fair_hash: u64) -> Result<QueuePosition, u128> {
        match self.wait_behind_all() {
            step if !self.params.numbers.is_fair => step.map(|wait| QueuePosition { wait, undisturbed: 0 }),
            Ok(0) => Ok(QueuePosition { wait: 0, undisturbed: 0 }),
            step => self.find_fair_position(fair_hash, step.err().unwrap_or_default()),
        }
    }

    /// Nanoseconds after `now` until one more request is accepted without displacing a waiter; at least 1.
    pub(super) fn accepted_after_ns(&self, fair_hash: u64, now: Now) -> u64 {
        let position = self.find_position(fair_hash);
        let ticks = position.map_or_else(|ticks| ticks, |position| position.undisturbed);
        let wait_ns = self.params.schedule.tick_rate().ticks_to_ns(ticks);
        wait_ns.saturating_add(self.present.ns_since(now)).max(1)
    }

    /// `full` is the time until the queue has room, in ticks.
    fn find_fair_position(&self, fair_hash: u64, full: u128) -> Result<QueuePosition, u128> {
        let BucketState { params, entry, queues, .. } = self;
        let behind_all = self.backlog.saturating_sub(params.ahead);
        // Behind all waiters it is in time for certain, whichever turns come in between.
        let excess = full.max(behind_all.saturating_sub(params.fair_wait_max));
        let forecast = queues.forecast_waiter(entry.queue, queues.find_fair_queue(entry.queue, fair_hash));
        let mut wait =
            behind_all.saturating_sub(queues.queued_ticks(entry.queue)).saturating_add(forecast.before);
        if full > 0 {
            let newest = forecast.newest;
            if forecast.own >= forecast.fullest || !self.frees_enough(&newest, full) {
                return Err(excess);
            }
            wait = wait.saturating_sub(if newest.before { newest.span } else { 0 });
        }
        let undisturbed = if full > 0 { excess } else { 0 };
        if wait > params.fair_wait_max { Err(excess) } else { Ok(QueuePosition { wait, undisturbed }) }
    }

    /// True if displacing `newest` makes enough room.
    fn frees_enough(&self, newest: &NewestWaiter, full: u128) -> bool {
        match S::SLOWEST > 1 {
            true => self.queued_units().saturating_sub(newest.cost) < self.params.queue,
            false => newest.span >= full,
        }
    }

    /// The waiter to displace for the one at `node`, if the queue is full without it.
    pub(super) fn waiter_to_displace(&self, node: u32) -> Option<NewestWaiter> {
        let (own, own_queue) = self.queues.find_waiting(node)?;
        let full = match S::SLOWEST > 1 {
            true => self.queued_units().saturating_sub(own.cost) >= self.params.queue,
            false => {
                let others = self.backlog.saturating_sub(own.span);
                others.saturating_sub(self.params.ahead) > self.params.queue_wait_max
            }
        };
        let newest = self.queues.forecast_waiter(self.entry.queue, own_queue).newest;
        (full && newest.node != NO_NODE).then_some(newest)
    }

    /// The wait behind all waiters of the queue, or how long until a request is accepted there.
    #[inline]
    fn wait_behind_all(&self) -> Result<u128, u128> {
        let wait = self.backlog.saturating_sub(self.params.ahead);
        let mut excess = wait.saturating_sub(self.params.queue_wait_max);
        if S::SLOWEST > 1 && wait > 0 {
            excess = excess.max(self.ticks_until_room(wait));
        }
        if excess > 0 { Err(excess) } else { Ok(wait) }
    }

    /// Ticks until the queue has room for one more unit, when a request that came now would wait `wait` ticks. With
    /// `warm_up` units differ in length, so the backlog in ticks does not tell the number of units; a dry run has no
    /// queue and counts by the schedule alone.
    fn ticks_until_room(&self, wait: u128) -> u128 {
        let BucketState { params, entry, queues, .. } = self;
        if self.dry_run {
            return wait.saturating_sub(params.schedule.last_ticks(&entry.used, params.queue));
        }
        let units = self.queued_units();
        if units < params.queue {
            return 0;
        }
        match units.saturating_sub(queues.head_cost(entry.queue)) < params.queue {
            true => wait.saturating_sub(queues.queued_ticks(entry.queue)),
            // Costs above one took the queue beyond its size: it certainly has room once it is empty.
            false => wait,
        }
    }

    /// The decision of the pure step on a request that comes at `now`.
    #[inline]
    pub(super) fn build_decision(&self, step: Result<u128, u128>, now: Now) -> Decision {
        let (tick_rate, behind_ns) = (self.params.schedule.tick_rate(), self.present.ns_since(now));
        let (outcome, wait_ns, retry_after_ns) = match step {
            Ok(0) => (LimitOutcome::Admit, 0, 0),
            Ok(ticks) => (LimitOutcome::Wait, tick_rate.ticks_to_ns(ticks).saturating_add(behind_ns), 0),
            Err(ticks) => (LimitOutcome::Reject, 0, tick_rate.ticks_to_ns(ticks).saturating_add(behind_ns)),
        };
        Decision { outcome, retry_after_ns, wait_ns, ..self.remaining_units() }
    }

    /// The decision on no further units: the room left.
    #[inline]
    fn remaining_units(&self) -> Decision {
        let BucketState { params, entry, backlog, .. } = self;
        let room_within =
            |depth: u128| params.schedule.remaining_units(&entry.used, self.present, depth, *backlog);
        let in_time = room_within(params.depth);
        if S::SLOWEST == 1 {
            return in_time;
        }
        let at_once = room_within(params.depth - params.queue_wait_max).remaining;
        let queue_room = params.queue.saturating_sub(self.units_waiting());
        let remaining = in_time.remaining.min(at_once.saturating_add(queue_room));
        let reset = self.wait_behind_all().err().filter(|_| remaining == 0).unwrap_or_default();
        Decision { remaining, reset_ns: params.schedule.tick_rate().ticks_to_ns(reset), ..in_time }
    }

    /// Units that wait; in a dry run, units that would wait.
    fn units_waiting(&self) -> u64 {
        let BucketState { params, entry, .. } = self;
        let wait = self.backlog.saturating_sub(params.ahead);
        if !self.dry_run {
            return self.queued_units();
        }
        let end = if wait > 0 { params.queue.saturating_add(1) } else { 0 };
        greatest_where(0, end, |units| params.schedule.last_ticks(&entry.used, units) < wait)
    }

    fn queued_units(&self) -> u64 {
        self.queues.queued_units(self.entry.queue)
    }
}
