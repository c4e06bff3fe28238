//! What a chain would say, without charging anybody: for `explain`, never on the way of a request.

use std::sync::Arc;

use super::judging::cause;
use super::{Ask, Cause, Chain, Judged, Refusal, Waiting};
use crate::clock::Now;
use crate::limit::{Decision, Limit, Outcome, Units};
use crate::state::SharedLimit;

/// What [`Chain::judge`] would say now, and the concurrency limits after it.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// In chain order, concurrency limits too. The numbers are those that the request finds: nothing is taken.
    pub decisions: Vec<Judged>,
    /// The longest wait, nanoseconds, and the place of its limit in [`Chain::limits`].
    pub wait: Option<(u64, usize)>,
    pub refusal: Option<Refusal>,
}

impl Chain {
    /// Judges one request at `now` by looking only. `ask` is called once per limit, in chain order.
    pub fn peek(&self, now: Now, waiting: &Waiting, mut ask: impl FnMut(&Limit) -> Ask) -> Foreseen {
        let mut foreseen = Foreseen::default();
        let mut full = None;
        for (place, limit) in self.limits.iter().enumerate() {
            match ask(limit) {
                Ask::Skip => {}
                Ask::MissingKey => foreseen.refuse(limit, Cause::MissingKey, 0, None),
                Ask::Shared(units, _) => {
                    let units = Units { cost: units.cost.max(1), ..units };
                    foreseen.shared(place, limit, self.shared.get(place), &units, now);
                }
                Ask::Units(units) if limit.is_concurrency() => {
                    foreseen.slots(place, limit, &Units { cost: units.cost.max(1), ..units }, &mut full);
                }
                Ask::Units(units) => {
                    foreseen.units(place, limit, &Units { cost: units.cost.max(1), ..units }, now)
                }
            }
        }
        if foreseen.refusal.is_none()
            && let Some((wait_ns, place)) = foreseen.wait
        {
            foreseen.refusal = match wait_ns > self.patience_ns {
                true => Some(Refusal::queued_too_long(&self.limits[place])),
                false => waiting.is_full().then(Refusal::overload),
            };
        }
        // Slots are taken after the wait, and by then they may be free.
        if foreseen.refusal.is_none() && foreseen.wait.is_none() {
            foreseen.refusal = full;
        }
        foreseen
    }
}

impl Foreseen {
    fn units(&mut self, place: usize, limit: &Arc<Limit>, units: &Units, now: Now) {
        for rate in limit.rates(units.variant) {
            let decision = limit.peek(rate, units, now);
            let (decision, cause) = match units.cost > limit.capacity(rate) {
                true => (decision.never(), Cause::TooCostly),
                false => (decision, cause(limit)),
            };
            self.note(place, rate, limit, decision);
            match decision.outcome {
                Outcome::Reject => {
                    let retry = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
                    self.refuse(limit, cause, rate, retry);
                }
                Outcome::Wait if !limit.config.dry_run => {
                    if self.wait.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                        self.wait = Some((decision.wait_ns, place));
                    }
                }
                Outcome::Wait | Outcome::Admit => {}
            }
        }
    }

    /// What the store said last; it is not asked.
    fn shared(
        &mut self,
        place: usize,
        limit: &Arc<Limit>,
        side: Option<&Option<Arc<SharedLimit>>>,
        units: &Units,
        now: Now,
    ) {
        let Some(Some(side)) = side else { return };
        for rate in limit.rates(units.variant) {
            let Some(decision) = side.foresee(rate, units, now) else { continue };
            self.note(place, rate, limit, decision);
            if decision.outcome == Outcome::Reject {
                self.refuse(limit, cause(limit), rate, Some(decision.retry_after_ns));
            }
        }
    }

    fn slots(&mut self, place: usize, limit: &Arc<Limit>, units: &Units, full: &mut Option<Refusal>) {
        let rate = limit.rates(units.variant).start;
        let capacity = limit.capacity(rate);
        let remaining = capacity.saturating_sub(limit.in_flight(rate, &units.key));
        let outcome = if units.cost > remaining { Outcome::Reject } else { Outcome::Admit };
        self.note(
            place,
            rate,
            limit,
            Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 },
        );
        if units.cost > capacity {
            self.refuse(limit, Cause::TooCostly, rate, None);
        } else if outcome == Outcome::Reject && !limit.config.dry_run && full.is_none() {
            let limit = Some(limit.clone());
            *full = Some(Refusal { cause: Cause::Concurrency, limit, rate, retry_after_ns: None });
        }
    }

    fn note(&mut self, place: usize, rate: usize, limit: &Limit, decision: Decision) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(Judged { place: place as u16, rate: rate as u16, dry_run, decision });
    }

    /// Keeps the refusal with the longest retry, of equals the first.
    fn refuse(&mut self, limit: &Arc<Limit>, cause: Cause, rate: usize, retry_after_ns: Option<u64>) {
        let longest = |refusal: &Refusal| refusal.retry_after_ns.unwrap_or(u64::MAX);
        let refusal = Refusal { cause, limit: Some(limit.clone()), rate, retry_after_ns };
        let longer = self.refusal.as_ref().is_none_or(|known| longest(known) < longest(&refusal));
        if longer && !limit.config.dry_run {
            self.refusal = Some(refusal);
        }
    }
}
