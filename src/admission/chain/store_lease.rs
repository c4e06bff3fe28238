//! What a request holds in the store, and the slots it asks for after its wait.

use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::pending_slots::PendingSlots;
use super::permit::{Claim, ClaimKind};
use super::store_fallback::fallback_cause;
use super::store_round::LimitQuestion;
use super::{ChainCause, ChainPermit, ChainRejection, Decisions, RateDecision};
use crate::base::clock::Now;
use crate::limit::{Decision, LimitOutcome, Turn, Units};
use crate::shared::{
    Departure, DepartureTicket, ScriptOp, Session, SharedKey, SharedLimit, SlotCount, SlotKey, StoreAnswer,
    StoreOutbox, StoreQuestion, StoreRefund,
};

/// What a request holds in the store; whoever drops it must have given it back.
pub(super) struct StoreLease {
    outbox: Arc<StoreOutbox>,
    rate_leases: Vec<RateLease>,
    /// What it was admitted to without the store.
    pending_debts: SmallVec<[PendingDebt; 1]>,
}

/// A limit whose local share was charged in place of the store, which is owed that once the request is forwarded.
pub(super) struct PendingDebt {
    pub limit: Arc<SharedLimit>,
    pub limit_index: u16,
    pub key: SharedKey,
    pub units: Units,
}

/// What it holds of one rate.
pub(super) struct RateLease {
    limit: Arc<SharedLimit>,
    rate: usize,
    key: SharedKey,
    cost: u64,
    fair: u64,
    limit_index: u16,
    dry_run: bool,
    state: LeaseState,
}

pub(super) enum LeaseState {
    /// Units, with what giving them back has to name; `None` once that would not be sound any more.
    Charged(Option<u64>),
    /// A departure so many nanoseconds after the answer, with its mark.
    Departing(u64, u64),
    /// It stands in the queue of departures.
    Queued(DepartureTicket),
    /// Concurrency slots that are still to be asked for.
    SlotsWanted,
    /// Concurrency slots; a dry run may lack them.
    Slots(bool),
}

// === impl SharedHold ===

impl StoreLease {
    pub(super) fn new(desk: &Arc<StoreOutbox>) -> StoreLease {
        StoreLease { outbox: desk.clone(), rate_leases: Vec::new(), pending_debts: SmallVec::new() }
    }

    pub(super) fn add_debt(&mut self, owing: PendingDebt) {
        self.pending_debts.push(owing);
    }

    /// The request is forwarded: what `claims` hold of local shares is owed to the store, and what they hold in the
    /// store counts against this gateway's own part.
    pub(super) fn mark_forwarded(&mut self, claims: &[Claim], now: Now) {
        for claim in claims {
            let ClaimKind::Shared(place) = claim.kind else { continue };
            let taken = self.rate_leases.get(place as usize);
            if let Some(RateLease { state: LeaseState::Charged(_), limit, rate, .. }) = taken {
                limit.count_in_share(*rate, &claim.to_units(), now);
            }
        }
        for owing in self.pending_debts.drain(..) {
            let own = |claim: &&Claim| {
                claim.limit_index == owing.limit_index && matches!(claim.kind, ClaimKind::Charge(_))
            };
            for claim in claims.iter().filter(own) {
                self.outbox.debts.add_debt(&owing.limit, claim.rate.into(), owing.key, &owing.units);
            }
        }
    }

    /// Holds `taken` too; `enforced` is the decision that made it, unless nobody acts upon that. Answers its place.
    pub(super) fn add_lease(&mut self, mut taken: RateLease, enforced: Option<&Decision>) -> u32 {
        if let (LeaseState::Charged(Some(mark)), Some(decision)) = (&taken.state, enforced)
            && decision.outcome == LimitOutcome::Wait
        {
            taken.state = LeaseState::Departing(decision.wait_ns, *mark);
        }
        self.rate_leases.push(taken);
        (self.rate_leases.len() - 1) as u32
    }

    /// Who has to wait holds no slots meanwhile: another server may have granted them before that was known.
    pub(super) fn postpone_slots(&mut self) {
        for taken in &mut self.rate_leases {
            let LeaseState::Slots(held) = taken.state else { continue };
            if held {
                self.outbox.slots.release_slots(&taken.slot_key(), taken.cost);
            }
            taken.state = LeaseState::SlotsWanted;
        }
    }

    /// Stands in the queues of all departures that are still to come, which count from `received`.
    pub(super) fn join_queues(&mut self, received: Now) {
        for taken in &mut self.rate_leases {
            let LeaseState::Departing(wait_ns, mark) = taken.state else { continue };
            let due = Now(received.0.saturating_add(wait_ns));
            let until = taken.limit.max_queue_wait().map(|time| {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                Now(received.0.saturating_add(ns))
            });
            let departure = Departure { due, cost: taken.cost, mark };
            let departures = &taken.limit.departures[taken.rate];
            taken.state = LeaseState::Queued(departures.join_queue(taken.key, departure, taken.fair, until));
        }
    }

