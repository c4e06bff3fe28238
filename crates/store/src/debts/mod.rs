//! Units that this process admitted while the store did not answer, and has still to charge there.
//!
//! A charge has a sequence number and may be sent again until the store acknowledges it; the store charges each
//! number once. Until then each question names the owed units, and the store judges as if it counted them.

pub(super) mod handover;
mod settle;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::SharedKey;
use super::settlements::{KeyCalls, KeysInFlight, StoreUnits};
use super::shared_limit::SharedLimit;
use sluicegate_base::clock::Now;
use sluicegate_limit::Units;

/// Maximum number of keys with debts; debts of further keys are lost, and counted as such.
const KEYS_MAX: usize = 100_000;
/// Approximate number of units per call: a log has an entry for each, and all callers wait for the store meanwhile.
const UNITS_MAX: u64 = 10_000;

/// The debts of one process.
#[derive(Default)]
pub struct Debts {
    inner: Mutex<DebtsInner>,
    /// The number of keys, so that requests need no lock while nothing is owed.
    keys: AtomicUsize,
    /// The name under which charges are sent; the same after a reload.
    node: AtomicU64,
    /// The store to charge: that of the configuration in force; 0 if another process charges.
    pub(super) current_store: AtomicU64,
}

#[derive(Default)]
struct DebtsInner {
    by_key: HashMap<SharedKey, KeyDebts>,
    /// Keys to be charged that have no charge in flight.
    due: VecDeque<SharedKey>,
    sequence: u64,
    /// Another process charges the exported debts. Later corrections by responses are up to the callers.
    is_handed_over: bool,
}

/// The debts of one key.
#[derive(Default)]
struct KeyDebts {
    rates: SmallVec<[Debt; 2]>,
    /// Sequence number of the last charge until it is acknowledged; 0 if there is none.
    sequence: u64,
    /// The store may have made that charge.
    is_doubtful: bool,
}

struct Debt {
    limit: Arc<SharedLimit>,
    rate: usize,
    units: Units,
    owed: u64,
    /// Units in the unacknowledged charge.
    sent: u64,
    /// Owed units that a response will still correct, as far as they are not in that charge.
    open: u64,
    /// Open units in that charge.
    sent_open: u64,
    /// Units in that charge that a response has corrected meanwhile: owed no longer, unless the store charges them.
    sent_unused: u64,
    /// Open units that were not exported to the successor process.
    kept: u64,
    /// The local share counted none of it when it was last to be charged.
    is_forgotten: bool,
}

// === impl Debts ===

impl Debts {
    pub(super) fn new(node: u64) -> Debts {
        Debts { node: AtomicU64::new(node), ..Debts::default() }
    }

    pub(super) fn node(&self) -> u64 {
        self.node.load(Relaxed)
    }

    /// The number of keys with debts.
    pub fn key_count(&self) -> usize {
        self.keys.load(Relaxed)
    }

    /// Units of a rate that are owed now: those that were admitted here and still count. Where the store counts by
    /// class, those of a class, and those of the others.
    pub fn owed_units(
        &self,
        limit: &SharedLimit,
        rate: usize,
        key: &SharedKey,
        class: u8,
        now: Now,
    ) -> (u64, u64) {
        let mut owed = (0_u64, 0_u64);
        if self.key_count() == 0 {
            return owed;
        }
        let rate = limit.widest_rate(rate);
        let inner = self.inner.lock();
        for debt in inner.by_key.get(key).into_iter().flat_map(|debts| &debts.rates) {
            if debt.matches_rate(limit, rate) {
                let sum = if debt.matches_class(class) { &mut owed.0 } else { &mut owed.1 };
                *sum = sum.saturating_add(debt.current_amount(now));
            }
        }
        owed
    }

