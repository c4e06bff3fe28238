//! What a process knows of shared limits, for the one that takes its place: the gateways that count them, the slots
//! that are held, and what is owed. What was seen of keys and the local shares go with the counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::shared_limit::SharedLimit;
use super::{Place, SharedKey, Store};
use crate::limit::Units;
use crate::limit::table::Key;

/// What is known of the store.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownStore {
    nodes: u64,
    limits: Vec<KnownLimit>,
    debts: KnownDebts,
}

/// What is known of one shared limit.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct KnownLimit {
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
pub(super) struct KnownDebts {
    pub node: u64,
    pub sequence: u64,
    pub keys: Vec<KnownKeyDebts>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KnownKeyDebts {
    pub key: [u8; 16],
    pub sequence: u64,
    pub rates: Vec<KnownDebt>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KnownDebt {
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

impl KnownStore {
    /// What this process knows. From now on it charges nothing: that is up to the process that takes its place, until
    /// [`Store::serve`] says otherwise.
    pub fn of<'a>(store: &Store, limits: impl Iterator<Item = &'a Arc<SharedLimit>>) -> KnownStore {
        store.debts().creditor.store(0, Relaxed);
        KnownStore {
            nodes: store.nodes(),
            limits: limits.map(|limit| KnownLimit::of(limit)).collect(),
            debts: store.debts().known(),
        }
    }

    /// Hands everything to the store and the limits of a gateway that nobody uses yet. Slots of requests that the other
    /// process still answers count for as long as it may take to end them.
    pub fn restore(&self, store: &Store, limits: &[&Arc<SharedLimit>], drain: std::time::Duration) {
        store.know_nodes(self.nodes);
        for limit in limits {
            let Some(known) = self.limits.iter().find(|known| known.name == limit.name()) else { continue };
            limit.fleet.know_nodes(known.nodes);
            if let Some(nodes) = known.share_nodes {
                // So that its counters, expressed in these numbers, are taken over.
                limit.share_of(nodes);
            }
            let slots = known.slots.iter().map(|(rule, key, slots)| {
                let place = Place { rule: *rule, key: SharedKey(*key) };
                (place, *slots)
            });
            limit.in_flight.inherit(slots, drain);
        }
        store.debts().restore(&self.debts, limits);
    }
}

// === impl KnownLimit ===

impl KnownLimit {
    fn of(limit: &SharedLimit) -> KnownLimit {
        let slots = limit.in_flight.all();
        KnownLimit {
            name: limit.name().to_owned(),
            nodes: limit.fleet.nodes(),
            share_nodes: limit.share_nodes(),
            slots: slots.into_iter().map(|(place, slots)| (place.rule, place.key.0, slots)).collect(),
        }
    }
}

// === impl KnownDebt ===

impl KnownDebt {
    pub(super) fn units(&self) -> Units {
        let id = u128::from(self.id[0]) << 64 | u128::from(self.id[1]);
        let key = Key { id, prefix: self.prefix };
        Units { key, cost: 1, variant: self.variant, fair: 0 }
    }

    /// The halves of a local key.
    pub(super) fn halves(id: u128) -> [u64; 2] {
        [(id >> 64) as u64, id as u64]
    }
}
