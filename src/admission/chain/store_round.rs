//! Asks the store about all shared limits of a chain at once, after the local limits have accepted.
//!
//! Either all accept and stay charged, or none is charged: the store's charges are refunded if a local limit or
//! another server of the store rejects, and local charges are refunded if the store rejects. Questions without an
//! answer are judged here, by the `on_failure` of their limit.

use std::sync::Arc;

use smallvec::SmallVec;

use super::chain_pass::{ChainPass, rejection_cause};
use super::claim::{Claim, ClaimKind};
use super::pending_slots::PendingSlots;
use super::store_lease::{LeaseState, RateLease, StoreLease, all_charged, uncharge_decision};
use super::store_query::{SharedDemand, StoreQuery, StoreRound};
use super::{ChainCause, ChainPermit, ChainRejection, Decisions, WaitingRequest};
use crate::base::clock::Now;
use crate::limit::LimitOutcome;
use crate::shared::{RateAnswer, ScriptOp, Session, SharedLimit, StoreAnswer, StoreQuestion, StoreRefund};

// === impl ChainPermit ===

impl ChainPermit {
    /// Asks the store about the limits that are counted there, and adds their decisions to `decisions`. `fell_back`
    /// becomes true if a fallback had to judge in its place. Dropping the future early gives back everything that is
    /// known to have been taken.
    ///
    /// # Errors
    /// A limit rejects, in the store or here; everything is then given back.
    pub async fn ask_store<'w>(
        mut self,
        session: &Session,
        waiter: impl Into<WaitingRequest<'w>>,
        decisions: &mut Decisions,
        fell_back: &mut bool,
    ) -> Result<ChainPermit, ChainRejection> {
        let Some(query) = self.store_query.take() else { return Ok(self) };
        let mut locally_admitted = SmallVec::new();
        loop {
            let mut pending = PendingSlots::new(&session.outbox);
            let mut round = self.build_questions(&query, locally_admitted, &mut pending, session);
            if let Some(rejection) = self.reject_if_full(&round, decisions) {
                pending.cancel_all();
                return Err(rejection);
            }
            round.sent = Now::read_clock();
            round.answers = session.ask_store(ScriptOp::Take, &round.questions).await;
            round.received = Now::read_clock();
            *fell_back |= round.answers.iter().any(|reply| matches!(reply, StoreAnswer::Failed(_)));
            let newly_admitted = round.find_locally_admitted(self.judged_at);
            if newly_admitted.is_empty() {
                return self.settle_answers(&query, &round, pending, session, waiter.into(), decisions);
            }
            // The loop ends, because each round asks about fewer limits.
            round.refund_partial(session);
            locally_admitted = round.locally_admitted;
            locally_admitted.extend(newly_admitted);
        }
    }

    fn build_questions<'a>(
        &self,
        query: &'a StoreQuery,
        locally_admitted: SmallVec<[u16; 2]>,
        pending: &mut PendingSlots<'_>,
        session: &Session,
    ) -> StoreRound<'a> {
        let (now, store) = (self.judged_at, &session.store);
        let mut round = StoreRound {
            question_demands: SmallVec::new(),
            questions: SmallVec::new(),
            answers: SmallVec::new(),
            sent: now,
            received: now,
            locally_admitted,
        };
        for demand in
            query.shared_demands.iter().filter(|demand| !round.locally_admitted.contains(&demand.limit_index))
        {
            let limit = &self.limits[usize::from(demand.limit_index)];
            let Some(shared_limit) = query.shared_limit(demand) else { continue };
            // Slots are taken after the wait; a request that does not wait asks for them at once.
            if limit.is_concurrency() && self.longest_wait.is_some() {
                continue;
            }
            for rate in limit.rate_range(demand.units.variant) {
                let (slot_count, in_process) = match limit.is_concurrency() {
                    true => pending.request_slots(shared_limit, rate, demand.key, demand.units.cost),
                    false => Default::default(),
                };
                round.question_demands.push(*demand);
                round.questions.push(StoreQuestion {
                    limit: shared_limit,
                    rate,
                    key: demand.key,
                    cost: demand.units.cost,
                    limit_index: demand.limit_index,
                    dry_run: limit.config.dry_run,
                    slot_count,
                    in_process,
                    owed: store.debts().owed_units(shared_limit, rate, &demand.key, now),
                });
            }
        }
        round
    }

    /// Rejects without asking the store if this process alone holds all slots of a concurrency limit.
    fn reject_if_full(
        &mut self,
        round: &StoreRound<'_>,
        decisions: &mut Decisions,
    ) -> Option<ChainRejection> {
        let is_full = |question: &&StoreQuestion<'_>| {
            let limit = &self.limits[usize::from(question.limit_index)];
            limit.is_concurrency()
                && !question.dry_run
                && question.in_process > limit.max_units(question.rate)
        };
        let question = round.questions.iter().find(is_full)?;
        let (limit_index, rate) = (usize::from(question.limit_index), question.rate);
        let limit = Some(self.limits[limit_index].clone());
        self.cancel_charges(decisions);
        Some(ChainRejection { cause: ChainCause::Concurrency, limit, rate, retry_after_ns: None })
    }

    fn settle_answers(
        mut self,
        query: &StoreQuery,
        round: &StoreRound<'_>,
        mut pending: PendingSlots<'_>,
        session: &Session,
        waiter: WaitingRequest<'_>,
        decisions: &mut Decisions,
    ) -> Result<ChainPermit, ChainRejection> {
        let limits = self.limits_with_shares(query, round);
        let mut pass = ChainPass {
            limits: &limits,
            shared_limits: &query.shared_limits,
            max_wait_ns: query.max_wait_ns,
            now: self.judged_at,
            decisions,
            claims: std::mem::take(&mut self.claims),
            shared_demands: Vec::new(),
            longest_wait: self.longest_wait,
            displaces: query.displaces,
            rejection: None,
        };
        let mut lease = StoreLease::new(&session.outbox);
        for demand in query.shared_demands.iter().filter(|demand| round.is_judged_locally(demand)) {
            if let Some(shared_limit) = query.shared_limit(demand) {
                pass.judge_fallback(demand, shared_limit, round, &mut lease);
            }
        }
        let passes = pass.rejection.is_none() && all_charged(round.answers.iter());
        for index in 0..round.questions.len() {
            pass.apply_answer(round, index, passes, &mut lease, &mut pending);
        }
        if !passes && pass.rejection.is_none() {
            // No limit rejected, yet nothing was charged: our script gives no such answer.
            pass.reject_outright(0, 0, &limits[0], ChainCause::Unavailable);
        }
        if passes {
            // Slots that are asked for after the wait.
            let is_slots = |demand: &&SharedDemand| {
                !round.asks_about(demand) && !round.locally_admitted.contains(&demand.limit_index)
            };
            for demand in query.shared_demands.iter().filter(is_slots) {
                if let Some(shared_limit) = query.shared_limit(demand) {
                    pass.claim_wanted_slots(demand, shared_limit, &mut lease);
                }
            }
            if pass.longest_wait.is_some() {
                lease.postpone_slots();
            }
        }
        pass.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
        let mut permit = None;
        if let Some(rejection) = pass.finish_pass(waiter, &mut permit) {
            lease.restore_numbers(decisions);
            lease.release_all();
            return Err(rejection);
        }
        let mut permit = permit.unwrap_or(self);
        lease.join_queues(round.received);
        permit.store_lease = Some(Box::new(lease));
        Ok(permit)
    }
}

