//! What a chain would say, without charging anybody: for `explain`, never on the way of a request.

use std::sync::Arc;

use super::chain_pass::rejection_cause;
use super::store_fallback::fallback_cause;
use super::store_round::LimitQuestion;
use super::{Chain, ChainCause, ChainRejection, LimitDemand, RateDecision, WaitingCap};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Decision, Limit, LimitOutcome, Units};
use crate::shared::{
    RateAnswer, ScriptOp, Session, SharedKey, SharedLimit, SlotCount, StoreAnswer, StoreQuestion,
};

/// What [`Chain::judge`] would say now, and the store and the concurrency limits after it.
#[derive(Debug, Default)]
pub struct ChainForecast {
    /// In chain order, concurrency limits too. The numbers are those that the request finds: nothing is taken.
    pub decisions: Vec<RateDecision>,
    /// The longest wait, nanoseconds, and the place of its limit in [`Chain::limits`].
    pub wait: Option<(u64, usize)>,
    pub rejection: Option<ChainRejection>,
    /// Limits that are counted in the store, and that it said nothing of.
    pub unanswered: Vec<UnansweredLimit>,
}

/// A limit without a word of the store.
pub struct UnansweredLimit {
    /// Of the limit in [`Chain::limits`].
    pub limit_index: usize,
    /// What judges in the store's place; `None`: the store was not asked, and nothing does.
    pub fallback: Option<OnFailure>,
    /// The limit whose numbers the decisions tell, if it goes on locally.
    pub share: Option<Arc<Limit>>,
}

/// One look over a chain.
struct ChainPeek<'a> {
    chain: &'a Chain,
    now: Now,
    forecast: ChainForecast,
    /// The refusal of slots, for who does not have to wait before it needs them.
    full: Option<ChainRejection>,
    /// Limits that the store has still to be asked about.
    limit_questions: Vec<LimitQuestion>,
}

// === impl Chain ===

