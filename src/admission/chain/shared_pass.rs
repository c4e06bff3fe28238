//! The limits of a chain that are counted in the store: asked about together once the local ones have accepted.
//!
//! All accept and stay charged, or nobody does: what the store took is given back if a local limit or another of its
//! servers refuses, and the local limits are given back if the store does. What it does not answer is judged here, by
//! each limit's `on_failure`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::local_pass::{Judging, cause};
use super::passage::{Claim, Hold};
use super::pending_slots::PendingSlots;
use super::shared_charge::{Kind, SharedHold, Taken, all_took, unspend};
use super::{Cause, Decisions, Passage, Refusal, Waiter};
use crate::base::clock::Now;
use crate::limit::{Outcome, Units};
use crate::shared::{Answer, Give, Op, Question, Said, Session, SharedKey, SharedLimit};

/// What is left to ask before a request may pass.
pub(super) struct Asking {
    pub asked: Vec<Asked>,
    pub sides: Sides,
    pub patience_ns: u64,
    pub displaces: bool,
}

/// The store's side of each limit of a chain.
pub(super) type Sides = Arc<[Option<Arc<SharedLimit>>]>;

/// One limit to ask about.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub place: u16,
    pub units: Units,
    pub key: SharedKey,
}

/// What the store said to each question, and when.
pub(super) struct Heard<'a> {
    /// Of each question, the limit that it belongs to.
    pub asked: SmallVec<[Asked; 4]>,
    pub questions: SmallVec<[Question<'a>; 4]>,
    pub said: SmallVec<[Said; 4]>,
    pub sent: Now,
    pub received: Now,
    /// Places of limits that this gateway's own part of them admits, though the store did not.
    pub own: SmallVec<[u16; 2]>,
}

// === impl Asking ===

impl Asking {
    pub(super) fn side(&self, asked: &Asked) -> Option<&Arc<SharedLimit>> {
        self.sides.get(usize::from(asked.place))?.as_ref()
    }
}

// === impl Passage ===

impl Passage {
    pub(super) fn suspended(mut self, asking: Asking) -> Passage {
        self.asking = Some(Box::new(asking));
        self
    }

    /// True until the store has been asked.
    #[inline]
    pub fn must_ask(&self) -> bool {
        self.asking.is_some()
    }

