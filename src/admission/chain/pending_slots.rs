//! Concurrency slots that a request asks the store for, until it is known whether it has them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::shared::{Desk, Failure, Held, Place, Question, Said, SharedKey, SharedLimit};

/// Slots that are being asked for; given up when dropped.
pub(super) struct PendingSlots<'a> {
    desk: &'a Desk,
    slots: SmallVec<[(Place, u64, Held); 2]>,
}

// === impl PendingSlots ===

impl<'a> PendingSlots<'a> {
    pub(super) fn new(desk: &'a Desk) -> PendingSlots<'a> {
        PendingSlots { desk, slots: SmallVec::new() }
    }

    /// With the slots that all workers of the process hold then.
    pub(super) fn begin(
        &mut self,
        side: &Arc<SharedLimit>,
        rate: usize,
        key: SharedKey,
        cost: u64,
    ) -> (Held, u64) {
        let place = side.place(rate, key);
        let (held, in_process) = self.desk.slots.begin(side, rate, place, cost);
        self.slots.push((place, cost, held));
        (held, in_process)
    }

    fn end(&mut self, question: &Question<'_>) -> Option<(Place, u64, Held)> {
        let own = |(_, _, held): &(Place, u64, Held)| held.sequence == question.held.sequence;
        let at = self.slots.iter().position(own)?;
        Some(self.slots.swap_remove(at))
    }

    /// Nobody was asked for any of them.
    pub(super) fn unasked(mut self) {
        for (place, cost, _) in self.slots.drain(..) {
            self.desk.slots.leave(&place, cost);
        }
    }

    /// They are counted in the store from now on, and held.
    pub(super) fn was_granted(&mut self, question: &Question<'_>) {
        if let Some((place, _, held)) = self.end(question) {
            self.desk.slots.told(&place, held);
        }
    }

    /// The store does not count them.
    pub(super) fn was_refused(&mut self, question: &Question<'_>) {
        if let Some((place, cost, _)) = self.end(question) {
            self.desk.slots.leave(&place, cost);
        }
    }

    /// They are held without an answer; the store may count them, and hears of them when it is back.
    pub(super) fn was_kept(&mut self, question: &Question<'_>, said: Option<&Said>) {
        let ended = self.end(question);
        if let (Some((place, _, held)), Some(Said::Failed(failure))) = (ended, said)
            && !matches!(failure, Failure::Down | Failure::Busy)
        {
            self.desk.slots.told(&place, held);
        }
    }

    /// No answer; the store may count them, unless it was never asked.
    pub(super) fn failed(&mut self, question: &Question<'_>, said: Option<&Said>) {
        if let Some(Said::Failed(Failure::Down | Failure::Busy)) = said {
            self.was_refused(question);
        }
    }
}

impl Drop for PendingSlots<'_> {
    fn drop(&mut self) {
        for (place, cost, held) in self.slots.drain(..) {
            self.desk.slots.told(&place, held);
            self.desk.slots.leave(&place, cost);
        }
    }
}
