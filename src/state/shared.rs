//! One shared limit as this process knows it: how the script judges it, what the store said last, and what judges
//! while the store does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::departures::Departures;
use super::{Place, Rule, SharedKey};
use crate::clock::Now;
use crate::config::{self, OnFailure};
use crate::limit::{Decision, Limit, Outcome, Units};
use crate::table::{Entry, Key, Table};

/// A limit whose counters are in the store.
pub struct SharedLimit {
    pub on_failure: OnFailure,
    /// By rate, the rates of all variants in a row.
    pub rules: Vec<Rule>,
    /// Who waits here for a departure that the store handed out; by rate.
    pub departures: Arc<[Departures]>,
    config: config::Limit,
    index: usize,
    max_keys: usize,
    seen: Arc<[Table<Seen>]>,
    /// Nanoseconds after which nothing that was seen says anything any more; by rate.
    recovery_ns: Vec<u64>,
    fallback: Arc<Share>,
    counts: Arc<Counts>,
}

/// The local share while an outage lasts.
#[derive(Default)]
struct Share {
    now: ArcSwapOption<Fallback>,
    building: Mutex<()>,
}

/// What happened to the limit of this name.
#[derive(Default)]
struct Counts {
    /// Decisions without the store, by how: the places of [`OnFailure::WORDS`].
    instead: [AtomicU64; 3],
    /// Refusals that the store did not have to be asked for.
    spared: AtomicU64,
    /// What could not be given back.
    lost: AtomicU64,
}

/// The limit's share for one of so many gateways, counted locally during one outage.
struct Fallback {
    outage: u64,
    nodes: u64,
    /// Tells it from those before; never 0.
    generation: u32,
    limit: Arc<Limit>,
}

/// What the store said last about one key; packed so that a slot of the table is small.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
struct Seen {
    /// When it was said, ns.
    at: u64,
    /// From when on it says nothing any more.
    until: u64,
    /// Requests of at least `refused_cost` are refused until then: no refill can suffice before.
    refused_until: u64,
    refused_cost: u32,
    remaining: u32,
    /// The local counter that started from this; 0 = none.
    started: u32,
}

// === impl SharedLimit ===

impl SharedLimit {
    /// What is known of a key is forgotten when more than `max_keys` are, or when it says nothing any more.
    pub fn new(index: usize, config: &config::Limit, on_failure: OnFailure, max_keys: usize) -> SharedLimit {
        SharedLimit::after(None, index, config, on_failure, max_keys)
    }

