//! Random limits of every algorithm, in all allowed combinations of options.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    self as model, Algorithm, KeyPart, LeakyBucketRate, LimitId, Rate, TokenBucketRate, WindowAlign,
};

use crate::support::*;

/// One random request, with its units for every limit of a chain.
#[derive(Debug, Clone, Copy)]
pub struct RandomRequest {
    /// Time since the previous request, ns.
    pub gap: u64,
    pub id: u128,
    pub cost: u64,
    pub fair: u64,
    /// Selects one of the limit's variants.
    pub variant: usize,
    /// Selects the fate of the request.
    pub fate: u8,
}

impl RandomRequest {
    pub fn units(&self, limit: &Limit) -> Units {
        let variant = self.variant % limit.config.algorithm_variants().count();
        Units {
            key: key(self.id),
            cost: self.cost,
            variant,
            fair_hash: self.fair,
            unenforced: false,
            anchor: None,
        }
    }
}

pub fn any_traffic() -> impl Strategy<Value = Vec<RandomRequest>> {
    let gap = prop_oneof![Just(0), 0..20 * MS, 0..300 * MS];
    let request = (gap, 1..3u128, prop_oneof![3 => Just(1), 1 => 1..5u64], 0..4u64, 0..3usize, 0..5u8);
    let request = request.prop_map(|(gap, id, cost, fair, variant, fate)| RandomRequest {
        gap,
        id,
        cost,
        fair,
        variant,
        fate,
    });
    proptest::collection::vec(request, 1..120)
}

/// One to three rates, from a handful in 50 ms to dozens in 10 s.
pub fn any_rates() -> impl Strategy<Value = Vec<Rate>> {
    let period = prop_oneof![Just(50 * MS), Just(SECOND), Just(10 * SECOND), 1..2000 * MS];
    proptest::collection::vec((1..30u64, period).prop_map(|(units, period)| rate(units, period)), 1..4)
}

fn tokens(rates: Vec<Rate>) -> Algorithm {
    let bucket = |rate: Rate| TokenBucketRate { rate, burst: rate.units.get() };
    Algorithm::TokenBucket { rates: rates.into_iter().map(bucket).collect() }
}

fn queue(rates: Vec<Rate>, max_wait: Option<Duration>) -> Algorithm {
    let queue = |rate: Rate| LeakyBucketRate { rate, burst: 2, queue: rate.units.get() % 4 };
    Algorithm::LeakyBucket { rates: rates.into_iter().map(queue).collect(), max_wait }
}

/// The same algorithm with other rates.
pub fn with_rates(algorithm: &Algorithm, rates: Vec<Rate>) -> Algorithm {
    match *algorithm {
        Algorithm::TokenBucket { .. } => tokens(rates),
        Algorithm::LeakyBucket { max_wait, .. } => queue(rates, max_wait),
        Algorithm::FixedWindow { align, .. } => Algorithm::FixedWindow { rates, align },
        Algorithm::SlidingWindow { buckets, .. } => Algorithm::SlidingWindow { rates, buckets },
        Algorithm::SlidingLog { .. } => Algorithm::SlidingLog { rates },
        Algorithm::Concurrency { .. } => concurrency(rates[0].units.get() as u32),
    }
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let max_wait = proptest::option::of((1..1500u64).prop_map(Duration::from_millis));
    prop_oneof![
        2 => any_rates().prop_map(tokens),
        4 => (any_rates(), max_wait).prop_map(|(rates, max_wait)| queue(rates, max_wait)),
        1 => any_rates().prop_map(|rates| Algorithm::FixedWindow { rates, align: WindowAlign::First }),
        1 => any_rates().prop_map(|rates| Algorithm::FixedWindow { rates, align: WindowAlign::Clock }),
        1 => (any_rates(), 1..=60u8).prop_map(|(rates, buckets)| Algorithm::SlidingWindow { rates, buckets }),
        1 => any_rates().prop_map(|rates| Algorithm::SlidingLog { rates }),
        1 => (1..9u32).prop_map(concurrency),
    ]
}

/// The same rates with other bursts, or other queues: the numbers of a view.
fn with_other_sizes(algorithm: &Algorithm, sizes: u64) -> Option<Algorithm> {
    match algorithm {
        Algorithm::TokenBucket { rates } => {
            let other = |one: &TokenBucketRate| TokenBucketRate { burst: one.burst.max(1) + sizes, ..*one };
            let smaller =
                |one: &TokenBucketRate| TokenBucketRate { burst: one.burst.div_ceil(sizes), ..*one };
            let rates =
                rates.iter().map(|one| if sizes.is_multiple_of(2) { other(one) } else { smaller(one) });
            Some(Algorithm::TokenBucket { rates: rates.collect() })
        }
        Algorithm::LeakyBucket { rates, max_wait } => {
            let other = |one: &LeakyBucketRate| LeakyBucketRate { queue: sizes, ..*one };
            let max_wait = if sizes.is_multiple_of(3) { None } else { *max_wait };
            Some(Algorithm::LeakyBucket { rates: rates.iter().map(other).collect(), max_wait })
        }
        _ => None,
    }
}

/// Half of the buckets warm up, half of the queues have `fair_by`, half of all limits have a tier, and half of the
/// buckets a view.
pub fn any_limit() -> impl Strategy<Value = model::LimitConfig> {
    let warm_up = proptest::option::of((1..5000u64).prop_map(Duration::from_millis));
    let tier = proptest::option::of(any_rates());
    let flags = (any::<bool>(), proptest::bool::weighted(0.15));
    let view = proptest::option::of(1..9u64);
    (any_algorithm(), warm_up, tier, flags, view).prop_map(
        |(algorithm, warm_up, tier, (fair, dry_run), view)| {
            let is_queue = matches!(algorithm, Algorithm::LeakyBucket { .. });
            let is_bucket = is_queue || matches!(algorithm, Algorithm::TokenBucket { .. });
            let tier = tier.map(|rates| ("other".to_owned(), Some(with_rates(&algorithm, rates))));
            model::LimitConfig {
                warm_up: warm_up.filter(|_| is_bucket),
                fair_by: if is_queue && fair { vec![KeyPart::Account] } else { vec![] },
                tiers: tier.into_iter().collect(),
                views: view
                    .filter(|_| !fair)
                    .and_then(|sizes| with_other_sizes(&algorithm, sizes))
                    .into_iter()
                    .collect(),
                dry_run,
                ..config(algorithm)
            }
        },
    )
}

pub fn gate_of(configs: &[model::LimitConfig]) -> Gate {
    Gate::new(configs.iter().map(|config| Arc::new(Limit::new(LimitId(0), config, 1000))).collect())
}
