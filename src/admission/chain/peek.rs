//! What a chain would say, without charging anybody: for `explain`, never on the way of a request.

use std::sync::Arc;

use super::local_pass::cause;
use super::shared_pass::Asked;
use super::store_fallback::cause_alone;
use super::{Ask, Cause, Chain, Judged, Refusal, Waiting};
use crate::base::clock::Now;
use crate::config::OnFailure;
use crate::limit::{Decision, Limit, Outcome, Units};
use crate::shared::{Answer, Held, Op, Question, Said, Session, SharedKey, SharedLimit};

/// What [`Chain::judge`] would say now, and the store and the concurrency limits after it.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// In chain order, concurrency limits too. The numbers are those that the request finds: nothing is taken.
    pub decisions: Vec<Judged>,
    /// The longest wait, nanoseconds, and the place of its limit in [`Chain::limits`].
    pub wait: Option<(u64, usize)>,
    pub refusal: Option<Refusal>,
    /// Limits that are counted in the store, and that it said nothing of.
    pub unsaid: Vec<Unsaid>,
}

/// A limit without a word of the store.
pub struct Unsaid {
    /// Of the limit in [`Chain::limits`].
    pub place: usize,
    /// What judges in the store's place; `None`: the store was not asked, and nothing does.
    pub instead: Option<OnFailure>,
    /// The limit whose numbers the decisions tell, if it goes on locally.
    pub share: Option<Arc<Limit>>,
}

/// One look over a chain.
struct Look<'a> {
    chain: &'a Chain,
    now: Now,
    foreseen: Foreseen,
    /// The refusal of slots, for who does not have to wait before it needs them.
    full: Option<Refusal>,
    /// Limits that the store has still to be asked about.
    asked: Vec<Asked>,
}

// === impl Chain ===

impl Chain {
    /// Judges one request at `now` by looking only, as if limits that are counted in the store let it pass. `ask` is
    /// called once per limit, in chain order.
    pub fn peek(&self, now: Now, waiting: &Waiting, ask: impl FnMut(&Limit) -> Ask) -> Foreseen {
        let mut look = Look::over(self, now, ask);
        let unsaid = look.asked.iter().map(|asked| usize::from(asked.place));
        look.foreseen.unsaid = unsaid.map(|place| Unsaid { place, instead: None, share: None }).collect();
        look.close(waiting)
    }

    /// The same, with what the store says when it is asked.
    pub async fn peek_shared(
        &self,
        session: &Session,
        now: Now,
        waiting: &Waiting,
        ask: impl FnMut(&Limit) -> Ask,
    ) -> Foreseen {
        let mut look = Look::over(self, now, ask);
        look.ask(session).await;
        look.close(waiting)
    }
}

// === impl Look ===

impl<'a> Look<'a> {
    fn over(chain: &'a Chain, now: Now, mut ask: impl FnMut(&Limit) -> Ask) -> Look<'a> {
        let mut look = Look { chain, now, foreseen: Foreseen::default(), full: None, asked: Vec::new() };
        for (place, limit) in chain.limits.iter().enumerate() {
            match ask(limit) {
                Ask::Skip => {}
                Ask::MissingKey => look.foreseen.refuse(limit, Cause::MissingKey, 0, None),
                Ask::Units(units) => {
                    look.units(place, limit, &Units { cost: units.cost.max(1), ..units });
                }
                Ask::Shared(units, key) => {
                    look.shared(place, limit, Units { cost: units.cost.max(1), ..units }, key);
                }
            }
        }
        look
    }

    fn units(&mut self, place: usize, limit: &Arc<Limit>, units: &Units) {
        if limit.is_concurrency() {
            return self.slots(place, limit, units);
        }
        for rate in limit.rates(units.variant) {
            let decision = limit.peek(rate, units, self.now);
            let (decision, cause) = match units.cost > limit.capacity(rate) {
                true => (decision.never(), Cause::TooCostly),
                false => (decision, cause(limit)),
            };
            self.rated(place, rate, limit, decision, cause);
        }
    }

    fn rated(&mut self, place: usize, rate: usize, limit: &Arc<Limit>, decision: Decision, cause: Cause) {
        self.foreseen.note(place, rate, limit, decision);
        match decision.outcome {
            Outcome::Reject => {
                let retry = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
                self.foreseen.refuse(limit, cause, rate, retry);
            }
            Outcome::Wait if !limit.config.dry_run => {
                if self.foreseen.wait.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                    self.foreseen.wait = Some((decision.wait_ns, place));
                }
            }
            Outcome::Wait | Outcome::Admit => {}
        }
    }

    fn slots(&mut self, place: usize, limit: &Arc<Limit>, units: &Units) {
        let rate = limit.rates(units.variant).start;
        let capacity = limit.capacity(rate);
        let remaining = capacity.saturating_sub(limit.in_flight(rate, &units.key));
        let outcome = if units.cost > remaining { Outcome::Reject } else { Outcome::Admit };
        if units.cost > capacity {
            self.foreseen.refuse(limit, Cause::TooCostly, rate, None);
        }
        let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
        self.slotted(place, rate, limit, decision);
    }

    fn slotted(&mut self, place: usize, rate: usize, limit: &Arc<Limit>, decision: Decision) {
        self.foreseen.note(place, rate, limit, decision);
        if decision.outcome == Outcome::Reject && !limit.config.dry_run && self.full.is_none() {
            let limit = Some(limit.clone());
            self.full = Some(Refusal { cause: Cause::Concurrency, limit, rate, retry_after_ns: None });
        }
    }

