//! Asks the store about all shared limits of a chain at once, after the local limits have accepted.
//!
//! Either all accept and stay charged, or none does: charges in the store are refunded if a local limit or another
//! server rejects, local ones if the store rejects. Unanswered questions are judged by the `on_failure` of their limit.

mod answers;
mod round;

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::claims::ClaimSet;
use super::pass::{ChainPass, FoundTurn, PassFindings, wait_for_store_slots};
use super::slots::LackingSlots;
use super::slots::in_store::StoreTake;
use super::slots::pending::PendingSlots;
use super::{
    ChainCause, ChainMode, ChainRejection, ChainVerdict, ChainedLimit, Decisions, SharedDemand,
    UndecidedLimit, WaitingRequest,
};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;
use sluicegate_model::OnFailure;
use sluicegate_store::{ScriptOp, Session, SharedKey, SlotCount, SlotTerms, StoreAnswer, StoreQuestion};

use round::{StoreRound, refused_slots};

/// A request that the local limits have accepted and the store has not judged yet. Dropping it gives everything back.
pub struct PendingStore<M: ChainMode> {
    held: ClaimSet,
    /// Boxed, because the usual verdict must stay small.
    query: Box<StoreQuery>,
    mode: PhantomData<M>,
}

/// The questions that are left before a request may pass.
struct StoreQuery {
    shared_demands: Vec<SharedDemand>,
    /// The findings of the local limits.
    findings: PassFindings,
    caller: Option<u128>,
    turn: Option<FoundTurn>,
}

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// Ends the pass over the limits: their verdict, or the questions to the store, until whose answers the charges of
    /// the local limits are held. A look asks about a request that is rejected here, too, but only to show the answers.
    pub(super) fn finish_limits(
        mut self,
        waiter: WaitingRequest<'_>,
        verdict: &mut Option<ChainVerdict<PendingStore<M>>>,
    ) {
        let rejects = M::CHARGES && self.findings.rejection.is_some();
        if !self.shared_demands.is_empty() && !rejects {
            let ChainPass { held, shared_demands, findings, caller, turn, .. } = self;
            let query = Box::new(StoreQuery { shared_demands, findings, caller, turn });
            *verdict = Some(ChainVerdict::AskStore(PendingStore { held, query, mode: PhantomData }));
            return;
        }
        if !self.shared_demands.is_empty() {
            self.cancel_questions();
        }
        *verdict = Some(self.conclude(waiter));
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
        let PendingStore { held, mut query, .. } = self;
        let waiter = waiter.into();
        query.share_counters::<M>(&held, session).await;
        let mut locally_admitted = SmallVec::new();
        let mut lacking = if M::CHARGES { query.find_waited_slots(&held) } else { None };
        let (mut round, pending) = loop {
            if let Some(rejection) = lacking.and_then(|lacking| query.check_room(&held, lacking)) {
                return held.reject(rejection, decisions);
            }
            let mut pending = PendingSlots::new(&session.outbox);
            let asked = (locally_admitted, lacking);
            let mut round = query.build_questions::<M>(&held, asked, &mut pending, session);
            if let Some(full) = round.questions.iter().position(|one| M::CHARGES && one.is_full()) {
                pending.cancel_all();
                let (demand, question) = (round.question_demands[full], &round.questions[full]);
                lacking = refused_slots(question);
                if lacking.is_none() {
                    let limit = &held.limits[usize::from(demand.limit_index)];
                    let (cause, class) = (ChainCause::Concurrency, demand.units.key.class);
                    let rejection = ChainRejection::outright(cause, limit, question.rate, class);
                    return held.reject(rejection, decisions);
                }
                locally_admitted = round.locally_admitted;
                continue;
            }
            for demand in round.question_demands.iter().filter(|demand| demand.limit.settles()) {
                session.wait_settled(&demand.key).await;
            }
            round.sent = Now::read_clock();
            round.answers = session.ask_store(M::STORE_OP, &round.questions).await;
            round.received = Now::read_clock();
            let newly_admitted = match query.findings.rejection {
                None => round.find_locally_admitted(M::CHARGES, held.judged_at),
                Some(_) => SmallVec::new(),
            };
            let found = if M::CHARGES { round.find_lacking_slots() } else { None };
            if found.is_none() && newly_admitted.is_empty() {
                break (round, pending);
            }
            // The loop ends, because each round asks about fewer limits.
            round.refund_partial(session);
            match found {
                Some(_) => {
                    // The slots that were asked for together with those that are lacking.
                    for (question, answer) in round.questions.iter().zip(&round.answers) {
                        pending.apply_answer(question, answer, (false, false));
                    }
                    (lacking, locally_admitted) = (found, round.locally_admitted);
                }
                None => {
                    locally_admitted = round.locally_admitted;
                    locally_admitted.extend(newly_admitted);
                }
            }
        };
        if M::CHARGES {
            round.charge_shadow(&held, session).await;
        }
        let verdict = query.apply_answers::<M>(held, &round, pending, waiter, decisions, undecided);
        take_wanted_slots(verdict, session, waiter, (decisions, undecided)).await
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
    async fn share_counters<M: ChainMode>(&mut self, held: &ClaimSet, session: &Session) {
        let (mut indices, mut questions) = (SmallVec::<[usize; 2]>::new(), SmallVec::<[_; 2]>::new());
        for (index, demand) in self.shared_demands.iter().enumerate() {
            let rates = held.limits[usize::from(demand.limit_index)].rate_range(demand.units.variant);
            let (key, now) = (&demand.units.key, held.judged_at);
            if let Some(rate) = demand.limit.full_rate(rates, key, now, M::CHARGES) {
                indices.push(index);
                questions.push(demand.to_question(rate));
            }
        }
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        drop(questions);
        for (index, answer) in indices.into_iter().zip(&answers) {
            if matches!(answer, StoreAnswer::Answered { answer, .. } if answer.decision.full_ns == 0) {
                let demand = &mut self.shared_demands[index];
                demand.key = SharedKey::of_network(demand.units.key.prefix);
                demand.units.key.id = u128::from_le_bytes(demand.key.0);
                // The counter of a network has neither the name nor the date of one account.
                (demand.name, demand.units.anchor) = (None, demand.units.anchor.map(|_| Anchor::DEFAULT));
                if M::CHARGES {
                    demand.limit.counts.overflow.fetch_add(1, Relaxed);
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
        let mut round = StoreRound { locally_admitted, lacking, ..StoreRound::default() };
        for demand in &self.shared_demands {
            let SharedDemand { limit: shared_limit, limit_index, units, .. } = demand;
            let limit = &held.limits[usize::from(*limit_index)];
            // Slots are taken after the wait; a request that does not wait asks for them at once.
            let has_wait = lacking.is_some() || self.findings.longest_wait.is_some();
            let is_later = M::CHARGES && limit.is_concurrency() && has_wait;
            if round.is_overruled(demand) || is_later {
                continue;
            }
            for rate in limit.rate_range(units.variant) {
                let (slot_count, in_process) = match limit.is_concurrency() {
                    false => Default::default(),
                    true if M::CHARGES => {
                        pending.request_slots(shared_limit, rate, demand.slot_key(rate), units.cost)
                    }
                    true => {
                        let held = shared_limit.slots_held(&demand.slot_key(rate));
                        let slot_count =
                            SlotCount { slots: units.cost, asked: units.cost, ..SlotCount::default() };
                        (slot_count, held.saturating_add(units.cost))
                    }
                };
                let turn = shared_limit.newcomer_turn(rate, store.process_node());
                let mut question = demand.to_question(rate);
                question.item.slot_count = SlotCount { turn, ..slot_count };
                if limit.turns_ns > 0 && !question.item.dry_run {
                    let found = FoundTurn::new((*limit_index).into(), units, self.caller, None);
                    let held = limit.held_turn(rate, &found.request, now);
                    question.item.turns_us = held.map_or(limit.turns_ns / 1_000, |_| 0);
                }
                question.note_debts(store.debts(), now);
                round.question_demands.push(demand);
                round.questions.push(StoreQuestion { in_process, ..question });
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
        (pass.caller, pass.turn) = (self.caller, self.turn);
        for demand in self.shared_demands.iter().filter(|demand| round.is_judged_locally(demand)) {
            pass.judge_fallback(demand, round, &pending);
        }
        let passes = pass.findings.rejection.is_none() && round.all_accept(M::CHARGES);
        for index in 0..round.questions.len() {
            pass.apply_answer(round, index, passes, &mut pending);
        }
        if !passes && pass.findings.rejection.is_none() {
            // No limit rejected, yet nothing was charged: our script gives no such answer.
            pass.reject_outright(0, (0, u8::MAX), limits[0].config.dry_run, ChainCause::Unavailable);
        }
        if passes {
            // Slots that are asked for after the wait.
            let is_slots = |demand: &&SharedDemand| {
                let is_own = |other: &&SharedDemand| other.limit_index == demand.limit_index;
                !round.question_demands.iter().any(is_own) && !round.is_overruled(demand)
            };
            for demand in self.shared_demands.iter().filter(is_slots) {
                pass.claim_wanted_slots(demand, &pending);
            }
            if pass.findings.longest_wait.is_some()
                && let Some(holds) = &mut pass.held.store_holds
            {
                holds.postpone_slots();
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
            && let Some(holds) = &mut queued.held.store_holds
        {
            holds.join_queues(round.received);
        }
        verdict
    }

    /// The slots for which other requests wait already.
    fn find_waited_slots(&self, held: &ClaimSet) -> Option<LackingSlots> {
        let is_waited = |demand: &&SharedDemand| {
            let (limit, mut rates) = (&demand.limit, queued_rates(demand, held));
            rates.any(|(rate, _)| limit.slot_queue.has_waiters(&demand.slot_key(rate)))
        };
        let demand = self.shared_demands.iter().find(is_waited)?;
        Some(LackingSlots { limit_index: demand.limit_index, is_refused: false })
    }

    /// The rejection of a request whose queue for slots is full, unless it stands in another queue before.
    fn check_room(&self, held: &ClaimSet, lacking: LackingSlots) -> Option<ChainRejection> {
        let own = |demand: &&SharedDemand| demand.limit_index == lacking.limit_index;
        let demand = self.shared_demands.iter().find(own)?;
        if held.limits.iter().any(|limit| limit.has_queue()) {
            return None;
        }
        queued_rates(demand, held).find_map(|(rate, terms)| {
            let asked = (demand.units.fair_hash, demand.units.cost);
            let queue = &demand.limit.slot_queue;
            let found = queue.find_place(&demand.slot_key(rate), &terms, asked, held.judged_at);
            let limit = &held.limits[usize::from(lacking.limit_index)];
            let class = demand.units.key.class;
            let rejection = ChainRejection::outright(ChainCause::Concurrency, limit, rate, class);
            found.err().map(|wait_ns| rejection.with_retry(Some(wait_ns)))
        })
    }

    /// The limits of the chain, where each one that is judged here is replaced by its local share. Lists the limits
    /// that the store does not decide about.
    fn limits_with_shares<M: ChainMode>(
        &self,
        limits: &Arc<[ChainedLimit]>,
        round: &StoreRound<'_>,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Arc<[ChainedLimit]> {
        let mut replaced: Option<Vec<ChainedLimit>> = None;
        for demand in self.shared_demands.iter().filter(|demand| round.is_judged_locally(demand)) {
            let limit_index = usize::from(demand.limit_index);
            let fallback = (!round.is_overruled(demand)).then_some(demand.limit.on_failure);
            let is_concurrency = limits[limit_index].is_concurrency();
            let share = match fallback {
                Some(OnFailure::Allow | OnFailure::Reject) => None,
                // Of slots, the share only tells their number.
                Some(OnFailure::Local) if is_concurrency && M::CHARGES => None,
                Some(OnFailure::Local) if !is_concurrency && !M::CHARGES => {
                    Some(demand.limit.preview_share(&demand.units))
                }
                Some(OnFailure::Local) | None => Some(demand.limit.local_share()),
            };
            if let Some(share) = share.as_ref().filter(|_| !is_concurrency) {
                replaced.get_or_insert_with(|| limits.to_vec())[limit_index].limit = share.clone();
            }
            undecided.push(UndecidedLimit { limit_index, fallback, share });
        }
        replaced.map_or_else(|| limits.clone(), Into::into)
    }
}

/// The slots of a demand for which requests may wait.
fn queued_rates<'a>(
    demand: &'a SharedDemand,
    held: &ClaimSet,
) -> impl Iterator<Item = (usize, SlotTerms<'a>)> {
    let limit = &held.limits[usize::from(demand.limit_index)];
    let waits = limit.is_concurrency() && !demand.units.unenforced;
    let rates = waits.then(|| limit.rate_range(demand.units.variant));
    rates.into_iter().flatten().filter_map(|rate| Some((rate, demand.limit.slot_terms(rate)?)))
}
