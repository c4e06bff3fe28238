//! The limits of a chain that are counted in the store: asked about together once the local ones have accepted.
//!
//! All accept and stay charged, or nobody does: what the store took is given back if a local limit or another of its
//! servers refuses, and the local limits are given back if the store does. What it does not answer is judged here, by
//! each limit's `on_failure`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::chain_pass::{ChainPass, rejection_cause};
use super::pending_slots::PendingSlots;
use super::permit::{Claim, ClaimKind};
use super::store_lease::{LeaseState, RateLease, StoreLease, all_charged, uncharge_decision};
use super::{ChainCause, ChainPermit, ChainRejection, Decisions, WaitingRequest};
use crate::base::clock::Now;
use crate::limit::{LimitOutcome, Units};
use crate::shared::{
    RateAnswer, ScriptOp, Session, SharedKey, SharedLimit, StoreAnswer, StoreQuestion, StoreRefund,
};

/// What is left to ask before a request may pass.
pub(super) struct StoreQuery {
    pub limit_questions: Vec<LimitQuestion>,
    pub shared_limits: SharedLimits,
    pub max_wait_ns: u64,
    pub displaces: bool,
}

/// The store's side of each limit of a chain.
pub(super) type SharedLimits = Arc<[Option<Arc<SharedLimit>>]>;

/// One limit to ask about.
#[derive(Clone, Copy)]
pub(super) struct LimitQuestion {
    pub limit_index: u16,
    pub units: Units,
    pub key: SharedKey,
}

/// What the store said to each question, and when.
pub(super) struct StoreRound<'a> {
    /// Of each question, the limit that it belongs to.
    pub limit_questions: SmallVec<[LimitQuestion; 4]>,
    pub questions: SmallVec<[StoreQuestion<'a>; 4]>,
    pub answers: SmallVec<[StoreAnswer; 4]>,
    pub sent: Now,
    pub received: Now,
    /// Places of limits that this gateway's own part of them admits, though the store did not.
    pub locally_admitted: SmallVec<[u16; 2]>,
}

// === impl Asking ===

impl StoreQuery {
    pub(super) fn shared_limit(&self, asked: &LimitQuestion) -> Option<&Arc<SharedLimit>> {
        self.shared_limits.get(usize::from(asked.limit_index))?.as_ref()
    }
}

// === impl Passage ===

impl ChainPermit {
    pub(super) fn with_query(mut self, asking: StoreQuery) -> ChainPermit {
        self.store_query = Some(Box::new(asking));
        self
    }

    /// True until the store has been asked.
    #[inline]
    pub fn must_ask_store(&self) -> bool {
        self.store_query.is_some()
    }

