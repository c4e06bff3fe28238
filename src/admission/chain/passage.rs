//! An accepted request's hold on its limits: what it was charged, where it waits, the slots it takes.
//!
//! Everything is given back by dropping it, however the request ends; only charges stay once it is forwarded.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::time::Sleep;

use super::shared_charge::SharedHold;
use super::shared_pass::Asking;
use super::{Cause, Decisions, Judged, Refusal, Waiting};
use crate::base::clock::Now;
use crate::limit::table::Key;
use crate::limit::{Charge, Decision, Limit, Outcome, Turn, Units, Went};

/// Leave to pass, as long as it is held.
pub struct Passage {
    pub(super) limits: Arc<[Arc<Limit>]>,
    pub(super) claims: SmallVec<[Claim; 4]>,
    pub(super) judged: Now,
    /// The longest wait at judgement, ns, and the place of its limit.
    pub(super) longest: Option<(u64, u16)>,
    /// Present while it stands in a queue.
    waiting: Option<Arc<Waiting>>,
    /// What it counts for there.
    weight: u32,
    /// From here charges stay.
    forwarded: bool,
    /// It left its queues before its turn.
    left: bool,
    /// What the store has still to be asked.
    pub(super) asking: Option<Box<Asking>>,
    /// What it holds in the store.
    pub(super) shared: Option<Box<SharedHold>>,
}

/// What a request takes from one rate or limit; packed, for it travels with the response.
#[repr(C, packed(8))]
pub(super) struct Claim {
    id: u128,
    prefix: u64,
    pub cost: u64,
    pub hold: Hold,
    pub place: u16,
    pub rate: u16,
}

pub(super) enum Hold {
    Charge(Charge),
    /// Concurrency slots; `None` until they are taken, then where they were counted.
    Slots(Option<bool>),
    /// In the store: a place in [`Passage::shared`].
    Shared(u32),
}

/// Leaves the queues if a wait is dropped before its end.
struct Standing<'a>(&'a mut Passage);

// === impl Claim ===

impl Claim {
    #[inline]
    pub(super) fn new(units: &Units, place: usize, rate: usize, hold: Hold) -> Claim {
        let Units { key, cost, .. } = *units;
        Claim { id: key.id, prefix: key.prefix, cost, hold, place: place as u16, rate: rate as u16 }
    }

    /// What to peek with: the rate is known, and nobody's turn depends on it.
    pub(super) fn units(&self) -> Units {
        Units { key: self.key(), cost: self.cost, variant: 0, fair: 0 }
    }

    fn taken(&self) -> (u16, u16, Units) {
        (self.place, self.rate, self.units())
    }

    #[inline]
    pub(super) fn key(&self) -> Key {
        Key { id: self.id, prefix: self.prefix }
    }
}

// === impl Passage ===

impl Passage {
    #[inline]
    pub(super) fn new(
        limits: Arc<[Arc<Limit>]>,
        claims: SmallVec<[Claim; 4]>,
        judged: Now,
        longest: Option<(u64, u16)>,
        waiting: Option<(Arc<Waiting>, u32)>,
    ) -> Passage {
        let (waiting, weight) = waiting.unzip();
        Passage {
            limits,
            claims,
            judged,
            longest,
            waiting,
            weight: weight.unwrap_or_default(),
            forwarded: false,
            left: false,
            asking: None,
            shared: None,
        }
    }

    /// The longest wait as computed at judgement, in nanoseconds; those who leave only shorten it.
    pub fn wait_ns(&self) -> u64 {
        self.longest.map_or(0, |(wait_ns, _)| wait_ns)
    }

    /// True until every queue has let the request go.
    #[inline]
    pub fn must_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// The limit whose queue the request was to stand in longest; `None` if it never waited.
    pub fn queued_on(&self) -> Option<&Arc<Limit>> {
        self.longest.map(|(_, place)| &self.limits[usize::from(place)])
    }

