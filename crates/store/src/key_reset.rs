//! Resets the counters of a limit for one key: in the store, and on every gateway that remembers a rejection of it.
//!
//! The gateway that resets a key also puts an entry of operators for a few seconds; each gateway that sees it forgets
//! once.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::operator_entries::{EntryFault, OperatorEntries, OperatorEntry};
use super::script::call::KeyClass;
use super::script::operator::VALUE_MAX;
use super::script::rule_shape::RuleShape;
use super::{Debts, Link, LuaScript, PackedCall, RateRule, SharedKey, SharedLimit, StoreFault};
use sluicegate_base::clock::Now;

/// The beginning of the names of such entries.
const NAME_PREFIX: &str = "reset/";
/// The life of such an entry: gateways look for entries several times a second.
const LIFE_NS: u64 = 10_000_000_000;

static RESET_SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new(include_str!("script/reset.lua")));

/// The counters of a key in the store after a reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreReset {
    /// Counters that the key had.
    pub forgotten: u32,
    /// Counters of leaky buckets that stay, because requests wait for departures they handed out.
    pub kept: u32,
}

/// A reset of one key of one limit, in the form of messages between gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetEntry {
    /// The name of the limit.
    pub limit: String,
    /// The name of the key in the store.
    pub key: SharedKey,
    /// The [`super::RateRule::id`] of each rate.
    rules: Vec<u32>,
}

/// The resets that this gateway has seen.
#[derive(Debug, Default)]
pub struct KnownResets {
    /// The value of the last entry of each name.
    values: HashMap<Arc<[u8]>, Arc<[u8]>>,
}

// === impl Link ===

impl Link {
    /// Forgets the counts of `rates` of `limit` for `key` in the store; [`ResetEntry`] tells the gateways.
    ///
    /// # Errors
    /// Any fault of the store. After [`StoreFault::Timeout`] and [`StoreFault::Broken`] the reset may have happened; it
    /// may be repeated.
    pub async fn reset_key(
        &self,
        limit: &SharedLimit,
        rates: Range<usize>,
        key: &SharedKey,
    ) -> Result<StoreReset, StoreFault> {
        let rules = limit.rules.get(rates).unwrap_or_default();
        let packed = StoreReset::pack_call(self.store().prefix(), rules, key);
        let group = self.store().group_of(key);
        let bytes = self.call_script(group, StoreReset::script(), &packed).await?;
        StoreReset::parse_reply(&bytes).ok_or(StoreFault::Garbled)
    }
}

// === impl StoreReset ===

impl StoreReset {
    /// The script of such calls.
    pub fn script() -> &'static LuaScript {
        &RESET_SCRIPT
    }

    /// Packs the reset of the counters of `rules` for `key`. Slots of concurrency limits are left out: each request
    /// returns its own.
    pub fn pack_call(prefix: &str, rules: &[RateRule], key: &SharedKey) -> PackedCall {
        let mut packed = PackedCall {
            keys: [KeyClass::Entry.name_key(prefix, key, 0)].into_iter().collect(),
            body: Vec::new(),
        };
        for rule in distinct_rules(rules) {
            match rule.class() {
                KeyClass::Entry => {
                    let at_once = match rule.shape {
                        RuleShape::LeakyBucket { unit, queue, .. } => queue.ahead / unit.max(1) + 1,
                        _ => 0,
                    };
                    packed.body.extend(rule.id.to_le_bytes());
                    packed.body.extend((at_once as f64).to_le_bytes());
                }
                KeyClass::Slots => {}
                class => {
                    packed.keys.push(rule.counters_name(prefix, key));
                    if class == KeyClass::Leases {
                        packed.keys.push(KeyClass::RegionLeases.name_key(prefix, key, rule.id.into()));
                    }
                }
            }
        }
        packed
    }

    /// Parses the reply; `None` if it is malformed.
    pub fn parse_reply(bytes: &[u8]) -> Option<StoreReset> {
        let (forgotten, kept) = bytes.split_first_chunk()?;
        let (forgotten, kept) = (u32::from_le_bytes(*forgotten), u32::from_le_bytes(kept.try_into().ok()?));
        Some(StoreReset { forgotten, kept })
    }
}

/// The rules with entries of their own: views have the entry of the limit's own rate.
fn distinct_rules(rules: &[RateRule]) -> Vec<&RateRule> {
    let mut known = HashSet::new();
    rules.iter().filter(|rule| known.insert(rule.id)).collect()
}

// === impl ResetEntry ===

