//! What keys have used of their limits, and what is left: for callers, operators and events.

use std::num::NonZeroU64;

use serde_json::Number;

use super::Gateway;
use crate::reject::{rate_text, rate_texts};
use sluicegate_base::calendar::{Anchor, CalendarWindow};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_limit::steps::WindowUsage;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    Algorithm, Amount, ChargedUnits, Config, Cost, KeyPart, LimitConfig, LimitId, LlmWeights, QuotaStep, Rate,
};
use sluicegate_store::{ScriptOp, Session, SharedKey, StoreAnswer, StoreQuestion};

json_object! {
    /// The use of one rate of a limit by one key. Money is a number with up to six decimals.
    #[derive(Debug, Clone, PartialEq)]
    pub struct UsageEntry as "Usage" {
        pub limit: String = "The name of the limit.",
        pub key: String = "The name of the key.",
        pub rate: String = "The rate, e.g. `100000/month`, or the slots.",
        pub unit: String = "The counted units: request, token, KiB, unit or a currency.",
        pub quota: Amount = "Units that fit when nothing is used; of a bucket its burst, of slots all of them.",
        pub used: Option<Amount> = "Used and reserved units; null while Redis does not answer.",
        pub reserved: Option<Amount> = "Units that requests in flight have reserved; null if unknown.",
        pub left: Option<Number> = "The quota without the used units; below zero if these are more.",
        pub begins: Option<String> = "The beginning of the calendar's window, with the offset of its zone.",
        pub ends: Option<String> = "Its end.",
        pub step: Option<UsageStep> = "The last step that is reached.",
    }

    /// A step of a limit.
    #[derive(Debug, Clone, PartialEq)]
    pub struct UsageStep as "UsageStep" {
        pub at: Number = "The percentage of the quota.",
        pub then: &'static str = "What happens from there on." in ["warn", "slow", "reject"],
    }
}

/// A key of a limit, whose use is looked up.
pub struct CountedKey {
    /// The limit.
    pub limit: LimitId,
    /// The key with the variant that judges it; one unit.
    pub units: Units,
    /// The key in the store.
    pub shared: SharedKey,
    /// The name to show.
    pub name: String,
}

// === impl UsageStep ===

impl UsageStep {
    /// A step as it is shown.
    pub fn of(step: &QuotaStep) -> UsageStep {
        UsageStep { at: decimal(step.at.into(), QuotaStep::WHOLE / 100), then: step.then.as_str() }
    }
}

// === impl UsageEntry ===

impl UsageEntry {
    /// The use of the rate with this index in the limit; without `usage` the store does not answer, and the window is
    /// that of `now` for an account with this date. `None` = there is no such rate.
    pub fn of(
        config: &LimitConfig,
        rate: usize,
        key: String,
        usage: Option<WindowUsage>,
        (now, anchor): (Now, Option<Anchor>),
    ) -> Option<UsageEntry> {
        let (_, numbers, index) = config.locate_rate(rate)?;
        let (own, quota) = find_quota(numbers, index);
        let quota = usage.map_or(quota, |usage| usage.quota);
        let in_window = usage.filter(|usage| usage.ends > 0);
        // The number that judged the key last: that of its tier, or of a grant.
        let judged_by = in_window.and_then(|usage| NonZeroU64::new(usage.quota));
        let rate = match own {
            Some(own) => rate_text(config, &Rate { units: judged_by.unwrap_or(own.units), ..own }),
            None => rate_texts(config, numbers).pop()?,
        };
        let calendar = own.and_then(|own| own.calendar).zip(config.calendar.as_ref());
        let (begins, ends) = calendar
            .map(|(unit, calendar)| {
                let now = || calendar.window_at(unit, now.to_unix_ns() / 1_000_000_000, anchor);
                let CalendarWindow { begins, ends } = usage
                    .map_or_else(now, |WindowUsage { begins, ends, .. }| CalendarWindow { begins, ends });
                (calendar.show_moment(begins).1, calendar.show_moment(ends).1)
            })
            .unzip();
        let step = usage.and_then(|usage| config.steps_in(usage.reached).next_back());
        let parts = if config.currency().is_some() { 1_000_000 } else { 1 };
        let left = |usage: WindowUsage| i128::from(usage.quota) - i128::from(usage.used);
        // A limit that charges by responses knows its reservations only in windows.
        let reserved = if config.charge.is_none() { usage } else { in_window };
        Some(UsageEntry {
            limit: config.name.clone(),
            key,
            rate,
            unit: name_unit(config),
            quota: config.amount(quota),
            used: usage.map(|usage| config.amount(usage.used)),
            reserved: reserved.map(|usage| config.amount(usage.reserved)),
            left: usage.map(|usage| decimal(left(usage), parts)),
            begins,
            ends,
            step: step.map(UsageStep::of),
        })
    }
}

/// A number of parts of a whole, without a point if it is whole.
fn decimal(parts: i128, of: u64) -> Number {
    match parts % i128::from(of) {
        0 => i64::try_from(parts / i128::from(of)).unwrap_or(i64::MAX).into(),
        // Every quotient is finite.
        _ => Number::from_f64(parts as f64 / of as f64).unwrap_or_else(|| 0.into()),
    }
}

/// The units that a limit counts.
fn name_unit(config: &LimitConfig) -> String {
    let charged = config.charge.as_ref().map(|charge| charge.units.as_slice());
    match (config.currency(), charged) {
        (Some(currency), _) => return currency.to_string(),
        (None, _) if config.counts_kib() => "KiB",
        (None, Some([ChargedUnits::Llm(LlmWeights::EQUAL)])) => "token",
        (None, None | Some([ChargedUnits::Request])) if config.cost == Cost::Units(1) => "request",
        (None, _) => "unit",
    }
    .to_owned()
}

