//! The parameters of a leaky bucket with shares, departures by them, and conversions when they change.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;
use std::time::Duration;

use super::position::{ClassPosition, WHOLE};
use super::{ClassQueueTerms, ClassQueues, KeyQueues, ShareQueueEntry, ShareQueueParams, ShareQueueShard};
use crate::algorithm::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams};
use crate::algorithm::queue::{ClassQueue, NO_NODE, NewWaiter, WaiterState, Wakers};
use crate::algorithm::rate::{ChargeMark, TickRate};
use crate::table::{TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_model::{self as model, LeakyBucketRate, Shares};

// === impl ShareQueueParams ===

impl ShareQueueParams {
    pub(crate) fn new(
        (numbers, max_wait): (&LeakyBucketRate, Option<Duration>),
        shares: &Arc<Shares>,
        config: &model::LimitConfig,
        spec: &MeterSpec<'_, ShareQueueParams>,
    ) -> ShareQueueParams {
        let rate = TickRate::new(numbers.rate);
        let capacity = rate.units_within_reach(numbers.burst.saturating_add(numbers.queue));
        let burst = numbers.burst.clamp(1, capacity);
        let unit = u128::from(rate.unit_ticks());
        let terms = |class: &model::ShareClass| {
            let most = u128::from(class.most);
            let ahead = (u128::from(burst) * most).saturating_sub(WHOLE) * unit;
            let most = (most < WHOLE).then_some((most.max(1), ahead));
            ClassQueueTerms { places: class.least_of(capacity - burst), most }
        };
        let give_up_ns = max_wait.map(duration_ns);
        let before = spec.counted_by.or(spec.previous);
        ShareQueueParams {
            rate,
            burst,
            queue: capacity - burst,
            wait_max: give_up_ns.map_or(u128::MAX, |ns| rate.ns_to_ticks(ns)),
            give_up_ns,
            is_fair: !config.fair_by.is_empty(),
            dry_run: config.dry_run,
            is_paused: config.pause.is_some(),
            shares: shares.clone(),
            classes: shares.classes.iter().map(terms).collect(),
            waiting: before.map(|known| known.params.waiting.clone()).unwrap_or_default(),
            epoch: spec
                .next_epoch(|before| (before.rate, before.burst, &before.shares) == (rate, burst, shares)),
        }
    }

    pub(super) fn terms(&self, class: usize) -> &ClassQueueTerms {
        &self.classes[class.min(self.classes.len() - 1)]
    }

    /// Units at the pace of `most`, in ticks times millionths.
    pub(super) fn most_ticks(&self, units: u64) -> u128 {
        self.rate.units_to_ticks(units) * WHOLE
    }

    /// Lets a request depart without a wait, or as if it had waited. The counter is up to date.
    pub(super) fn pass_at_once(
        &self,
        (entry, shard): Locked<'_, Self>,
        units: &Units,
        present: Now,
    ) -> ChargeMark {
        let class = self.shares.index(units.key.class);
        let classes = self.make_classes((entry, shard));
        if entry.level.is_idle(present) {
            ClassQueue::forget_leads(classes);
        }
        self.depart(entry, classes, (class, units.cost), self.rate.ns_to_ticks(present.0), 0)
    }

    /// Counts a departure at `at`, in ticks. The pace of the class falls behind by `delay` at most.
    fn depart(
        &self,
        entry: &mut ShareQueueEntry,
        classes: &mut [ClassQueue],
        (class, cost): (usize, u64),
        at: u128,
        delay: u128,
    ) -> ChargeMark {
        ClassQueue::count_departure(classes, class, cost, &self.shares);
        if let Some((most, _)) = self.terms(class).most {
            let own = &mut classes[class].most_tat;
            *own = (*own).max(at.saturating_sub(delay) * most) + self.most_ticks(cost);
        }
        let (ns, frac) = self.rate.split_ticks(at);
        // Rounded up only where the bucket was idle, so that departures keep the rate exactly.
        let is_late = frac > 0 && at > self.rate.tat_ticks(&entry.level);
        let span = self.rate.split_ticks(self.rate.units_to_ticks(cost));
        self.rate.advance_tat(&mut entry.level, Now(ns + u64::from(is_late)), span)
    }

    /// Lets all waiters go that are due, because timers may be late.
    pub(super) fn depart_due(&self, (entry, shard): Locked<'_, Self>, now: Now, wakers: &mut Wakers) {
        let until = self.rate.ns_to_ticks(now.0);
        let mut departed = false;
        while let Some((at, class)) = self.look_at(entry, shard, now).next_departure()
            && at <= until
        {
            departed = true;
            let epoch = shard.queues.charges.charge_epoch(self.epoch);
            let (queues, classes) = shard.parts(entry);
            let is_virtual = classes[class].virtual_units > 0;
            let cost = if is_virtual { 1 } else { queues.head_cost(classes[class].queue) };
            let waiting = classes.iter().filter(|class| !class.is_empty()).count() as u64;
            let delay = self.rate.units_to_ticks(cost.saturating_mul(waiting));
            let since = self.depart(entry, classes, (class, cost), at, delay);
            if is_virtual {
                classes[class].virtual_units -= 1;
                continue;
            }
            queues.unlink_head(&mut classes[class].queue, WaiterState::Departed(since, epoch), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
        if departed {
            self.follow_change((entry, shard), wakers);
        }
    }

    /// Wakes the waiter that is next, and notes the ends of the counter.
    pub(super) fn follow_change(&self, (entry, shard): Locked<'_, Self>, wakers: &mut Wakers) {
        let state = self.look_at(entry, shard, Now(0));
        if let Some((_, next)) = state.next_timer() {
            shard.queues.wake_head(state.classes[next].queue, wakers);
        }
        self.note_end((entry, shard));
    }

    /// Notes when all waiters will have left, and when the counter will be idle.
    pub(super) fn note_end(&self, (entry, shard): Locked<'_, Self>) {
        let state = self.look_at(entry, shard, Now(0));
        let end = state.tat.max(state.now) + self.rate.units_to_ticks(state.total());
        let paced = (0..state.classes.len()).filter_map(|class| {
            let (most, _) = self.terms(class).most?;
            Some(state.classes[class].most_tat.div_ceil(most))
        });
        let drained = state.now.max(state.tat) + state.drained_after();
        let idle = paced.fold(drained, u128::max);
        let has_waiters = state.classes.iter().any(|class| class.queue != NO_NODE);
        entry.idle_from = if has_waiters { u64::MAX } else { self.rate.ticks_to_ns(idle) };
        let end_ns = self.rate.ticks_to_ns(end);
        if let Some(key) = shard.keys.get_mut(entry.classes.wrapping_sub(1)) {
            key.end_ns = end_ns;
        }
    }

    /// Gives back units of a class that departed at `since`, as far as that is still exact. `now` is called only if a
    /// waiter may move up because of it.
    pub(super) fn undo_departure(
        &self,
        (entry, shard): Locked<'_, Self>,
        (class, cost): (u8, u64),
        since: ChargeMark,
        now: impl FnOnce() -> Now,
        wakers: &mut Wakers,
    ) {
        let (class, span) = (self.shares.index(class), self.rate.units_to_ticks(cost));
        let waits = shard.classes(entry).iter().any(|class| !class.is_empty());
        let now = waits.then(now);
        if let Some(now) = now {
            self.depart_due((entry, shard), now, wakers);
        }
        let (_, classes) = shard.parts(entry);
        let Some(own) = classes.get_mut(class) else { return };
        if own.virtual_units >= cost {
            // Units of a dry run are as good as any other.
            own.virtual_units -= cost;
            return self.note_end((entry, shard));
        }
        let regained = self.rate.regained_ticks(&entry.level, self.rate.unit_ticks(), since);
        self.rate.retreat_tat(&mut entry.level, cost, span, regained);
        own.most_tat = own.most_tat.saturating_sub(span.saturating_sub(regained) * WHOLE);
        ClassQueue::undo_departure(classes, class, cost, &self.shares);
        if let Some(now) = now {
            // A departure now is later than its schedule says.
            entry.level.record_departure(now.0, 0);
            self.depart_due((entry, shard), now, wakers);
        }
        self.follow_change((entry, shard), wakers);
    }

    /// The classes of a key, which are made if it has none.
    fn make_classes<'s>(
        &self,
        (entry, shard): (&mut ShareQueueEntry, &'s mut ShareQueueShard),
    ) -> &'s mut [ClassQueue] {
        if shard.keys.get(entry.classes.wrapping_sub(1)).is_none() {
            let classes = self.classes.iter().map(|_| ClassQueue::default()).collect();
            entry.classes = shard.keys.insert(KeyQueues { classes, end_ns: 0 }) + 1;
        }
        shard.parts(entry).1
    }

    /// Keeps the waiters in the classes of the same name, and the units by which each class is ahead of its pace.
    fn convert_classes(&self, classes: &mut ClassQueues, before: &Self, present: Now) {
        let fresh = self.classes.iter().map(|_| ClassQueue::default()).collect();
        for (class, mut own) in std::mem::replace(classes, fresh).into_iter().enumerate() {
            let name = before.shares.classes.get(class).map(|class| &class.name);
            let same = self.shares.classes.iter().position(|class| Some(&class.name) == name);
            let paced = |params: &Self, class| {
                params.terms(class).most.map_or(0, |(most, _)| params.rate.ns_to_ticks(present.0) * most)
            };
            let used = own.most_tat.saturating_sub(paced(before, class));
            own.most_tat =
                paced(self, same.unwrap_or(usize::MAX)) + self.rate.convert_ticks(used, &before.rate);
            match same {
                Some(same) => classes[same] = own,
                None if !own.is_empty() => classes.push(own),
                None => {}
            }
        }
    }

    fn fair_hash(&self, units: &Units) -> u64 {
        if self.is_fair { units.fair_hash } else { 0 }
    }
}

impl MeterParams for ShareQueueParams {
    type Entry = ShareQueueEntry;

    fn max_units(&self, _: u8) -> u64 {
        self.burst + self.queue
    }
}

impl RateParams for ShareQueueParams {
    type Wakers = Wakers;

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn advance_entry(&self, (entry, shard): Locked<'_, Self>, now: Now, wakers: &mut Wakers) {
        if entry.is_idle(now) {
            std::mem::take(entry).release_extra(shard);
        }
        self.depart_due((entry, shard), now, wakers);
    }

    /// Takes the units at once, or by a position in the queue.
    fn charge_entry(
        &self,
        (entry, shard): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let (dry_run, class) = (self.dry_run || units.unenforced, self.shares.index(units.key.class));
        self.make_classes((entry, shard));
        let state = self.look_at(entry, shard, now);
        let present = state.present;
        let position = match state.find_position(class, self.fair_hash(units), dry_run) {
            Ok(position) => position,
            Err(ticks) => return (state.build_decision(class, Err(ticks), now), None),
        };
        let epoch = shard.queues.charges.charge_epoch(self.epoch);
        let ClassPosition { wait, undisturbed, displaced } = position;
        let mut charge = ChargeRecord {
            since: ChargeMark::default(),
            node: NO_NODE,
            overflow,
            displaces: undisturbed > 0 && !dry_run,
            epoch,
        };
        if wait == 0 {
            charge.since = self.pass_at_once((entry, shard), units, present);
        } else {
            let (queues, classes) = shard.parts(entry);
            if let (true, Some(other)) = (dry_run, displaced) {
                classes[other].virtual_units = classes[other].virtual_units.saturating_sub(1);
            }
            let own = &mut classes[class];
            if let (Some((most, _)), true) = (self.terms(class).most, own.is_empty()) {
                own.most_tat = own.most_tat.max(self.rate.ns_to_ticks(present.0) * most);
            }
            if dry_run {
                own.virtual_units = own.virtual_units.saturating_add(units.cost);
            } else {
                let until = self.give_up_ns.map(|ns| Now(present.0.saturating_add(ns)));
                let (fair_hash, span) = (self.fair_hash(units), units.cost.into());
                let waiter = NewWaiter { fair_hash, cost: units.cost, span, until, since: present };
                charge.node = queues.push_waiter(&mut own.queue, waiter);
                self.waiting.fetch_add(1, Relaxed);
            }
        }
        self.note_end((entry, shard));
        let decision = self.look_at(entry, shard, present).build_decision(class, Ok(wait), now);
        (decision, Some(charge))
    }

    fn peek_entry(&self, (entry, shard): Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        let (dry_run, class) = (self.dry_run || units.unenforced, self.shares.index(units.key.class));
        let state = self.look_at(entry, shard, now);
        let position = state.find_position(class, self.fair_hash(units), dry_run);
        state.build_decision(class, position.map(|position| position.wait), now)
    }

    /// While requests wait, nothing is forgotten: a newcomer has to queue behind them.
    fn reset_entry(&self, (entry, shard): Locked<'_, Self>, now: Now, wakers: &mut Wakers) -> u64 {
        self.depart_due((entry, shard), now, wakers);
        let waiting = shard.queued_units(entry);
        if waiting == 0 {
            std::mem::take(entry).release_extra(shard);
        }
        waiting
    }
}

impl TableParams<ShareQueueEntry> for ShareQueueParams {
    /// Keeps the number of departed units, and the waiters in the classes of the same name. Those of a class that is
    /// gone have a queue of their own until they have left, on the terms of the others.
    fn convert_entry(
        &self,
        (entry, shard): Locked<'_, Self>,
        before: &Self,
        now: Now,
        to_wake: &mut Vec<Waker>,
    ) {
        let mut wakers = Wakers::new();
        if self.is_paused {
            let (queues, classes) = shard.parts(entry);
            for class in classes {
                // All go at once, and count as those of a dry run.
                class.virtual_units = class.virtual_units.saturating_add(queues.queued_units(class.queue));
                while class.queue != NO_NODE {
                    queues.release_head(&mut class.queue, &mut wakers);
                    self.waiting.fetch_sub(1, Relaxed);
                }
            }
            self.note_end((entry, shard));
        }
        if self.epoch == before.epoch {
            return to_wake.extend(wakers);
        }
        before.depart_due((entry, shard), now, &mut wakers);
        if entry.is_idle(now) {
            std::mem::take(entry).release_extra(shard);
        } else {
            let state = before.look_at(entry, shard, now);
            let (present, used) = (state.present, state.tat.saturating_sub(state.now));
            let used = self.rate.convert_ticks(used, &before.rate);
            let used = used.min(self.rate.units_to_ticks(self.burst + self.queue));
            self.rate.set_backlog(&mut entry.level, present, used);
            if let Some(key) = shard.keys.get_mut(entry.classes.wrapping_sub(1)) {
                self.convert_classes(&mut key.classes, before, present);
            }
            self.depart_due((entry, shard), now, &mut wakers);
            self.follow_change((entry, shard), &mut wakers);
        }
        to_wake.extend(wakers);
    }
}
