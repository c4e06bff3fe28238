//! Slots with guaranteed shares, of which each class of callers has a part for itself.
//!
//! A slot is lent while its owner does not need it, and comes back when its request ends. Kept for a class is the most
//! that it had in flight, waiting or refused at one moment of the last second, up to its floor; and always the part of
//! its floor that is not lent at all. The refusals of a quarter of a second count together, so that a class of many
//! clients has its floor within one response time. A free slot is set aside for a class that has less than is kept for
//! it: for the one whose request has left it, else for the one that lacks most. All others are common. A class takes
//! those that are set aside for it, then common ones up to its `most`; nothing set aside goes to another class, so
//! that a class does not lose its slots between two requests. The sum of all in flight never passes the limit.
//!
//! Classes have their places in the order of the file. After a reload with another list the requests of before count in
//! the same places until they end: the sum stays exact.

use std::sync::atomic::Ordering::Relaxed;

use super::freed_rate::FreedRate;
use super::slot_queues::{ClassSlots, OneClass, PERIOD_NS, PERIODS, SlotQueues, WaitedSlots};
use super::{ConcurrencyEntry, ConcurrencyParams, SLOTS_MAX, SlotGrant, WAITED};
use crate::algorithm::queue::{FoundPosition, NO_NODE, ShardQueues, Wakers};
use sluicegate_base::clock::Now;
use sluicegate_model::Shares;

/// Marks the entry of a key whose slots are counted by class, beside [`WAITED`].
pub(super) const BY_CLASS: u32 = 1 << 30;

/// The shares of a limit with the slots that it allows now.
#[derive(Clone, Copy)]
struct Parts<'a> {
    shares: &'a Shares,
    allowed: u64,
}

// === impl ConcurrencyParams ===

impl ConcurrencyParams {
    fn parts<'a>(&self, shares: &'a Shares) -> Parts<'a> {
        Parts { shares, allowed: self.max.allowed_slots() }
    }

    /// The most slots that a request of a class can ever take.
    #[cold]
    pub(super) fn max_slots_of(&self, shares: &Shares, class: u8) -> u64 {
        let (parts, class) = (self.parts(shares), usize::from(class));
        let others = (0..shares.classes.len()).filter(|other| *other != class);
        let not_lent: u64 = others.map(|other| u64::from(parts.kept(other, 0))).sum();
        parts.most(class).min(parts.allowed.saturating_sub(not_lent))
    }

    /// [`ConcurrencyParams::take_slots`] for a class.
    #[cold]
    pub(crate) fn take_class_slots(
        &self,
        shares: &Shares,
        (entry, queues): (&mut ConcurrencyEntry, &mut SlotQueues),
        (class, slots, dry_queue): (u8, u64, u64),
        overflow: bool,
        now: Now,
    ) -> Option<SlotGrant> {
        let parts = self.parts(shares);
        let (slots_of, waiters) = queues.open_classes(entry, shares, class);
        let class = usize::from(class);
        let common = slots_of.deal(parts, waiters, now);
        let reach = slots_of.reach(parts, class, common, waiters);
        let in_flight = slots_of.in_flight().saturating_add(slots);
        let waits = slots > reach;
        let dry_reach = if dry_queue > 0 { parts.allowed.saturating_add(dry_queue) } else { 0 };
        let rejects = waits && in_flight > dry_reach;
        if in_flight > SLOTS_MAX.into() || rejects && !self.is_paused {
            if self.queue == 0 {
                slots_of.note_refused(class, slots, waiters);
            }
            return None;
        }
        slots_of.take(class, slots);
        self.max.record_peak(in_flight);
        Some(SlotGrant { overflow, waits, rejects, free: whole(reach.saturating_sub(slots)) })
    }

    /// The slots that a class can take at once.
    #[cold]
    pub(crate) fn class_reach(
        &self,
        shares: &Shares,
        entry: ConcurrencyEntry,
        queues: &SlotQueues,
        class: u8,
        now: Now,
    ) -> u64 {
        let mut copy = queues.classes_of(entry).cloned().unwrap_or_default();
        copy.open(shares, class);
        let parts = self.parts(shares);
        let common = copy.deal(parts, &queues.waiters, now);
        copy.reach(parts, class.into(), common, &queues.waiters)
    }

    /// Frees slots of a class, and hands those that are free to the waiters: what is set aside for a class to its own,
    /// common ones in the order of arrival.
    #[cold]
    pub(super) fn free_class_slots(
        &self,
        shares: &Shares,
        (entry, queues): (&mut ConcurrencyEntry, &mut SlotQueues),
        (class, freed): (u8, u64),
        now: Now,
        wakers: &mut Wakers,
    ) {
        // During a pause all waiters go.
        let most = if self.is_paused { SLOTS_MAX.into() } else { self.max.allowed_slots() };
        let parts = Parts { shares, allowed: most };
        let (slots_of, waiters) = queues.open_classes(entry, shares, class);
        slots_of.note_needs(waiters, now);
        slots_of.release(class.into(), freed);
        loop {
            let common = slots_of.deal(parts, waiters, now);
            let Some((index, cost)) = slots_of.next_waiter(parts, waiters) else { break };
            if cost > u64::from(slots_of.classes[index].set_aside) + common {
                break;
            }
            slots_of.take(index, cost);
            let one = &mut slots_of.classes[index];
            one.freed.count_slots(cost, now);
            // The new head takes over the timer.
            waiters.depart_head(&mut one.queue, Default::default(), wakers);
            self.waiting.fetch_sub(1, Relaxed);
        }
        self.max.record_peak(slots_of.in_flight());
    }

    /// [`ShardQueues::find_class_position`] for a key.
    #[cold]
    pub(super) fn find_class_position(
        &self,
        shares: &Shares,
        entry: ConcurrencyEntry,
        queues: &SlotQueues,
        (class, fair_hash): (u8, Option<u64>),
    ) -> Option<(FoundPosition, u8)> {
        let empty = ClassSlots::default();
        let classes = &queues.classes_of(entry).unwrap_or(&empty).classes;
        let queue_of = |class: u8| classes.get(usize::from(class)).map_or(NO_NODE, |one| one.queue);
        queues.waiters.find_class_position(shares, self.queue, (class, fair_hash), queue_of)
    }
}