/// A rate and the units that fit at once, without those that would wait; slots have no rate.
fn find_quota(numbers: &Algorithm, index: usize) -> (Option<Rate>, u64) {
    let of_rate = match numbers {
        Algorithm::Concurrency { max, .. } => return (None, (*max).into()),
        Algorithm::LeakyBucket { rates, .. } => rates.get(index).map(|one| (one.rate, one.burst)),
        _ => numbers.rate_quotas().get(index).copied(),
    };
    of_rate.map_or((None, 0), |(rate, quota)| (Some(rate), quota))
}

/// The limits that tell each caller apart, or those of them that are `listed`; in the order of the file.
pub(super) fn find_shown(config: &Config, listed: Option<&[LimitId]>) -> Vec<LimitId> {
    let mut shown = config.declared_limits();
    shown.retain(|id| {
        let limit = &config.limits[*id];
        // The name of a limit that the file does not name tells a path, perhaps of another host.
        let is_listed = listed.map_or(!limit.name.contains('#'), |listed| listed.contains(id));
        is_listed && KeyPart::count_callers(&limit.key) && !limit.dry_run
    });
    shown
}

// === impl Gateway ===

impl Gateway {
    /// The use of each rate of keys, in their order; keys that share a counter with others are left out. Limits that
    /// are counted in the store are asked about there, all at once; without a session their use is unknown.
    pub async fn read_usage(
        &self,
        session: Option<&Session>,
        keys: &[CountedKey],
        now: Now,
    ) -> Vec<UsageEntry> {
        let mut answers = self.ask_usage(session, keys, now).await.into_iter();
        let mut entries = Vec::new();
        for CountedKey { limit: id, units, name, .. } in keys {
            let (limit, shared) = (&self.limits[id.0], &self.shared[id.0]);
            let rates = limit.rate_range(units.variant);
            let read = |rate| match shared {
                None => Some(read_local(limit, rate, units, now)),
                Some(_) => answers.next().flatten(),
            };
            let found: Vec<Option<WindowUsage>> = rates.clone().map(read).collect();
            let is_unused = |usage: &Option<WindowUsage>| usage.is_some_and(|usage| usage.used == 0);
            let is_with_others = match shared {
                None => rates.clone().any(|rate| limit.shares_counter(rate, &units.key, now)),
                Some(shared) => {
                    let is_full = shared.full_rate(rates.clone(), &units.key, now, false).is_some();
                    is_full && found.iter().all(is_unused)
                }
            };
            if !is_with_others {
                let entry = |(rate, usage)| {
                    UsageEntry::of(&limit.config, rate, name.clone(), usage, (now, units.anchor))
                };
                entries.extend(rates.zip(found).filter_map(entry));
            }
        }
        entries
    }

    /// The use of each rate of those keys that are counted in the store, as it says.
    async fn ask_usage(
        &self,
        session: Option<&Session>,
        keys: &[CountedKey],
        now: Now,
    ) -> Vec<Option<WindowUsage>> {
        let Some(session) = session else { return Vec::new() };
        let mut questions = Vec::new();
        for (index, CountedKey { limit, units, shared: key, .. }) in keys.iter().enumerate() {
            let Some(shared) = &self.shared[limit.0] else { continue };
            if shared.settles() {
                session.wait_settled(key).await;
            }
            for rate in self.limits[limit.0].rate_range(units.variant) {
                let mut question = StoreQuestion::new(shared, rate, *key, &Units { cost: 1, ..*units });
                // Each limit for itself: one that rejects must not hide the slots of another.
                question.item.dry_run = true;
                question.item.limit_index = u16::try_from(index).unwrap_or(u16::MAX);
                question.note_debts(session.store.debts(), now);
                if self.limits[limit.0].is_concurrency() {
                    let slot_key = shared.slot_key(rate, *key, units.key.class);
                    question.item.slot_count = session.outbox.slots.peek_slots(&slot_key, 1);
                }
                questions.push(question);
            }
        }
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        let answered = |(answer, question): (StoreAnswer, &StoreQuestion<'_>)| {
            let StoreAnswer::Answered { answer, .. } = answer else { return None };
            let limit = &self.limits[keys[usize::from(question.item.limit_index)].limit.0];
            let class = keys[usize::from(question.item.limit_index)].units.key.class;
            let by_rest = || usage_by_rest(limit, question.rate, class, answer.decision.remaining);
            let with_owed = |window: WindowUsage| {
                let used = window.used.saturating_add(question.item.owed);
                WindowUsage { used, ..window }
            };
            Some(answer.window.map_or_else(by_rest, with_owed))
        };
        answers.into_iter().zip(&questions).map(answered).collect()
    }
}

fn read_local(limit: &Limit, rate: usize, units: &Units, now: Now) -> WindowUsage {
    match limit.window_usage(rate, units, now) {
        Some(usage) => usage,
        None if limit.is_concurrency() => {
            WindowUsage { used: limit.slots_in_use(rate, &units.key), ..usage_by_rest(limit, rate, 0, 0) }
        }
        None => usage_by_rest(limit, rate, units.key.class, limit.peek_units(rate, units, now).remaining),
    }
}

/// The use of a bucket or of slots with this many units left, those in its queue included.
fn usage_by_rest(limit: &Limit, rate: usize, class: u8, left: u64) -> WindowUsage {
    let located = limit.config.locate_rate(rate);
    let quota = located.map_or(0, |(_, numbers, index)| find_quota(numbers, index).1);
    let used = limit.idle_capacity(rate, class).saturating_sub(left).min(quota);
    WindowUsage { quota, used, ..WindowUsage::default() }
}