    /// Whether the turn at `place` has come.
    pub(super) fn poll_turn(&mut self, place: u32, now: Now, waker: &Waker) -> Turn {
        let Some(taken) = self.rate_leases.get_mut(place as usize) else { return Turn::Go };
        let LeaseState::Queued(ticket) = taken.state else { return Turn::Go };
        let (turn, freed) = taken.limit.departures[taken.rate].poll_turn(&taken.key, ticket, now, waker);
        if matches!(turn, Turn::Go | Turn::Reject(_)) {
            // Its departure may have gone to another before, so it has none to give back.
            taken.state = LeaseState::Charged(None);
        }
        if let Some(departure) = freed {
            self.outbox.queue_refund(taken.to_refund(departure.mark));
        }
        turn
    }

    /// What a concurrency limit said that was asked.
    pub(super) fn slots_outcome(&self, place: u32) -> Option<LimitOutcome> {
        match self.rate_leases.get(place as usize)?.state {
            LeaseState::Slots(true) => Some(LimitOutcome::Admit),
            LeaseState::Slots(false) => Some(LimitOutcome::Reject),
            _ => None,
        }
    }

    pub(super) fn holds_slots(&self, place: u32) -> bool {
        let taken = self.rate_leases.get(place as usize);
        taken.is_some_and(|taken| matches!(taken.state, LeaseState::Slots(_) | LeaseState::SlotsWanted))
    }

    /// Gives back what is held at `place`; units only before the request was forwarded.
    pub(super) fn release_lease(&mut self, place: u32, forwarded: bool) {
        let Some(taken) = self.rate_leases.get_mut(place as usize) else { return };
        match std::mem::replace(&mut taken.state, LeaseState::Charged(None)) {
            LeaseState::Slots(true) => self.outbox.slots.release_slots(&taken.slot_key(), taken.cost),
            LeaseState::Queued(ticket) => {
                let freed = taken.limit.departures[taken.rate].leave_queue(&taken.key, ticket);
                if let Some(departure) = freed {
                    self.outbox.queue_refund(taken.to_refund(departure.mark));
                }
            }
            LeaseState::Charged(Some(mark)) | LeaseState::Departing(_, mark) if !forwarded => {
                self.outbox.queue_refund(taken.to_refund(mark));
            }
            _ => {}
        }
    }

    /// Asks for the slots that are wanted; answers what was said about each place, and whether slots are held although
    /// the store did not answer.
    async fn ask_for_slots(&self, session: &Session) -> SmallVec<[(usize, StoreAnswer, bool); 2]> {
        let mut begun = PendingSlots::new(&session.outbox);
        let wanted = |(_, taken): &(usize, &RateLease)| matches!(taken.state, LeaseState::SlotsWanted);
        let wanted: SmallVec<[(usize, &RateLease); 2]> =
            self.rate_leases.iter().enumerate().filter(wanted).collect();
        let mut questions: SmallVec<[StoreQuestion<'_>; 2]> = SmallVec::new();
        for (_, taken) in &wanted {
            let (held, in_process) = begun.request_slots(&taken.limit, taken.rate, taken.key, taken.cost);
            questions.push(StoreQuestion { in_process, ..taken.to_question(held) });
        }
        let is_full = |question: &StoreQuestion<'_>| {
            let capacity = question.limit.rules[question.rate].capacity();
            !question.dry_run && question.in_process > capacity
        };
        if let Some(place) = questions.iter().position(is_full) {
            begun.cancel_all();
            return SmallVec::from_iter([(wanted[place].0, StoreAnswer::Full, false)]);
        }
        let said = session.ask_store(ScriptOp::Take, &questions).await;
        let all_took = all_charged(said.iter());
        let mut kept: SmallVec<[bool; 2]> = SmallVec::new();
        for (question, said) in questions.iter().zip(&said) {
            let keeps = matches!(said, StoreAnswer::Failed(_))
                && all_took
                && question.limit.admits_locally(question.rate, question.key, question.in_process);
            kept.push(keeps);
            match said {
                StoreAnswer::Answered { answer, charged: took }
                    if answer.decision.outcome != LimitOutcome::Reject =>
                {
                    match (took, all_took) {
                        (true, true) => begun.mark_granted(question),
                        // What was taken in vain is given up by dropping `begun`.
                        (true, false) => {}
                        (false, _) => begun.mark_rejected(question),
                    }
                }
                StoreAnswer::Failed(_) if keeps => begun.mark_kept(question, Some(said)),
                StoreAnswer::Failed(_) => begun.mark_failed(question, Some(said)),
                StoreAnswer::Answered { .. } | StoreAnswer::Full => begun.mark_rejected(question),
            }
        }
        let places = wanted.iter().map(|(place, _)| *place);
        places.zip(said).zip(kept).map(|((place, said), kept)| (place, said, kept)).collect()
    }

    pub(super) fn release_all(&mut self) {
        (0..self.rate_leases.len() as u32).for_each(|place| self.release_lease(place, false));
    }

