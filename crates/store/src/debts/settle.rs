//! Debts as requests make them, and as their responses correct them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Debt, Debts, DebtsInner, KEYS_MAX, KeyDebts};
use crate::SharedKey;
use crate::shared_limit::SharedLimit;
use sluicegate_limit::Units;

// === impl Debts ===

impl Debts {
    /// Adds units that were admitted here and that the store does not count. If responses settle the limit,
    /// [`Debts::settle_debt`] must follow.
    pub fn open_debt(&self, limit: &Arc<SharedLimit>, rate: usize, key: SharedKey, units: &Units) {
        let rate = limit.widest_rate(rate);
        let inner = &mut *self.inner.lock();
        if inner.is_handed_over && !limit.settles() {
            return limit.count_lost();
        }
        let is_handed_over = inner.is_handed_over;
        let Some(debt) = self.add_units(inner, limit, rate, key, units) else { return };
        if limit.settles() {
            debt.open = debt.open.saturating_add(units.cost);
        }
        if is_handed_over {
            debt.kept = debt.kept.saturating_add(units.cost);
        }
    }

    /// Corrects a debt of `reserved` units to `used` ones, when the response to its request is over. Units that were
    /// charged to the store meanwhile stay charged there. Returns the units that the caller has to charge to the store:
    /// those that neither this process nor its successor owes.
    #[must_use]
    pub fn settle_debt(
        &self,
        limit: &Arc<SharedLimit>,
        rate: usize,
        key: SharedKey,
        units: &Units,
        (reserved, used): (u64, u64),
    ) -> u64 {
        let rate = limit.widest_rate(rate);
        let inner = &mut *self.inner.lock();
        let is_handed_over = inner.is_handed_over;
        let rates = inner.by_key.get_mut(&key).map(|debts| &mut debts.rates);
        let own = |debt: &&mut Debt| debt.matches_rate(limit, rate) && debt.matches_class(units.key.class);
        let debt = rates.and_then(|rates| rates.iter_mut().find(own));
        if is_handed_over {
            let kept = debt.map_or(0, |debt| debt.close_kept(reserved));
            let exported = reserved - kept;
            if used < exported {
                limit.count_lost();
            }
            return used.saturating_sub(exported);
        }
        let unused = reserved.saturating_sub(used);
        if debt.map_or(unused, |debt| debt.close_open(reserved, unused)) > 0 {
            limit.count_lost();
        }
        if used > reserved {
            self.add_units(inner, limit, rate, key, &Units { cost: used - reserved, ..*units });
        }
        0
    }

    /// Adds units to a debt; `None` if there are too many.
    fn add_units<'a>(
        &self,
        inner: &'a mut DebtsInner,
        limit: &Arc<SharedLimit>,
        rate: usize,
        key: SharedKey,
        units: &Units,
    ) -> Option<&'a mut Debt> {
        if inner.by_key.len() >= KEYS_MAX && !inner.by_key.contains_key(&key) {
            limit.count_lost();
            return None;
        }
        let debts = inner.by_key.entry(key).or_insert_with(|| {
            inner.due.push_back(key);
            self.keys.fetch_add(1, Relaxed);
            KeyDebts::default()
        });
        let own = |debt: &Debt| debt.matches_rate(limit, rate) && debt.matches_class(units.key.class);
        let found = debts.rates.iter().position(own);
        let index = found.unwrap_or_else(|| {
            debts.rates.push(Debt::new(limit.clone(), rate, *units));
            debts.rates.len() - 1
        });
        let debt = &mut debts.rates[index];
        debt.owed = debt.owed.saturating_add(units.cost);
        (debt.is_forgotten, debt.units.anchor) = (false, units.anchor);
        Some(debt)
    }
}

// === impl Debt ===

impl Debt {
    /// Closes `reserved` open units, of which `unused` are no longer owed; returns those that stay charged anyway.
    fn close_open(&mut self, reserved: u64, unused: u64) -> u64 {
        let closed = self.open.min(reserved);
        self.open -= closed;
        self.sent_open = self.sent_open.saturating_sub(reserved - closed);
        let unsent = unused.min(self.owed - self.sent);
        self.owed -= unsent;
        let returned = (unused - unsent).min(self.sent - self.sent_unused);
        self.sent_unused += returned;
        unused - unsent - returned
    }

    /// Takes at most `reserved` units out that were not exported; returns their number.
    fn close_kept(&mut self, reserved: u64) -> u64 {
        let kept = self.kept.min(reserved);
        self.kept -= kept;
        self.open = self.open.saturating_sub(kept);
        self.owed = self.owed.saturating_sub(kept);
        kept
    }
}
