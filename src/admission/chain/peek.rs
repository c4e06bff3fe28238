//! A forecast of a chain's verdict that charges no limit; for `explain`, never for a request.

use std::sync::Arc;

use super::chain_pass::rejection_cause;
use super::store_fallback::fallback_cause;
use super::store_query::SharedDemand;
use super::{Chain, ChainCause, ChainRejection, LimitDemand, RateDecision, WaitingCap};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Decision, Limit, LimitOutcome, Units};
use crate::shared::{
    RateAnswer, ScriptOp, Session, SharedKey, SharedLimit, SlotCount, StoreAnswer, StoreQuestion,
};

/// The verdict that [`Chain::judge`], the store and the concurrency limits would give now.
#[derive(Debug, Default)]
pub struct ChainForecast {
    /// In chain order, concurrency limits included. The numbers are those before any charge.
    pub decisions: Vec<RateDecision>,
    /// The longest wait, nanoseconds, and the index of its limit in [`Chain::limits`].
    pub wait: Option<(u64, usize)>,
    pub rejection: Option<ChainRejection>,
    /// Limits that are counted in the store and got no answer from it.
    pub unanswered: Vec<UnansweredLimit>,
}

/// A shared limit without an answer of the store.
pub struct UnansweredLimit {
    /// Index of the limit in [`Chain::limits`].
    pub limit_index: usize,
    /// The fallback that judges in the store's place; `None` if the store was not asked.
    pub fallback: Option<OnFailure>,
    /// The local share behind the decisions, if the limit falls back to it.
    pub share: Option<Arc<Limit>>,
}

/// The state of one forecast.
struct ChainPeek<'a> {
    chain: &'a Chain,
    now: Now,
    forecast: ChainForecast,
    /// The rejection for lack of slots, which counts only if the request does not have to wait first.
    full: Option<ChainRejection>,
    /// Demands on shared limits, about which the store must be asked.
    shared_demands: Vec<SharedDemand>,
}

// === impl Chain ===

