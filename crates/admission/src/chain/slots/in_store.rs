//! Asks the store for the concurrency slots of a request, after its wait, and waits in the queues of this gateway for
//! those that it lacks.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::pending::PendingSlots;
use crate::chain::claims::ClaimSet;
use crate::chain::claims::holds::{HoldState, RateHold, StoreHolds, none_rejects};
use crate::chain::{ChainCause, ChainRejection, ChainedLimit, UndecidedLimit};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::OnFailure;
use sluicegate_store::{
    AskTurn, GatewayTurn, ScriptOp, Session, SharedLimit, SlotCount, SlotKey, SlotNewcomer, SlotTicket,
    StoreAnswer, StoreQuestion,
};

/// The outcome of a request for slots in the store.
pub(crate) enum StoreTake {
    /// All of them. `more_free`: others may be free as well.
    Taken { more_free: bool },
    /// None. The limit with this index has too few, and a queue.
    Lacking(u16),
}

/// The wait of a request for slots in the store.
#[derive(Default)]
pub(crate) struct StoreSlotWait {
    place: Option<StoreSlotPlace>,
    /// The limit that has refused it just now: it has no need to ask at once.
    refused_by: Option<u16>,
    /// The moment at which it joined the first queue.
    since: Option<Now>,
}

/// The place of a request in the queue of a limit. Dropping it leaves the queue.
struct StoreSlotPlace {
    limit: Arc<SharedLimit>,
    limit_index: u16,
    rate: usize,
    slot_key: SlotKey,
    /// `None` once it has left.
    ticket: Option<SlotTicket>,
}

/// The answer about the slots of the hold with this index; true: they are held although they were not granted.
type SlotAnswer = (usize, StoreAnswer, bool);

// === impl StoreSlotWait ===

impl StoreSlotWait {
    pub(crate) fn starting(refused_by: Option<u16>) -> StoreSlotWait {
        StoreSlotWait { refused_by, ..StoreSlotWait::default() }
    }

    /// Asks for all slots that are wanted in the store; false: the request stands in the queue of the first limit that
    /// has too few, or has slots with other waiters. `note_place` is called for each queue that it joins.
    ///
    /// # Errors
    /// Too few slots are free, and no queue has room.
    pub(crate) async fn try_take(
        &mut self,
        held: &mut ClaimSet,
        session: &Rc<Session>,
        undecided: &mut Vec<UndecidedLimit>,
        mut note_place: impl FnMut(u16),
    ) -> Result<bool, ChainRejection> {
        let refused_by = self.refused_by.take();
        let lacking = match refused_by {
            Some(limit_index) => limit_index,
            None => match held.take_store_slots(session, undecided, self.describe_turn(session)).await? {
                StoreTake::Lacking(limit_index) => limit_index,
                StoreTake::Taken { more_free } => {
                    if let Some(place) = self.place.take() {
                        place.end_served(more_free);
                    }
                    return Ok(true);
                }
            },
        };
        match &self.place {
            Some(place) if place.limit_index == lacking => place.end_refused(),
            _ => {
                self.place = None;
                let since = *self.since.get_or_insert_with(Now::read_clock);
                self.place = Some(held.join_store_queue(lacking, session, since)?);
                // The stay with the limit that refused it is noted already.
                if refused_by.is_none() {
                    note_place(lacking);
                }
            }
        }
        Ok(false)
    }

    /// Waits until the request has to ask. `set_timer` is called with the end of its wait.
    pub(crate) fn poll_turn(
        &mut self,
        held: &ClaimSet,
        cx: &mut Context<'_>,
        mut set_timer: impl FnMut(&mut Context<'_>, Option<Now>) -> Poll<()>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let Some(place) = &mut self.place else { return Poll::Ready(Ok(())) };
            match place.check_turn(cx) {
                AskTurn::Ask => return Poll::Ready(Ok(())),
                AskTurn::Wait(until) if set_timer(cx, until).is_pending() => return Poll::Pending,
                AskTurn::Wait(_) => {}
                AskTurn::Reject(wait_ns) => {
                    let rejection = held.reject_for_slots((place.limit_index, place.rate), Some(wait_ns));
                    self.place = None;
                    return Poll::Ready(Err(rejection));
                }
            }
        }
    }

    pub(crate) fn leave_queue(&mut self) {
        self.place = None;
    }

    /// The index of the limit with the queue that it stands in, and its turn there.
    fn describe_turn(&self, session: &Session) -> Option<(u16, GatewayTurn)> {
        let place = self.place.as_ref()?;
        let (queue, gateway) = (&place.limit.slot_queue, session.store.process_node());
        Some((place.limit_index, queue.describe_turn(gateway, &place.slot_key, Now::read_clock())?))
    }
}

// === impl StoreSlotPlace ===