    /// Asks the store about the limits that are counted there, and adds what they say to `decisions`. `fell_back`
    /// becomes true if something else had to judge in its place. Dropping the future early gives back all that is
    /// known to have been taken.
    ///
    /// # Errors
    /// A limit refuses, there or here; then everything is given back.
    pub async fn ask<'w>(
        mut self,
        session: &Session,
        waiter: impl Into<Waiter<'w>>,
        decisions: &mut Decisions,
        fell_back: &mut bool,
    ) -> Result<Passage, Refusal> {
        let Some(asking) = self.asking.take() else { return Ok(self) };
        let mut own = SmallVec::new();
        loop {
            let mut begun = PendingSlots::new(&session.desk);
            let mut heard = self.questions(&asking, own, &mut begun, session);
            if let Some(refusal) = self.full_already(&heard, decisions) {
                begun.unasked();
                return Err(refusal);
            }
            heard.sent = Now::read();
            heard.said = session.ask(Op::Take, &heard.questions).await;
            heard.received = Now::read();
            *fell_back |= heard.said.iter().any(|said| matches!(said, Said::Failed(_)));
            let admitted_alone = heard.admitted_alone(self.judged);
            if admitted_alone.is_empty() {
                return self.settle(&asking, &heard, begun, session, waiter.into(), decisions);
            }
            // Each turn asks about fewer limits.
            heard.give_back(session);
            own = heard.own;
            own.extend(admitted_alone);
        }
    }

    fn questions<'a>(
        &self,
        asking: &'a Asking,
        own: SmallVec<[u16; 2]>,
        begun: &mut PendingSlots<'_>,
        session: &Session,
    ) -> Heard<'a> {
        let (now, store) = (self.judged, &session.store);
        let mut heard = Heard {
            asked: SmallVec::new(),
            questions: SmallVec::new(),
            said: SmallVec::new(),
            sent: now,
            received: now,
            own,
        };
        for asked in asking.asked.iter().filter(|asked| !heard.own.contains(&asked.place)) {
            let limit = &self.limits[usize::from(asked.place)];
            let Some(side) = asking.side(asked) else { continue };
            // Slots are taken after the wait; where nobody waits they are asked for at once.
            if limit.is_concurrency() && self.longest.is_some() {
                continue;
            }
            for rate in limit.rates(asked.units.variant) {
                let (held, in_process) = match limit.is_concurrency() {
                    true => begun.begin(side, rate, asked.key, asked.units.cost),
                    false => Default::default(),
                };
                heard.asked.push(*asked);
                heard.questions.push(Question {
                    limit: side,
                    rate,
                    key: asked.key,
                    cost: asked.units.cost,
                    place: asked.place,
                    dry_run: limit.config.dry_run,
                    held,
                    in_process,
                    owed: store.debts().of(side, rate, &asked.key, now),
                });
            }
        }
        heard
    }

    /// The refusal of a concurrency limit whose slots this process alone holds: the store need not be asked.
    fn full_already(&mut self, heard: &Heard<'_>, decisions: &mut Decisions) -> Option<Refusal> {
        let is_full = |question: &&Question<'_>| {
            let limit = &self.limits[usize::from(question.place)];
            limit.is_concurrency() && !question.dry_run && question.in_process > limit.capacity(question.rate)
        };
        let question = heard.questions.iter().find(is_full)?;
        let (place, rate) = (usize::from(question.place), question.rate);
        let limit = Some(self.limits[place].clone());
        self.take_back(decisions);
        Some(Refusal { cause: Cause::Concurrency, limit, rate, retry_after_ns: None })
    }

    fn settle(
        mut self,
        asking: &Asking,
        heard: &Heard<'_>,
        mut begun: PendingSlots<'_>,
        session: &Session,
        waiter: Waiter<'_>,
        decisions: &mut Decisions,
    ) -> Result<Passage, Refusal> {
        let limits = self.limits_without(asking, heard);
        let mut judging = Judging {
            limits: &limits,
            sides: &asking.sides,
            patience_ns: asking.patience_ns,
            now: self.judged,
            decisions,
            claims: std::mem::take(&mut self.claims),
            asked: Vec::new(),
            longest: self.longest,
            displaces: asking.displaces,
            refused: None,
        };
        let mut hold = SharedHold::new(&session.desk);
        for asked in asking.asked.iter().filter(|asked| heard.is_judged_here(asked)) {
            if let Some(side) = asking.side(asked) {
                judging.instead(asked, side, heard, &mut hold);
            }
        }
        let passes = judging.refused.is_none() && all_took(heard.said.iter());
        for place in 0..heard.questions.len() {
            judging.hear(heard, place, passes, &mut hold, &mut begun);
        }
        if !passes && judging.refused.is_none() {
            // Nobody has refused, and yet nothing was taken: no answer of our script.
            judging.refuse_outright(0, 0, &limits[0], Cause::Unavailable);
        }
        if passes {
            // Those whose turn to be asked comes after the wait.
            let is_slots = |asked: &&Asked| !heard.asks(asked) && !heard.own.contains(&asked.place);
            for asked in asking.asked.iter().filter(is_slots) {
                if let Some(side) = asking.side(asked) {
                    judging.want_slots(asked, side, &mut hold);
                }
            }
            if judging.longest.is_some() {
                hold.put_off_slots();
            }
        }
        judging.decisions.sort_by_key(|judged| (judged.place, judged.rate));
        let mut passage = None;
        if let Some(refusal) = judging.close(waiter, &mut passage) {
            hold.tell_unspent(decisions);
            hold.give_back_all();
            return Err(refusal);
        }
        let mut passage = passage.unwrap_or(self);
        hold.join_queues(heard.received);
        passage.shared = Some(Box::new(hold));
        Ok(passage)
    }
}

// === impl Judging ===

