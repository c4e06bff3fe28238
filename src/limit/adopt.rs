//! What of a limit survives a change of the configuration: the counters of each rate that is still the same one.
//!
//! Both limits, the old one of requests under way and the new one, count in the same tables, where the numbers stand
//! beside the entries. [`Limit::apply`] changes them there, so that nobody ever judges a key by two paces.

use std::ops::Range;
use std::sync::Arc;

use super::Limit;
use super::counters::{MeterSpec, Meters, each};
use crate::base::clock::Now;
use crate::base::ip_set::IpSets;
use crate::config::LimitId;
use crate::config::{self, Algorithm, Rate};

// === impl Limit ===

impl Limit {
    /// `max_keys` bounds each of the limit's counter tables, one per rate.
    pub fn new(id: LimitId, config: &config::LimitConfig, max_keys: usize) -> Limit {
        Limit::continue_from(None, id, config, max_keys)
    }

    /// The limit that goes on counting where `before` does, if it is the same by name and kind: then [`Limit::apply`]
    /// must follow before anybody is judged by it.
    pub fn continue_from(
        before: Option<&Limit>,
        id: LimitId,
        config: &config::LimitConfig,
        max_keys: usize,
    ) -> Limit {
        let before = before.filter(|before| is_same_limit(&before.config, config));
        let mut first = 0;
        let span = |algorithm: &Algorithm| {
            let span = first..first + algorithm.rate_count();
            first = span.end;
            span
        };
        let name: Arc<str> = Arc::from(config.name.as_str());
        let spans: Box<[Range<usize>]> = config.algorithm_variants().map(span).collect();
        let places = previous_rates(before, config, &spans);
        let spec = MeterSpec { config, keys_max: max_keys, owner: &name, before: &places };
        let meters = Meters::new(&spec, before.map(|before| &before.meters));
        Limit { name, id, spans, meters, max_keys, config: config.clone(), bypass: IpSets::default() }
    }

    /// Whether its counters say something about the limit `config`, whose numbers may be others.
    pub fn is_continued_by(&self, config: &config::LimitConfig) -> bool {
        is_same_limit(&self.config, config)
    }

    /// From now on this limit's numbers count, for requests of those before it as well. `clock` is read under each
    /// lock.
    pub fn apply_params(&self, clock: &dyn Fn() -> Now) {
        each!(&self.meters, meters => meters.iter().for_each(|meter| meter.apply_params(self.max_keys, clock)));
    }
}

/// Whether the counters of one say something about the other: the same name, key and kind. Its numbers may change.
fn is_same_limit(before: &config::LimitConfig, config: &config::LimitConfig) -> bool {
    let kind = |limit: &config::LimitConfig| match &limit.algorithm {
        Algorithm::TokenBucket { .. } => (0, 0),
        Algorithm::LeakyBucket { .. } => (1, 0),
        Algorithm::FixedWindow { align, .. } => (2, *align as u8),
        Algorithm::SlidingWindow { buckets, .. } => (3, *buckets),
        Algorithm::SlidingLog { .. } => (4, 0),
        Algorithm::Concurrency { .. } => (5, 0),
    };
    before.name == config.name
        && kind(before) == kind(config)
        && (&before.key, before.missing_key) == (&config.key, config.missing_key)
        && before.fair_by == config.fair_by
        && before.warm_up.is_some() == config.warm_up.is_some()
        && before.shared.is_some() == config.shared.is_some()
}

/// For each rate of `config`, the place of the same rate before: of the same tier, and at the same place in it; or of
/// the same period, where the tier has more or fewer rates now.
fn previous_rates(
    before: Option<&Limit>,
    config: &config::LimitConfig,
    spans: &[Range<usize>],
) -> Vec<Option<usize>> {
    let mut places = Vec::new();
    for (variant, span) in spans.iter().enumerate() {
        let tier = config.variant_tier(variant);
        let known = before.and_then(|before| {
            let known = (0..before.spans.len()).find(|known| before.config.variant_tier(*known) == tier)?;
            Some((before, before.spans[known].clone()))
        });
        let mut taken = Vec::new();
        for (place, rate) in span.clone().enumerate() {
            let found = known.as_ref().and_then(|(before, known)| match known.len() == span.len() {
                true => Some(known.start + place),
                false => {
                    let alike =
                        |other: &usize| rate_period(&before.config, *other) == rate_period(config, rate);
                    known.clone().find(|other| !taken.contains(other) && alike(other))
                }
            });
            taken.extend(found);
            places.push(found);
        }
    }
    places
}

fn rate_period(config: &config::LimitConfig, rate: usize) -> Option<std::time::Duration> {
    let (_, numbers, place) = config.locate_rate(rate)?;
    numbers.rate_quotas().get(place).map(|(Rate { period, .. }, _)| *period)
}
