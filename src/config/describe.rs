//! Limits in plain words: for the banner at the start and for the bodies of rejections.

use super::{Algorithm, Limit, Rate};

/// One sentence that tells what the limit does.
pub fn describe_limit(limit: &Limit) -> String {
    detail(limit, 0)
}

/// The detail of a rejection by one rate of the limit, e.g. "limit per-ip: 10 requests per second, burst 20".
pub fn detail(limit: &Limit, rate_index: usize) -> String {
    let numbers = match &limit.algorithm {
        Algorithm::TokenBucket { rates } => {
            rates.get(rate_index).map(|one| format!("{}, burst {}", rate(&one.rate), one.burst))
        }
        Algorithm::LeakyBucket { rates, .. } => rates
            .get(rate_index)
            .map(|one| format!("{}, burst {}, queue {}", rate(&one.rate), one.burst, one.queue)),
        Algorithm::Concurrency { max } => Some(format!("{max} requests in flight")),
    };
    format!("limit {}: {}", limit.name, numbers.unwrap_or_default())
}

fn rate(rate: &Rate) -> String {
    match rate.period.as_secs() {
        1 => format!("{} requests per second", rate.units),
        seconds => format!("{} requests per {seconds} seconds", rate.units),
    }
}