    /// The limit that goes on where `before` does, as far as it is the same: who waits here keeps waiting in the same
    /// queues, and what the store said holds as long as no number changes. [`SharedLimit::apply`] must follow before
    /// anybody is judged by it.
    pub fn after(
        before: Option<&SharedLimit>,
        index: usize,
        config: &config::Limit,
        on_failure: OnFailure,
        max_keys: usize,
    ) -> SharedLimit {
        let rules = Rule::of(config);
        let named = before.filter(|before| before.config.name == config.name);
        let ids = |rules: &[Rule]| rules.iter().map(|rule| rule.id).collect::<Vec<u32>>();
        let same = named.filter(|before| {
            let keyed = |limit: &config::Limit| (limit.key.clone(), limit.missing_key, limit.fair_by.clone());
            ids(&before.rules) == ids(&rules) && keyed(&before.config) == keyed(config)
        });
        let unchanged = same.filter(|before| {
            let numbers = |limit: &config::Limit| (limit.algorithm.clone(), limit.tiers.clone());
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
            seen: match unchanged {
                Some(before) => before.seen.clone(),
                None => (0..of_rates).map(|_| Table::new(max_keys)).collect(),
            },
            fallback: match (unchanged, same) {
                (Some(before), _) => before.fallback.clone(),
                (None, Some(before)) => Arc::new(before.fallback.after(index, config, max_keys)),
                (None, None) => Arc::default(),
            },
            counts: named.map(|before| before.counts.clone()).unwrap_or_default(),
            recovery_ns: config.variants().flat_map(recoveries).collect(),
            rules,
            config: config.clone(),
            index,
            max_keys,
        }
    }

    /// From now on this limit's numbers count in the local share.
    pub fn apply(&self, clock: &dyn Fn() -> Now) {
        if let Some(fallback) = self.fallback.now.load_full() {
            fallback.limit.apply(clock);
        }
    }

    /// The store's refusal of such a request, if it still holds at `now`.
    pub fn refused(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        let seen = self.seen(rate, &units.key)?;
        let holds = u64::from(seen.refused_cost) <= units.cost && now.0 < seen.refused_until;
        holds.then(|| {
            let left_ns = { seen.refused_until }.saturating_sub(now.0);
            let reset_ns = if seen.remaining == 0 { left_ns } else { 0 };
            let remaining = seen.remaining.into();
            Decision { outcome: Outcome::Reject, remaining, reset_ns, retry_after_ns: left_ns, wait_ns: 0 }
        })
    }

    /// What the store said last, as if nobody had come since; `None` if that is too long ago.
    pub fn foresee(&self, rate: usize, units: &Units, now: Now) -> Option<Decision> {
        if let Some(refused) = self.refused(rate, units, now) {
            return Some(refused);
        }
        let seen = self.seen(rate, &units.key).filter(|seen| now.0 < seen.until)?;
        Some(Decision { remaining: seen.remaining.into(), ..Decision::bare(Outcome::Admit) })
    }

    fn seen(&self, rate: usize, key: &Key) -> Option<Seen> {
        self.seen.get(rate).map(|table| table.peek(key, |seen, (), ()| *seen))
    }

    /// Notes what the store answered to a question sent at `sent`: what it refuses is refused here from now on, as
    /// long as that is certain.
    pub fn note(&self, rate: usize, units: &Units, sent: Now, decision: &Decision) {
        let Some(table) = self.seen.get(rate) else { return };
        let until = sent.0.saturating_add(self.recovery_ns[rate]);
        table.update(&units.key, sent, |seen, (), (), overflows| {
            // A shared entry would hold one key's refusals against another.
            if overflows || sent.0 < seen.at {
                return;
            }
            seen.at = sent.0;
            seen.until = until;
            let remaining = decision.remaining.min(u32::MAX.into()) as u32;
            // Calls of several workers overtake each other: what was refused has not come back since.
            let is_refused = sent.0 < seen.refused_until;
            seen.remaining = if is_refused { remaining.min(seen.remaining) } else { remaining };
            seen.started = 0;
            if decision.outcome == Outcome::Reject
                && decision.retry_after_ns != u64::MAX
                && let Ok(cost) = u32::try_from(units.cost)
            {
                seen.refused_until = sent.0.saturating_add(decision.retry_after_ns);
                seen.refused_cost = cost;
                seen.until = until.max(seen.refused_until);
            }
        });
    }

    /// The limit's share for one of `nodes` gateways, to be counted locally while the `outage` lasts.
    pub fn fallback(&self, nodes: u64, outage: u64) -> Arc<Limit> {
        let known = |fallback: &Arc<Fallback>| (fallback.outage, fallback.nodes) == (outage, nodes);
        if let Some(fallback) = self.fallback.now.load_full().filter(known) {
            return fallback.limit.clone();
        }
        let _building = self.fallback.building.lock();
        let before = self.fallback.now.load_full();
        if let Some(fallback) = before.clone().filter(known) {
            return fallback.limit.clone();
        }
        let generation = before.map_or(0, |before| before.generation).wrapping_add(1).max(1);
        let limit = Arc::new(Limit::new(self.index, &self.config.share_of(nodes), self.max_keys));
        let fallback = Fallback { outage, nodes, generation, limit: limit.clone() };
        self.fallback.now.store(Some(Arc::new(fallback)));
        limit
    }

    /// Has the local counter of a key in `share` leave no more than was seen last; once for what was seen.
    pub fn seed(&self, share: &Arc<Limit>, rate: usize, units: &Units) {
        let Some(table) = self.seen.get(rate) else { return };
        let fallback = self.fallback.now.load_full().filter(|fallback| Arc::ptr_eq(&fallback.limit, share));
        let Some(Fallback { nodes, generation, .. }) = fallback.as_deref() else { return };
        let fresh = table.revisit(&units.key, false, |seen, (), ()| {
            let before = std::mem::replace(&mut seen.started, *generation);
            (seen.at > 0 && before != *generation).then_some(*seen)
        });
        if let Some(seen) = fresh.flatten() {
            seen.spend(share, rate, units, *nodes);
        }
    }

    /// The share as such a request would find it, seeded: for who only looks, as it begins nothing.
    pub fn foresee_fallback(&self, units: &Units, nodes: u64, outage: u64) -> Arc<Limit> {
        let is_known = |fallback: &Arc<Fallback>| (fallback.outage, fallback.nodes) == (outage, nodes);
        let known = self.fallback.now.load_full().filter(is_known);
        let begun = |seen: &Seen| known.as_ref().is_some_and(|known| seen.started == known.generation);
        // No entry is as good as one that was never noted.
        let unseeded = |rate: usize| self.seen(rate, &units.key).filter(|seen| seen.at > 0 && !begun(seen));
        if let Some(known) = &known
            && !known.limit.rates(units.variant).any(|rate| unseeded(rate).is_some())
        {
            return known.limit.clone();
        }
        let limit = Limit::new(self.index, &self.config.share_of(nodes), 1);
        for rate in limit.rates(units.variant) {
            if let Some(seen) = unseeded(rate) {
                seen.spend(&limit, rate, units, nodes);
            }
        }
        Arc::new(limit)
    }

    /// Counts a decision without the store.
    pub fn decided_instead(&self) {
        self.counts.instead[self.on_failure as usize].fetch_add(1, Relaxed);
    }

    /// Decisions without the store that were made so.
    pub fn instead(&self, how: OnFailure) -> u64 {
        self.counts.instead[how as usize].load(Relaxed)
    }

    /// Counts a refusal that the store was not asked for.
    pub fn spare(&self) {
        self.counts.spared.fetch_add(1, Relaxed);
    }

    pub fn spared(&self) -> u64 {
        self.counts.spared.load(Relaxed)
    }

    /// Counts something that could not be given back.
    pub fn lose(&self) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Relaxed)
    }

    /// Requests that wait for departures here.
    pub fn waiting(&self) -> usize {
        self.departures.iter().map(Departures::waiting).max().unwrap_or(0)
    }

    /// Keys about which something is known here, of the rate that has most.
    pub fn keys(&self) -> usize {
        self.seen.iter().map(Table::keys).max().unwrap_or(0)
    }

    /// Place in [`config::Config::limits`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// What the store calls the slots of a key.
    pub fn place(&self, rate: usize, key: SharedKey) -> Place {
        Place { rule: self.rules[rate].id, key }
    }

    pub fn is_dry_run(&self) -> bool {
        self.config.dry_run
    }

    /// After how long a waiter gives up, where others may be let go before it.
    pub fn gives_up_after(&self) -> Option<std::time::Duration> {
        match &self.config.algorithm {
            config::Algorithm::LeakyBucket { max_wait, .. } if !self.config.fair_by.is_empty() => *max_wait,
            _ => None,
        }
    }
}

