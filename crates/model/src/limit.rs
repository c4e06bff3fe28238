//! The typed model of limits: algorithms with their numbers, costs, and the share of keys on which they act.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::access::NetworkList;
use super::api_keys::ApiKeyTable;
use super::charge::{ChargeConfig, ChargedUnits};
use super::id::LimitId;
use super::key::KeyPart;
use super::limit_change::LimitChange;
use super::quota_step::QuotaStep;
use super::reject::OnRejectPatch;
use super::shares::Shares;
use crate::value::money::{Amount, Currency};
use crate::value::scalars::Rate;
use sluicegate_base::calendar::{Anchor, Calendar};
use sluicegate_base::file::NamedFile;
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_base::labelled::labelled_enum;

/// A named limit, or one written inline in a location.
#[derive(Debug, Clone)]
pub struct LimitConfig {
    /// The label in metrics, logs and headers.
    pub name: String,
    /// The team whose file defines it.
    pub owner: Option<Arc<str>>,
    /// One part or more; several make one compound key.
    pub key: Vec<KeyPart>,
    /// The treatment of a request that lacks a part of the key.
    pub missing_key: MissingKey,
    /// The status of a rejection by [`MissingKey::Reject`], kept apart because counters survive its change.
    pub missing_key_status: StatusCode,
    /// The algorithm with the numbers that hold unless a tier, a view or a grant has others.
    pub algorithm: Algorithm,
    /// Tiers with other numbers for the same algorithm; `None` = the tier is not limited.
    pub tiers: Vec<(String, Option<Algorithm>)>,
    /// The numbers at places of the chains that use other ones than the limit's own, each once. They count in the
    /// limit's own counters, and have the same rates.
    pub views: Vec<Algorithm>,
    /// Other numbers for single keys; the file has none.
    pub grants: Vec<GrantConfig>,
    /// Waiters of a queue take turns by this key; empty = arrival order.
    pub fair_by: Vec<KeyPart>,
    /// The time in which the rate of a cold bucket rises from a third to its full value.
    pub warm_up: Option<Duration>,
    /// Where windows of the calendar begin; `None` = it has none.
    pub calendar: Option<Arc<Calendar>>,
    /// The steps of its quotas, rising; empty = a quota rejects what is above it.
    pub steps: Vec<QuotaStep>,
    /// The guaranteed shares of classes; `None` = whoever comes first is served.
    pub shares: Option<Arc<Shares>>,
    /// The file with the dates of accounts; present if windows begin by them.
    pub anchors: Option<Arc<NamedFile<ApiKeyTable>>>,
    /// The units that a request takes.
    pub cost: Cost,
    /// The response settles the cost of the request; `None` = the cost is the reserved one.
    pub charge: Option<ChargeConfig>,
    /// Empty = any.
    pub methods: Vec<Method>,
    /// Clients without this limit, beside those of [`crate::AccessConfig::bypass`].
    pub bypass: NetworkList,
    /// True if the limit judges and counts, but never acts.
    pub dry_run: bool,
    /// The pause by an operator, which makes it a dry run; the file has none.
    pub pause: Option<Box<LimitChange>>,
    /// The numbers that an operator set in place of those of the file.
    pub set: Option<Box<LimitChange>>,
    /// The limit as the file has it, while it is changed.
    pub file: Option<Box<LimitConfig>>,
    /// The share of the keys on which the limit acts; for the others it is a dry run. `None` = all.
    pub enforce: Option<EnforcedShare>,
    /// The shadow: a limit of its own in [`super::Config::limits`], judged right behind this one.
    pub shadow: Option<LimitId>,
    /// The limit that this dry run is the shadow of.
    pub shadow_of: Option<LimitId>,
    /// The behaviour while Redis fails, if the counters are shared there; `None` = local counters.
    pub shared: Option<OnFailure>,
    /// Gateways take units of a shared limit in advance.
    pub leased: bool,
    /// The limit's own section, which goes over the top-level one and below that of the location.
    pub on_reject: OnRejectPatch,
}

/// The part of a limit that may change without a reset of its counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitNumbers {
    algorithm: Algorithm,
    tiers: Vec<(String, Option<Algorithm>)>,
    warm_up: Option<Duration>,
    #[serde(default)]
    views: Vec<Algorithm>,
    /// Grants by their names.
    #[serde(default)]
    grants: Vec<(String, Algorithm)>,
}

