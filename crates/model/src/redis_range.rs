//! Checks that a limit fits the arithmetic of the script in Redis: doubles, exact up to 2^53, and microseconds.

use std::time::Duration;

use crate::charge::OverrunAction;
use crate::limit::{Algorithm, LeakyBucketRate, LimitConfig, TokenBucketRate};
use crate::reject::RetryAfter;
use crate::shares::Shares;
use crate::value::fraction::reduce_fraction;
use crate::value::scalars::Rate;

/// A bound on the ticks of a bucket plus one full cost, and on microseconds ahead of now. With the time since 1970
/// added, the sum stays below 2^53 for another century.
const TICKS_MAX: u128 = 1 << 52;
/// A bound on the tokens of a bucket with shares: a debt of a whole bucket and one full cost beyond it are exact.
const TOKENS_MAX: u128 = 1 << 51;
/// A window may lie three periods ahead of now.
const PERIOD_MAX_US: u128 = 1 << 51;
/// A fraction of a microsecond is kept in 32 bits.
const NUM_MAX: u64 = u32::MAX as u64;
/// The most units that a window counts.
const COUNT_MAX: u64 = (1 << 53) - 1;
/// The most units of a limit with `charge`, which counts as many again as debt.
const SETTLED_MAX: u64 = 1 << 51;
/// The least units of a limit that is leased.
const LEASED_LEAST: u32 = 10;
/// The shortest fixed window that is leased, and the shortest part of a sliding one.
const LEASED_WINDOW_US: u128 = 50_000;
const LEASED_SUB_WINDOW_US: u128 = 40_000;
/// The most ticks of a bucket that is leased.
const LEASED_TICKS_MAX: u64 = 1 << 50;
/// The departures of the shortest queue that is leased.
const LEASED_QUEUE_MIN: u64 = 8;
/// A log keeps every unit.
const LOG_MAX: u64 = 100_000;

/// Units and microseconds without a common divisor; `None` unless the period is whole microseconds.
pub fn in_lowest_terms_us(rate: Rate) -> Option<(u64, u64)> {
    let period = whole_us(rate.period)?;
    Some(reduce_fraction(rate.units.get(), period))
}

/// Checks that the counters of a limit can be kept in Redis.
///
/// # Errors
/// The misfit and the remedy, separated by ": ".
pub fn check_redis_range(limit: &LimitConfig) -> Result<(), String> {
    check_units(limit).map_err(|reason| match limit.currency() {
        Some(currency) => format!("{reason}, in millionths of {currency}"),
        None => reason,
    })
}

fn check_units(limit: &LimitConfig) -> Result<(), String> {
    if limit.warm_up.is_some() {
        return Err("warm_up works with local counters only: write warm_up: none, or state: local".into());
    }
    // One with charge keeps requests instead.
    let log_max = if limit.charge.is_some() { u32::MAX.into() } else { LOG_MAX };
    limit.algorithm_variants().try_for_each(|numbers| check_algorithm_range(numbers, log_max))?;
    if limit.leased {
        check_leases(limit)?;
    }
    if let Some(shares) = &limit.shares {
        limit.algorithm_variants().try_for_each(|numbers| check_shares_range(numbers, shares))?;
    }
    let quotas = limit.algorithm_variants().flat_map(Algorithm::rate_quotas);
    match quotas.map(|(_, units)| units).max() {
        Some(units) if limit.charge.is_some() && units > SETTLED_MAX => Err(format!(
            "{units} units are more than Redis counts with charge: write at most {SETTLED_MAX} in a period"
        )),
        _ => Ok(()),
    }
}

/// The least burst of which gateways may hold a fifth for ten milliseconds, and two units.
fn least_leased_burst(rate: Rate) -> u64 {
    let per_fifty_ms = u128::from(rate.units.get()) * 50_000_000;
    let least = per_fifty_ms.div_ceil(rate.period.as_nanos().max(1));
    least.clamp(LEASED_LEAST.into(), u64::MAX.into()) as u64
}

