//! Decides whether a leaky bucket accepts one more request, and at which position of the queue.

use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::algorithm::queue::{NO_NODE, NewestWaiter, ShardQueues};
use crate::algorithm::rate::RemainingUnits;
use crate::algorithm::schedule::Schedule;
use sluicegate_base::clock::Now;

/// The position that a request would have.
#[derive(Debug, Clone, Copy)]
pub struct QueuePosition {
    /// Ticks until its turn, if no request comes after it.
    pub wait: u128,
    /// Ticks until it would be accepted without displacing a waiter.
    pub undisturbed: u128,
}

// === impl LeakyBucketParams ===

impl<S: Schedule> LeakyBucketParams<S> {
    /// The pure step, in ticks: the position of a request that comes now, or how long until one is accepted.
    #[inline]
    pub fn find_position(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
        dry_run: bool,
    ) -> Result<QueuePosition, u128> {
        let step = self.wait_behind_all(entry, queues, backlog, dry_run);
        match step {
            Ok(wait) if !self.is_fair || wait == 0 => Ok(QueuePosition { wait, undisturbed: 0 }),
            Err(excess) if !self.is_fair => Err(excess),
            _ => self.find_fair_position(entry, queues, backlog, fair, step.err().unwrap_or_default()),
        }
    }

    /// Ticks until one more request is accepted without displacing a waiter.
    pub(super) fn until_accepted(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
    ) -> u128 {
        self.find_position(entry, queues, backlog, fair, self.dry_run)
            .map_or_else(|ticks| ticks, |position| position.undisturbed)
    }

    /// `full` is the time until the queue has room, in ticks.
    fn find_fair_position(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
        full: u128,
    ) -> Result<QueuePosition, u128> {
        let behind_all = backlog.saturating_sub(self.ahead);
        // Behind all waiters it is in time for certain, whichever turns come in between.
        let excess = full.max(behind_all.saturating_sub(self.fair_wait_max));
        let forecast = queues.forecast_waiter(entry.queue, queues.find_fair_queue(entry.queue, fair));
        let mut wait =
            behind_all.saturating_sub(queues.queued_ticks(entry.queue)).saturating_add(forecast.before);
        if full > 0 {
            let newest = forecast.newest;
            if forecast.own >= forecast.fullest || !self.frees_enough(entry, queues, &newest, full) {
                return Err(excess);
            }
            wait = wait.saturating_sub(if newest.before { newest.span } else { 0 });
        }
        let undisturbed = if full > 0 { excess } else { 0 };
        if wait > self.fair_wait_max { Err(excess) } else { Ok(QueuePosition { wait, undisturbed }) }
    }

    /// True if displacing `newest` makes enough room.
    fn frees_enough(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        newest: &NewestWaiter,
        full: u128,
    ) -> bool {
        match S::SLOWEST > 1 {
            true => queues.queued_units(entry.queue).saturating_sub(newest.cost) < self.queue,
            false => newest.span >= full,
        }
    }

    /// The waiter to displace for the one at `node`, if the queue is full without it.
    pub(super) fn waiter_to_displace(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        node: u32,
        backlog: u128,
    ) -> Option<NewestWaiter> {
        let (own, own_queue) = queues.find_waiting(node)?;
        let full = match S::SLOWEST > 1 {
            true => queues.queued_units(entry.queue).saturating_sub(own.cost) >= self.queue,
            false => backlog.saturating_sub(own.span).saturating_sub(self.ahead) > self.queue_wait_max,
        };
        let newest = queues.forecast_waiter(entry.queue, own_queue).newest;
        (full && newest.node != NO_NODE).then_some(newest)
    }

    /// The wait behind all waiters of the queue, or how long until a request is accepted there.
    #[inline]
    fn wait_behind_all(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        dry_run: bool,
    ) -> Result<u128, u128> {
        let wait = backlog.saturating_sub(self.ahead);
        let mut excess = wait.saturating_sub(self.queue_wait_max);
        if S::SLOWEST > 1 && wait > 0 {
            excess = excess.max(self.ticks_until_room(entry, queues, wait, dry_run));
        }
        if excess > 0 { Err(excess) } else { Ok(wait) }
    }

    /// Ticks until the queue has room for one more unit, when a request that came now would wait `wait` ticks. With
    /// `warm_up` units differ in length, so the backlog in ticks does not tell the number of units; a dry run has no
    /// queue and counts by the schedule alone.
    fn ticks_until_room(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        wait: u128,
        dry_run: bool,
    ) -> u128 {
        if dry_run {
            return wait.saturating_sub(self.schedule.last_ticks(&entry.used, self.queue));
        }
        let units = queues.queued_units(entry.queue);
        if units < self.queue {
            return 0;
        }
        match units.saturating_sub(queues.head_cost(entry.queue)) < self.queue {
            true => wait.saturating_sub(queues.queued_ticks(entry.queue)),
            // Costs above one took the queue beyond its size: it certainly has room once it is empty.
            false => wait,
        }
    }

    /// The room left.
    #[inline]
    pub(super) fn remaining_units(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        now: Now,
        backlog: u128,
        dry_run: bool,
    ) -> RemainingUnits {
        let in_time = self.schedule.remaining_units(&entry.used, now, self.depth, backlog);
        if S::SLOWEST == 1 {
            return in_time;
        }
        let at_once = self
            .schedule
            .remaining_units(&entry.used, now, self.depth - self.queue_wait_max, backlog)
            .remaining;
        let queue_room = self.queue.saturating_sub(self.units_waiting(entry, queues, backlog, dry_run));
        let remaining = in_time.remaining.min(at_once.saturating_add(queue_room));
        let reset = self
            .wait_behind_all(entry, queues, backlog, dry_run)
            .err()
            .filter(|_| remaining == 0)
            .unwrap_or_default();
        RemainingUnits { remaining, reset_ns: self.schedule.tick_rate().ticks_to_ns(reset), ..in_time }
    }

    /// Units that wait; in a dry run, units that would wait.
    fn units_waiting(
        &self,
        entry: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        dry_run: bool,
    ) -> u64 {
        let wait = backlog.saturating_sub(self.ahead);
        if !dry_run {
            return queues.queued_units(entry.queue);
        }
        let (mut fewer, mut enough) = (0, self.queue.saturating_add(1));
        while wait > 0 && enough - fewer > 1 {
            let middle = fewer + (enough - fewer) / 2;
            match self.schedule.last_ticks(&entry.used, middle) < wait {
                true => fewer = middle,
                false => enough = middle,
            }
        }
        fewer
    }
}
