//! The state of shared limits that a process hands to its successor: the gateways that count them, the slots held,
//! and the debts. Last answers and local shares travel with the counters.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::debts::handover::DebtsHandover;
use super::shared_limit::SharedLimit;
use super::{SharedKey, SlotKey, Store};

/// The state of the store and of its limits.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreHandover {
    nodes: u64,
    limits: Vec<LimitHandover>,
    debts: DebtsHandover,
}

/// The state of one shared limit.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LimitHandover {
    name: String,
    nodes: u64,
    /// The number of gateways that its local share is divided among, if it was needed.
    share_nodes: Option<u64>,
    /// Slots that requests in flight hold, by rule and key.
    slots: Vec<(u32, [u8; 16], u64)>,
    /// The classes of these slots, where the limit has shares.
    slot_classes: Vec<u8>,
}

// === impl StoreHandover ===

impl StoreHandover {
    /// Captures the state of this process, which charges nothing from now on: that is up to its successor, until
    /// [`Store::serve_limits`] is called again.
    pub fn capture_from<'a>(
        store: &Store,
        limits: impl Iterator<Item = &'a Arc<SharedLimit>>,
    ) -> StoreHandover {
        let capture_limit = |limit: &Arc<SharedLimit>| {
            let held = limit.in_flight.all_held();
            LimitHandover {
                name: limit.name().to_owned(),
                nodes: limit.fleet.nodes(),
                share_nodes: limit.local_share.nodes(),
                slots: held.iter().map(|(slot_key, slots)| (slot_key.rule, slot_key.key.0, *slots)).collect(),
                slot_classes: held.iter().map(|(slot_key, _)| slot_key.class).collect(),
            }
        };
        StoreHandover {
            nodes: store.nodes(),
            limits: limits.map(capture_limit).collect(),
            debts: store.debts().export_state(),
        }
    }

    /// Restores everything into the store and the limits of a gateway that is not in use yet. Slots of requests that
    /// the other process still serves count for `drain`, the longest time that these may take.
    pub fn restore_into(&self, store: &Store, limits: &[&Arc<SharedLimit>], drain: std::time::Duration) {
        store.raise_nodes(self.nodes);
        for limit in limits {
            let Some(state) = self.limits.iter().find(|state| state.name == limit.name()) else { continue };
            limit.fleet.raise_nodes(state.nodes);
            if let Some(nodes) = state.share_nodes {
                // Its counters, expressed in these numbers, can then be taken over.
                limit.share_of(nodes);
            }
            let classes = state.slot_classes.iter().copied().chain(std::iter::repeat(SlotKey::NO_CLASS));
            let slots = state.slots.iter().zip(classes).map(|((rule, key, slots), class)| {
                (SlotKey { rule: *rule, key: SharedKey(*key), class }, *slots)
            });
            limit.in_flight.inherit_slots(slots, drain);
        }
        store.debts().restore_state(&self.debts, limits);
    }
}
