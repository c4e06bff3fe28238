//! What a request holds in the store, and the slots it asks for after its wait.

use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::passage::{Claim, Hold};
use super::pending_slots::PendingSlots;
use super::shared_pass::Asked;
use super::store_fallback::cause_alone;
use super::{Cause, Decisions, Judged, Passage, Refusal};
use crate::base::clock::Now;
use crate::limit::{Decision, Outcome, Turn, Units};
use crate::shared::{
    Departure, Desk, Give, Held, Op, Place, Question, Said, Session, SharedKey, SharedLimit, Ticket,
};

/// What a request holds in the store; whoever drops it must have given it back.
pub(super) struct SharedHold {
    desk: Arc<Desk>,
    taken: Vec<Taken>,
    /// What it was admitted to without the store.
    owing: SmallVec<[Owing; 1]>,
}

/// A limit whose local share was charged in place of the store, which is owed that once the request is forwarded.
pub(super) struct Owing {
    pub limit: Arc<SharedLimit>,
    pub place: u16,
    pub key: SharedKey,
    pub units: Units,
}

/// What it holds of one rate.
pub(super) struct Taken {
    limit: Arc<SharedLimit>,
    rate: usize,
    key: SharedKey,
    cost: u64,
    fair: u64,
    place: u16,
    dry_run: bool,
    kind: Kind,
}

pub(super) enum Kind {
    /// Units, with what giving them back has to name; `None` once that would not be sound any more.
    Charged(Option<u64>),
    /// A departure so many nanoseconds after the answer, with its mark.
    Departs(u64, u64),
    /// It stands in the queue of departures.
    Waits(Ticket),
    /// Concurrency slots that are still to be asked for.
    Wanted,
    /// Concurrency slots; a dry run may lack them.
    Slots(bool),
}

// === impl SharedHold ===

impl SharedHold {
    pub(super) fn new(desk: &Arc<Desk>) -> SharedHold {
        SharedHold { desk: desk.clone(), taken: Vec::new(), owing: SmallVec::new() }
    }

    pub(super) fn owe(&mut self, owing: Owing) {
        self.owing.push(owing);
    }

    /// The request is forwarded: what `claims` hold of local shares is owed to the store, and what they hold in the
    /// store counts against this gateway's own part.
    pub(super) fn forwarded(&mut self, claims: &[Claim], now: Now) {
        for claim in claims {
            let Hold::Shared(place) = claim.hold else { continue };
            let taken = self.taken.get(place as usize);
            if let Some(Taken { kind: Kind::Charged(_), limit, rate, .. }) = taken {
                limit.count_own(*rate, &claim.units(), now);
            }
        }
        for owing in self.owing.drain(..) {
            let own = |claim: &&Claim| claim.place == owing.place && matches!(claim.hold, Hold::Charge(_));
            for claim in claims.iter().filter(own) {
                self.desk.debts.owe(&owing.limit, claim.rate.into(), owing.key, &owing.units);
            }
        }
    }

    /// Holds `taken` too; `enforced` is the decision that made it, unless nobody acts upon that. Answers its place.
    pub(super) fn push(&mut self, mut taken: Taken, enforced: Option<&Decision>) -> u32 {
        if let (Kind::Charged(Some(mark)), Some(decision)) = (&taken.kind, enforced)
            && decision.outcome == Outcome::Wait
        {
            taken.kind = Kind::Departs(decision.wait_ns, *mark);
        }
        self.taken.push(taken);
        (self.taken.len() - 1) as u32
    }

    /// Who has to wait holds no slots meanwhile: another server may have granted them before that was known.
    pub(super) fn put_off_slots(&mut self) {
        for taken in &mut self.taken {
            let Kind::Slots(held) = taken.kind else { continue };
            if held {
                self.desk.slots.leave(&taken.slots_of(), taken.cost);
            }
            taken.kind = Kind::Wanted;
        }
    }

    /// Stands in the queues of all departures that are still to come, which count from `received`.
    pub(super) fn join_queues(&mut self, received: Now) {
        for taken in &mut self.taken {
            let Kind::Departs(wait_ns, mark) = taken.kind else { continue };
            let due = Now(received.0.saturating_add(wait_ns));
            let until = taken.limit.gives_up_after().map(|time| {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                Now(received.0.saturating_add(ns))
            });
            let departure = Departure { due, cost: taken.cost, mark };
            let departures = &taken.limit.departures[taken.rate];
            taken.kind = Kind::Waits(departures.join(taken.key, departure, taken.fair, until));
        }
    }

