//! Describes a limit in one sentence, the same for `check`, the banner and `explain`.

use http::{Method, StatusCode};

use super::access::list_networks;
use super::state::describe_store;
use super::{
    describe_optional_key, describe_part, format_count, format_full_period, format_key, format_rate,
};
use crate::config::LimitId;
use crate::config::model::access::NetworkList;
use crate::config::model::limit::{
    Algorithm, Cost, InvalidCost, LeakyBucketRate, LimitConfig, MissingKey, WindowAlign,
};
use crate::config::model::reject::{Degrade, OnReject};
use crate::config::model::{Config, LocationConfig};
use crate::config::value::scalars::Rate;

/// Describes the limit at `index` of the configuration, in the chain of `location` if one is given, e.g. "per-ip:
/// 10 requests per second per client IP, 20 at once; the 21st is rejected with 429 and told when to return".
pub fn describe_limit(config: &Config, id: LimitId, location: Option<&LocationConfig>) -> String {
    let Some(limit) = config.limits.get(id.0) else { return String::new() };
    let mut on_reject = config.on_reject.merge_patch(&limit.on_reject);
    if let Some(location) = location {
        on_reject = on_reject.merge_patch(&location.on_reject);
    }
    compose_sentence(config, limit, &on_reject)
}

fn compose_sentence(config: &Config, limit: &LimitConfig, on_reject: &OnReject) -> String {
    let words = SentenceWriter { config, limit, on_reject };
    let mut parts =
        vec![words.describe_numbers(&limit.algorithm, &format_key(&limit.key)), words.describe_consequence()];
    parts.extend(
        limit
            .warm_up
            .map(|time| format!("from cold a third of the rate, climbing over {}", format_full_period(time))),
    );
    parts.extend(limit.tiers.iter().map(|(tier, own)| match own {
        Some(own) => format!("tier {tier}: {}", words.describe_numbers(own, "")),
        None => format!("tier {tier}: no limit"),
    }));
    parts.extend(words.describe_missing_key());
    parts.extend(describe_bypass(config, &limit.bypass));
    parts.extend(describe_store(config, limit));
    let dry_run = if limit.dry_run { " (dry run: counted, never rejected)" } else { "" };
    format!("{}: {}{dry_run}", limit.name, parts.join("; "))
}

struct SentenceWriter<'a> {
    config: &'a Config,
    limit: &'a LimitConfig,
    on_reject: &'a OnReject,
}