/// Checks that gateways can take units of a limit in advance.
///
/// # Errors
/// The reason and the remedy, separated by ": ".
pub fn check_leases(limit: &LimitConfig) -> Result<(), String> {
    let charge = limit.charge.as_ref();
    let is_queue = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
    let has_shadow = limit.shadow.is_some() || limit.shadow_of.is_some();
    let quotas = || limit.algorithm_variants().flat_map(Algorithm::rate_quotas);
    let has_calendar = quotas().any(|(rate, _)| rate.calendar.is_some());
    let unfit = [
        (limit.shares.is_some(), "a limit with shares"),
        (charge.is_some_and(|charge| charge.over == OverrunAction::Cut), "a limit that cuts responses"),
        (charge.is_some_and(|charge| !charge.clear.is_empty()), "a limit that responses clear"),
        (!limit.views.is_empty(), "a limit with other numbers at a place"),
        (limit.on_reject.retry_after == Some(RetryAfter::Turns), "a limit that tells turns"),
        (has_calendar || !limit.steps.is_empty(), "a limit with windows of the calendar or steps"),
        (is_queue && !limit.fair_by.is_empty(), "a queue with fair_by"),
        (is_queue && has_shadow, "a queue with a shadow"),
    ];
    let refuse = |what: &str| Err(format!("{what} is not leased: write state: redis"));
    if let Some((_, what)) = unfit.iter().find(|(is_unfit, _)| *is_unfit) {
        return refuse(what);
    }
    for numbers in limit.algorithm_variants() {
        match numbers {
            Algorithm::TokenBucket { rates } => rates.iter().try_for_each(check_leased_bucket)?,
            Algorithm::LeakyBucket { rates, max_wait } => match &rates[..] {
                [only] => check_leased_queue(only, *max_wait)?,
                _ => return refuse("a leaky_bucket with several rates"),
            },
            Algorithm::FixedWindow { rates, .. } => {
                rates.iter().try_for_each(|rate| check_leased_window(*rate, LEASED_WINDOW_US, ""))?;
            }
            Algorithm::SlidingWindow { rates, buckets } => {
                let least = LEASED_SUB_WINDOW_US * u128::from(*buckets);
                let fewer = ", fewer buckets";
                rates.iter().try_for_each(|rate| check_leased_window(*rate, least, fewer))?;
            }
            _ => return refuse(numbers.word()),
        }
    }
    Ok(())
}

fn check_leased_bucket(one: &TokenBucketRate) -> Result<(), String> {
    let (_, unit) = in_lowest_terms_us(one.rate).unwrap_or((1, 1));
    let (most, least) = ((LEASED_TICKS_MAX / unit.max(1)).min(u32::MAX.into()), least_leased_burst(one.rate));
    let (size, bound) = match one.burst {
        burst if burst > most => ("great for leases", format!("{most} or less")),
        burst if burst < least => ("small for leases at this rate", format!("{least} or more")),
        _ => return Ok(()),
    };
    Err(format!("a burst of {} is too {size}: write burst: {bound}, or state: redis", one.burst))
}

/// `fewer`: another remedy for too short windows.
fn check_leased_window(rate: Rate, least_us: u128, fewer: &str) -> Result<(), String> {
    let units = rate.units.get();
    if units < LEASED_LEAST.into() || units > u32::MAX.into() {
        return Err(format!(
            "windows of {units} units are not leased: write {LEASED_LEAST} to {} units, or state: redis",
            u32::MAX
        ));
    }
    if rate.period.as_micros() < least_us {
        let least = least_us / 1_000;
        return Err(format!(
            "a period of {:?} is too short for leases: write {least}ms or more{fewer}, or state: redis",
            rate.period
        ));
    }
    Ok(())
}

