//! An accepted request's hold on its limits: what it was charged, where it waits, the slots it takes.
//!
//! Everything is given back by dropping it, however the request ends; only charges stay once it is forwarded.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::time::Sleep;

use super::store_lease::StoreLease;
use super::store_round::StoreQuery;
use super::{ChainCause, ChainRejection, Decisions, RateDecision, WaitingCap};
use crate::base::clock::Now;
use crate::limit::table::CounterKey;
use crate::limit::{Charge, Decision, Limit, LimitOutcome, SlotOutcome, Turn, Units};

/// Leave to pass, as long as it is held.
pub struct ChainPermit {
    pub(super) limits: Arc<[Arc<Limit>]>,
    pub(super) claims: SmallVec<[Claim; 4]>,
    pub(super) judged_at: Now,
    /// The longest wait at judgement, ns, and the place of its limit.
    pub(super) longest_wait: Option<(u64, u16)>,
    /// Present while it stands in a queue.
    waiting: Option<Arc<WaitingCap>>,
    /// What it counts for there.
    weight: u32,
    /// From here charges stay.
    forwarded: bool,
    /// It left its queues before its turn.
    left_queues: bool,
    /// What the store has still to be asked.
    pub(super) store_query: Option<Box<StoreQuery>>,
    /// What it holds in the store.
    pub(super) store_lease: Option<Box<StoreLease>>,
}

/// What a request takes from one rate or limit; packed, for it travels with the response.
#[repr(C, packed(8))]
pub(super) struct Claim {
    id: u128,
    prefix: u64,
    pub cost: u64,
    pub kind: ClaimKind,
    pub limit_index: u16,
    pub rate: u16,
}

pub(super) enum ClaimKind {
    Charge(Charge),
    /// Concurrency slots; `None` until they are taken, then where they were counted.
    Slots(Option<bool>),
    /// In the store: a place in [`ChainPermit::shared`].
    Shared(u32),
}

/// Leaves the queues if a wait is dropped before its end.
struct TurnGuard<'a>(&'a mut ChainPermit);

// === impl Claim ===

impl Claim {
    #[inline]
    pub(super) fn new(units: &Units, place: usize, rate: usize, hold: ClaimKind) -> Claim {
        let Units { key, cost, .. } = *units;
        Claim {
            id: key.id,
            prefix: key.prefix,
            cost,
            kind: hold,
            limit_index: place as u16,
            rate: rate as u16,
        }
    }

    /// What to peek with: the rate is known, and nobody's turn depends on it.
    pub(super) fn to_units(&self) -> Units {
        Units { key: self.table_key(), cost: self.cost, variant: 0, fair: 0 }
    }

    fn place_and_units(&self) -> (u16, u16, Units) {
        (self.limit_index, self.rate, self.to_units())
    }

    #[inline]
    pub(super) fn table_key(&self) -> CounterKey {
        CounterKey { id: self.id, prefix: self.prefix }
    }
}

// === impl Passage ===

impl ChainPermit {
    #[inline]
    pub(super) fn new(
        limits: Arc<[Arc<Limit>]>,
        claims: SmallVec<[Claim; 4]>,
        judged: Now,
        longest: Option<(u64, u16)>,
        waiting: Option<(Arc<WaitingCap>, u32)>,
    ) -> ChainPermit {
        let (waiting, weight) = waiting.unzip();
        ChainPermit {
            limits,
            claims,
            judged_at: judged,
            longest_wait: longest,
            waiting,
            weight: weight.unwrap_or_default(),
            forwarded: false,
            left_queues: false,
            store_query: None,
            store_lease: None,
        }
    }

    /// The longest wait as computed at judgement, in nanoseconds; those who leave only shorten it.
    pub fn wait_ns(&self) -> u64 {
        self.longest_wait.map_or(0, |(wait_ns, _)| wait_ns)
    }

    /// True until every queue has let the request go.
    #[inline]
    pub fn must_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// The limit whose queue the request was to stand in longest; `None` if it never waited.
    pub fn queued_limit(&self) -> Option<&Arc<Limit>> {
        self.longest_wait.map(|(_, place)| &self.limits[usize::from(place)])
    }

    /// Waits for its turn in every queue, all at once. Dropping the future early leaves all queues, and the
    /// passage is void.
    ///
    /// # Errors
    /// A queue with `fair_by` may still refuse it: another displaced it, or it waited as long as it may. Then
    /// everything is given back, and the passage is void.
    pub async fn wait_turn(&mut self) -> Result<(), ChainRejection> {
        if !self.must_wait() {
            return Ok(());
        }
        let standing = TurnGuard(self);
        let mut sleep = pin!(tokio::time::sleep_until(standing.0.judged_at.to_instant()));
        // Whoever returns early leaves by dropping `standing`.
        poll_fn(|cx| standing.0.poll_turns(cx, sleep.as_mut())).await?;
        standing.0.stop_waiting();
        Ok(())
    }

