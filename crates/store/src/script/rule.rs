//! One rate of a limit, as the script judges it.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use smallvec::SmallVec;

use super::rule_shape::{QueueTicks, RuleShape, WORDS_LEAST};
use super::shares::ShareRule;
use crate::lease::LeaseTerms;
use sluicegate_base::calendar::{Anchor, Calendar, CalendarUnit, CalendarWindow};
use sluicegate_limit::steps::StepTerms;
use sluicegate_model::{
    self as model, Algorithm, LeakyBucketRate, QuotaStep, Rate, TokenBucketRate, WindowAlign,
    in_lowest_terms_us,
};

/// The numbers of one rate, or of the slots of a concurrency limit, in the store's units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateRule {
    /// Distinguishes the entries of one key: 26 bits of a hash of the limit's name, the tier, the rate's index and
    /// its shape, and 6 bits that encode the length of the entry.
    pub id: u32,
    pub(crate) shape: RuleShape,
    /// Charges are settled by responses, and the entry has a key of its own.
    pub(crate) settles: bool,
    /// The greatest cost that any rule of the entry can accept: views share that of the limit's own rate.
    pub(crate) capacity_max: u64,
    /// The unit of [`RuleShape::Calendar`], and where its windows begin; `None` = with their first request.
    pub(super) calendar: Option<(CalendarUnit, Arc<Calendar>)>,
    /// The steps of [`RuleShape::Calendar`], in microseconds.
    pub(super) steps: Option<StepTerms>,
    /// Shares that the script guarantees; it then counts the classes of the limit apart.
    pub(crate) shares: Option<Arc<ShareRule>>,
    /// Gateways take units in advance, on these terms.
    pub(crate) leases: Option<LeaseTerms>,
}

/// Marks the kind of an entry with charges that are settled by responses.
const SETTLED_KIND: u8 = 0x80;

// === impl RateRule ===

impl RateRule {
    /// The rules of all variants in a row, in the order of [`sluicegate_limit::Limit`]. The limit must be one that
    /// [`model::check_redis_range`] accepts.
    pub fn rules_of(limit: &model::LimitConfig) -> Vec<RateRule> {
        let mut rules: Vec<RateRule> = Vec::new();
        let settles = limit.charge.is_some();
        for (variant, numbers) in limit.algorithm_variants().enumerate() {
            let rates = numbers.rate_quotas();
            for (rate, shape) in shapes_of(numbers).into_iter().enumerate() {
                let (shape, steps) = match rates.get(rate) {
                    Some((rate, _)) if limit.shares_counters() => {
                        shape_steps(shape, limit.steps_of(rate), rate)
                    }
                    _ => (shape, None),
                };
                let shares =
                    limit.shares.as_deref().and_then(|shares| ShareRule::new(shape, shares)).map(Arc::new);
                if let Some(own) = rules.get(rate).filter(|_| limit.counts_as_own(variant)) {
                    rules.push(RateRule { shape, steps, shares, ..own.clone() });
                    continue;
                }
                let unit = rates.get(rate).and_then(|(rate, _)| rate.calendar);
                let calendar = unit.zip(limit.calendar.clone());
                let words = shape.entry_words() - WORDS_LEAST;
                let leases = LeaseTerms::new(shape).filter(|_| limit.leased);
                let tier = limit.variant_tier(variant);
                let mut hash = hash_rule(&limit.name, tier, rate, shape, (settles, leases));
                while rules.iter().any(|other| other.id >> 6 == hash) {
                    hash = (hash + 1) % (1 << 26);
                }
                rules.push(RateRule {
                    id: hash << 6 | words,
                    shape,
                    settles: settles && leases.is_none(),
                    capacity_max: 0,
                    calendar,
                    steps,
                    shares,
                    leases,
                });
            }
        }
        for rate in 0..rules.len() {
            let of_entry = rules.iter().filter(|rule| rule.id == rules[rate].id);
            rules[rate].capacity_max = of_entry.map(RateRule::capacity).max().unwrap_or(0);
        }
        rules
    }