/// Other numbers for one key of a limit, which an operator sets while the gateway runs: a variant with counters of its
/// own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantConfig {
    /// The name of the counters, see [`GrantConfig::name_for`].
    pub name: String,
    /// The key that the numbers are for.
    pub key: GrantKey,
    /// The other numbers, for the same algorithm as the limit's.
    pub numbers: Algorithm,
    /// The beginning of the grant, in ns of the gateway's clock.
    pub at_ns: u64,
    /// The end of the grant, on the same clock.
    pub until_ns: u64,
    /// The operator's reason; may be empty.
    pub reason: String,
    /// The operator.
    pub by: String,
}

/// The hashes of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantKey {
    /// The key of local counters, little endian.
    pub id: [u8; 16],
    /// The hash of the client's network, by which a newcomer shares an overflow counter.
    pub prefix: u64,
    /// The key of shared counters.
    pub shared: [u8; 16],
}

/// Ends the name of a shadow. No limit of the file has a colon in its name.
const SHADOW_SUFFIX: &str = ":shadow";

/// No tier has a space in its name.
const NAME_PREFIX: &str = "grant ";

/// The numbers of one limit. `rates` has at least one entry, and all of them must agree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Bursts pass, then the rate.
    TokenBucket {
        /// The buckets, each of which must have the tokens.
        rates: Vec<TokenBucketRate>,
    },
    /// Requests leave evenly, one every 1/rate, and may wait for it.
    LeakyBucket {
        /// The buckets, each of which must let a request leave.
        rates: Vec<LeakyBucketRate>,
        /// The longest wait; `None` = no bound.
        max_wait: Option<Duration>,
    },
    /// The number of a rate passes in each window.
    FixedWindow {
        /// The windows and their numbers.
        rates: Vec<Rate>,
        /// The start of the windows.
        align: WindowAlign,
    },
    /// `buckets` is at least 1 and at most [`BUCKETS_MAX`]; no rate's number exceeds 32 bits.
    SlidingWindow {
        /// The windows and their numbers.
        rates: Vec<Rate>,
        /// The sub-windows of a period.
        buckets: u8,
    },
    /// No rate's number exceeds 32 bits.
    SlidingLog {
        /// The windows and their numbers.
        rates: Vec<Rate>,
    },
    /// Requests in flight hold slots.
    Concurrency {
        /// The lower bound (at least 1) of a limit that follows the upstream's latency; `None` = it is always `max`.
        min: Option<u32>,
        /// The slots, or the upper bound of them if `min` is set.
        max: u32,
        /// Requests that may wait for a slot; 0 = none waits.
        #[serde(default)]
        queue: u64,
        /// The longest wait for a slot; `None` = no bound.
        #[serde(default)]
        max_wait: Option<Duration>,
    },
}

labelled_enum! {
    /// The algorithms by name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AlgorithmKind: as_str -> &'static str {
        /// See [`Algorithm::TokenBucket`].
        TokenBucket = "token_bucket",
        /// See [`Algorithm::LeakyBucket`].
        LeakyBucket = "leaky_bucket",
        /// See [`Algorithm::FixedWindow`].
        FixedWindow = "fixed_window",
        /// See [`Algorithm::SlidingWindow`].
        SlidingWindow = "sliding_window",
        /// See [`Algorithm::SlidingLog`].
        SlidingLog = "sliding_log",
        /// See [`Algorithm::Concurrency`].
        Concurrency = "concurrency",
    }

    /// The decision of a shared limit while Redis does not answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OnFailure: as_str -> &'static str {
        /// Judged by local counters, with one gateway's share of the limit.
        Local = "local",
        /// Admitted, without local counters.
        Allow = "allow",
        /// Rejected with 503.
        Reject = "reject",
    }

    /// The treatment of a request that lacks a part of the key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MissingKey: as_str -> &'static str {
        /// The client's address stands for the missing part, apart from keys made of addresses.
        Ip = "ip",
        /// All such requests share one counter for the missing part.
        Shared = "shared",
        /// The request is rejected, with [`LimitConfig::missing_key_status`].
        Reject = "reject",
        /// The limit leaves the request out.
        Skip = "skip",
    }
}

/// More sub-windows would cost memory without a gain in precision.
pub const BUCKETS_MAX: u8 = 60;

/// The start of fixed windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowAlign {
    /// Windows start at the first request of each.
    First,
    /// Windows start at multiples of the period in UTC.
    Clock,
    /// Windows of rates with [`Rate::calendar`] start as [`LimitConfig::calendar`] says, others at the first request of
    /// each. A key has one counter for each rate, whatever its tier.
    Calendar,
}

