//! Asks the store about all shared limits of a chain at once, after the local limits have accepted.
//!
//! Either all accept and stay charged, or none does: charges in the store are refunded if a local limit or another
//! server rejects, local ones if the store rejects. Unanswered questions are judged by the `on_failure` of their limit.

mod answers;
mod lacking;

use std::convert::Infallible;
use std::marker::PhantomData;

use smallvec::SmallVec;

use super::claims::ClaimSet;
use super::claims::holds::{HoldState, RateHold, none_rejects};
use super::local::{ChainPass, PassFindings, wait_for_store_slots};
use super::slots::LackingSlots;
use super::slots::in_store::StoreTake;
use super::slots::pending::PendingSlots;
use super::{
    ChainCause, ChainMode, ChainRejection, ChainVerdict, Decisions, SharedDemand, UndecidedLimit,
    WaitingRequest,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_store::{ScriptOp, Session, SharedKey, SlotCount, StoreAnswer, StoreQuestion, StoreRefund};

/// A request that the local limits have accepted and the store has not judged yet. Dropping it gives everything back.
pub struct PendingStore<M: ChainMode> {
    pub(crate) held: ClaimSet,
    /// Boxed, because the usual verdict must stay small.
    pub(crate) query: Box<StoreQuery>,
    pub(super) mode: PhantomData<M>,
}

/// The questions that are left before a request may pass.
pub(crate) struct StoreQuery {
    pub shared_demands: Vec<SharedDemand>,
    /// The findings of the local limits.
    pub findings: PassFindings,
}

/// One round of questions to the store, with its answers.
pub(crate) struct StoreRound<'a> {
    /// The demand of each question.
    pub question_demands: SmallVec<[&'a SharedDemand; 4]>,
    pub questions: SmallVec<[StoreQuestion<'a>; 4]>,
    pub answers: SmallVec<[StoreAnswer; 4]>,
    pub sent: Now,
    pub received: Now,
    /// Indices of limits that the store rejects and this gateway's own share admits.
    pub locally_admitted: SmallVec<[u16; 2]>,
    /// The slots for which the request has to wait: it asks for none now.
    pub lacking: Option<LackingSlots>,
}

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// Ends the pass over the limits: their verdict, or the questions to the store. A look asks about a request that
    /// is rejected here, too, but only to show the answers.
    pub fn finish_limits(
        mut self,
        waiter: WaitingRequest<'_>,
        verdict: &mut Option<ChainVerdict<PendingStore<M>>>,
    ) {
        if !self.shared_demands.is_empty() {
            if self.findings.rejection.is_none() || !M::CHARGES {
                *verdict = Some(ChainVerdict::AskStore(self.suspend()));
                return;
            }
            self.cancel_questions();
        }
        *verdict = Some(self.conclude(waiter));
    }

    /// Holds the charges of the local limits until the store has answered.
    #[cold]
    fn suspend(self) -> PendingStore<M> {
        let ChainPass { held, shared_demands, findings, .. } = self;
        PendingStore { held, query: Box::new(StoreQuery { shared_demands, findings }), mode: PhantomData }
    }
}

// === impl PendingStore ===

impl<M: ChainMode> PendingStore<M> {
    /// Asks the store about the limits that are counted there, and adds their decisions to `decisions`, and to
    /// `undecided` the limits that it did not decide about. Dropping the future early gives back everything that is
    /// known to have been taken.
    pub async fn ask<'w>(
        self,
        session: &Session,
        waiter: impl Into<WaitingRequest<'w>>,
        decisions: &mut Decisions,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> ChainVerdict<Infallible> {
        let PendingStore { mut held, mut query, .. } = self;
        query.share_counters::<M>(&held, session).await;
        let waiter = waiter.into();
        let mut locally_admitted = SmallVec::new();
        let mut lacking = if M::CHARGES { query.find_waited_slots(&held) } else { None };
        loop {
            if let Some(Err(rejection)) = lacking.map(|lacking| query.check_room(&held, lacking)) {
                held.undo_claims(0, decisions);
                return ChainVerdict::Reject(rejection);
            }
            let mut pending = PendingSlots::new(&session.outbox);
            let asked = (locally_admitted, lacking);
            let mut round = query.build_questions::<M>(&held, asked, &mut pending, session);
            if let Some(question) = round.find_full(&held).filter(|_| M::CHARGES) {
                pending.cancel_all();
                lacking = round.refused_slots(question);
                if lacking.is_some() {
                    locally_admitted = round.locally_admitted;
                    continue;
                }
                let limit = &held.limits[usize::from(question.limit_index)];
                let rejection = ChainRejection::outright(ChainCause::Concurrency, limit, question.rate);
                held.undo_claims(0, decisions);
                return ChainVerdict::Reject(rejection);
            }
            for demand in round.question_demands.iter().filter(|demand| demand.limit.settles()) {
                session.wait_settled(&demand.key).await;
            }
            round.sent = Now::read_clock();
            round.answers = session.ask_store(M::STORE_OP, &round.questions).await;
            round.received = Now::read_clock();
            let newly_admitted = match query.findings.rejection {
                None => round.find_locally_admitted::<M>(held.judged_at),
                Some(_) => SmallVec::new(),
            };
            // The loop ends, because each round asks about fewer limits.
            if M::CHARGES
                && let Some(found) = round.find_lacking_slots()
            {
                round.refund_partial(session);
                round.give_slots_back(pending);
                (lacking, locally_admitted) = (Some(found), round.locally_admitted);
                continue;
            }
            if newly_admitted.is_empty() {
                if M::CHARGES {
                    round.charge_shadow(&held, session).await;
                }
                let verdict = query.apply_answers::<M>(held, &round, pending, waiter, decisions, undecided);
                return take_wanted_slots(verdict, session, waiter, (decisions, undecided)).await;
            }
            round.refund_partial(session);
            locally_admitted = round.locally_admitted;
            locally_admitted.extend(newly_admitted);
        }
    }

    /// The verdict as if all shared limits let the request pass; `undecided` lists them as not asked.
    pub fn assume_admitted<'w>(
        self,
        waiter: impl Into<WaitingRequest<'w>>,
        decisions: &mut Decisions,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> ChainVerdict<Infallible> {
        let PendingStore { held, query, .. } = self;
        let not_asked = |demand: &SharedDemand| UndecidedLimit {
            limit_index: demand.limit_index.into(),
            fallback: None,
            share: None,
        };
        undecided.extend(query.shared_demands.iter().map(not_asked));
        let limits = held.limits.clone();
        ChainPass::<M>::resume(&limits, held, query.findings, decisions).conclude(waiter.into())
    }
}

impl<M: ChainMode> From<Infallible> for PendingStore<M> {
    /// Once the store has answered, no verdict asks it again.
    fn from(never: Infallible) -> PendingStore<M> {
        match never {}
    }
}

/// Takes the slots that the store skipped, because it judged them together with a wait of a dry run.
async fn take_wanted_slots(
    verdict: ChainVerdict<Infallible>,
    session: &Session,
    waiter: WaitingRequest<'_>,
    (decisions, undecided): (&mut Decisions, &mut Vec<UndecidedLimit>),
) -> ChainVerdict<Infallible> {
    let ChainVerdict::Admit(mut permit) = verdict else { return verdict };
    match permit.held.take_store_slots(session, undecided, None).await {
        Ok(StoreTake::Taken { .. }) => ChainVerdict::Admit(permit),
        Ok(StoreTake::Lacking(limit_index)) => {
            let lacking = LackingSlots { limit_index, is_refused: false };
            wait_for_store_slots(permit.held, lacking, waiter, decisions)
        }
        Err(rejection) => ChainVerdict::Reject(rejection),
    }
}

// === impl StoreQuery ===

impl StoreQuery {
    /// Lets the keys that this gateway may not put into the store count by network there, except those that the store
    /// counts already.
    pub(crate) async fn share_counters<M: ChainMode>(&mut self, held: &ClaimSet, session: &Session) {
        let mut beyond: SmallVec<[(usize, RateHold); 2]> = SmallVec::new();
        for (index, demand) in self.shared_demands.iter().enumerate() {
            let rates = held.limits[usize::from(demand.limit_index)].rate_range(demand.units.variant);
            let (key, now) = (&demand.units.key, held.judged_at);
            if let Some(rate) = demand.limit.full_rate(rates, key, now, M::CHARGES) {
                beyond.push((index, RateHold::new(demand, rate, HoldState::Charged(None))));
            }
        }
        let questions: SmallVec<[StoreQuestion<'_>; 2]> =
            beyond.iter().map(|(_, hold)| hold.to_question(SlotCount::default())).collect();
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        for ((index, _), answer) in beyond.iter().zip(&answers) {
            if matches!(answer, StoreAnswer::Answered { answer, .. } if answer.decision.full_ns == 0) {
                let demand = &mut self.shared_demands[*index];
                demand.key = SharedKey::of_network(demand.units.key.prefix);
                demand.units.key.id = u128::from_le_bytes(demand.key.0);
                if M::CHARGES {
                    demand.limit.count_overflow();
                }
            }
        }
    }

    fn build_questions<'a, M: ChainMode>(
        &'a self,
        held: &ClaimSet,
        (locally_admitted, lacking): (SmallVec<[u16; 2]>, Option<LackingSlots>),
        pending: &mut PendingSlots<'_>,
        session: &Session,
    ) -> StoreRound<'a> {
        let (now, store) = (held.judged_at, &session.store);
        let mut round = StoreRound {
            question_demands: SmallVec::new(),
            questions: SmallVec::new(),
            answers: SmallVec::new(),
            sent: now,
            received: now,
            locally_admitted,
            lacking,
        };
        for demand in &self.shared_demands {
            let SharedDemand { limit: shared_limit, limit_index, units, key } = demand;
            let limit = &held.limits[usize::from(*limit_index)];
            // Slots are taken after the wait; a request that does not wait asks for them at once.
            let has_wait = lacking.is_some() || self.findings.longest_wait.is_some();
            let is_later = M::CHARGES && limit.is_concurrency() && has_wait;
            if round.is_overruled(demand) || is_later {
                continue;
            }
            for rate in limit.rate_range(units.variant) {
                let (slot_count, in_process) = match limit.is_concurrency() {
                    true if M::CHARGES => pending.request_slots(shared_limit, rate, *key, units.cost),
                    true => {
                        let held = shared_limit.slots_held(&shared_limit.slot_key(rate, *key));
                        (
                            SlotCount { slots: units.cost, ..SlotCount::default() },
                            held.saturating_add(units.cost),
                        )
                    }
                    false => Default::default(),
                };
                let turn = shared_limit.newcomer_turn(rate, store.node());
                round.question_demands.push(demand);
                round.questions.push(StoreQuestion {
                    limit: shared_limit,
                    rate,
                    key: *key,
                    cost: units.cost,
                    limit_index: *limit_index,
                    dry_run: limit.is_dry_run(units.unenforced),
                    slot_count: SlotCount { turn, ..slot_count },
                    in_process,
                    owed: store.debts().owed_units(shared_limit, rate, key, now),
                });
            }
        }
        round
    }

    fn apply_answers<M: ChainMode>(
        &self,
        mut held: ClaimSet,
        round: &StoreRound<'_>,
        mut pending: PendingSlots<'_>,
        waiter: WaitingRequest<'_>,
        decisions: &mut Decisions,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> ChainVerdict<Infallible> {
        let limits = self.limits_with_shares::<M>(&held.limits, round, undecided);
        held.limits = limits.clone();
        let lacking_slots = round.lacking;
        let findings = PassFindings { rejection: None, lacking: None, lacking_slots, ..self.findings };
        let mut pass = ChainPass::<M>::resume(&limits, held, findings, decisions);
        for demand in self.shared_demands.iter().filter(|demand| round.is_judged_locally(demand)) {
            pass.judge_fallback(demand, round, &pending);
        }
        let passes = pass.findings.rejection.is_none() && round.all_accept::<M>();
        for index in 0..round.questions.len() {
            pass.apply_answer(round, index, passes, &mut pending);
        }
        if !passes && pass.findings.rejection.is_none() {
            // No limit rejected, yet nothing was charged: our script gives no such answer.
            pass.reject_outright(0, 0, limits[0].config.dry_run, ChainCause::Unavailable);
        }
        if passes {
            // Slots that are asked for after the wait.
            let is_slots = |demand: &&SharedDemand| !round.asks_about(demand) && !round.is_overruled(demand);
            for demand in self.shared_demands.iter().filter(is_slots) {
                pass.claim_wanted_slots(demand, &pending);
            }
            if pass.findings.longest_wait.is_some()
                && let Some(hold) = &mut pass.held.store_holds
            {
                hold.postpone_slots();
            }
        }
        pass.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
        // A look has also asked about a request that is rejected here.
        pass.findings.rejection = self.findings.rejection.or(pass.findings.rejection);
        pass.findings.lacking = pass.findings.lacking.or(self.findings.lacking);
        if pass.findings.rejection.is_some() {
            // Slots may have failed after a rate was charged.
            pass.undo_rejected_charges();
        }
        let mut verdict = pass.conclude(waiter);
        if let ChainVerdict::Wait(queued) = &mut verdict
            && let Some(hold) = &mut queued.held.store_holds
        {
            hold.join_queues(round.received);
        }
        verdict
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// The slots of a concurrency limit that this process alone holds, so that the store need not be asked.
    fn find_full(&self, held: &ClaimSet) -> Option<&StoreQuestion<'_>> {
        let limit_of = |question: &StoreQuestion<'_>| &held.limits[usize::from(question.limit_index)];
        let is_full = |question: &&StoreQuestion<'_>| {
            let limit = limit_of(question);
            limit.is_concurrency()
                && !question.dry_run
                && question.in_process > limit.max_units(question.rate)
        };
        self.questions.iter().find(is_full)
    }

    /// True if no answer is a rejection. A look leaves slots out, which it may lack as long as it has to wait.
    fn all_accept<M: ChainMode>(&self) -> bool {
        let rejects = |(question, answer): (&StoreQuestion<'_>, &StoreAnswer)| {
            let StoreAnswer::Answered { answer, .. } = answer else { return false };
            let is_rate = question.slot_count.slots == 0;
            is_rate && !question.dry_run && answer.decision.outcome == LimitOutcome::Reject
        };
        match M::CHARGES {
            true => none_rejects(self.answers.iter()),
            false => !self.questions.iter().zip(&self.answers).any(rejects),
        }
    }

    /// Refunds the charges of some servers of a Cluster after another one rejected.
    fn refund_partial(&self, session: &Session) {
        for (question, reply) in self.questions.iter().zip(&self.answers) {
            if let StoreAnswer::Answered { answer, charged: true } = reply
                && answer.mark != 0
            {
                let StoreQuestion { limit, rate, key, cost, .. } = *question;
                session.outbox.queue_refund(StoreRefund {
                    limit: limit.clone(),
                    rate,
                    key,
                    cost,
                    mark: answer.mark,
                });
            }
        }
    }

    pub(crate) fn asks_about(&self, demand: &SharedDemand) -> bool {
        self.question_demands.iter().any(|other| other.limit_index == demand.limit_index)
    }

    /// True if the store gave no answer about the limit.
    pub(crate) fn has_failed(&self, demand: &SharedDemand) -> bool {
        let mut answers = self.question_demands.iter().zip(&self.answers);
        answers.any(|(other, answer)| {
            other.limit_index == demand.limit_index && matches!(answer, StoreAnswer::Failed(_))
        })
    }

    /// True if this gateway's own share decides although the store rejects.
    pub(crate) fn is_overruled(&self, demand: &SharedDemand) -> bool {
        self.locally_admitted.contains(&demand.limit_index)
    }
}
