//! Limits in plain words: for the banner at the start and for the bodies of rejections.

use std::num::NonZeroU64;
use std::time::Duration;

use super::model_limit::{Algorithm, KeyPart, LeakyBucketRate, Limit, Source, TokenBucketRate};
use super::words::Rate;

/// "10 requests per second", "300 requests per 60 seconds".
pub fn describe_rate(rate: &Rate) -> String {
    format!("{} per {}", requests(rate.units), period(rate.period))
}

/// One sentence that tells what the limit does, e.g. "per-ip: 10 requests per second per client IP, 20 at once;
/// rejected beyond that".
pub fn describe_limit(limit: &Limit) -> String {
    let key = per(&limit.key);
    let numbers = match &limit.algorithm {
        Algorithm::TokenBucket { rates } => {
            let rates: Vec<String> = rates.iter().map(|rate| token_bucket(rate, &key)).collect();
            format!("{}; rejected beyond that", rates.join(" and "))
        }
        Algorithm::LeakyBucket { rates, max_wait } => {
            let rates: Vec<String> = rates.iter().map(|rate| leaky_bucket(rate, &key)).collect();
            format!("{}; {}", rates.join(" and "), beyond_queue(limit, *max_wait))
        }
        Algorithm::Concurrency { max } => {
            format!("{} in flight{key}; rejected beyond that", count(u64::from(*max), "request"))
        }
    };
    let dry_run = if limit.dry_run { " (dry run: counted, never rejected)" } else { "" };
    format!("{}: {numbers}{}{dry_run}", limit.name, tiers(limit))
}

/// The detail of a rejection by one rate of the limit, e.g. "limit per-ip: 10 requests per second, burst 20".
pub fn detail(limit: &Limit, rate_index: usize) -> String {
    match limit.locate(rate_index).and_then(|(_, numbers, place)| told(numbers, place)) {
        Some(numbers) => format!("limit {}: {numbers}", limit.name),
        None => format!("limit {}", limit.name),
    }
}

/// One rate of a limit, e.g. "10 requests per second, burst 20".
fn told(numbers: &Algorithm, place: usize) -> Option<String> {
    match numbers {
        Algorithm::TokenBucket { rates } => {
            rates.get(place).map(|one| format!("{}, burst {}", describe_rate(&one.rate), one.burst))
        }
        Algorithm::LeakyBucket { rates, .. } => rates
            .get(place)
            .map(|one| format!("{}, burst {}, queue {}", describe_rate(&one.rate), one.burst, one.queue)),
        Algorithm::Concurrency { max } => Some(format!("{} in flight", count(u64::from(*max), "request"))),
    }
}

/// "; tier gold: 50 requests per second, burst 50; tier internal: unlimited"
fn tiers(limit: &Limit) -> String {
    let one = |(tier, numbers): &(String, Option<Algorithm>)| match numbers {
        None => format!("; tier {tier}: unlimited"),
        Some(numbers) => {
            let rates: Vec<String> = (0..numbers.places()).filter_map(|place| told(numbers, place)).collect();
            format!("; tier {tier}: {}", rates.join(" and "))
        }
    };
    limit.tiers.iter().map(one).collect()
}

fn token_bucket(one: &TokenBucketRate, key: &str) -> String {
    format!("{}{key}, {} at once", describe_rate(&one.rate), one.burst)
}

fn leaky_bucket(one: &LeakyBucketRate, key: &str) -> String {
    let burst = if one.burst > 1 { format!(", {} at once", one.burst) } else { String::new() };
    let queue =
        if one.queue > 0 { format!(", then up to {} wait in a queue", one.queue) } else { String::new() };
    format!("{}{key}, evenly spaced{burst}{queue}", describe_rate(&one.rate))
}

fn beyond_queue(limit: &Limit, max_wait: Option<Duration>) -> String {
    let queues = match &limit.algorithm {
        Algorithm::LeakyBucket { rates, .. } => rates.iter().any(|one| one.queue > 0),
        _ => false,
    };
    match max_wait {
        Some(wait) if queues => format!("rejected beyond that or after {}", period_with_one(wait)),
        _ => "rejected beyond that".to_owned(),
    }
}

fn requests(units: NonZeroU64) -> String {
    count(units.get(), "request")
}

fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Units that are written by their name when the period is exactly one of them.
const NAMED: [(u128, &str); 7] = [
    (86_400_000_000_000, "day"),
    (3_600_000_000_000, "hour"),
    (60_000_000_000, "minute"),
    (1_000_000_000, "second"),
    (1_000_000, "millisecond"),
    (1_000, "microsecond"),
    (1, "nanosecond"),
];

/// "second", "5 seconds", "60 seconds", "hour": a minute is told in seconds, as windows are written.
fn period(length: Duration) -> String {
    if length == Duration::from_secs(60) {
        return "60 seconds".to_owned();
    }
    let told = period_with_one(length);
    told.strip_prefix("1 ").map(str::to_owned).unwrap_or(told)
}

fn period_with_one(length: Duration) -> String {
    let ns = length.as_nanos();
    let unit = NAMED.iter().find(|(unit, _)| ns >= *unit && ns.is_multiple_of(*unit));
    let (unit, name) = unit.copied().unwrap_or((1, "nanosecond"));
    count(u64::try_from(ns / unit).unwrap_or(u64::MAX), name)
}

/// " per client IP", " per account and host"; nothing for one counter for all.
fn per(key: &[KeyPart]) -> String {
    let parts: Vec<String> = key.iter().filter_map(part).collect();
    match parts.as_slice() {
        [] => " for all clients together".to_owned(),
        parts => format!(" per {}", parts.join(" and ")),
    }
}

fn part(part: &KeyPart) -> Option<String> {
    Some(match part {
        KeyPart::Ip => "client IP".to_owned(),
        KeyPart::Account => "account".to_owned(),
        KeyPart::Tier => "tier".to_owned(),
        KeyPart::Uri => "URI".to_owned(),
        KeyPart::Location => "location".to_owned(),
        KeyPart::Host => "host".to_owned(),
        KeyPart::Method => "method".to_owned(),
        KeyPart::Global => return None,
        KeyPart::Source(Source::Header(name)) => format!("header {name}"),
        KeyPart::Source(Source::Cookie(name)) => format!("cookie {name}"),
        KeyPart::Source(Source::Query(name)) => format!("query parameter {name}"),
        KeyPart::Source(Source::Jwt(name)) => format!("token claim {name}"),
    })
}