    fn poll_turns(
        &mut self,
        cx: &mut Context<'_>,
        mut sleep: Pin<&mut Sleep>,
    ) -> Poll<Result<(), ChainRejection>> {
        loop {
            let now = Now::read_clock();
            let mut stands = false;
            let mut due: Option<Now> = None;
            for claim in &mut self.claims {
                let (key, rate) = (claim.table_key(), usize::from(claim.rate));
                let limit = &self.limits[usize::from(claim.limit_index)];
                let turn = match (&mut claim.kind, &mut self.store_lease) {
                    (ClaimKind::Charge(charge), _) => limit.check_turn(rate, &key, charge, now, cx.waker()),
                    (ClaimKind::Shared(place), Some(shared)) => shared.poll_turn(*place, now, cx.waker()),
                    _ => continue,
                };
                match turn {
                    Turn::Go => {}
                    Turn::Wait => stands = true,
                    Turn::Due(at) => due = Some(due.map_or(at, |due| due.min(at))),
                    Turn::Reject(retry_ns) => {
                        // What it had charged there was given back with its place.
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
                return if stands { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            // Only a head has a timer, so there are as many timers as queues; with `fair_by` everyone has.
            if sleep.deadline() != due.to_instant() {
                sleep.as_mut().reset(due.to_instant());
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn stop_waiting(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.remove_weight(self.weight);
        }
    }

    /// Takes the concurrency slots, after the wait. On a refusal everything is given back but departures, and the
    /// passage is void.
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

    /// What its concurrency limits said, once it has entered.
    #[inline]
    pub fn slot_decisions(&self) -> impl Iterator<Item = RateDecision> {
        self.claims.iter().filter_map(|claim| {
            let outcome = match (&claim.kind, &self.store_lease) {
                (ClaimKind::Slots(Some(_)), _) => LimitOutcome::Admit,
                (ClaimKind::Slots(None), _) => LimitOutcome::Reject,
                (ClaimKind::Shared(place), Some(shared)) => shared.slots_outcome(*place)?,
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

    /// The upstream is about to see the request: from here charges stay.
    #[inline]
    pub fn mark_forwarded(&mut self) {
        self.forwarded = true;
        if let Some(shared) = &mut self.store_lease {
            shared.mark_forwarded(&self.claims, self.judged_at);
        }
    }

    /// Tells the limits whose slots it holds how it went upstream.
    #[inline]
    pub fn report_outcome(&self, went: SlotOutcome, now: Now) {
        for claim in &self.claims {
            if let ClaimKind::Slots(Some(_)) = claim.kind {
                self.limits[usize::from(claim.limit_index)].record_outcome(claim.rate.into(), went, now);
            }
        }
    }

    /// A departure was spent the moment it came: its place in the schedule cannot be handed to another any more.
    pub(super) fn keep_departures(&mut self) {
        let shared = &self.store_lease;
        self.claims.retain(|claim| match &claim.kind {
            ClaimKind::Slots(_) => true,
            ClaimKind::Shared(place) if shared.as_ref().is_some_and(|shared| shared.holds_slots(*place)) => {
                true
            }
            _ => !self.limits[usize::from(claim.limit_index)].has_queue(),
        });
        self.release_claims();
    }

    /// Gives everything back, and tells the numbers as if nothing had been taken.
    pub(super) fn cancel_charges(&mut self, decisions: &mut Decisions) {
        let taken: SmallVec<[_; 4]> = self
            .claims
            .iter()
            .filter(|claim| matches!(claim.kind, ClaimKind::Charge(_)))
            .map(Claim::place_and_units)
            .collect();
        self.release_claims();
        for (place, rate, units) in taken {
            let unspent = self.limits[usize::from(place)].peek_units(rate.into(), &units, self.judged_at);
            let own = |judged: &&mut RateDecision| judged.limit_index == place && judged.rate == rate;
            if let Some(judged) = decisions.iter_mut().find(own) {
                let Decision { remaining, reset_ns, .. } = unspent;
                judged.decision = Decision { remaining, reset_ns, ..judged.decision };
            }
        }
    }

    fn release_claims(&mut self) {
        self.stop_waiting();
        self.left_queues = true;
        for claim in self.claims.drain(..) {
            let limit = &self.limits[usize::from(claim.limit_index)];
            match claim.kind {
                ClaimKind::Slots(None) => {}
                ClaimKind::Shared(place) => {
                    if let Some(shared) = &mut self.store_lease {
                        shared.release_lease(place, self.forwarded);
                    }
                }
                ClaimKind::Slots(Some(shared)) => {
                    limit.release_slots(claim.rate.into(), &claim.table_key(), claim.cost, shared)
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
