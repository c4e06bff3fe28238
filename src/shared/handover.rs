//! What a process knows of shared limits, for the one that takes its place: the gateways that count them, the slots
//! that are held, and what is owed. What was seen of keys and the local shares go with the counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::shared_limit::SharedLimit;
use super::{SharedKey, SlotKey, Store};
use crate::limit::Units;
use crate::limit::table::CounterKey;

/// What is known of the store.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreHandover {
    nodes: u64,
    limits: Vec<LimitHandover>,
    debts: DebtsHandover,
}

/// What is known of one shared limit.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LimitHandover {
    name: String,
    nodes: u64,
    /// The gateways that its local share is divided by, if it was needed.
    share_nodes: Option<u64>,
    /// By rule and key, the slots that requests in flight hold.
    slots: Vec<(u32, [u8; 16], u64)>,
}

/// What is owed to the store.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct DebtsHandover {
    pub node: u64,
    pub sequence: u64,
    pub keys: Vec<KeyDebtsHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeyDebtsHandover {
    pub key: [u8; 16],
    pub sequence: u64,
    pub rates: Vec<DebtHandover>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DebtHandover {
    pub limit: String,
    /// [`super::Rule::id`].
    pub rule: u32,
    /// The halves of the local key, and its prefix.
    pub id: [u64; 2],
    pub prefix: u64,
    pub variant: usize,
    pub owed: u64,
    pub sent: u64,
}

// === impl KnownStore ===

impl StoreHandover {
    /// What this process knows. From now on it charges nothing: that is up to the process that takes its place, until
    /// [`Store::serve`] says otherwise.
    pub fn capture_from<'a>(
        store: &Store,
        limits: impl Iterator<Item = &'a Arc<SharedLimit>>,
    ) -> StoreHandover {
        store.debts().current_store.store(0, Relaxed);
        StoreHandover {
            nodes: store.nodes(),
            limits: limits.map(|limit| LimitHandover::capture_limit(limit)).collect(),
            debts: store.debts().export_state(),
        }
    }

    /// Hands everything to the store and the limits of a gateway that nobody uses yet. Slots of requests that the other
    /// process still answers count for as long as it may take to end them.
    pub fn restore_into(&self, store: &Store, limits: &[&Arc<SharedLimit>], drain: std::time::Duration) {
        store.raise_nodes(self.nodes);
        for limit in limits {
            let Some(known) = self.limits.iter().find(|known| known.name == limit.name()) else { continue };
            limit.fleet.raise_nodes(known.nodes);
            if let Some(nodes) = known.share_nodes {
                // So that its counters, expressed in these numbers, are taken over.
                limit.share_of(nodes);
            }
            let slots = known.slots.iter().map(|(rule, key, slots)| {
                let place = SlotKey { rule: *rule, key: SharedKey(*key) };
                (place, *slots)
            });
            limit.in_flight.inherit_slots(slots, drain);
        }
        store.debts().restore_state(&self.debts, limits);
    }
}

// === impl KnownLimit ===

impl LimitHandover {
    fn capture_limit(limit: &SharedLimit) -> LimitHandover {
        let slots = limit.in_flight.all_held();
        LimitHandover {
            name: limit.name().to_owned(),
            nodes: limit.fleet.nodes(),
            share_nodes: limit.share_nodes(),
            slots: slots.into_iter().map(|(place, slots)| (place.rule, place.key.0, slots)).collect(),
        }
    }
}

// === impl KnownDebt ===

impl DebtHandover {
    pub(super) fn to_units(&self) -> Units {
        let id = u128::from(self.id[0]) << 64 | u128::from(self.id[1]);
        let key = CounterKey { id, prefix: self.prefix };
        Units { key, cost: 1, variant: self.variant, fair: 0 }
    }

    /// The halves of a local key.
    pub(super) fn split_id(id: u128) -> [u64; 2] {
        [(id >> 64) as u64, id as u64]
    }
}
