//! One gateway's share of a limit that many gateways count together.

use std::num::NonZeroU64;

use super::scalars::Rate;
use crate::limit::{Algorithm, GrantConfig, LeakyBucketRate, LimitConfig, TokenBucketRate};

impl LimitConfig {
    /// The limit for one of `nodes` gateways: its numbers divided, rounded up.
    pub fn divide_among(&self, nodes: u64) -> LimitConfig {
        let nodes = nodes.max(1);
        let tier = |(name, own): &(String, Option<Algorithm>)| {
            (name.clone(), own.as_ref().map(|numbers| divide_algorithm(numbers, nodes)))
        };
        let grant = |grant: &GrantConfig| GrantConfig {
            numbers: divide_algorithm(&grant.numbers, nodes),
            ..grant.clone()
        };
        LimitConfig {
            algorithm: divide_algorithm(&self.algorithm, nodes),
            tiers: self.tiers.iter().map(tier).collect(),
            views: self.views.iter().map(|numbers| divide_algorithm(numbers, nodes)).collect(),
            grants: self.grants.iter().map(grant).collect(),
            shared: None,
            ..self.clone()
        }
    }
}

fn divide_algorithm(numbers: &Algorithm, nodes: u64) -> Algorithm {
    let counted = |rates: &[Rate]| rates.iter().map(|rate| divide_units(*rate, nodes)).collect();
    match numbers {
        Algorithm::TokenBucket { rates } => {
            let one = |one: &TokenBucketRate| TokenBucketRate {
                rate: lengthen_period(one.rate, nodes),
                burst: one.burst.div_ceil(nodes),
            };
            Algorithm::TokenBucket { rates: rates.iter().map(one).collect() }
        }
        Algorithm::LeakyBucket { rates, max_wait } => {
            let one = |one: &LeakyBucketRate| LeakyBucketRate {
                rate: lengthen_period(one.rate, nodes),
                burst: one.burst.div_ceil(nodes),
                queue: one.queue.div_ceil(nodes),
            };
            Algorithm::LeakyBucket { rates: rates.iter().map(one).collect(), max_wait: *max_wait }
        }
        Algorithm::FixedWindow { rates, align } => {
            Algorithm::FixedWindow { rates: counted(rates), align: *align }
        }
        Algorithm::SlidingWindow { rates, buckets } => {
            Algorithm::SlidingWindow { rates: counted(rates), buckets: *buckets }
        }
        Algorithm::SlidingLog { rates } => Algorithm::SlidingLog { rates: counted(rates) },
        Algorithm::Concurrency { min, max, queue, max_wait } => {
            let share = u64::from(*max).div_ceil(nodes);
            Algorithm::Concurrency {
                min: *min,
                max: u32::try_from(share).unwrap_or(*max),
                queue: queue.div_ceil(nodes),
                max_wait: *max_wait,
            }
        }
    }
}

/// The same units in more time. This is exact, while fewer units in the same time would be rounded.
fn lengthen_period(rate: Rate, nodes: u64) -> Rate {
    let times = u32::try_from(nodes).unwrap_or(u32::MAX);
    Rate { period: rate.period.saturating_mul(times), ..rate }
}

fn divide_units(rate: Rate, nodes: u64) -> Rate {
    let units = NonZeroU64::new(rate.units.get().div_ceil(nodes)).unwrap_or(NonZeroU64::MIN);
    Rate { units, ..rate }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rate(units: u64, seconds: u64) -> Rate {
        Rate { units: NonZeroU64::new(units).unwrap(), period: Duration::from_secs(seconds) }
    }

    #[test]
    fn shares_add_up_to_the_limit_and_at_most_one_more_each() {
        let rates = vec![TokenBucketRate { rate: rate(10, 1), burst: 20 }];
        let Algorithm::TokenBucket { rates } = divide_algorithm(&Algorithm::TokenBucket { rates }, 3) else {
            panic!()
        };
        assert_eq!(rates, [TokenBucketRate { rate: rate(10, 3), burst: 7 }]);
        let rates = vec![LeakyBucketRate { rate: rate(50, 1), burst: 1, queue: 50 }];
        let Algorithm::LeakyBucket { rates, max_wait } =
            divide_algorithm(&Algorithm::LeakyBucket { rates, max_wait: Some(Duration::from_secs(2)) }, 3)
        else {
            panic!()
        };
        assert_eq!(rates, [LeakyBucketRate { rate: rate(50, 3), burst: 1, queue: 17 }]);
        assert_eq!(max_wait, Some(Duration::from_secs(2)));
        let Algorithm::SlidingLog { rates } =
            divide_algorithm(&Algorithm::SlidingLog { rates: vec![rate(1, 1)] }, 1000)
        else {
            panic!()
        };
        assert_eq!(rates, [rate(1, 1)], "never nothing");
        let slots = Algorithm::Concurrency { min: None, max: 100, queue: 0, max_wait: None };
        let Algorithm::Concurrency { max, .. } = divide_algorithm(&slots, 3) else { panic!() };
        assert_eq!(max, 34);
    }
}