/// Gateways take departures of a quarter of the longest wait in advance: of two at least.
fn check_leased_queue(only: &LeakyBucketRate, max_wait: Option<Duration>) -> Result<(), String> {
    let LeakyBucketRate { rate, queue, .. } = only;
    if *queue < LEASED_QUEUE_MIN {
        return Err(format!(
            "a queue of {queue} is too short for leases: write queue: {LEASED_QUEUE_MIN} or more, or state: redis"
        ));
    }
    let least_ns = (rate.period.as_nanos() * u128::from(LEASED_QUEUE_MIN)).div_ceil(rate.units.get().into());
    match max_wait {
        Some(wait) if wait.as_nanos() < least_ns => Err(format!(
            "a max_wait of {wait:?} is too short for leases at this rate: write max_wait: {}ms or more, or \
             state: redis",
            least_ns.div_ceil(1_000_000)
        )),
        _ => Ok(()),
    }
}

fn check_algorithm_range(algorithm: &Algorithm, log_max: u64) -> Result<(), String> {
    match algorithm {
        Algorithm::TokenBucket { rates } => {
            rates.iter().try_for_each(|one| check_bucket_range(one.rate, one.burst.into(), "burst"))
        }
        Algorithm::LeakyBucket { rates, .. } => rates.iter().try_for_each(|one| {
            let size = u128::from(one.burst) + u128::from(one.queue);
            check_bucket_range(one.rate, size, "burst and queue")
        }),
        Algorithm::FixedWindow { rates, .. } => check_windows(rates, COUNT_MAX),
        Algorithm::SlidingWindow { rates, .. } => check_windows(rates, u32::MAX.into()),
        Algorithm::SlidingLog { rates } => check_windows(rates, log_max)
            .map_err(|message| format!("{message}; sliding_window counts more in less memory")),
        Algorithm::Concurrency { min: Some(_), .. } => {
            Err("an adaptive max_concurrent works with local counters only: write a number, or state: local"
                .into())
        }
        Algorithm::Concurrency { min: None, .. } => Ok(()),
    }
}

fn check_bucket_range(rate: Rate, size: u128, fields: &str) -> Result<(), String> {
    let (num, unit) = in_lowest_terms_us(rate).ok_or_else(|| describe_fraction(rate))?;
    if num > NUM_MAX {
        let per_second = (rate.units.get() as f64 / rate.period.as_secs_f64()).round();
        return Err(format!(
            "{} units per {:?} is too fine a rate for Redis: write one with a shorter number, such as {per_second}/s",
            rate.units, rate.period
        ));
    }
    let most = (TICKS_MAX - 1 - u128::from(num)) / (2 * u128::from(unit));
    if size > most {
        return Err(format!(
            "{fields} of {size} is more than Redis counts at this rate: write at most {most}"
        ));
    }
    Ok(())
}

/// The tokens of a bucket with shares are parts of ticks.
fn check_shares_range(numbers: &Algorithm, shares: &Shares) -> Result<(), String> {
    let Algorithm::TokenBucket { rates } = numbers else { return Ok(()) };
    for TokenBucketRate { rate, burst } in rates {
        let Some((num, unit)) = in_lowest_terms_us(*rate) else { continue };
        let ticks = TOKENS_MAX / u128::from(shares.token_scale());
        let most = ticks.saturating_sub(num.into()) / u128::from(unit);
        if u128::from(*burst) >= most {
            return Err(format!(
                "burst of {burst} is more than Redis counts at this rate with these shares: write at most {}, or \
                 rounder shares such as 50%",
                most.saturating_sub(1)
            ));
        }
    }
    Ok(())
}

fn check_windows(rates: &[Rate], units_max: u64) -> Result<(), String> {
    rates.iter().try_for_each(|rate| check_window_range(*rate, units_max))
}

fn check_window_range(rate: Rate, units_max: u64) -> Result<(), String> {
    whole_us(rate.period).ok_or_else(|| describe_fraction(rate))?;
    if rate.period.as_micros() > PERIOD_MAX_US {
        return Err(format!(
            "a window of {:?} is longer than Redis counts: write a period of at most {}d",
            rate.period,
            PERIOD_MAX_US / 86_400_000_000
        ));
    }
    if rate.units.get() > units_max {
        return Err(format!(
            "{} units are more than Redis counts here: write at most {units_max} in a period",
            rate.units
        ));
    }
    Ok(())
}

