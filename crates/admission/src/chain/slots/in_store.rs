//! Asks the store for the concurrency slots of a request, after its wait, and waits in the queues of this gateway for
//! those that it lacks.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::LackingSlots;
use super::pending::PendingSlots;
use crate::chain::claims::holds::{HoldState, RateHold, StoreHolds, none_rejects};
use crate::chain::claims::{ClaimKind, ClaimSet};
use crate::chain::{ChainCause, ChainRejection, UndecidedLimit};
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
    /// None. The limit of this hold has too few, and a queue.
    Lacking(usize),
}

// === impl ClaimSet ===

impl ClaimSet {
    /// Takes the concurrency slots that are still to be asked for in the store. `turn`: the hold of the queue that the
    /// request stands in, and its turn there; without one it asks for none as long as others wait for them.
    ///
    /// # Errors
    /// Too few are free, and their limit has no queue.
    pub(crate) async fn take_store_slots(
        &mut self,
        session: &Session,
        undecided: &mut Vec<UndecidedLimit>,
        turn: Option<(usize, GatewayTurn)>,
    ) -> Result<StoreTake, ChainRejection> {
        let Some(store_holds) = self.store_holds.as_ref().filter(|hold| hold.wants_slots()) else {
            return Ok(StoreTake::Taken { more_free: true });
        };
        if let Some(index) = store_holds.find_waited_slots().filter(|_| turn.is_none()) {
            return Ok(StoreTake::Lacking(index));
        }
        let outcomes = store_holds.ask_for_slots(session, turn).await;
        if let Some(index) = self.find_lacking(&outcomes) {
            if let Some(hold) = &mut self.store_holds {
                hold.postpone_slots();
            }
            return Ok(StoreTake::Lacking(index));
        }
        let none_rejects = none_rejects(outcomes.iter().map(|(_, answer, _)| answer));
        let (mut rejected, mut more_free) = (None, true);
        for (index, answer, kept) in outcomes {
            if let StoreAnswer::Answered { answer, .. } = &answer {
                more_free &= answer.decision.remaining > 0;
            }
            rejected = rejected.or(self.apply_slot_answer(index, answer, none_rejects, kept, undecided));
        }
        rejected.map_or(Ok(StoreTake::Taken { more_free }), Err)
    }

    /// The slots of a hold for which the request has to wait; it has asked for them or found others waiting.
    pub(crate) fn describe_lacking(&self, hold_index: usize) -> LackingSlots {
        let hold = self.store_holds.as_ref().and_then(|hold| hold.holds.get(hold_index));
        LackingSlots { limit_index: hold.map_or(0, |hold| hold.limit_index), is_refused: false }
    }

    /// The hold with too few slots if the request may wait for them, and nothing else rejects it.
    fn find_lacking(&self, outcomes: &[(usize, StoreAnswer, bool)]) -> Option<usize> {
        let holds = &self.store_holds.as_ref()?.holds;
        let mut lacking = None;
        for (index, answer, kept) in outcomes {
            let hold = &holds[*index];
            let is_short = match answer {
                StoreAnswer::Answered { answer, .. } => answer.decision.outcome == LimitOutcome::Reject,
                StoreAnswer::Failed(_) => !kept,
                StoreAnswer::Full => true,
            };
            if !is_short || hold.dry_run {
                continue;
            }
            let waits = match answer {
                StoreAnswer::Failed(_) => hold.limit.on_failure == OnFailure::Local,
                StoreAnswer::Answered { .. } | StoreAnswer::Full => true,
            };
            if !waits || hold.limit.slot_terms(hold.rate).is_none() {
                return None;
            }
            lacking.get_or_insert(*index);
        }
        lacking
    }

