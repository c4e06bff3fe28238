//! What judges a shared limit where the store does not: its `on_failure`, or this gateway's own part of it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::chain_pass::ChainPass;
use super::pending_slots::PendingSlots;
use super::permit::{Claim, ClaimKind};
use super::store_lease::{LeaseState, PendingDebt, RateLease, StoreLease};
use super::store_round::{LimitQuestion, StoreQuery, StoreRound};
use super::{ChainCause, ChainPermit};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Limit, LimitOutcome};
use crate::shared::{SharedLimit, StoreAnswer};

// === impl Passage ===

impl ChainPermit {
    /// The limits, with the local share of each rate that is judged here.
    pub(super) fn limits_with_shares(
        &self,
        asking: &StoreQuery,
        heard: &StoreRound<'_>,
    ) -> Arc<[Arc<Limit>]> {
        let local = |asked: &&LimitQuestion| {
            let goes_on = asking.shared_limit(asked).is_some_and(|side| side.on_failure == OnFailure::Local);
            let is_concurrency = self.limits[usize::from(asked.limit_index)].is_concurrency();
            heard.locally_admitted.contains(&asked.limit_index)
                || heard.has_failed(asked) && goes_on && !is_concurrency
        };
        if !asking.limit_questions.iter().any(|asked| local(&asked)) {
            return self.limits.clone();
        }
        let mut limits: Vec<Arc<Limit>> = self.limits.to_vec();
        for asked in asking.limit_questions.iter().filter(local) {
            if let Some(side) = asking.shared_limit(asked) {
                limits[usize::from(asked.limit_index)] = side.local_share();
            }
        }
        limits.into()
    }
}

// === impl Judging ===

impl ChainPass<'_> {
    /// Judges rates by the `on_failure` of their limit, or by this gateway's own part. What counts locally stands in
    /// `limits` already.
    pub(super) fn judge_fallback(
        &mut self,
        asked: &LimitQuestion,
        side: &Arc<SharedLimit>,
        heard: &StoreRound<'_>,
        hold: &mut StoreLease,
    ) {
        let place = usize::from(asked.limit_index);
        let limits = self.limits;
        let limit = &limits[place];
        let owing = || PendingDebt {
            limit: side.clone(),
            limit_index: asked.limit_index,
            key: asked.key,
            units: asked.units,
        };
        if heard.locally_admitted.contains(&asked.limit_index) {
            hold.add_debt(owing());
            return self.charge_units(place, limit, limit.cap_units(asked.units));
        }
        if limit.is_concurrency() {
            return;
        }
        side.count_fallback();
        match side.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => self.reject_outright(place, 0, limit, ChainCause::Unavailable),
            OnFailure::Local => {
                let units = limit.cap_units(asked.units);
                limit.rate_range(units.variant).for_each(|rate| side.seed_share(limit, rate, &units));
                hold.add_debt(owing());
                self.charge_units(place, limit, units);
            }
        }
    }

    /// Judges slots by the `on_failure` of their limit: what this process holds counts, whichever way it was admitted.
    pub(super) fn judge_slots_fallback(
        &mut self,
        heard: &StoreRound<'_>,
        place: usize,
        hold: &mut StoreLease,
        begun: &mut PendingSlots<'_>,
    ) {
        let (asked, question) = (&heard.limit_questions[place], &heard.questions[place]);
        let side = question.limit;
        side.count_fallback();
        let admits = side.admits_locally(question.rate, question.key, question.in_process);
        match admits {
            true => begun.mark_kept(question, heard.answers.get(place)),
            false => begun.mark_failed(question, heard.answers.get(place)),
        }
        if admits || question.dry_run {
            let hold = ClaimKind::Shared(
                hold.add_lease(RateLease::new(asked, question, LeaseState::Slots(admits)), None),
            );
            self.claims.push(Claim::new(&asked.units, usize::from(asked.limit_index), question.rate, hold));
        } else {
            let limits = self.limits;
            let cause = fallback_cause(side);
            self.reject_outright(
                asked.limit_index.into(),
                question.rate,
                &limits[usize::from(asked.limit_index)],
                cause,
            );
        }
    }
}

/// Why a request has no slots while the store does not answer.
pub(super) fn fallback_cause(side: &SharedLimit) -> ChainCause {
    if side.on_failure == OnFailure::Reject { ChainCause::Unavailable } else { ChainCause::Concurrency }
}

// === impl Heard ===

impl StoreRound<'_> {
    /// Limits that the store refuses and that this gateway's own part of them admits; none if another one refuses too.
    pub(super) fn find_locally_admitted(&self, now: Now) -> SmallVec<[u16; 2]> {
        let mut admitted = SmallVec::new();
        for ((asked, question), said) in self.limit_questions.iter().zip(&self.questions).zip(&self.answers) {
            let StoreAnswer::Answered { answer, .. } = said else { continue };
            if question.dry_run || answer.decision.outcome != LimitOutcome::Reject {
                continue;
            }
            if question.limit.admitting_share(&asked.units, now).is_none() {
                return SmallVec::new();
            }
            if !admitted.contains(&asked.limit_index) {
                admitted.push(asked.limit_index);
            }
        }
        admitted
    }

    /// The store does not decide about the limit.
    pub(super) fn is_judged_locally(&self, asked: &LimitQuestion) -> bool {
        self.locally_admitted.contains(&asked.limit_index) || self.has_failed(asked)
    }
}
