//! What this process admitted while the store did not answer, and has still to charge there.
//!
//! A charge may be sent again until the store acknowledges it: it has a sequence number, and the store charges each
//! number once. Until then the store judges requests of this process as if it counted what is owed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::handover::{DebtHandover, DebtsHandover, KeyDebtsHandover};
use super::shared_limit::SharedLimit;
use super::{CallItem, SharedKey, SlotCount};
use crate::base::clock::Now;
use crate::limit::Units;

/// Keys about which something is owed at most; further ones are not charged, which is counted.
const KEYS_MAX: usize = 100_000;
/// Units that one call charges, more or less: a log has an entry for each, and everybody waits for the store meanwhile.
const UNITS_MAX: u64 = 10_000;

/// The debts of one process.
pub struct Debts {
    inner: Mutex<DebtsInner>,
    /// Keys in it, so that requests need no lock while nothing is owed.
    keys: AtomicUsize,
    /// What charges are sent by: the same after a reload.
    node: AtomicU64,
    /// The store that is to be charged: the one of the configuration in force; 0 = another process charges.
    pub(super) current_store: AtomicU64,
}

#[derive(Default)]
struct DebtsInner {
    by_key: HashMap<SharedKey, KeyDebts>,
    /// Keys to be charged; no charge of them is under way.
    due: VecDeque<SharedKey>,
    sequence: u64,
}

/// What is owed about one key.
#[derive(Default)]
struct KeyDebts {
    rates: SmallVec<[Debt; 2]>,
    /// Of the last charge, as long as no answer acknowledged it; 0 = none.
    sequence: u64,
}

struct Debt {
    limit: Arc<SharedLimit>,
    rate: usize,
    units: Units,
    owed: u64,
    /// What the unacknowledged charge names.
    sent: u64,
    /// The share counted none of it when it was to be charged last.
    is_forgotten: bool,
}

/// Keys whose charge is under way; those that are left when it is dropped are charged again.
pub(super) struct ChargesInFlight<'a> {
    debts: &'a Debts,
    keys: Vec<SharedKey>,
}

/// One rate and key to charge.
pub(super) struct DebtCharge {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub key: SharedKey,
    pub cost: u64,
    pub sequence: u64,
}

// === impl Debts ===

impl Debts {
    pub(super) fn new(node: u64) -> Debts {
        Debts {
            inner: Mutex::default(),
            keys: AtomicUsize::new(0),
            node: AtomicU64::new(node),
            current_store: AtomicU64::new(0),
        }
    }

    pub(super) fn node(&self) -> u64 {
        self.node.load(Relaxed)
    }

    /// Keys about which something is owed.
    pub fn key_count(&self) -> usize {
        self.keys.load(Relaxed)
    }

    /// Notes units that were admitted here and that the store does not count.
    pub fn add_debt(&self, limit: &Arc<SharedLimit>, rate: usize, key: SharedKey, units: &Units) {
        let inner = &mut *self.inner.lock();
        if inner.by_key.len() >= KEYS_MAX && !inner.by_key.contains_key(&key) {
            return limit.count_lost();
        }
        let debts = inner.by_key.entry(key).or_insert_with(|| {
            inner.due.push_back(key);
            KeyDebts::default()
        });
        match debts.rates.iter_mut().find(|debt| debt.matches_rate(limit, rate)) {
            Some(debt) => {
                debt.owed = debt.owed.saturating_add(units.cost);
                debt.is_forgotten = false;
            }
            None => {
                let (limit, owed) = (limit.clone(), units.cost);
                debts.rates.push(Debt { limit, rate, units: *units, owed, sent: 0, is_forgotten: false });
            }
        }
        self.keys.store(inner.by_key.len(), Relaxed);
    }

