//! Whether a leaky bucket accepts one more request, and where it would stand.

use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::base::clock::Now;
use crate::limit::algorithm::queue::{NO_NODE, NewestWaiter, ShardQueues};
use crate::limit::algorithm::rate::RemainingUnits;
use crate::limit::algorithm::schedule::Schedule;

/// Where a request would stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuePosition {
    /// Ticks until its turn, if nobody comes after it.
    pub wait: u128,
    /// Ticks until nobody has to make room for it any more.
    pub undisturbed: u128,
}

// === impl Flow ===

impl<S: Schedule> LeakyBucketParams<S> {
    /// The pure step, in ticks: where a request would stand that comes now, or how long until one is accepted.
    #[inline]
    pub(super) fn find_position(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
    ) -> Result<QueuePosition, u128> {
        let step = self.wait_behind_all(line, queues, backlog);
        match step {
            Ok(wait) if !self.fair || wait == 0 => Ok(QueuePosition { wait, undisturbed: 0 }),
            Err(excess) if !self.fair => Err(excess),
            _ => self.find_fair_position(line, queues, backlog, fair, step.err().unwrap_or_default()),
        }
    }

    /// Ticks until one more request is accepted in which nobody has to make room for it.
    pub(super) fn until_accepted(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
    ) -> u128 {
        self.find_position(line, queues, backlog, fair).map_or_else(|ticks| ticks, |place| place.undisturbed)
    }

    /// `full` is the time in which the queue has a place.
    fn find_fair_position(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
        fair: u64,
        full: u128,
    ) -> Result<QueuePosition, u128> {
        let behind_all = backlog.saturating_sub(self.ahead);
        // Behind all that stand here it is in time for certain, whoever's turn comes in between.
        let excess = full.max(behind_all.saturating_sub(self.turns_max));
        let prospect = queues.forecast_waiter(line.queue, queues.find_fair_queue(line.queue, fair));
        let mut wait =
            behind_all.saturating_sub(queues.queued_ticks(line.queue)).saturating_add(prospect.before);
        if full > 0 {
            let newest = prospect.newest;
            if prospect.own >= prospect.fullest || !self.frees_place(line, queues, &newest, full) {
                return Err(excess);
            }
            wait = wait.saturating_sub(if newest.before { newest.span } else { 0 });
        }
        let clear = if full > 0 { excess } else { 0 };
        if wait > self.turns_max { Err(excess) } else { Ok(QueuePosition { wait, undisturbed: clear }) }
    }

    fn frees_place(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        newest: &NewestWaiter,
        full: u128,
    ) -> bool {
        match S::SLOWEST > 1 {
            true => queues.queued_units(line.queue).saturating_sub(newest.cost) < self.queue,
            false => newest.span >= full,
        }
    }

    /// Who has to make room for the waiter at `node`, should the queue be full without it.
    pub(super) fn waiter_to_displace(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        node: u32,
        backlog: u128,
    ) -> Option<NewestWaiter> {
        let (own, own_line) = queues.find_waiting(node)?;
        let full = match S::SLOWEST > 1 {
            true => queues.queued_units(line.queue).saturating_sub(own.cost) >= self.queue,
            false => backlog.saturating_sub(own.span).saturating_sub(self.ahead) > self.wait_max,
        };
        let newest = queues.forecast_waiter(line.queue, own_line).newest;
        (full && newest.place != NO_NODE).then_some(newest)
    }

    /// The same behind all that stand in the queue.
    #[inline]
    fn wait_behind_all(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        backlog: u128,
    ) -> Result<u128, u128> {
        let wait = backlog.saturating_sub(self.ahead);
        let mut excess = wait.saturating_sub(self.wait_max);
        if S::SLOWEST > 1 && wait > 0 {
            excess = excess.max(self.until_place(line, queues, wait));
        }
        if excess > 0 { Err(excess) } else { Ok(wait) }
    }

    /// Ticks until the queue has a place, where units differ in length, so that their time does not tell their number.
    fn until_place(&self, line: &LeakyBucketEntry<S::Used>, queues: &ShardQueues, wait: u128) -> u128 {
        if self.dry_run {
            return wait.saturating_sub(self.schedule.last_ticks(&line.used, self.queue));
        }
        let units = queues.queued_units(line.queue);
        if units < self.queue {
            return 0;
        }
        match units.saturating_sub(queues.head_cost(line.queue)) < self.queue {
            true => wait.saturating_sub(queues.queued_ticks(line.queue)),
            // Costs above one took the queue beyond its size: certainly once it is empty.
            false => wait,
        }
    }

    /// What still fits.
    #[inline]
    pub(super) fn remaining_units(
        &self,
        line: &LeakyBucketEntry<S::Used>,
        queues: &ShardQueues,
        now: Now,
        backlog: u128,
    ) -> RemainingUnits {
        let in_time = self.schedule.remaining_units(&line.used, now, self.depth, backlog);
        if S::SLOWEST == 1 {
            return in_time;
        }
        let at_once =
            self.schedule.remaining_units(&line.used, now, self.depth - self.wait_max, backlog).remaining;
        let places = self.queue.saturating_sub(self.units_waiting(line, queues, backlog));
        let remaining = in_time.remaining.min(at_once.saturating_add(places));
        let reset =
            self.wait_behind_all(line, queues, backlog).err().filter(|_| remaining == 0).unwrap_or_default();
        RemainingUnits { remaining, reset_ns: self.schedule.tick_rate().ticks_to_ns(reset) }
    }

    /// Units that wait; in a dry run, those that would.
    fn units_waiting(&self, line: &LeakyBucketEntry<S::Used>, queues: &ShardQueues, backlog: u128) -> u64 {
        let wait = backlog.saturating_sub(self.ahead);
        if !self.dry_run {
            return queues.queued_units(line.queue);
        }
        let (mut fewer, mut enough) = (0, self.queue.saturating_add(1));
        while wait > 0 && enough - fewer > 1 {
            let middle = fewer + (enough - fewer) / 2;
            match self.schedule.last_ticks(&line.used, middle) < wait {
                true => fewer = middle,
                false => enough = middle,
            }
        }
        fewer
    }
}
