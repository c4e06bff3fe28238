//! One shared limit as this process knows it: how the script judges it, what the store said last, and what judges
//! while the store does not.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use super::departures::Departures;
use super::fleet::Fleet;
use super::last_answer::LastAnswer;
use super::local_share::LocalShare;
use super::slots::ProcessSlots;
use super::{RateAnswer, RateRule, SharedKey, SlotKey};
use crate::base::clock::Now;
use crate::config::LimitId;
use crate::config::{self, OnFailure};
use crate::limit::table::persistent::SnapshotTable;
use crate::limit::table::{CounterKey, Table};
use crate::limit::{Decision, Limit, LimitOutcome, Units};

/// For as long a refusal is believed before the store is asked again: what was deleted there is known here then.
const REJECTION_TRUST_NS: u64 = 1_000_000_000;

/// A limit whose counters are in the store.
pub struct SharedLimit {
    pub on_failure: OnFailure,
    /// By rate, the rates of all variants in a row.
    pub rules: Vec<RateRule>,
    /// Who waits here for a departure that the store handed out; by rate.
    pub departures: Arc<[Departures]>,
    /// The gateways that count it together.
    pub fleet: Arc<Fleet>,
    /// Slots that this process holds, and asks for, of a concurrency limit.
    pub(super) in_flight: Arc<ProcessSlots>,
    config: config::LimitConfig,
    id: LimitId,
    max_keys: usize,
    last_answers: Arc<[Table<LastAnswer>]>,
    /// Nanoseconds after which nothing that was seen says anything any more; by rate.
    recovery_ns: Vec<u64>,
    local_share: Arc<LocalShare>,
    counts: Arc<LimitCounts>,
}

/// What happened to the limit of this name.
#[derive(Default)]
struct LimitCounts {
    /// Decisions without the store, by how: the places of [`OnFailure::WORDS`].
    fallbacks: [AtomicU64; 3],
    /// Refusals that the store did not have to be asked for.
    spared: AtomicU64,
    /// What could not be given back.
    lost: AtomicU64,
}

// === impl SharedLimit ===

impl SharedLimit {
    /// What is known of a key is forgotten when more than `max_keys` are, or when it says nothing any more.
    pub fn new(
        id: LimitId,
        config: &config::LimitConfig,
        on_failure: OnFailure,
        max_keys: usize,
    ) -> SharedLimit {
        SharedLimit::adopt_from(None, id, config, on_failure, max_keys)
    }

    /// The limit that goes on where `before` does, as far as it is the same: who waits here keeps waiting in the same
    /// queues, and what the store said holds as long as no number changes. [`SharedLimit::apply`] must follow before
    /// anybody is judged by it.
    pub fn adopt_from(
        before: Option<&SharedLimit>,
        id: LimitId,
        config: &config::LimitConfig,
        on_failure: OnFailure,
        max_keys: usize,
    ) -> SharedLimit {
        let rules = RateRule::rules_of(config);
        let named = before.filter(|before| before.config.name == config.name);
        let ids = |rules: &[RateRule]| rules.iter().map(|rule| rule.id).collect::<Vec<u32>>();
        let same = named.filter(|before| {
            let keyed =
                |limit: &config::LimitConfig| (limit.key.clone(), limit.missing_key, limit.fair_by.clone());
            ids(&before.rules) == ids(&rules) && keyed(&before.config) == keyed(config)
        });
        let unchanged = same.filter(|before| {
            let numbers = |limit: &config::LimitConfig| (limit.algorithm.clone(), limit.tiers.clone());
            numbers(&before.config) == numbers(config)
                && before.config.dry_run == config.dry_run
                && before.max_keys == max_keys
        });
        let is_concurrency = matches!(config.algorithm, config::Algorithm::Concurrency { .. });
        let of_rates = if is_concurrency { 0 } else { rules.len() };
        SharedLimit {
            on_failure,
            departures: match same {
                Some(before) => before.departures.clone(),
                None => rules.iter().map(|_| Departures::default()).collect(),
            },
            last_answers: match unchanged {
                Some(before) => before.last_answers.clone(),
                None => (0..of_rates).map(|_| Table::new(max_keys)).collect(),
            },
            local_share: match (unchanged, same) {
                (Some(before), _) => before.local_share.clone(),
                (None, Some(before)) => Arc::new(before.local_share.adopt_numbers(id, config, max_keys)),
                (None, None) => Arc::default(),
            },
            // Slots are known by rule and key, whatever else changes.
            in_flight: named.map(|before| before.in_flight.clone()).unwrap_or_default(),
            fleet: Fleet::adopt_from(named.map(|before| &before.fleet), config, &rules),
            counts: named.map(|before| before.counts.clone()).unwrap_or_default(),
            recovery_ns: config.algorithm_variants().flat_map(recovery_times).collect(),
            rules,
            config: config.clone(),
            id,
            max_keys,
        }
    }

