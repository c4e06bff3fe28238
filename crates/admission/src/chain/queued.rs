//! A request that waits for its turn in the queues of its limits, and then for slots.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

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

#[derive(Default)]
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
    /// The moment at which the stay began.
    pub since: Now,
    /// The request waits for a slot, and not for its turn by a rate.
    pub for_slots: bool,
}

// === impl Queued ===

impl Queued {
    pub(super) fn new(held: ClaimSet, place: WaitingPlace, (wait_ns, limit_index): (u64, u16)) -> Queued {
        let wait = QueueWait { place: Some(place), wait_ns, ..QueueWait::default() };
        Queued::start(held, limit_index, false, wait)
    }

    /// A request that has its turn by all rates, and waits for slots.
    pub(super) fn for_slots(
        held: ClaimSet,
        place: Option<WaitingPlace>,
        slots: SlotWait,
        (position, limit_index): (u64, u16),
    ) -> Queued {
        Queued::start(held, limit_index, true, QueueWait { place, position, slots, ..QueueWait::default() })
    }

    fn start(held: ClaimSet, limit_index: u16, for_slots: bool, mut wait: QueueWait) -> Queued {
        wait.stays.push(QueueStay { limit_index, since: held.judged_at, for_slots });
        Queued { held, wait: Box::new(wait) }
    }

    /// A request that waits for slots in the store.
    pub(super) fn for_store_slots(
        mut held: ClaimSet,
        place: WaitingPlace,
        LackingSlots { limit_index, is_refused }: LackingSlots,
    ) -> Queued {
        held.put_all_slots_back();
        let in_store = StoreSlotWait::starting(is_refused.then_some(limit_index));
        let wait = QueueWait { place: Some(place), in_store, ..QueueWait::default() };
        Queued::start(held, limit_index, true, wait)
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

    /// The request's class in the shares of a limit, by its index.
    pub fn class_in(&self, limit_index: u16) -> u8 {
        self.held.class_in(limit_index)
    }

    /// Waits for its turn in the queues of all rates at once. Dropping the request leaves all queues.
    ///
    /// # Errors
    /// A queue with `fair_by` may still reject the request, because another displaced it or its maximum wait has
    /// passed.
    pub async fn wait_turn(&mut self) -> Result<(), ChainRejection> {
        // A placeholder: `poll_timer` sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(self.held.judged_at.to_instant()));
        poll_fn(|cx| self.poll_turns(cx, |cx, until| poll_timer(sleep.as_mut(), until, cx))).await
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
        // A placeholder: `poll_timer` sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(held.judged_at.to_instant()));
        let mut set_timer = |cx: &mut Context<'_>, until| poll_timer(sleep.as_mut(), until, cx);
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
        ready!(self.poll_turns(cx, |_, until| {
            *next = until;
            Poll::Pending
        }))?;
        let Queued { held, wait } = self;
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

    /// Checks the turns of all rates. `set_timer` is called with the moment at which the request has to check again;
    /// `None`: its waker is called. Only the head of a queue has such a moment, so there is one timer per queue; with
    /// `fair_by` every waiter has one.
    fn poll_turns(
        &mut self,
        cx: &mut Context<'_>,
        mut set_timer: impl FnMut(&mut Context<'_>, Option<Now>) -> Poll<()>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let Some(due) = self.check_turns(cx, Now::read_clock())? else { return Poll::Ready(Ok(())) };
            if set_timer(cx, due).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Checks the turns of all rates at `now`. `None`: all have come; otherwise the moment of the next check, if it is
    /// known.
    fn check_turns(&mut self, cx: &Context<'_>, now: Now) -> Result<Option<Option<Now>>, ChainRejection> {
        let ClaimSet { limits, claims, store_holds, .. } = &mut self.held;
        let mut waits = false;
        let mut due: Option<Now> = None;
        for index in 0..claims.len() {
            let claim = &mut claims[index];
            let (key, rate) = (claim.table_key(), usize::from(claim.rate));
            let limit: &Arc<Limit> = &limits[usize::from(claim.limit_index)];
            let turn = match (&mut claim.kind, store_holds.as_mut()) {
                (ClaimKind::Charge(charge), _) => limit.check_turn(rate, &key, charge, now, cx.waker()),
                (ClaimKind::InStore(index), Some(store)) => store.poll_turn(*index, now, cx.waker()),
                _ => continue,
            };
            match turn {
                Turn::Go => {}
                Turn::Wait => waits = true,
                Turn::Due(at) => due = Some(due.map_or(at, |due| due.min(at))),
                Turn::Reject(retry_ns) => {
                    let rejection = ChainRejection::outright(ChainCause::Queue, limit, rate, key.class);
                    // Its charge was refunded when it lost its position, so nothing is left to give back.
                    claims.remove(index);
                    return Err(rejection.with_retry(Some(retry_ns)).into_late());
                }
            }
        }
        Ok((waits || due.is_some()).then_some(due))
    }
}

fn poll_timer(mut sleep: Pin<&mut Sleep>, due: Option<Now>, cx: &mut Context<'_>) -> Poll<()> {
    let Some(due) = due else { return Poll::Pending };
    if sleep.deadline() != due.to_instant() {
        sleep.as_mut().reset(due.to_instant());
    }
    sleep.poll(cx)
}
