//! Applies the answers of the store to a pass over a chain.
//!
//! While the store does not decide about a limit, its `on_failure` does, or this gateway's own share.

use std::sync::Arc;

use smallvec::SmallVec;

use super::lacking::find_outlook;
use super::{StoreQuery, StoreRound};
use crate::chain::claims::holds::{HoldState, RateHold, uncharge_decision};
use crate::chain::claims::{Claim, ClaimKind};
use crate::chain::local::{ChainPass, rejection_cause};
use crate::chain::slots::pending::PendingSlots;
use crate::chain::{ChainCause, ChainMode, ChainedLimit, SharedDemand, UndecidedLimit};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::OnFailure;
use sluicegate_store::{RateAnswer, StoreAnswer, StoreQuestion};

// === impl StoreQuery ===

impl StoreQuery {
    /// The limits of the chain, where each one that is judged here is replaced by its local share. Lists the limits
    /// that the store does not decide about.
    pub(crate) fn limits_with_shares<M: ChainMode>(
        &self,
        limits: &Arc<[ChainedLimit]>,
        round: &StoreRound<'_>,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Arc<[ChainedLimit]> {
        let mut replaced: Vec<ChainedLimit> = Vec::new();
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
                if replaced.is_empty() {
                    replaced = limits.iter().map(ChainedLimit::share_limit).collect();
                }
                replaced[limit_index].limit = share.clone();
            }
            undecided.push(UndecidedLimit { limit_index, fallback, share });
        }
        if replaced.is_empty() { limits.clone() } else { replaced.into() }
    }
}

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// Applies the store's answer to one question. `passes`: all limits accept.
    pub(super) fn apply_answer(
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
            let rate_hold = RateHold::new(demand, question.rate, HoldState::Charged(Some(answer.mark)));
            let hold = self.held.store_holds_mut(pending.outbox);
            if passes {
                let enforced = Some(&decision).filter(|_| !question.dry_run);
                let kind = ClaimKind::Shared(hold.add_hold(rate_hold, enforced));
                self.held.claims.push(Claim::new(&demand.units, limit_index, question.rate, kind));
            } else {
                hold.refund_hold(rate_hold);
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
            self.claim_in_store(demand, question.rate, HoldState::Slots(admits), pending);
        } else {
            pending.mark_rejected(question);
            if !admits && !answer.skipped && !question.dry_run {
                self.reject_outright(limit_index, question.rate, false, ChainCause::Concurrency);
            }
        }
    }

    pub(super) fn claim_wanted_slots(&mut self, demand: &SharedDemand, pending: &PendingSlots<'_>) {
        for rate in self.limits[usize::from(demand.limit_index)].rate_range(demand.units.variant) {
            self.claim_in_store(demand, rate, HoldState::SlotsWanted, pending);
        }
    }

    /// Claims slots that are counted in the store.
    pub(crate) fn claim_in_store(
        &mut self,
        demand: &SharedDemand,
        rate: usize,
        state: HoldState,
        pending: &PendingSlots<'_>,
    ) {
        let hold = RateHold::new(demand, rate, state);
        let kind = ClaimKind::Shared(self.held.store_holds_mut(pending.outbox).add_hold(hold, None));
        self.held.claims.push(Claim::new(&demand.units, demand.limit_index.into(), rate, kind));
    }

    /// Judges rates by the `on_failure` of their limit, or by this gateway's own share, which replaces the limit in
    /// `limits` already.
    pub(crate) fn judge_fallback(
        &mut self,
        demand: &SharedDemand,
        round: &StoreRound<'_>,
        pending: &PendingSlots<'_>,
    ) {
        let (limit_index, limits) = (usize::from(demand.limit_index), self.limits);
        let limit = &limits[limit_index];
        if limit.is_concurrency() {
            return;
        }
        let is_overruled = round.is_overruled(demand);
        if !is_overruled {
            if M::CHARGES {
                demand.limit.count_fallback();
            }
            match demand.limit.on_failure {
                OnFailure::Allow => return,
                OnFailure::Reject => {
                    let dry_run = limit.is_dry_run(demand.units.unenforced);
                    return self.reject_outright(limit_index, 0, dry_run, ChainCause::Unavailable);
                }
                OnFailure::Local => {}
            }
        }
        let units = limit.cap_units(demand.units);
        if M::CHARGES {
            if !is_overruled {
                let rates = limit.rate_range(units.variant);
                rates.for_each(|rate| demand.limit.seed_share(limit, rate, &units));
            }
            self.held.store_holds_mut(pending.outbox).add_debt(demand.clone());
        }
        self.judge_units(limit_index, limit, units);
    }

    /// Judges slots by the `on_failure` of their limit; all slots of this process count, however they were admitted.
    pub(crate) fn judge_slots_fallback(
        &mut self,
        round: &StoreRound<'_>,
        index: usize,
        pending: &mut PendingSlots<'_>,
    ) {
        let (demand, question) = (round.question_demands[index], &round.questions[index]);
        let (limit_index, limits) = (usize::from(demand.limit_index), self.limits);
        let limit = &limits[limit_index];
        let shared_limit = question.limit;
        let admits = shared_limit.grants_slots_locally(question.rate, question.key, question.in_process);
        if !M::CHARGES {
            let held = question.in_process - question.cost;
            let remaining = shared_limit.local_slots(question.rate).saturating_sub(held);
            return match ChainCause::without_store(shared_limit) {
                ChainCause::Unavailable if question.dry_run => {}
                cause @ ChainCause::Unavailable => self.note_lacking(cause, limit_index, question.rate, None),
                _ => {
                    let outlook = find_outlook(question, demand.units.fair_hash, remaining, admits);
                    self.push_slots((limit_index, question.rate), limit, demand.units.unenforced, outlook)
                }
            };
        }
        shared_limit.count_fallback();
        match admits {
            true => pending.mark_kept(question, round.answers.get(index)),
            false => pending.mark_failed(question, round.answers.get(index)),
        }
        let may_wait = || shared_limit.on_failure == OnFailure::Local;
        if admits || question.dry_run {
            self.claim_in_store(demand, question.rate, HoldState::Slots(admits), pending);
        } else if let Some(lacking) = round.refused_slots(question).filter(|_| may_wait()) {
            self.claim_in_store(demand, question.rate, HoldState::SlotsWanted, pending);
            self.findings.lacking_slots.get_or_insert(lacking);
        } else {
            self.reject_outright(limit_index, question.rate, false, ChainCause::without_store(shared_limit));
        }
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// Limits that the store rejects and this gateway's own share admits; none if any other limit rejects too.
    pub(crate) fn find_locally_admitted<M: ChainMode>(&self, now: Now) -> SmallVec<[u16; 2]> {
        let mut admitted = SmallVec::new();
        for ((demand, question), answer) in
            self.question_demands.iter().zip(&self.questions).zip(&self.answers)
        {
            let StoreAnswer::Answered { answer, .. } = answer else { continue };
            // A look asks about slots even if a rate rejects; for a charge the store skips them then.
            let is_skipped = !M::CHARGES && question.slot_count.slots > 0;
            if question.dry_run || is_skipped || answer.decision.outcome != LimitOutcome::Reject {
                continue;
            }
            if question.limit.admitting_share(&demand.units, now).is_none() {
                return SmallVec::new();
            }
            if !admitted.contains(&demand.limit_index) {
                admitted.push(demand.limit_index);
            }
        }
        admitted
    }

    /// True if the store does not decide about the limit.
    pub(crate) fn is_judged_locally(&self, demand: &SharedDemand) -> bool {
        self.is_overruled(demand) || self.has_failed(demand)
    }
}
