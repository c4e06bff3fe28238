//! Asks the store for the concurrency slots of a request, after its wait.

use smallvec::SmallVec;

use super::claim_set::ClaimSet;
use super::pending_slots::PendingSlots;
use super::store_fallback::fallback_cause;
use super::store_lease::{LeaseState, RateLease, StoreLease, none_rejects};
use super::{ChainCause, ChainRejection, UndecidedLimit};
use crate::limit::LimitOutcome;
use crate::shared::{ScriptOp, Session, StoreAnswer, StoreQuestion};

// === impl ClaimSet ===

impl ClaimSet {
    /// Takes the concurrency slots that are still to be asked for in the store.
    ///
    /// # Errors
    /// Too few are free. Everything except departures is then given back.
    pub(super) async fn take_store_slots(
        &mut self,
        session: &Session,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Result<(), ChainRejection> {
        let Some(store_lease) = self.store_lease.as_ref().filter(|lease| lease.wants_slots()) else {
            return Ok(());
        };
        let outcomes = store_lease.ask_for_slots(session).await;
        let none_rejects = none_rejects(outcomes.iter().map(|(_, answer, _)| answer));
        let mut rejected = None;
        for (index, answer, kept) in outcomes {
            rejected = rejected.or(self.apply_slot_answer(index, answer, none_rejects, kept, undecided));
        }
        match rejected {
            Some(rejection) => {
                self.keep_departures();
                Err(rejection)
            }
            None => Ok(()),
        }
    }

    /// Applies the answer about the slots of one lease. `none_rejects`: no limit rejected; `kept`: the slots are held
    /// without an answer.
    fn apply_slot_answer(
        &mut self,
        index: usize,
        answer: StoreAnswer,
        none_rejects: bool,
        kept: bool,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Option<ChainRejection> {
        let lease = &mut self.store_lease.as_mut()?.rate_leases[index];
        let (limit_index, rate, dry_run) = (usize::from(lease.limit_index), lease.rate, lease.dry_run);
        let limit = &self.limits[limit_index];
        let rejection =
            |cause| Some(ChainRejection { late: true, ..ChainRejection::outright(cause, limit, rate) });
        match answer {
            StoreAnswer::Answered { answer, .. } => {
                let admits = answer.decision.outcome != LimitOutcome::Reject;
                lease.state = LeaseState::Slots(admits && none_rejects);
                if admits || dry_run { None } else { rejection(ChainCause::Concurrency) }
            }
            StoreAnswer::Full => rejection(ChainCause::Concurrency),
            StoreAnswer::Failed(_) => {
                lease.state = LeaseState::Slots(kept);
                lease.limit.count_fallback();
                let fallback = Some(lease.limit.on_failure);
                undecided.push(UndecidedLimit { limit_index, fallback, share: None });
                let cause = fallback_cause(&lease.limit);
                if kept || dry_run { None } else { rejection(cause) }
            }
        }
    }
}

// === impl StoreLease ===

impl StoreLease {
    /// True while there are slots to ask the store for.
    fn wants_slots(&self) -> bool {
        self.rate_leases.iter().any(|lease| matches!(lease.state, LeaseState::SlotsWanted))
    }

    /// Asks for the wanted slots. Returns for each the index of its lease, the answer, and whether its slots are held
    /// although the store did not answer.
    async fn ask_for_slots(&self, session: &Session) -> SmallVec<[(usize, StoreAnswer, bool); 2]> {
        let mut pending = PendingSlots::new(&session.outbox);
        let wanted = |(_, lease): &(usize, &RateLease)| matches!(lease.state, LeaseState::SlotsWanted);
        let wanted: SmallVec<[(usize, &RateLease); 2]> =
            self.rate_leases.iter().enumerate().filter(wanted).collect();
        let mut questions: SmallVec<[StoreQuestion<'_>; 2]> = SmallVec::new();
        for (_, lease) in &wanted {
            let (slot_count, in_process) =
                pending.request_slots(&lease.limit, lease.rate, lease.key, lease.cost);
            questions.push(StoreQuestion { in_process, ..lease.to_question(slot_count) });
        }
        let is_full = |question: &StoreQuestion<'_>| {
            let capacity = question.limit.rules[question.rate].capacity();
            !question.dry_run && question.in_process > capacity
        };
        if let Some(index) = questions.iter().position(is_full) {
            pending.cancel_all();
            return SmallVec::from_iter([(wanted[index].0, StoreAnswer::Full, false)]);
        }
        let answer = session.ask_store(ScriptOp::Take, &questions).await;
        let none_rejects = none_rejects(answer.iter());
        let mut kept: SmallVec<[bool; 2]> = SmallVec::new();
        for (question, answer) in questions.iter().zip(&answer) {
            let keeps = matches!(answer, StoreAnswer::Failed(_))
                && none_rejects
                && question.limit.grants_slots_locally(question.rate, question.key, question.in_process);
            kept.push(keeps);
            match answer {
                StoreAnswer::Answered { answer, charged: took }
                    if answer.decision.outcome != LimitOutcome::Reject =>
                {
                    match (took, none_rejects) {
                        (true, true) => pending.mark_granted(question),
                        // Slots that were taken in vain are given up by dropping `pending`.
                        (true, false) => {}
                        (false, _) => pending.mark_rejected(question),
                    }
                }
                StoreAnswer::Failed(_) if keeps => pending.mark_kept(question, Some(answer)),
                StoreAnswer::Failed(_) => pending.mark_failed(question, Some(answer)),
                StoreAnswer::Answered { .. } | StoreAnswer::Full => pending.mark_rejected(question),
            }
        }
        let indices = wanted.iter().map(|(index, _)| *index);
        indices.zip(answer).zip(kept).map(|((index, answer), kept)| (index, answer, kept)).collect()
    }
}
