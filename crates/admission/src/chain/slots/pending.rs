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

    /// The store granted the slots and counts them from now on.
    pub(crate) fn mark_granted(&mut self, question: &StoreQuestion<'_>) {
        if let Some((slot_key, _, count)) = self.take_pending(question) {
            self.outbox.slots.mark_reported(&slot_key, count);
        }
    }

    /// A paused limit has too few, and the request holds them all the same: the next report tells the store.
    pub(crate) fn mark_beyond(&mut self, question: &StoreQuestion<'_>) {
        if let Some((slot_key, ..)) = self.take_pending(question) {
            self.outbox.slots.report_held(&slot_key);
        }
    }

    /// The store does not count the slots.
    pub(crate) fn mark_rejected(&mut self, question: &StoreQuestion<'_>) {
        if let Some((slot_key, cost, _)) = self.take_pending(question) {
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
        match answer {
            StoreAnswer::Failed(_) if kept => self.mark_kept(question, Some(answer)),
            StoreAnswer::Failed(_) => self.mark_failed(question, Some(answer)),
            StoreAnswer::Answered { answer, charged: true }
                if answer.decision.outcome != LimitOutcome::Reject =>
            {
                if passes {
                    self.mark_granted(question);
                }
            }
            StoreAnswer::Answered { .. } if kept => self.mark_beyond(question),
            StoreAnswer::Answered { .. } | StoreAnswer::Full => self.mark_rejected(question),
        }
    }

    /// The slots are held without an answer; the store may count them, and is told of them once it is back.
    pub(crate) fn mark_kept(&mut self, question: &StoreQuestion<'_>, answer: Option<&StoreAnswer>) {
        let pending = self.take_pending(question);
        if let (Some((slot_key, _, count)), Some(StoreAnswer::Failed(fault))) = (pending, answer)
            && !matches!(fault, StoreFault::Down | StoreFault::Busy)
        {
            self.outbox.slots.mark_reported(&slot_key, count);
        }
    }

    /// There was no answer; the store may count the slots, unless it was never asked.
    pub(crate) fn mark_failed(&mut self, question: &StoreQuestion<'_>, answer: Option<&StoreAnswer>) {
        if let Some(StoreAnswer::Failed(StoreFault::Down | StoreFault::Busy)) = answer {
            self.mark_rejected(question);
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
