//! One run over a chain: what the local limits say at once, and what is left to ask the store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::permit::{Claim, ClaimKind};
use super::store_round::{LimitQuestion, SharedLimits, StoreQuery};
use super::{Chain, ChainCause, ChainPermit, ChainRejection, Decisions, RateDecision, WaitingRequest};
use crate::base::clock::Now;
use crate::limit::{Decision, Limit, LimitOutcome, Units};
use crate::shared::{SharedKey, SharedLimit};

/// One run over the chain.
pub(super) struct ChainPass<'a> {
    pub limits: &'a Arc<[Arc<Limit>]>,
    pub shared_limits: &'a SharedLimits,
    pub max_wait_ns: u64,
    pub now: Now,
    pub decisions: &'a mut Decisions,
    pub claims: SmallVec<[Claim; 4]>,
    /// Limits that the store has still to be asked about.
    pub limit_questions: Vec<LimitQuestion>,
    /// The longest wait so far and the place of its limit.
    pub longest_wait: Option<(u64, u16)>,
    /// Somebody has to make room in a queue.
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

// === impl Judging ===

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
            limit_questions: Vec::new(),
            longest_wait: None,
            displaces: false,
            rejection: None,
        }
    }

    #[inline]
    pub fn charge_units(&mut self, place: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.plan_slots(place, limit, &units);
        }
        let before = self.claims.len();
        // A dry run is a transaction of its own: what one rate would refuse, the others would not have counted.
        let mut would_refuse = false;
        for rate in limit.rate_range(units.variant) {
            if units.cost > limit.max_units(rate) {
                let decision = limit.peek_units(rate, &units, self.now).reject_forever();
                self.push_decision(place, rate, limit, decision, ChainCause::TooCostly);
            } else if would_refuse || self.rejection.is_some() {
                let decision = limit.peek_units(rate, &units, self.now);
                self.push_decision(place, rate, limit, decision, rejection_cause(limit));
            } else {
                let (decision, charge) = limit.charge_units(rate, &units, self.now);
                if let Some(charge) = charge {
                    if charge.is_waiting()
                        && self.longest_wait.is_none_or(|(longest, _)| longest < decision.wait_ns)
                    {
                        self.longest_wait = Some((decision.wait_ns, place as u16));
                    }
                    self.displaces |= charge.displaces();
                    let hold = ClaimKind::Charge(charge);
                    self.claims.push(Claim::new(&units, place, rate, hold));
                }
                self.push_decision(place, rate, limit, decision, rejection_cause(limit));
            }
            let rejects =
                |judged: &RateDecision| judged.dry_run && judged.decision.outcome == LimitOutcome::Reject;
            if !would_refuse && self.decisions.last().is_some_and(rejects) {
                would_refuse = true;
                self.undo_claims(before);
            }
        }
    }

    /// A limit that is counted in the store: to be asked about, unless the store's last refusal still holds.
    pub fn plan_shared(&mut self, place: usize, limit: &Limit, units: Units, key: SharedKey) {
        let Some(Some(side)) = self.shared_limits.get(place) else {
            return self.charge_units(place, limit, units);
        };
        let too_costly = |rate: &usize| units.cost > limit.max_units(*rate);
        if let Some(rate) = limit.rate_range(units.variant).find(too_costly) {
            return self.reject_outright(place, rate, limit, ChainCause::TooCostly);
        }
        let refuses = |rate: usize| side.known_rejection(rate, &units, self.now).is_some();
        if !limit.config.dry_run
            && limit.rate_range(units.variant).any(refuses)
            && side.admitting_share(&units, self.now).is_none()
        {
            side.count_spared();
            return self.push_last_answers(place, limit, side, &units);
        }
        self.limit_questions.push(LimitQuestion { limit_index: place as u16, units, key });
    }

    /// Tells what the store said last about a limit that it is not asked about now.
    fn push_last_answers(&mut self, place: usize, limit: &Limit, side: &SharedLimit, units: &Units) {
        for rate in limit.rate_range(units.variant) {
            if let Some(decision) = side.last_decision(rate, units, self.now) {
                self.push_decision(place, rate, limit, decision, rejection_cause(limit));
            }
        }
    }

    /// A request that is refused already: nobody asks the store for it.
    #[cold]
    fn cancel_questions(&mut self) {
        let limits = self.limits;
        for LimitQuestion { limit_index: place, units, .. } in std::mem::take(&mut self.limit_questions) {
            let place = usize::from(place);
            if let Some(Some(side)) = self.shared_limits.get(place) {
                self.push_last_answers(place, &limits[place], side, &units);
            }
        }
        self.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
    }

    /// A concurrency limit is only noted here: its slots are taken after the wait.
    fn plan_slots(&mut self, place: usize, limit: &Limit, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        if units.cost <= limit.max_units(rate) {
            self.claims.push(Claim::new(units, place, rate, ClaimKind::Slots(None)));
        } else {
            self.reject_outright(place, rate, limit, ChainCause::TooCostly);
        }
    }

    #[cold]
    pub fn reject_missing_key(&mut self, place: usize, limit: &Limit) {
        self.reject_outright(place, 0, limit, ChainCause::MissingKey);
    }

    /// A refusal without numbers.
    pub fn reject_outright(&mut self, place: usize, rate: usize, limit: &Limit, cause: ChainCause) {
        if limit.config.dry_run {
            self.push_decision(place, rate, limit, Decision::without_numbers(LimitOutcome::Reject), cause);
        } else {
            self.record_rejection(PassRejection { cause, limit_index: place, rate, retry_after_ns: None });
        }
    }

    #[inline]
    pub fn push_decision(
        &mut self,
        place: usize,
        rate: usize,
        limit: &Limit,
        decision: Decision,
        cause: ChainCause,
    ) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(RateDecision { limit_index: place as u16, rate: rate as u16, dry_run, decision });
        if decision.outcome == LimitOutcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.record_rejection(PassRejection { cause, limit_index: place, rate, retry_after_ns });
        }
    }

    /// Keeps the refusal with the longest retry; the first one undoes what was charged, in dry runs, too: they count
    /// what they would have counted if they were enforced.
    fn record_rejection(&mut self, refused: PassRejection) {
        let longest = |refused: &PassRejection| refused.retry_after_ns.unwrap_or(u64::MAX);
        match &self.rejection {
            None => {
                if !self.claims.is_empty() {
                    self.undo_claims(0);
                }
                self.rejection = Some(refused);
            }
            Some(known) if longest(known) < longest(&refused) => self.rejection = Some(refused),
            Some(_) => {}
        }
    }

    /// The local limits have accepted; what they were charged is held until the store has spoken.
    fn suspend_for_store(&mut self) -> ChainPermit {
        let asking = StoreQuery {
            limit_questions: std::mem::take(&mut self.limit_questions),
            shared_limits: self.shared_limits.clone(),
            max_wait_ns: self.max_wait_ns,
            displaces: self.displaces,
        };
        let claims = std::mem::take(&mut self.claims);
        let passage = ChainPermit::new(self.limits.clone(), claims, self.now, self.longest_wait, None);
        passage.with_query(asking)
    }

    /// Refunds every charge from claim `from` on and tells the numbers as if nothing had been taken.
    #[cold]
    fn undo_claims(&mut self, from: usize) {
        for claim in self.claims.drain(from..) {
            let ClaimKind::Charge(charge) = claim.kind else { continue };
            let (place, rate) = (usize::from(claim.limit_index), usize::from(claim.rate));
            let limit = &self.limits[place];
            limit.refund_charge(rate, &claim.table_key(), claim.cost, &charge, || self.now);
            let Decision { remaining, reset_ns, .. } = limit.peek_units(rate, &claim.to_units(), self.now);
            for judged in self.decisions.iter_mut() {
                if usize::from(judged.limit_index) == place && usize::from(judged.rate) == rate {
                    judged.decision = Decision { remaining, reset_ns, ..judged.decision };
                }
            }
        }
    }

    /// Only now, when all have accepted: a request that is refused itself displaces nobody.
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

    /// Begins to wait; what it counts for meanwhile.
    ///
    /// # Errors
    /// It must not wait although all have accepted it.
    #[cold]
    fn begin_wait(
        &self,
        (wait_ns, place): (u64, u16),
        waiter: WaitingRequest<'_>,
    ) -> Result<u32, ChainRejection> {
        if wait_ns > self.max_wait_ns {
            return Err(ChainRejection::queued_too_long(&self.limits[usize::from(place)]));
        }
        let weight = waiter.compute_weight();
        if waiter.cap.add_weight(weight) { Ok(weight) } else { Err(ChainRejection::from_overload()) }
    }

    #[inline]
    pub fn finish_pass(
        &mut self,
        waiter: WaitingRequest<'_>,
        passage: &mut Option<ChainPermit>,
    ) -> Option<ChainRejection> {
        if !self.limit_questions.is_empty() {
            if self.rejection.is_none() {
                *passage = Some(self.suspend_for_store());
                return None;
            }
            self.cancel_questions();
        }
        if let Some(refused) = self.rejection {
            let limit = Some(self.limits[refused.limit_index].clone());
            let PassRejection { cause, rate, retry_after_ns, .. } = refused;
            return Some(ChainRejection { cause, limit, rate, retry_after_ns });
        }
        let waiting = match self.longest_wait.map(|longest| self.begin_wait(longest, waiter)) {
            Some(Ok(weight)) => Some((waiter.cap.clone(), weight)),
            None => None,
            Some(Err(refusal)) => {
                self.undo_claims(0);
                return Some(refusal);
            }
        };
        if self.displaces {
            self.displace_waiters();
        }
        let claims = std::mem::take(&mut self.claims);
        *passage = Some(ChainPermit::new(self.limits.clone(), claims, self.now, self.longest_wait, waiting));
        None
    }
}

/// What a refusal by `limit` is called.
#[inline]
pub(super) fn rejection_cause(limit: &Limit) -> ChainCause {
    if limit.has_queue() { ChainCause::Queue } else { ChainCause::Rate }
}
