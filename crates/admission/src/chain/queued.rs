//! A request that waits for its turn in the queues of its limits, and then for slots.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::time::Sleep;

use super::claims::{ClaimKind, ClaimSet};
use super::slots::in_store::StoreSlotWait;
use super::slots::{LackingSlots, SlotWait};
use super::{ChainCause, ChainPermit, ChainRejection, UndecidedLimit, WaitingPlace};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Turn};
use sluicegate_store::Session;

/// A request in the queues of its limits. Dropping it leaves them and gives everything back.
pub struct Queued {
    pub(super) held: ClaimSet,
    /// Boxed, because few requests wait.
    wait: Box<QueueWait>,
}

struct QueueWait {
    /// Present until the request has its turn and its slots.
    place: Option<WaitingPlace>,
    /// The longest wait at judgement, ns.
    wait_ns: u64,
    /// The position at judgement in a queue for slots, from 1; 0 = it has none.
    position: u64,
    slots: SlotWait,
    in_store: StoreSlotWait,
    /// One or more stays.
    stays: SmallVec<[QueueStay; 2]>,
}

/// The stay of a request in the queue of a limit, until the next one begins.
#[derive(Debug, Clone, Copy)]
pub struct QueueStay {
    /// The index of the limit in [`super::Chain::limits`]; of several rates, of the one with the longest computed wait.
    pub limit_index: u16,
    pub since: Now,
    /// The request waits for a slot, and not for its turn by a rate.
    pub for_slots: bool,
}

/// The state of a request's turn by all rates.
enum TurnCheck {
    Come,
    /// The request has to check again at that moment.
    Due(Now),
    /// The waker is called.
    Waits,
}

// === impl Queued ===

impl Queued {
    pub(super) fn new(held: ClaimSet, place: WaitingPlace, (wait_ns, limit_index): (u64, u16)) -> Queued {
        let stay = QueueStay { limit_index, since: held.judged_at, for_slots: false };
        let wait = QueueWait {
            place: Some(place),
            wait_ns,
            position: 0,
            slots: SlotWait::default(),
            in_store: StoreSlotWait::default(),
            stays: SmallVec::from_iter([stay]),
        };
        Queued { held, wait: Box::new(wait) }
    }

    /// A request that has its turn by all rates, and waits for slots.
    pub(super) fn for_slots(
        held: ClaimSet,
        place: Option<WaitingPlace>,
        slots: SlotWait,
        (position, limit_index): (u64, u16),
    ) -> Queued {
        let stay = QueueStay { limit_index, since: held.judged_at, for_slots: true };
        let (stays, in_store) = (SmallVec::from_iter([stay]), StoreSlotWait::default());
        Queued { held, wait: Box::new(QueueWait { place, wait_ns: 0, position, slots, in_store, stays }) }
    }

    /// A request that waits for slots in the store.
    pub(super) fn for_store_slots(
        mut held: ClaimSet,
        place: WaitingPlace,
        LackingSlots { limit_index, is_refused }: LackingSlots,
    ) -> Queued {
        held.put_slots_back(None);
        if let Some(hold) = &mut held.store_holds {
            hold.postpone_slots();
        }
        let mut queued = Queued::for_slots(held, Some(place), SlotWait::default(), (0, limit_index));
        queued.wait.in_store = StoreSlotWait::starting(is_refused.then_some(limit_index));
        queued
    }

    /// The longest wait as computed at judgement, in nanoseconds; requests that leave a queue only shorten it. 0 for
    /// slots: nobody knows when they are freed.
    pub fn wait_ns(&self) -> u64 {
        self.wait.wait_ns
    }

    /// The position of an imaginary request in a queue for slots, from 1.
    pub fn slot_position(&self) -> Option<u64> {
        Some(self.wait.position).filter(|position| *position > 0)
    }

    /// The queues that it has stood in, in order; at least one.
    pub fn stays(&self) -> &[QueueStay] {
        &self.wait.stays
    }

    /// The index in [`super::Chain::limits`] of the limit that it queues for, or did last.
    pub fn limit_index(&self) -> usize {
        self.wait.stays.last().map_or(0, |stay| stay.limit_index.into())
    }

