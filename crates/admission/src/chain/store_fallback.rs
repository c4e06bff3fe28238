//! The fallback of shared limits while the store does not decide: their `on_failure`, or this gateway's own share.

use std::sync::Arc;

use smallvec::SmallVec;

use super::chain_pass::ChainPass;
use super::lacking_slots::find_outlook;
use super::mode::ChainMode;
use super::pending_slots::PendingSlots;
use super::shared_demand::SharedDemand;
use super::store_lease::LeaseState;
use super::store_query::{StoreQuery, StoreRound};
use super::{ChainCause, ChainedLimit, UndecidedLimit};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::OnFailure;
use sluicegate_store::StoreAnswer;

// === impl StoreQuery ===

impl StoreQuery {
    /// The limits of the chain, where each one that is judged here is replaced by its local share. Lists the limits
    /// that the store does not decide about.
    pub(super) fn limits_with_shares<M: ChainMode>(
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
    /// Judges rates by the `on_failure` of their limit, or by this gateway's own share, which replaces the limit in
    /// `limits` already.
    pub(super) fn judge_fallback(
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
            self.held.lease_mut(pending.outbox).add_debt(demand.clone());
        }
        self.judge_units(limit_index, limit, units);
    }

    /// Judges slots by the `on_failure` of their limit; all slots of this process count, however they were admitted.
    pub(super) fn judge_slots_fallback(
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
            self.claim_in_store(demand, question.rate, LeaseState::Slots(admits), pending);
        } else if let Some(lacking) = round.refused_slots(question).filter(|_| may_wait()) {
            self.claim_in_store(demand, question.rate, LeaseState::SlotsWanted, pending);
            self.findings.lacking_slots.get_or_insert(lacking);
        } else {
            self.reject_outright(limit_index, question.rate, false, ChainCause::without_store(shared_limit));
        }
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// Limits that the store rejects and this gateway's own share admits; none if any other limit rejects too.
    pub(super) fn find_locally_admitted<M: ChainMode>(&self, now: Now) -> SmallVec<[u16; 2]> {
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
    pub(super) fn is_judged_locally(&self, demand: &SharedDemand) -> bool {
        self.is_overruled(demand) || self.has_failed(demand)
    }
}