    /// Applies the answer about the slots of one hold. `none_rejects`: no limit rejected; `kept`: the slots are held
    /// without an answer.
    fn apply_slot_answer(
        &mut self,
        index: usize,
        answer: StoreAnswer,
        none_rejects: bool,
        kept: bool,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Option<ChainRejection> {
        let hold = &mut self.store_holds.as_mut()?.holds[index];
        let (limit_index, rate, dry_run) = (usize::from(hold.limit_index), hold.rate, hold.dry_run);
        let limit = &self.limits[limit_index];
        let rejection =
            |cause| Some(ChainRejection { late: true, ..ChainRejection::outright(cause, limit, rate) });
        match answer {
            StoreAnswer::Answered { answer, .. } => {
                let admits = answer.decision.outcome != LimitOutcome::Reject;
                hold.state = HoldState::Slots(admits && none_rejects);
                if admits || dry_run { None } else { rejection(ChainCause::Concurrency) }
            }
            StoreAnswer::Full => rejection(ChainCause::Concurrency),
            StoreAnswer::Failed(_) => {
                hold.state = HoldState::Slots(kept);
                hold.limit.count_fallback();
                let fallback = Some(hold.limit.on_failure);
                undecided.push(UndecidedLimit { limit_index, fallback, share: None });
                let cause = ChainCause::without_store(&hold.limit);
                if kept || dry_run { None } else { rejection(cause) }
            }
        }
    }
}

// === impl StoreHolds ===

impl StoreHolds {
    /// True while there are slots to ask the store for.
    fn wants_slots(&self) -> bool {
        self.holds.iter().any(|hold| matches!(hold.state, HoldState::SlotsWanted))
    }

    /// The first hold on slots that other requests wait for.
    fn find_waited_slots(&self) -> Option<usize> {
        self.holds.iter().position(|hold| {
            matches!(hold.state, HoldState::SlotsWanted)
                && !hold.dry_run
                && hold.limit.slot_terms(hold.rate).is_some()
                && hold.limit.slot_queue.has_waiters(&hold.slot_key())
        })
    }

