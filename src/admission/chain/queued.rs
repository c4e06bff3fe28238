//! A request that waits for its turn in the queues of its limits, and one whose turn has come.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Sleep;

use super::claim::ClaimKind;
use super::claim_set::ClaimSet;
use super::waiting_cap::WaitingPlace;
use super::{ChainCause, ChainPermit, ChainRejection, UndecidedLimit};
use crate::base::clock::Now;
use crate::limit::{Limit, Turn};
use crate::shared::Session;

/// A request in the queues of its limits. Dropping it leaves them and gives everything back.
pub struct Queued {
    pub(super) held: ClaimSet,
    /// Boxed, because few requests wait.
    wait: Box<QueueWait>,
}

struct QueueWait {
    place: WaitingPlace,
    /// The longest wait at judgement, ns, and the index of its limit.
    wait_ns: u64,
    limit_index: u16,
}

/// A request whose turn has come in every queue. Dropping it gives everything back.
pub struct TurnTaken {
    held: ClaimSet,
}

// === impl Queued ===

impl Queued {
    pub(super) fn new(held: ClaimSet, place: WaitingPlace, (wait_ns, limit_index): (u64, u16)) -> Queued {
        Queued { held, wait: Box::new(QueueWait { place, wait_ns, limit_index }) }
    }

    /// The longest wait as computed at judgement, in nanoseconds; requests that leave a queue only shorten it.
    pub fn wait_ns(&self) -> u64 {
        self.wait.wait_ns
    }

    /// The index of the limit with the longest computed wait in [`super::Chain::limits`].
    pub fn limit_index(&self) -> usize {
        self.wait.limit_index.into()
    }

    /// The limit with the longest computed wait.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.held.limits[self.limit_index()]
    }

    /// Waits for its turn in all queues at once. Dropping the future early leaves all queues.
    ///
    /// # Errors
    /// A queue with `fair_by` may still reject the request, because another displaced it or its maximum wait has
    /// passed. Everything is then given back.
    pub async fn wait_turn(self) -> Result<TurnTaken, ChainRejection> {
        let Queued { mut held, wait } = self;
        // A placeholder: `poll_turns` sets the moment.
        let mut sleep = pin!(tokio::time::sleep_until(held.judged_at.to_instant()));
        poll_fn(|cx| held.poll_turns(cx, sleep.as_mut())).await?;
        drop(wait.place);
        Ok(TurnTaken { held })
    }
}

// === impl TurnTaken ===

impl TurnTaken {
    /// Ends the request here, but keeps its charges, its turn in a queue included.
    pub fn keep_charges(mut self) {
        self.held.keep_charges();
    }

    /// Takes the concurrency slots; `session` is asked for those that are counted in the store.
    ///
    /// # Errors
    /// Too few slots are free. Everything except departures is then given back.
    pub async fn take_slots(
        mut self,
        now: Now,
        session: Option<&Session>,
        undecided: &mut Vec<UndecidedLimit>,
    ) -> Result<ChainPermit, ChainRejection> {
        self.held.take_local_slots(now)?;
        if let Some(session) = session {
            self.held.take_store_slots(session, undecided).await?;
        }
        Ok(ChainPermit::new(self.held))
    }
}

// === impl ClaimSet ===

impl ClaimSet {
    fn poll_turns(
        &mut self,
        cx: &mut Context<'_>,
        mut sleep: Pin<&mut Sleep>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let now = Now::read_clock();
            let mut waits = false;
            let mut due: Option<Now> = None;
            for index in 0..self.claims.len() {
                let claim = &mut self.claims[index];
                let (key, rate) = (claim.table_key(), usize::from(claim.rate));
                let limit: &Arc<Limit> = &self.limits[usize::from(claim.limit_index)];
                let turn = match (&mut claim.kind, &mut self.store_lease) {
                    (ClaimKind::Charge(charge), _) => limit.check_turn(rate, &key, charge, now, cx.waker()),
                    (ClaimKind::Shared(lease_index), Some(lease)) => {
                        lease.poll_turn(*lease_index, now, cx.waker())
                    }
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
                        return Poll::Ready(Err(rejection));
                    }
                }
            }
            let Some(due) = due else {
                return if waits { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            // Only the head of a queue has a timer, so there is one timer per queue; with `fair_by` every waiter has
            // one.
            if sleep.deadline() != due.to_instant() {
                sleep.as_mut().reset(due.to_instant());
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
