//! The heaviest keys and the last refusals of all workers together, with their names.
//!
//! [`WorkerHeavyKeys`] is read inside its thread, in time that the size of its summaries bounds; everything else here
//! runs on the thread of the reader.

use std::net::IpAddr;
use std::sync::Arc;

use super::{CountedLimit, KeyLabel, KeySummaries, LimitHeavyKeys, RefusalRecord, WorkerHeavyKeys};
use crate::gateway::Gateway;
use sluicegate_base::clock::Now;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::request::key::{ParsedKey, is_same_name};
use sluicegate_limit::heavy_hitters::{FrequentItems, ItemCounts, rate_factor};
use sluicegate_limit::table::CounterKey;
use sluicegate_store::SharedKey;

/// The order of the heaviest keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeavyBy {
    /// The keys with the most asked units come first.
    Asked,
    /// The keys with the most refused units come first.
    Refused,
}

/// One of the heaviest keys of a limit, or one that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct HeavyKey {
    /// The name that an operator reads and types.
    pub name: String,
    /// The same with the account in clear, for callers who may see it; `None` = nothing of it is hidden.
    pub account_name: Option<String>,
    /// The key of its counters in this process.
    pub key: CounterKey,
    /// The key of its counters in the store; present for a limit that is counted there.
    pub shared: Option<SharedKey>,
    /// The rate of asked units, refused ones included.
    pub asked: KeyRate,
    /// The rate of finally refused units.
    pub refused: KeyRate,
}

/// Units per second, faded with a half-life of a minute. The true rate is at least `per_s` and at most `error_per_s`
/// more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyRate {
    /// The lower bound of the rate.
    pub per_s: f64,
    /// The most by which the true rate may be above the lower bound.
    pub error_per_s: f64,
}

/// The counts of single keys by one worker, or by all of them together.
#[derive(Debug, Clone, Default)]
pub struct KeyRates {
    /// One for each key that was asked for.
    keys: Vec<(f64, f64, Option<KeyLabel>)>,
    asked_error: f64,
    refused_error: f64,
}

/// One refusal by a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentRefusal {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// The name of the limit.
    pub limit: String,
    /// The name of its key; `None` = the key is missing, or names are not kept.
    pub key: Option<String>,
    /// The same with the account in clear; `None` = nothing of it is hidden.
    pub account_key: Option<String>,
    /// `None` on a unix socket without a forwarded address.
    pub ip: Option<IpAddr>,
    /// The name of the location, which may be cut.
    pub location: Option<String>,
    /// `None` = an upstream answered instead.
    pub status: Option<u16>,
    /// `None` = no such time is known.
    pub retry_after_ms: Option<u64>,
    /// The cause in the access log, e.g. `rate`.
    pub cause: &'static str,
}

/// Why keys cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyLookupError {
    /// The configuration has no limit with this name.
    #[error("no limit is called `{0}`")]
    NoLimit(String),
    /// `state.heavy_hitters` is `none`.
    #[error("names of keys are not kept, because state.heavy_hitters is none")]
    NotKept,
    /// The text names no key, or none that is known.
    #[error("{0}")]
    Name(String),
    /// The gateway stops, and its workers answer no more.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

/// Units per second below which a key is not listed: one request, a quarter of an hour ago.
const RATE_MIN: f64 = 1e-6;

// === impl HeavyKey ===

impl HeavyKey {
    /// The name for a caller, who may see accounts in clear or not.
    pub fn shown_name(&self, sees_accounts: bool) -> &str {
        self.account_name.as_ref().filter(|_| sees_accounts).unwrap_or(&self.name)
    }
}

// === impl WorkerHeavyKeys ===