    /// Asks for the wanted slots. Returns for each the index of its hold, the answer, and whether its slots are held
    /// although the store did not answer.
    async fn ask_for_slots(
        &self,
        session: &Session,
        turn: Option<(usize, GatewayTurn)>,
    ) -> SmallVec<[(usize, StoreAnswer, bool); 2]> {
        let turn_at = |index: usize, hold: &RateHold| {
            let newcomer = hold.limit.newcomer_turn(hold.rate, session.store.node())?;
            Some(match turn {
                Some((own, turn)) if own == index => turn,
                Some((_, turn)) => GatewayTurn { poll_us: 0, ..turn },
                None => newcomer,
            })
        };
        let mut pending = PendingSlots::new(&session.outbox);
        let wanted = |(_, hold): &(usize, &RateHold)| matches!(hold.state, HoldState::SlotsWanted);
        let wanted: SmallVec<[(usize, &RateHold); 2]> =
            self.holds.iter().enumerate().filter(wanted).collect();
        let mut questions: SmallVec<[StoreQuestion<'_>; 2]> = SmallVec::new();
        for (index, hold) in &wanted {
            let (count, in_process) = pending.request_slots(&hold.limit, hold.rate, hold.key, hold.cost);
            let slot_count = SlotCount { turn: turn_at(*index, hold), ..count };
            questions.push(StoreQuestion { in_process, ..hold.to_question(slot_count) });
        }
        let is_full = |question: &StoreQuestion<'_>| {
            let capacity = question.limit.rules[question.rate].capacity();
            !question.dry_run && question.in_process > capacity
        };
        if let Some(index) = questions.iter().position(is_full) {
            pending.cancel_all();
            return SmallVec::from_iter([(wanted[index].0, StoreAnswer::Full, false)]);
        }
        let answer = session.ask_store(ScriptOp::Take, &questions).await;
        let none_rejects = none_rejects(answer.iter());
        let mut kept: SmallVec<[bool; 2]> = SmallVec::new();
        for (question, answer) in questions.iter().zip(&answer) {
            let keeps = matches!(answer, StoreAnswer::Failed(_))
                && none_rejects
                && question.limit.grants_slots_locally(question.rate, question.key, question.in_process);
            kept.push(keeps);
            match answer {
                StoreAnswer::Answered { answer, charged: took }
                    if answer.decision.outcome != LimitOutcome::Reject =>
                {
                    match (took, none_rejects) {
                        (true, true) => pending.mark_granted(question),
                        // Slots that were taken in vain are given up by dropping `pending`.
                        (true, false) => {}
                        (false, _) => pending.mark_rejected(question),
                    }
                }
                StoreAnswer::Failed(_) if keeps => pending.mark_kept(question, Some(answer)),
                StoreAnswer::Failed(_) => pending.mark_failed(question, Some(answer)),
                StoreAnswer::Answered { .. } | StoreAnswer::Full => pending.mark_rejected(question),
            }
        }
        let indices = wanted.iter().map(|(index, _)| *index);
        indices.zip(answer).zip(kept).map(|((index, answer), kept)| (index, answer, kept)).collect()
    }
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
    hold_index: usize,
    slot_key: SlotKey,
    /// `None` once it has left.
    ticket: Option<SlotTicket>,
}

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
        // Its stay there is noted already.
        let refused = self.refused_by.take().and_then(|limit_index| held.find_wanted_slots(limit_index));
        let is_noted = refused.is_some();
        let lacking = match refused {
            Some(index) => index,
            None => match held.take_store_slots(session, undecided, self.describe_turn(session)).await? {
                StoreTake::Lacking(index) => index,
                StoreTake::Taken { more_free } => {
                    if let Some(place) = self.place.take() {
                        place.end_served(more_free);
                    }
                    return Ok(true);
                }
            },
        };
        match &self.place {
            Some(place) if place.hold_index == lacking => place.end_refused(),
            _ => {
                self.place = None;
                let since = *self.since.get_or_insert_with(Now::read_clock);
                let (place, limit_index) = held.join_store_queue(lacking, session, since)?;
                self.place = Some(place);
                if !is_noted {
                    note_place(limit_index);
                }
            }
        }
        Ok(false)
    }

    /// Waits until the request has to ask. `set_timer` is called with the end of its wait.
    pub(crate) fn poll_turn(
        &mut self,
        held: &mut ClaimSet,
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
                    let hold_index = place.hold_index;
                    self.place = None;
                    return Poll::Ready(Err(held.reject_for_store_slots(hold_index, wait_ns)));
                }
            }
        }
    }

    pub(crate) fn leave_queue(&mut self) {
        self.place = None;
    }

    /// The hold with the queue that it stands in, and its turn there.
    fn describe_turn(&self, session: &Session) -> Option<(usize, GatewayTurn)> {
        let place = self.place.as_ref()?;
        let (queue, gateway) = (&place.limit.slot_queue, session.store.node());
        Some((place.hold_index, queue.describe_turn(gateway, &place.slot_key, Now::read_clock())?))
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
    /// The hold of the slots that are wanted of a limit.
    fn find_wanted_slots(&self, limit_index: u16) -> Option<usize> {
        let holds = &self.store_holds.as_ref()?.holds;
        holds.iter().position(|hold| hold.limit_index == limit_index && hold.wants_slots())
    }

    /// Joins the queue for the slots of a hold. Returns the index of its limit as well.
    ///
    /// # Errors
    /// It has none, or it is full.
    fn join_store_queue(
        &mut self,
        hold_index: usize,
        session: &Rc<Session>,
        since: Now,
    ) -> Result<(StoreSlotPlace, u16), ChainRejection> {
        let hold = self.store_holds.as_ref().and_then(|hold| hold.holds.get(hold_index));
        let found = hold.and_then(|hold| Some((hold, hold.limit.slot_terms(hold.rate)?)));
        let Some((hold, terms)) = found else { return Err(self.reject_for_store_slots(hold_index, 1)) };
        let (limit, slot_key, limit_index) = (hold.limit.clone(), hold.slot_key(), hold.limit_index);
        let rule = &limit.rules[hold.rate];
        let newcomer = SlotNewcomer { slot_key, rule, cost: hold.cost, fair: hold.fair, since };
        match limit.slot_queue.join_queue(newcomer, &terms, Now::read_clock()) {
            Ok((ticket, starts_polls)) => {
                if starts_polls {
                    session.start_polls(&limit);
                }
                let place = StoreSlotPlace { limit, hold_index, slot_key, ticket: Some(ticket) };
                Ok((place, limit_index))
            }
            Err(wait_ns) => Err(self.reject_for_store_slots(hold_index, wait_ns)),
        }
    }

    /// See [`ClaimSet::reject_for_slots`].
    fn reject_for_store_slots(&self, hold_index: usize, wait_ns: u64) -> ChainRejection {
        let own =
            |kind: &ClaimKind| matches!(kind, ClaimKind::Shared(index) if *index as usize == hold_index);
        // Cannot fail: each hold has a claim as long as the request waits.
        let index = self.claims.iter().position(|claim| own(&{ claim.kind })).expect("a hold has a claim");
        self.reject_for_slots(index, Some(wait_ns))
    }
}