    /// Asks the store about the limits that are counted there, and adds what they say to `decisions`. `fell_back`
    /// becomes true if something else had to judge in its place. Dropping the future early gives back all that is
    /// known to have been taken.
    ///
    /// # Errors
    /// A limit refuses, there or here; then everything is given back.
    pub async fn ask_store<'w>(
        mut self,
        session: &Session,
        waiter: impl Into<WaitingRequest<'w>>,
        decisions: &mut Decisions,
        fell_back: &mut bool,
    ) -> Result<ChainPermit, ChainRejection> {
        let Some(asking) = self.store_query.take() else { return Ok(self) };
        let mut own = SmallVec::new();
        loop {
            let mut begun = PendingSlots::new(&session.outbox);
            let mut heard = self.build_questions(&asking, own, &mut begun, session);
            if let Some(refusal) = self.reject_if_full(&heard, decisions) {
                begun.cancel_all();
                return Err(refusal);
            }
            heard.sent = Now::read_clock();
            heard.answers = session.ask_store(ScriptOp::Take, &heard.questions).await;
            heard.received = Now::read_clock();
            *fell_back |= heard.answers.iter().any(|said| matches!(said, StoreAnswer::Failed(_)));
            let admitted_alone = heard.find_locally_admitted(self.judged_at);
            if admitted_alone.is_empty() {
                return self.settle_answers(&asking, &heard, begun, session, waiter.into(), decisions);
            }
            // Each turn asks about fewer limits.
            heard.refund_partial(session);
            own = heard.locally_admitted;
            own.extend(admitted_alone);
        }
    }

    fn build_questions<'a>(
        &self,
        asking: &'a StoreQuery,
        own: SmallVec<[u16; 2]>,
        begun: &mut PendingSlots<'_>,
        session: &Session,
    ) -> StoreRound<'a> {
        let (now, store) = (self.judged_at, &session.store);
        let mut heard = StoreRound {
            limit_questions: SmallVec::new(),
            questions: SmallVec::new(),
            answers: SmallVec::new(),
            sent: now,
            received: now,
            locally_admitted: own,
        };
        for asked in
            asking.limit_questions.iter().filter(|asked| !heard.locally_admitted.contains(&asked.limit_index))
        {
            let limit = &self.limits[usize::from(asked.limit_index)];
            let Some(side) = asking.shared_limit(asked) else { continue };
            // Slots are taken after the wait; where nobody waits they are asked for at once.
            if limit.is_concurrency() && self.longest_wait.is_some() {
                continue;
            }
            for rate in limit.rate_range(asked.units.variant) {
                let (held, in_process) = match limit.is_concurrency() {
                    true => begun.request_slots(side, rate, asked.key, asked.units.cost),
                    false => Default::default(),
                };
                heard.limit_questions.push(*asked);
                heard.questions.push(StoreQuestion {
                    limit: side,
                    rate,
                    key: asked.key,
                    cost: asked.units.cost,
                    limit_index: asked.limit_index,
                    dry_run: limit.config.dry_run,
                    slot_count: held,
                    in_process,
                    owed: store.debts().owed_units(side, rate, &asked.key, now),
                });
            }
        }
        heard
    }

    /// The refusal of a concurrency limit whose slots this process alone holds: the store need not be asked.
    fn reject_if_full(
        &mut self,
        heard: &StoreRound<'_>,
        decisions: &mut Decisions,
    ) -> Option<ChainRejection> {
        let is_full = |question: &&StoreQuestion<'_>| {
            let limit = &self.limits[usize::from(question.limit_index)];
            limit.is_concurrency()
                && !question.dry_run
                && question.in_process > limit.max_units(question.rate)
        };
        let question = heard.questions.iter().find(is_full)?;
        let (place, rate) = (usize::from(question.limit_index), question.rate);
        let limit = Some(self.limits[place].clone());
        self.cancel_charges(decisions);
        Some(ChainRejection { cause: ChainCause::Concurrency, limit, rate, retry_after_ns: None })
    }

    fn settle_answers(
        mut self,
        asking: &StoreQuery,
        heard: &StoreRound<'_>,
        mut begun: PendingSlots<'_>,
        session: &Session,
        waiter: WaitingRequest<'_>,
        decisions: &mut Decisions,
    ) -> Result<ChainPermit, ChainRejection> {
        let limits = self.limits_with_shares(asking, heard);
        let mut judging = ChainPass {
            limits: &limits,
            shared_limits: &asking.shared_limits,
            max_wait_ns: asking.max_wait_ns,
            now: self.judged_at,
            decisions,
            claims: std::mem::take(&mut self.claims),
            limit_questions: Vec::new(),
            longest_wait: self.longest_wait,
            displaces: asking.displaces,
            rejection: None,
        };
        let mut hold = StoreLease::new(&session.outbox);
        for asked in asking.limit_questions.iter().filter(|asked| heard.is_judged_locally(asked)) {
            if let Some(side) = asking.shared_limit(asked) {
                judging.judge_fallback(asked, side, heard, &mut hold);
            }
        }
        let passes = judging.rejection.is_none() && all_charged(heard.answers.iter());
        for place in 0..heard.questions.len() {
            judging.apply_answer(heard, place, passes, &mut hold, &mut begun);
        }
        if !passes && judging.rejection.is_none() {
            // Nobody has refused, and yet nothing was taken: no answer of our script.
            judging.reject_outright(0, 0, &limits[0], ChainCause::Unavailable);
        }
        if passes {
            // Those whose turn to be asked comes after the wait.
            let is_slots = |asked: &&LimitQuestion| {
                !heard.asks_about(asked) && !heard.locally_admitted.contains(&asked.limit_index)
            };
            for asked in asking.limit_questions.iter().filter(is_slots) {
                if let Some(side) = asking.shared_limit(asked) {
                    judging.claim_wanted_slots(asked, side, &mut hold);
                }
            }
            if judging.longest_wait.is_some() {
                hold.postpone_slots();
            }
        }
        judging.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
        let mut passage = None;
        if let Some(refusal) = judging.finish_pass(waiter, &mut passage) {
            hold.restore_numbers(decisions);
            hold.release_all();
            return Err(refusal);
        }
        let mut passage = passage.unwrap_or(self);
        hold.join_queues(heard.received);
        passage.store_lease = Some(Box::new(hold));
        Ok(passage)
    }
}

// === impl Judging ===

