//! The sizes of the limits now, by name: limits of one name are one row to people, as they are one series.

use std::collections::HashMap;

use sluicegate_model::LimitId;
use sluicegate_proxy::gateway::Gateway;

/// The keys and the waiting requests of the limits of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSize {
    /// Keys with counters; `None` = only the store knows them.
    pub keys: Option<usize>,
    /// Requests in the queues.
    pub waiting: usize,
}

pub struct LimitSizes<'g> {
    gateway: &'g Gateway,
    by_name: HashMap<&'g str, LimitSize>,
}

impl<'g> LimitSizes<'g> {
    /// Reads counts that are kept anyway, without a lock.
    pub fn read(gateway: &'g Gateway) -> LimitSizes<'g> {
        let mut by_name: HashMap<&str, LimitSize> = HashMap::with_capacity(gateway.limits.len());
        for limit in &gateway.limits {
            let (keys, waiting) = (gateway.count_keys(limit.id), gateway.count_waiting(limit.id));
            let size = by_name.entry(&limit.name).or_insert(LimitSize { keys: Some(0), waiting: 0 });
            size.keys = size.keys.zip(keys).map(|(sum, keys)| sum + keys);
            size.waiting += waiting;
        }
        LimitSizes { gateway, by_name }
    }

    /// The size of all limits with the name of this one.
    pub fn of_limit(&self, limit: LimitId) -> LimitSize {
        let name = &*self.gateway.limits[limit.0].name;
        self.by_name.get(name).copied().unwrap_or(LimitSize { keys: None, waiting: 0 })
    }
}
