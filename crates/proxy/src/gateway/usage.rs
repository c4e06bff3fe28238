//! What keys have used of their limits, and what is left: for callers, operators and events.

use std::net::IpAddr;
use std::num::NonZeroU64;

use serde::{Serialize, Serializer};

use super::Gateway;
use crate::reject::{rate_text, rate_texts};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::{JsonShape, JsonShaped, json_object};
use sluicegate_http::request::key::{KeyInput, KeyOutcome, LimitKeys, hash_shared};
use sluicegate_limit::steps::{KEY_NAME_MAX, WindowUsage};
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    Algorithm, Amount, ChargedUnits, Config, Cost, KeyPart, LimitConfig, LimitId, LlmWeights, MissingKey,
    QuotaStep, Rate,
};
use sluicegate_store::{RateAnswer, ScriptOp, Session, SharedKey, SlotCount, StoreAnswer, StoreQuestion};

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
        pub left: Option<Decimal> = "The quota without the used units; below zero if these are more.",
        pub begins: Option<String> = "The beginning of the calendar's window, with the offset of its zone.",
        pub ends: Option<String> = "Its end.",
        pub step: Option<UsageStep> = "The last step that is reached.",
    }

    /// A step of a limit.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct UsageStep as "UsageStep" {
        pub at: Decimal = "The percentage of the quota.",
        pub then: &'static str = "What happens from there on." in ["warn", "slow", "reject"],
    }
}

/// A number of millionths or of another part, without a point if it is whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decimal {
    /// The parts.
    pub parts: i64,
    /// The parts of a whole.
    pub of: u32,
}

/// A limit that callers are told of, with the form of its keys.
pub struct ShownLimit {
    id: LimitId,
    keys: LimitKeys,
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

// === impl Decimal ===

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.parts % i64::from(self.of) {
            0 => serializer.serialize_i64(self.parts / i64::from(self.of)),
            _ => serializer.serialize_f64(self.parts as f64 / f64::from(self.of)),
        }
    }
}

impl JsonShaped for Decimal {
    const SHAPE: JsonShape = JsonShape::Number;
}

// === impl UsageStep ===