impl ResetEntry {
    /// A reset of `key` for these rates, which are indices into [`SharedLimit::rules`].
    pub fn new(limit: &SharedLimit, rates: Range<usize>, key: SharedKey) -> ResetEntry {
        let rules = distinct_rules(limit.rules.get(rates).unwrap_or_default());
        let rules = rules.into_iter().map(|rule| rule.id).collect();
        ResetEntry { limit: limit.name().to_owned(), key, rules }
    }

    /// Tells the other gateways. `id` distinguishes this reset from others of the key, e.g. a random number.
    ///
    /// # Errors
    /// There are too many entries, or the name of the limit is too long.
    pub fn put_into(&self, entries: &OperatorEntries, id: u64, now: Now) -> Result<(), EntryFault> {
        let name = format!("{NAME_PREFIX}{}/{}", self.limit, URL_SAFE_NO_PAD.encode(self.key.0));
        let mut value = id.to_le_bytes().to_vec();
        value.extend(self.rules.iter().flat_map(|rule| rule.to_le_bytes()).take(VALUE_MAX - 8));
        entries.put(name.as_bytes(), &value, Now(now.0.saturating_add(LIFE_NS)))
    }

    /// Reads an entry; `None` if it is another one.
    pub fn parse_entry(entry: &OperatorEntry) -> Option<ResetEntry> {
        let name = str::from_utf8(&entry.name).ok()?.strip_prefix(NAME_PREFIX)?;
        let (limit, id) = name.rsplit_once('/')?;
        let key = SharedKey(URL_SAFE_NO_PAD.decode(id).ok()?.try_into().ok()?);
        let (_, rules) = entry.value.split_first_chunk::<8>()?;
        let rules =
            rules.chunks_exact(4).map(|rule| u32::from_le_bytes([rule[0], rule[1], rule[2], rule[3]]));
        Some(ResetEntry { limit: limit.to_owned(), key, rules: rules.collect() })
    }

    /// Forgets this process's memory of the key, if it has the limit.
    pub fn apply_to<'a>(
        &self,
        limits: impl IntoIterator<Item = &'a Arc<SharedLimit>>,
        debts: &Debts,
        now: Now,
    ) {
        let Some(limit) = limits.into_iter().find(|limit| limit.name() == self.limit) else { return };
        for rate in self.rules.iter().filter_map(|rule| limit.rate_of_rule(*rule)) {
            limit.forget_key(rate..rate + 1, &self.key, debts, now);
        }
    }
}

// === impl KnownResets ===

impl KnownResets {
    /// The resets among `living`, the entries of operators, that were not there the last time.
    pub fn take_new(&mut self, living: &[OperatorEntry]) -> Vec<ResetEntry> {
        let before = std::mem::take(&mut self.values);
        let mut found = Vec::new();
        for entry in living {
            let Some(reset) = ResetEntry::parse_entry(entry) else { continue };
            if before.get(&entry.name) != Some(&entry.value) {
                found.push(reset);
            }
            self.values.insert(entry.name.clone(), entry.value.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;
    use sluicegate_model::{LimitId, OnFailure};

    const KEY: SharedKey = SharedKey([0xfe; 16]);

    fn limit(name: &str) -> Arc<SharedLimit> {
        let text = format!(
            "limits: {{ {name}: {{ algorithm: sliding_log, rate: [10/1h, 5/1s] }} }}\n\
             locations: [{{ path: /, limits: {name}, respond: {{ status: 200 }} }}]"
        );
        let config = config::parse(&text, "test").unwrap().config;
        Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], OnFailure::Local, 10))
    }

    #[test]
    fn each_reset_is_seen_once() {
        let (entries, mut known, limit) = (OperatorEntries::default(), KnownResets::default(), limit("a"));
        let reset = ResetEntry::new(&limit, 0..limit.rules.len(), KEY);
        let now = Now::read_clock();
        entries.put(b"ban/x", b"other", Now(now.0 + LIFE_NS)).unwrap();
        entries.put(b"reset/a/short", &[0; 8], Now(now.0 + LIFE_NS)).unwrap();
        assert_eq!(known.take_new(&entries.list_living()), []);
        for id in [1, 2] {
            reset.put_into(&entries, id, now).unwrap();
            assert_eq!(known.take_new(&entries.list_living()), std::slice::from_ref(&reset));
            assert_eq!(known.take_new(&entries.list_living()), []);
        }
        assert_eq!(reset.rules.len(), 2);
    }
}
