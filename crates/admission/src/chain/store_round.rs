//! Asks the store about all shared limits of a chain at once, after the local limits have accepted.
//!
//! Either all accept and stay charged, or none does: charges in the store are refunded if a local limit or another
//! server rejects, local ones if the store rejects. Unanswered questions are judged by the `on_failure` of their limit.

use std::convert::Infallible;

use smallvec::SmallVec;

use super::chain_pass::{ChainPass, rejection_cause};
use super::claim::{Claim, ClaimKind};
use super::claim_set::ClaimSet;
use super::findings::{LackingSlots, PassFindings};
use super::lacking_slots::{find_outlook, wait_for_store_slots};
use super::mode::ChainMode;
use super::pending_slots::PendingSlots;
use super::shared_demand::SharedDemand;
use super::store_lease::{LeaseState, RateLease, none_rejects, uncharge_decision};
use super::store_query::{PendingStore, StoreQuery, StoreRound};
use super::store_slots::StoreTake;
use super::{ChainCause, ChainRejection, ChainVerdict, Decisions, UndecidedLimit, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_store::{RateAnswer, Session, SlotCount, StoreAnswer, StoreQuestion, StoreRefund};

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
                let verdict = query.settle_answers::<M>(held, &round, pending, waiter, decisions, undecided);
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
        Ok(StoreTake::Lacking(lease_index)) => {
            let lacking = permit.held.describe_lacking(lease_index);
            wait_for_store_slots(permit.held, lacking, waiter, decisions)
        }
        Err(rejection) => ChainVerdict::Reject(rejection),
    }
}

// === impl StoreQuery ===

impl StoreQuery {
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

    fn settle_answers<M: ChainMode>(
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
                && let Some(lease) = &mut pass.held.store_lease
            {
                lease.postpone_slots();
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
            && let Some(lease) = &mut queued.held.store_lease
        {
            lease.join_queues(round.received);
        }
        verdict
    }
}

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// Applies the store's answer to one question. `passes`: all limits accept.
    fn apply_answer(
        &mut self,
        round: &StoreRound<'_>,
        index: usize,
        passes: bool,
        pending: &mut PendingSlots<'_>,
    ) {
        let (demand, question) = (round.question_demands[index], &round.questions[index]);
        let (limit_index, limits) = (usize::from(demand.limit_index), self.limits);
        let limit = &limits[limit_index];
        let Some(StoreAnswer::Answered { answer, charged: call_charged }) = round.answers.get(index).copied()
        else {
            return match limit.is_concurrency() && passes {
                true => self.judge_slots_fallback(round, index, pending),
                false => pending.mark_failed(question, round.answers.get(index)),
            };
        };
        if limit.is_concurrency() {
            // Slots that were taken in vain are given up by dropping `pending`, which reports that to the store.
            if !M::CHARGES || passes || !call_charged {
                self.apply_slots_answer(demand, question, answer, passes, pending);
            }
            return;
        }
        if M::CHARGES {
            question.limit.record_answer(question.rate, &demand.units, round.sent, &answer);
        }
        let mut decision = answer.decision;
        if passes && decision.outcome == LimitOutcome::Wait && !question.dry_run {
            // A request has waited for the answer; a look tells the wait from now on.
            let waited_ns = if M::CHARGES { round.received.ns_since(self.held.judged_at) } else { 0 };
            self.note_wait(waited_ns.saturating_add(decision.wait_ns), limit_index);
        }
        // In a dry run, if one rate would reject, the others have not counted the request.
        let stays = !passes && call_charged && self.overrules_rejection(limit_index, limit);
        if call_charged && answer.mark != 0 && !stays {
            let rate_lease = RateLease::new(demand, question.rate, LeaseState::Charged(Some(answer.mark)));
            let lease = self.held.lease_mut(pending.outbox);
            if passes {
                let enforced = Some(&decision).filter(|_| !question.dry_run);
                let kind = ClaimKind::Shared(lease.add_lease(rate_lease, enforced));
                self.held.claims.push(Claim::new(&demand.units, limit_index, question.rate, kind));
            } else {
                lease.refund_lease(rate_lease);
                uncharge_decision(&mut decision, demand.units.cost, limit.max_units(question.rate));
            }
        }
        self.push_decision(limit_index, question.rate, question.dry_run, decision, rejection_cause(limit));
    }

    fn apply_slots_answer(
        &mut self,
        demand: &SharedDemand,
        question: &StoreQuestion<'_>,
        answer: RateAnswer,
        passes: bool,
        pending: &mut PendingSlots<'_>,
    ) {
        let (limit_index, limits) = (usize::from(demand.limit_index), self.limits);
        let limit = &limits[limit_index];
        let admits = answer.decision.outcome != LimitOutcome::Reject;
        if !M::CHARGES {
            let is_free = admits && question.in_process <= limit.max_units(question.rate);
            let remaining = if is_free { answer.decision.remaining } else { 0 };
            let outlook = find_outlook(question, demand.units.fair_hash, remaining, is_free);
            return self.push_slots((limit_index, question.rate), limit, demand.units.unenforced, outlook);
        }
        if answer.skipped && passes {
            pending.mark_rejected(question);
            self.claim_wanted_slots(demand, pending);
        } else if passes {
            match admits {
                true => pending.mark_granted(question),
                false => pending.mark_rejected(question),
            }
            self.claim_in_store(demand, question.rate, LeaseState::Slots(admits), pending);
        } else {
            pending.mark_rejected(question);
            if !admits && !answer.skipped && !question.dry_run {
                self.reject_outright(limit_index, question.rate, false, ChainCause::Concurrency);
            }
        }
    }

    fn claim_wanted_slots(&mut self, demand: &SharedDemand, pending: &PendingSlots<'_>) {
        for rate in self.limits[usize::from(demand.limit_index)].rate_range(demand.units.variant) {
            self.claim_in_store(demand, rate, LeaseState::SlotsWanted, pending);
        }
    }

    /// Claims slots that are counted in the store.
    pub(super) fn claim_in_store(
        &mut self,
        demand: &SharedDemand,
        rate: usize,
        state: LeaseState,
        pending: &PendingSlots<'_>,
    ) {
        let lease = RateLease::new(demand, rate, state);
        let kind = ClaimKind::Shared(self.held.lease_mut(pending.outbox).add_lease(lease, None));
        self.held.claims.push(Claim::new(&demand.units, demand.limit_index.into(), rate, kind));
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
}
