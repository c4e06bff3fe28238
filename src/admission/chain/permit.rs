//! The permit of a request that its local limits accepted: its charges, its waits in queues, its concurrency slots.
//!
//! Dropping it gives everything back, however the request ends; once the request is forwarded, its charges stay.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::time::Sleep;

use super::claim::{Claim, ClaimKind};
use super::store_lease::StoreLease;
use super::store_query::StoreQuery;
use super::{ChainCause, ChainRejection, Decisions, RateDecision, WaitingCap};
use crate::base::clock::Now;
use crate::limit::{Decision, Limit, LimitOutcome, SlotOutcome, Turn};

/// The right of a request to pass, as long as it is held.
pub struct ChainPermit {
    pub(super) limits: Arc<[Arc<Limit>]>,
    pub(super) claims: SmallVec<[Claim; 4]>,
    pub(super) judged_at: Now,
    /// The longest wait at judgement, ns, and the index of its limit.
    pub(super) longest_wait: Option<(u64, u16)>,
    /// Present while the request waits in a queue.
    waiting: Option<Arc<WaitingCap>>,
    /// Its weight against the cap on waiting requests.
    weight: u32,
    /// The request was forwarded: its charges stay.
    forwarded: bool,
    /// The request left its queues before its turn.
    left_queues: bool,
    /// The pending questions to the store.
    pub(super) store_query: Option<Box<StoreQuery>>,
    /// The charges, departures and slots that it holds in the store.
    pub(super) store_lease: Option<Box<StoreLease>>,
}

/// Leaves the queues if the wait is dropped before its end.
struct TurnGuard<'a>(&'a mut ChainPermit);

// === impl ChainPermit ===

impl ChainPermit {
    #[inline]
    pub(super) fn new(
        limits: Arc<[Arc<Limit>]>,
        claims: SmallVec<[Claim; 4]>,
        judged_at: Now,
        longest_wait: Option<(u64, u16)>,
        waiting: Option<(Arc<WaitingCap>, u32)>,
    ) -> ChainPermit {
        let (waiting, weight) = waiting.unzip();
        ChainPermit {
            limits,
            claims,
            judged_at,
            longest_wait,
            waiting,
            weight: weight.unwrap_or_default(),
            forwarded: false,
            left_queues: false,
            store_query: None,
            store_lease: None,
        }
    }

    /// The longest wait as computed at judgement, in nanoseconds; requests that leave a queue only shorten it.
    pub fn wait_ns(&self) -> u64 {
        self.longest_wait.map_or(0, |(wait_ns, _)| wait_ns)
    }

    /// True until the request's turn has come in every queue.
    #[inline]
    pub fn must_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// The limit with the longest computed wait; `None` if the request never had to wait.
    pub fn queued_limit(&self) -> Option<&Arc<Limit>> {
        self.longest_wait.map(|(_, limit_index)| &self.limits[usize::from(limit_index)])
    }

    pub(super) fn with_query(mut self, query: StoreQuery) -> ChainPermit {
        self.store_query = Some(Box::new(query));
        self
    }

    /// True until the store has been asked.
    #[inline]
    pub fn must_ask_store(&self) -> bool {
        self.store_query.is_some()
    }

    /// Waits for its turn in all queues at once. Dropping the future early leaves all queues and makes the permit
    /// void.
    ///
    /// # Errors
    /// A queue with `fair_by` may still reject the request, because another displaced it or its maximum wait has
    /// passed. Everything is then given back, and the permit is void.
    pub async fn wait_turn(&mut self) -> Result<(), ChainRejection> {
        if !self.must_wait() {
            return Ok(());
        }
        let guard = TurnGuard(self);
        let mut sleep = pin!(tokio::time::sleep_until(guard.0.judged_at.to_instant()));
        // An early return leaves the queues by dropping `guard`.
        poll_fn(|cx| guard.0.poll_turns(cx, sleep.as_mut())).await?;
        guard.0.release_waiting_weight();
        Ok(())
    }

