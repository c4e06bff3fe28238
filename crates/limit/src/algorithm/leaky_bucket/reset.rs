//! Resets a key of a leaky bucket.

use super::LeakyBucket;
use crate::algorithm::queue::{NO_NODE, waking};
use crate::algorithm::schedule::{BucketUsage, Schedule};
use crate::table::{CounterKey, OwnEntry};
use sluicegate_base::clock::Now;

// === impl LeakyBucket ===

impl<S: Schedule> LeakyBucket<S> {
    /// Units of a key that wait.
    pub fn waiting_units(&self, key: &CounterKey) -> u64 {
        self.table.peek_entry(key, |entry, queues, _| queues.queued_units(entry.queue))
    }

    /// Forgets the used units of the key. While requests wait, nothing is forgotten: all used units of the key
    /// space their departures, and a newcomer has to queue behind them. Returns the units that wait.
    pub(crate) fn reset_key(&self, key: &CounterKey, now: Now) -> OwnEntry<u64> {
        waking(|wakers| {
            self.table.update_own(key, now, |entry, queues, params| {
                params.depart_due_waiters(entry, queues, now, wakers);
                if entry.queue == NO_NODE {
                    let present = entry.used.level().clamp_now(now);
                    params.schedule.reset_usage(&mut entry.used, present);
                    queues.charges.count_reset(key);
                }
                queues.queued_units(entry.queue)
            })
        })
    }
}