impl UsageStep {
    /// A step as it is shown.
    pub fn of(step: &QuotaStep) -> UsageStep {
        let parts = i64::try_from(step.at).unwrap_or(i64::MAX);
        UsageStep { at: Decimal { parts, of: 10_000 }, then: step.then.as_str() }
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
        let numbers_own = find_quota(numbers, index);
        let quota = usage.map_or(numbers_own.1, |usage| usage.quota);
        let text = match numbers_own.0 {
            // The number that judged the key last: that of its tier, or of a grant.
            Some(own) if usage.is_some_and(|usage| usage.ends > 0) => {
                rate_text(config, &Rate { units: NonZeroU64::new(quota).unwrap_or(own.units), ..own })
            }
            Some(own) => rate_text(config, &own),
            None => rate_texts(config, numbers).pop()?,
        };
        let calendar = config.calendar.as_ref();
        let unit = numbers_own.0.and_then(|own| own.calendar);
        let window = match (usage, unit.zip(calendar)) {
            (Some(usage), Some(_)) => Some((usage.begins, usage.ends)),
            (None, Some((unit, calendar))) => {
                let window = calendar.window_at(unit, now.to_unix_ns() / 1_000_000_000, anchor);
                Some((window.begins, window.ends))
            }
            (_, None) => None,
        };
        let show = |at: u64| calendar.map(|calendar| calendar.show_moment(at).1);
        let steps = numbers_own.0.as_ref().map_or(&[][..], |own| config.steps_of(own));
        let step = usage.and_then(|usage| steps.get(usage.reached.checked_ilog2()? as usize));
        let is_reserve_known = usage.is_some_and(|usage| usage.ends > 0) || config.charge.is_none();
        let of = if config.currency().is_some() { 1_000_000 } else { 1 };
        let left = |usage: WindowUsage| i64::try_from(i128::from(usage.quota) - i128::from(usage.used));
        Some(UsageEntry {
            limit: config.name.clone(),
            key,
            rate: text,
            unit: name_unit(config),
            quota: config.amount(quota),
            used: usage.map(|usage| config.amount(usage.used)),
            reserved: usage.filter(|_| is_reserve_known).map(|usage| config.amount(usage.reserved)),
            left: usage.map(|usage| Decimal { parts: left(usage).unwrap_or(i64::MAX), of }),
            begins: window.and_then(|window| show(window.0)),
            ends: window.and_then(|window| show(window.1)),
            step: step.map(UsageStep::of),
        })
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

/// The use of a bucket or of slots with this many units left, those in its queue included.
fn usage_by_rest(limit: &Limit, rate: usize, left: u64) -> WindowUsage {
    let located = limit.config.locate_rate(rate);
    let quota = located.map_or(0, |(_, numbers, index)| find_quota(numbers, index).1);
    let in_queue = limit.idle_capacity(rate).saturating_sub(quota);
    WindowUsage { quota, used: quota.saturating_sub(left.saturating_sub(in_queue)), ..WindowUsage::default() }
}

// === impl ShownLimit ===

impl ShownLimit {
    /// The limits that tell each caller apart, or those of them that are `listed`; in the order of the file.
    pub(super) fn all_of(config: &Config, listed: Option<&[LimitId]>) -> Box<[ShownLimit]> {
        let limits = config.declared_limits().into_iter();
        let is_shown = |id: &LimitId| {
            let limit = &config.limits[*id];
            KeyPart::count_callers(&limit.key)
                && !limit.dry_run
                && listed.is_none_or(|listed| listed.contains(id))
        };
        let shown = |id| ShownLimit { id, keys: LimitKeys::from_limit(&config.limits[id]) };
        limits.filter(is_shown).map(shown).collect()
    }

    /// The key of a caller; `None` = the limit leaves it out, or counts it together with others.
    pub fn find_key(
        &self,
        gateway: &Gateway,
        (subject, client): (&KeyInput<'_>, IpAddr),
        now: Now,
    ) -> Option<CountedKey> {
        let limit = &gateway.limits[self.id.0];
        let config = &limit.config;
        if limit.bypass.contain_ip(client) {
            return None;
        }
        let variant = config.variant_at(0, Some(subject.tier))?;
        let is_missing = subject.account.is_none() && config.key.contains(&KeyPart::Account);
        if is_missing && config.missing_key == MissingKey::Shared {
            return None;
        }
        let spec = &self.keys.count_key;
        let KeyOutcome::Key(key) = gateway.keys.hash_key(spec, subject) else { return None };
        let shared = hash_shared(spec, subject)?;
        if self.keys.enforced.is_some_and(|share| !share.contains(shared)) {
            return None;
        }
        let id = if config.shared.is_some() { u128::from_le_bytes(shared) } else { key.id };
        let variant = limit.granted_variant(id, now).unwrap_or(variant);
        let anchor = config.anchor_of(subject.account);
        let units = Units { key, cost: 1, variant, fair_hash: 0, unenforced: false, anchor };
        let name = gateway.key_naming().render_full(spec, subject, key.id, KEY_NAME_MAX);
        Some(CountedKey { limit: self.id, units, shared: SharedKey(shared), name })
    }
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
        let answers = match session {
            Some(session) => self.ask_usage(session, keys, now).await,
            None => Vec::new(),
        };
        let (mut answers, mut entries) = (answers.into_iter(), Vec::new());
        for counted in keys {
            let CountedKey { limit, units, name, .. } = counted;
            let (id, limit) = (limit.0, &self.limits[limit.0]);
            let rates = limit.rate_range(units.variant);
            let found: Vec<Option<WindowUsage>> = match &self.shared[id] {
                None if rates.clone().any(|rate| limit.shares_counter(rate, &units.key, now)) => continue,
                None => rates.clone().map(|rate| Some(read_local(limit, rate, units, now))).collect(),
                Some(shared) => {
                    let own: Vec<Option<RateAnswer>> =
                        rates.clone().map(|_| answers.next().flatten()).collect();
                    let is_full = shared.full_rate(rates.clone(), &units.key, now, false).is_some();
                    let is_new =
                        |answer: &Option<RateAnswer>| answer.is_some_and(|one| one.decision.full_ns == 0);
                    if is_full && own.iter().all(is_new) {
                        continue;
                    }
                    let read = |(rate, answer): (usize, Option<RateAnswer>)| {
                        answer.map(|answer| {
                            let by_rest = || usage_by_rest(limit, rate, answer.decision.remaining);
                            answer.window.unwrap_or_else(by_rest)
                        })
                    };
                    rates.clone().zip(own).map(read).collect()
                }
            };
            let entry =
                |(rate, usage)| UsageEntry::of(&limit.config, rate, name.clone(), usage, (now, units.anchor));
            entries.extend(rates.zip(found).filter_map(entry));
        }
        entries
    }

    /// The answers of the store about each rate of those keys that are counted there.
    async fn ask_usage(&self, session: &Session, keys: &[CountedKey], now: Now) -> Vec<Option<RateAnswer>> {
        let mut questions = Vec::new();
        for (index, CountedKey { limit, units, shared: key, .. }) in keys.iter().enumerate() {
            let Some(shared) = &self.shared[limit.0] else { continue };
            if shared.settles() {
                session.wait_settled(key).await;
            }
            for rate in self.limits[limit.0].rate_range(units.variant) {
                let mut question = StoreQuestion::new(shared, rate, *key, 1);
                // Each limit for itself: one that rejects must not hide the slots of another.
                question.item.dry_run = true;
                question.item.anchor = units.anchor;
                question.item.limit_index = u16::try_from(index).unwrap_or(u16::MAX);
                question.item.owed = session.store.debts().owed_units(shared, rate, key, now);
                if self.limits[limit.0].is_concurrency() {
                    let held = session.outbox.slots.held_for(&shared.slot_key(rate, *key));
                    let slots = held.saturating_add(1);
                    question.item.slot_count = SlotCount { slots, ..SlotCount::default() };
                }
                questions.push(question);
            }
        }
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        let answered = |(answer, question): (StoreAnswer, &StoreQuestion<'_>)| match answer {
            StoreAnswer::Answered { answer, .. } => {
                let with_owed = |window: WindowUsage| {
                    let used = window.used.saturating_add(question.item.owed);
                    WindowUsage { used, ..window }
                };
                Some(RateAnswer { window: answer.window.map(with_owed), ..answer })
            }
            StoreAnswer::Failed(_) | StoreAnswer::Full => None,
        };
        answers.into_iter().zip(&questions).map(answered).collect()
    }
}

fn read_local(limit: &Limit, rate: usize, units: &Units, now: Now) -> WindowUsage {
    if let Some(usage) = limit.window_usage(rate, units, now) {
        return usage;
    }
    if !limit.is_concurrency() {
        return usage_by_rest(limit, rate, limit.peek_units(rate, units, now).remaining);
    }
    let used = limit.slots_in_use(rate, &units.key);
    let all = limit.config.locate_rate(rate).map_or(0, |(_, numbers, index)| find_quota(numbers, index).1);
    WindowUsage { quota: all, used, ..WindowUsage::default() }
}
