//! One shared limit as this process sees it: its rules in the script, the store's last answers, and the local share
//! that judges while the store does not answer.

mod adopt;
mod leasing;
mod reset;
mod spares;

use std::collections::HashMap;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher13;

use super::departures::Departures;
use super::fleet::Fleet;
use super::last_answer::LastAnswer;
use super::lease::LimitLeases;
use super::local_share::LocalShare;
use super::process_slots::ProcessSlots;
use super::script::rule_shape::RuleShape;
use super::slot_queue::{SharedSlotQueue, SlotTerms};
use super::{GatewayTurn, RateAnswer, RateRule, SharedKey, SlotKey};
use reset::LastReset;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_limit::steps::{StepNote, StepNotes};
use sluicegate_limit::table::persistent::SnapshotTable;
use sluicegate_limit::table::{CounterKey, Table, TableEntry};
use sluicegate_limit::{Decision, Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, LimitId, OnFailure};

/// The time that a rejection is trusted before the store is asked again; a deletion in the store is noticed after that.
const REJECTION_TRUST_NS: u64 = 1_000_000_000;

const NAMES_MAX: usize = 65_536;

/// Spreads the classes of a key over all its bits.
const CLASS_BITS: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The time that a new key keeps its place among those of the store without an answer.
const PLACE_KEPT_NS: u64 = 1_000_000_000;

/// A limit with its counters in the store.
pub struct SharedLimit {
    /// The decision while the store does not answer.
    pub on_failure: OnFailure,
    /// One rule per rate, the rates of all variants in a row.
    pub rules: Vec<RateRule>,
    /// Requests that wait here for departures that the store handed out; one entry per rate.
    pub departures: Box<[Arc<Departures>]>,
    /// The gateways that count it together.
    pub fleet: Arc<Fleet>,
    /// Slots of a concurrency limit that this process holds or asks for.
    pub(super) in_flight: Arc<ProcessSlots>,
    /// Requests that wait here for slots of a concurrency limit.
    pub slot_queue: Arc<SharedSlotQueue>,
    config: model::LimitConfig,
    id: LimitId,
    max_keys: usize,
    last_answers: Box<[Arc<Table<LastAnswer>>]>,
    /// Nanoseconds after which an answer is meaningless; one entry per rate.
    recovery_ns: Vec<u64>,
    pub(super) local_share: Arc<LocalShare>,
    /// What happened to it, counted for its name.
    pub counts: Arc<LimitCounts>,
    /// The steps that keys have reached in the store, until they are told.
    pub step_notes: Arc<StepNotes>,
    /// Names of keys that were asked about lately, where the store keeps them.
    names: Arc<Mutex<HashMap<u128, Arc<str>>>>,
    resets: Arc<LastReset>,
    /// What this process holds of its keys, if it is leased.
    pub(super) leases: Arc<LimitLeases>,
}

/// Event counters of the limit of this name.
#[derive(Default)]
pub struct LimitCounts {
    /// Decisions without the store, in the order of [`OnFailure::WORDS`].
    pub fallbacks: [AtomicU64; 3],
    /// Rejections without asking the store.
    pub cache_hits: AtomicU64,
    /// Decisions by what this process held of a lease.
    pub leased: AtomicU64,
    /// Requests that the store counts by network.
    pub overflow: AtomicU64,
    /// Lost refunds, settlements and debts.
    lost: AtomicU64,
    /// Units that responses used beyond a whole debt.
    pub overrun: AtomicU64,
}

// === impl SharedLimit ===

impl SharedLimit {
    /// A limit that forgets its last answer about a key when there are more than `max_keys` keys, or when it is
    /// meaningless.
    pub fn new(
        id: LimitId,
        config: &model::LimitConfig,
        on_failure: OnFailure,
        max_keys: usize,
    ) -> SharedLimit {
        SharedLimit::adopt_from(None, id, config, on_failure, max_keys)
    }

    /// Keeps the name of a key for questions about it; all are forgotten where there are too many.
    pub fn name_key(&self, key: &CounterKey, name: impl FnOnce() -> String) {
        if self.find_name(key).is_some() {
            return;
        }
        let (name, mut names) = (name().into(), self.names.lock());
        if names.len() >= NAMES_MAX {
            *names = HashMap::new();
        }
        names.insert(key.id, name);
    }

