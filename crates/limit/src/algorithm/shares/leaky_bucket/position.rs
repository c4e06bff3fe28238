//! Decides whether a leaky bucket with shares accepts one more request, and when its turn would be.

use super::{ShareQueueEntry, ShareQueueParams, ShareQueueShard};
use crate::algorithm::queue::{ClassQueue, NO_NODE, NewestWaiter, ShardQueues};
use crate::{Decision, LimitOutcome};
use sluicegate_base::clock::Now;
use sluicegate_model::Shares;

/// How often a wait is estimated anew where other classes are held up by their `most`.
const ROUNDS: usize = 16;

/// A bucket and its queues as one more request finds them; moments are in ticks since `Now(0)`.
pub(super) struct ShareQueueState<'a> {
    pub params: &'a ShareQueueParams,
    pub queues: &'a ShardQueues,
    pub classes: &'a [ClassQueue],
    /// The moment of the request, or of the last charge if that is later.
    pub present: Now,
    pub now: u128,
    /// The TAT, and the moment from which it allows a departure.
    pub tat: u128,
    pub free_at: u128,
    pub last: u128,
}

/// The position that a request would have.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClassPosition {
    /// Ticks until its turn, if no request comes after it.
    pub wait: u128,
    /// Ticks until it would be accepted without displacing a waiter.
    pub undisturbed: u128,
    /// The class of which a waiter is displaced.
    pub displaced: Option<usize>,
}

/// The scale of moments at the pace of `most`.
pub(super) const WHOLE: u128 = Shares::WHOLE as u128;

// === impl ShareQueueParams ===

impl ShareQueueParams {
    /// The state of a bucket; due waiters have departed.
    pub(super) fn look_at<'a>(
        &'a self,
        entry: &ShareQueueEntry,
        shard: &'a ShareQueueShard,
        now: Now,
    ) -> ShareQueueState<'a> {
        let (present, tat) = (entry.level.clamp_now(now), self.rate.tat_ticks(&entry.level));
        let free_at = tat.saturating_sub(self.rate.units_to_ticks(self.burst - 1));
        let last = self.rate.ns_to_ticks(entry.level.clamp_now(Now(0)).0);
        let now = self.rate.ns_to_ticks(present.0);
        let (queues, classes) = (&shard.queues, shard.classes(entry));
        ShareQueueState { params: self, queues, classes, present, now, tat, free_at, last }
    }
}

// === impl ShareQueueState ===