    /// Tells the numbers as if what is held had not been taken.
    pub(super) fn restore_numbers(&self, decisions: &mut Decisions) {
        for taken in &self.rate_leases {
            let own = |judged: &&mut RateDecision| {
                judged.limit_index == taken.limit_index && usize::from(judged.rate) == taken.rate
            };
            if let (LeaseState::Charged(Some(_)) | LeaseState::Departing(..), Some(judged)) =
                (&taken.state, decisions.iter_mut().find(own))
            {
                uncharge_decision(&mut judged.decision, taken.cost, taken.limit.rules[taken.rate].capacity());
            }
        }
    }

    /// Gives back what was taken for a request that does not pass.
    pub(super) fn refund_lease(&self, taken: RateLease) {
        if let LeaseState::Charged(Some(mark)) = taken.state {
            self.outbox.queue_refund(taken.to_refund(mark));
        }
    }
}

/// Makes it the answer to a request of `cost` that was not charged.
pub(super) fn uncharge_decision(decision: &mut Decision, cost: u64, capacity: u64) {
    decision.remaining = decision.remaining.saturating_add(cost).min(capacity);
    decision.reset_ns = 0;
}

/// Nobody who answered refused.
pub(super) fn all_charged<'a>(mut said: impl Iterator<Item = &'a StoreAnswer>) -> bool {
    said.all(|said| !matches!(said, StoreAnswer::Answered { charged: false, .. } | StoreAnswer::Full))
}

// === impl Taken ===

impl RateLease {
    pub(super) fn new(asked: &LimitQuestion, question: &StoreQuestion<'_>, kind: LeaseState) -> RateLease {
        let mut taken = RateLease::wanting_slots(asked, question.limit, question.rate);
        (taken.state, taken.dry_run) = (kind, question.dry_run);
        taken
    }

    pub(super) fn wanting_slots(asked: &LimitQuestion, side: &Arc<SharedLimit>, rate: usize) -> RateLease {
        RateLease {
            limit: side.clone(),
            rate,
            key: asked.key,
            cost: asked.units.cost,
            fair: asked.units.fair,
            limit_index: asked.limit_index,
            dry_run: side.is_dry_run(),
            state: LeaseState::SlotsWanted,
        }
    }

    fn to_question(&self, held: SlotCount) -> StoreQuestion<'_> {
        let RateLease { limit, rate, key, cost, limit_index: place, dry_run, .. } = self;
        let (rate, key, cost) = (*rate, *key, *cost);
        StoreQuestion {
            limit,
            rate,
            key,
            cost,
            limit_index: *place,
            dry_run: *dry_run,
            slot_count: held,
            in_process: 0,
            owed: 0,
        }
    }

    fn slot_key(&self) -> SlotKey {
        self.limit.slot_key(self.rate, self.key)
    }

    fn to_refund(&self, mark: u64) -> StoreRefund {
        StoreRefund { limit: self.limit.clone(), rate: self.rate, key: self.key, cost: self.cost, mark }
    }
}

// === impl Passage ===

impl ChainPermit {
    /// True while it has slots to ask the store for.
    #[inline]
    pub fn must_ask_for_slots(&self) -> bool {
        let wanted = |taken: &RateLease| matches!(taken.state, LeaseState::SlotsWanted);
        self.store_lease.as_ref().is_some_and(|hold| hold.rate_leases.iter().any(wanted))
    }

    /// Asks the store for the concurrency slots that are counted there, after the wait and after [`ChainPermit::enter`].
    ///
    /// # Errors
    /// As [`ChainPermit::enter`]; then the passage is void.
    pub async fn take_shared_slots(
        &mut self,
        session: &Session,
        fell_back: &mut bool,
    ) -> Result<(), ChainRejection> {
        let Some(hold) = &self.store_lease else { return Ok(()) };
        let outcomes = hold.ask_for_slots(session).await;
        *fell_back |= outcomes.iter().any(|(_, said, _)| matches!(said, StoreAnswer::Failed(_)));
        let all_took = all_charged(outcomes.iter().map(|(_, said, _)| said));
        let mut refused = None;
        for (place, said, kept) in outcomes {
            refused = refused.or(self.apply_slot_answer(place, said, all_took, kept));
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
    fn apply_slot_answer(
        &mut self,
        at: usize,
        said: StoreAnswer,
        all_took: bool,
        kept: bool,
    ) -> Option<ChainRejection> {
        let taken = &mut self.store_lease.as_mut()?.rate_leases[at];
        let (place, rate, dry_run) = (usize::from(taken.limit_index), taken.rate, taken.dry_run);
        let refusal =
            |cause, limit| Some(ChainRejection { cause, limit: Some(limit), rate, retry_after_ns: None });
        let limit = self.limits[place].clone();
        match said {
            StoreAnswer::Answered { answer, .. } => {
                let admits = answer.decision.outcome != LimitOutcome::Reject;
                taken.state = LeaseState::Slots(admits && all_took);
                if admits || dry_run { None } else { refusal(ChainCause::Concurrency, limit) }
            }
            StoreAnswer::Full => refusal(ChainCause::Concurrency, limit),
            StoreAnswer::Failed(_) => {
                taken.state = LeaseState::Slots(kept);
                taken.limit.count_fallback();
                let cause = fallback_cause(&taken.limit);
                if kept || dry_run { None } else { refusal(cause, limit) }
            }
        }
    }
}
