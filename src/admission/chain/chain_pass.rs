//! One pass over a chain: judges the local limits at once, and collects the demands on shared ones.

use std::sync::Arc;

use smallvec::SmallVec;

use super::claim::{Claim, ClaimKind};
use super::store_query::{SharedDemand, SharedLimits, StoreQuery};
use super::{Chain, ChainCause, ChainPermit, ChainRejection, Decisions, RateDecision, WaitingRequest};
use crate::base::clock::Now;
use crate::limit::{Decision, Limit, LimitOutcome, Units};
use crate::shared::{SharedKey, SharedLimit};

/// The state of one pass over a chain.
pub(super) struct ChainPass<'a> {
    pub limits: &'a Arc<[Arc<Limit>]>,
    pub shared_limits: &'a SharedLimits,
    pub max_wait_ns: u64,
    pub now: Now,
    pub decisions: &'a mut Decisions,
    pub claims: SmallVec<[Claim; 4]>,
    /// Demands on shared limits, about which the store must be asked.
    pub shared_demands: Vec<SharedDemand>,
    /// The longest wait so far and the index of its limit.
    pub longest_wait: Option<(u64, u16)>,
    /// A waiter has to make room in a queue.
    pub displaces: bool,
    pub rejection: Option<PassRejection>,
}

#[derive(Clone, Copy)]
pub(super) struct PassRejection {
    pub cause: ChainCause,
    pub limit_index: usize,
    pub rate: usize,
    pub retry_after_ns: Option<u64>,
}

// === impl ChainPass ===