impl ShareQueueState<'_> {
    /// The moment and the class of the next departure.
    pub(super) fn next_departure(&self) -> Option<(u128, usize)> {
        let waiting = (0..self.classes.len()).filter(|class| !self.classes[*class].is_empty());
        let first = waiting.map(|class| self.within_most_at(class, 0)).min()?;
        let at = first.max(self.free_at).max(self.last);
        let next = ClassQueue::find_next(self.classes, |class| self.within_most_at(class, 0) <= at);
        next.map(|class| (at, class))
    }

    /// The moment of the next departure, and the class of which the first waiter has a timer for it.
    pub(super) fn next_timer(&self) -> Option<(u128, usize)> {
        let (at, next) = self.next_departure()?;
        let has_waiter = |class: usize| self.classes[class].queue != NO_NODE;
        let own = Some(next).filter(|next| has_waiter(*next));
        Some((at, own.or_else(|| ClassQueue::find_next(self.classes, has_waiter))?))
    }

    /// The position of a request that comes now, or ticks until one is accepted. A dry run displaces numbers alone.
    pub(super) fn find_position(
        &self,
        class: usize,
        fair_hash: u64,
        dry_run: bool,
    ) -> Result<ClassPosition, u128> {
        let own = &self.classes[class];
        let (units, pace_at) = (self.units(class), self.within_most_at(class, 0));
        if units == 0 && self.free_at <= self.now && pace_at <= self.now {
            return Ok(ClassPosition { wait: 0, undisturbed: 0, displaced: None });
        }
        let fair_queue = self.queues.find_fair_queue(own.queue, fair_hash);
        let forecast = self.queues.forecast_waiter(own.queue, fair_queue);
        let mut before = own.virtual_units.saturating_add(forecast.before as u64);
        let behind_all = self.drained_after().max(self.busy(self.total()) + self.held_up(class));
        let in_time = behind_all.saturating_sub(self.params.wait_max);
        let (mut undisturbed, mut displaced) = (0, None);
        if !self.has_room(self.total()) {
            undisturbed = in_time.max(self.room_after(class)).max(1);
            let by_fair = (forecast.own < forecast.fullest).then_some(forecast.newest);
            let Some((other, newest)) = self.find_displaced(class, units, by_fair, dry_run) else {
                return Err(undisturbed);
            };
            if !self.has_room(self.total().saturating_sub(newest.cost)) {
                return Err(undisturbed);
            }
            before = before.saturating_sub(if other == class && newest.before { newest.cost } else { 0 });
            displaced = Some((other, newest.cost));
        }
        let wait = self.estimate_wait(class, before, displaced).max(1);
        let displaced = displaced.map(|(other, _)| other);
        if wait > self.params.wait_max {
            Err(undisturbed.max(in_time).max(1))
        } else {
            Ok(ClassPosition { wait, undisturbed, displaced })
        }
    }

    /// Nanoseconds after `now` until one more request is accepted without displacing a waiter; at least 1.
    pub(super) fn accepted_after_ns(&self, class: usize, fair_hash: u64, now: Now) -> u64 {
        let position = self.find_position(class, fair_hash, false);
        let ticks = position.map_or_else(|ticks| ticks, |position| position.undisturbed);
        self.params.rate.ticks_to_ns(ticks).saturating_add(self.present.ns_since(now)).max(1)
    }

    /// The waiter to displace for the one at `node`, if the queue is full without it.
    pub(super) fn find_waiter_to_displace(&self, node: u32) -> Option<(usize, NewestWaiter)> {
        let (own, fair_queue) = self.queues.find_waiting(node)?;
        let class = ClassQueue::find_class(self.classes, self.queues, node)?;
        let newest = self.queues.forecast_waiter(self.classes[class].queue, fair_queue).newest;
        let full = !self.has_room(self.total().saturating_sub(own.cost));
        full.then(|| {
            self.find_displaced(class, self.units(class).saturating_sub(own.cost), Some(newest), false)
        })?
    }

    /// The class and waiter that make room for a newcomer of a class with `units` waiting: of the class furthest above
    /// its places for one below its own, else of its own class, by `fair_by`.
    fn find_displaced(
        &self,
        class: usize,
        units: u64,
        by_fair: Option<NewestWaiter>,
        dry_run: bool,
    ) -> Option<(usize, NewestWaiter)> {
        let (class, newest) = match units < self.places(class) {
            true => {
                let excess = |other: &usize| self.units(*other).saturating_sub(self.places(*other));
                let others = (0..self.classes.len()).filter(|other| *other != class && excess(other) > 0);
                let other = others.max_by_key(excess)?;
                let virtual_unit = NewestWaiter { node: NO_NODE, cost: 1, span: 1, before: true };
                match dry_run && self.classes[other].virtual_units > 0 {
                    true => return Some((other, virtual_unit)),
                    false => (other, self.queues.forecast_waiter(self.classes[other].queue, NO_NODE).newest),
                }
            }
            false => (class, by_fair?),
        };
        (newest.node != NO_NODE && !dry_run).then_some((class, newest))
    }

    /// Ticks until the turn of a request of a class, `before` units of which go first. It is exact for costs of one
    /// where no class is held up by its `most`: others go before it as their turns come, and as their pace allows
    /// until then.
    fn estimate_wait(&self, class: usize, before: u64, displaced: Option<(usize, u64)>) -> u128 {
        let mut wait = self.busy(before).max(self.within_most_at(class, before).saturating_sub(self.now));
        for _ in 0..ROUNDS {
            let units_of_other = |other: usize| {
                let gone = displaced.map_or(0, |(class, cost)| if class == other { cost } else { 0 });
                let turns =
                    ClassQueue::units_before(self.classes, other, (class, before), &self.params.shares);
                let units = self.units(other).saturating_sub(gone).min(turns);
                units.min(self.units_within_most(other, self.now + wait))
            };
            let others = (0..self.classes.len()).filter(|other| *other != class).map(units_of_other);
            let longer = self.busy(others.fold(before, u64::saturating_add));
            if longer <= wait {
                break;
            }
            wait = longer;
        }
        wait
    }

    /// Units of a class that wait.
    fn units(&self, class: usize) -> u64 {
        let own = &self.classes[class];
        self.queues.queued_units(own.queue).saturating_add(own.virtual_units)
    }

    pub(super) fn total(&self) -> u64 {
        (0..self.classes.len()).map(|class| self.units(class)).fold(0, u64::saturating_add)
    }

    fn places(&self, class: usize) -> u64 {
        self.params.classes.get(class).map_or(0, |class| class.places)
    }

    /// The moment from which the `most` of a class allows one more unit behind `units`.
    fn within_most_at(&self, class: usize, units: u64) -> u128 {
        let Some((most, ahead)) = self.params.terms(class).most else { return 0 };
        let used = self.classes[class].most_tat + self.params.most_ticks(units);
        used.saturating_sub(ahead).div_ceil(most)
    }

    /// Units of a class that its `most` allows until a moment.
    fn units_within_most(&self, class: usize, until: u128) -> u64 {
        let Some((most, ahead)) = self.params.terms(class).most else { return u64::MAX };
        let own = &self.classes[class];
        let used = if own.is_empty() { own.most_tat.max(self.now * most) } else { own.most_tat };
        let room = (until * most + ahead).checked_sub(used);
        room.map_or(0, |room| u64::try_from(room / self.params.most_ticks(1) + 1).unwrap_or(u64::MAX))
    }

    /// Ticks for which the departures of so many units keep the bucket busy.
    fn busy(&self, units: u64) -> u128 {
        self.free_at.saturating_sub(self.now) + self.params.rate.units_to_ticks(units)
    }

    /// True if one more request may wait behind so many units.
    fn has_room(&self, units: u64) -> bool {
        units < self.params.queue && self.busy(units) <= self.params.rate.units_to_ticks(self.params.queue)
    }

    /// Ticks until one more request of a class may wait, or pass where none waits.
    fn room_after(&self, class: usize) -> u128 {
        let (total, queue) = (self.total(), self.params.queue);
        match total {
            _ if queue == 0 => self.busy(0).max(self.within_most_at(class, 0).saturating_sub(self.now)),
            _ if total < queue => self.busy(total).saturating_sub(self.params.rate.units_to_ticks(queue)),
            _ if total == queue => self.next_departure().map_or(0, |(at, _)| at.saturating_sub(self.now)),
            // Costs above one took the queue beyond its size: it certainly has room once it is empty.
            _ => self.drained_after(),
        }
    }

    /// Ticks until the last waiter has left: at any moment the bucket is busy, or its class is held up by `most`.
    pub(super) fn drained_after(&self) -> u128 {
        let waiting = (0..self.classes.len()).filter(|class| !self.classes[*class].is_empty());
        self.busy(self.total()) + waiting.map(|class| self.held_up(class)).max().unwrap_or_default()
    }

    /// The most ticks for which the `most` of a class holds up all its waiters; turns of others may take its credit.
    fn held_up(&self, class: usize) -> u128 {
        let until_first = self.within_most_at(class, 0).saturating_sub(self.now);
        let units = self.params.most_ticks(self.units(class));
        until_first + self.params.terms(class).most.map_or(0, |(most, _)| units.div_ceil(most))
    }

    /// The decision of a class on the step of a request that comes at `now`.
    pub(super) fn build_decision(&self, class: usize, step: Result<u128, u128>, now: Now) -> Decision {
        let ns = |ticks: u128| self.params.rate.ticks_to_ns(ticks);
        let behind_ns = self.present.ns_since(now);
        let (outcome, wait_ns, retry_after_ns) = match step {
            Ok(0) => (LimitOutcome::Admit, 0, 0),
            Ok(ticks) => (LimitOutcome::Wait, ns(ticks).saturating_add(behind_ns), 0),
            Err(ticks) => (LimitOutcome::Reject, 0, ns(ticks).saturating_add(behind_ns)),
        };
        let remaining = self.remaining_units(class);
        let reset_ns = if remaining == 0 { ns(self.room_after(class)) } else { 0 };
        let ahead = self.tat.max(self.now) - self.free_at.max(self.now);
        let full_ns = ns(self.drained_after() + ahead);
        Decision {
            remaining,
            reset_ns,
            retry_after_ns,
            wait_ns,
            full_ns,
            ..Decision::without_numbers(outcome)
        }
    }

    /// Units of a class that still pass or may wait.
    fn remaining_units(&self, class: usize) -> u64 {
        let ShareQueueState { params, now, .. } = self;
        let (total, units) = (self.total(), self.units(class));
        let depth = params.rate.units_to_ticks(params.burst + params.queue);
        let used = self.tat.saturating_sub(*now) + params.rate.units_to_ticks(total);
        let mut remaining = depth.saturating_sub(used) / u128::from(params.rate.unit_ticks());
        if params.terms(class).most.is_some() {
            let at_once = if units == 0 { self.units_within_most(class, *now) } else { 0 };
            remaining = remaining.min((at_once + params.queue.saturating_sub(total)).into());
        }
        // Below its places it takes those of others.
        (remaining as u64).max(self.places(class).saturating_sub(units).min(total - units))
    }
}