impl Judging<'_> {
    /// Takes up what the store said to one question. `passes`: everybody accepts.
    fn hear(
        &mut self,
        heard: &Heard<'_>,
        place: usize,
        passes: bool,
        hold: &mut SharedHold,
        begun: &mut PendingSlots<'_>,
    ) {
        let (asked, question) = (&heard.asked[place], &heard.questions[place]);
        let limits = self.limits;
        let limit = &limits[usize::from(asked.place)];
        let Some(Said::Answered { answer, took }) = heard.said.get(place).copied() else {
            return match limit.is_concurrency() && passes {
                true => self.slots_instead(heard, place, hold, begun),
                false => begun.failed(question, heard.said.get(place)),
            };
        };
        if limit.is_concurrency() {
            // What was taken in vain is given up by dropping `begun`, which tells the store.
            if passes || !took {
                self.hear_slots(asked, question, answer, passes, hold, begun);
            }
            return;
        }
        question.limit.note(question.rate, &asked.units, heard.sent, &answer);
        let mut decision = answer.decision;
        // In a dry run, what one rate would refuse the others have not counted.
        let charged = took && answer.mark != 0;
        let taken = Taken::new(asked, question, Kind::Charged(Some(answer.mark)));
        if charged && passes {
            let hold = Hold::Shared(hold.push(taken, Some(&decision).filter(|_| !question.dry_run)));
            self.claims.push(Claim::new(&asked.units, usize::from(asked.place), question.rate, hold));
            let longest = self.longest.map_or(0, |(longest, _)| longest);
            let wait_ns = heard.received.since(self.now).saturating_add(decision.wait_ns);
            if decision.outcome == Outcome::Wait && !question.dry_run && longest < wait_ns {
                self.longest = Some((wait_ns, asked.place));
            }
        } else if charged {
            hold.give(taken);
            unspend(&mut decision, asked.units.cost, limit.capacity(question.rate));
        }
        self.note(usize::from(asked.place), question.rate, limit, decision, cause(limit));
    }

    fn hear_slots(
        &mut self,
        asked: &Asked,
        question: &Question<'_>,
        answer: Answer,
        passes: bool,
        hold: &mut SharedHold,
        begun: &mut PendingSlots<'_>,
    ) {
        let (place, limits) = (usize::from(asked.place), self.limits);
        let admits = answer.decision.outcome != Outcome::Reject;
        if answer.skipped && passes {
            begun.was_refused(question);
            self.want_slots(asked, question.limit, hold);
        } else if passes {
            match admits {
                true => begun.was_granted(question),
                false => begun.was_refused(question),
            }
            let taken = Taken::new(asked, question, Kind::Slots(admits));
            let hold = Hold::Shared(hold.push(taken, None));
            self.claims.push(Claim::new(&asked.units, place, question.rate, hold));
        } else {
            begun.was_refused(question);
            if !admits && !answer.skipped && !question.dry_run {
                self.refuse_outright(place, question.rate, &limits[place], Cause::Concurrency);
            }
        }
    }

    fn want_slots(&mut self, asked: &Asked, side: &Arc<SharedLimit>, hold: &mut SharedHold) {
        let place = usize::from(asked.place);
        for rate in self.limits[place].rates(asked.units.variant) {
            let hold = Hold::Shared(hold.push(Taken::wanted(asked, side, rate), None));
            self.claims.push(Claim::new(&asked.units, place, rate, hold));
        }
    }
}

// === impl Heard ===

impl Heard<'_> {
    /// Gives back what some servers of a Cluster took although another one refused.
    fn give_back(&self, session: &Session) {
        for (question, said) in self.questions.iter().zip(&self.said) {
            if let Said::Answered { answer, took: true } = said
                && answer.mark != 0
            {
                let Question { limit, rate, key, cost, .. } = *question;
                session.desk.give(Give { limit: limit.clone(), rate, key, cost, mark: answer.mark });
            }
        }
    }

    fn asks(&self, asked: &Asked) -> bool {
        self.asked.iter().any(|other| other.place == asked.place)
    }

    /// The store said nothing to the limit.
    pub(super) fn failed(&self, asked: &Asked) -> bool {
        let own = self.asked.iter().zip(&self.said).filter(|(other, _)| other.place == asked.place);
        own.into_iter().any(|(_, said)| matches!(said, Said::Failed(_)))
    }
}