/// How long the rates of `numbers` take at most to be as if never used, ns.
fn recoveries(numbers: &config::Algorithm) -> Vec<u64> {
    let ns = |(rate, units): (config::Rate, u64)| {
        let periods = units.div_ceil(rate.units.get()).saturating_add(1);
        u64::try_from(rate.period.as_nanos().saturating_mul(periods.into())).unwrap_or(u64::MAX)
    };
    let mut all: Vec<u64> = numbers.quotas().into_iter().map(ns).collect();
    all.resize(numbers.places(), 0);
    all
}

// === impl Share ===

impl Share {
    /// The share of a limit whose numbers have changed: it goes on counting where this one does.
    fn after(&self, index: usize, config: &config::Limit, max_keys: usize) -> Share {
        let share = Share::default();
        if let Some(before) = self.now.load_full() {
            let Fallback { outage, nodes, generation, ref limit } = *before;
            let limit = Limit::after(Some(limit), index, &config.share_of(nodes), max_keys);
            share.now.store(Some(Arc::new(Fallback { outage, nodes, generation, limit: Arc::new(limit) })));
        }
        share
    }
}

// === impl Seen ===

impl Seen {
    /// Has the counter of a key in one gateway's share leave no more than was seen.
    fn spend(self, share: &Limit, rate: usize, units: &Units, nodes: u64) {
        let (at, left) = (Now(self.at), u64::from(self.remaining).div_ceil(nodes));
        let one = Units { cost: 1, ..*units };
        let spent = share.peek(rate, &one, at).remaining.saturating_sub(left);
        if spent > 0 {
            share.spend(rate, &Units { cost: spent, ..one }, at);
        }
    }
}

impl Entry for Seen {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    fn inherit(&self) -> Option<Seen> {
        Some(Seen::default())
    }
}

#[cfg(test)]
mod tests;