impl ChainPass<'_> {
    /// Takes up what the store said to one question. `passes`: everybody accepts.
    fn apply_answer(
        &mut self,
        heard: &StoreRound<'_>,
        place: usize,
        passes: bool,
        hold: &mut StoreLease,
        begun: &mut PendingSlots<'_>,
    ) {
        let (asked, question) = (&heard.limit_questions[place], &heard.questions[place]);
        let limits = self.limits;
        let limit = &limits[usize::from(asked.limit_index)];
        let Some(StoreAnswer::Answered { answer, charged: took }) = heard.answers.get(place).copied() else {
            return match limit.is_concurrency() && passes {
                true => self.judge_slots_fallback(heard, place, hold, begun),
                false => begun.mark_failed(question, heard.answers.get(place)),
            };
        };
        if limit.is_concurrency() {
            // What was taken in vain is given up by dropping `begun`, which tells the store.
            if passes || !took {
                self.apply_slots_answer(asked, question, answer, passes, hold, begun);
            }
            return;
        }
        question.limit.record_answer(question.rate, &asked.units, heard.sent, &answer);
        let mut decision = answer.decision;
        // In a dry run, what one rate would refuse the others have not counted.
        let charged = took && answer.mark != 0;
        let taken = RateLease::new(asked, question, LeaseState::Charged(Some(answer.mark)));
        if charged && passes {
            let hold =
                ClaimKind::Shared(hold.add_lease(taken, Some(&decision).filter(|_| !question.dry_run)));
            self.claims.push(Claim::new(&asked.units, usize::from(asked.limit_index), question.rate, hold));
            let longest = self.longest_wait.map_or(0, |(longest, _)| longest);
            let wait_ns = heard.received.ns_since(self.now).saturating_add(decision.wait_ns);
            if decision.outcome == LimitOutcome::Wait && !question.dry_run && longest < wait_ns {
                self.longest_wait = Some((wait_ns, asked.limit_index));
            }
        } else if charged {
            hold.refund_lease(taken);
            uncharge_decision(&mut decision, asked.units.cost, limit.max_units(question.rate));
        }
        self.push_decision(
            usize::from(asked.limit_index),
            question.rate,
            limit,
            decision,
            rejection_cause(limit),
        );
    }

    fn apply_slots_answer(
        &mut self,
        asked: &LimitQuestion,
        question: &StoreQuestion<'_>,
        answer: RateAnswer,
        passes: bool,
        hold: &mut StoreLease,
        begun: &mut PendingSlots<'_>,
    ) {
        let (place, limits) = (usize::from(asked.limit_index), self.limits);
        let admits = answer.decision.outcome != LimitOutcome::Reject;
        if answer.skipped && passes {
            begun.mark_rejected(question);
            self.claim_wanted_slots(asked, question.limit, hold);
        } else if passes {
            match admits {
                true => begun.mark_granted(question),
                false => begun.mark_rejected(question),
            }
            let taken = RateLease::new(asked, question, LeaseState::Slots(admits));
            let hold = ClaimKind::Shared(hold.add_lease(taken, None));
            self.claims.push(Claim::new(&asked.units, place, question.rate, hold));
        } else {
            begun.mark_rejected(question);
            if !admits && !answer.skipped && !question.dry_run {
                self.reject_outright(place, question.rate, &limits[place], ChainCause::Concurrency);
            }
        }
    }

    fn claim_wanted_slots(&mut self, asked: &LimitQuestion, side: &Arc<SharedLimit>, hold: &mut StoreLease) {
        let place = usize::from(asked.limit_index);
        for rate in self.limits[place].rate_range(asked.units.variant) {
            let hold = ClaimKind::Shared(hold.add_lease(RateLease::wanting_slots(asked, side, rate), None));
            self.claims.push(Claim::new(&asked.units, place, rate, hold));
        }
    }
}

// === impl Heard ===

impl StoreRound<'_> {
    /// Gives back what some servers of a Cluster took although another one refused.
    fn refund_partial(&self, session: &Session) {
        for (question, said) in self.questions.iter().zip(&self.answers) {
            if let StoreAnswer::Answered { answer, charged: true } = said
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

    fn asks_about(&self, asked: &LimitQuestion) -> bool {
        self.limit_questions.iter().any(|other| other.limit_index == asked.limit_index)
    }

    /// The store said nothing to the limit.
    pub(super) fn has_failed(&self, asked: &LimitQuestion) -> bool {
        let own = self
            .limit_questions
            .iter()
            .zip(&self.answers)
            .filter(|(other, _)| other.limit_index == asked.limit_index);
        own.into_iter().any(|(_, said)| matches!(said, StoreAnswer::Failed(_)))
    }
}
