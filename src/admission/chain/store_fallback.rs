//! The fallback of shared limits while the store does not decide: their `on_failure`, or this gateway's own share.

use std::sync::Arc;

use smallvec::SmallVec;

use super::chain_pass::ChainPass;
use super::claim::{Claim, ClaimKind};
use super::pending_slots::PendingSlots;
use super::store_lease::{LeaseState, PendingDebt, RateLease, StoreLease};
use super::store_query::{SharedDemand, StoreQuery, StoreRound};
use super::{ChainCause, ChainPermit};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Limit, LimitOutcome};
use crate::shared::{SharedLimit, StoreAnswer};

// === impl ChainPermit ===

impl ChainPermit {
    /// The limits of the chain, where each one that is judged here is replaced by its local share.
    pub(super) fn limits_with_shares(&self, query: &StoreQuery, round: &StoreRound<'_>) -> Arc<[Arc<Limit>]> {
        let local = |demand: &&SharedDemand| {
            let falls_back = query
                .shared_limit(demand)
                .is_some_and(|shared_limit| shared_limit.on_failure == OnFailure::Local);
            let is_concurrency = self.limits[usize::from(demand.limit_index)].is_concurrency();
            round.locally_admitted.contains(&demand.limit_index)
                || round.has_failed(demand) && falls_back && !is_concurrency
        };
        if !query.shared_demands.iter().any(|demand| local(&demand)) {
            return self.limits.clone();
        }
        let mut limits: Vec<Arc<Limit>> = self.limits.to_vec();
        for demand in query.shared_demands.iter().filter(local) {
            if let Some(shared_limit) = query.shared_limit(demand) {
                limits[usize::from(demand.limit_index)] = shared_limit.local_share();
            }
        }
        limits.into()
    }
}

// === impl ChainPass ===

impl ChainPass<'_> {
    /// Judges rates by the `on_failure` of their limit, or by this gateway's own share, which replaces the limit in
    /// `limits` already.
    pub(super) fn judge_fallback(
        &mut self,
        demand: &SharedDemand,
        shared_limit: &Arc<SharedLimit>,
        round: &StoreRound<'_>,
        lease: &mut StoreLease,
    ) {
        let limit_index = usize::from(demand.limit_index);
        let limits = self.limits;
        let limit = &limits[limit_index];
        let debt = || PendingDebt {
            limit: shared_limit.clone(),
            limit_index: demand.limit_index,
            key: demand.key,
            units: demand.units,
        };
        if round.locally_admitted.contains(&demand.limit_index) {
            lease.add_debt(debt());
            return self.charge_units(limit_index, limit, limit.cap_units(demand.units));
        }
        if limit.is_concurrency() {
            return;
        }
        shared_limit.count_fallback();
        match shared_limit.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => self.reject_outright(limit_index, 0, limit, ChainCause::Unavailable),
            OnFailure::Local => {
                let units = limit.cap_units(demand.units);
                limit.rate_range(units.variant).for_each(|rate| shared_limit.seed_share(limit, rate, &units));
                lease.add_debt(debt());
                self.charge_units(limit_index, limit, units);
            }
        }
    }

    /// Judges slots by the `on_failure` of their limit; all slots of this process count, however they were admitted.
    pub(super) fn judge_slots_fallback(
        &mut self,
        round: &StoreRound<'_>,
        index: usize,
        lease: &mut StoreLease,
        pending: &mut PendingSlots<'_>,
    ) {
        let (demand, question) = (&round.question_demands[index], &round.questions[index]);
        let shared_limit = question.limit;
        shared_limit.count_fallback();
        let admits = shared_limit.admits_locally(question.rate, question.key, question.in_process);
        match admits {
            true => pending.mark_kept(question, round.answers.get(index)),
            false => pending.mark_failed(question, round.answers.get(index)),
        }
        if admits || question.dry_run {
            let kind = ClaimKind::Shared(
                lease.add_lease(RateLease::new(demand, question, LeaseState::Slots(admits)), None),
            );
            self.claims.push(Claim::new(&demand.units, usize::from(demand.limit_index), question.rate, kind));
        } else {
            let limits = self.limits;
            let cause = fallback_cause(shared_limit);
            self.reject_outright(
                demand.limit_index.into(),
                question.rate,
                &limits[usize::from(demand.limit_index)],
                cause,
            );
        }
    }
}

/// The cause of a rejection for lack of slots while the store does not answer.
pub(super) fn fallback_cause(shared_limit: &SharedLimit) -> ChainCause {
    if shared_limit.on_failure == OnFailure::Reject {
        ChainCause::Unavailable
    } else {
        ChainCause::Concurrency
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// Limits that the store rejects and this gateway's own share admits; none if any other limit rejects too.
    pub(super) fn find_locally_admitted(&self, now: Now) -> SmallVec<[u16; 2]> {
        let mut admitted = SmallVec::new();
        for ((demand, question), answer) in
            self.question_demands.iter().zip(&self.questions).zip(&self.answers)
        {
            let StoreAnswer::Answered { answer, .. } = answer else { continue };
            if question.dry_run || answer.decision.outcome != LimitOutcome::Reject {
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
        self.locally_admitted.contains(&demand.limit_index) || self.has_failed(demand)
    }
}