    /// The name of a key, if it is known.
    pub fn find_name(&self, key: &CounterKey) -> Option<Arc<str>> {
        self.names.lock().get(&key.id).cloned()
    }

    /// Counts a decision without the store.
    pub fn count_fallback(&self) {
        self.counts.fallbacks[self.on_failure as usize].fetch_add(1, Relaxed);
    }

    /// Counts a lost refund, settlement or debt.
    pub fn count_lost(&self) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    /// The number of lost refunds, settlements and debts.
    pub fn lost_count(&self) -> u64 {
        self.counts.lost.load(Relaxed)
    }

    /// Puts this limit's numbers into force in the local share. A pause lets all waiters go.
    pub fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        self.local_share.apply_numbers(clock);
        let is_paused = self.config.pause.is_some();
        self.slot_queue.is_paused.store(is_paused, Relaxed);
        self.departures.iter().for_each(|own| own.set_paused(is_paused));
        self.renew_spares();
        if is_paused {
            self.slot_queue.wake_all();
        }
    }

    /// The store's rejection of such a request, if it still holds at `now`.
    pub fn known_rejection(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        let last = self.find_last_answer(rate, &units.key)?;
        let is_trusted = now.0 < { last.rejected_until }
            .min({ last.rejected_at }.saturating_add(REJECTION_TRUST_NS))
            && self.resets.is_before(last.rejected_at);
        (is_trusted && u64::from(last.rejected_cost) <= units.cost).then(|| {
            let left_ns = { last.rejected_until }.saturating_sub(now.0);
            let reset_ns = if last.remaining == 0 { left_ns } else { 0 };
            let (remaining, full_ns) = (last.remaining.into(), { last.until }.saturating_sub(now.0));
            let rejected = Decision::without_numbers(LimitOutcome::Reject);
            let (reached, anchor) = (last.reached, units.anchor);
            Decision { reached, remaining, reset_ns, retry_after_ns: left_ns, full_ns, anchor, ..rejected }
        })
    }

    /// The store's last decision, as if no request had come since; `None` if it is too old.
    pub fn last_decision(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        if let Some(rejection) = self.known_rejection(rate, units, now) {
            return Some(rejection);
        }
        let is_known = |last: &LastAnswer| last.at > 0 && now.0 < last.until;
        let last = self.find_last_answer(rate, &units.key).filter(is_known)?;
        let (remaining, full_ns) = (last.remaining.into(), last.until - now.0);
        let (reached, anchor) = (last.reached, units.anchor);
        Some(Decision {
            reached,
            remaining,
            full_ns,
            anchor,
            ..Decision::without_numbers(LimitOutcome::Admit)
        })
    }

    /// The rate of `rates` with most keys, if this gateway may put no further key into the store: it has put there as
    /// many of the limit and period as `max_keys` allows, and `key` is none of them. Otherwise a place is kept for the
    /// answer, if the key will be `charged`.
    pub fn full_rate(&self, rates: Range<usize>, key: &CounterKey, now: Now, charged: bool) -> Option<usize> {
        // Rates are asked together: the one with the longest memory knows the keys of all.
        let rate = rates.max_by_key(|rate| self.recovery_ns[*rate])?;
        let is_beyond = self.last_answers.get(rate)?.update_entry(
            &self.answer_key(key),
            now,
            |last, (), (), overflows| {
                if charged && !overflows && last.is_idle(now) {
                    *last =
                        LastAnswer { until: now.0.saturating_add(PLACE_KEPT_NS), ..LastAnswer::default() };
                }
                overflows
            },
        );
        is_beyond.then_some(rate)
    }

    fn find_last_answer(&self, rate: usize, key: &CounterKey) -> Option<LastAnswer> {
        let key = self.answer_key(key);
        self.last_answers.get(rate).map(|table| table.peek_entry(&key, |last, (), ()| *last))
    }

    /// The key of the last answers to a key's class: answers to one class say nothing about another.
    fn answer_key(&self, key: &CounterKey) -> CounterKey {
        let class = if self.config.shares.is_some() { u128::from(key.class) } else { 0 };
        CounterKey { id: key.id ^ class.wrapping_mul(CLASS_BITS), ..*key }
    }

    /// The keys of the last answers to all classes of a key.
    fn answer_keys(&self, key: &CounterKey) -> impl Iterator<Item = CounterKey> {
        let classes = self.config.shares.as_ref().map_or(1, |shares| shares.classes.len() as u8);
        (0..classes).map(|class| self.answer_key(&CounterKey { class, ..*key }))
    }

    /// Records the store's answer to a question sent at `sent`. A rejection is repeated here from now on as long as
    /// it certainly holds, but for a second at most.
    pub fn record_answer(&self, rate: usize, units: &Units, sent: Now, answer: &RateAnswer) {
        let Some(table) = self.last_answers.get(rate) else { return };
        let decision = &answer.decision;
        let until = sent.0.saturating_add(answer.window_ns.unwrap_or(self.recovery_ns[rate]));
        table.update_entry(&self.answer_key(&units.key), sent, |last, (), (), overflows| {
            // An overflow entry would apply one key's rejections to another.
            if overflows || sent.0 < last.at {
                return;
            }
            (last.at, last.reached) = (sent.0, decision.reached);
            last.until = until;
            let remaining = decision.remaining.min(u32::MAX.into()) as u32;
            // Calls of several workers overtake each other: while a rejection holds, no units have come back since.
            let is_rejected =
                sent.0 < last.rejected_until && sent.0 < last.rejected_at.saturating_add(REJECTION_TRUST_NS);
            last.remaining = if is_rejected { remaining.min(last.remaining) } else { remaining };
            last.seeded = false;
            if decision.outcome != LimitOutcome::Reject {
                return;
            }
            // Reserved units may come back at any time.
            if decision.retry_after_ns != u64::MAX
                && !answer.has_reserved
                && let Ok(cost) = u32::try_from(units.cost)
            {
                last.rejected_until = sent.0.saturating_add(decision.retry_after_ns);
                last.rejected_at = sent.0;
                last.rejected_cost = cost;
                last.until = until.max(last.rejected_until);
            }
        });
    }

    /// Notes the steps that a call has reached first, for the key of this name.
    pub fn note_steps(&self, rate: usize, variant: usize, name: &str, answer: &RateAnswer) {
        if let Some(usage) = answer.window.filter(|_| answer.fired > 0) {
            let (name, fired) = (name.into(), answer.fired);
            self.step_notes.push(StepNote { rate, variant, name, usage, fired });
        }
    }

    /// This gateway's share of the limit. Its counters last until their windows end, however many outages there are.
    pub fn local_share(&self) -> Arc<Limit> {
        self.share_of(self.fleet.nodes())
    }

    /// The share of one of `nodes` gateways.
    pub(super) fn share_of(&self, nodes: u64) -> Arc<Limit> {
        let divided = || self.config.divide_among(nodes);
        self.local_share.limit_for(nodes, divided, (self.id, self.max_keys), &self.step_notes)
    }

    /// Slots that this process may hold for a class while the store does not answer. What is kept for other classes is
    /// not lent meanwhile.
    pub fn local_slots(&self, rate: usize, slot_key: &SlotKey) -> u64 {
        let part = self.rules[rate].capacity().div_ceil(self.fleet.nodes());
        // Slots of the process before an upgrade or restart may still be in use.
        let before = self.in_flight.held_before(slot_key);
        let others = slot_key.all_classes().filter(|other| other.class != slot_key.class).map(|other| {
            let in_use = self.in_flight.held_for(&other).saturating_add(self.in_flight.held_before(&other));
            in_use.max(self.find_share(other.class).map_or(0, |share| share.least_of(part)))
        });
        let most = self.find_share(slot_key.class).map_or(part, |share| share.most_of(part));
        most.min(part.saturating_sub(others.sum())).saturating_sub(before)
    }

    fn find_share(&self, class: u8) -> Option<&model::ShareClass> {
        self.config.shares.as_ref()?.classes.get(usize::from(class))
    }

    /// True if a request may have slots while the store does not answer. `in_process`: slots that the process holds
    /// for its class, the request's own included.
    pub fn grants_slots_locally(&self, rate: usize, slot_key: &SlotKey, in_process: u64) -> bool {
        match self.on_failure {
            OnFailure::Allow => true,
            OnFailure::Local => in_process <= self.local_slots(rate, slot_key),
            OnFailure::Reject => false,
        }
    }

    /// Slots of a key that this process holds.
    pub fn slots_held(&self, slot_key: &SlotKey) -> u64 {
        self.in_flight.held_for(slot_key)
    }

    /// The rate with this [`RateRule::id`]; of views, the one that accepts most.
    pub(super) fn rate_of_rule(&self, id: u32) -> Option<usize> {
        self.rules.iter().position(|rule| rule.id == id && rule.capacity() == rule.capacity_max)
    }

    /// The rate under which the local share and the debts count the charges of a rate: the one that accepts most of
    /// those that share its counters.
    pub(super) fn widest_rate(&self, rate: usize) -> usize {
        self.rate_of_rule(self.rules[rate].id).unwrap_or(rate)
    }

    /// The rates that share the counters of a rate, itself included.
    fn places_of(&self, rate: usize) -> impl Iterator<Item = usize> {
        let id = self.rules[rate].id;
        (0..self.rules.len()).filter(move |other| self.rules[*other].id == id)
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// The tables of last answers, for snapshots.
    pub fn saved_tables(&self) -> Vec<SnapshotTable<'_>> {
        let name = self.name();
        let tables = self.last_answers.iter().enumerate();
        let saved = tables.map(|(rate, table)| (self.fingerprint(rate), &**table));
        saved.map(|(fingerprint, table)| SnapshotTable { name, fingerprint, table }).collect()
    }

    /// The local share, if it was needed.
    pub fn existing_share(&self) -> Option<Arc<Limit>> {
        self.local_share.current_limit()
    }

    /// The fingerprint of a rate's last answers; it differs from that of its counters.
    fn fingerprint(&self, rate: usize) -> u64 {
        let mut hasher = SipHasher13::new();
        let (key, missing, numbers) =
            (&self.config.key, self.config.missing_key, self.rules[rate].encode_numbers());
        hasher.write(format!("seen {key:?} {missing:?} {numbers:?}").as_bytes());
        hasher.finish()
    }

    /// The local share, if gateways disagree about the numbers and the share would not reject such a request; charges
    /// nothing. While they disagree, another gateway may leave nothing to this one, so the share decides instead of the
    /// store.
    pub fn admitting_share(&self, units: &Units, now: Now) -> Option<Arc<Limit>> {
        // Slots are not rates: the store alone decides about them.
        // Leases on other numbers are counted apart.
        if !self.fleet.differs()
            || self.last_answers.is_empty()
            || self.rules.iter().any(|rule| rule.leases.is_some())
        {
            return None;
        }
        let share = self.local_share();
        let units = share.cap_units(*units);
        let accepts = |rate| share.peek_units(rate, &units, now).outcome != LimitOutcome::Reject;
        share.rate_range(units.variant).all(accepts).then_some(share)
    }

    /// Counts units that the store admitted against this gateway's own share, while gateways disagree about the
    /// numbers.
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

    /// True if responses settle the charges of the limit.
    pub fn settles(&self) -> bool {
        self.config.charge.is_some()
    }

    /// Seeds the local share with the last answer about a key, once per answer: it then leaves no more than the store
    /// did.
    pub fn seed_share(&self, share: &Limit, rate: usize, units: &Units) {
        for rate in self.places_of(rate) {
            let Some(table) = self.last_answers.get(rate) else { return };
            let fresh = table.update_existing(&self.answer_key(&units.key), false, |last, (), ()| {
                let is_seeded = std::mem::replace(&mut last.seeded, true);
                (last.at > 0 && !is_seeded).then_some(*last)
            });
            if let Some(last) = fresh.flatten() {
                self.spend_last_answer(last, share, rate, units);
            }
        }
    }

    fn spend_last_answer(&self, last: LastAnswer, share: &Limit, rate: usize, units: &Units) {
        let nodes = self.fleet.nodes();
        // A fixed window has the same end here as in the store.
        let began = self.rules[rate].window_ns().map(|period| { last.until }.saturating_sub(period));
        let at = Now(began.unwrap_or(last.at));
        let one = Units { cost: 1, ..*units };
        let left = u64::from(last.remaining).div_ceil(nodes);
        let spent = share.peek_units(rate, &one, at).remaining.saturating_sub(left);
        if spent > 0 {
            share.spend_units(rate, &Units { cost: spent, ..one }, at);
        }
    }

    /// The share as such a request would find it, seeded, but without changing it; for `explain`.
    pub fn preview_share(&self, units: &Units) -> Arc<Limit> {
        let unseeded =
            |rate: usize| self.find_last_answer(rate, &units.key).filter(|last| last.at > 0 && !last.seeded);
        let share = self.local_share();
        let mut places = share.rate_range(units.variant).flat_map(|rate| self.places_of(rate));
        if !places.any(|rate| unseeded(rate).is_some()) {
            return share;
        }
        let nodes = self.fleet.nodes();
        let limit = Limit::new(self.id, &self.config.divide_among(nodes), 1);
        for rate in limit.rate_range(units.variant) {
            let (now, one, widest) = (Now::read_clock(), Units { cost: 1, ..*units }, self.widest_rate(rate));
            let used = limit
                .peek_units(widest, &one, now)
                .remaining
                .saturating_sub(share.peek_units(widest, &one, now).remaining);
            if used > 0 {
                limit.spend_units(widest, &Units { cost: used, ..one }, now);
            }
            for rate in self.places_of(rate) {
                if let Some(last) = unseeded(rate) {
                    self.spend_last_answer(last, &limit, rate, units);
                }
            }
        }
        Arc::new(limit)
    }

    /// The number of requests that wait here for departures or slots.
    pub fn waiting_count(&self) -> usize {
        let departures = self.departures.iter().map(|own| own.waiting_count()).max().unwrap_or(0);
        departures + self.slot_queue.waiting_count()
    }

    /// The terms of waiting for the slots of a rate; `None` = none waits.
    pub fn slot_terms(&self, rate: usize) -> Option<SlotTerms<'_>> {
        let (_, numbers, _) = self.config.locate_rate(rate).filter(|_| !self.config.dry_run)?;
        let model::Algorithm::Concurrency { queue: queue @ 1.., max_wait, .. } = numbers else { return None };
        let is_fair = !self.config.fair_by.is_empty();
        let shares = self.config.shares.as_deref();
        Some(SlotTerms { queue: *queue, max_wait_ns: max_wait.map(duration_ns), is_fair, shares })
    }

    /// The turn of a request that does not wait for slots of a rate yet; `None` = none ever waits.
    pub fn newcomer_turn(&self, rate: usize, gateway: u64) -> Option<GatewayTurn> {
        let has_slots = matches!(self.rules[rate].shape, RuleShape::Concurrency { .. });
        let newcomer = GatewayTurn { gateway, waited_us: Some(0), poll_us: 0, waiting: 0 };
        (has_slots && self.slot_terms(rate).is_some()).then_some(newcomer)
    }

    /// The number of keys with a last answer, for the rate that has most.
    pub fn keys(&self) -> usize {
        self.last_answers.iter().map(|table| table.key_count()).max().unwrap_or(0)
    }

    /// Index in [`model::Config::limits`].
    pub fn id(&self) -> LimitId {
        self.id
    }

    /// The name of the slots of a key's class in the store.
    pub fn slot_key(&self, rate: usize, key: SharedKey, class: u8) -> SlotKey {
        let class = self.config.shares.as_ref().map_or(SlotKey::NO_CLASS, |shares| shares.index(class) as u8);
        SlotKey { rule: self.rules[rate].id, key, class }
    }

    /// Slots of a key may be free, for any of its classes.
    pub(super) fn note_freed_slots(&self, slot_key: &SlotKey) {
        match self.config.shares {
            Some(_) => slot_key.all_classes().for_each(|own| self.slot_queue.note_freed(&own)),
            None => self.slot_queue.note_freed(slot_key),
        }
    }

    /// True if the limit only counts and never acts; also for requests of before a pause.
    pub fn is_dry_run(&self) -> bool {
        self.config.dry_run || self.is_paused()
    }

    /// True while an operator has paused the limit.
    pub fn is_paused(&self) -> bool {
        self.slot_queue.is_paused.load(Relaxed)
    }

    /// The shares of its classes.
    pub fn shares(&self) -> Option<&Arc<model::Shares>> {
        self.config.shares.as_ref()
    }

    /// The time after which a waiter gives up, where others may overtake it.
    pub fn max_queue_wait(&self) -> Option<std::time::Duration> {
        match &self.config.algorithm {
            model::Algorithm::LeakyBucket { max_wait, .. }
                if !self.config.fair_by.is_empty() || self.config.shares.is_some() =>
            {
                *max_wait
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