    /// Units of a rate that are owed now: what was admitted and still counts.
    #[inline]
    pub fn owed_units(&self, limit: &SharedLimit, rate: usize, key: &SharedKey, now: Now) -> u64 {
        if self.key_count() == 0 {
            return 0;
        }
        let inner = self.inner.lock();
        let debt =
            inner.by_key.get(key).and_then(|debts| debts.rates.iter().find(|d| d.matches_rate(limit, rate)));
        debt.map_or(0, |debt| debt.current_amount(now))
    }

    /// At most so many keys that are to be charged, and hardly more units than one call may charge.
    /// [`Debts::under_way`] must follow.
    pub(super) fn take_due(&self, keys_max: usize, now: Now) -> Vec<DebtCharge> {
        let inner = &mut *self.inner.lock();
        let mut charges: Vec<DebtCharge> = Vec::new();
        let (mut keys, mut units) = (0, 0);
        for _ in 0..inner.due.len() {
            if keys == keys_max || units >= UNITS_MAX {
                break;
            }
            let Some(key) = inner.due.pop_front() else { break };
            let Some(debts) = inner.by_key.get_mut(&key) else { continue };
            if !debts.prepare_charge(&mut inner.sequence, now) {
                match debts.rates.is_empty() {
                    true => drop(inner.by_key.remove(&key)),
                    false => inner.due.push_back(key),
                }
                continue;
            }
            for debt in debts.rates.iter().filter(|debt| debt.sent > 0) {
                let (limit, rate, cost) = (debt.limit.clone(), debt.rate, debt.sent);
                charges.push(DebtCharge { limit, rate, key, cost, sequence: debts.sequence });
                units += cost;
            }
            keys += 1;
        }
        self.keys.store(inner.by_key.len(), Relaxed);
        charges
    }

    /// Debts of limits that a reload has replaced are from now on those of their successors.
    pub(super) fn follow_limits(&self, limits: &[&Arc<SharedLimit>]) {
        if self.key_count() == 0 {
            return;
        }
        let inner = &mut *self.inner.lock();
        for debt in inner.by_key.values_mut().flat_map(|debts| &mut debts.rates) {
            let id = debt.limit.rules[debt.rate].id;
            let found = limits.iter().find_map(|limit| Some((limit, limit.rate_of_rule(id)?)));
            if let Some((limit, rate)) = found {
                (debt.limit, debt.rate) = (Arc::clone(limit), rate);
            }
        }
    }

    /// Everything, for another process.
    pub(super) fn export_state(&self) -> DebtsHandover {
        let inner = self.inner.lock();
        let debt = |debt: &Debt| DebtHandover {
            limit: debt.limit.name().to_owned(),
            rule: debt.limit.rules[debt.rate].id,
            id: DebtHandover::split_id(debt.units.key.id),
            prefix: debt.units.key.prefix,
            variant: debt.units.variant,
            owed: debt.owed,
            sent: debt.sent,
        };
        let keys = inner.by_key.iter().map(|(key, debts)| KeyDebtsHandover {
            key: key.0,
            sequence: debts.sequence,
            rates: debts.rates.iter().map(debt).collect(),
        });
        DebtsHandover { node: self.node(), sequence: inner.sequence, keys: keys.collect() }
    }

    /// Takes over the debts of another process, as far as `limits` has what they are about.
    pub(super) fn restore_state(&self, known: &DebtsHandover, limits: &[&Arc<SharedLimit>]) {
        if known.node == 0 {
            return;
        }
        self.node.store(known.node, Relaxed);
        let inner = &mut *self.inner.lock();
        inner.sequence = known.sequence;
        for one in known.keys.iter().take(KEYS_MAX) {
            let debt = |debt: &DebtHandover| {
                let limit = limits.iter().find(|limit| limit.name() == debt.limit)?;
                let (limit, rate) = (Arc::clone(limit), limit.rate_of_rule(debt.rule)?);
                let (units, owed, sent) = (debt.to_units(), debt.owed, debt.sent);
                Some(Debt { limit, rate, units, owed, sent, is_forgotten: false })
            };
            let rates: SmallVec<[Debt; 2]> = one.rates.iter().filter_map(debt).collect();
            if !rates.is_empty() {
                let key = SharedKey(one.key);
                inner.by_key.insert(key, KeyDebts { rates, sequence: one.sequence });
                inner.due.push_back(key);
            }
        }
        self.keys.store(inner.by_key.len(), Relaxed);
    }