    /// The greatest cost that can ever be accepted.
    pub fn capacity(&self) -> u64 {
        match self.shape {
            RuleShape::TokenBucket { burst, .. } => burst,
            RuleShape::LeakyBucket { queue, .. } => queue.capacity,
            RuleShape::FixedWindow { max, .. }
            | RuleShape::Calendar { max, .. }
            | RuleShape::SlidingWindow { max, .. }
            | RuleShape::SlidingLog { max, .. }
            | RuleShape::Concurrency { max } => max,
        }
    }

    /// [`RateRule::capacity`] for requests of a class.
    pub fn capacity_of(&self, class: u8) -> u64 {
        self.shares.as_ref().map_or(self.capacity(), |shares| shares.max_units(class))
    }

    /// Microseconds after which no unit that was charged up to the limit counts any more. A class that has used its own
    /// bucket up waits for it first, and then for the common one.
    pub(crate) fn recovery_us(&self) -> u64 {
        let times = if self.shares.is_some() { 2 } else { 1 };
        self.shape.recovery_us().saturating_mul(times)
    }

    /// The length of a fixed window; `None` for other algorithms.
    pub fn window_ns(&self) -> Option<u64> {
        match self.shape {
            RuleShape::FixedWindow { period, .. } => Some(period.saturating_mul(1_000)),
            _ => None,
        }
    }

    /// The microseconds in which the rate lets so many units pass.
    pub(super) fn span_us(&self, units: u64) -> f64 {
        let (us, per) = match self.shape {
            RuleShape::TokenBucket { num, unit, .. } | RuleShape::LeakyBucket { num, unit, .. } => {
                (unit, num)
            }
            RuleShape::FixedWindow { max, period, .. }
            | RuleShape::Calendar { max, longest: period }
            | RuleShape::SlidingWindow { max, period, .. }
            | RuleShape::SlidingLog { max, period } => (period, max),
            RuleShape::Concurrency { .. } => (0, 1),
        };
        units as f64 * us as f64 / per.max(1) as f64
    }

    /// The borders of the window with the moment `at`, of the one before and of the one after, in seconds since 1970,
    /// for an account with this date.
    pub(crate) fn borders(&self, at: u64, anchor: Option<Anchor>) -> [u64; 4] {
        let Some((unit, calendar)) = &self.calendar else { return [0; 4] };
        let window = |at| calendar.window_at(*unit, at, anchor);
        let CalendarWindow { begins, ends } = window(at);
        [window(begins.saturating_sub(1)).begins, begins, ends, window(ends).ends]
    }

    /// An encoding of the numbers, for comparison.
    pub(crate) fn encode_numbers(&self) -> Vec<u8> {
        let (pace, recovery) =
            (self.shape.refill_pace().to_le_bytes(), self.shape.recovery_us().to_le_bytes());
        let shares = self.shares.as_ref().map_or(&[][..], |shares| shares.numbers());
        [&self.id.to_le_bytes()[..], &self.capacity().to_le_bytes(), &pace, &recovery, shares].concat()
    }
}

