//! Reloads: a limit of the new configuration goes on with the counters of each rate that is still the same.
//!
//! The old limit, of requests under way, and the new one count in the same tables, where the parameters stand beside
//! the entries. [`Limit::apply_numbers`] changes them there, shard by shard, so a key is never judged by two rates.
//! Everything that can fail comes before that.

use std::ops::Range;
use std::sync::Arc;

use super::Limit;
use super::counters::{LimitSpec, Meters, each, keys_max};
use super::operator_changes::GrantedKey;
use sluicegate_base::clock::Now;
use sluicegate_base::ip_set::IpSets;
use sluicegate_model::{self as model, Algorithm, ChargeConfig, LimitId, Rate};

// === impl Limit ===

impl Limit {
    /// `max_keys` bounds each of the limit's counter tables, one per rate.
    pub fn new(id: LimitId, config: &model::LimitConfig, max_keys: usize) -> Limit {
        Limit::continue_from(None, id, config, max_keys)
    }

    /// A limit that counts in the tables of `before`, if it is the same by name and kind: then
    /// [`Limit::apply_numbers`] must follow before it judges any request.
    pub fn continue_from(
        before: Option<&Limit>,
        id: LimitId,
        config: &model::LimitConfig,
        max_keys: usize,
    ) -> Limit {
        let before = before.filter(|before| before.is_continued_by(config));
        let mut first = 0;
        let span = |algorithm: &Algorithm| {
            let span = first..first + algorithm.rate_count();
            first = span.end;
            span
        };
        let name: Arc<str> = Arc::from(config.name.as_str());
        let spans: Box<[Range<usize>]> = config.algorithm_variants().map(span).collect();
        let previous = previous_rates(before, config, &spans);
        let spec = LimitSpec { config, max_keys, owner: &name, previous: &previous };
        let meters = Meters::new(&spec, before.map(|before| &before.meters));
        let reserved = before.map(|before| before.reserved.clone()).unwrap_or_default();
        let step_notes = before.map(|before| before.step_notes.clone()).unwrap_or_default();
        let turns = before.map(|before| before.turns.clone()).unwrap_or_default();
        let rates =
            config.algorithm_variants().flat_map(Algorithm::rate_quotas).map(|(rate, _)| rate).collect();
        let (config, bypass) = (config.clone(), IpSets::default());
        let granted = GrantedKey::all_of(&config);
        Limit {
            name,
            id,
            spans,
            meters,
            max_keys,
            rates,
            turns,
            granted,
            reserved,
            step_notes,
            config,
            bypass,
        }
    }

    /// True if its counters are valid for the limit `config`: the same name, key, kind and units. The numbers may
    /// differ.
    pub fn is_continued_by(&self, config: &model::LimitConfig) -> bool {
        let kind = |limit: &model::LimitConfig| match &limit.algorithm {
            Algorithm::TokenBucket { .. } => (0, 0),
            Algorithm::LeakyBucket { .. } => (1, 0),
            Algorithm::FixedWindow { align, .. } => (2, *align as u8),
            Algorithm::SlidingWindow { buckets, .. } => (3, *buckets),
            Algorithm::SlidingLog { .. } => (4, 0),
            Algorithm::Concurrency { .. } => (5, 0),
        };
        let before = &self.config;
        before.name == config.name
            && kind(before) == kind(config)
            && ChargeConfig::counted_units(before.charge.as_ref())
                == ChargeConfig::counted_units(config.charge.as_ref())
            && (&before.key, before.missing_key) == (&config.key, config.missing_key)
            && before.fair_by == config.fair_by
            && before.warm_up.is_some() == config.warm_up.is_some()
            && before.shared.is_some() == config.shared.is_some()
            && before.shares.is_some() == config.shares.is_some()
    }

    /// Puts this limit's parameters in force, for requests of its predecessors as well. `clock` is read under each
    /// lock.
    pub fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        if let Some(turns) = self.turns.get() {
            turns.replace_params(&Arc::new(()), self.max_keys, clock);
        }
        each!(&self.meters, meters => {
            for (rate, meter) in meters.iter().enumerate().filter(|(rate, _)| !self.is_view_rate(*rate)) {
                let keys_max = keys_max(&self.config, self.max_keys, rate);
                meter.table.replace_params(&meter.params, keys_max, clock);
            }
        });
    }
}

/// The index in `before` of each rate of `config`: of the same tier, and at the same position in
/// it; or of the same period, where the tier has more or fewer rates now.
fn previous_rates(
    before: Option<&Limit>,
    config: &model::LimitConfig,
    spans: &[Range<usize>],
) -> Vec<Option<usize>> {
    let mut previous = Vec::new();
    for (variant, span) in spans.iter().enumerate() {
        let tier = config.variant_tier(variant);
        // A view and a tier of a calendar have no counters of their own.
        let same_tier = before.filter(|_| !config.counts_as_own(variant)).and_then(|before| {
            let variant = (0..before.spans.len()).find(|other| before.config.variant_tier(*other) == tier)?;
            Some((before, before.spans[variant].clone()))
        });
        let mut used = Vec::new();
        for (position, rate) in span.clone().enumerate() {
            let found = same_tier.as_ref().and_then(|(before, rates)| match rates.len() == span.len() {
                true => Some(rates.start + position),
                false => {
                    let is_same_period =
                        |other: &usize| rate_period(&before.config, *other) == rate_period(config, rate);
                    rates.clone().find(|other| !used.contains(other) && is_same_period(other))
                }
            });
            used.extend(found);
            previous.push(found);
        }
    }
    previous
}

fn rate_period(config: &model::LimitConfig, rate: usize) -> Option<std::time::Duration> {
    let (_, algorithm, position) = config.locate_rate(rate)?;
    algorithm.rate_quotas().get(position).map(|(Rate { period, .. }, _)| *period)
}
