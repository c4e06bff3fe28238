//! One pass over a chain: judges the local limits at once, and collects the demands on shared ones.

use std::marker::PhantomData;
use std::sync::Arc;

use super::claim::{Claim, ClaimKind};
use super::claim_set::ClaimSet;
use super::findings::{PassFindings, PassRejection};
use super::lacking_slots::wait_for_store_slots;
use super::mode::ChainMode;
use super::queued::Queued;
use super::shared_demand::SharedDemand;
use super::slot_wait::SlotWait;
use super::store_query::{PendingStore, StoreQuery};
use super::{
    Chain, ChainCause, ChainPermit, ChainRejection, ChainVerdict, ChainedLimit, Decisions, QueueTerms,
    RateDecision, WaitingRequest,
};
use crate::base::clock::Now;
use crate::limit::{Decision, Limit, LimitOutcome, SlotOutlook, Units};
use crate::shared::{SharedKey, SharedLimit};

/// The state of one pass over a chain.
pub(super) struct ChainPass<'a, M: ChainMode> {
    pub limits: &'a Arc<[ChainedLimit]>,
    pub held: ClaimSet,
    pub decisions: &'a mut Decisions,
    /// Demands on shared limits, about which the store must be asked.
    pub shared_demands: Vec<SharedDemand>,
    pub findings: PassFindings,
    mode: PhantomData<M>,
}

// === impl ChainPass ===

impl<'a, M: ChainMode> ChainPass<'a, M> {
    #[inline]
    pub fn new(chain: &'a Chain, now: Now, takes_slots: bool, decisions: &'a mut Decisions) -> Self {
        let findings = PassFindings {
            max_wait_ns: chain.max_wait_ns,
            takes_slots,
            wants_slots: false,
            displaces: false,
            longest_wait: None,
            rejection: None,
            lacking: None,
            slot_wait: None,
            lacking_slots: None,
        };
        ChainPass::resume(&chain.limits, ClaimSet::new(&chain.limits, now), findings, decisions)
    }

    /// Continues with what an earlier pass has taken and found.
    #[inline]
    pub fn resume(
        limits: &'a Arc<[ChainedLimit]>,
        held: ClaimSet,
        findings: PassFindings,
        decisions: &'a mut Decisions,
    ) -> Self {
        ChainPass { limits, held, decisions, shared_demands: Vec::new(), findings, mode: PhantomData }
    }

