//! One run over a chain: what the local limits say at once, and what is left to ask the store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::passage::{Claim, Hold};
use super::shared_pass::{Asked, Asking, Sides};
use super::{Cause, Chain, Decisions, Judged, Passage, Refusal, Waiter};
use crate::base::clock::Now;
use crate::limit::{Decision, Limit, Outcome, Units};
use crate::shared::{SharedKey, SharedLimit};

/// One run over the chain.
pub(super) struct Judging<'a> {
    pub limits: &'a Arc<[Arc<Limit>]>,
    pub sides: &'a Sides,
    pub patience_ns: u64,
    pub now: Now,
    pub decisions: &'a mut Decisions,
    pub claims: SmallVec<[Claim; 4]>,
    /// Limits that the store has still to be asked about.
    pub asked: Vec<Asked>,
    /// The longest wait so far and the place of its limit.
    pub longest: Option<(u64, u16)>,
    /// Somebody has to make room in a queue.
    pub displaces: bool,
    pub refused: Option<Refused>,
}

#[derive(Clone, Copy)]
pub(super) struct Refused {
    pub cause: Cause,
    pub place: usize,
    pub rate: usize,
    pub retry_after_ns: Option<u64>,
}

// === impl Judging ===

impl<'a> Judging<'a> {
    #[inline]
    pub fn new(chain: &'a Chain, now: Now, decisions: &'a mut Decisions) -> Judging<'a> {
        Judging {
            limits: &chain.limits,
            sides: &chain.shared,
            patience_ns: chain.patience_ns,
            now,
            decisions,
            claims: SmallVec::new(),
            asked: Vec::new(),
            longest: None,
            displaces: false,
            refused: None,
        }
    }

    #[inline]
    pub fn units(&mut self, place: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.slots(place, limit, &units);
        }
        let before = self.claims.len();
        // A dry run is a transaction of its own: what one rate would refuse, the others would not have counted.
        let mut would_refuse = false;
        for rate in limit.rates(units.variant) {
            if units.cost > limit.capacity(rate) {
                let decision = limit.peek(rate, &units, self.now).never();
                self.note(place, rate, limit, decision, Cause::TooCostly);
            } else if would_refuse || self.refused.is_some() {
                let decision = limit.peek(rate, &units, self.now);
                self.note(place, rate, limit, decision, cause(limit));
            } else {
                let (decision, charge) = limit.charge(rate, &units, self.now);
                if let Some(charge) = charge {
                    if charge.waits() && self.longest.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                        self.longest = Some((decision.wait_ns, place as u16));
                    }
                    self.displaces |= charge.displaces();
                    let hold = Hold::Charge(charge);
                    self.claims.push(Claim::new(&units, place, rate, hold));
                }
                self.note(place, rate, limit, decision, cause(limit));
            }
            let rejects = |judged: &Judged| judged.dry_run && judged.decision.outcome == Outcome::Reject;
            if !would_refuse && self.decisions.last().is_some_and(rejects) {
                would_refuse = true;
                self.undo(before);
            }
        }
    }

    /// A limit that is counted in the store: to be asked about, unless the store's last refusal still holds.
    pub fn shared(&mut self, place: usize, limit: &Limit, units: Units, key: SharedKey) {
        let Some(Some(side)) = self.sides.get(place) else { return self.units(place, limit, units) };
        let too_costly = |rate: &usize| units.cost > limit.capacity(*rate);
        if let Some(rate) = limit.rates(units.variant).find(too_costly) {
            return self.refuse_outright(place, rate, limit, Cause::TooCostly);
        }
        let refuses = |rate: usize| side.refused(rate, &units, self.now).is_some();
        if !limit.config.dry_run
            && limit.rates(units.variant).any(refuses)
            && side.own_part(&units, self.now).is_none()
        {
            side.spare();
            return self.foresee(place, limit, side, &units);
        }
        self.asked.push(Asked { place: place as u16, units, key });
    }

    /// Tells what the store said last about a limit that it is not asked about now.
    fn foresee(&mut self, place: usize, limit: &Limit, side: &SharedLimit, units: &Units) {
        for rate in limit.rates(units.variant) {
            if let Some(decision) = side.foresee(rate, units, self.now) {
                self.note(place, rate, limit, decision, cause(limit));
            }
        }
    }

    /// A request that is refused already: nobody asks the store for it.
    #[cold]
    fn ask_nobody(&mut self) {
        let limits = self.limits;
        for Asked { place, units, .. } in std::mem::take(&mut self.asked) {
            let place = usize::from(place);
            if let Some(Some(side)) = self.sides.get(place) {
                self.foresee(place, &limits[place], side, &units);
            }
        }
        self.decisions.sort_by_key(|judged| (judged.place, judged.rate));
    }

    /// A concurrency limit is only noted here: its slots are taken after the wait.
    fn slots(&mut self, place: usize, limit: &Limit, units: &Units) {
        let rate = limit.rates(units.variant).start;
        if units.cost <= limit.capacity(rate) {
            self.claims.push(Claim::new(units, place, rate, Hold::Slots(None)));
        } else {
            self.refuse_outright(place, rate, limit, Cause::TooCostly);
        }
    }

    #[cold]
    pub fn missing_key(&mut self, place: usize, limit: &Limit) {
        self.refuse_outright(place, 0, limit, Cause::MissingKey);
    }

    /// A refusal without numbers.
    pub fn refuse_outright(&mut self, place: usize, rate: usize, limit: &Limit, cause: Cause) {
        if limit.config.dry_run {
            self.note(place, rate, limit, Decision::bare(Outcome::Reject), cause);
        } else {
            self.refuse(Refused { cause, place, rate, retry_after_ns: None });
        }
    }

    #[inline]
    pub fn note(&mut self, place: usize, rate: usize, limit: &Limit, decision: Decision, cause: Cause) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(Judged { place: place as u16, rate: rate as u16, dry_run, decision });
        if decision.outcome == Outcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.refuse(Refused { cause, place, rate, retry_after_ns });
        }
    }

    /// Keeps the refusal with the longest retry; the first one undoes what was charged, in dry runs, too: they count
    /// what they would have counted if they were enforced.
    fn refuse(&mut self, refused: Refused) {
        let longest = |refused: &Refused| refused.retry_after_ns.unwrap_or(u64::MAX);
        match &self.refused {
            None => {
                if !self.claims.is_empty() {
                    self.undo(0);
                }
                self.refused = Some(refused);
            }
            Some(known) if longest(known) < longest(&refused) => self.refused = Some(refused),
            Some(_) => {}
        }
    }

    /// The local limits have accepted; what they were charged is held until the store has spoken.
    fn suspend(&mut self) -> Passage {
        let asking = Asking {
            asked: std::mem::take(&mut self.asked),
            sides: self.sides.clone(),
            patience_ns: self.patience_ns,
            displaces: self.displaces,
        };
        let claims = std::mem::take(&mut self.claims);
        let passage = Passage::new(self.limits.clone(), claims, self.now, self.longest, None);
        passage.suspended(asking)
    }

    /// Refunds every charge from claim `from` on and tells the numbers as if nothing had been taken.
    #[cold]
    fn undo(&mut self, from: usize) {
        for claim in self.claims.drain(from..) {
            let Hold::Charge(charge) = claim.hold else { continue };
            let (place, rate) = (usize::from(claim.place), usize::from(claim.rate));
            let limit = &self.limits[place];
            limit.refund(rate, &claim.key(), claim.cost, &charge, || self.now);
            let Decision { remaining, reset_ns, .. } = limit.peek(rate, &claim.units(), self.now);
            for judged in self.decisions.iter_mut() {
                if usize::from(judged.place) == place && usize::from(judged.rate) == rate {
                    judged.decision = Decision { remaining, reset_ns, ..judged.decision };
                }
            }
        }
    }

    /// Only now, when all have accepted: a request that is refused itself displaces nobody.
    #[cold]
    fn displace(&self) {
        for claim in &self.claims {
            let Hold::Charge(charge) = claim.hold else { continue };
            if charge.displaces() {
                self.limits[usize::from(claim.place)].displace(
                    claim.rate.into(),
                    &claim.key(),
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
    fn begin_wait(&self, (wait_ns, place): (u64, u16), waiter: Waiter<'_>) -> Result<u32, Refusal> {
        if wait_ns > self.patience_ns {
            return Err(Refusal::queued_too_long(&self.limits[usize::from(place)]));
        }
        let weight = waiter.weight();
        if waiter.waiting.enter(weight) { Ok(weight) } else { Err(Refusal::overload()) }
    }

    #[inline]
    pub fn close(&mut self, waiter: Waiter<'_>, passage: &mut Option<Passage>) -> Option<Refusal> {
        if !self.asked.is_empty() {
            if self.refused.is_none() {
                *passage = Some(self.suspend());
                return None;
            }
            self.ask_nobody();
        }
        if let Some(refused) = self.refused {
            let limit = Some(self.limits[refused.place].clone());
            let Refused { cause, rate, retry_after_ns, .. } = refused;
            return Some(Refusal { cause, limit, rate, retry_after_ns });
        }
        let waiting = match self.longest.map(|longest| self.begin_wait(longest, waiter)) {
            Some(Ok(weight)) => Some((waiter.waiting.clone(), weight)),
            None => None,
            Some(Err(refusal)) => {
                self.undo(0);
                return Some(refusal);
            }
        };
        if self.displaces {
            self.displace();
        }
        let claims = std::mem::take(&mut self.claims);
        *passage = Some(Passage::new(self.limits.clone(), claims, self.now, self.longest, waiting));
        None
    }
}

/// What a refusal by `limit` is called.
#[inline]
pub(super) fn cause(limit: &Limit) -> Cause {
    if limit.has_queue() { Cause::Queue } else { Cause::Rate }
}
