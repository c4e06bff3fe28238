//! What becomes of a queue when the numbers beside it change.

use std::task::Waker;

use super::{LeakyBucketEntry, LeakyBucketParams};
use crate::base::clock::Now;
use crate::limit::algorithm::queue::{ShardQueues, Wakers};
use crate::limit::algorithm::schedule::{BucketUsage, Schedule};
use crate::limit::table::{TableEntry, TableParams};

// === impl Flow ===

impl<S: Schedule> TableParams<LeakyBucketEntry<S::Used>> for LeakyBucketParams<S> {
    /// What has departed stays used, as far as a burst goes, and who waits keeps its place: as many units, each as
    /// long as it is now.
    fn convert_entry(
        &self,
        line: &mut LeakyBucketEntry<S::Used>,
        queues: &mut ShardQueues,
        before: &LeakyBucketParams<S>,
        now: Now,
        called: &mut Vec<Waker>,
    ) {
        if self.epoch == before.epoch {
            return;
        }
        let mut wakers = Wakers::new();
        before.depart_due_waiters(line, queues, now, &mut wakers);
        if line.is_idle(now) {
            line.used = S::Used::default();
        } else {
            let (pace, present) = (self.schedule.tick_rate(), line.used.level().clamp_now(now));
            let departed =
                before.backlog_ticks(line, present).saturating_sub(queues.queued_ticks(line.queue));
            // More than a burst is ahead only where requests have passed as if they had waited.
            let deep = if departed > before.burst_span() { self.depth } else { 0 };
            let departed = pace.convert_ticks(departed, before.schedule.tick_rate());
            self.schedule.convert_usage(&mut line.used, &before.schedule, present);
            queues.convert_spans(line.queue, |span| pace.convert_ticks(span, before.schedule.tick_rate()));
            let ticks =
                departed.min(self.burst_span().max(deep)).saturating_add(queues.queued_ticks(line.queue));
            pace.set_backlog(line.used.level_mut(), present, ticks);
            self.depart_due_waiters(line, queues, now, &mut wakers);
            // The head's timer is set for its old departure.
            queues.wake_head(line.queue, &mut wakers);
        }
        called.extend(wakers);
    }
}

impl<S: Schedule> LeakyBucketParams<S> {
    /// Ticks that those may take at most who have departed.
    fn burst_span(&self) -> u128 {
        u128::from(S::SLOWEST) * (self.ahead + u128::from(self.schedule.tick_rate().unit_ticks()))
    }
}
