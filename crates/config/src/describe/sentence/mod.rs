//! Describes a limit in one sentence, the same for `check`, the banner and `explain`.

use std::time::Duration;

use http::{Method, StatusCode};

use super::access::list_networks;
use super::charge::{charged_noun, describe_charge, format_amount};
use super::shares::describe_shares;
use super::state::describe_store;
use super::{
    describe_optional_key, format_bytes, format_count, format_full_period, format_key, format_period,
    format_rate, join_parts,
};
use sluicegate_model::{
    Algorithm, Config, Cost, Degrade, InvalidCost, LeakyBucketRate, LimitConfig, LimitId, LocationConfig,
    MissingKey, OnReject, QuotaStep, Rate, Reserve, StepAction, TokenBucketRate, ViewId, WindowAlign,
};

/// Describes the limit at `index` of the configuration, in the chain of `location` if one is given, e.g. "per-ip:
/// 10 requests per second per client IP, 20 at once; the 21st is rejected with 429 and told when to return".
pub fn describe_limit(config: &Config, id: LimitId, location: Option<&LocationConfig>) -> String {
    let view = location.and_then(|location| config.view_at(Some(location), id));
    describe_with_view(config, id, location, view)
}

/// The same as the chain of `location` judges it, or without one the chain of requests that no location serves.
pub fn describe_chain_limit(config: &Config, id: LimitId, location: Option<&LocationConfig>) -> String {
    describe_with_view(config, id, location, config.view_at(location, id))
}

fn describe_with_view(
    config: &Config,
    id: LimitId,
    location: Option<&LocationConfig>,
    view: Option<ViewId>,
) -> String {
    let Some(limit) = config.limits.get(id.0) else { return String::new() };
    let on_reject = config.on_reject_at(limit, location.map(|location| &location.on_reject));
    match view.and_then(|view| limit.views.get(view.0)) {
        None => compose_sentence(config, limit, &on_reject, location),
        Some(numbers) => {
            let here = LimitConfig { algorithm: numbers.clone(), ..limit.clone() };
            let sentence = compose_sentence(config, &here, &on_reject, location);
            format!("{sentence}; it counts together with its other places")
        }
    }
}

fn compose_sentence(
    config: &Config,
    limit: &LimitConfig,
    on_reject: &OnReject,
    location: Option<&LocationConfig>,
) -> String {
    let words = SentenceWriter { config, limit, on_reject };
    let mut parts =
        vec![words.describe_numbers(&limit.algorithm, &format_key(&limit.key)), words.describe_consequence()];
    parts.extend(describe_shares(limit));
    parts.extend(limit.steps.iter().filter_map(describe_step));
    parts.extend(
        limit
            .warm_up
            .map(|time| format!("from cold a third of the rate, climbing over {}", format_full_period(time))),
    );
    parts.extend(limit.tiers.iter().map(|(tier, own)| match own {
        Some(own) => format!("tier {tier}: {}", words.describe_numbers(own, "")),
        None => format!("tier {tier}: no limit"),
    }));
    parts.extend(describe_charge(limit));
    parts.extend(words.describe_missing_key());
    parts.extend(describe_body_reading(limit, location));
    let bypass = || format!("not for clients of {}", list_networks(config, &limit.bypass));
    parts.extend((!limit.bypass.is_empty()).then(bypass));
    parts.extend(describe_store(config, limit));
    parts.extend(
        limit.enforce.map(|share| format!("acts on {share} of its keys, and is a dry run for the others")),
    );
    let dry_run = match limit.shadow_of.and_then(|live| config.limits.get(live.0)) {
        Some(live) => format!(" (shadow of {}: judged beside it, never rejected)", live.name),
        None if limit.pause.is_some() => " (paused: counted, never rejected)".to_owned(),
        None if limit.dry_run => " (dry run: counted, never rejected)".to_owned(),
        None => String::new(),
    };
    format!("{}: {}{dry_run}", limit.name, parts.join("; "))
}

/// "from 80% the caller is told"; `None` for a rejection.
fn describe_step(step: &QuotaStep) -> Option<String> {
    let percent = step.percent();
    match step.then {
        StepAction::Warn => Some(format!("from {percent}% the caller is told")),
        StepAction::Slow(rate) => {
            let pace = format_count(rate.units.get(), "request");
            Some(format!("above {percent}% {pace} per {}", format_period(rate.period)))
        }
        StepAction::Reject => None,
    }
}

/// The requests that the last step refuses.
fn describe_refused(last: &QuotaStep) -> String {
    match last.then {
        StepAction::Reject => format!("a request above {}%", last.percent()),
        _ => "one that comes sooner".to_owned(),
    }
}

struct SentenceWriter<'a> {
    config: &'a Config,
    limit: &'a LimitConfig,
    on_reject: &'a OnReject,
}