    /// From now on this limit's numbers count in the local share.
    pub fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        self.local_share.apply_numbers(clock);
    }

    /// The store's refusal of such a request, if it still holds at `now`.
    pub fn known_rejection(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        let seen = self.find_last_answer(rate, &units.key)?;
        let is_believed =
            now.0 < { seen.rejected_until }.min({ seen.rejected_at }.saturating_add(REJECTION_TRUST_NS));
        (is_believed && u64::from(seen.rejected_cost) <= units.cost).then(|| {
            let left_ns = { seen.rejected_until }.saturating_sub(now.0);
            let reset_ns = if seen.remaining == 0 { left_ns } else { 0 };
            let remaining = seen.remaining.into();
            Decision {
                outcome: LimitOutcome::Reject,
                remaining,
                reset_ns,
                retry_after_ns: left_ns,
                wait_ns: 0,
            }
        })
    }

    /// What the store said last, as if nobody had come since; `None` if that is too long ago.
    pub fn last_decision(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        if let Some(refused) = self.known_rejection(rate, units, now) {
            return Some(refused);
        }
        let seen = self.find_last_answer(rate, &units.key).filter(|seen| now.0 < seen.until)?;
        Some(Decision { remaining: seen.remaining.into(), ..Decision::without_numbers(LimitOutcome::Admit) })
    }

    fn find_last_answer(&self, rate: usize, key: &CounterKey) -> Option<LastAnswer> {
        self.last_answers.get(rate).map(|table| table.peek_entry(key, |seen, (), ()| *seen))
    }

    /// Notes what the store answered to a question sent at `sent`: what it refuses is refused here from now on, as
    /// long as that is certain, but for a second at most.
    pub fn record_answer(&self, rate: usize, units: &Units, sent: Now, answer: &RateAnswer) {
        let Some(table) = self.last_answers.get(rate) else { return };
        let decision = &answer.decision;
        let until = sent.0.saturating_add(answer.window_ns.unwrap_or(self.recovery_ns[rate]));
        table.update_entry(&units.key, sent, |seen, (), (), overflows| {
            // A shared entry would hold one key's refusals against another.
            if overflows || sent.0 < seen.at {
                return;
            }
            seen.at = sent.0;
            seen.until = until;
            let remaining = decision.remaining.min(u32::MAX.into()) as u32;
            // Calls of several workers overtake each other: what was refused has not come back since.
            let is_refused =
                sent.0 < seen.rejected_until && sent.0 < seen.rejected_at.saturating_add(REJECTION_TRUST_NS);
            seen.remaining = if is_refused { remaining.min(seen.remaining) } else { remaining };
            seen.seeded = false;
            if decision.outcome != LimitOutcome::Reject {
                return;
            }
            if decision.retry_after_ns != u64::MAX
                && let Ok(cost) = u32::try_from(units.cost)
            {
                seen.rejected_until = sent.0.saturating_add(decision.retry_after_ns);
                seen.rejected_at = sent.0;
                seen.rejected_cost = cost;
                seen.until = until.max(seen.rejected_until);
            }
        });
    }

    /// This gateway's share of the limit. Its counters last until their windows end, however many outages there are.
    pub fn local_share(&self) -> Arc<Limit> {
        self.share_of(self.fleet.nodes())
    }

    /// The share of one of `nodes` gateways.
    pub(super) fn share_of(&self, nodes: u64) -> Arc<Limit> {
        self.local_share.limit_for(nodes, || self.config.divide_among(nodes), self.id, self.max_keys)
    }

    /// The gateways that the share is divided by, if it was needed.
    pub(super) fn share_nodes(&self) -> Option<u64> {
        self.local_share.nodes()
    }

    /// Slots that this gateway may hold while the store does not answer.
    pub fn local_slots(&self, rate: usize) -> u64 {
        self.rules[rate].capacity().div_ceil(self.fleet.nodes())
    }

    /// Whether a request may have slots while the store does not answer; `in_process`: those that the process holds,
    /// its own included.
    pub fn admits_locally(&self, rate: usize, key: SharedKey, in_process: u64) -> bool {
        match self.on_failure {
            OnFailure::Allow => true,
            OnFailure::Local => {
                let before = self.in_flight.held_before(&self.slot_key(rate, key));
                in_process.saturating_add(before) <= self.local_slots(rate)
            }
            OnFailure::Reject => false,
        }
    }

    /// Slots that this process holds.
    pub fn slots_held(&self, place: &SlotKey) -> u64 {
        self.in_flight.held_for(place)
    }

    /// The rate with this [`Rule::id`].
    pub(super) fn rate_of_rule(&self, id: u32) -> Option<usize> {
        self.rules.iter().position(|rule| rule.id == id)
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// The tables of what was seen.
    pub fn saved_tables(&self) -> Vec<SnapshotTable<'_>> {
        let name = self.config.name.as_str();
        let seen = self.last_answers.iter().enumerate();
        seen.map(|(rate, table)| SnapshotTable { name, fingerprint: self.fingerprint(rate), table }).collect()
    }

    /// The local share, if it was needed.
    pub fn existing_share(&self) -> Option<Arc<Limit>> {
        self.local_share.current_limit()
    }

    /// Of what was seen of a rate: another than those of counters.
    fn fingerprint(&self, rate: usize) -> u64 {
        let mut hasher = SipHasher13::new();
        let (key, missing, numbers) =
            (&self.config.key, self.config.missing_key, self.rules[rate].encode_numbers());
        hasher.write(format!("seen {key:?} {missing:?} {numbers:?}").as_bytes());
        hasher.finish()
    }

    /// While other gateways count by other numbers, one of them may leave nothing to this one: it may use its own part
    /// then, whatever the store says. Answers that part if it accepts such a request.
    pub fn admitting_share(&self, units: &Units, now: Now) -> Option<Arc<Limit>> {
        // Slots are not rates: what this process may hold of them is up to the store.
        if !self.fleet.differs() || self.last_answers.is_empty() {
            return None;
        }
        let share = self.local_share();
        let units = share.cap_units(*units);
        let accepts = |rate| share.peek_units(rate, &units, now).outcome != LimitOutcome::Reject;
        share.rate_range(units.variant).all(accepts).then_some(share)
    }

    /// Counts what the store admitted against this gateway's own part, as long as that matters.
    #[inline]
    pub fn count_in_share(&self, rate: usize, units: &Units, now: Now) {
        if !self.fleet.differs() {
            return;
        }
        let (share, one) = (self.local_share(), Units { cost: 1, ..*units });
        let cost = units.cost.min(share.peek_units(rate, &one, now).remaining);
        if cost > 0 {
            share.spend_units(rate, &Units { cost, ..one }, now);
        }
    }

    /// Units of a key that the local share counts now, those included that it learned of from the store.
    pub(super) fn used_locally(&self, rate: usize, units: &Units, now: Now) -> u64 {
        self.local_share.used_units(rate, units, now)
    }

    /// Has the local counter of a key leave no more than was seen last; once for what was seen.
    pub fn seed_share(&self, share: &Limit, rate: usize, units: &Units) {
        let Some(table) = self.last_answers.get(rate) else { return };
        let fresh = table.update_existing(&units.key, false, |seen, (), ()| {
            let is_seeded = std::mem::replace(&mut seen.seeded, true);
            (seen.at > 0 && !is_seeded).then_some(*seen)
        });
        if let Some(seen) = fresh.flatten() {
            self.spend_last_answer(seen, share, rate, units);
        }
    }

    fn spend_last_answer(&self, seen: LastAnswer, share: &Limit, rate: usize, units: &Units) {
        let nodes = self.fleet.nodes();
        // A fixed window has the same end here as in the store.
        let began = self.rules[rate].window_ns().map(|period| { seen.until }.saturating_sub(period));
        let at = Now(began.unwrap_or(seen.at));
        let one = Units { cost: 1, ..*units };
        let left = u64::from(seen.remaining).div_ceil(nodes);
        let spent = share.peek_units(rate, &one, at).remaining.saturating_sub(left);
        if spent > 0 {
            share.spend_units(rate, &Units { cost: spent, ..one }, at);
        }
    }

    /// The share as such a request would find it, seeded: for `explain`, which only looks.
    pub fn preview_share(&self, units: &Units) -> Arc<Limit> {
        let unseeded =
            |rate: usize| self.find_last_answer(rate, &units.key).filter(|seen| seen.at > 0 && !seen.seeded);
        let share = self.local_share();
        if !share.rate_range(units.variant).any(|rate| unseeded(rate).is_some()) {
            return share;
        }
        let nodes = self.fleet.nodes();
        let limit = Limit::new(self.id, &self.config.divide_among(nodes), 1);
        for rate in limit.rate_range(units.variant) {
            let (now, one) = (Now::read_clock(), Units { cost: 1, ..*units });
            let used = limit
                .peek_units(rate, &one, now)
                .remaining
                .saturating_sub(share.peek_units(rate, &one, now).remaining);
            if used > 0 {
                limit.spend_units(rate, &Units { cost: used, ..one }, now);
            }
            if let Some(seen) = unseeded(rate) {
                self.spend_last_answer(seen, &limit, rate, units);
            }
        }
        Arc::new(limit)
    }

    /// Counts a decision without the store.
    pub fn count_fallback(&self) {
        self.counts.fallbacks[self.on_failure as usize].fetch_add(1, Relaxed);
    }

    /// Decisions without the store that were made so.
    pub fn fallback_count(&self, how: OnFailure) -> u64 {
        self.counts.fallbacks[how as usize].load(Relaxed)
    }

    /// Counts a refusal that the store was not asked for.
    pub fn count_spared(&self) {
        self.counts.spared.fetch_add(1, Relaxed);
    }

    pub fn spared_count(&self) -> u64 {
        self.counts.spared.load(Relaxed)
    }

    /// Counts something that could not be given back.
    pub fn count_lost(&self) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    pub fn lost_count(&self) -> u64 {
        self.counts.lost.load(Relaxed)
    }

    /// Requests that wait for departures here.
    pub fn waiting_count(&self) -> usize {
        self.departures.iter().map(Departures::waiting_count).max().unwrap_or(0)
    }

    /// Keys about which something is known here, of the rate that has most.
    pub fn keys(&self) -> usize {
        self.last_answers.iter().map(Table::key_count).max().unwrap_or(0)
    }

    /// Place in [`config::Config::limits`].
    pub fn id(&self) -> LimitId {
        self.id
    }

    /// What the store calls the slots of a key.
    pub fn slot_key(&self, rate: usize, key: SharedKey) -> SlotKey {
        SlotKey { rule: self.rules[rate].id, key }
    }

    pub fn is_dry_run(&self) -> bool {
        self.config.dry_run
    }

    /// After how long a waiter gives up, where others may be let go before it.
    pub fn max_queue_wait(&self) -> Option<std::time::Duration> {
        match &self.config.algorithm {
            config::Algorithm::LeakyBucket { max_wait, .. } if !self.config.fair_by.is_empty() => *max_wait,
            _ => None,
        }
    }
}

/// How long the rates of `numbers` take at most to be as if never used, ns.
fn recovery_times(numbers: &config::Algorithm) -> Vec<u64> {
    let ns = |(rate, units): (config::Rate, u64)| {
        let periods = units.div_ceil(rate.units.get()).saturating_add(1);
        u64::try_from(rate.period.as_nanos().saturating_mul(periods.into())).unwrap_or(u64::MAX)
    };
    let mut all: Vec<u64> = numbers.rate_quotas().into_iter().map(ns).collect();
    all.resize(numbers.rate_count(), 0);
    all
}

#[cfg(test)]
mod tests;
