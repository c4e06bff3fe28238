//! Concurrency slots that a request asks the store for, until it is known whether it has them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::shared::{
    SharedKey, SharedLimit, SlotCount, SlotKey, StoreAnswer, StoreFault, StoreOutbox, StoreQuestion,
};

/// Slots that are being asked for; given up when dropped.
pub(super) struct PendingSlots<'a> {
    outbox: &'a StoreOutbox,
    slots: SmallVec<[(SlotKey, u64, SlotCount); 2]>,
}

// === impl PendingSlots ===

impl<'a> PendingSlots<'a> {
    pub(super) fn new(desk: &'a StoreOutbox) -> PendingSlots<'a> {
        PendingSlots { outbox: desk, slots: SmallVec::new() }
    }

    /// With the slots that all workers of the process hold then.
    pub(super) fn request_slots(
        &mut self,
        side: &Arc<SharedLimit>,
        rate: usize,
        key: SharedKey,
        cost: u64,
    ) -> (SlotCount, u64) {
        let place = side.slot_key(rate, key);
        let (held, in_process) = self.outbox.slots.request_slots(side, rate, place, cost);
        self.slots.push((place, cost, held));
        (held, in_process)
    }

    fn take_pending(&mut self, question: &StoreQuestion<'_>) -> Option<(SlotKey, u64, SlotCount)> {
        let own = |(_, _, held): &(SlotKey, u64, SlotCount)| held.sequence == question.slot_count.sequence;
        let at = self.slots.iter().position(own)?;
        Some(self.slots.swap_remove(at))
    }

    /// Nobody was asked for any of them.
    pub(super) fn cancel_all(mut self) {
        for (place, cost, _) in self.slots.drain(..) {
            self.outbox.slots.release_slots(&place, cost);
        }
    }

    /// They are counted in the store from now on, and held.
    pub(super) fn mark_granted(&mut self, question: &StoreQuestion<'_>) {
        if let Some((place, _, held)) = self.take_pending(question) {
            self.outbox.slots.mark_reported(&place, held);
        }
    }

    /// The store does not count them.
    pub(super) fn mark_rejected(&mut self, question: &StoreQuestion<'_>) {
        if let Some((place, cost, _)) = self.take_pending(question) {
            self.outbox.slots.release_slots(&place, cost);
        }
    }

    /// They are held without an answer; the store may count them, and hears of them when it is back.
    pub(super) fn mark_kept(&mut self, question: &StoreQuestion<'_>, said: Option<&StoreAnswer>) {
        let ended = self.take_pending(question);
        if let (Some((place, _, held)), Some(StoreAnswer::Failed(failure))) = (ended, said)
            && !matches!(failure, StoreFault::Down | StoreFault::Busy)
        {
            self.outbox.slots.mark_reported(&place, held);
        }
    }

    /// No answer; the store may count them, unless it was never asked.
    pub(super) fn mark_failed(&mut self, question: &StoreQuestion<'_>, said: Option<&StoreAnswer>) {
        if let Some(StoreAnswer::Failed(StoreFault::Down | StoreFault::Busy)) = said {
            self.mark_rejected(question);
        }
    }
}

impl Drop for PendingSlots<'_> {
    fn drop(&mut self) {
        for (place, cost, held) in self.slots.drain(..) {
            self.outbox.slots.mark_reported(&place, held);
            self.outbox.slots.release_slots(&place, cost);
        }
    }
}