impl LimitConfig {
    /// The names of the classes of its shares; none without shares.
    pub fn class_names(&self) -> impl Iterator<Item = &str> {
        self.shares.iter().flat_map(|shares| &shares.classes).map(|class| &*class.name)
    }

    /// The classes into which the counters of each key are divided, at least one.
    pub fn classes_per_key(&self) -> usize {
        self.class_names().count().max(1)
    }

    /// The name of a class of its shares, of an unknown one the last; `None` without shares.
    #[inline]
    pub fn class_name(&self, class: u8) -> Option<&str> {
        let shares = self.shares.as_ref()?;
        shares.classes.get(shares.index(class)).map(|class| &*class.name)
    }

    /// True if it counts clients by their addresses and not by their accounts or tiers.
    pub fn counts_by_address(&self) -> bool {
        self.key.contains(&KeyPart::Ip)
            && !self.key.iter().any(|part| matches!(part, KeyPart::Account | KeyPart::Tier))
    }

    /// The part of this limit that may change without a reset of its counters.
    pub fn numbers(&self) -> LimitNumbers {
        let (algorithm, tiers, views) = (self.algorithm.clone(), self.tiers.clone(), self.views.clone());
        let grants = self.grants.iter().map(|grant| (grant.name.clone(), grant.numbers.clone()));
        LimitNumbers { algorithm, tiers, warm_up: self.warm_up, views, grants: grants.collect() }
    }

    /// The same limit with other numbers.
    pub fn with_numbers(&self, numbers: &LimitNumbers) -> LimitConfig {
        let LimitNumbers { algorithm, tiers, warm_up, views, grants } = numbers.clone();
        let grants = grants.iter().map(|(name, own)| GrantConfig::from_numbers(name, own)).collect();
        LimitConfig { algorithm, tiers, warm_up, views, grants, ..self.clone() }
    }

    /// The same limit with these numbers for everybody and everywhere.
    pub fn with_numbers_alone(&self, numbers: &Algorithm) -> LimitConfig {
        let (tiers, views, grants) = (Vec::new(), Vec::new(), Vec::new());
        LimitConfig { algorithm: numbers.clone(), tiers, views, grants, ..self.clone() }
    }

    /// The shadow of this limit, which has the position `live` in the configuration, with these numbers. It judges
    /// the same requests by the same key; a tier that is not limited is not limited there either.
    pub fn to_shadow(&self, live: LimitId, numbers: Algorithm) -> LimitConfig {
        LimitConfig {
            name: format!("{}{SHADOW_SUFFIX}", self.name),
            algorithm: numbers,
            tiers: self.tiers.iter().filter(|(_, own)| own.is_none()).cloned().collect(),
            dry_run: true,
            enforce: None,
            shadow: None,
            shadow_of: Some(live),
            ..self.clone()
        }
    }

    /// The date by which windows of an account begin, that of the default for an account without one; `None` where they
    /// do not begin by it.
    #[inline]
    pub fn anchor_of(&self, account: Option<&[u8]>) -> Option<Anchor> {
        let file = self.anchors.as_ref()?;
        Some(account.and_then(|account| file.content().find_anchor(account)).unwrap_or(Anchor::DEFAULT))
    }

    /// True if its windows begin by the dates of accounts.
    pub fn begins_by_account(&self) -> bool {
        self.calendar.as_ref().is_some_and(|calendar| calendar.start.by_account)
    }

