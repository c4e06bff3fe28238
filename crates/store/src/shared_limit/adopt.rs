//! Reloads: a shared limit continues the one before, as far as it is the same.

use std::sync::Arc;

use super::{RateRule, SharedLimit};
use crate::departures::Departures;
use crate::fleet::Fleet;
use crate::script::call::KeyClass;
use sluicegate_limit::keys_max;
use sluicegate_limit::table::Table;
use sluicegate_model::{self as model, LimitId, OnFailure};

// === impl SharedLimit ===

impl SharedLimit {
    /// Continues the limit `before` as far as it is the same: waiting requests stay in their queues, and the store's
    /// answers hold as long as no number changes. [`SharedLimit::apply_numbers`] must follow before it judges a
    /// request.
    pub fn adopt_from(
        before: Option<&SharedLimit>,
        id: LimitId,
        config: &model::LimitConfig,
        on_failure: OnFailure,
        max_keys: usize,
    ) -> SharedLimit {
        let rules = RateRule::rules_of(config);
        let named = before.filter(|before| before.config.name == config.name);
        let keyed =
            |limit: &model::LimitConfig| (limit.key.clone(), limit.missing_key, limit.fair_by.clone());
        let keyed_alike = named.filter(|before| keyed(&before.config) == keyed(config));
        let same =
            keyed_alike.filter(|before| rule_ids(&before.config, &before.rules) == rule_ids(config, &rules));
        let is_unchanged = |before: &&SharedLimit| {
            before.config.in_file().dry_run == config.in_file().dry_run && before.max_keys == max_keys
        };
        let unchanged = same.filter(is_unchanged);
        let rate_count = rules.iter().filter(|rule| rule.class() != KeyClass::Slots).count();
        // Each rate for itself, so that a grant leaves the others as they are.
        let departures = |rule: &RateRule| {
            same.and_then(|before| Some(before.departures[before.rate_of_rule(rule.id)?].clone()))
        };
        // Views wait in the queue of the limit's own rate.
        let mut own_departures: Vec<Arc<Departures>> = Vec::with_capacity(rules.len());
        for (rate, rule) in rules.iter().enumerate() {
            let counted_by = own_departures.get(config.counter_rate(rate)).cloned();
            own_departures.push(counted_by.or_else(|| departures(rule)).unwrap_or_default());
        }
        let last_answers = |rate: usize| {
            let before = unchanged?;
            let found = before.rules.iter().position(|rule| *rule == rules[rate])?;
            before.last_answers.get(found).cloned()
        };
        let owner: Arc<str> = Arc::from(config.name.as_str());
        let answers_max = |rate| keys_max(config, max_keys, rate).saturating_mul(config.classes_per_key());
        let fresh_answers = |rate| Arc::new(Table::with_params((), answers_max(rate), owner.clone()));
        let same_numbers = unchanged.filter(|before| has_same_numbers(&before.config, config));
        SharedLimit {
            on_failure,
            departures: own_departures.into(),
            last_answers: (0..rate_count)
                .map(|rate| last_answers(rate).unwrap_or_else(|| fresh_answers(rate)))
                .collect(),
            local_share: match (same_numbers, same) {
                (Some(before), _) => before.local_share.clone(),
                (None, Some(before)) => Arc::new(before.local_share.with_numbers(id, config, max_keys)),
                (None, None) => Arc::default(),
            },
            // Slots are named by rule and key, whatever else changes.
            in_flight: named.map(|before| before.in_flight.clone()).unwrap_or_default(),
            slot_queue: named.map(|before| before.slot_queue.clone()).unwrap_or_default(),
            // Other gateways do not know of grants, which are no difference of the numbers.
            fleet: Fleet::adopt_from(
                named.map(|before| &before.fleet),
                config,
                &rules[..config.file_rate_count()],
            ),
            counts: named.map(|before| before.counts.clone()).unwrap_or_default(),
            step_notes: named.map(|before| before.step_notes.clone()).unwrap_or_default(),
            names: same.map(|before| before.names.clone()).unwrap_or_default(),
            resets: named.map(|before| before.resets.clone()).unwrap_or_default(),
            leases: named.map(|before| before.leases.clone()).unwrap_or_default(),
            recovery_ns: all_recovery_times(config),
            rules,
            config: config.clone(),
            id,
            max_keys,
        }
    }
}

fn all_recovery_times(config: &model::LimitConfig) -> Vec<u64> {
    // As for [`RateRule::recovery_us`].
    let times = if config.shares.is_some() { 2 } else { 1 };
    config.algorithm_variants().flat_map(recovery_times).map(|ns| ns.saturating_mul(times)).collect()
}

fn has_same_numbers(before: &model::LimitConfig, config: &model::LimitConfig) -> bool {
    // A pause acts no more.
    before.dry_run == config.dry_run
        && before.numbers() == config.numbers()
        && (&before.calendar, &before.steps, &before.shares)
            == (&config.calendar, &config.steps, &config.shares)
}

/// The ids of the rules that the file has, each once.
fn rule_ids(config: &model::LimitConfig, rules: &[RateRule]) -> Vec<u32> {
    let counted = (0..config.file_rate_count()).filter(|rate| config.counter_rate(*rate) == *rate);
    counted.map(|rate| rules[rate].id).collect()
}

/// The longest time that each rate of `numbers` takes to recover fully, ns.
fn recovery_times(numbers: &model::Algorithm) -> Vec<u64> {
    let ns = |(rate, units): (model::Rate, u64)| {
        let periods = units.div_ceil(rate.units.get()).saturating_add(1);
        u64::try_from(rate.period.as_nanos().saturating_mul(periods.into())).unwrap_or(u64::MAX)
    };
    let mut all: Vec<u64> = numbers.rate_quotas().into_iter().map(ns).collect();
    all.resize(numbers.rate_count(), 0);
    all
}