impl WorkerHeavyKeys {
    /// The keys of `limit` that ask most or are refused most, with units per second; empty if this worker does not
    /// know the limit.
    pub fn copy_heaviest(&self, limit: &CountedLimit, by: HeavyBy, now: Now) -> ItemCounts<KeyLabel> {
        let Some(counted) = self.find_limit(limit) else { return ItemCounts::default() };
        let Some(summaries) = &counted.summaries else { return ItemCounts::default() };
        let summaries = summaries.borrow();
        summaries.ordered_by(by).copy_counts(now, summaries.factor_at(now))
    }

    /// The units per second of single keys of `limit`.
    pub fn copy_rates(&self, limit: &CountedLimit, ids: &[u128], now: Now) -> KeyRates {
        let summaries = self.find_limit(limit).and_then(|counted| counted.summaries.as_ref());
        let Some(summaries) = summaries else { return KeyRates::default() };
        let summaries = summaries.borrow();
        let (asked, refused, factor) = (&summaries.asked, &summaries.refused, summaries.factor_at(now));
        let rates = |&id: &u128| {
            let label = asked.label_of(id).or_else(|| refused.label_of(id)).copied();
            (asked.count_of(id, now) * factor, refused.count_of(id, now) * factor, label)
        };
        KeyRates {
            keys: ids.iter().map(rates).collect(),
            asked_error: asked.error_at(now) * factor,
            refused_error: refused.error_at(now) * factor,
        }
    }

    /// The last refusals, in no order.
    pub fn copy_refusals(&self) -> Vec<RefusalRecord> {
        self.refusals.copy_records()
    }

    fn find_limit(&self, limit: &CountedLimit) -> Option<&LimitHeavyKeys> {
        self.limits.iter().map(|counted| &**counted).find(|counted| *counted.identity == *limit)
    }
}

impl KeySummaries {
    fn ordered_by(&self, by: HeavyBy) -> &FrequentItems<KeyLabel> {
        match by {
            HeavyBy::Asked => &self.asked,
            HeavyBy::Refused => &self.refused,
        }
    }

    fn factor_at(&self, now: Now) -> f64 {
        rate_factor(now.ns_since(self.began))
    }
}

// === impl KeyRates ===

impl KeyRates {
    /// The sum over workers, which were all asked for the same `count` keys.
    pub fn merge_all(parts: impl IntoIterator<Item = KeyRates>, count: usize) -> KeyRates {
        let mut merged = KeyRates { keys: vec![(0.0, 0.0, None); count], ..KeyRates::default() };
        for part in parts {
            merged.asked_error += part.asked_error;
            merged.refused_error += part.refused_error;
            for ((asked, refused, label), (own_asked, own_refused, own_label)) in
                merged.keys.iter_mut().zip(part.keys)
            {
                *asked += own_asked;
                *refused += own_refused;
                *label = label.or(own_label);
            }
        }
        merged
    }

    fn rates_at(&self, position: usize) -> (KeyRate, KeyRate) {
        let (asked, refused, _) = self.keys.get(position).copied().unwrap_or_default();
        (
            KeyRate { per_s: asked, error_per_s: self.asked_error },
            KeyRate { per_s: refused, error_per_s: self.refused_error },
        )
    }
}

/// The heaviest `top` items of all workers.
pub fn merge_heaviest(
    parts: impl IntoIterator<Item = ItemCounts<KeyLabel>>,
    top: usize,
) -> ItemCounts<KeyLabel> {
    let mut merged = ItemCounts::merge_all(parts);
    merged.items.retain(|item| item.count >= RATE_MIN);
    merged.keep_top(top);
    merged
}

/// The heaviest keys with their names; `rates` are those of the same ids.
pub fn name_keys(
    gateway: &Gateway,
    limit: &CountedLimit,
    heaviest: &ItemCounts<KeyLabel>,
    rates: &KeyRates,
) -> Vec<HeavyKey> {
    let naming = gateway.key_naming();
    let name_key = |(position, id, label): (usize, u128, &KeyLabel)| {
        let (asked, refused) = rates.rates_at(position);
        let name = naming.render_name(&limit.spec, &label.name);
        let account_name = naming.render_account(&limit.spec, &label.name);
        HeavyKey { name, account_name, key: label.counter_key(id), shared: label.shared, asked, refused }
    };
    let items = heaviest.items.iter().enumerate();
    items.map(|(position, item)| name_key((position, item.id, &item.label))).collect()
}