    /// The limit that it queues for, or did last.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.held.limits[self.limit_index()]
    }

    /// Waits for its turn in the queues of all rates at once. Dropping the request leaves all queues.
    ///
    /// # Errors
    /// A queue with `fair_by` may still reject the request, because another displaced it or its maximum wait has
    /// passed.
    pub async fn wait_turn(&mut self) -> Result<(), ChainRejection> {
        let held = &mut self.held;
        // A placeholder: `poll_turns` sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(held.judged_at.to_instant()));
        poll_fn(|cx| held.poll_turns(cx, sleep.as_mut())).await?;
        Ok(())
    }

    /// Takes the concurrency slots after its turn, and waits for them where their limit has a queue; `session` is asked
    /// for those that are counted in the store.
    ///
    /// # Errors
    /// Too few slots are free, or the wait for them has ended.
    pub async fn take_slots(
        &mut self,
        session: Option<&Rc<Session>>,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Result<(), ChainRejection> {
        let Queued { held, wait } = self;
        let QueueWait { place, slots, in_store, stays, .. } = &mut **wait;
        // A placeholder: `set_timer` sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(held.judged_at.to_instant()));
        let mut set_timer = |cx: &mut Context<'_>, until: Option<Now>| match until {
            Some(until) => poll_timer(sleep.as_mut(), until, cx),
            None => Poll::Pending,
        };
        let mut note_stay = |limit_index| {
            stays.push(QueueStay { limit_index, since: Now::read_clock(), for_slots: true });
        };
        loop {
            poll_fn(|cx| slots.poll_slots(held, cx, &mut note_stay, &mut set_timer)).await?;
            let Some(session) = session else { break };
            if in_store.try_take(held, session, undecided, &mut note_stay).await? {
                break;
            }
            slots.put_back_unless_ordered(held);
            poll_fn(|cx| in_store.poll_turn(held, cx, &mut set_timer)).await?;
            if !slots.take_again(held) {
                in_store.leave_queue();
            }
        }
        *place = None;
        Ok(())
    }

    /// Checks its turn and then takes its slots, at the present of a held clock and without a runtime: for replays.
    /// `next` is set to the moment at which it has to be polled again, unless its waker is called before.
    ///
    /// # Errors
    /// As [`Queued::wait_turn`] and [`Queued::take_slots`].
    pub fn poll_held_clock(
        &mut self,
        cx: &mut Context<'_>,
        next: &mut Option<Now>,
    ) -> Poll<Result<(), ChainRejection>> {
        let Queued { held, wait } = self;
        match held.check_turns(cx, Now::read_clock())? {
            TurnCheck::Come => {}
            TurnCheck::Waits => return Poll::Pending,
            TurnCheck::Due(due) => {
                *next = Some(due);
                return Poll::Pending;
            }
        }
        wait.slots.poll_slots(
            held,
            cx,
            |_| {},
            |_, until| {
                *next = until;
                match until {
                    Some(until) if until <= Now::read_clock() => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            },
        )
    }

    /// The permit, once it has its turn and its slots.
    pub fn into_permit(self) -> ChainPermit {
        ChainPermit::new(self.held)
    }

    /// Ends the request here, but keeps its charges, its turn in a queue included.
    pub fn keep_charges(mut self) {
        self.held.keep_charges();
    }
}

fn poll_timer(mut sleep: Pin<&mut Sleep>, due: Now, cx: &mut Context<'_>) -> Poll<()> {
    if sleep.deadline() != due.to_instant() {
        sleep.as_mut().reset(due.to_instant());
    }
    sleep.poll(cx)
}

// === impl ClaimSet ===

impl ClaimSet {
    fn poll_turns(
        &mut self,
        cx: &mut Context<'_>,
        mut sleep: Pin<&mut Sleep>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            match self.check_turns(cx, Now::read_clock())? {
                TurnCheck::Come => return Poll::Ready(Ok(())),
                TurnCheck::Waits => return Poll::Pending,
                // Only the head of a queue has a timer, so there is one timer per queue; with `fair_by` every waiter
                // has one.
                TurnCheck::Due(due) if poll_timer(sleep.as_mut(), due, cx).is_pending() => {
                    return Poll::Pending;
                }
                TurnCheck::Due(_) => {}
            }
        }
    }

    /// Checks the turns of all rates at `now`.
    fn check_turns(&mut self, cx: &Context<'_>, now: Now) -> Result<TurnCheck, ChainRejection> {
        let mut waits = false;
        let mut due: Option<Now> = None;
        for index in 0..self.claims.len() {
            let claim = &mut self.claims[index];
            let (key, rate) = (claim.table_key(), usize::from(claim.rate));
            let limit: &Arc<Limit> = &self.limits[usize::from(claim.limit_index)];
            let turn = match (&mut claim.kind, &mut self.store_holds) {
                (ClaimKind::Charge(charge), _) => limit.check_turn(rate, &key, charge, now, cx.waker()),
                (ClaimKind::Shared(hold_index), Some(hold)) => hold.poll_turn(*hold_index, now, cx.waker()),
                _ => continue,
            };
            match turn {
                Turn::Go => {}
                Turn::Wait => waits = true,
                Turn::Due(at) => due = Some(due.map_or(at, |due| due.min(at))),
                Turn::Reject(retry_ns) => {
                    let rejection = ChainRejection {
                        retry_after_ns: Some(retry_ns),
                        late: true,
                        ..ChainRejection::outright(ChainCause::Queue, limit, rate)
                    };
                    // Its charge was refunded when it lost its position, so nothing is left to give back.
                    self.claims.remove(index);
                    return Err(rejection);
                }
            }
        }
        Ok(match due {
            Some(due) => TurnCheck::Due(due),
            None if waits => TurnCheck::Waits,
            None => TurnCheck::Come,
        })
    }
}
