//! Asks the store for the concurrency slots of a request, after its wait.

use smallvec::SmallVec;

use super::claim_set::ClaimSet;
use super::findings::LackingSlots;
use super::pending_slots::PendingSlots;
use super::store_lease::{LeaseState, RateLease, StoreLease, none_rejects};
use super::{ChainCause, ChainRejection, UndecidedLimit};
use sluicegate_limit::LimitOutcome;
use sluicegate_model::OnFailure;
use sluicegate_store::{GatewayTurn, ScriptOp, Session, SlotCount, StoreAnswer, StoreQuestion};

/// The outcome of a request for slots in the store.
pub(super) enum StoreTake {
    /// All of them. `more_free`: others may be free as well.
    Taken { more_free: bool },
    /// None. The limit of this lease has too few, and a queue.
    Lacking(usize),
}

// === impl ClaimSet ===

impl ClaimSet {
    /// Takes the concurrency slots that are still to be asked for in the store. `turn`: the lease of the queue that the
    /// request stands in, and its turn there; without one it asks for none as long as others wait for them.
    ///
    /// # Errors
    /// Too few are free, and their limit has no queue.
    pub(super) async fn take_store_slots(
        &mut self,
        session: &Session,
        undecided: &mut Vec<UndecidedLimit>,
        turn: Option<(usize, GatewayTurn)>,
    ) -> Result<StoreTake, ChainRejection> {
        let Some(store_lease) = self.store_lease.as_ref().filter(|lease| lease.wants_slots()) else {
            return Ok(StoreTake::Taken { more_free: true });
        };
        if let Some(index) = store_lease.find_waited_slots().filter(|_| turn.is_none()) {
            return Ok(StoreTake::Lacking(index));
        }
        let outcomes = store_lease.ask_for_slots(session, turn).await;
        if let Some(index) = self.find_lacking(&outcomes) {
            if let Some(lease) = &mut self.store_lease {
                lease.postpone_slots();
            }
            return Ok(StoreTake::Lacking(index));
        }
        let none_rejects = none_rejects(outcomes.iter().map(|(_, answer, _)| answer));
        let (mut rejected, mut more_free) = (None, true);
        for (index, answer, kept) in outcomes {
            if let StoreAnswer::Answered { answer, .. } = &answer {
                more_free &= answer.decision.remaining > 0;
            }
            rejected = rejected.or(self.apply_slot_answer(index, answer, none_rejects, kept, undecided));
        }
        rejected.map_or(Ok(StoreTake::Taken { more_free }), Err)
    }

    /// The slots of a lease for which the request has to wait; it has asked for them or found others waiting.
    pub(super) fn describe_lacking(&self, lease_index: usize) -> LackingSlots {
        let lease = self.store_lease.as_ref().and_then(|lease| lease.rate_leases.get(lease_index));
        LackingSlots { limit_index: lease.map_or(0, |lease| lease.limit_index), is_refused: false }
    }

    /// The lease with too few slots if the request may wait for them, and nothing else rejects it.
    fn find_lacking(&self, outcomes: &[(usize, StoreAnswer, bool)]) -> Option<usize> {
        let leases = &self.store_lease.as_ref()?.rate_leases;
        let mut lacking = None;
        for (index, answer, kept) in outcomes {
            let lease = &leases[*index];
            let is_short = match answer {
                StoreAnswer::Answered { answer, .. } => answer.decision.outcome == LimitOutcome::Reject,
                StoreAnswer::Failed(_) => !kept,
                StoreAnswer::Full => true,
            };
            if !is_short || lease.dry_run {
                continue;
            }
            let waits = match answer {
                StoreAnswer::Failed(_) => lease.limit.on_failure == OnFailure::Local,
                StoreAnswer::Answered { .. } | StoreAnswer::Full => true,
            };
            if !waits || lease.limit.slot_terms(lease.rate).is_none() {
                return None;
            }
            lacking.get_or_insert(*index);
        }
        lacking
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
                let cause = ChainCause::without_store(&lease.limit);
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

    /// The first lease on slots that other requests wait for.
    fn find_waited_slots(&self) -> Option<usize> {
        self.rate_leases.iter().position(|lease| {
            matches!(lease.state, LeaseState::SlotsWanted)
                && !lease.dry_run
                && lease.limit.slot_terms(lease.rate).is_some()
                && lease.limit.slot_queue.has_waiters(&lease.slot_key())
        })
    }

    /// Asks for the wanted slots. Returns for each the index of its lease, the answer, and whether its slots are held
    /// although the store did not answer.
    async fn ask_for_slots(
        &self,
        session: &Session,
        turn: Option<(usize, GatewayTurn)>,
    ) -> SmallVec<[(usize, StoreAnswer, bool); 2]> {
        let turn_at = |index: usize, lease: &RateLease| {
            let newcomer = lease.limit.newcomer_turn(lease.rate, session.store.node())?;
            Some(match turn {
                Some((own, turn)) if own == index => turn,
                Some((_, turn)) => GatewayTurn { poll_us: 0, ..turn },
                None => newcomer,
            })
        };
        let mut pending = PendingSlots::new(&session.outbox);
        let wanted = |(_, lease): &(usize, &RateLease)| matches!(lease.state, LeaseState::SlotsWanted);
        let wanted: SmallVec<[(usize, &RateLease); 2]> =
            self.rate_leases.iter().enumerate().filter(wanted).collect();
        let mut questions: SmallVec<[StoreQuestion<'_>; 2]> = SmallVec::new();
        for (index, lease) in &wanted {
            let (count, in_process) = pending.request_slots(&lease.limit, lease.rate, lease.key, lease.cost);
            let slot_count = SlotCount { turn: turn_at(*index, lease), ..count };
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