/// A hash that all gateways agree on. It covers the meaning of an entry, and the allowed amount only of a lease, so
/// that used units survive changed numbers.
fn hash_rule(
    name: &str,
    tier: Option<&str>,
    rate: usize,
    shape: RuleShape,
    (settles, leases): (bool, Option<LeaseTerms>),
) -> u32 {
    let mut text = Vec::from(b"sluicegate rule 1".as_slice());
    for part in [Some(name), tier] {
        // An impossible length distinguishes an absent text from an empty one.
        text.extend(part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
        text.extend(part.unwrap_or_default().as_bytes());
    }
    let (period, buckets) = match shape {
        RuleShape::FixedWindow { period, .. } | RuleShape::SlidingLog { period, .. } => (period, 0),
        RuleShape::SlidingWindow { period, buckets, .. } => (period, buckets),
        RuleShape::Calendar { longest, .. } => (longest, 0),
        _ => (0, 0),
    };
    let kind = shape.algorithm_code();
    text.extend((rate as u64).to_le_bytes());
    text.extend(period.to_le_bytes());
    text.extend([if settles { kind | SETTLED_KIND } else { kind }, buckets]);
    // Leases on other terms are counted apart, because the amounts of a bucket depend on them.
    text.extend(leases.iter().flat_map(|terms| terms.to_numbers()).flat_map(u64::to_le_bytes));
    let digest = digest::digest(&digest::SHA256, &text);
    digest.as_ref().iter().take(4).fold(0, |hash, byte| hash << 8 | u32::from(*byte)) >> 6
}

fn shapes_of(numbers: &Algorithm) -> SmallVec<[RuleShape; 4]> {
    let window = |rate: &Rate| (rate.units.get(), period_us(rate.period));
    match numbers {
        Algorithm::TokenBucket { rates } => rates.iter().map(token_bucket).collect(),
        Algorithm::LeakyBucket { rates, max_wait } => {
            rates.iter().map(|one| leaky_bucket(one, *max_wait)).collect()
        }
        Algorithm::FixedWindow { rates, align } => {
            let align = if *align == WindowAlign::Calendar { WindowAlign::First } else { *align };
            let shape = |rate: &Rate| match (window(rate), rate.calendar) {
                ((max, longest), Some(_)) => RuleShape::Calendar { max, longest },
                ((max, period), None) => RuleShape::FixedWindow { max, period, align },
            };
            rates.iter().map(shape).collect()
        }
        Algorithm::SlidingWindow { rates, buckets } => {
            let buckets = (*buckets).clamp(1, model::BUCKETS_MAX);
            let shape = |(max, period): (u64, u64)| RuleShape::SlidingWindow {
                max: max.min(u32::MAX.into()),
                period,
                buckets,
            };
            rates.iter().map(window).map(shape).collect()
        }
        Algorithm::SlidingLog { rates } => {
            rates.iter().map(window).map(|(max, period)| RuleShape::SlidingLog { max, period }).collect()
        }
        Algorithm::Concurrency { max, .. } => {
            SmallVec::from_slice(&[RuleShape::Concurrency { max: (*max).into() }])
        }
    }
}

/// The shape of a rate with these steps; it has the units of its last one.
fn shape_steps(shape: RuleShape, steps: &[QuotaStep], rate: &Rate) -> (RuleShape, Option<StepTerms>) {
    match shape {
        RuleShape::FixedWindow { .. } if steps.is_empty() => (shape, None),
        RuleShape::Calendar { longest, .. } | RuleShape::FixedWindow { period: longest, .. } => {
            let terms = StepTerms::new(rate.units.get(), steps, 1_000);
            (RuleShape::Calendar { max: terms.ceiling, longest }, Some(terms))
        }
        _ => (shape, None),
    }
}

fn token_bucket(one: &TokenBucketRate) -> RuleShape {
    let (num, unit) = reduce_rate(one.rate);
    RuleShape::TokenBucket { num, unit, burst: one.burst }
}

fn leaky_bucket(one: &LeakyBucketRate, max_wait: Option<Duration>) -> RuleShape {
    let (num, unit) = reduce_rate(one.rate);
    let in_time = max_wait.map_or(u128::MAX, |wait| wait.as_nanos().saturating_mul(num.into()) / 1_000);
    let in_queue = u128::from(one.queue) * u128::from(unit);
    let wait_max = u64::try_from(in_queue.min(in_time)).unwrap_or(u64::MAX);
    let queue = QueueTicks {
        ahead: one.burst.saturating_sub(1).saturating_mul(unit),
        wait_max,
        depth: one.burst.saturating_mul(unit).saturating_add(wait_max),
        capacity: one.burst.saturating_add(one.queue),
    };
    RuleShape::LeakyBucket { num, unit, queue }
}

/// Ticks per microsecond and per unit.
fn reduce_rate(rate: Rate) -> (u64, u64) {
    in_lowest_terms_us(rate).unwrap_or((1, period_us(rate.period)))
}

fn period_us(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::tests::test_limit;

    fn rate(units: u64, seconds: u64) -> Rate {
        Rate::new(NonZeroU64::new(units).unwrap(), Duration::from_secs(seconds))
    }

    fn token(units: u64, bursts: &[u64]) -> Algorithm {
        let one = |burst: &u64| TokenBucketRate { rate: rate(units, 1), burst: *burst };
        Algorithm::TokenBucket { rates: bursts.iter().map(one).collect() }
    }

    fn fixed(units: u64, seconds: u64) -> Algorithm {
        Algorithm::FixedWindow { rates: vec![rate(units, seconds)], align: WindowAlign::First }
    }

    fn sliding(units: u64, buckets: u8) -> Algorithm {
        Algorithm::SlidingWindow { rates: vec![rate(units, 1)], buckets }
    }

    fn id(algorithm: Algorithm) -> u32 {
        RateRule::rules_of(&test_limit("a", algorithm))[0].id
    }

    #[test]
    fn changed_numbers_keep_the_id_and_a_changed_shape_does_not() {
        assert_eq!(id(token(1, &[1])), id(token(7, &[9])));
        assert_eq!(id(fixed(1, 60)), id(fixed(2, 60)));
        assert_ne!(id(fixed(1, 60)), id(fixed(1, 61)));
        assert_ne!(id(fixed(1, 1)), id(token(1, &[1])));
        assert_ne!(id(sliding(1, 10)), id(sliding(1, 11)));
        assert_ne!(RateRule::rules_of(&test_limit("b", fixed(1, 60)))[0].id, id(fixed(1, 60)));
    }

    #[test]
    fn ids_are_the_same_in_every_version() {
        assert_eq!(id(token(1, &[1])), 2_263_649_665);
    }

    #[test]
    fn rates_and_tiers_have_ids_of_their_own_in_the_order_of_the_limit() {
        let mut limit = test_limit("a", token(1, &[1, 2]));
        limit.tiers = vec![("free".into(), None), ("gold".into(), Some(token(3, &[4])))];
        let rules = RateRule::rules_of(&limit);
        let capacities: Vec<u64> = rules.iter().map(RateRule::capacity).collect();
        assert_eq!(capacities, [1, 2, 4]);
        assert!(rules[0].id != rules[1].id && rules[1].id != rules[2].id && rules[0].id != rules[2].id);
    }

    #[test]
    fn the_low_bits_tell_the_length() {
        let words = |algorithm| id(algorithm) % 64 + WORDS_LEAST;
        assert_eq!((words(token(1, &[1])), words(fixed(1, 1))), (5, 4));
        assert_eq!((words(sliding(1, 1)), words(sliding(1, 10)), words(sliding(1, 60))), (4, 13, 63));
    }

    #[test]
    fn a_queue_in_ticks() {
        let one = LeakyBucketRate { rate: rate(3, 1), burst: 2, queue: 5 };
        let queue = |max_wait| match leaky_bucket(&one, max_wait) {
            RuleShape::LeakyBucket { num: 3, unit: 1_000_000, queue } => queue,
            other => panic!("{other:?}"),
        };
        let whole = queue(None);
        assert_eq!((whole.ahead, whole.wait_max, whole.depth), (1_000_000, 5_000_000, 7_000_000));
        assert_eq!(queue(Some(Duration::from_millis(500))).wait_max, 1_500_000);
        assert_eq!(queue(Some(Duration::from_secs(9))), whole);
    }
}