    /// Charges for at most `keys_max` keys, with hardly more units than one call may charge: the last key may exceed
    /// the bound. The keys leave the queue here and return only through [`KeysInFlight`], which must hold them.
    pub(super) fn take_due(&self, keys_max: usize, now: Now) -> Vec<StoreUnits> {
        let inner = &mut *self.inner.lock();
        let mut charges: Vec<StoreUnits> = Vec::new();
        if inner.is_handed_over {
            return charges;
        }
        let (mut keys, mut units) = (0, 0);
        for _ in 0..inner.due.len() {
            if keys == keys_max || units >= UNITS_MAX {
                break;
            }
            let Some(key) = inner.due.pop_front() else { break };
            let Some(debts) = inner.by_key.get_mut(&key) else { continue };
            if !debts.prepare_charge(&mut inner.sequence, now) {
                inner.queue_key(key);
                continue;
            }
            for debt in debts.rates.iter().filter(|debt| debt.sent > 0) {
                let (limit, rate, cost) = (debt.limit.clone(), debt.rate, debt.sent);
                // Charges of a limit that settles them are entries of many units.
                units += if limit.settles() { 1 } else { cost };
                let (rule, mark) = (&limit.rules[rate], debts.sequence);
                let most = if rule.settles { rule.capacity().saturating_mul(2) } else { rule.capacity() };
                let (cost, anchor, class) = (cost.min(most), debt.units.anchor, debt.units.key.class);
                charges.push(StoreUnits { limit, rate, key, cost, mark, anchor, class });
            }
            keys += 1;
        }
        self.keys.store(inner.by_key.len(), Relaxed);
        charges
    }

    /// Forgets units that have left their windows, of at most `keys_max` keys; for times when nothing can be charged.
    pub(super) fn forget_units(&self, keys_max: usize, now: Now) {
        let inner = &mut *self.inner.lock();
        for _ in 0..keys_max.min(inner.due.len()) {
            let Some(key) = inner.due.pop_front() else { break };
            let Some(debts) = inner.by_key.get_mut(&key) else { continue };
            debts.forget_units(now);
            inner.queue_key(key);
        }
        self.keys.store(inner.by_key.len(), Relaxed);
    }

    /// Forgets the debts of `rates` of `limit` for a key that was reset. A charge on its way may still arrive.
    pub(super) fn forget_key(&self, limit: &SharedLimit, rates: Range<usize>, key: &SharedKey) {
        if self.key_count() == 0 {
            return;
        }
        let inner = &mut *self.inner.lock();
        if let Some(debts) = inner.by_key.get_mut(key) {
            // A key without debts leaves when it is due, or when its charge ends.
            debts.rates.retain(|debt| !rates.clone().any(|rate| debt.matches_rate(limit, rate)));
        }
    }

    /// Moves the debts of limits that a reload replaced to their successors.
    pub(super) fn follow_limits(&self, limits: &[&Arc<SharedLimit>]) {
        if self.key_count() == 0 {
            return;
        }
        let inner = &mut *self.inner.lock();
        for debt in inner.by_key.values_mut().flat_map(|debts| &mut debts.rates) {
            let id = debt.limit.rules[debt.rate].id;
            let found = limits.iter().find_map(|limit| Some((limit, limit.rate_of_rule(id)?)));
            if let Some((limit, rate)) = found {
                if let (Some(before), Some(after)) = (debt.limit.shares(), limit.shares()) {
                    let name = &before.classes[before.index(debt.units.key.class)].name;
                    debt.units.key.class = after.find_class(Some(name.as_bytes()));
                }
                (debt.limit, debt.rate) = (Arc::clone(limit), rate);
            }
        }
    }
}

impl KeyCalls for Debts {
    fn end_call(&self, key: &SharedKey, acknowledged: bool) {
        let inner = &mut *self.inner.lock();
        let Some(debts) = inner.by_key.get_mut(key) else { return };
        debts.is_doubtful = !acknowledged;
        if acknowledged {
            debts.sequence = 0;
            debts.rates.retain(|debt| {
                debt.owed = debt.owed.saturating_sub(std::mem::take(&mut debt.sent));
                debt.sent_open = 0;
                if std::mem::take(&mut debt.sent_unused) > 0 {
                    debt.limit.count_lost();
                }
                debt.owed > 0
            });
        }
        inner.queue_key(*key);
        self.keys.store(inner.by_key.len(), Relaxed);
    }
}

