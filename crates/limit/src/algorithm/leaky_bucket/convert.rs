//! Converts a leaky bucket and its queue when the parameters change.

use std::task::Waker;

use super::position::BucketState;
use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::algorithm::queue::{ShardQueues, Wakers};
use crate::algorithm::schedule::{BucketUsage, Schedule};
use crate::table::{TableEntry, TableParams};
use sluicegate_base::clock::Now;

// === impl LeakyBucketParams ===

impl<S: Schedule> TableParams<LeakyBucketEntry<S::Used>> for LeakyBucketParams<S> {
    /// Keeps the number of departed units, up to a burst, and the order of the waiters; each unit now lasts as long as
    /// the new rate says.
    fn convert_entry(
        &self,
        entry: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        before: &LeakyBucketParams<S>,
        now: Now,
        to_wake: &mut Vec<Waker>,
    ) {
        if self.epoch == before.epoch {
            return;
        }
        let mut wakers = Wakers::new();
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

impl<S: Schedule> LeakyBucketParams<S> {
    /// The most ticks that departed units may take.
    fn burst_span(&self) -> u128 {
        u128::from(S::SLOWEST) * (self.ahead + u128::from(self.schedule.tick_rate().unit_ticks()))
    }
}