impl<'a> ChainPass<'a> {
    #[inline]
    pub fn new(chain: &'a Chain, now: Now, decisions: &'a mut Decisions) -> ChainPass<'a> {
        ChainPass {
            limits: &chain.limits,
            shared_limits: &chain.shared_limits,
            max_wait_ns: chain.max_wait_ns,
            now,
            decisions,
            claims: SmallVec::new(),
            shared_demands: Vec::new(),
            longest_wait: None,
            displaces: false,
            rejection: None,
        }
    }

    #[inline]
    pub fn charge_units(&mut self, limit_index: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.plan_slots(limit_index, limit, &units);
        }
        let before = self.claims.len();
        // A dry run is a transaction of its own: if one rate would reject, the others would not have counted the
        // request.
        let mut would_reject = false;
        for rate in limit.rate_range(units.variant) {
            if units.cost > limit.max_units(rate) {
                let decision = limit.peek_units(rate, &units, self.now).reject_forever();
                self.push_decision(limit_index, rate, limit, decision, ChainCause::TooCostly);
            } else if would_reject || self.rejection.is_some() {
                let decision = limit.peek_units(rate, &units, self.now);
                self.push_decision(limit_index, rate, limit, decision, rejection_cause(limit));
            } else {
                let (decision, charge) = limit.charge_units(rate, &units, self.now);
                if let Some(charge) = charge {
                    if charge.is_waiting()
                        && self.longest_wait.is_none_or(|(longest, _)| longest < decision.wait_ns)
                    {
                        self.longest_wait = Some((decision.wait_ns, limit_index as u16));
                    }
                    self.displaces |= charge.displaces();
                    let kind = ClaimKind::Charge(charge);
                    self.claims.push(Claim::new(&units, limit_index, rate, kind));
                }
                self.push_decision(limit_index, rate, limit, decision, rejection_cause(limit));
            }
            let rejects =
                |judged: &RateDecision| judged.dry_run && judged.decision.outcome == LimitOutcome::Reject;
            if !would_reject && self.decisions.last().is_some_and(rejects) {
                would_reject = true;
                self.undo_claims(before);
            }
        }
    }

    /// Plans a question about a limit that is counted in the store, unless the store's last rejection still holds.
    pub fn plan_shared(&mut self, limit_index: usize, limit: &Limit, units: Units, key: SharedKey) {
        let Some(Some(shared_limit)) = self.shared_limits.get(limit_index) else {
            return self.charge_units(limit_index, limit, units);
        };
        let too_costly = |rate: &usize| units.cost > limit.max_units(*rate);
        if let Some(rate) = limit.rate_range(units.variant).find(too_costly) {
            return self.reject_outright(limit_index, rate, limit, ChainCause::TooCostly);
        }
        let rejects = |rate: usize| shared_limit.known_rejection(rate, &units, self.now).is_some();
        if !limit.config.dry_run
            && limit.rate_range(units.variant).any(rejects)
            && shared_limit.admitting_share(&units, self.now).is_none()
        {
            shared_limit.count_cache_hit();
            return self.push_last_answers(limit_index, limit, shared_limit, &units);
        }
        self.shared_demands.push(SharedDemand { limit_index: limit_index as u16, units, key });
    }

    /// Adds the store's last decisions about a limit that it is not asked about now.
    fn push_last_answers(
        &mut self,
        limit_index: usize,
        limit: &Limit,
        shared_limit: &SharedLimit,
        units: &Units,
    ) {
        for rate in limit.rate_range(units.variant) {
            if let Some(decision) = shared_limit.last_decision(rate, units, self.now) {
                self.push_decision(limit_index, rate, limit, decision, rejection_cause(limit));
            }
        }
    }

    /// Cancels the questions to the store for a request that is rejected already.
    #[cold]
    fn cancel_questions(&mut self) {
        let limits = self.limits;
        for SharedDemand { limit_index, units, .. } in std::mem::take(&mut self.shared_demands) {
            let limit_index = usize::from(limit_index);
            if let Some(Some(shared_limit)) = self.shared_limits.get(limit_index) {
                self.push_last_answers(limit_index, &limits[limit_index], shared_limit, &units);
            }
        }
        self.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
    }

    /// Plans the slots of a concurrency limit; they are taken after the wait.
    fn plan_slots(&mut self, limit_index: usize, limit: &Limit, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        if units.cost <= limit.max_units(rate) {
            self.claims.push(Claim::new(units, limit_index, rate, ClaimKind::Slots(None)));
        } else {
            self.reject_outright(limit_index, rate, limit, ChainCause::TooCostly);
        }
    }

    #[cold]
    pub fn reject_missing_key(&mut self, limit_index: usize, limit: &Limit) {
        self.reject_outright(limit_index, 0, limit, ChainCause::MissingKey);
    }

    /// Records a rejection without numbers.
    pub fn reject_outright(&mut self, limit_index: usize, rate: usize, limit: &Limit, cause: ChainCause) {
        if limit.config.dry_run {
            self.push_decision(
                limit_index,
                rate,
                limit,
                Decision::without_numbers(LimitOutcome::Reject),
                cause,
            );
        } else {
            self.record_rejection(PassRejection { cause, limit_index, rate, retry_after_ns: None });
        }
    }

    #[inline]
    pub fn push_decision(
        &mut self,
        limit_index: usize,
        rate: usize,
        limit: &Limit,
        decision: Decision,
        cause: ChainCause,
    ) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(RateDecision {
            limit_index: limit_index as u16,
            rate: rate as u16,
            dry_run,
            decision,
        });
        if decision.outcome == LimitOutcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.record_rejection(PassRejection { cause, limit_index, rate, retry_after_ns });
        }
    }

    /// Keeps the rejection with the longest retry. The first one undoes all charges, those of dry runs too: they
    /// count only the units that they would have counted if enforced.
    fn record_rejection(&mut self, rejection: PassRejection) {
        let longest = |rejection: &PassRejection| rejection.retry_after_ns.unwrap_or(u64::MAX);
        match &self.rejection {
            None => {
                if !self.claims.is_empty() {
                    self.undo_claims(0);
                }
                self.rejection = Some(rejection);
            }
            Some(known) if longest(known) < longest(&rejection) => self.rejection = Some(rejection),
            Some(_) => {}
        }
    }

    /// The local limits have accepted; their charges are held until the store has answered.
    fn suspend_for_store(&mut self) -> ChainPermit {
        let query = StoreQuery {
            shared_demands: std::mem::take(&mut self.shared_demands),
            shared_limits: self.shared_limits.clone(),
            max_wait_ns: self.max_wait_ns,
            displaces: self.displaces,
        };
        let claims = std::mem::take(&mut self.claims);
        let permit = ChainPermit::new(self.limits.clone(), claims, self.now, self.longest_wait, None);
        permit.with_query(query)
    }

    /// Refunds every charge from claim `from` on, and restores the numbers as if nothing had been taken.
    #[cold]
    fn undo_claims(&mut self, from: usize) {
        for claim in self.claims.drain(from..) {
            let ClaimKind::Charge(charge) = claim.kind else { continue };
            let (limit_index, rate) = (usize::from(claim.limit_index), usize::from(claim.rate));
            let limit = &self.limits[limit_index];
            limit.refund_charge(rate, &claim.table_key(), claim.cost, &charge, || self.now);
            let Decision { remaining, reset_ns, .. } = limit.peek_units(rate, &claim.to_units(), self.now);
            for judged in self.decisions.iter_mut() {
                if usize::from(judged.limit_index) == limit_index && usize::from(judged.rate) == rate {
                    judged.decision = Decision { remaining, reset_ns, ..judged.decision };
                }
            }
        }
    }

    /// Displaces waiters, once all limits have accepted: a request that is rejected itself displaces no other.
    #[cold]
    fn displace_waiters(&self) {
        for claim in &self.claims {
            let ClaimKind::Charge(charge) = claim.kind else { continue };
            if charge.displaces() {
                self.limits[usize::from(claim.limit_index)].displace_waiter(
                    claim.rate.into(),
                    &claim.table_key(),
                    &charge,
                    self.now,
                );
            }
        }
    }

    /// Adds the request to the cap on waiting requests and returns its weight.
    ///
    /// # Errors
    /// The request may not wait, although all limits have accepted it.
    #[cold]
    fn begin_wait(
        &self,
        (wait_ns, limit_index): (u64, u16),
        waiter: WaitingRequest<'_>,
    ) -> Result<u32, ChainRejection> {
        if wait_ns > self.max_wait_ns {
            return Err(ChainRejection::queued_too_long(&self.limits[usize::from(limit_index)]));
        }
        let weight = waiter.compute_weight();
        if waiter.cap.add_weight(weight) { Ok(weight) } else { Err(ChainRejection::from_overload()) }
    }

    #[inline]
    pub fn finish_pass(
        &mut self,
        waiter: WaitingRequest<'_>,
        permit: &mut Option<ChainPermit>,
    ) -> Option<ChainRejection> {
        if !self.shared_demands.is_empty() {
            if self.rejection.is_none() {
                *permit = Some(self.suspend_for_store());
                return None;
            }
            self.cancel_questions();
        }
        if let Some(rejection) = self.rejection {
            let limit = Some(self.limits[rejection.limit_index].clone());
            let PassRejection { cause, rate, retry_after_ns, .. } = rejection;
            return Some(ChainRejection { cause, limit, rate, retry_after_ns });
        }
        let waiting = match self.longest_wait.map(|longest| self.begin_wait(longest, waiter)) {
            Some(Ok(weight)) => Some((waiter.cap.clone(), weight)),
            None => None,
            Some(Err(rejection)) => {
                self.undo_claims(0);
                return Some(rejection);
            }
        };
        if self.displaces {
            self.displace_waiters();
        }
        let claims = std::mem::take(&mut self.claims);
        *permit = Some(ChainPermit::new(self.limits.clone(), claims, self.now, self.longest_wait, waiting));
        None
    }
}

/// The cause to report when a rate of `limit` rejects.
#[inline]
pub(super) fn rejection_cause(limit: &Limit) -> ChainCause {
    if limit.has_queue() { ChainCause::Queue } else { ChainCause::Rate }
}
