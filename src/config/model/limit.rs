//! The typed model of limits: algorithms with their numbers, keys and costs.

use std::time::Duration;

use super::access::NetworkList;
use super::reject::OnRejectPatch;
use crate::config::value::scalars::Rate;
use http::{HeaderName, Method};
use serde::{Deserialize, Serialize};

/// A named limit, or one written inline in a location.
#[derive(Debug, Clone)]
pub struct LimitConfig {
    pub name: String,
    /// One or more parts; several make one compound key.
    pub key: Vec<KeyPart>,
    pub missing_key: MissingKey,
    pub algorithm: Algorithm,
    /// What the limit says to tiers of their own: other numbers of the same algorithm, or `None` = nothing.
    pub tiers: Vec<(String, Option<Algorithm>)>,
    /// By what the waiters of a queue take turns; empty = in arrival order.
    pub fair_by: Vec<KeyPart>,
    /// From cold the rate of a bucket climbs from a third to the whole over this time.
    pub warm_up: Option<Duration>,
    pub cost: Cost,
    /// Empty = any.
    pub methods: Vec<Method>,
    pub bypass: NetworkList,
    pub dry_run: bool,
    /// Its counters are shared on Redis, and so it goes on while that fails; `None` = they are local.
    pub shared: Option<OnFailure>,
    pub on_reject: OnRejectPatch,
}

/// What of a limit may change while its counters go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitNumbers {
    algorithm: Algorithm,
    tiers: Vec<(String, Option<Algorithm>)>,
    warm_up: Option<Duration>,
}

/// The numbers of one limit. `rates` are judged together; there is at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Algorithm {
    TokenBucket {
        rates: Vec<TokenBucketRate>,
    },
    LeakyBucket {
        rates: Vec<LeakyBucketRate>,
        max_wait: Option<Duration>,
    },
    FixedWindow {
        rates: Vec<Rate>,
        align: WindowAlign,
    },
    /// `buckets` is at least 1 and at most [`BUCKETS_MAX`]; no rate's number exceeds 32 bits.
    SlidingWindow {
        rates: Vec<Rate>,
        buckets: u8,
    },
    /// No rate's number exceeds 32 bits.
    SlidingLog {
        rates: Vec<Rate>,
    },
    Concurrency {
        /// The limit follows the upstream's latency, from here (at least 1) up to `max`; `None` = it is `max`.
        min: Option<u32>,
        max: u32,
    },
}

/// More sub-windows than this would only cost memory.
pub const BUCKETS_MAX: u8 = 60;

/// Where fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowAlign {
    /// At the first request of each.
    First,
    /// At the multiples of the period in UTC.
    Clock,
}

impl LimitConfig {
    pub fn numbers(&self) -> LimitNumbers {
        let (algorithm, tiers) = (self.algorithm.clone(), self.tiers.clone());
        LimitNumbers { algorithm, tiers, warm_up: self.warm_up }
    }

    /// The same limit by other numbers.
    pub fn with_numbers(&self, numbers: &LimitNumbers) -> LimitConfig {
        let LimitNumbers { algorithm, tiers, warm_up } = numbers.clone();
        LimitConfig { algorithm, tiers, warm_up, ..self.clone() }
    }

    /// The numbers of the limit itself, then those of each tier that has its own.
    pub fn algorithm_variants(&self) -> impl Iterator<Item = &Algorithm> {
        std::iter::once(&self.algorithm).chain(self.tiers.iter().filter_map(|(_, own)| own.as_ref()))
    }

    /// Which of [`Limit::variants`] judges callers of `tier`; `None` = the limit does not concern them.
    pub fn variant_for_tier(&self, tier: Option<&str>) -> Option<usize> {
        let Some(place) = self.tiers.iter().position(|(name, _)| tier == Some(name)) else { return Some(0) };
        self.tiers[place].1.as_ref()?;
        Some(1 + self.tiers[..place].iter().filter(|(_, own)| own.is_some()).count())
    }

    /// The tier that a variant belongs to; `None` = the limit's own numbers.
    pub fn variant_tier(&self, variant: usize) -> Option<&str> {
        let own = self.tiers.iter().filter(|(_, own)| own.is_some());
        own.map(|(name, _)| name.as_str()).nth(variant.checked_sub(1)?)
    }

    /// The variant and the place of the rate in it, of a rate counted through all variants.
    pub fn locate_rate(&self, rate: usize) -> Option<(usize, &Algorithm, usize)> {
        let mut first = 0;
        for (variant, algorithm) in self.algorithm_variants().enumerate() {
            let places = algorithm.rate_count();
            if rate < first + places {
                return Some((variant, algorithm, rate - first));
            }
            first += places;
        }
        None
    }
}

impl Algorithm {
    /// Each rate with the units that it accepts at most at once or in its window; none for concurrency.
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

    /// Rates; concurrency, which has none, counts as one.
    pub fn rate_count(&self) -> usize {
        self.rate_quotas().len().max(1)
    }
}

/// How a shared limit judges while Redis does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// By local counters and the limit's share for one of the live gateways.
    Local,
    Allow,
    /// 503.
    Reject,
}

impl OnFailure {
    /// Each with its word.
    pub const WORDS: [(&str, OnFailure); 3] =
        [("local", OnFailure::Local), ("allow", OnFailure::Allow), ("reject", OnFailure::Reject)];

    pub fn as_str(self) -> &'static str {
        OnFailure::WORDS[self as usize].0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBucketRate {
    pub rate: Rate,
    /// Tokens the bucket holds, at least 1.
    pub burst: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakyBucketRate {
    pub rate: Rate,
    /// Requests that leave at once from idle, at least 1.
    pub burst: u64,
    /// Requests that may wait.
    pub queue: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    Ip,
    Account,
    Tier,
    Uri,
    Location,
    Host,
    Method,
    Global,
    Source(ValueSource),
}

/// A place in a request's head that carries a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    Header(HeaderName),
    Cookie(String),
    Query(String),
    /// A claim of a verified token.
    Jwt(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    Ip,
    Shared,
    Reject,
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// At least 1.
    Units(u64),
    /// Counts only from trusted proxies, else 1.
    Header { name: HeaderName, invalid: InvalidCost },
}

/// What becomes of a request whose cost is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidCost {
    /// It counts 1.
    One,
    /// A bad request.
    Reject,
}
