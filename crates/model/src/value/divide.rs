//! One gateway's share of a limit that many gateways count together.

use std::num::NonZeroU64;

use super::scalars::Rate;
use crate::limit::{Algorithm, LimitConfig};

impl LimitConfig {
    /// The limit for one of `nodes` gateways: its numbers divided, rounded up.
    pub fn divide_among(&self, nodes: u64) -> LimitConfig {
        let nodes = nodes.max(1);
        let mut share = LimitConfig { shared: None, ..self.clone() };
        let tiers = share.tiers.iter_mut().filter_map(|(_, own)| own.as_mut());
        let grants = share.grants.iter_mut().map(|grant| &mut grant.numbers);
        let variants =
            std::iter::once(&mut share.algorithm).chain(tiers).chain(&mut share.views).chain(grants);
        variants.for_each(|numbers| divide_algorithm(numbers, nodes));
        share
    }
}

fn divide_algorithm(numbers: &mut Algorithm, nodes: u64) {
    match numbers {
        Algorithm::TokenBucket { rates } => rates.iter_mut().for_each(|one| {
            one.rate = lengthen_period(one.rate, nodes);
            one.burst = one.burst.div_ceil(nodes);
        }),
        Algorithm::LeakyBucket { rates, .. } => rates.iter_mut().for_each(|one| {
            one.rate = lengthen_period(one.rate, nodes);
            one.burst = one.burst.div_ceil(nodes);
            one.queue = one.queue.div_ceil(nodes);
        }),
        Algorithm::FixedWindow { rates, .. }
        | Algorithm::SlidingWindow { rates, .. }
        | Algorithm::SlidingLog { rates } => {
            rates.iter_mut().for_each(|rate| *rate = divide_units(*rate, nodes));
        }
        Algorithm::Concurrency { max, queue, .. } => {
            *max = u32::try_from(u64::from(*max).div_ceil(nodes)).unwrap_or(*max);
            *queue = queue.div_ceil(nodes);
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
    use crate::{LeakyBucketRate, TokenBucketRate};

    fn divided(mut numbers: Algorithm, nodes: u64) -> Algorithm {
        divide_algorithm(&mut numbers, nodes);
        numbers
    }

    fn rate(units: u64, seconds: u64) -> Rate {
        Rate::new(NonZeroU64::new(units).unwrap(), Duration::from_secs(seconds))
    }

    #[test]
    fn shares_add_up_to_the_limit_and_at_most_one_more_each() {
        let rates = vec![TokenBucketRate { rate: rate(10, 1), burst: 20 }];
        let Algorithm::TokenBucket { rates } = divided(Algorithm::TokenBucket { rates }, 3) else { panic!() };
        assert_eq!(rates, [TokenBucketRate { rate: rate(10, 3), burst: 7 }]);
        let rates = vec![LeakyBucketRate { rate: rate(50, 1), burst: 1, queue: 50 }];
        let Algorithm::LeakyBucket { rates, max_wait } =
            divided(Algorithm::LeakyBucket { rates, max_wait: Some(Duration::from_secs(2)) }, 3)
        else {
            panic!()
        };
        assert_eq!(rates, [LeakyBucketRate { rate: rate(50, 3), burst: 1, queue: 17 }]);
        assert_eq!(max_wait, Some(Duration::from_secs(2)));
        let Algorithm::SlidingLog { rates } =
            divided(Algorithm::SlidingLog { rates: vec![rate(1, 1)] }, 1000)
        else {
            panic!()
        };
        assert_eq!(rates, [rate(1, 1)], "never nothing");
        let slots = Algorithm::Concurrency { min: None, max: 100, queue: 0, max_wait: None };
        let Algorithm::Concurrency { max, .. } = divided(slots, 3) else { panic!() };
        assert_eq!(max, 34);
    }
}