fn describe_fraction(rate: Rate) -> String {
    let up = rate.period.as_nanos().div_ceil(1_000);
    format!(
        "Redis counts whole microseconds, and {:?} has a fraction: write a period such as {up}us",
        rate.period
    )
}

fn whole_us(period: Duration) -> Option<u64> {
    let us = u64::try_from(period.as_micros()).ok()?;
    (us > 0 && period.subsec_nanos().is_multiple_of(1_000)).then_some(us)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn rate(units: u64, period: Duration) -> Rate {
        Rate::new(NonZeroU64::new(units).unwrap(), period)
    }

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    fn token(units: u64, period: Duration, burst: u64) -> Result<(), String> {
        check_algorithm_range(
            &Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate: rate(units, period), burst }] },
            LOG_MAX,
        )
    }

    #[test]
    fn tokens_of_odd_shares_are_smaller_and_soon_too_many() {
        let class = |least| crate::ShareClass { name: "gold".into(), least, most: Shares::WHOLE };
        let check = |least, burst| {
            let rates = vec![TokenBucketRate { rate: rate(1000, 3600 * SECOND), burst }];
            let shares =
                Shares { by: crate::KeyPart::Tier, classes: vec![class(least)], lend: Shares::WHOLE };
            check_shares_range(&Algorithm::TokenBucket { rates }, &shares)
        };
        assert_eq!(check(500_000, 1_000), Ok(()));
        assert!(check(333_333, 1_000).unwrap_err().contains("burst of 1000 is more"));
        assert_eq!(check(333_333, 300), Ok(()));
    }

    fn log(units: u64) -> Result<(), String> {
        check_algorithm_range(&Algorithm::SlidingLog { rates: vec![rate(units, SECOND)] }, LOG_MAX)
    }

    #[test]
    fn rates_in_microseconds() {
        assert_eq!(in_lowest_terms_us(rate(300, 60 * SECOND)), Some((1, 200_000)));
        assert_eq!(in_lowest_terms_us(rate(3, SECOND)), Some((3, 1_000_000)));
        assert_eq!(in_lowest_terms_us(rate(2, Duration::from_micros(1))), Some((2, 1)));
        assert_eq!(in_lowest_terms_us(rate(1, Duration::from_nanos(1_500))), None);
        assert_eq!(in_lowest_terms_us(rate(1, Duration::from_nanos(15))), None);
    }

    #[test]
    fn usual_limits_fit() {
        for (units, period, burst) in [(10, SECOND, 20), (1, DAY, 1000), (1_000_000, SECOND, 1 << 40)] {
            assert_eq!(token(units, period, burst), Ok(()));
        }
        assert_eq!(log(100_000), Ok(()));
    }

    #[test]
    fn errors_name_numbers_that_fit() {
        assert!(token(1, Duration::from_nanos(1_500), 1).unwrap_err().ends_with("such as 2us"));
        assert!(token(1, SECOND, 1 << 33).unwrap_err().ends_with("at most 2251799813"));
        assert_eq!(token(1, SECOND, 2_251_799_813), Ok(()));
        assert!(token(4_294_967_311, DAY, 1).unwrap_err().ends_with("such as 49710/s"));
        assert!(log(100_001).unwrap_err().contains("at most 100000"));
        let century = window(100 * 365 * DAY);
        assert!(century.unwrap_err().ends_with("at most 26062d"));
        let queue = LeakyBucketRate { rate: rate(1, SECOND), burst: 1 << 31, queue: 1 << 31 };
        let queue = Algorithm::LeakyBucket { rates: vec![queue], max_wait: None };
        assert!(
            check_algorithm_range(&queue, LOG_MAX).unwrap_err().starts_with("burst and queue of 4294967296")
        );
    }

    fn window(period: Duration) -> Result<(), String> {
        check_algorithm_range(
            &Algorithm::FixedWindow { rates: vec![rate(1, period)], align: crate::WindowAlign::First },
            LOG_MAX,
        )
    }
}
