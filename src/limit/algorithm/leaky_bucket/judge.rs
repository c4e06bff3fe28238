//! Whether a leaky bucket accepts one more request, and where it would stand.

use super::{Flow, Line};
use crate::base::clock::Now;
use crate::limit::algorithm::queue::{NONE, Newest, Queues};
use crate::limit::algorithm::rate::Room;
use crate::limit::algorithm::schedule::Schedule;

/// Where a request would stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Ticks until its turn, if nobody comes after it.
    pub wait: u128,
    /// Ticks until nobody has to make room for it any more.
    pub clear: u128,
}

// === impl Flow ===

impl<S: Schedule> Flow<S> {
    /// The pure step, in ticks: where a request would stand that comes now, or how long until one is accepted.
    #[inline]
    pub(super) fn place(
        &self,
        line: &Line<S::Used>,
        queues: &Queues,
        backlog: u128,
        fair: u64,
    ) -> Result<Place, u128> {
        let step = self.step(line, queues, backlog);
        match step {
            Ok(wait) if !self.fair || wait == 0 => Ok(Place { wait, clear: 0 }),
            Err(excess) if !self.fair => Err(excess),
            _ => self.place_in_turn(line, queues, backlog, fair, step.err().unwrap_or_default()),
        }
    }

    /// Ticks until one more request is accepted in which nobody has to make room for it.
    pub(super) fn until_accepted(
        &self,
        line: &Line<S::Used>,
        queues: &Queues,
        backlog: u128,
        fair: u64,
    ) -> u128 {
        self.place(line, queues, backlog, fair).map_or_else(|ticks| ticks, |place| place.clear)
    }

    /// `full` is the time in which the queue has a place.
    fn place_in_turn(
        &self,
        line: &Line<S::Used>,
        queues: &Queues,
        backlog: u128,
        fair: u64,
        full: u128,
    ) -> Result<Place, u128> {
        let behind_all = backlog.saturating_sub(self.ahead);
        // Behind all that stand here it is in time for certain, whoever's turn comes in between.
        let excess = full.max(behind_all.saturating_sub(self.turns_max));
        let prospect = queues.prospect(line.queue, queues.line_of(line.queue, fair));
        let mut wait = behind_all.saturating_sub(queues.span(line.queue)).saturating_add(prospect.before);
        if full > 0 {
            let newest = prospect.newest;
            if prospect.own >= prospect.fullest || !self.frees_a_place(line, queues, &newest, full) {
                return Err(excess);
            }
            wait = wait.saturating_sub(if newest.before { newest.span } else { 0 });
        }
        let clear = if full > 0 { excess } else { 0 };
        if wait > self.turns_max { Err(excess) } else { Ok(Place { wait, clear }) }
    }

    fn frees_a_place(&self, line: &Line<S::Used>, queues: &Queues, newest: &Newest, full: u128) -> bool {
        match S::SLOWEST > 1 {
            true => queues.units(line.queue).saturating_sub(newest.cost) < self.queue,
            false => newest.span >= full,
        }
    }

    /// Who has to make room for the waiter at `node`, should the queue be full without it.
    pub(super) fn in_the_way(
        &self,
        line: &Line<S::Used>,
        queues: &Queues,
        node: u32,
        backlog: u128,
    ) -> Option<Newest> {
        let (own, own_line) = queues.standing(node)?;
        let full = match S::SLOWEST > 1 {
            true => queues.units(line.queue).saturating_sub(own.cost) >= self.queue,
            false => backlog.saturating_sub(own.span).saturating_sub(self.ahead) > self.wait_max,
        };
        let newest = queues.prospect(line.queue, own_line).newest;
        (full && newest.place != NONE).then_some(newest)
    }

    /// The same behind all that stand in the queue.
    #[inline]
    fn step(&self, line: &Line<S::Used>, queues: &Queues, backlog: u128) -> Result<u128, u128> {
        let wait = backlog.saturating_sub(self.ahead);
        let mut excess = wait.saturating_sub(self.wait_max);
        if S::SLOWEST > 1 && wait > 0 {
            excess = excess.max(self.until_place(line, queues, wait));
        }
        if excess > 0 { Err(excess) } else { Ok(wait) }
    }

    /// Ticks until the queue has a place, where units differ in length, so that their time does not tell their number.
    fn until_place(&self, line: &Line<S::Used>, queues: &Queues, wait: u128) -> u128 {
        if self.dry_run {
            return wait.saturating_sub(self.schedule.last(&line.used, self.queue));
        }
        let units = queues.units(line.queue);
        if units < self.queue {
            return 0;
        }
        match units.saturating_sub(queues.head_cost(line.queue)) < self.queue {
            true => wait.saturating_sub(queues.span(line.queue)),
            // Costs above one took the queue beyond its size: certainly once it is empty.
            false => wait,
        }
    }

    /// What still fits.
    #[inline]
    pub(super) fn room(&self, line: &Line<S::Used>, queues: &Queues, now: Now, backlog: u128) -> Room {
        let in_time = self.schedule.room(&line.used, now, self.depth, backlog);
        if S::SLOWEST == 1 {
            return in_time;
        }
        let at_once = self.schedule.room(&line.used, now, self.depth - self.wait_max, backlog).remaining;
        let places = self.queue.saturating_sub(self.units_waiting(line, queues, backlog));
        let remaining = in_time.remaining.min(at_once.saturating_add(places));
        let reset = self.step(line, queues, backlog).err().filter(|_| remaining == 0).unwrap_or_default();
        Room { remaining, reset_ns: self.schedule.pace().ns_up(reset) }
    }

    /// Units that wait; in a dry run, those that would.
    fn units_waiting(&self, line: &Line<S::Used>, queues: &Queues, backlog: u128) -> u64 {
        let wait = backlog.saturating_sub(self.ahead);
        if !self.dry_run {
            return queues.units(line.queue);
        }
        let (mut fewer, mut enough) = (0, self.queue.saturating_add(1));
        while wait > 0 && enough - fewer > 1 {
            let middle = fewer + (enough - fewer) / 2;
            match self.schedule.last(&line.used, middle) < wait {
                true => fewer = middle,
                false => enough = middle,
            }
        }
        fewer
    }
}
