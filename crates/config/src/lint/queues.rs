//! Warns of bursts and queues that reject more, or wait longer, than they seem to.

use std::time::Duration;

use super::LintContext;
use crate::describe::format_full_period;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{
    ActionConfig, Algorithm, LeakyBucketRate, LimitConfig, LimitId, Rate, TokenBucketRate, ValueError, codes,
};

/// The wait after which a client is assumed to give up, if no `max_wait` is set.
const ASSUMED_MAX_WAIT: Duration = Duration::from_secs(30);

pub(super) fn lint_queues(file: &LintContext<'_>) {
    for limit in (0..file.config.limits.len()).map(LimitId) {
        let numbers = &file.config.limits[limit];
        let variants = numbers.algorithm_variants().enumerate();
        for (variant, algorithm) in variants.filter(|(variant, _)| !numbers.is_view(*variant)) {
            // The numbers of a shadow or a tier have a section of their own.
            let tier = numbers.variant_tier(variant);
            let field = |name: &'static str| match (numbers.shadow_of, tier) {
                (Some(live), _) => file.limit_value(live, &["shadow", name]),
                (None, Some(tier)) => file.limit_value(limit, &["tiers", tier, name]),
                (None, None) => file.limit_value(limit, &[name]),
            };
            check_numbers(numbers, algorithm, field);
        }
    }
    lint_views(file);
    for location in 0..file.config.locations.len() {
        warn_of_timeout(file, location);
        warn_of_server_wait(file, location);
    }
    file.used_limits().into_iter().for_each(|limit| warn_of_no_queue(file, limit));
}

/// Warns of numbers of a limit at the values of their fields, which `field` finds.
fn check_numbers<'a>(
    limit: &LimitConfig,
    numbers: &Algorithm,
    field: impl Fn(&'static str) -> FieldValue<'a>,
) {
    match numbers {
        // A response may cost more than the units that come at once.
        Algorithm::TokenBucket { .. } if limit.charge.is_some() => {}
        Algorithm::TokenBucket { rates } => {
            let small = rates.iter().filter_map(check_burst);
            small.for_each(|error| field("burst").warn_at(error));
        }
        Algorithm::LeakyBucket { rates, max_wait } => {
            let long = rates.iter().filter_map(|one| check_queue(one, *max_wait));
            long.for_each(|error| field("queue").warn_at(error));
        }
        _ => {}
    }
}

/// Warns of the numbers that places of chains have for themselves.
fn lint_views(file: &LintContext<'_>) {
    let server = std::iter::once((None, &file.config.server.limits, &file.config.server.views));
    let locations = file.config.locations.iter().enumerate();
    let locations = locations.map(|(index, location)| (Some(index), &location.limits, &location.views));
    for (location, chain, views) in server.chain(locations) {
        for (id, view) in views {
            let limit = &file.config.limits[*id];
            let position = chain.iter().position(|other| other == id);
            let (Some(numbers), Some(position)) = (limit.views.get(view.0), position) else { continue };
            check_numbers(limit, numbers, |name| file.chain_value(location, position, &[name]));
        }
    }
}