// === impl ChainPass ===

impl ChainPass<'_> {
    /// Applies the store's answer to one question. `passes`: all limits accept.
    fn apply_answer(
        &mut self,
        round: &StoreRound<'_>,
        index: usize,
        passes: bool,
        lease: &mut StoreLease,
        pending: &mut PendingSlots<'_>,
    ) {
        let (demand, question) = (&round.question_demands[index], &round.questions[index]);
        let limits = self.limits;
        let limit = &limits[usize::from(demand.limit_index)];
        let Some(StoreAnswer::Answered { answer, charged: call_charged }) = round.answers.get(index).copied()
        else {
            return match limit.is_concurrency() && passes {
                true => self.judge_slots_fallback(round, index, lease, pending),
                false => pending.mark_failed(question, round.answers.get(index)),
            };
        };
        if limit.is_concurrency() {
            // Slots that were taken in vain are given up by dropping `pending`, which reports that to the store.
            if passes || !call_charged {
                self.apply_slots_answer(demand, question, answer, passes, lease, pending);
            }
            return;
        }
        question.limit.record_answer(question.rate, &demand.units, round.sent, &answer);
        let mut decision = answer.decision;
        // In a dry run, if one rate would reject, the others have not counted the request.
        let charged = call_charged && answer.mark != 0;
        let rate_lease = RateLease::new(demand, question, LeaseState::Charged(Some(answer.mark)));
        if charged && passes {
            let kind =
                ClaimKind::Shared(lease.add_lease(rate_lease, Some(&decision).filter(|_| !question.dry_run)));
            self.claims.push(Claim::new(&demand.units, usize::from(demand.limit_index), question.rate, kind));
            let longest = self.longest_wait.map_or(0, |(longest, _)| longest);
            let wait_ns = round.received.ns_since(self.now).saturating_add(decision.wait_ns);
            if decision.outcome == LimitOutcome::Wait && !question.dry_run && longest < wait_ns {
                self.longest_wait = Some((wait_ns, demand.limit_index));
            }
        } else if charged {
            lease.refund_lease(rate_lease);
            uncharge_decision(&mut decision, demand.units.cost, limit.max_units(question.rate));
        }
        self.push_decision(
            usize::from(demand.limit_index),
            question.rate,
            limit,
            decision,
            rejection_cause(limit),
        );
    }

    fn apply_slots_answer(
        &mut self,
        demand: &SharedDemand,
        question: &StoreQuestion<'_>,
        answer: RateAnswer,
        passes: bool,
        lease: &mut StoreLease,
        pending: &mut PendingSlots<'_>,
    ) {
        let (limit_index, limits) = (usize::from(demand.limit_index), self.limits);
        let admits = answer.decision.outcome != LimitOutcome::Reject;
        if answer.skipped && passes {
            pending.mark_rejected(question);
            self.claim_wanted_slots(demand, question.limit, lease);
        } else if passes {
            match admits {
                true => pending.mark_granted(question),
                false => pending.mark_rejected(question),
            }
            let rate_lease = RateLease::new(demand, question, LeaseState::Slots(admits));
            let kind = ClaimKind::Shared(lease.add_lease(rate_lease, None));
            self.claims.push(Claim::new(&demand.units, limit_index, question.rate, kind));
        } else {
            pending.mark_rejected(question);
            if !admits && !answer.skipped && !question.dry_run {
                self.reject_outright(
                    limit_index,
                    question.rate,
                    &limits[limit_index],
                    ChainCause::Concurrency,
                );
            }
        }
    }

    fn claim_wanted_slots(
        &mut self,
        demand: &SharedDemand,
        shared_limit: &Arc<SharedLimit>,
        lease: &mut StoreLease,
    ) {
        let limit_index = usize::from(demand.limit_index);
        for rate in self.limits[limit_index].rate_range(demand.units.variant) {
            let kind = ClaimKind::Shared(
                lease.add_lease(RateLease::wanting_slots(demand, shared_limit, rate), None),
            );
            self.claims.push(Claim::new(&demand.units, limit_index, rate, kind));
        }
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
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
