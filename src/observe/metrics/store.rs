//! Values about limits that gateways share, and about their store, which the scrape reads.

use super::Metrics;
use super::cells::HistogramReading;
use crate::config::LimitId;

/// The counts of the store that gateways share.
#[derive(Debug, Clone, Default)]
pub struct StoreReading {
    /// Calls by result.
    pub calls: Vec<(&'static str, u64)>,
    /// Its servers, and whether each replies.
    pub servers: Vec<(String, bool)>,
    /// The time of calls to each server.
    pub call_times: Vec<(String, HistogramReading)>,
    /// Keys that each server has dropped for want of memory.
    pub evicted_keys: Vec<(String, u64)>,
    /// Gateways that share it.
    pub nodes: u64,
}

impl Metrics {
    /// Decisions of a shared limit without the store; `how` is the fallback that decided.
    pub fn watch_degraded_decisions(
        &self,
        limit: LimitId,
        how: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (name, help) = ("sluicegate_degraded_decisions", "Decisions while the store did not reply");
        let mut labels = self.limit_label(limit);
        labels.push(("how", how.to_owned()));
        self.watch_counter(name, help, labels, read);
    }

    /// Rejections that needed no call to the store.
    pub fn watch_reject_cache_hits(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_reject_cache_hits", "Rejections without asking the store again");
        self.watch_counter(name, help, self.limit_label(limit), read);
    }

    /// Charges in the store that could not be refunded.
    pub fn watch_lost_refunds(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_redis_gives_lost", "Charges that could not be refunded");
        self.watch_counter(name, help, self.limit_label(limit), read);
    }

    /// Whether other gateways count a limit with other numbers.
    pub fn watch_differing_numbers(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_limit_numbers_differ", "1 while other gateways count with other numbers");
        self.watch_limit_gauge(name, help, Some(limit), read);
    }

    /// Whether other gateways use the limit's name for another key or algorithm.
    pub fn watch_name_collisions(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_limit_collides", "1 while others use the name for another key or algorithm");
        self.watch_limit_gauge(name, help, Some(limit), read);
    }

    /// Keys with debts: units that were admitted without the store and are still to be charged there.
    pub fn watch_debts(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_redis_debt_keys", "Keys with units admitted without Redis and not charged yet");
        self.watch_limit_gauge(name, help, None, read);
    }

    /// The counts of the store.
    pub fn watch_store(&self, read: impl Fn() -> StoreReading + Send + Sync + 'static) {
        *self.store.lock() = Some(Box::new(read));
    }
}
