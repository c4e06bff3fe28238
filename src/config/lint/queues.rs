//! Numbers of a limit that refuse more, or make wait longer, than they seem to say.

use std::time::Duration;

use super::{File, note};
use crate::config::describe::period_with_one;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::limit::{Algorithm, LeakyBucketRate, TokenBucketRate};
use crate::config::value::scalars::Rate;

/// Who waits without an end given to the wait is taken to give up after this time.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn warn(file: &File<'_>) {
    for limit in 0..file.config.limits.len() {
        let numbers = &file.config.limits[limit];
        for (variant, algorithm) in numbers.variants().enumerate() {
            // The numbers of a tier stand in a section of their own.
            let tier = numbers.tier_of(variant);
            let field = |name: &'static str| match tier {
                Some(tier) => file.limit(limit, &["tiers", tier, name]),
                None => file.limit(limit, &[name]),
            };
            match algorithm {
                Algorithm::TokenBucket { rates } => {
                    let small = rates.iter().filter_map(small_burst);
                    small.for_each(|complaint| note(&field("burst"), complaint));
                }
                Algorithm::LeakyBucket { rates, max_wait } => {
                    let long = rates.iter().filter_map(|one| long_queue(one, *max_wait));
                    long.for_each(|complaint| note(&field("queue"), complaint));
                }
                _ => {}
            }
        }
    }
    for location in 0..file.config.locations.len() {
        warn_of_timeout(file, location);
    }
}

/// A burst that is smaller than what the rate allows in a second.
fn small_burst(one: &TokenBucketRate) -> Option<Complaint> {
    let second = Duration::from_secs(1).as_nanos();
    let units = u128::from(one.rate.units.get());
    let (allowed, period) = (units * second, one.rate.period.as_nanos().max(1));
    // What a rate of less than a second lets pass at once is its own number.
    if one.burst >= one.rate.units.get() || u128::from(one.burst) * period >= allowed {
        return None;
    }
    let in_a_second = allowed.div_ceil(period);
    let message = format!(
        "a burst of {} is less than the rate allows in one second: {in_a_second} requests that come together are \
         refused in part, although their sender keeps to the rate",
        one.burst
    );
    Some(Complaint::new(codes::SMALL_BURST, message).help(format!("write burst: {in_a_second} or more")))
}

/// A queue whose last place is waited in longer than anybody may, or will.
fn long_queue(one: &LeakyBucketRate, max_wait: Option<Duration>) -> Option<Complaint> {
    let drains_in = span(one.rate, one.queue);
    let told = rounded(drains_in);
    let (queue, within) = (one.queue, max_wait.unwrap_or(PATIENCE));
    if drains_in <= within {
        return None;
    }
    let fit = units_in(one.rate, within);
    let complaint = match max_wait {
        Some(wait) => {
            let wait = period_with_one(wait);
            let message = format!(
                "a queue of {queue} drains in {told}, and nobody waits longer than max_wait, {wait}: only {fit} of \
                 its places are ever used"
            );
            Complaint::new(codes::LONG_QUEUE, message)
                .help(format!("write queue: {fit}, or a max_wait of at least {told}"))
        }
        None => {
            let message = format!(
                "a queue of {queue} drains in {told}: who comes last will have given up before its turn"
            );
            Complaint::new(codes::LONG_QUEUE, message)
                .help(format!("write a shorter queue, e.g. queue: {fit}, or a max_wait such as 30s"))
        }
    };
    Some(complaint)
}

/// A wait that the location's own timeout never lets come to its end.
fn warn_of_timeout(file: &File<'_>, index: usize) {
    let location = &file.config.locations[index];
    let Some(timeout) = location.timeout else { return };
    let chain = file.config.server.limits.iter().chain(&location.limits);
    for (limit, numbers) in chain.map(|&limit| (limit, &file.config.limits[limit])) {
        let written = file.limit(limit, &["max_wait"]).path != file.limit(limit, &[]).path;
        let longest = numbers.variants().filter_map(|algorithm| match algorithm {
            Algorithm::LeakyBucket { rates, max_wait } => {
                let drained = rates.iter().map(|one| span(one.rate, one.queue)).max().unwrap_or_default();
                let wait = drained.min(max_wait.unwrap_or(Duration::MAX));
                // A max_wait that somebody wrote was meant to be reached.
                Some(wait.max(max_wait.filter(|_| written && !drained.is_zero()).unwrap_or_default()))
            }
            _ => None,
        });
        let Some(longest) = longest.max().filter(|longest| *longest > timeout && !numbers.dry_run) else {
            continue;
        };
        let (longest, timeout) = (rounded(longest), period_with_one(timeout));
        let message = format!(
            "limit `{}` lets requests wait for {longest}, and this timeout ends after {timeout}: \
             who would wait longer is refused at once",
            numbers.name
        );
        let help = "write a longer timeout, or a max_wait that leaves time for the answer";
        note(&file.location(index, &["timeout"]), Complaint::new(codes::LONG_WAIT, message).help(help));
    }
}

/// How long `units` take to leave.
fn span(rate: Rate, units: u64) -> Duration {
    let ns = u128::from(units).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

fn units_in(rate: Rate, time: Duration) -> u64 {
    let units = time.as_nanos().saturating_mul(u128::from(rate.units.get())) / rate.period.as_nanos().max(1);
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// In words, rounded up to milliseconds, and to seconds where there are many.
fn rounded(span: Duration) -> String {
    let unit = if span < Duration::from_secs(10) { 1_000_000 } else { 1_000_000_000 };
    let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    period_with_one(Duration::from_nanos(ns.div_ceil(unit).saturating_mul(unit)))
}