impl KeysInFlight<'_, Debts> {
    /// The charge of a key was not sent: unless an earlier call may have made it, its units are still those that
    /// responses correct.
    pub(super) fn cancel_key(&mut self, key: &SharedKey) {
        if !self.take_key(key) {
            return;
        }
        let inner = &mut *self.calls.inner.lock();
        if let Some(debts) = inner.by_key.get_mut(key) {
            if !debts.is_doubtful {
                debts.rates.iter_mut().for_each(Debt::cancel_charge);
            }
            inner.due.push_back(*key);
        }
    }
}

// === impl DebtsInner ===

impl DebtsInner {
    /// Queues a key to be charged, unless it has no debts left.
    fn queue_key(&mut self, key: SharedKey) {
        match self.by_key.get(&key) {
            Some(debts) if debts.rates.is_empty() => drop(self.by_key.remove(&key)),
            Some(_) => self.due.push_back(key),
            None => {}
        }
    }
}

// === impl KeyDebts ===

impl KeyDebts {
    /// Prepares the next charge of the key; false if there is nothing to charge now.
    fn prepare_charge(&mut self, sequence: &mut u64, now: Now) -> bool {
        if self.rates.iter().any(|debt| debt.sent > 0) {
            // The store may have made that charge, so it is sent unchanged.
            return true;
        }
        self.forget_units(now);
        for debt in self.rates.iter_mut().filter(|debt| !debt.is_forgotten) {
            (debt.sent, debt.sent_open) = (debt.owed, std::mem::take(&mut debt.open));
        }
        let has_some = self.rates.iter().any(|debt| debt.sent > 0);
        if has_some {
            *sequence += 1;
            self.sequence = *sequence;
        }
        has_some
    }

    /// Forgets units that have left their windows meanwhile: they are no longer owed.
    fn forget_units(&mut self, now: Now) {
        self.rates.retain(|debt| {
            let amount = debt.current_amount(now);
            if debt.sent > 0 || amount > 0 {
                (debt.owed, debt.is_forgotten) = (amount.max(debt.sent), false);
                return true;
            }
            // Only after two misses in a row: while the numbers of a share change, its counters may be misread.
            !std::mem::replace(&mut debt.is_forgotten, true)
        });
    }
}

// === impl Debt ===

impl Debt {
    fn new(limit: Arc<SharedLimit>, rate: usize, units: Units) -> Debt {
        Debt {
            limit,
            rate,
            units,
            owed: 0,
            sent: 0,
            open: 0,
            sent_open: 0,
            sent_unused: 0,
            kept: 0,
            is_forgotten: false,
        }
    }

    /// The charge was not made.
    fn cancel_charge(&mut self) {
        self.sent = 0;
        self.owed = self.owed.saturating_sub(std::mem::take(&mut self.sent_unused));
        self.open = self.open.saturating_add(std::mem::take(&mut self.sent_open)).min(self.owed);
    }

    fn matches_rate(&self, limit: &SharedLimit, rate: usize) -> bool {
        self.rate == rate && self.limit.rules[rate].id == limit.rules[rate].id
    }

    /// True if the store counts it together with a class.
    fn matches_class(&self, class: u8) -> bool {
        self.limit.rules[self.rate].shares.is_none() || self.units.key.class == class
    }

    /// The owed units that the local share still counts: units that left a window or were refilled are not owed.
    fn current_amount(&self, now: Now) -> u64 {
        self.owed.min(self.limit.local_share.used_units(self.rate, &self.units, now))
    }
}

#[cfg(test)]
mod tests;