/// Waits and turns of a concurrency limit without a queue.
fn warn_of_no_queue(file: &LintContext<'_>, limit: LimitId) {
    let no_queue = |numbers: &Algorithm| matches!(numbers, Algorithm::Concurrency { queue: 0, .. });
    if !file.config.limits[limit].algorithm_variants().all(no_queue) {
        return;
    }
    for name in ["max_wait", "fair_by"] {
        let value = file.limit_value(limit, &[name]);
        if value.path != file.limit_value(limit, &[]).path && !value.is_word("none") {
            let message =
                format!("`{name}` has no effect, because no request waits: this limit has no queue");
            let help = "write e.g. queue: 20 beside it, or remove it";
            value.warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// Warns of a burst below the units that the rate allows in one second.
fn check_burst(one: &TokenBucketRate) -> Option<ValueError> {
    let second = Duration::from_secs(1).as_nanos();
    let units = u128::from(one.rate.units.get());
    let (allowed, period) = (units * second, one.rate.period.as_nanos().max(1));
    // With a period below one second, a burst of the rate's own number is enough.
    if one.burst >= one.rate.units.get() || u128::from(one.burst) * period >= allowed {
        return None;
    }
    let in_a_second = allowed.div_ceil(period);
    let message = format!(
        "a burst of {} is less than the rate allows in one second: {in_a_second} requests that come together are \
         partly rejected, although their sender keeps to the rate",
        one.burst
    );
    Some(
        ValueError::new(codes::SMALL_BURST, message).with_help(format!("write burst: {in_a_second} or more")),
    )
}

/// Warns of a queue in which the last position waits longer than clients may, or will.
fn check_queue(one: &LeakyBucketRate, max_wait: Option<Duration>) -> Option<ValueError> {
    let drains_in = drain_time(one.rate, one.queue);
    let drain_text = describe_rounded(drains_in);
    let (queue, within) = (one.queue, max_wait.unwrap_or(ASSUMED_MAX_WAIT));
    if drains_in <= within {
        return None;
    }
    let fit = one.rate.units_within(within);
    let (message, help) = match max_wait {
        Some(wait) => (
            format!(
                "a queue of {queue} drains in {drain_text}, but no request waits longer than max_wait, {}: only \
                 {fit} of its positions are ever used",
                format_full_period(wait)
            ),
            format!("write queue: {fit}, or a max_wait of at least {drain_text}"),
        ),
        None => (
            format!(
                "a queue of {queue} drains in {drain_text}: the last client will give up before its turn"
            ),
            format!("write a shorter queue, e.g. queue: {fit}, or a max_wait such as 30s"),
        ),
    };
    Some(ValueError::new(codes::LONG_QUEUE, message).with_help(help))
}

/// Warns of a wait that the location's timeout always cuts off.
fn warn_of_timeout(file: &LintContext<'_>, index: usize) {
    let location = &file.config.locations[index];
    let Some(timeout) = location.timeout else { return };
    let chain = file.config.server.limits.iter().chain(&location.limits);
    for (limit, numbers) in chain.map(|&limit| (limit, &file.config.limits[limit])) {
        let is_written = || file.limit_value(limit, &["max_wait"]).path != file.limit_value(limit, &[]).path;
        let view = file.config.view_at(Some(location), limit);
        let own = view.map_or(0, |view| numbers.view_variant(view));
        let longest = numbers.variants_at(own).filter_map(|algorithm| match algorithm {
            Algorithm::LeakyBucket { rates, max_wait } => {
                let drained =
                    rates.iter().map(|one| drain_time(one.rate, one.queue)).max().unwrap_or_default();
                let wait = drained.min(max_wait.unwrap_or(Duration::MAX));
                // An explicit max_wait is meant to be reached.
                Some(wait.max(max_wait.filter(|_| !drained.is_zero() && is_written()).unwrap_or_default()))
            }
            // The default may be longer: the timeout simply ends the wait then.
            Algorithm::Concurrency { queue: 1.., max_wait, .. } => max_wait.filter(|_| is_written()),
            _ => None,
        });
        let Some(longest) = longest.max().filter(|longest| *longest > timeout && !numbers.dry_run) else {
            continue;
        };
        let rejected = match numbers.algorithm {
            Algorithm::Concurrency { .. } => "wait longer are rejected then",
            _ => "would wait longer are rejected at once",
        };
        let (longest, timeout) = (describe_rounded(longest), format_full_period(timeout));
        let message = format!(
            "limit `{}` lets requests wait for {longest}, but this timeout ends after {timeout}: \
             requests that {rejected}",
            numbers.name
        );
        let help = "write a longer timeout, or a max_wait that leaves time for the answer";
        file.location_value(index, &["timeout"]).warn(codes::LONG_WAIT, message, help);
    }
}

/// Warns of a wait for a server that the location's timeout always cuts off.
fn warn_of_server_wait(file: &LintContext<'_>, index: usize) {
    let location = &file.config.locations[index];
    let ActionConfig::Upstream(upstream) = location.action else { return };
    let upstream = &file.config.upstreams[upstream.0];
    let waits = upstream.queue.as_ref().filter(|_| upstream.max_connections.is_some());
    let (Some(queue), Some(timeout)) = (waits, location.timeout) else { return };
    if queue.max_wait <= timeout {
        return;
    }
    let message = format!(
        "requests may wait {} for a server of upstream `{}`, but this timeout ends after {}: it cuts longer waits \
         with 504 instead of 503",
        format_full_period(queue.max_wait),
        upstream.name,
        format_full_period(timeout)
    );
    let help = "write a longer timeout, or a max_wait that leaves time for the answer";
    file.location_value(index, &["timeout"]).warn(codes::LONG_WAIT, message, help);
}

/// The time in which `units` leave.
fn drain_time(rate: Rate, units: u64) -> Duration {
    let ns = u128::from(units).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// A time in words, rounded up to milliseconds, or to seconds from 10 s.
fn describe_rounded(span: Duration) -> String {
    let unit = if span < Duration::from_secs(10) { 1_000_000 } else { 1_000_000_000 };
    let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    format_full_period(Duration::from_nanos(ns.div_ceil(unit).saturating_mul(unit)))
}