    /// True if a key has one counter for each rate, whatever its tier: its windows are those of a calendar, or have
    /// steps.
    pub fn shares_counters(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow { align: WindowAlign::Calendar, .. })
    }

    /// The steps of the quota that one of its rates is: rates without a unit of the calendar have none beside one with.
    pub fn steps_of(&self, rate: &Rate) -> &[QuotaStep] {
        match self.calendar.is_some() && rate.calendar.is_none() {
            true => &[],
            false => &self.steps,
        }
    }

    /// The steps with these bits, rising.
    pub fn steps_in(&self, bits: u8) -> impl DoubleEndedIterator<Item = &QuotaStep> {
        self.steps.iter().enumerate().filter(move |(index, _)| bits >> index & 1 > 0).map(|(_, step)| step)
    }

    /// True if the rates are written as sizes, and count in KiB.
    pub fn counts_kib(&self) -> bool {
        self.charge.as_ref().is_some_and(|charge| charge.counts_kib)
    }

    /// The currency of a limit that counts money.
    pub fn currency(&self) -> Option<Currency> {
        match self.charge.as_ref()?.units.as_slice() {
            [ChargedUnits::Money(currency)] => Some(*currency),
            _ => None,
        }
    }

    /// Units as they are shown.
    pub fn amount(&self, units: u64) -> Amount {
        Amount { units, currency: self.currency() }
    }

    /// The parts of the key that a request can lack.
    pub fn optional_key_parts(&self) -> impl Iterator<Item = &KeyPart> {
        let is_optional =
            |part: &&KeyPart| matches!(part, KeyPart::Account | KeyPart::Host | KeyPart::Source(_));
        self.key.iter().filter(is_optional)
    }

    /// The limit's own numbers, then those of each tier that has others, of each view, and of each grant.
    pub fn algorithm_variants(&self) -> impl Iterator<Item = &Algorithm> {
        self.file_variants().chain(self.grants.iter().map(|grant| &grant.numbers))
    }

    /// The variants without those of grants.
    pub fn file_variants(&self) -> impl Iterator<Item = &Algorithm> {
        std::iter::once(&self.algorithm)
            .chain(self.tiers.iter().filter_map(|(_, own)| own.as_ref()))
            .chain(&self.views)
    }

    /// The number of rates that the file has; those of grants come after them.
    pub fn file_rate_count(&self) -> usize {
        self.file_variants().map(Algorithm::rate_count).sum()
    }

    /// The grant that a variant belongs to.
    pub fn variant_grant(&self, variant: usize) -> Option<&GrantConfig> {
        self.grants.get(variant.checked_sub(self.file_variants().count())?)
    }

    /// The index into [`LimitConfig::algorithm_variants`] for callers of `tier` at the place of a chain with the
    /// variant `own`, 0 = the limit's own numbers; `None` = they are not limited.
    #[inline]
    pub fn variant_at(&self, own: usize, tier: Option<&str>) -> Option<usize> {
        let Some(index) = self.tiers.iter().position(|(name, _)| tier == Some(name)) else {
            return Some(own);
        };
        self.tiers[index].1.as_ref()?;
        Some(1 + self.tiers[..index].iter().filter(|(_, own)| own.is_some()).count())
    }

    /// The tier of a variant, or the name of its grant; `None` = the limit's own numbers, or a view.
    pub fn variant_tier(&self, variant: usize) -> Option<&str> {
        let tiers = self.tiers.iter().filter(|(_, own)| own.is_some()).map(|(name, _)| Some(name.as_str()));
        let views = self.views.iter().map(|_| None);
        let grants = self.grants.iter().map(|grant| Some(grant.name.as_str()));
        tiers.chain(views).chain(grants).nth(variant.checked_sub(1)?)?
    }

    /// The variant, and the index of the rate in it, for an index that counts the rates of all variants: meters and
    /// decisions number them in a row.
    pub fn locate_rate(&self, rate: usize) -> Option<(usize, &Algorithm, usize)> {
        let mut first = 0;
        for (variant, algorithm) in self.algorithm_variants().enumerate() {
            let count = algorithm.rate_count();
            if rate < first + count {
                return Some((variant, algorithm, rate - first));
            }
            first += count;
        }
        None
    }
}

impl Algorithm {
    /// Each rate with the most units that it accepts at once or in its window; empty for concurrency.
    pub fn rate_quotas(&self) -> Vec<(Rate, u64)> {
        match self {
            Algorithm::TokenBucket { rates } => rates.iter().map(|one| (one.rate, one.burst)).collect(),
            Algorithm::LeakyBucket { rates, .. } => {
                rates.iter().map(|one| (one.rate, one.burst.saturating_add(one.queue))).collect()
            }
            Algorithm::FixedWindow { rates, .. }
            | Algorithm::SlidingWindow { rates, .. }
            | Algorithm::SlidingLog { rates } => rates.iter().map(|rate| (*rate, rate.units.get())).collect(),
            Algorithm::Concurrency { .. } => Vec::new(),
        }
    }