    /// Whether the turn at `place` has come.
    pub(super) fn turn(&mut self, place: u32, now: Now, waker: &Waker) -> Turn {
        let Some(taken) = self.taken.get_mut(place as usize) else { return Turn::Go };
        let Kind::Waits(ticket) = taken.kind else { return Turn::Go };
        let (turn, freed) = taken.limit.departures[taken.rate].turn(&taken.key, ticket, now, waker);
        if matches!(turn, Turn::Go | Turn::Reject(_)) {
            // Its departure may have gone to another before, so it has none to give back.
            taken.kind = Kind::Charged(None);
        }
        if let Some(departure) = freed {
            self.desk.give(taken.give(departure.mark));
        }
        turn
    }

    /// What a concurrency limit said that was asked.
    pub(super) fn entered(&self, place: u32) -> Option<Outcome> {
        match self.taken.get(place as usize)?.kind {
            Kind::Slots(true) => Some(Outcome::Admit),
            Kind::Slots(false) => Some(Outcome::Reject),
            _ => None,
        }
    }

    pub(super) fn is_slots(&self, place: u32) -> bool {
        let taken = self.taken.get(place as usize);
        taken.is_some_and(|taken| matches!(taken.kind, Kind::Slots(_) | Kind::Wanted))
    }

    /// Gives back what is held at `place`; units only before the request was forwarded.
    pub(super) fn give_back(&mut self, place: u32, forwarded: bool) {
        let Some(taken) = self.taken.get_mut(place as usize) else { return };
        match std::mem::replace(&mut taken.kind, Kind::Charged(None)) {
            Kind::Slots(true) => self.desk.slots.leave(&taken.slots_of(), taken.cost),
            Kind::Waits(ticket) => {
                let freed = taken.limit.departures[taken.rate].leave(&taken.key, ticket);
                if let Some(departure) = freed {
                    self.desk.give(taken.give(departure.mark));
                }
            }
            Kind::Charged(Some(mark)) | Kind::Departs(_, mark) if !forwarded => {
                self.desk.give(taken.give(mark));
            }
            _ => {}
        }
    }

    /// Asks for the slots that are wanted; answers what was said about each place, and whether slots are held although
    /// the store did not answer.
    async fn ask_for_slots(&self, session: &Session) -> SmallVec<[(usize, Said, bool); 2]> {
        let mut begun = PendingSlots::new(&session.desk);
        let wanted = |(_, taken): &(usize, &Taken)| matches!(taken.kind, Kind::Wanted);
        let wanted: SmallVec<[(usize, &Taken); 2]> = self.taken.iter().enumerate().filter(wanted).collect();
        let mut questions: SmallVec<[Question<'_>; 2]> = SmallVec::new();
        for (_, taken) in &wanted {
            let (held, in_process) = begun.begin(&taken.limit, taken.rate, taken.key, taken.cost);
            questions.push(Question { in_process, ..taken.question(held) });
        }
        let is_full = |question: &Question<'_>| {
            let capacity = question.limit.rules[question.rate].capacity();
            !question.dry_run && question.in_process > capacity
        };
        if let Some(place) = questions.iter().position(is_full) {
            begun.unasked();
            return SmallVec::from_iter([(wanted[place].0, Said::Full, false)]);
        }
        let said = session.ask(Op::Take, &questions).await;
        let all_took = all_took(said.iter());
        let mut kept: SmallVec<[bool; 2]> = SmallVec::new();
        for (question, said) in questions.iter().zip(&said) {
            let keeps = matches!(said, Said::Failed(_))
                && all_took
                && question.limit.admits_alone(question.rate, question.key, question.in_process);
            kept.push(keeps);
            match said {
                Said::Answered { answer, took } if answer.decision.outcome != Outcome::Reject => {
                    match (took, all_took) {
                        (true, true) => begun.was_granted(question),
                        // What was taken in vain is given up by dropping `begun`.
                        (true, false) => {}
                        (false, _) => begun.was_refused(question),
                    }
                }
                Said::Failed(_) if keeps => begun.was_kept(question, Some(said)),
                Said::Failed(_) => begun.failed(question, Some(said)),
                Said::Answered { .. } | Said::Full => begun.was_refused(question),
            }
        }
        let places = wanted.iter().map(|(place, _)| *place);
        places.zip(said).zip(kept).map(|((place, said), kept)| (place, said, kept)).collect()
    }

    pub(super) fn give_back_all(&mut self) {
        (0..self.taken.len() as u32).for_each(|place| self.give_back(place, false));
    }

    /// Tells the numbers as if what is held had not been taken.
    pub(super) fn tell_unspent(&self, decisions: &mut Decisions) {
        for taken in &self.taken {
            let own =
                |judged: &&mut Judged| judged.place == taken.place && usize::from(judged.rate) == taken.rate;
            if let (Kind::Charged(Some(_)) | Kind::Departs(..), Some(judged)) =
                (&taken.kind, decisions.iter_mut().find(own))
            {
                unspend(&mut judged.decision, taken.cost, taken.limit.rules[taken.rate].capacity());
            }
        }
    }

