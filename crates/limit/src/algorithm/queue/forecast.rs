//! The queue as one more waiter would find it.

use super::{FairQueue, NO_NODE, QueuedWaiter, ShardQueues};

/// The queue as one more waiter of a value would find it.
#[derive(Debug)]
pub(crate) struct QueueForecast {
    /// Waiters of its own value.
    pub own: u64,
    /// Ticks of the waiters that go before it.
    pub before: u128,
    /// Waiters of the other value with most.
    pub fullest: u64,
    pub newest: NewestWaiter,
}

/// The newest waiter of the other value with most; at [`NO_NODE`] if there is no other value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewestWaiter {
    pub node: u32,
    pub cost: u64,
    pub span: u128,
    /// The waiter would go before the newcomer.
    pub before: bool,
}

/// A position in a queue that is bounded by units.
pub struct FoundPosition {
    /// Units that go before it.
    pub before: u64,
    /// The waiter that has to make room; [`NO_NODE`] = none.
    pub displaced: u32,
}

// === impl ShardQueues ===

impl ShardQueues {
    /// The position of one more waiter where `units_max` may wait, and spans are costs; `None` = the queue is full.
    /// With a `fair_hash` value, a newcomer of a value with fewer waiters than another takes the place of the newest
    /// waiter of the value with most.
    pub fn find_position(&self, queue: u32, units_max: u64, fair_hash: Option<u64>) -> Option<FoundPosition> {
        let waiting = self.queued_units(queue);
        let is_full = waiting >= units_max;
        let Some(fair_hash) = fair_hash else {
            return (!is_full).then_some(FoundPosition { before: waiting, displaced: NO_NODE });
        };
        let forecast = self.forecast_waiter(queue, self.find_fair_queue(queue, fair_hash));
        let before = u64::try_from(forecast.before).unwrap_or(u64::MAX);
        if !is_full {
            return Some(FoundPosition { before, displaced: NO_NODE });
        }
        let newest = forecast.newest;
        let frees_enough = waiting.saturating_sub(newest.cost) < units_max;
        let displaces = newest.node != NO_NODE && forecast.own < forecast.fullest && frees_enough;
        let before = before - if newest.before { newest.cost } else { 0 };
        displaces.then_some(FoundPosition { before, displaced: newest.node })
    }

    /// The forecast for one more waiter of a fair queue (`NO_NODE` = a new one) if no request came after it.
    pub(crate) fn forecast_waiter(&self, queue: u32, own_queue: u32) -> QueueForecast {
        let own = self.fair_queues.get(own_queue).map_or(0, |fair_queue| fair_queue.waiters);
        let newest = NewestWaiter { node: NO_NODE, cost: 0, span: 0, before: false };
        let mut forecast = QueueForecast { own, before: 0, fullest: 0, newest };
        let mut passed_own = false;
        for index in self.fair_queues(queue) {
            let Some(fair_queue) = self.fair_queues.get(index) else { break };
            // A fair queue with an earlier turn goes once more before the newcomer.
            let turns = own + u64::from(!passed_own);
            passed_own |= index == own_queue;
            let before = turns >= fair_queue.waiters;
            forecast.before += if before { fair_queue.span } else { self.first_ticks(fair_queue, turns) };
            if index != own_queue && fair_queue.waiters > forecast.fullest {
                forecast.fullest = fair_queue.waiters;
                let newest = self.waiters.get(fair_queue.tail);
                let (cost, span) = newest.map_or((0, 0), |waiter| (waiter.own.cost, waiter.own.span));
                forecast.newest = NewestWaiter { node: fair_queue.tail, cost, span, before };
            }
        }
        forecast
    }

    /// Ticks of the first `count` waiters of a longer fair queue, summed from the nearer end.
    fn first_ticks(&self, fair_queue: &FairQueue, count: u64) -> u128 {
        let ticks = |node: u32, next: fn(&QueuedWaiter) -> u32, count: u64| -> u128 {
            let waiters =
                std::iter::successors(self.waiters.get(node), |waiter| self.waiters.get(next(waiter)));
            waiters.take(count as usize).map(|waiter| waiter.own.span).sum()
        };
        let rest = fair_queue.waiters.saturating_sub(count);
        match count <= rest {
            true => ticks(fair_queue.head, |waiter| waiter.behind, count),
            false => fair_queue.span.saturating_sub(ticks(fair_queue.tail, |waiter| waiter.before, rest)),
        }
    }
}