impl Chain {
    /// Judges one request at `now` without charging it, as if all limits that are counted in the store let it pass.
    /// `demand_of` is called once per limit, in chain order.
    pub fn peek(
        &self,
        now: Now,
        waiting: &WaitingCap,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainForecast {
        let mut peek = ChainPeek::peek_limits(self, now, demand_of);
        let unanswered = peek.shared_demands.iter().map(|demand| usize::from(demand.limit_index));
        peek.forecast.unanswered = unanswered
            .map(|limit_index| UnansweredLimit { limit_index, fallback: None, share: None })
            .collect();
        peek.finish_peek(waiting)
    }

    /// As [`Chain::peek`], but also asks the store.
    pub async fn peek_shared(
        &self,
        session: &Session,
        now: Now,
        waiting: &WaitingCap,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainForecast {
        let mut peek = ChainPeek::peek_limits(self, now, demand_of);
        peek.ask_store(session).await;
        peek.finish_peek(waiting)
    }
}

// === impl ChainPeek ===

impl<'a> ChainPeek<'a> {
    fn peek_limits(
        chain: &'a Chain,
        now: Now,
        mut demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainPeek<'a> {
        let mut peek = ChainPeek {
            chain,
            now,
            forecast: ChainForecast::default(),
            full: None,
            shared_demands: Vec::new(),
        };
        for (limit_index, limit) in chain.limits.iter().enumerate() {
            match demand_of(limit) {
                LimitDemand::Skip => {}
                LimitDemand::MissingKey => {
                    peek.forecast.keep_rejection(limit, ChainCause::MissingKey, 0, None)
                }
                LimitDemand::Units(units) => {
                    peek.peek_units(limit_index, limit, &Units { cost: units.cost.max(1), ..units });
                }
                LimitDemand::Shared(units, key) => {
                    peek.plan_shared(limit_index, limit, Units { cost: units.cost.max(1), ..units }, key);
                }
            }
        }
        peek
    }

    fn peek_units(&mut self, limit_index: usize, limit: &Arc<Limit>, units: &Units) {
        if limit.is_concurrency() {
            return self.peek_slots(limit_index, limit, units);
        }
        for rate in limit.rate_range(units.variant) {
            let decision = limit.peek_units(rate, units, self.now);
            let (decision, cause) = match units.cost > limit.max_units(rate) {
                true => (decision.reject_forever(), ChainCause::TooCostly),
                false => (decision, rejection_cause(limit)),
            };
            self.add_rate_decision(limit_index, rate, limit, decision, cause);
        }
    }

    fn add_rate_decision(
        &mut self,
        limit_index: usize,
        rate: usize,
        limit: &Arc<Limit>,
        decision: Decision,
        cause: ChainCause,
    ) {
        self.forecast.push_decision(limit_index, rate, limit, decision);
        match decision.outcome {
            LimitOutcome::Reject => {
                let retry = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
                self.forecast.keep_rejection(limit, cause, rate, retry);
            }
            LimitOutcome::Wait if !limit.config.dry_run => {
                if self.forecast.wait.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                    self.forecast.wait = Some((decision.wait_ns, limit_index));
                }
            }
            LimitOutcome::Wait | LimitOutcome::Admit => {}
        }
    }

    fn peek_slots(&mut self, limit_index: usize, limit: &Arc<Limit>, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        let capacity = limit.max_units(rate);
        let remaining = capacity.saturating_sub(limit.slots_in_use(rate, &units.key));
        let outcome = if units.cost > remaining { LimitOutcome::Reject } else { LimitOutcome::Admit };
        if units.cost > capacity {
            self.forecast.keep_rejection(limit, ChainCause::TooCostly, rate, None);
        }
        let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
        self.add_slots_decision(limit_index, rate, limit, decision);
    }

    fn add_slots_decision(
        &mut self,
        limit_index: usize,
        rate: usize,
        limit: &Arc<Limit>,
        decision: Decision,
    ) {
        self.forecast.push_decision(limit_index, rate, limit, decision);
        if decision.outcome == LimitOutcome::Reject && !limit.config.dry_run && self.full.is_none() {
            let limit = Some(limit.clone());
            self.full =
                Some(ChainRejection { cause: ChainCause::Concurrency, limit, rate, retry_after_ns: None });
        }
    }

    /// Plans a question about a limit that is counted in the store, unless it would reject the request without one.
    fn plan_shared(&mut self, limit_index: usize, limit: &Arc<Limit>, units: Units, key: SharedKey) {
        let Some(Some(shared_limit)) = self.chain.shared_limits.get(limit_index) else {
            return self.peek_units(limit_index, limit, &units);
        };
        let rates = limit.rate_range(units.variant);
        if let Some(rate) = rates.clone().find(|rate| units.cost > limit.max_units(*rate)) {
            return self.forecast.keep_rejection(limit, ChainCause::TooCostly, rate, None);
        }
        let rejects = |rate| shared_limit.known_rejection(rate, &units, self.now).is_some();
        if limit.config.dry_run || !rates.clone().any(rejects) {
            return self.shared_demands.push(SharedDemand { limit_index: limit_index as u16, units, key });
        }
        for rate in rates {
            if let Some(decision) = shared_limit.last_decision(rate, &units, self.now) {
                self.add_rate_decision(limit_index, rate, limit, decision, rejection_cause(limit));
            }
        }
    }

    /// Asks the store without charging. A request that is rejected here already would not be asked about, so the
    /// answers are shown but do not change the rejection.
    async fn ask_store(&mut self, session: &Session) {
        let rejected_here = self.forecast.rejection.take();
        let chain = self.chain;
        let (mut demands, mut questions) = (Vec::new(), Vec::new());
        for demand in std::mem::take(&mut self.shared_demands) {
            let Some(Some(shared_limit)) = chain.shared_limits.get(usize::from(demand.limit_index)) else {
                continue;
            };
            questions.extend(questions_about(
                &chain.limits[usize::from(demand.limit_index)],
                shared_limit,
                demand,
            ));
            demands.push((demand, shared_limit));
        }
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        let answered = || questions.iter().zip(&answers);
        for (demand, shared_limit) in demands {
            let failed = |(question, answer): (&StoreQuestion<'_>, &StoreAnswer)| {
                question.limit_index == demand.limit_index && matches!(answer, StoreAnswer::Failed(_))
            };
            if answered().any(failed) {
                self.apply_fallback(&demand, shared_limit);
            }
        }
        for (question, answer) in answered() {
            if let StoreAnswer::Answered { answer, .. } = answer {
                self.apply_answer(question, answer);
            }
        }
        self.forecast.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
        if rejected_here.is_some() {
            self.forecast.rejection = rejected_here;
        }
    }

    fn apply_answer(&mut self, question: &StoreQuestion<'_>, answer: &RateAnswer) {
        let (limit_index, rate) = (usize::from(question.limit_index), question.rate);
        let limit = &self.chain.limits[limit_index];
        match limit.is_concurrency() {
            true => self.add_slots_decision(limit_index, rate, limit, answer.decision),
            false => {
                self.add_rate_decision(limit_index, rate, limit, answer.decision, rejection_cause(limit))
            }
        }
    }

    /// The store did not answer: `on_failure` decides.
    fn apply_fallback(&mut self, demand: &SharedDemand, shared_limit: &SharedLimit) {
        let limit_index = usize::from(demand.limit_index);
        if self.chain.limits[limit_index].is_concurrency() {
            return self.apply_slots_fallback(demand, shared_limit);
        }
        let mut unanswered =
            UnansweredLimit { limit_index, fallback: Some(shared_limit.on_failure), share: None };
        match shared_limit.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => {
                self.forecast.keep_rejection(
                    &self.chain.limits[limit_index],
                    ChainCause::Unavailable,
                    0,
                    None,
                );
            }
            OnFailure::Local => {
                let share = shared_limit.preview_share(&demand.units);
                self.peek_units(limit_index, &share, &share.cap_units(demand.units));
                unanswered.share = Some(share);
            }
        }
        self.forecast.unanswered.push(unanswered);
    }