/// A key by its whole text; `text` is its name unless the workers know how it is written. `is_shared`: the limit is
/// counted in the store.
pub fn name_known_key(
    gateway: &Gateway,
    limit: &CountedLimit,
    text: &str,
    parsed: &ParsedKey,
    is_shared: bool,
    rates: &KeyRates,
) -> HeavyKey {
    let (asked, refused) = rates.rates_at(0);
    let label = rates.keys.first().and_then(|(.., label)| *label);
    let key = parsed.counter_key(&gateway.keys);
    let naming = gateway.key_naming();
    let name = label.map(|label| naming.render_name(&limit.spec, &label.name));
    HeavyKey {
        name: name.unwrap_or_else(|| text.to_owned()),
        account_name: label.and_then(|label| naming.render_account(&limit.spec, &label.name)),
        key: label.map_or(key, |label| label.counter_key(key.id)),
        shared: is_shared.then(|| SharedKey(parsed.shared_key())),
        asked,
        refused,
    }
}

/// The one item that is shown as `text`, which contains a hash or only the beginning of a value.
///
/// # Errors
/// None of the heaviest keys is called so, or several are.
pub fn find_hidden_key(
    gateway: &Gateway,
    limit: &CountedLimit,
    text: &str,
    known: impl IntoIterator<Item = ItemCounts<KeyLabel>>,
) -> Result<ItemCounts<KeyLabel>, String> {
    let naming = gateway.key_naming();
    let mut known = ItemCounts::merge_all(known);
    known.items.retain(|item| {
        let account_name = naming.render_account(&limit.spec, &item.label.name);
        is_same_name(text, &naming.render_name(&limit.spec, &item.label.name))
            || account_name.is_some_and(|name| is_same_name(text, &name))
    });
    let why = match known.items.len() {
        1 => return Ok(known),
        0 => "no key that is shown so is known now",
        _ => "several keys are shown so",
    };
    Err(format!("limit {}: {why}: write the whole value instead of `{text}`", limit.name))
}

/// The last refusals of all workers, the latest first.
pub fn merge_refusals(
    gateway: &Gateway,
    parts: impl IntoIterator<Item = Vec<RefusalRecord>>,
    most: usize,
) -> Vec<RecentRefusal> {
    let mut records: Vec<RefusalRecord> = parts.into_iter().flatten().collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.facts.unix_ms));
    records.truncate(most);
    let naming = gateway.key_naming();
    let report = |record: &RefusalRecord| RecentRefusal {
        unix_ms: record.facts.unix_ms,
        limit: record.limit.name.to_string(),
        key: record.key.map(|key| naming.render_name(&record.limit.spec, &key)),
        account_key: record.key.and_then(|key| naming.render_account(&record.limit.spec, &key)),
        ip: Some(record.facts.ip).filter(|ip| *ip != UNIX_CLIENT),
        location: record.location.as_deref().map(str::to_owned),
        status: record.facts.status.map(|status| status.as_u16()),
        retry_after_ms: record.facts.retry_after_ns.map(|ns| ns.div_ceil(1_000_000)),
        cause: record.facts.cause.cause_name(),
    };
    records.iter().map(report).collect()
}

/// The limit of `gateway` with this name.
pub fn find_counted_limit(gateway: &Gateway, name: &str) -> Option<(Arc<CountedLimit>, bool)> {
    let limit = gateway.limits.iter().find(|limit| *limit.name == *name)?;
    Some((Arc::new(CountedLimit::new(gateway, limit.id)), limit.config.shared.is_some()))
}