    /// A limit that is counted in the store: to be asked about, unless a request would be refused without that.
    fn shared(&mut self, place: usize, limit: &Arc<Limit>, units: Units, key: SharedKey) {
        let Some(Some(side)) = self.chain.shared.get(place) else { return self.units(place, limit, &units) };
        let rates = limit.rates(units.variant);
        if let Some(rate) = rates.clone().find(|rate| units.cost > limit.capacity(*rate)) {
            return self.foreseen.refuse(limit, Cause::TooCostly, rate, None);
        }
        let refuses = |rate| side.refused(rate, &units, self.now).is_some();
        if limit.config.dry_run || !rates.clone().any(refuses) {
            return self.asked.push(Asked { place: place as u16, units, key });
        }
        for rate in rates {
            if let Some(decision) = side.foresee(rate, &units, self.now) {
                self.rated(place, rate, limit, decision, cause(limit));
            }
        }
    }

    /// Asks the store, which changes nothing. Who is refused here already would not be asked about, so that what the
    /// store says is told, and does not count.
    async fn ask(&mut self, session: &Session) {
        let refused_here = self.foreseen.refusal.take();
        let chain = self.chain;
        let (mut asked, mut questions) = (Vec::new(), Vec::new());
        for own in std::mem::take(&mut self.asked) {
            let Some(Some(side)) = chain.shared.get(usize::from(own.place)) else { continue };
            questions.extend(questions_about(&chain.limits[usize::from(own.place)], side, own));
            asked.push((own, side));
        }
        let said = session.ask(Op::Peek, &questions).await;
        let heard = || questions.iter().zip(&said);
        for (own, side) in asked {
            let failed = |(question, said): (&Question<'_>, &Said)| {
                question.place == own.place && matches!(said, Said::Failed(_))
            };
            if heard().any(failed) {
                self.instead(&own, side);
            }
        }
        for (question, said) in heard() {
            if let Said::Answered { answer, .. } = said {
                self.hear(question, answer);
            }
        }
        self.foreseen.decisions.sort_by_key(|judged| (judged.place, judged.rate));
        if refused_here.is_some() {
            self.foreseen.refusal = refused_here;
        }
    }

    fn hear(&mut self, question: &Question<'_>, answer: &Answer) {
        let (place, rate) = (usize::from(question.place), question.rate);
        let limit = &self.chain.limits[place];
        match limit.is_concurrency() {
            true => self.slotted(place, rate, limit, answer.decision),
            false => self.rated(place, rate, limit, answer.decision, cause(limit)),
        }
    }

    /// The store did not answer: `on_failure` decides.
    fn instead(&mut self, asked: &Asked, side: &SharedLimit) {
        let place = usize::from(asked.place);
        if self.chain.limits[place].is_concurrency() {
            return self.slots_instead(asked, side);
        }
        let mut unsaid = Unsaid { place, instead: Some(side.on_failure), share: None };
        match side.on_failure {
            OnFailure::Allow => {}
            OnFailure::Reject => {
                self.foreseen.refuse(&self.chain.limits[place], Cause::Unavailable, 0, None);
            }
            OnFailure::Local => {
                let share = side.foresee_share(&asked.units);
                self.units(place, &share, &share.within(asked.units));
                unsaid.share = Some(share);
            }
        }
        self.foreseen.unsaid.push(unsaid);
    }

    /// The same of slots: what this process holds counts, whichever way it was admitted.
    fn slots_instead(&mut self, asked: &Asked, side: &SharedLimit) {
        let place = usize::from(asked.place);
        let limit = &self.chain.limits[place];
        let cost = asked.units.cost;
        for rate in limit.rates(asked.units.variant) {
            let held = side.slots_held(&side.place(rate, asked.key));
            let remaining = side.slots_alone(rate).saturating_sub(held);
            let admits = side.admits_alone(rate, asked.key, held.saturating_add(cost));
            let outcome = if admits { Outcome::Admit } else { Outcome::Reject };
            let decision = Decision { outcome, remaining, reset_ns: 0, retry_after_ns: 0, wait_ns: 0 };
            match cause_alone(side) {
                Cause::Unavailable => self.foreseen.refuse(limit, Cause::Unavailable, 0, None),
                _ => self.slotted(place, rate, limit, decision),
            }
        }
        let share = (side.on_failure == OnFailure::Local).then(|| side.share());
        self.foreseen.unsaid.push(Unsaid { place, instead: Some(side.on_failure), share });
    }

    fn close(self, waiting: &Waiting) -> Foreseen {
        let Look { chain, mut foreseen, full, .. } = self;
        if foreseen.refusal.is_none()
            && let Some((wait_ns, place)) = foreseen.wait
        {
            foreseen.refusal = match wait_ns > chain.patience_ns {
                true => Some(Refusal::queued_too_long(&chain.limits[place])),
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

/// Of a concurrency limit the store is asked for the slots of all others: those of this gateway's workers among them.
fn questions_about<'a>(
    limit: &'a Limit,
    side: &'a Arc<SharedLimit>,
    asked: Asked,
) -> impl Iterator<Item = Question<'a>> {
    let Asked { place, units: Units { cost, variant, .. }, key } = asked;
    limit.rates(variant).map(move |rate| Question {
        limit: side,
        rate,
        key,
        cost,
        place,
        dry_run: limit.config.dry_run,
        held: Held { slots: cost, sequence: 0 },
        in_process: 0,
        owed: 0,
    })
}

// === impl Foreseen ===

impl Foreseen {
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

// === impl Unsaid ===

impl std::fmt::Debug for Unsaid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unsaid").field("place", &self.place).field("instead", &self.instead).finish()
    }
}