    fn poll_turns(
        &mut self,
        cx: &mut Context<'_>,
        mut sleep: Pin<&mut Sleep>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let now = Now::read_clock();
            let mut waits = false;
            let mut due: Option<Now> = None;
            for claim in &mut self.claims {
                let (key, rate) = (claim.table_key(), usize::from(claim.rate));
                let limit = &self.limits[usize::from(claim.limit_index)];
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
                        // Its charge was refunded when it lost its position, so nothing is left to give back.
                        claim.kind = ClaimKind::Slots(None);
                        let (limit, retry_after_ns) = (Some(limit.clone()), Some(retry_ns));
                        return Poll::Ready(Err(ChainRejection {
                            cause: ChainCause::Queue,
                            limit,
                            rate,
                            retry_after_ns,
                        }));
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

    /// Returns the weight to the cap on waiting requests.
    fn release_waiting_weight(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.remove_weight(self.weight);
        }
    }

    /// Takes the concurrency slots, after the wait. On a rejection everything except departures is given back, and
    /// the permit is void.
    pub fn take_slots(&mut self, now: Now) -> Result<(), ChainRejection> {
        if self.left_queues || self.must_wait() {
            let limit = self.queued_limit().cloned();
            self.release_claims();
            return Err(ChainRejection { cause: ChainCause::Queue, limit, rate: 0, retry_after_ns: None });
        }
        for claim in &mut self.claims {
            let key = claim.table_key();
            let ClaimKind::Slots(slots) = &mut claim.kind else { continue };
            let limit = &self.limits[usize::from(claim.limit_index)];
            *slots = limit.acquire_slots(claim.rate.into(), &key, claim.cost, now);
            if slots.is_none() && !limit.config.dry_run {
                let (limit, rate) = (Some(limit.clone()), claim.rate.into());
                self.keep_departures();
                return Err(ChainRejection {
                    cause: ChainCause::Concurrency,
                    limit,
                    rate,
                    retry_after_ns: None,
                });
            }
        }
        Ok(())
    }

    /// The decisions of its concurrency limits, once its slots were taken.
    #[inline]
    pub fn slot_decisions(&self) -> impl Iterator<Item = RateDecision> {
        self.claims.iter().filter_map(|claim| {
            let outcome = match (&claim.kind, &self.store_lease) {
                (ClaimKind::Slots(Some(_)), _) => LimitOutcome::Admit,
                (ClaimKind::Slots(None), _) => LimitOutcome::Reject,
                (ClaimKind::Shared(lease_index), Some(lease)) => lease.slots_outcome(*lease_index)?,
                _ => return None,
            };
            let dry_run = self.limits[usize::from(claim.limit_index)].config.dry_run;
            Some(RateDecision {
                limit_index: claim.limit_index,
                rate: claim.rate,
                dry_run,
                decision: Decision::without_numbers(outcome),
            })
        })
    }

    /// Marks that the upstream is about to see the request: from here on its charges stay.
    #[inline]
    pub fn keep_charges(&mut self) {
        self.forwarded = true;
        if let Some(lease) = &mut self.store_lease {
            lease.keep_charges(&self.claims, self.judged_at);
        }
    }

    /// Reports the upstream outcome to the limits that granted its slots.
    #[inline]
    pub fn report_outcome(&self, outcome: SlotOutcome, now: Now) {
        for claim in &self.claims {
            if let ClaimKind::Slots(Some(_)) = claim.kind {
                self.limits[usize::from(claim.limit_index)].record_outcome(claim.rate.into(), outcome, now);
            }
        }
    }

    /// Gives everything back except departures: they were spent when they came, and their position in the schedule
    /// cannot go to another request.
    pub(super) fn keep_departures(&mut self) {
        let lease = &self.store_lease;
        self.claims.retain(|claim| match &claim.kind {
            ClaimKind::Slots(_) => true,
            ClaimKind::Shared(lease_index)
                if lease.as_ref().is_some_and(|lease| lease.holds_slots(*lease_index)) =>
            {
                true
            }
            _ => !self.limits[usize::from(claim.limit_index)].has_queue(),
        });
        self.release_claims();
    }

    /// Gives everything back, and restores the numbers in `decisions` as if nothing had been taken.
    pub(super) fn cancel_charges(&mut self, decisions: &mut Decisions) {
        let charged: SmallVec<[_; 4]> = self
            .claims
            .iter()
            .filter(|claim| matches!(claim.kind, ClaimKind::Charge(_)))
            .map(Claim::indices_and_units)
            .collect();
        self.release_claims();
        for (limit_index, rate, units) in charged {
            let unspent =
                self.limits[usize::from(limit_index)].peek_units(rate.into(), &units, self.judged_at);
            let own = |judged: &&mut RateDecision| judged.limit_index == limit_index && judged.rate == rate;
            if let Some(judged) = decisions.iter_mut().find(own) {
                let Decision { remaining, reset_ns, .. } = unspent;
                judged.decision = Decision { remaining, reset_ns, ..judged.decision };
            }
        }
    }

    fn release_claims(&mut self) {
        self.release_waiting_weight();
        self.left_queues = true;
        for claim in self.claims.drain(..) {
            let limit = &self.limits[usize::from(claim.limit_index)];
            match claim.kind {
                ClaimKind::Slots(None) => {}
                ClaimKind::Shared(lease_index) => {
                    if let Some(lease) = &mut self.store_lease {
                        lease.release_lease(lease_index, self.forwarded);
                    }
                }
                ClaimKind::Slots(Some(overflow)) => {
                    limit.release_slots(claim.rate.into(), &claim.table_key(), claim.cost, overflow)
                }
                ClaimKind::Charge(_) if self.forwarded => {}
                ClaimKind::Charge(charge) => {
                    let now = || Now::read_clock().max(self.judged_at);
                    limit.refund_charge(claim.rate.into(), &claim.table_key(), claim.cost, &charge, now);
                }
            }
        }
    }
}

impl Drop for ChainPermit {
    fn drop(&mut self) {
        self.release_claims();
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if self.0.must_wait() {
            self.0.release_claims();
        }
    }
}
