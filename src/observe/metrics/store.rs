//! Values about limits that gateways share, and about their store, which the scrape reads.

use super::Metrics;

/// What is counted about the store that many gateways share.
#[derive(Debug, Clone, Default)]
pub struct StoreReading {
    /// Calls by what came of them.
    pub calls: Vec<(&'static str, u64)>,
    /// Its servers, and whether they answer.
    pub servers: Vec<(String, bool)>,
    /// Gateways that share it.
    pub nodes: u64,
}

impl Metrics {
    /// Decisions about a shared limit that were not the store's; `how` tells what was done.
    pub fn watch_degraded_decisions(
        &self,
        limit: usize,
        how: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (name, help) = ("sluicegate_degraded_decisions", "Decisions while the store did not answer");
        let mut labels = self.limit_label(limit);
        labels.push(("how", how.to_owned()));
        self.watch_counter(name, help, labels, read);
    }

    /// Refusals that the store did not have to be asked for.
    pub fn watch_reject_cache_hits(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_reject_cache_hits", "Refusals without asking the store again");
        self.watch_counter(name, help, self.limit_label(limit), read);
    }

    /// What requests took in the store and could not give back.
    pub fn watch_lost_refunds(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_redis_gives_lost", "Charges that could not be given back");
        self.watch_counter(name, help, self.limit_label(limit), read);
    }

    /// Whether other gateways count a limit by other numbers.
    pub fn watch_differing_numbers(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_limit_numbers_differ", "1 while other gateways count by other numbers");
        self.watch_limit_gauge(name, help, Some(limit), read);
    }

    /// Whether other gateways use its name for something else.
    pub fn watch_name_collisions(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_limit_collides", "1 while others use the name for another key or algorithm");
        self.watch_limit_gauge(name, help, Some(limit), read);
    }

    /// What was admitted without the store and is still to be charged there.
    pub fn watch_debts(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) =
            ("sluicegate_redis_debt_keys", "Keys with units admitted without Redis and not charged yet");
        self.watch_limit_gauge(name, help, None, read);
    }

    /// The store that many gateways share.
    pub fn watch_store(&self, read: impl Fn() -> StoreReading + Send + Sync + 'static) {
        *self.store.lock() = Some(Box::new(read));
    }
}
