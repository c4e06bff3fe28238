//! The concurrency slots of one limit that this process holds, over all its workers.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::SharedKey;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_model::CLASSES_MAX;

/// The slots of one limit that the workers of this process hold, by rate and key. They include slots that are being
/// asked for, and slots that were admitted while the store did not answer.
#[derive(Default)]
pub(super) struct ProcessSlots {
    own: Mutex<HashMap<SlotKey, u64>>,
    /// The slots of the previous process, for requests that it still serves, and when these end at the latest.
    inherited: Mutex<(HashMap<SlotKey, u64>, Now)>,
}

/// The rate, key and class that slots belong to, by their names in the store, whatever the limit's position in the
/// configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotKey {
    /// [`super::RateRule::id`].
    pub rule: u32,
    /// The name of the key in the store.
    pub key: SharedKey,
    /// The class of the requests; [`SlotKey::NO_CLASS`] without shares.
    pub class: u8,
}

// === impl SlotKey ===

impl SlotKey {
    /// The class of slots of a limit without shares.
    pub const NO_CLASS: u8 = u8::MAX;

    /// The slots of all classes of the key, also of lists before a reload.
    pub(super) fn all_classes(self) -> impl Iterator<Item = SlotKey> {
        (0..=CLASSES_MAX as u8).chain([SlotKey::NO_CLASS]).map(move |class| SlotKey { class, ..self })
    }
}

// === impl ProcessSlots ===

impl ProcessSlots {
    /// Returns the number held afterwards.
    pub(super) fn add_slots(&self, slot_key: &SlotKey, slots: u64) -> u64 {
        let mut own = self.own.lock();
        let held = own.entry(*slot_key).or_default();
        *held = held.saturating_add(slots);
        *held
    }

    pub(super) fn remove_slots(&self, slot_key: &SlotKey, slots: u64) {
        let mut all = self.own.lock();
        let Some(held) = all.get_mut(slot_key) else { return };
        *held = held.saturating_sub(slots);
        if *held == 0 {
            all.remove(slot_key);
        }
    }

    pub(super) fn held_for(&self, slot_key: &SlotKey) -> u64 {
        self.own.lock().get(slot_key).copied().unwrap_or(0)
    }

    /// The slots of all keys.
    pub(super) fn all_held(&self) -> Vec<(SlotKey, u64)> {
        self.own.lock().iter().map(|(slot_key, slots)| (*slot_key, *slots)).collect()
    }

    /// Also counts the slots of the previous process, for `time`.
    pub(super) fn inherit_slots(&self, slots: impl Iterator<Item = (SlotKey, u64)>, time: Duration) {
        let until = Now(Now::read_clock().0.saturating_add(duration_ns(time)));
        *self.inherited.lock() = (slots.collect(), until);
    }

    /// Slots that the previous process may still hold.
    pub(super) fn held_before(&self, slot_key: &SlotKey) -> u64 {
        let mut inherited = self.inherited.lock();
        if !inherited.0.is_empty() && inherited.1 <= Now::read_clock() {
            inherited.0 = HashMap::new();
        }
        inherited.0.get(slot_key).copied().unwrap_or(0)
    }
}
