//! The debts of one process, in the form in which its successor takes them over.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Debt, Debts, KEYS_MAX, KeyDebts};
use crate::SharedKey;
use crate::shared_limit::SharedLimit;
use sluicegate_base::calendar::Anchor;
use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;

/// All debts of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DebtsHandover {
    pub node: u64,
    pub sequence: u64,
    pub keys: Vec<KeyDebtsHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyDebtsHandover {
    pub key: [u8; 16],
    pub sequence: u64,
    pub rates: Vec<DebtHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DebtHandover {
    pub limit: String,
    /// [`crate::RateRule::id`].
    pub rule: u32,
    /// The halves of the local key's id, and its prefix.
    pub id: [u64; 2],
    pub prefix: u64,
    #[serde(default)]
    pub class: u8,
    pub variant: usize,
    pub owed: u64,
    pub sent: u64,
    /// [`Anchor::to_bits`].
    #[serde(default)]
    pub anchor: u16,
}

// === impl Debts ===

impl Debts {
    /// Charges the store of this number from now on.
    pub(crate) fn serve_store(&self, id: u64) {
        let inner = &mut *self.inner.lock();
        if std::mem::take(&mut inner.is_handed_over) {
            inner.by_key.values_mut().flat_map(|debts| &mut debts.rates).for_each(|debt| debt.kept = 0);
        }
        self.current_store.store(id, Relaxed);
    }

    /// True if another process charges the debts.
    pub fn is_handed_over(&self) -> bool {
        self.inner.lock().is_handed_over
    }

    /// All debts, for the successor process, which charges them from now on. This process keeps the units that
    /// responses will still correct, as far as the store cannot have been charged with them.
    pub(crate) fn export_state(&self) -> DebtsHandover {
        let inner = &mut *self.inner.lock();
        self.current_store.store(0, Relaxed);
        inner.is_handed_over = true;
        let debt = |debt: &mut Debt| {
            debt.kept = debt.open.min(debt.owed - debt.sent);
            let owed = debt.owed - debt.kept;
            (owed > 0).then(|| DebtHandover {
                limit: debt.limit.name().to_owned(),
                rule: debt.limit.rules[debt.rate].id,
                id: [(debt.units.key.id >> 64) as u64, debt.units.key.id as u64],
                prefix: debt.units.key.prefix,
                class: debt.units.key.class,
                variant: debt.units.variant,
                owed,
                sent: debt.sent,
                anchor: Anchor::to_bits(debt.units.anchor),
            })
        };
        let keys = inner.by_key.iter_mut().map(|(key, debts)| KeyDebtsHandover {
            key: key.0,
            sequence: debts.sequence,
            rates: debts.rates.iter_mut().filter_map(debt).collect(),
        });
        let keys = keys.filter(|key| !key.rates.is_empty()).collect();
        DebtsHandover { node: self.node(), sequence: inner.sequence, keys }
    }

    /// Takes over the debts of another process, as far as `limits` contains their limits.
    pub(crate) fn restore_state(&self, handover: &DebtsHandover, limits: &[&Arc<SharedLimit>]) {
        if handover.node == 0 {
            return;
        }
        self.node.store(handover.node, Relaxed);
        let inner = &mut *self.inner.lock();
        inner.sequence = handover.sequence;
        for one in handover.keys.iter().take(KEYS_MAX) {
            let debt = |debt: &DebtHandover| {
                let limit = limits.iter().find(|limit| limit.name() == debt.limit)?;
                let (limit, rate) = (Arc::clone(limit), limit.rate_of_rule(debt.rule)?);
                let own = Debt::new(limit, rate, debt.to_units());
                Some(Debt { owed: debt.owed, sent: debt.sent, ..own })
            };
            let rates: SmallVec<[Debt; 2]> = one.rates.iter().filter_map(debt).collect();
            if !rates.is_empty() {
                let key = SharedKey(one.key);
                inner.by_key.insert(key, KeyDebts { rates, sequence: one.sequence, is_doubtful: true });
                inner.due.push_back(key);
            }
        }
        self.keys.store(inner.by_key.len(), Relaxed);
    }
}

// === impl DebtHandover ===

impl DebtHandover {
    fn to_units(&self) -> Units {
        let id = u128::from(self.id[0]) << 64 | u128::from(self.id[1]);
        let key = CounterKey { class: self.class, ..CounterKey::new(id, self.prefix) };
        let anchor = Anchor::from_bits(self.anchor);
        Units { variant: self.variant, anchor, ..Units::new(key, 1) }
    }
}
