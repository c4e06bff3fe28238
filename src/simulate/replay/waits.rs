//! Requests of a replay that wait in queues or hold slots, on a held clock: a heap of moments and a list of woken
//! requests take the place of the timers and wakers of production.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;

use super::tally::DemandedLimit;
use sluicegate_admission::chain::{ChainPermit, Queued};
use sluicegate_base::clock::{self, Now, duration_ns};
use sluicegate_model::LimitId;

/// The requests that wait or hold slots.
#[derive(Default)]
pub(super) struct WaitRoom {
    stays: Slab<Stay>,
    /// Moments at which a stay has to be looked at, in order; those of a stay that has changed since are void.
    moments: BinaryHeap<Reverse<(Now, u64, usize)>>,
    woken: Arc<Mutex<Vec<(usize, u64)>>>,
    next_id: u64,
}

/// One request.
struct Stay {
    /// Distinguishes the requests that had this place.
    id: u64,
    state: StayState,
    arrival: Now,
    /// The end of the location's timeout.
    deadline: Option<Now>,
    /// The time for which it holds its slots, ns.
    hold_ns: u64,
    asked: Box<[DemandedLimit]>,
    waker: Waker,
}

enum StayState {
    Waits(Queued),
    Holds(#[expect(dead_code, reason = "held until it is dropped")] ChainPermit),
    /// The state while it changes.
    Gone,
}

/// The end of a request's wait.
pub(super) struct EndedWait {
    pub arrival: Now,
    pub asked: Box<[DemandedLimit]>,
    pub waited_ns: u64,
    /// `Some` = a limit rejected it after all; the limit is known unless it was its location's timeout.
    pub rejected_by: Option<Option<LimitId>>,
}

struct ReplayWaker {
    place: usize,
    id: u64,
    woken: Arc<Mutex<Vec<(usize, u64)>>>,
}

impl Wake for ReplayWaker {
    fn wake(self: Arc<Self>) {
        self.woken.lock().push((self.place, self.id));
    }
}

impl WaitRoom {
    /// Adds a request that waits since `now`. `timeout` is that of its location.
    pub(super) fn add_waiting(
        &mut self,
        queued: Queued,
        now: Now,
        timeout: Option<Duration>,
        hold_ns: u64,
        asked: &[DemandedLimit],
        ended: &mut impl FnMut(EndedWait),
    ) {
        let deadline = timeout.map(|timeout| Now(now.0.saturating_add(duration_ns(timeout))));
        let place = self.insert(StayState::Waits(queued), now, deadline, hold_ns, asked);
        self.look_at(place, now, ended);
    }

    /// Adds a request that holds slots from `now` on.
    pub(super) fn add_holding(&mut self, permit: ChainPermit, now: Now, hold_ns: u64) {
        let place = self.insert(StayState::Holds(permit), now, None, hold_ns, &[]);
        self.schedule(place, Now(now.0.saturating_add(hold_ns)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stays.is_empty()
    }

    /// Lets the time pass until `until`: requests go when their turn comes, and give their slots back at their end.
    pub(super) fn pass_time(&mut self, until: Now, ended: &mut impl FnMut(EndedWait)) {
        while let Some(Reverse((at, id, place))) = self.moments.peek().copied() {
            if at > until {
                return;
            }
            self.moments.pop();
            if self.stays.get(place).is_some_and(|stay| stay.id == id) {
                clock::hold_clock(Some(at));
                self.look_at(place, at, ended);
                self.look_at_woken(at, ended);
            }
        }
    }

    /// Looks at the requests that were woken, by one that went or that was judged.
    pub(super) fn look_at_woken(&mut self, now: Now, ended: &mut impl FnMut(EndedWait)) {
        loop {
            let Some((place, id)) = self.woken.lock().pop() else { return };
            if self.stays.get(place).is_some_and(|stay| stay.id == id) {
                self.look_at(place, now, ended);
            }
        }
    }

    fn insert(
        &mut self,
        state: StayState,
        arrival: Now,
        deadline: Option<Now>,
        hold_ns: u64,
        asked: &[DemandedLimit],
    ) -> usize {
        self.next_id += 1;
        let (id, place) = (self.next_id, self.stays.vacant_key());
        let waker = match &state {
            StayState::Waits(_) => Arc::new(ReplayWaker { place, id, woken: self.woken.clone() }).into(),
            StayState::Holds(_) | StayState::Gone => Waker::noop().clone(),
        };
        self.stays.insert(Stay { id, state, arrival, deadline, hold_ns, asked: asked.into(), waker })
    }

    fn schedule(&mut self, place: usize, at: Now) {
        let id = self.stays[place].id;
        self.moments.push(Reverse((at, id, place)));
    }

    /// Moves a request on as far as it gets at `now`.
    fn look_at(&mut self, place: usize, now: Now, ended: &mut impl FnMut(EndedWait)) {
        let stay = &mut self.stays[place];
        let mut queued = match std::mem::replace(&mut stay.state, StayState::Gone) {
            StayState::Waits(queued) => queued,
            // Its end: dropping it gives its slots back.
            StayState::Holds(_) | StayState::Gone => {
                self.stays.remove(place);
                return;
            }
        };
        let mut next = None;
        let polled = queued.poll_held_clock(&mut Context::from_waker(&stay.waker), &mut next);
        let is_over = stay.deadline.is_some_and(|deadline| deadline <= now);
        let rejected_by = match polled {
            Poll::Pending if !is_over => {
                stay.state = StayState::Waits(queued);
                let next = match (next, stay.deadline) {
                    (Some(next), Some(deadline)) => Some(next.min(deadline)),
                    (next, deadline) => next.or(deadline),
                };
                // Never the same moment again, which would not pass.
                if let Some(next) = next {
                    self.schedule(place, next.max(Now(now.0 + 1)));
                }
                return;
            }
            Poll::Pending => Some(Some(queued.limit().id)),
            Poll::Ready(Err(rejection)) => Some(rejection.limit.map(|limit| limit.id)),
            Poll::Ready(Ok(())) => {
                let mut permit = queued.into_permit();
                permit.keep_charges();
                if permit.slot_decisions().next().is_some() {
                    stay.state = StayState::Holds(permit);
                }
                None
            }
        };
        let (waited_ns, asked) = (now.ns_since(stay.arrival), std::mem::take(&mut stay.asked));
        let (arrival, at) = (stay.arrival, Now(now.0.saturating_add(stay.hold_ns)));
        if matches!(stay.state, StayState::Holds(_)) {
            self.schedule(place, at);
        } else {
            self.stays.remove(place);
        }
        ended(EndedWait { arrival, asked, waited_ns, rejected_by });
    }
}