    /// As [`ChainPeek::apply_fallback`], for slots; all slots of this process count, however they were admitted.
    fn apply_slots_fallback(&mut self, demand: &SharedDemand, shared_limit: &SharedLimit) {
        let limit_index = usize::from(demand.limit_index);
        let limit = &self.chain.limits[limit_index];
        let cost = demand.units.cost;
        for rate in limit.rate_range(demand.units.variant) {
            let held = shared_limit.slots_held(&shared_limit.slot_key(rate, demand.key));
            let remaining = shared_limit.local_slots(rate).saturating_sub(held);
            let admits = shared_limit.admits_locally(rate, demand.key, held.saturating_add(cost));
            let outcome = if admits { LimitOutcome::Admit } else { LimitOutcome::Reject };
            let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
            match fallback_cause(shared_limit) {
                ChainCause::Unavailable => {
                    self.forecast.keep_rejection(limit, ChainCause::Unavailable, 0, None)
                }
                _ => self.add_slots_decision(limit_index, rate, limit, decision),
            }
        }
        let share = (shared_limit.on_failure == OnFailure::Local).then(|| shared_limit.local_share());
        self.forecast.unanswered.push(UnansweredLimit {
            limit_index,
            fallback: Some(shared_limit.on_failure),
            share,
        });
    }

    fn finish_peek(self, waiting: &WaitingCap) -> ChainForecast {
        let ChainPeek { chain, mut forecast, full, .. } = self;
        if forecast.rejection.is_none()
            && let Some((wait_ns, limit_index)) = forecast.wait
        {
            forecast.rejection = match wait_ns > chain.max_wait_ns {
                true => Some(ChainRejection::queued_too_long(&chain.limits[limit_index])),
                false => waiting.is_full().then(ChainRejection::from_overload),
            };
        }
        // Slots are taken after the wait, and by then they may be free.
        if forecast.rejection.is_none() && forecast.wait.is_none() {
            forecast.rejection = full;
        }
        forecast
    }
}

/// The questions about one limit. For a concurrency limit, the store counts all other holders, this gateway's workers
/// among them.
fn questions_about<'a>(
    limit: &'a Limit,
    shared_limit: &'a Arc<SharedLimit>,
    demand: SharedDemand,
) -> impl Iterator<Item = StoreQuestion<'a>> {
    let SharedDemand { limit_index, units: Units { cost, variant, .. }, key } = demand;
    limit.rate_range(variant).map(move |rate| StoreQuestion {
        limit: shared_limit,
        rate,
        key,
        cost,
        limit_index,
        dry_run: limit.config.dry_run,
        slot_count: SlotCount { slots: cost, sequence: 0 },
        in_process: 0,
        owed: 0,
    })
}

// === impl ChainForecast ===

impl ChainForecast {
    fn push_decision(&mut self, limit_index: usize, rate: usize, limit: &Limit, decision: Decision) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(RateDecision {
            limit_index: limit_index as u16,
            rate: rate as u16,
            dry_run,
            decision,
        });
    }

    /// Keeps the rejection with the longest retry; of equal ones the first.
    fn keep_rejection(
        &mut self,
        limit: &Arc<Limit>,
        cause: ChainCause,
        rate: usize,
        retry_after_ns: Option<u64>,
    ) {
        let longest = |rejection: &ChainRejection| rejection.retry_after_ns.unwrap_or(u64::MAX);
        let rejection = ChainRejection { cause, limit: Some(limit.clone()), rate, retry_after_ns };
        let longer = self.rejection.as_ref().is_none_or(|known| longest(known) < longest(&rejection));
        if longer && !limit.config.dry_run {
            self.rejection = Some(rejection);
        }
    }
}

// === impl UnansweredLimit ===

impl std::fmt::Debug for UnansweredLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnansweredLimit")
            .field("limit_index", &self.limit_index)
            .field("fallback", &self.fallback)
            .finish()
    }
}