    /// Gives back what was taken for a request that does not pass.
    pub(super) fn give(&self, taken: Taken) {
        if let Kind::Charged(Some(mark)) = taken.kind {
            self.desk.give(taken.give(mark));
        }
    }
}

/// Makes it the answer to a request of `cost` that was not charged.
pub(super) fn unspend(decision: &mut Decision, cost: u64, capacity: u64) {
    decision.remaining = decision.remaining.saturating_add(cost).min(capacity);
    decision.reset_ns = 0;
}

/// Nobody who answered refused.
pub(super) fn all_took<'a>(mut said: impl Iterator<Item = &'a Said>) -> bool {
    said.all(|said| !matches!(said, Said::Answered { took: false, .. } | Said::Full))
}

// === impl Taken ===

impl Taken {
    pub(super) fn new(asked: &Asked, question: &Question<'_>, kind: Kind) -> Taken {
        let mut taken = Taken::wanted(asked, question.limit, question.rate);
        (taken.kind, taken.dry_run) = (kind, question.dry_run);
        taken
    }

    pub(super) fn wanted(asked: &Asked, side: &Arc<SharedLimit>, rate: usize) -> Taken {
        Taken {
            limit: side.clone(),
            rate,
            key: asked.key,
            cost: asked.units.cost,
            fair: asked.units.fair,
            place: asked.place,
            dry_run: side.is_dry_run(),
            kind: Kind::Wanted,
        }
    }

    fn question(&self, held: Held) -> Question<'_> {
        let Taken { limit, rate, key, cost, place, dry_run, .. } = self;
        let (rate, key, cost) = (*rate, *key, *cost);
        Question { limit, rate, key, cost, place: *place, dry_run: *dry_run, held, in_process: 0, owed: 0 }
    }

    fn slots_of(&self) -> Place {
        self.limit.place(self.rate, self.key)
    }

    fn give(&self, mark: u64) -> Give {
        Give { limit: self.limit.clone(), rate: self.rate, key: self.key, cost: self.cost, mark }
    }
}

// === impl Passage ===

impl Passage {
    /// True while it has slots to ask the store for.
    #[inline]
    pub fn must_ask_for_slots(&self) -> bool {
        let wanted = |taken: &Taken| matches!(taken.kind, Kind::Wanted);
        self.shared.as_ref().is_some_and(|hold| hold.taken.iter().any(wanted))
    }

    /// Asks the store for the concurrency slots that are counted there, after the wait and after [`Passage::enter`].
    ///
    /// # Errors
    /// As [`Passage::enter`]; then the passage is void.
    pub async fn enter_shared(&mut self, session: &Session, fell_back: &mut bool) -> Result<(), Refusal> {
        let Some(hold) = &self.shared else { return Ok(()) };
        let outcomes = hold.ask_for_slots(session).await;
        *fell_back |= outcomes.iter().any(|(_, said, _)| matches!(said, Said::Failed(_)));
        let all_took = all_took(outcomes.iter().map(|(_, said, _)| said));
        let mut refused = None;
        for (place, said, kept) in outcomes {
            refused = refused.or(self.settle_slots(place, said, all_took, kept));
        }
        match refused {
            Some(refusal) => {
                self.keep_departures();
                Err(refusal)
            }
            None => Ok(()),
        }
    }

    /// Takes up what became of the slots at one place; `all_took`: nobody was refused; `kept`: they are held without an
    /// answer.
    fn settle_slots(&mut self, at: usize, said: Said, all_took: bool, kept: bool) -> Option<Refusal> {
        let taken = &mut self.shared.as_mut()?.taken[at];
        let (place, rate, dry_run) = (usize::from(taken.place), taken.rate, taken.dry_run);
        let refusal = |cause, limit| Some(Refusal { cause, limit: Some(limit), rate, retry_after_ns: None });
        let limit = self.limits[place].clone();
        match said {
            Said::Answered { answer, .. } => {
                let admits = answer.decision.outcome != Outcome::Reject;
                taken.kind = Kind::Slots(admits && all_took);
                if admits || dry_run { None } else { refusal(Cause::Concurrency, limit) }
            }
            Said::Full => refusal(Cause::Concurrency, limit),
            Said::Failed(_) => {
                taken.kind = Kind::Slots(kept);
                taken.limit.decided_instead();
                let cause = cause_alone(&taken.limit);
                if kept || dry_run { None } else { refusal(cause, limit) }
            }
        }
    }
}