impl StoreSlotPlace {
    fn check_turn(&mut self, cx: &Context<'_>) -> AskTurn {
        let Some(ticket) = &self.ticket else { return AskTurn::Ask };
        let turn = self.limit.slot_queue.poll_turn(&self.slot_key, ticket, Now::read_clock(), cx.waker());
        if matches!(turn, AskTurn::Reject(_)) {
            self.ticket = None;
        }
        turn
    }

    fn end_served(mut self, more_free: bool) {
        if let Some(ticket) = self.ticket.take() {
            self.limit.slot_queue.end_served(&self.slot_key, &ticket, more_free, Now::read_clock());
        }
    }

    fn end_refused(&self) {
        if let Some(ticket) = &self.ticket {
            self.limit.slot_queue.end_refused(&self.slot_key, ticket);
        }
    }
}

impl Drop for StoreSlotPlace {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            self.limit.slot_queue.leave_queue(&self.slot_key, ticket, Now::read_clock());
        }
    }
}

// === impl ClaimSet ===

impl ClaimSet {
    /// Takes the concurrency slots that are still to be asked for in the store. `turn`: the index of the limit with the
    /// queue that the request stands in, and its turn there; without one it asks for none as long as others wait.
    ///
    /// # Errors
    /// Too few are free, and their limit has no queue.
    pub(crate) async fn take_store_slots(
        &mut self,
        session: &Session,
        undecided: &mut Vec<UndecidedLimit>,
        turn: Option<(u16, GatewayTurn)>,
    ) -> Result<StoreTake, ChainRejection> {
        let ClaimSet { limits, store_holds, .. } = self;
        let wants_slots = |store: &&mut Box<StoreHolds>| store.holds.iter().any(RateHold::wants_slots);
        let Some(store) = store_holds.as_mut().filter(wants_slots) else {
            return Ok(StoreTake::Taken { more_free: true });
        };
        if let Some(limit_index) = store.find_waited_slots().filter(|_| turn.is_none()) {
            return Ok(StoreTake::Lacking(limit_index));
        }
        let answers = store.ask_for_slots(session, turn).await;
        if let Some(limit_index) = store.find_lacking(&answers) {
            store.postpone_slots();
            return Ok(StoreTake::Lacking(limit_index));
        }
        let none_rejects = none_rejects(answers.iter().map(|(_, answer, _)| answer));
        let (mut rejected, mut more_free) = (None, true);
        for (index, answer, kept) in answers {
            if let StoreAnswer::Answered { answer, .. } = &answer {
                more_free &= answer.decision.remaining > 0;
            }
            let hold = &mut store.holds[index];
            rejected = rejected.or(hold.apply_slots(limits, &answer, (none_rejects, kept), undecided));
        }
        rejected.map_or(Ok(StoreTake::Taken { more_free }), Err)
    }

    /// Joins the queue for the slots that are wanted of a limit.
    ///
    /// # Errors
    /// It has none, or it is full.
    fn join_store_queue(
        &self,
        limit_index: u16,
        session: &Rc<Session>,
        since: Now,
    ) -> Result<StoreSlotPlace, ChainRejection> {
        let mut holds = self.store_holds.iter().flat_map(|store| &store.holds);
        let hold = holds.find(|hold| hold.demand.limit_index == limit_index && hold.wants_slots());
        let found = hold.and_then(|hold| Some((hold, hold.demand.limit.slot_terms(hold.rate)?)));
        let Some((hold, terms)) = found else { return Err(self.reject_for_slots((limit_index, 0), Some(1))) };
        let (limit, rate, slot_key) = (hold.demand.limit.clone(), hold.rate, hold.slot_key());
        let rule = &limit.rules[rate];
        let newcomer = SlotNewcomer {
            slot_key,
            rule,
            cost: hold.demand.units.cost,
            fair_hash: hold.demand.units.fair_hash,
            since,
        };
        match limit.slot_queue.join_queue(newcomer, &terms, Now::read_clock()) {
            Ok((ticket, starts_polls)) => {
                if starts_polls {
                    session.start_polls(&limit);
                }
                Ok(StoreSlotPlace { limit, limit_index, rate, slot_key, ticket: Some(ticket) })
            }
            Err(wait_ns) => Err(self.reject_for_slots((limit_index, rate), Some(wait_ns))),
        }
    }
}

// === impl StoreHolds ===

impl StoreHolds {
    /// The index of the first limit with slots that other requests wait for.
    fn find_waited_slots(&self) -> Option<u16> {
        let is_waited = |hold: &&RateHold| {
            hold.wants_slots()
                && !hold.demand.is_dry_run()
                && hold.demand.limit.slot_terms(hold.rate).is_some()
                && hold.demand.limit.slot_queue.has_waiters(&hold.slot_key())
        };
        self.holds.iter().find(is_waited).map(|hold| hold.demand.limit_index)
    }