impl SentenceWriter<'_> {
    /// The numbers of a limit, e.g. "10 requests per second per client IP, 20 at once".
    fn describe_numbers(&self, algorithm: &Algorithm, key: &str) -> String {
        // Only the first rate mentions the key.
        let named = |(at, rate): (usize, &Rate)| {
            let rate = format_rate(self.limit, rate, &self.counted_noun());
            rate + if at == 0 { key } else { "" }
        };
        let windows = |rates: &[Rate], when: &str| {
            let rates: Vec<String> = rates.iter().enumerate().map(named).collect();
            self.append_cost(vec![format!("{}, {when}", rates.join(", and "))])
        };
        match algorithm {
            Algorithm::TokenBucket { rates } => {
                let one = |(at, one): (usize, &TokenBucketRate)| {
                    format!("{}, {} at once", named((at, &one.rate)), format_amount(self.limit, one.burst))
                };
                self.append_cost(rates.iter().enumerate().map(one).collect())
            }
            Algorithm::LeakyBucket { rates, max_wait } => {
                let one = |(at, one): (usize, &LeakyBucketRate)| {
                    let burst =
                        if one.burst > 1 { format!(", {} at once", one.burst) } else { String::new() };
                    format!("{}, evenly spaced{burst}", named((at, &one.rate)))
                };
                let paced = self.append_cost(rates.iter().enumerate().map(one).collect());
                paced + &self.describe_queues(rates.iter().map(|one| one.queue), *max_wait)
            }
            Algorithm::FixedWindow { rates, align } => {
                let zone = self.limit.calendar.as_ref().map_or("UTC", |calendar| calendar.zone_name());
                let from = if self.limit.begins_by_account() { ", from each account's date" } else { "" };
                match align {
                    WindowAlign::First => windows(rates, "in windows that begin with the first request"),
                    WindowAlign::Clock => windows(rates, "in windows that begin by the clock (UTC)"),
                    WindowAlign::Calendar => {
                        windows(rates, &format!("in windows of the calendar ({zone}{from})"))
                    }
                }
            }
            Algorithm::SlidingWindow { rates, .. } | Algorithm::SlidingLog { rates } => {
                windows(rates, "in any such span")
            }
            Algorithm::Concurrency { min, max, queue, max_wait } => {
                let most = format_count(u64::from(*max), &self.counted_noun());
                let slots = match min {
                    None => format!("{most} in flight{key}"),
                    Some(min) => {
                        format!("{min} to {most} in flight{key}, as many as the upstream's latency allows")
                    }
                };
                slots + &self.describe_queues(std::iter::once(*queue), *max_wait)
            }
        }
    }

    /// "; up to 10 wait in a queue, at most 30 seconds"; empty without a queue.
    fn describe_queues(&self, queues: impl Iterator<Item = u64>, max_wait: Option<Duration>) -> String {
        let queues: Vec<String> = queues.filter(|queue| *queue > 0).map(|queue| queue.to_string()).collect();
        if queues.is_empty() {
            return String::new();
        }
        let wait = match max_wait {
            Some(wait) => format!("at most {}", format_full_period(wait)),
            None => "as long as it takes".to_owned(),
        };
        let queue = if queues.len() > 1 { "queues" } else { "a queue" };
        let turns = join_parts(&self.limit.fair_by, " and ");
        let turns = turns.map(|parts| format!(", taking turns by {parts}")).unwrap_or_default();
        format!("; up to {} wait in {queue}{turns}, {wait}", queues.join(" and "))
    }

    /// The treatment of a request beyond the limit.
    fn describe_consequence(&self) -> String {
        let first = || self.first_rejected().map(|nth| format!("the {}", format_ordinal(nth)));
        let (subject, mut is) = match self.limit.steps.last().map(describe_refused).or_else(first) {
            Some(subject) => (subject, " is"),
            None if self.has_queue() => ("beyond that".to_owned(), ""),
            None => (self.describe_excess().to_owned(), " is"),
        };
        if self.limit.dry_run {
            is = " would be";
        }
        if let Some(instead) = self.describe_degrade() {
            return format!("{subject}{is} {instead}");
        }
        let (usual, told) = match &self.limit.algorithm {
            Algorithm::Concurrency { .. } => (StatusCode::SERVICE_UNAVAILABLE, ""),
            _ if self.on_reject.turns().is_some() => (StatusCode::TOO_MANY_REQUESTS, " and told its turn"),
            _ => (StatusCode::TOO_MANY_REQUESTS, " and told when to return"),
        };
        let status = self.on_reject.status.unwrap_or(usual);
        format!("{subject}{is} rejected with {}{told}", status.as_u16())
    }

    /// The substitute for a rejection, if the limit degrades.
    fn describe_degrade(&self) -> Option<String> {
        Some(match self.on_reject.degrade.as_ref()? {
            Degrade::Upstream(index) => {
                format!("sent to upstream {} instead", self.config.upstreams[*index].name)
            }
            Degrade::Canned(canned) => format!("answered here with {} instead", canned.status.as_u16()),
        })
    }

    /// The treatment of requests without a part of the key, unless they count by their address (the default).
    fn describe_missing_key(&self) -> Option<String> {
        let limit = self.limit;
        let parts = describe_optional_key(limit)?;
        let become_of = match limit.missing_key {
            MissingKey::Ip => return None,
            MissingKey::Shared => "share one counter".to_owned(),
            MissingKey::Reject => {
                let are = if limit.dry_run { "would be" } else { "are" };
                let rejected = || format!("rejected with {}", limit.missing_key_status.as_u16());
                format!("{are} {}", self.describe_degrade().unwrap_or_else(rejected))
            }
            MissingKey::Skip => "are not counted".to_owned(),
        };
        Some(format!("requests without {parts} {become_of}"))
    }

    /// The number of the first simultaneous request to be rejected, if it is fixed.
    fn first_rejected(&self) -> Option<u64> {
        if charged_noun(self.limit).is_some()
            || self.limit.charge.as_ref().is_some_and(|own| own.reserve != Reserve::Cost)
        {
            return None;
        }
        let size = match (&self.limit.algorithm, self.limit.algorithm.rate_quotas().as_slice()) {
            (Algorithm::LeakyBucket { .. }, _) => return None,
            (Algorithm::Concurrency { min: None, max, queue: 0, .. }, _) => u64::from(*max),
            (_, [(_, quota)]) => *quota,
            _ => return None,
        };
        match self.limit.cost {
            Cost::Units(cost) => Some((size / cost.max(1)).saturating_add(1)),
            Cost::Header { .. } | Cost::Json { .. } | Cost::JsonRpc { .. } => None,
        }
    }

    fn has_queue(&self) -> bool {
        match &self.limit.algorithm {
            Algorithm::LeakyBucket { rates, .. } => rates.iter().any(|one| one.queue > 0),
            Algorithm::Concurrency { queue, .. } => *queue > 0,
            _ => false,
        }
    }

    fn describe_excess(&self) -> &'static str {
        match &self.limit.algorithm {
            Algorithm::LeakyBucket { .. } => "anything sooner",
            Algorithm::Concurrency { .. } => "one more",
            algorithm if algorithm.rate_count() > 1 => "anything above one of them",
            _ => "anything above it",
        }
    }

    /// The noun for the counted things.
    fn counted_noun(&self) -> String {
        if self.limit.cost == Cost::Units(1) { self.request_noun() } else { "unit".to_owned() }
    }

    fn request_noun(&self) -> String {
        let methods: Vec<&str> = self.limit.methods.iter().map(Method::as_str).collect();
        if methods.is_empty() { "request".to_owned() } else { format!("{} request", methods.join(" or ")) }
    }

    fn append_cost(&self, rates: Vec<String>) -> String {
        let (rates, request) = (rates.join(", and "), self.request_noun());
        if charged_noun(self.limit).is_some() {
            // The sentence about the charge tells the units of a request.
            return rates;
        }
        let refused = |invalid: &InvalidCost, how: &'static str| match invalid {
            InvalidCost::One => "",
            InvalidCost::Reject => how,
        };
        const NO_NUMBER: &str = ", and gets 400 if that is not a number";
        match &self.limit.cost {
            Cost::Units(1) => rates,
            Cost::Units(cost) => format!("{rates}; each {request} takes {cost}"),
            Cost::Header { name, invalid } => {
                let refused = refused(invalid, NO_NUMBER);
                format!(
                    "{rates}; each {request} takes the number in header {name} of a trusted proxy, else 1{refused}"
                )
            }
            Cost::Json { pointer, invalid } => {
                let (pointer, refused) = (pointer.as_str(), refused(invalid, NO_NUMBER));
                format!("{rates}; each {request} takes the number of JSON value {pointer}, else 1{refused}")
            }
            Cost::JsonRpc { invalid } => {
                let refused = refused(invalid, ", and a body that is no JSON gets 400");
                format!("{rates}; each {request} takes 1, a JSON-RPC batch 1 for each call{refused}")
            }
        }
    }
}

/// How much of the bodies of requests the limit reads.
fn describe_body_reading(limit: &LimitConfig, location: Option<&LocationConfig>) -> Option<String> {
    let most = location.filter(|_| !limit.dry_run).map(|location| format_bytes(location.body_peek_bytes()));
    let refused = most.map(|most| format!(", and one of more than {most} gets 413"));
    limit.reads_body().then(|| format!("it reads request bodies{}", refused.unwrap_or_default()))
}

/// "21st", "12th", "103rd".
fn format_ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests;
