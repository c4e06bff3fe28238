//! Finds the slots in the store that a request lacks on arrival, and whether it may wait for them.

use smallvec::SmallVec;

use super::{StoreQuery, StoreRound};
use crate::chain::claims::ClaimSet;
use crate::chain::slots::LackingSlots;
use crate::chain::slots::pending::PendingSlots;
use crate::chain::{ChainCause, ChainRejection, SharedDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::{LimitOutcome, SlotOutlook};
use sluicegate_store::{SlotTerms, StoreAnswer, StoreQuestion};

/// The slots of a question as one more request would find them. `free`: those that the store has.
pub(crate) fn find_outlook(question: &StoreQuestion<'_>, fair: u64, free: u64, admits: bool) -> SlotOutlook {
    let (limit, rate) = (question.limit, question.rate);
    let (slot_key, queue) = (limit.slot_key(rate, question.key), &limit.slot_queue);
    let Some(terms) =
        limit.slot_terms(rate).filter(|_| !question.dry_run && (!admits || queue.has_waiters(&slot_key)))
    else {
        return SlotOutlook::at_once(free, admits);
    };
    match queue.find_position(&slot_key, &terms, fair, Now::read_clock()) {
        Ok(position) => SlotOutlook { outcome: LimitOutcome::Wait, free: 0, position, wait_ns: 0 },
        Err(wait_ns) => SlotOutlook { outcome: LimitOutcome::Reject, free: 0, position: 0, wait_ns },
    }
}

// === impl StoreQuery ===

impl StoreQuery {
    /// The slots for which other requests wait already.
    pub(crate) fn find_waited_slots(&self, held: &ClaimSet) -> Option<LackingSlots> {
        let is_waited = |demand: &&SharedDemand| {
            let mut rates = queued_rates(demand, held);
            rates.any(|(rate, _)| {
                demand.limit.slot_queue.has_waiters(&demand.limit.slot_key(rate, demand.key))
            })
        };
        let demand = self.shared_demands.iter().find(is_waited)?;
        Some(LackingSlots { limit_index: demand.limit_index, is_refused: false })
    }

    /// Rejects a request at once if its queue for slots is full, unless it stands in another queue before.
    pub(crate) fn check_room(&self, held: &ClaimSet, lacking: LackingSlots) -> Result<(), ChainRejection> {
        let own = |demand: &&SharedDemand| demand.limit_index == lacking.limit_index;
        let Some(demand) = self.shared_demands.iter().find(own) else { return Ok(()) };
        if held.limits.iter().any(|limit| limit.has_queue()) {
            return Ok(());
        }
        for (rate, terms) in queued_rates(demand, held) {
            let (slot_key, fair) = (demand.limit.slot_key(rate, demand.key), demand.units.fair_hash);
            let found = demand.limit.slot_queue.find_position(&slot_key, &terms, fair, held.judged_at);
            found.map_err(|wait_ns| ChainRejection {
                retry_after_ns: Some(wait_ns),
                ..ChainRejection::outright(
                    ChainCause::Concurrency,
                    &held.limits[usize::from(lacking.limit_index)],
                    rate,
                )
            })?;
        }
        Ok(())
    }
}

/// The slots of a demand for which requests may wait.
fn queued_rates(demand: &SharedDemand, held: &ClaimSet) -> impl Iterator<Item = (usize, SlotTerms)> {
    let limit = &held.limits[usize::from(demand.limit_index)];
    let waits = limit.is_concurrency() && !demand.units.unenforced;
    let rates = waits.then(|| limit.rate_range(demand.units.variant));
    rates.into_iter().flatten().filter_map(|rate| Some((rate, demand.limit.slot_terms(rate)?)))
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// The slots of a question, if requests may wait for them.
    pub(crate) fn refused_slots(&self, question: &StoreQuestion<'_>) -> Option<LackingSlots> {
        question.limit.slot_terms(question.rate)?;
        Some(LackingSlots { limit_index: question.limit_index, is_refused: true })
    }

    /// The slots that the store has too few of, if that alone rejects the request.
    pub(crate) fn find_lacking_slots(&self) -> Option<LackingSlots> {
        let mut lacking = None;
        for (question, answer) in self.questions.iter().zip(&self.answers) {
            let StoreAnswer::Answered { answer, .. } = answer else { continue };
            if question.dry_run || answer.skipped || answer.decision.outcome != LimitOutcome::Reject {
                continue;
            }
            let refused = self.refused_slots(question)?;
            lacking.get_or_insert(refused);
        }
        lacking
    }

    /// Gives the slots back that were asked for together with those that are lacking.
    pub(crate) fn give_slots_back(&self, mut pending: PendingSlots<'_>) {
        let slots: SmallVec<[_; 2]> = self.questions.iter().zip(&self.answers).collect();
        for (question, answer) in slots {
            match answer {
                StoreAnswer::Failed(_) => pending.mark_failed(question, Some(answer)),
                StoreAnswer::Answered { charged: true, .. } => {}
                StoreAnswer::Answered { .. } | StoreAnswer::Full => pending.mark_rejected(question),
            }
        }
    }
}