    /// The word of the algorithm in the file.
    pub fn word(&self) -> &'static str {
        let kind = match self {
            Algorithm::TokenBucket { .. } => AlgorithmKind::TokenBucket,
            Algorithm::LeakyBucket { .. } => AlgorithmKind::LeakyBucket,
            Algorithm::FixedWindow { .. } => AlgorithmKind::FixedWindow,
            Algorithm::SlidingWindow { .. } => AlgorithmKind::SlidingWindow,
            Algorithm::SlidingLog { .. } => AlgorithmKind::SlidingLog,
            Algorithm::Concurrency { .. } => AlgorithmKind::Concurrency,
        };
        kind.as_str()
    }

    /// The number of rates; concurrency, which has none, counts as one.
    pub fn rate_count(&self) -> usize {
        self.rate_quotas().len().max(1)
    }
}

impl GrantConfig {
    /// The name of the counters of a grant for the key with this text. No tier is called so.
    pub fn name_for(key: &str) -> String {
        format!("{NAME_PREFIX}{key}")
    }

    /// The key as operators write it.
    pub fn key_text(&self) -> &str {
        self.name.strip_prefix(NAME_PREFIX).unwrap_or(&self.name)
    }

    /// The numbers of a grant that is otherwise unknown.
    fn from_numbers(name: &str, numbers: &Algorithm) -> GrantConfig {
        GrantConfig {
            name: name.to_owned(),
            key: GrantKey::default(),
            numbers: numbers.clone(),
            at_ns: 0,
            until_ns: 0,
            reason: String::new(),
            by: String::new(),
        }
    }
}

impl GrantKey {
    /// The id under which a limit finds the grant; zero: only the other id is known, because the key was named by a
    /// hash, or by another gateway.
    pub fn id_in(&self, limit: &LimitConfig) -> u128 {
        u128::from_le_bytes(if limit.shared.is_some() { self.shared } else { self.id })
    }
}

/// The numbers of one bucket of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBucketRate {
    /// The tokens that come back in each period.
    pub rate: Rate,
    /// Capacity in tokens, at least 1.
    pub burst: u64,
}

/// The numbers of one leaky bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakyBucketRate {
    /// The requests that leave in each period.
    pub rate: Rate,
    /// Requests that an idle bucket passes at once, at least 1.
    pub burst: u64,
    /// Requests that may wait.
    pub queue: u64,
}

/// The units that a request takes from a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// The minimum is 1.
    Units(u64),
    /// Read from trusted proxies only; otherwise the cost is 1.
    Header {
        /// The name of the header.
        name: HeaderName,
        /// The treatment of a value that is no number.
        invalid: InvalidCost,
    },
    /// A number in the JSON of the body, of any client; 1 without it.
    Json {
        /// The place of the number in the body.
        pointer: JsonPointer,
        /// The treatment of a value that is no number, and of a body that is no JSON.
        invalid: InvalidCost,
    },
    /// The number of calls in a batch of JSON-RPC; 1 for any other document, and without a body.
    JsonRpc {
        /// The treatment of a body that is no JSON.
        invalid: InvalidCost,
    },
}

/// The treatment of a request if its cost cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidCost {
    /// The request costs 1.
    One,
    /// The request is bad (400).
    Reject,
}

/// A share of all keys, chosen by a hash that all gateways compute alike. A greater share contains every smaller one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnforcedShare {
    percent: f64,
    /// Keys with a hash below this are in the share.
    below: u64,
}

/// The number of hashes: 2⁶⁴.
const HASHES: f64 = 18_446_744_073_709_551_616.0;

impl EnforcedShare {
    /// `percent` is from 0 to below 100.
    pub fn new(percent: f64) -> EnforcedShare {
        // A cast of floats saturates.
        EnforcedShare { percent, below: (percent / 100.0 * HASHES) as u64 }
    }

    /// True if the limit acts on the key with this hash, which is the same in all gateways.
    pub fn contains(self, hash: [u8; 16]) -> bool {
        ((u128::from_be_bytes(hash) >> 64) as u64) < self.below
    }
}

impl std::fmt::Display for EnforcedShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_end_where_they_say() {
        let hash = |first: u64| u128::from(first).checked_shl(64).unwrap_or_default().to_be_bytes();
        for (percent, last) in [(50.0, (1 << 63) - 1), (25.0, (1 << 62) - 1), (0.5, u64::MAX / 200)] {
            let share = EnforcedShare::new(percent);
            assert!(share.contains(hash(0)) && share.contains(hash(last - 2000)), "{share}");
            assert!(!share.contains(hash(last + 2000)) && !share.contains([0xff; 16]), "{share}");
        }
        assert!(!EnforcedShare::new(0.0).contains([0; 16]), "0% contains no key");
        assert_eq!(EnforcedShare::new(0.5).to_string(), "0.5%");
    }
}
