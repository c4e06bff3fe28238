//! Resets a key of a shared limit in the memory of this process. The store has to forget it as well.

use std::ops::Range;

use super::SharedLimit;
use sluicegate_base::clock::Now;
use sluicegate_limit::ResetFault;
use sluicegate_limit::table::CounterKey;

// === impl SharedLimit ===

impl SharedLimit {
    /// Forgets the rejections that are repeated here, and the counts of the local share for `key`. An answer to a
    /// question from before is no longer recorded.
    ///
    /// # Errors
    /// The share counts the key together with others; the rejections are forgotten all the same.
    pub fn reset_key(&self, rates: Range<usize>, key: &CounterKey, now: Now) -> Result<(), ResetFault> {
        for rate in rates.clone() {
            let Some(table) = self.last_answers.get(rate) else { continue };
            let capacity = self.rules[rate].capacity().min(u32::MAX.into()) as u32;
            table.update_existing(key, false, |last, (), ()| {
                (last.at, last.remaining, last.seeded) = (now.0.max(last.at), capacity, true);
                (last.rejected_until, last.rejected_at, last.rejected_cost) = (0, 0, 0);
            });
        }
        match self.existing_share() {
            Some(share) if !share.is_concurrency() => share.reset_key(rates, key, now).map(drop),
            _ => Ok(()),
        }
    }
}