// === impl SlotQueues ===

impl SlotQueues {
    /// The slots of a key by class, if they are counted so.
    pub(super) fn classes_of(&self, entry: ConcurrencyEntry) -> Option<&ClassSlots> {
        self.by_class.get(entry.class_place()?)
    }

    /// The same, to change them.
    pub(super) fn classes_of_mut(&mut self, entry: ConcurrencyEntry) -> Option<&mut ClassSlots> {
        self.by_class.get_mut(entry.class_place()?)
    }

    /// The same, for a request of a class, with the waiters.
    fn open_classes(
        &mut self,
        entry: &mut ConcurrencyEntry,
        shares: &Shares,
        class: u8,
    ) -> (&mut ClassSlots, &mut ShardQueues) {
        if self.classes_of(*entry).is_none() {
            entry.0 = WAITED + BY_CLASS + self.by_class.insert(ClassSlots::default());
        }
        let place = entry.class_place().and_then(|place| self.by_class.get_mut(place));
        // Cannot fail: it was inserted if it was not there.
        let slots = place.expect("the slots of the entry");
        slots.open(shares, class);
        (slots, &mut self.waiters)
    }

    /// A request of a class is refused, because the queue is full.
    pub(super) fn note_full(&mut self, entry: ConcurrencyEntry, class: u8, slots: u64) {
        if let Some(slots_of) = entry.class_place().and_then(|place| self.by_class.get_mut(place)) {
            slots_of.note_refused(class.into(), slots, &self.waiters);
        }
    }

    /// True if an entry by class says no more than a fresh one.
    pub(super) fn is_class_idle(&self, entry: ConcurrencyEntry, now: Now) -> bool {
        self.classes_of(entry).is_some_and(|slots| {
            slots.is_unused() && now.0 / PERIOD_NS >= slots.period.saturating_add(PERIODS as u64)
        })
    }
}

// === impl ClassSlots ===

impl ClassSlots {
    /// Adds the classes that a request may be of.
    fn open(&mut self, shares: &Shares, class: u8) {
        let count = shares.classes.len().max(usize::from(class) + 1);
        if self.classes.len() < count {
            self.classes.resize(count, OneClass::default());
        }
    }

    fn in_flight(&self) -> u64 {
        self.classes.iter().map(|one| u64::from(one.in_flight)).sum()
    }

    fn is_unused(&self) -> bool {
        self.classes.iter().all(|one| one.in_flight == 0 && one.queue == NO_NODE)
    }

    /// A class as the slots of a key with one queue.
    pub(super) fn read_queue(&self, class: u8) -> WaitedSlots {
        let one = self.classes.get(usize::from(class)).copied().unwrap_or_default();
        WaitedSlots { in_flight: whole(self.in_flight()), queue: one.queue, freed: one.freed }
    }

    /// Stores the queue of a class.
    pub(super) fn write_queue(&mut self, class: u8, slots: WaitedSlots) {
        if let Some(one) = self.classes.get_mut(usize::from(class)) {
            (one.queue, one.freed) = (slots.queue, slots.freed);
        }
    }

    /// The queues of all classes.
    pub(super) fn queues(&self) -> impl Iterator<Item = u32> {
        self.classes.iter().map(|one| one.queue)
    }

    /// Notes what the classes need now, and forgets what is older than a second.
    fn note_needs(&mut self, waiters: &ShardQueues, now: Now) {
        let period = (now.0 / PERIOD_NS).max(self.period);
        let passed = (period - self.period).min(PERIODS as u64) as usize;
        self.period = period;
        for one in &mut self.classes {
            let need = one.need(waiters);
            if passed > 0 {
                one.refused = 0;
                one.needs.rotate_right(passed);
                one.needs[..passed].fill(need);
            }
            one.needs[0] = one.needs[0].max(need);
        }
    }