impl Chain {
    /// Judges one request at `now` by looking only, as if limits that are counted in the store let it pass. `ask` is
    /// called once per limit, in chain order.
    pub fn peek(
        &self,
        now: Now,
        waiting: &WaitingCap,
        ask: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainForecast {
        let mut look = ChainPeek::peek_limits(self, now, ask);
        let unsaid = look.limit_questions.iter().map(|asked| usize::from(asked.limit_index));
        look.forecast.unanswered =
            unsaid.map(|place| UnansweredLimit { limit_index: place, fallback: None, share: None }).collect();
        look.finish_peek(waiting)
    }

    /// The same, with what the store says when it is asked.
    pub async fn peek_shared(
        &self,
        session: &Session,
        now: Now,
        waiting: &WaitingCap,
        ask: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainForecast {
        let mut look = ChainPeek::peek_limits(self, now, ask);
        look.ask_store(session).await;
        look.finish_peek(waiting)
    }
}

// === impl Look ===

impl<'a> ChainPeek<'a> {
    fn peek_limits(chain: &'a Chain, now: Now, mut ask: impl FnMut(&Limit) -> LimitDemand) -> ChainPeek<'a> {
        let mut look = ChainPeek {
            chain,
            now,
            forecast: ChainForecast::default(),
            full: None,
            limit_questions: Vec::new(),
        };
        for (place, limit) in chain.limits.iter().enumerate() {
            match ask(limit) {
                LimitDemand::Skip => {}
                LimitDemand::MissingKey => {
                    look.forecast.keep_rejection(limit, ChainCause::MissingKey, 0, None)
                }
                LimitDemand::Units(units) => {
                    look.peek_units(place, limit, &Units { cost: units.cost.max(1), ..units });
                }
                LimitDemand::Shared(units, key) => {
                    look.plan_shared(place, limit, Units { cost: units.cost.max(1), ..units }, key);
                }
            }
        }
        look
    }

    fn peek_units(&mut self, place: usize, limit: &Arc<Limit>, units: &Units) {
        if limit.is_concurrency() {
            return self.peek_slots(place, limit, units);
        }
        for rate in limit.rate_range(units.variant) {
            let decision = limit.peek_units(rate, units, self.now);
            let (decision, cause) = match units.cost > limit.max_units(rate) {
                true => (decision.reject_forever(), ChainCause::TooCostly),
                false => (decision, rejection_cause(limit)),
            };
            self.add_rate_decision(place, rate, limit, decision, cause);
        }
    }

    fn add_rate_decision(
        &mut self,
        place: usize,
        rate: usize,
        limit: &Arc<Limit>,
        decision: Decision,
        cause: ChainCause,
    ) {
        self.forecast.push_decision(place, rate, limit, decision);
        match decision.outcome {
            LimitOutcome::Reject => {
                let retry = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
                self.forecast.keep_rejection(limit, cause, rate, retry);
            }
            LimitOutcome::Wait if !limit.config.dry_run => {
                if self.forecast.wait.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                    self.forecast.wait = Some((decision.wait_ns, place));
                }
            }
            LimitOutcome::Wait | LimitOutcome::Admit => {}
        }
    }

    fn peek_slots(&mut self, place: usize, limit: &Arc<Limit>, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        let capacity = limit.max_units(rate);
        let remaining = capacity.saturating_sub(limit.slots_in_use(rate, &units.key));
        let outcome = if units.cost > remaining { LimitOutcome::Reject } else { LimitOutcome::Admit };
        if units.cost > capacity {
            self.forecast.keep_rejection(limit, ChainCause::TooCostly, rate, None);
        }
        let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
        self.add_slots_decision(place, rate, limit, decision);
    }

    fn add_slots_decision(&mut self, place: usize, rate: usize, limit: &Arc<Limit>, decision: Decision) {
        self.forecast.push_decision(place, rate, limit, decision);
        if decision.outcome == LimitOutcome::Reject && !limit.config.dry_run && self.full.is_none() {
            let limit = Some(limit.clone());
            self.full =
                Some(ChainRejection { cause: ChainCause::Concurrency, limit, rate, retry_after_ns: None });
        }
    }

    /// A limit that is counted in the store: to be asked about, unless a request would be refused without that.
    fn plan_shared(&mut self, place: usize, limit: &Arc<Limit>, units: Units, key: SharedKey) {
        let Some(Some(side)) = self.chain.shared_limits.get(place) else {
            return self.peek_units(place, limit, &units);
        };
        let rates = limit.rate_range(units.variant);
        if let Some(rate) = rates.clone().find(|rate| units.cost > limit.max_units(*rate)) {
            return self.forecast.keep_rejection(limit, ChainCause::TooCostly, rate, None);
        }
        let refuses = |rate| side.known_rejection(rate, &units, self.now).is_some();
        if limit.config.dry_run || !rates.clone().any(refuses) {
            return self.limit_questions.push(LimitQuestion { limit_index: place as u16, units, key });
        }
        for rate in rates {
            if let Some(decision) = side.last_decision(rate, &units, self.now) {
                self.add_rate_decision(place, rate, limit, decision, rejection_cause(limit));
            }
        }
    }

    /// Asks the store, which changes nothing. Who is refused here already would not be asked about, so that what the
    /// store says is told, and does not count.
    async fn ask_store(&mut self, session: &Session) {
        let refused_here = self.forecast.rejection.take();
        let chain = self.chain;
        let (mut asked, mut questions) = (Vec::new(), Vec::new());
        for own in std::mem::take(&mut self.limit_questions) {
            let Some(Some(side)) = chain.shared_limits.get(usize::from(own.limit_index)) else { continue };
            questions.extend(questions_about(&chain.limits[usize::from(own.limit_index)], side, own));
            asked.push((own, side));
        }
        let said = session.ask_store(ScriptOp::Peek, &questions).await;
        let heard = || questions.iter().zip(&said);
        for (own, side) in asked {
            let failed = |(question, said): (&StoreQuestion<'_>, &StoreAnswer)| {
                question.limit_index == own.limit_index && matches!(said, StoreAnswer::Failed(_))
            };
            if heard().any(failed) {
                self.apply_fallback(&own, side);
            }
        }
        for (question, said) in heard() {
            if let StoreAnswer::Answered { answer, .. } = said {
                self.apply_answer(question, answer);
            }
        }
        self.forecast.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
        if refused_here.is_some() {
            self.forecast.rejection = refused_here;
        }
    }

    fn apply_answer(&mut self, question: &StoreQuestion<'_>, answer: &RateAnswer) {
        let (place, rate) = (usize::from(question.limit_index), question.rate);
        let limit = &self.chain.limits[place];
        match limit.is_concurrency() {
            true => self.add_slots_decision(place, rate, limit, answer.decision),
            false => self.add_rate_decision(place, rate, limit, answer.decision, rejection_cause(limit)),
        }
    }

    /// The store did not answer: `on_failure` decides.
    fn apply_fallback(&mut self, asked: &LimitQuestion, side: &SharedLimit) {
        let place = usize::from(asked.limit_index);
        if self.chain.limits[place].is_concurrency() {
            return self.apply_slots_fallback(asked, side);
        }
        let mut unsaid = UnansweredLimit { limit_index: place, fallback: Some(side.on_failure), share: None };
        match side.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => {
                self.forecast.keep_rejection(&self.chain.limits[place], ChainCause::Unavailable, 0, None);
            }
            OnFailure::Local => {
                let share = side.preview_share(&asked.units);
                self.peek_units(place, &share, &share.cap_units(asked.units));
                unsaid.share = Some(share);
            }
        }
        self.forecast.unanswered.push(unsaid);
    }

    /// The same of slots: what this process holds counts, whichever way it was admitted.
    fn apply_slots_fallback(&mut self, asked: &LimitQuestion, side: &SharedLimit) {
        let place = usize::from(asked.limit_index);
        let limit = &self.chain.limits[place];
        let cost = asked.units.cost;
        for rate in limit.rate_range(asked.units.variant) {
            let held = side.slots_held(&side.slot_key(rate, asked.key));
            let remaining = side.local_slots(rate).saturating_sub(held);
            let admits = side.admits_locally(rate, asked.key, held.saturating_add(cost));
            let outcome = if admits { LimitOutcome::Admit } else { LimitOutcome::Reject };
            let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
            match fallback_cause(side) {
                ChainCause::Unavailable => {
                    self.forecast.keep_rejection(limit, ChainCause::Unavailable, 0, None)
                }
                _ => self.add_slots_decision(place, rate, limit, decision),
            }
        }
        let share = (side.on_failure == OnFailure::Local).then(|| side.local_share());
        self.forecast.unanswered.push(UnansweredLimit {
            limit_index: place,
            fallback: Some(side.on_failure),
            share,
        });
    }

    fn finish_peek(self, waiting: &WaitingCap) -> ChainForecast {
        let ChainPeek { chain, forecast: mut foreseen, full, .. } = self;
        if foreseen.rejection.is_none()
            && let Some((wait_ns, place)) = foreseen.wait
        {
            foreseen.rejection = match wait_ns > chain.max_wait_ns {
                true => Some(ChainRejection::queued_too_long(&chain.limits[place])),
                false => waiting.is_full().then(ChainRejection::from_overload),
            };
        }
        // Slots are taken after the wait, and by then they may be free.
        if foreseen.rejection.is_none() && foreseen.wait.is_none() {
            foreseen.rejection = full;
        }
        foreseen
    }
}

/// Of a concurrency limit the store is asked for the slots of all others: those of this gateway's workers among them.
fn questions_about<'a>(
    limit: &'a Limit,
    side: &'a Arc<SharedLimit>,
    asked: LimitQuestion,
) -> impl Iterator<Item = StoreQuestion<'a>> {
    let LimitQuestion { limit_index: place, units: Units { cost, variant, .. }, key } = asked;
    limit.rate_range(variant).map(move |rate| StoreQuestion {
        limit: side,
        rate,
        key,
        cost,
        limit_index: place,
        dry_run: limit.config.dry_run,
        slot_count: SlotCount { slots: cost, sequence: 0 },
        in_process: 0,
        owed: 0,
    })
}

// === impl Foreseen ===

impl ChainForecast {
    fn push_decision(&mut self, place: usize, rate: usize, limit: &Limit, decision: Decision) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(RateDecision { limit_index: place as u16, rate: rate as u16, dry_run, decision });
    }

    /// Keeps the refusal with the longest retry, of equals the first.
    fn keep_rejection(
        &mut self,
        limit: &Arc<Limit>,
        cause: ChainCause,
        rate: usize,
        retry_after_ns: Option<u64>,
    ) {
        let longest = |refusal: &ChainRejection| refusal.retry_after_ns.unwrap_or(u64::MAX);
        let refusal = ChainRejection { cause, limit: Some(limit.clone()), rate, retry_after_ns };
        let longer = self.rejection.as_ref().is_none_or(|known| longest(known) < longest(&refusal));
        if longer && !limit.config.dry_run {
            self.rejection = Some(refusal);
        }
    }
}

// === impl Unsaid ===

impl std::fmt::Debug for UnansweredLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsaid").field("place", &self.limit_index).field("instead", &self.fallback).finish()
    }
}