    /// The index of the limit with too few slots if the request may wait for them, and nothing else rejects it.
    fn find_lacking(&self, answers: &[SlotAnswer]) -> Option<u16> {
        let mut lacking = None;
        for (index, answer, kept) in answers {
            let hold = &self.holds[*index];
            let (is_short, may_wait) = match answer {
                StoreAnswer::Answered { answer, .. } => {
                    (answer.decision.outcome == LimitOutcome::Reject && !kept, true)
                }
                StoreAnswer::Failed(_) => (!kept, hold.demand.limit.on_failure == OnFailure::Local),
                StoreAnswer::Full => (true, true),
            };
            if !is_short || hold.demand.is_dry_run() {
                continue;
            }
            if !may_wait || hold.demand.limit.slot_terms(hold.rate).is_none() {
                return None;
            }
            lacking.get_or_insert(hold.demand.limit_index);
        }
        lacking
    }

    /// Asks for the wanted slots.
    async fn ask_for_slots(
        &self,
        session: &Session,
        turn: Option<(u16, GatewayTurn)>,
    ) -> SmallVec<[SlotAnswer; 2]> {
        let turn_of = |hold: &RateHold| {
            let newcomer = hold.demand.limit.newcomer_turn(hold.rate, session.store.process_node())?;
            Some(match turn {
                Some((own, turn)) if own == hold.demand.limit_index => turn,
                Some((_, turn)) => GatewayTurn { poll_us: 0, waiting: 0, ..turn },
                None => newcomer,
            })
        };
        let mut pending = PendingSlots::new(&session.outbox);
        let mut indices: SmallVec<[usize; 2]> = SmallVec::new();
        let mut questions: SmallVec<[StoreQuestion<'_>; 2]> = SmallVec::new();
        for (index, hold) in self.holds.iter().enumerate().filter(|(_, hold)| hold.wants_slots()) {
            let (count, in_process) =
                pending.request_slots(&hold.demand.limit, hold.rate, hold.slot_key(), hold.demand.units.cost);
            let mut question = hold.demand.to_question(hold.rate);
            question.item.slot_count = SlotCount { turn: turn_of(hold), ..count };
            indices.push(index);
            questions.push(StoreQuestion { in_process, ..question });
        }
        if let Some(full) = questions.iter().position(StoreQuestion::is_full) {
            pending.cancel_all();
            return SmallVec::from_iter([(indices[full], StoreAnswer::Full, false)]);
        }
        let answers = session.ask_store(ScriptOp::Take, &questions).await;
        let none_rejects = none_rejects(answers.iter());
        let apply = |((index, question), answer): ((usize, &StoreQuestion<'_>), StoreAnswer)| {
            let StoreQuestion { limit, rate, in_process, .. } = *question;
            let grants = match &answer {
                StoreAnswer::Failed(_) => {
                    limit.grants_slots_locally(rate, &self.holds[index].slot_key(), in_process)
                }
                StoreAnswer::Answered { answer, .. } => {
                    answer.decision.outcome == LimitOutcome::Reject && limit.is_paused()
                }
                StoreAnswer::Full => false,
            };
            let kept = none_rejects && grants;
            pending.apply_answer(question, &answer, (none_rejects, kept));
            (index, answer, kept)
        };
        indices.into_iter().zip(&questions).zip(answers).map(apply).collect()
    }
}

// === impl RateHold ===

impl RateHold {
    /// Applies the answer about its slots. `none_rejects`: no limit rejected; `kept`: the slots are held although they
    /// were not granted.
    fn apply_slots(
        &mut self,
        limits: &[ChainedLimit],
        answer: &StoreAnswer,
        (none_rejects, kept): (bool, bool),
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Option<ChainRejection> {
        let limit_index = usize::from(self.demand.limit_index);
        let cause = match answer {
            StoreAnswer::Answered { answer, .. } => {
                let admits = answer.decision.outcome != LimitOutcome::Reject;
                let granted = (admits && none_rejects).then_some(answer.decision.remaining);
                self.state = HoldState::of_slots(granted, kept);
                (!admits).then_some(ChainCause::Concurrency)
            }
            StoreAnswer::Full => Some(ChainCause::Concurrency),
            StoreAnswer::Failed(_) => {
                self.state = HoldState::Slots(kept.then_some(0));
                self.demand.limit.count_fallback();
                let fallback = Some(self.demand.limit.on_failure);
                undecided.push(UndecidedLimit { limit_index, fallback, share: None });
                (!kept).then(|| ChainCause::without_store(&self.demand.limit))
            }
        };
        let cause = cause.filter(|_| !self.demand.is_dry_run())?;
        let class = self.demand.units.key.class;
        Some(ChainRejection::outright(cause, &limits[limit_index], self.rate, class).into_late())
    }
}