    fn note_refused(&mut self, class: usize, slots: u64, waiters: &ShardQueues) {
        let Some(one) = self.classes.get_mut(class) else { return };
        one.refused = one.refused.saturating_add(whole(slots));
        one.needs[0] = one.needs[0].max(one.need(waiters).saturating_add(one.refused));
    }

    /// Sets free slots aside for the classes that have less than is kept for them; returns the others. If there are too
    /// few of them now, the last classes lose theirs first.
    fn deal(&mut self, parts: Parts<'_>, waiters: &ShardQueues, now: Now) -> u64 {
        self.note_needs(waiters, now);
        let mut free = whole(parts.allowed.saturating_sub(self.in_flight()));
        for (class, one) in self.classes.iter_mut().enumerate() {
            one.kept = parts.kept(class, one.needs.into_iter().max().unwrap_or(0));
            one.set_aside = one.set_aside.min(one.kept.saturating_sub(one.in_flight)).min(free);
            free -= one.set_aside;
        }
        while free > 0 {
            let Some(one) = self.classes.iter_mut().rev().max_by_key(|one| one.lacking()) else { break };
            let part = one.lacking().min(free);
            if part == 0 {
                break;
            }
            one.set_aside += part;
            free -= part;
        }
        free.into()
    }

    /// The slots that a newcomer of a class can take of its own and the `common` ones. It overtakes no waiter.
    fn reach(&self, parts: Parts<'_>, class: usize, common: u64, waiters: &ShardQueues) -> u64 {
        let one = &self.classes[class];
        if one.queue != NO_NODE {
            return 0;
        }
        let common = if self.next_waiter(parts, waiters).is_some() { 0 } else { common };
        let below_most = parts.most(class).saturating_sub(one.in_flight.into());
        below_most.min(u64::from(one.set_aside) + common)
    }

    /// The class of the waiter that is next, and its slots: one that needs no common slot, else the first to arrive.
    /// Those of a class at its `most` wait for its own.
    fn next_waiter(&self, parts: Parts<'_>, waiters: &ShardQueues) -> Option<(usize, u64)> {
        let heads = self.classes.iter().enumerate().filter_map(|(class, one)| {
            let head = waiters.head(one.queue)?;
            let fits = u64::from(one.in_flight).saturating_add(head.cost) <= parts.most(class);
            fits.then_some((head.cost > one.set_aside.into(), head.since, class, head.cost))
        });
        heads.min().map(|(_, _, class, cost)| (class, cost))
    }

    fn take(&mut self, class: usize, slots: u64) {
        let (one, slots) = (&mut self.classes[class], whole(slots));
        one.in_flight = one.in_flight.saturating_add(slots);
        one.set_aside = one.set_aside.saturating_sub(slots);
    }

    /// Freed slots stay set aside for their class as far as they are kept for it.
    fn release(&mut self, class: usize, slots: u64) {
        let one = &mut self.classes[class];
        let freed = whole(slots).min(one.in_flight);
        one.in_flight -= freed;
        one.set_aside += freed.min(one.lacking());
    }
}

// === impl OneClass ===

impl OneClass {
    /// Slots in flight and waited for.
    fn need(&self, waiters: &ShardQueues) -> u32 {
        self.in_flight.saturating_add(whole(waiters.queued_units(self.queue)))
    }

    /// Slots kept for it that others use.
    fn lacking(&self) -> u32 {
        self.kept.saturating_sub(self.in_flight.saturating_add(self.set_aside))
    }
}

impl Default for OneClass {
    fn default() -> OneClass {
        let (needs, freed) = ([0; PERIODS], FreedRate::starting(Now::default()));
        OneClass { in_flight: 0, kept: 0, set_aside: 0, refused: 0, needs, queue: NO_NODE, freed }
    }
}

// === impl Parts ===

impl Parts<'_> {
    /// The slots that are kept for a class with such a need.
    fn kept(&self, class: usize, need: u32) -> u32 {
        let Some(share) = self.shares.classes.get(class) else { return 0 };
        let floor = share.least_of(self.allowed);
        let lent = floor * u64::from(self.shares.lend) / u64::from(Shares::WHOLE);
        whole(u64::from(need).min(floor).max(floor - lent))
    }

    /// The slots that a class never goes beyond.
    fn most(&self, class: usize) -> u64 {
        self.shares.classes.get(class).map_or(self.allowed, |share| share.most_of(self.allowed))
    }
}

/// Numbers of slots are at most [`super::SLOTS_MAX`]; those of waiters may be more.
fn whole(slots: u64) -> u32 {
    u32::try_from(slots).unwrap_or(u32::MAX)
}
