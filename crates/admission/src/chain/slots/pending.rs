//! Concurrency slots that a request asks the store for, until the answer is applied.

use std::sync::Arc;

use smallvec::SmallVec;

use sluicegate_limit::LimitOutcome;
use sluicegate_store::{
    SharedLimit, SlotCount, SlotKey, StoreAnswer, StoreFault, StoreOutbox, StoreQuestion,
};

/// Slots that are being asked for; dropping gives them up.
pub(crate) struct PendingSlots<'a> {
    pub outbox: &'a Arc<StoreOutbox>,
    slots: SmallVec<[(SlotKey, u64, SlotCount); 2]>,
}

// === impl PendingSlots ===

impl<'a> PendingSlots<'a> {
    pub(crate) fn new(outbox: &'a Arc<StoreOutbox>) -> PendingSlots<'a> {
        PendingSlots { outbox, slots: SmallVec::new() }
    }

    /// Counts slots that are about to be asked for. Returns this worker's count and the slots that all workers of the
    /// process then hold.
    pub(crate) fn request_slots(
        &mut self,
        limit: &Arc<SharedLimit>,
        rate: usize,
        slot_key: SlotKey,
        cost: u64,
    ) -> (SlotCount, u64) {
        let (count, in_process) = self.outbox.slots.request_slots(limit, rate, slot_key, cost);
        self.slots.push((slot_key, cost, count));
        (count, in_process)
    }

    fn take_pending(&mut self, question: &StoreQuestion<'_>) -> Option<(SlotKey, u64, SlotCount)> {
        let own =
            |(_, _, count): &(SlotKey, u64, SlotCount)| count.sequence == question.item.slot_count.sequence;
        let index = self.slots.iter().position(own)?;
        let (slot_key, cost, count) = self.slots.swap_remove(index);
        self.outbox.slots.end_asking(&slot_key, count.sequence);
        Some((slot_key, cost, count))
    }

    /// Cancels all requests for slots, none of which was sent.
    pub(crate) fn cancel_all(mut self) {
        for (slot_key, cost, count) in self.slots.drain(..) {
            self.outbox.slots.end_asking(&slot_key, count.sequence);
            self.outbox.slots.release_slots(&slot_key, cost);
        }
    }

    /// Applies the answer about the slots. `passes`: no limit rejected, else those that were taken in vain are given up
    /// by dropping this; `kept`: they are held although they were not granted.
    pub(crate) fn apply_answer(
        &mut self,
        question: &StoreQuestion<'_>,
        answer: &StoreAnswer,
        (passes, kept): (bool, bool),
    ) {
        let (is_counted, is_held) = match answer {
            // The store may count them, unless it was never asked.
            StoreAnswer::Failed(fault) => (!matches!(fault, StoreFault::Down | StoreFault::Busy), kept),
            StoreAnswer::Answered { answer, charged } => {
                let admits = answer.decision.outcome != LimitOutcome::Reject && !answer.skipped;
                let is_granted = *charged && admits;
                (is_granted, kept || passes && is_granted)
            }
            StoreAnswer::Full => (false, false),
        };
        // Dropping gives those up that the store counts in vain.
        if is_counted && !is_held {
            return;
        }
        let Some((slot_key, cost, count)) = self.take_pending(question) else { return };
        match answer {
            _ if is_counted => self.outbox.slots.mark_reported(&slot_key, count),
            _ if !is_held => self.outbox.slots.release_slots(&slot_key, cost),
            StoreAnswer::Answered { .. } => self.outbox.slots.report_held(&slot_key),
            // The store is told of them once it is back.
            StoreAnswer::Failed(_) | StoreAnswer::Full => {}
        }
    }
}

impl Drop for PendingSlots<'_> {
    fn drop(&mut self) {
        for (slot_key, cost, count) in self.slots.drain(..) {
            self.outbox.slots.end_asking(&slot_key, count.sequence);
            self.outbox.slots.mark_reported(&slot_key, count);
            self.outbox.slots.release_slots(&slot_key, cost);
        }
    }
}