impl SentenceWriter<'_> {
    /// The numbers of a limit, e.g. "10 requests per second per client IP, 20 at once".
    fn describe_numbers(&self, algorithm: &Algorithm, key: &str) -> String {
        match algorithm {
            Algorithm::TokenBucket { rates } => {
                let one = |rate: &Rate, burst: u64, key: &str| {
                    format!("{}{key}, {burst} at once", self.render_rate(rate))
                };
                let rates = rates.iter().enumerate();
                self.append_cost(
                    rates.map(|(at, it)| one(&it.rate, it.burst, key_of_first(at, key))).collect(),
                )
            }
            Algorithm::LeakyBucket { rates, max_wait } => {
                let paced =
                    rates.iter().enumerate().map(|(at, it)| self.describe_paced(it, key_of_first(at, key)));
                let mut text = self.append_cost(paced.collect());
                let queues: Vec<String> =
                    rates.iter().filter(|one| one.queue > 0).map(|one| one.queue.to_string()).collect();
                if !queues.is_empty() {
                    let wait = match max_wait {
                        Some(wait) => format!("at most {}", format_full_period(*wait)),
                        None => "as long as it takes".to_owned(),
                    };
                    let queue = if queues.len() > 1 { "queues" } else { "a queue" };
                    text += &format!(
                        "; up to {} wait in {queue}{}, {wait}",
                        queues.join(" and "),
                        self.describe_turns()
                    );
                }
                text
            }
            Algorithm::FixedWindow { rates, align: WindowAlign::First } => {
                self.describe_windows(rates, key, "in windows that begin with the first request")
            }
            Algorithm::FixedWindow { rates, align: WindowAlign::Clock } => {
                self.describe_windows(rates, key, "in windows that begin by the clock (UTC)")
            }
            Algorithm::SlidingWindow { rates, .. } | Algorithm::SlidingLog { rates } => {
                self.describe_windows(rates, key, "in any such span")
            }
            Algorithm::Concurrency { min: None, max } => {
                format!("{} in flight{key}", format_count(u64::from(*max), &self.counted_noun()))
            }
            Algorithm::Concurrency { min: Some(min), max } => {
                let most = format_count(u64::from(*max), &self.counted_noun());
                format!("{min} to {most} in flight{key}, as many as the upstream's latency allows")
            }
        }
    }

    fn describe_windows(&self, rates: &[Rate], key: &str, when: &str) -> String {
        let rates = rates
            .iter()
            .enumerate()
            .map(|(at, rate)| format!("{}{}", self.render_rate(rate), key_of_first(at, key)));
        let rates = rates.collect::<Vec<String>>().join(", and ");
        self.append_cost(vec![format!("{rates}, {when}")])
    }

    fn describe_paced(&self, one: &LeakyBucketRate, key: &str) -> String {
        let burst = if one.burst > 1 { format!(", {} at once", one.burst) } else { String::new() };
        format!("{}{key}, evenly spaced{burst}", self.render_rate(&one.rate))
    }

    /// The treatment of a request beyond the limit.
    fn describe_consequence(&self) -> String {
        let (subject, is) = match self.first_rejected() {
            Some(nth) => (format!("the {}", format_ordinal(nth)), " is"),
            None if self.has_queue() => ("beyond that".to_owned(), ""),
            None => (self.describe_excess().to_owned(), " is"),
        };
        let is = match (self.limit.dry_run, is) {
            (true, _) => " would be",
            (false, is) => is,
        };
        if let Some(instead) = self.describe_degrade() {
            return format!("{subject}{is} {instead}");
        }
        match &self.limit.algorithm {
            Algorithm::Concurrency { .. } => {
                let status = self.on_reject.status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
                format!("{subject}{is} rejected with {}", status.as_u16())
            }
            _ => {
                let status = self.on_reject.status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
                format!("{subject}{is} rejected with {} and told when to return", status.as_u16())
            }
        }
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
        let size = match &self.limit.algorithm {
            Algorithm::TokenBucket { rates } => match rates.as_slice() {
                [one] => one.burst,
                _ => return None,
            },
            Algorithm::FixedWindow { rates, .. }
            | Algorithm::SlidingWindow { rates, .. }
            | Algorithm::SlidingLog { rates } => match rates.as_slice() {
                [one] => one.units.get(),
                _ => return None,
            },
            Algorithm::LeakyBucket { .. } => return None,
            Algorithm::Concurrency { min: Some(_), .. } => return None,
            Algorithm::Concurrency { min: None, max } => u64::from(*max),
        };
        match self.limit.cost {
            Cost::Units(cost) => Some((size / cost.max(1)).saturating_add(1)),
            Cost::Header { .. } => None,
        }
    }

    fn has_queue(&self) -> bool {
        match &self.limit.algorithm {
            Algorithm::LeakyBucket { rates, .. } => rates.iter().any(|one| one.queue > 0),
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

    /// "10 GET or HEAD requests per second".
    fn render_rate(&self, rate: &Rate) -> String {
        format_rate(rate, &self.counted_noun())
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
        match &self.limit.cost {
            Cost::Units(1) => rates,
            Cost::Units(cost) => format!("{rates}; each {request} takes {cost}"),
            Cost::Header { name, invalid } => {
                let refused = match invalid {
                    InvalidCost::One => "",
                    InvalidCost::Reject => ", and gets 400 if that is not a number",
                };
                format!(
                    "{rates}; each {request} takes the number in header {name} of a trusted proxy, else 1{refused}"
                )
            }
        }
    }

    fn describe_turns(&self) -> String {
        let parts: Vec<String> = self.limit.fair_by.iter().filter_map(describe_part).collect();
        if parts.is_empty() { String::new() } else { format!(", taking turns by {}", parts.join(" and ")) }
    }
}

/// The key, which only the first rate mentions.
fn key_of_first(index: usize, key: &str) -> &str {
    if index == 0 { key } else { "" }
}

fn describe_bypass(config: &Config, networks: &NetworkList) -> Option<String> {
    (!networks.is_empty()).then(|| format!("not for clients of {}", list_networks(config, networks)))
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