    #[inline]
    pub fn judge_units(&mut self, limit_index: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.judge_slots(limit_index, limit, &units);
        }
        let now = self.held.judged_at;
        let before = self.held.claims.len();
        // A dry run is a transaction of its own: if one rate would reject, the others would not have counted the
        // request.
        let mut would_reject = false;
        for rate in limit.rate_range(units.variant) {
            let mut cause = rejection_cause(limit);
            let decision = if units.cost > limit.max_units(rate) {
                cause = ChainCause::TooCostly;
                limit.peek_units(rate, &units, now).reject_forever()
            } else if !M::CHARGES || would_reject || self.findings.rejection.is_some() {
                limit.peek_units(rate, &units, now)
            } else {
                let (decision, charge) = limit.charge_units(rate, &units, now);
                if let Some(charge) = charge {
                    self.findings.displaces |= charge.displaces();
                    let kind = ClaimKind::Charge(charge);
                    self.held.claims.push(Claim::new(&units, limit_index, rate, kind));
                }
                decision
            };
            self.push_decision(limit_index, rate, limit, decision, cause);
            match decision.outcome {
                LimitOutcome::Admit => {}
                LimitOutcome::Wait if !limit.config.dry_run => self.note_wait(decision.wait_ns, limit_index),
                LimitOutcome::Reject if limit.config.dry_run && !would_reject => {
                    would_reject = true;
                    self.held.undo_claims(before, self.decisions);
                }
                LimitOutcome::Wait | LimitOutcome::Reject => {}
            }
        }
    }

    pub fn note_wait(&mut self, wait_ns: u64, limit_index: usize) {
        if self.findings.longest_wait.is_none_or(|(longest, _)| longest < wait_ns) {
            self.findings.longest_wait = Some((wait_ns, limit_index as u16));
        }
    }

    /// Plans a question about a limit that is counted in the store, unless the store's last rejection still holds.
    pub fn judge_shared(
        &mut self,
        limit_index: usize,
        limit: &Limit,
        shared_limit: &Arc<SharedLimit>,
        units: Units,
        key: SharedKey,
    ) {
        let too_costly = |rate: &usize| units.cost > limit.max_units(*rate);
        if let Some(rate) = limit.rate_range(units.variant).find(too_costly) {
            return self.reject_outright(limit_index, rate, limit, ChainCause::TooCostly);
        }
        if limit.is_concurrency() && !self.findings.takes_slots {
            return;
        }
        let now = self.held.judged_at;
        let rejects = |rate: usize| shared_limit.known_rejection(rate, &units, now).is_some();
        let demand =
            SharedDemand { limit: shared_limit.clone(), limit_index: limit_index as u16, units, key };
        if !limit.config.dry_run
            && limit.rate_range(units.variant).any(rejects)
            && shared_limit.admitting_share(&units, now).is_none()
        {
            if M::CHARGES {
                shared_limit.count_cache_hit();
            }
            return self.push_last_answers(limit, &demand);
        }
        self.shared_demands.push(demand);
    }

    /// Adds the store's last decisions about a limit that it is not asked about now.
    fn push_last_answers(&mut self, limit: &Limit, demand: &SharedDemand) {
        for rate in limit.rate_range(demand.units.variant) {
            if let Some(decision) = demand.limit.last_decision(rate, &demand.units, self.held.judged_at) {
                let cause = rejection_cause(limit);
                self.push_decision(demand.limit_index.into(), rate, limit, decision, cause);
            }
        }
    }

    /// Cancels the questions to the store for a request that is rejected already.
    #[cold]
    fn cancel_questions(&mut self) {
        let limits = self.limits;
        for demand in std::mem::take(&mut self.shared_demands) {
            self.push_last_answers(&limits[usize::from(demand.limit_index)], &demand);
        }
        self.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
    }

    /// Plans the slots of a concurrency limit; they are taken after the wait.
    fn judge_slots(&mut self, limit_index: usize, limit: &Limit, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        let capacity = limit.max_units(rate);
        if units.cost > capacity {
            self.reject_outright(limit_index, rate, limit, ChainCause::TooCostly);
        } else if M::CHARGES && self.findings.takes_slots {
            self.findings.wants_slots = true;
            let kind = ClaimKind::WantedSlots { fair: units.fair_hash };
            self.held.claims.push(Claim::new(units, limit_index, rate, kind));
        }
        if !M::CHARGES && self.findings.takes_slots {
            let outlook = limit.peek_slots(rate, units, self.held.judged_at);
            self.push_slots((limit_index, rate), limit, outlook);
        }
    }

    /// Adds the decision of a concurrency limit to a look.
    pub fn push_slots(&mut self, (limit_index, rate): (usize, usize), limit: &Limit, outlook: SlotOutlook) {
        let SlotOutlook { outcome, free, position, wait_ns } = outlook;
        let decision = Decision { remaining: free, retry_after_ns: 0, ..Decision::without_numbers(outcome) };
        let dry_run = limit.config.dry_run;
        self.decisions.push(RateDecision::new(limit_index, rate, dry_run, decision));
        match outcome {
            LimitOutcome::Reject if !dry_run => {
                let wait_ns = limit.has_slot_queue(rate).then_some(wait_ns);
                self.note_lacking(ChainCause::Concurrency, limit_index, rate, wait_ns);
            }
            // It stands in the queue of the first limit that has too few slots.
            LimitOutcome::Wait if !dry_run && self.findings.lacking.is_none() => {
                self.findings.slot_wait.get_or_insert((position, limit_index as u16));
            }
            _ => {}
        }
    }

    /// Notes that slots are not free. `wait_ns`: the wait that a request has to expect.
    pub fn note_lacking(&mut self, cause: ChainCause, limit_index: usize, rate: usize, wait_ns: Option<u64>) {
        let lacking = PassRejection::new(cause, limit_index, rate, wait_ns);
        if self.findings.slot_wait.is_none() {
            self.findings.lacking.get_or_insert(lacking);
        }
    }

    #[cold]
    pub fn reject_missing_key(&mut self, limit_index: usize, limit: &Limit) {
        self.reject_outright(limit_index, 0, limit, ChainCause::MissingKey);
    }

    /// Records a rejection without numbers; a look has nothing to show of a dry run then.
    pub fn reject_outright(&mut self, limit_index: usize, rate: usize, limit: &Limit, cause: ChainCause) {
        if !limit.config.dry_run {
            self.record_rejection(PassRejection::new(cause, limit_index, rate, None));
        } else if M::CHARGES {
            let decision = Decision::without_numbers(LimitOutcome::Reject);
            self.push_decision(limit_index, rate, limit, decision, cause);
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
        self.decisions.push(RateDecision::new(limit_index, rate, dry_run, decision));
        if decision.outcome == LimitOutcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.record_rejection(PassRejection::new(cause, limit_index, rate, retry_after_ns));
        }
    }

    /// Keeps the rejection with the longest retry. The first one undoes all charges, those of dry runs too: they
    /// count only the units that they would have counted if enforced.
    fn record_rejection(&mut self, rejection: PassRejection) {
        let longest = |rejection: &PassRejection| rejection.retry_after_ns.unwrap_or(u64::MAX);
        match &self.findings.rejection {
            None => {
                if !self.held.claims.is_empty() {
                    self.held.undo_claims(0, self.decisions);
                }
                self.findings.rejection = Some(rejection);
            }
            Some(known) if longest(known) < longest(&rejection) => {
                self.findings.rejection = Some(rejection);
            }
            Some(_) => {}
        }
    }

    /// Ends the pass over the limits: their verdict, or the questions to the store. A look asks about a request that
    /// is rejected here, too, but only to show the answers.
    pub fn finish_limits(
        mut self,
        waiter: WaitingRequest<'_>,
        verdict: &mut Option<ChainVerdict<PendingStore<M>>>,
    ) {
        if !self.shared_demands.is_empty() {
            if self.findings.rejection.is_none() || !M::CHARGES {
                *verdict = Some(ChainVerdict::AskStore(self.suspend()));
                return;
            }
            self.cancel_questions();
        }
        *verdict = Some(self.conclude(waiter));
    }

    /// Holds the charges of the local limits until the store has answered.
    #[cold]
    fn suspend(self) -> PendingStore<M> {
        let ChainPass { held, shared_demands, findings, .. } = self;
        PendingStore { held, query: Box::new(StoreQuery { shared_demands, findings }), mode: PhantomData }
    }

    /// The verdict on a request that all limits have judged.
    #[cold]
    pub fn conclude<P>(mut self, waiter: WaitingRequest<'_>) -> ChainVerdict<P> {
        if let Some(rejection) = self.findings.rejection {
            return ChainVerdict::Reject(self.build_rejection(rejection));
        }
        if waiter.hold_ns > 0 {
            self.note_hold(waiter.hold_ns);
        }
        if let Some(longest) = self.findings.longest_wait {
            return self.begin_wait(longest, waiter);
        }
        if let Some(lacking) = self.findings.lacking {
            return ChainVerdict::Reject(self.build_rejection(lacking));
        }
        if self.findings.displaces {
            self.held.displace_waiters();
        }
        if let Some(slot_wait) = self.findings.slot_wait {
            return match waiter.take_place::<M>() {
                Some(place) => ChainVerdict::Wait(Queued::for_slots(
                    self.held,
                    Some(place),
                    SlotWait::default(),
                    slot_wait,
                )),
                None => ChainVerdict::Reject(ChainRejection::from_overload()),
            };
        }
        if let Some(lacking) = self.findings.lacking_slots {
            return wait_for_store_slots(self.held, lacking, waiter, self.decisions);
        }
        if self.findings.wants_slots
            && let Err(index) = self.held.take_local_slots(self.held.judged_at)
        {
            return self.wait_for_slots(index, waiter);
        }
        ChainVerdict::Admit(ChainPermit::new(self.held))
    }

    /// Makes a request wait that its upstream stops, if a queue allows that; otherwise it is rejected later.
    #[cold]
    fn note_hold(&mut self, hold_ns: u64) {
        let terms = QueueTerms::find(self.limits, self.decisions);
        if let Some(terms) = terms.filter(|terms| hold_ns <= terms.max_wait_ns) {
            self.note_wait(hold_ns, terms.limit_index.into());
        }
    }

    /// Adds the request to those that wait for slots; `index` is the claim whose limit has too few.
    #[cold]
    fn wait_for_slots<P>(mut self, mut index: usize, waiter: WaitingRequest<'_>) -> ChainVerdict<P> {
        let now = self.held.judged_at;
        let mut place = None;
        loop {
            let claim = &self.held.claims[index];
            let (rate, limit_index) = (usize::from(claim.rate), claim.limit_index);
            if place.is_none() && self.limits[usize::from(limit_index)].has_slot_queue(rate) {
                place = waiter.take_place::<M>();
                if place.is_none() {
                    self.held.undo_claims(0, self.decisions);
                    return ChainVerdict::Reject(ChainRejection::from_overload());
                }
            }
            match self.held.join_slot_queue(index, now) {
                Ok(Some(slot_place)) => {
                    self.held.put_slots_back(None);
                    if let Some(lease) = &mut self.held.store_lease {
                        lease.postpone_slots();
                    }
                    let slots = SlotWait::in_place(slot_place);
                    return ChainVerdict::Wait(Queued::for_slots(self.held, place, slots, (0, limit_index)));
                }
                Ok(None) => match self.held.take_local_slots(now) {
                    Ok(()) => return ChainVerdict::Admit(ChainPermit::new(self.held)),
                    Err(next) => index = next,
                },
                Err(rejection) => return ChainVerdict::Reject(rejection),
            }
        }
    }

    pub fn build_rejection(&self, rejection: PassRejection) -> ChainRejection {
        let PassRejection { cause, limit_index, rate, retry_after_ns } = rejection;
        let limit = &self.limits[usize::from(limit_index)];
        let rejected = ChainRejection::outright(cause, limit, rate.into());
        ChainRejection { retry_after_ns, ..rejected }
    }

    /// Adds the request to the waiting ones, unless it may not wait although all limits have accepted it.
    #[cold]
    fn begin_wait<P>(
        mut self,
        (wait_ns, limit_index): (u64, u16),
        waiter: WaitingRequest<'_>,
    ) -> ChainVerdict<P> {
        let rejection = if wait_ns > self.findings.max_wait_ns {
            let limit = &self.limits[usize::from(limit_index)];
            ChainRejection::outright(ChainCause::WaitTooLong, limit, 0)
        } else if let Some(place) = waiter.take_place::<M>() {
            if self.findings.displaces {
                self.held.displace_waiters();
            }
            return ChainVerdict::Wait(Queued::new(self.held, place, (wait_ns, limit_index)));
        } else {
            ChainRejection::from_overload()
        };
        self.held.undo_claims(0, self.decisions);
        ChainVerdict::Reject(rejection)
    }
}

/// The cause to report when a rate of `limit` rejects.
#[inline]
pub(super) fn rejection_cause(limit: &Limit) -> ChainCause {
    if limit.has_queue() { ChainCause::Queue } else { ChainCause::Rate }
}
