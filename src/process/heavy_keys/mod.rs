//! The heaviest keys and the last refusals of all workers, for operators.
//!
//! Every worker is asked to copy the needed parts, between two of its requests; the copies are put together here.

use std::sync::Arc;

use super::control_thread::ControlThread;
use super::workers::Workers;
use sluicegate_base::clock::Now;
use sluicegate_http::request::key::NamedKey;
use sluicegate_limit::heavy_hitters::ItemCounts;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::heavy_keys::report::{
    self, HeavyBy, HeavyKey, KeyLookupError, KeyRates, RecentRefusal,
};
use sluicegate_proxy::gateway::heavy_keys::{CountedLimit, KeyLabel, REFUSALS_MAX};

/// The most keys that are listed at once.
pub(super) const TOP_MAX: usize = 1000;

impl ControlThread {
    /// The keys of a limit that ask most or are refused most, at most [`TOP_MAX`] of them, the heaviest first.
    ///
    /// # Errors
    /// There is no such limit, or names are not kept.
    pub(super) async fn heavy_keys(
        &self,
        limit: &str,
        by: HeavyBy,
        top: usize,
    ) -> Result<Vec<HeavyKey>, KeyLookupError> {
        read_heavy_keys(&self.workers, &self.current.load_full(), limit, by, top).await
    }

    /// The key that `text` names, as [`parse_name`](sluicegate_http::request::key::KeyNaming::parse_name) reads it or
    /// as it is shown.
    ///
    /// # Errors
    /// There is no such limit, or the text names no key of it.
    pub(super) async fn find_key(&self, limit: &str, text: &str) -> Result<HeavyKey, KeyLookupError> {
        read_key(&self.workers, &self.current.load_full(), limit, text).await
    }
}

async fn read_heavy_keys(
    workers: &Workers,
    gateway: &Gateway,
    limit: &str,
    by: HeavyBy,
    top: usize,
) -> Result<Vec<HeavyKey>, KeyLookupError> {
    let (limit, _) = find_limit(gateway, limit)?;
    if !limit.is_counted() {
        return Err(KeyLookupError::NotKept);
    }
    let heaviest = report::merge_heaviest(read_heaviest(workers, &limit, by).await, top.min(TOP_MAX));
    let rates = read_rates(workers, &limit, heaviest.items.iter().map(|item| item.id).collect()).await;
    Ok(report::name_keys(gateway, &limit, &heaviest, &rates))
}

async fn read_key(
    workers: &Workers,
    gateway: &Gateway,
    limit: &str,
    text: &str,
) -> Result<HeavyKey, KeyLookupError> {
    let (limit, is_shared) = find_limit(gateway, limit)?;
    let named =
        gateway.key_naming().parse_name(&limit.name, &limit.spec, text).map_err(KeyLookupError::Name)?;
    if let NamedKey::Known(parsed) = named {
        let rates = read_rates(workers, &limit, vec![parsed.counter_key(&gateway.keys).id]).await;
        return Ok(report::name_known_key(gateway, &limit, text, &parsed, is_shared, &rates));
    }
    // The name shows a hash, or only the beginning of a value.
    if !limit.is_counted() {
        return Err(KeyLookupError::NotKept);
    }
    let mut known = Vec::new();
    for by in [HeavyBy::Asked, HeavyBy::Refused] {
        known.extend(read_heaviest(workers, &limit, by).await);
    }
    let mut found = report::find_hidden_key(gateway, &limit, text, known).map_err(KeyLookupError::Name)?;
    let rates = read_rates(workers, &limit, found.items.iter().map(|item| item.id).collect()).await;
    found.items.truncate(1);
    let key = report::name_keys(gateway, &limit, &found, &rates).into_iter().next();
    key.ok_or_else(|| KeyLookupError::Name("no such key is known now".to_owned()))
}

/// The last refusals, the latest first.
pub(super) async fn read_refusals(workers: &Workers, gateway: &Gateway) -> Vec<RecentRefusal> {
    let parts = workers.inspect(|worker| worker.heavy_keys.copy_refusals()).await;
    report::merge_refusals(gateway, parts, REFUSALS_MAX)
}

async fn read_heaviest(
    workers: &Workers,
    limit: &Arc<CountedLimit>,
    by: HeavyBy,
) -> Vec<ItemCounts<KeyLabel>> {
    let limit = limit.clone();
    workers.inspect(move |worker| worker.heavy_keys.copy_heaviest(&limit, by, Now::read_clock())).await
}

async fn read_rates(workers: &Workers, limit: &Arc<CountedLimit>, ids: Vec<u128>) -> KeyRates {
    let (limit, count, ids) = (limit.clone(), ids.len(), Arc::<[u128]>::from(ids));
    let parts = workers.inspect(move |worker| worker.heavy_keys.copy_rates(&limit, &ids, Now::read_clock()));
    KeyRates::merge_all(parts.await, count)
}

fn find_limit(gateway: &Gateway, name: &str) -> Result<(Arc<CountedLimit>, bool), KeyLookupError> {
    report::find_counted_limit(gateway, name).ok_or_else(|| KeyLookupError::NoLimit(name.to_owned()))
}

#[cfg(test)]
mod tests;