    /// Waits for its turn in every queue, all at once. Dropping the future early leaves all queues, and the
    /// passage is void.
    ///
    /// # Errors
    /// A queue with `fair_by` may still refuse it: another displaced it, or it waited as long as it may. Then
    /// everything is given back, and the passage is void.
    pub async fn wait(&mut self) -> Result<(), Refusal> {
        if !self.must_wait() {
            return Ok(());
        }
        let standing = Standing(self);
        let mut sleep = pin!(tokio::time::sleep_until(standing.0.judged.instant()));
        // Whoever returns early leaves by dropping `standing`.
        poll_fn(|cx| standing.0.poll_turns(cx, sleep.as_mut())).await?;
        standing.0.stop_waiting();
        Ok(())
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> Poll<Result<(), Refusal>> {
        loop {
            let now = Now::read();
            let mut stands = false;
            let mut due: Option<Now> = None;
            for claim in &mut self.claims {
                let (key, rate) = (claim.key(), usize::from(claim.rate));
                let limit = &self.limits[usize::from(claim.place)];
                let turn = match (&mut claim.hold, &mut self.shared) {
                    (Hold::Charge(charge), _) => limit.turn(rate, &key, charge, now, cx.waker()),
                    (Hold::Shared(place), Some(shared)) => shared.turn(*place, now, cx.waker()),
                    _ => continue,
                };
                match turn {
                    Turn::Go => {}
                    Turn::Stand => stands = true,
                    Turn::Due(at) => due = Some(due.map_or(at, |due| due.min(at))),
                    Turn::Reject(retry_ns) => {
                        // What it had charged there was given back with its place.
                        claim.hold = Hold::Slots(None);
                        let (limit, retry_after_ns) = (Some(limit.clone()), Some(retry_ns));
                        return Poll::Ready(Err(Refusal {
                            cause: Cause::Queue,
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
            if sleep.deadline() != due.instant() {
                sleep.as_mut().reset(due.instant());
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn stop_waiting(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.leave(self.weight);
        }
    }

    /// Takes the concurrency slots, after the wait. On a refusal everything is given back but departures, and the
    /// passage is void.
    pub fn enter(&mut self, now: Now) -> Result<(), Refusal> {
        if self.left || self.must_wait() {
            let limit = self.queued_on().cloned();
            self.give_back();
            return Err(Refusal { cause: Cause::Queue, limit, rate: 0, retry_after_ns: None });
        }
        for claim in &mut self.claims {
            let key = claim.key();
            let Hold::Slots(slots) = &mut claim.hold else { continue };
            let limit = &self.limits[usize::from(claim.place)];
            *slots = limit.enter(claim.rate.into(), &key, claim.cost, now);
            if slots.is_none() && !limit.config.dry_run {
                let (limit, rate) = (Some(limit.clone()), claim.rate.into());
                self.keep_departures();
                return Err(Refusal { cause: Cause::Concurrency, limit, rate, retry_after_ns: None });
            }
        }
        Ok(())
    }

    /// What its concurrency limits said, once it has entered.
    #[inline]
    pub fn entered(&self) -> impl Iterator<Item = Judged> {
        self.claims.iter().filter_map(|claim| {
            let outcome = match (&claim.hold, &self.shared) {
                (Hold::Slots(Some(_)), _) => Outcome::Admit,
                (Hold::Slots(None), _) => Outcome::Reject,
                (Hold::Shared(place), Some(shared)) => shared.entered(*place)?,
                _ => return None,
            };
            let dry_run = self.limits[usize::from(claim.place)].config.dry_run;
            Some(Judged { place: claim.place, rate: claim.rate, dry_run, decision: Decision::bare(outcome) })
        })
    }

    /// The upstream is about to see the request: from here charges stay.
    #[inline]
    pub fn forwarded(&mut self) {
        self.forwarded = true;
        if let Some(shared) = &mut self.shared {
            shared.forwarded(&self.claims, self.judged);
        }
    }

    /// Tells the limits whose slots it holds how it went upstream.
    #[inline]
    pub fn went(&self, went: Went, now: Now) {
        for claim in &self.claims {
            if let Hold::Slots(Some(_)) = claim.hold {
                self.limits[usize::from(claim.place)].note(claim.rate.into(), went, now);
            }
        }
    }

    /// A departure was spent the moment it came: its place in the schedule cannot be handed to another any more.
    pub(super) fn keep_departures(&mut self) {
        let shared = &self.shared;
        self.claims.retain(|claim| match &claim.hold {
            Hold::Slots(_) => true,
            Hold::Shared(place) if shared.as_ref().is_some_and(|shared| shared.is_slots(*place)) => true,
            _ => !self.limits[usize::from(claim.place)].has_queue(),
        });
        self.give_back();
    }

    /// Gives everything back, and tells the numbers as if nothing had been taken.
    pub(super) fn take_back(&mut self, decisions: &mut Decisions) {
        let taken: SmallVec<[_; 4]> = self
            .claims
            .iter()
            .filter(|claim| matches!(claim.hold, Hold::Charge(_)))
            .map(Claim::taken)
            .collect();
        self.give_back();
        for (place, rate, units) in taken {
            let unspent = self.limits[usize::from(place)].peek(rate.into(), &units, self.judged);
            let own = |judged: &&mut Judged| judged.place == place && judged.rate == rate;
            if let Some(judged) = decisions.iter_mut().find(own) {
                let Decision { remaining, reset_ns, .. } = unspent;
                judged.decision = Decision { remaining, reset_ns, ..judged.decision };
            }
        }
    }

    fn give_back(&mut self) {
        self.stop_waiting();
        self.left = true;
        for claim in self.claims.drain(..) {
            let limit = &self.limits[usize::from(claim.place)];
            match claim.hold {
                Hold::Slots(None) => {}
                Hold::Shared(place) => {
                    if let Some(shared) = &mut self.shared {
                        shared.give_back(place, self.forwarded);
                    }
                }
                Hold::Slots(Some(shared)) => limit.leave(claim.rate.into(), &claim.key(), claim.cost, shared),
                Hold::Charge(_) if self.forwarded => {}
                Hold::Charge(charge) => {
                    let now = || Now::read().max(self.judged);
                    limit.refund(claim.rate.into(), &claim.key(), claim.cost, &charge, now);
                }
            }
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if self.0.must_wait() {
            self.0.give_back();
        }
    }
}
