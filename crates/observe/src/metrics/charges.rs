//! Units that limits charge by responses.

use super::Metrics;
use sluicegate_model::LimitId;

/// The sources of the units of a response.
pub const CHARGE_NAMES: [&str; 4] = ["request", "usage", "estimate", "reserve"];

impl Metrics {
    /// Counts the units that a limit charged for a response; `how` is an index of [`CHARGE_NAMES`]. Overrun
    /// units were not charged.
    pub fn count_charge(&self, worker: usize, limit: LimitId, how: usize, units: u64, overrun: u64) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.charges[series].add(worker, how.min(CHARGE_NAMES.len() - 1), units);
            self.charges[series].add(worker, CHARGE_NAMES.len(), overrun);
        }
    }

    /// Registers the overruns of a limit that the store counts; they are known only after the response.
    pub fn watch_overruns(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.store_overruns.lock().push((limit, Box::new(read)));
    }

    /// The units of all responses to a limit beyond its debt; `index` is that of its series.
    pub(super) fn sum_overruns(&self, index: usize) -> u64 {
        let readers = self.store_overruns.lock();
        let own = readers.iter().filter(|(limit, _)| self.series.limits.get(limit.0) == Some(&index));
        own.map(|(_, read)| read()).sum::<u64>() + self.charges[index].sum(CHARGE_NAMES.len())
    }
}