    /// Holds the keys of `charges` until their charge has ended.
    pub(super) fn hold_charges<'a>(&'a self, charges: &[DebtCharge]) -> ChargesInFlight<'a> {
        let mut keys: Vec<SharedKey> = charges.iter().map(|charging| charging.key).collect();
        keys.dedup();
        ChargesInFlight { debts: self, keys }
    }

    /// The store acknowledged the charge of `key`, or (`heard` is false) may not have made it.
    fn finish_charge(&self, key: &SharedKey, heard: bool) {
        let inner = &mut *self.inner.lock();
        let Some(debts) = inner.by_key.get_mut(key) else { return };
        if heard {
            debts.sequence = 0;
            debts.rates.retain(|debt| {
                debt.owed = debt.owed.saturating_sub(std::mem::take(&mut debt.sent));
                debt.owed > 0
            });
        }
        if debts.rates.is_empty() {
            inner.by_key.remove(key);
        } else {
            inner.due.push_back(*key);
        }
        self.keys.store(inner.by_key.len(), Relaxed);
    }
}

// === impl UnderWay ===

impl ChargesInFlight<'_> {
    /// The charge of a key has ended; of several rates of the key once.
    pub(super) fn finish_key(&mut self, key: &SharedKey, heard: bool) {
        if let Some(place) = self.keys.iter().position(|other| other == key) {
            self.keys.swap_remove(place);
            self.debts.finish_charge(key, heard);
        }
    }
}

impl Drop for ChargesInFlight<'_> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.debts.finish_charge(key, false));
    }
}

// === impl KeyDebts ===

impl KeyDebts {
    /// Decides what its charge names; false = nothing now.
    fn prepare_charge(&mut self, sequence: &mut u64, now: Now) -> bool {
        if self.rates.iter().any(|debt| debt.sent > 0) {
            // The store may have made that charge: it is sent as it was.
            return true;
        }
        self.rates.retain(|debt| {
            let amount = debt.current_amount(now);
            if amount > 0 {
                // What windows have forgotten meanwhile is not owed any more.
                (debt.owed, debt.sent, debt.is_forgotten) = (amount, amount, false);
                return true;
            }
            // Twice in a row: while the numbers of a share change, its counters may be misread.
            !std::mem::replace(&mut debt.is_forgotten, true)
        });
        let has_some = self.rates.iter().any(|debt| debt.sent > 0);
        if has_some {
            *sequence += 1;
            self.sequence = *sequence;
        }
        has_some
    }
}

// === impl Debt ===

impl Debt {
    fn matches_rate(&self, limit: &SharedLimit, rate: usize) -> bool {
        self.rate == rate && self.limit.rules[rate].id == limit.rules[rate].id
    }

    /// No more than the local share still counts: what a window or a refill has forgotten is not owed.
    fn current_amount(&self, now: Now) -> u64 {
        self.owed.min(self.limit.used_locally(self.rate, &self.units, now))
    }
}

// === impl Charging ===

impl DebtCharge {
    pub(super) fn to_item(&self) -> CallItem<'_> {
        let (rule, held) = (&self.limit.rules[self.rate], SlotCount::default());
        let cost = self.cost.min(rule.capacity());
        CallItem {
            rule,
            key: self.key,
            cost,
            limit_index: 0,
            dry_run: false,
            slot_count: held,
            mark: self.sequence,
            owed: 0,
        }
    }
}

#[cfg(test)]
mod tests;
