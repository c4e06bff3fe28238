//! Turns of classes: start-time fair queueing (Goyal, Vin and Cheng, 1996).
//!
//! Each class has a queue of its own and a lead: the time by which its service runs ahead of the virtual clock, which
//! stands at the start of the last departure. A departure takes its class ahead by the units over its weight, and the
//! class with the smallest lead is next. The clock overtakes a class without waiters, or one that may not go yet, so
//! that it saves up nothing.

use super::{FoundPosition, NO_NODE, ShardQueues, Wakers};
use sluicegate_model::{CLASSES_MAX, Shares};

/// The virtual time of one unit at the whole weight: divisible by all numbers up to 20, so that parts in round per cent
/// are exact.
const UNIT_TIME: u128 = 232_792_560;
/// The least weight of all classes without a floor together, in millionths.
const FREE_MIN: u32 = Shares::WHOLE / 100;

/// The waiters of one class of a key.
#[derive(Debug, Clone, Copy)]
pub struct ClassQueue {
    /// The queue in [`ShardQueues`]; [`NO_NODE`] = no request waits.
    pub queue: u32,
    /// Units of a dry run, which would wait.
    pub(crate) virtual_units: u64,
    /// The TAT at the pace of `most`, in ticks times millionths.
    pub(crate) most_tat: u128,
    lead: u128,
}

// === impl ClassQueue ===

impl Default for ClassQueue {
    fn default() -> ClassQueue {
        ClassQueue::EMPTY
    }
}

impl ClassQueue {
    pub(crate) const EMPTY: ClassQueue =
        ClassQueue { queue: NO_NODE, virtual_units: 0, most_tat: 0, lead: 0 };

    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queue == NO_NODE && self.virtual_units == 0
    }

    /// The class among those that wait and `may_go` that is next.
    pub fn find_next(classes: &[ClassQueue], may_go: impl Fn(usize) -> bool) -> Option<usize> {
        let waiting = classes.iter().enumerate().filter(|(index, class)| !class.is_empty() && may_go(*index));
        waiting.min_by_key(|(_, class)| class.lead).map(|(index, _)| index)
    }

    /// Wakes the first waiter of the class that is next, which has to take over the timer.
    pub fn wake_next(classes: &[ClassQueue], queues: &ShardQueues, wakers: &mut Wakers) {
        if let Some(next) = ClassQueue::find_next(classes, |_| true) {
            queues.wake_head(classes[next].queue, wakers);
        }
    }

    /// The class in the queue of which a node waits.
    pub fn find_class(classes: &[ClassQueue], queues: &ShardQueues, node: u32) -> Option<usize> {
        let queue = queues.find_queue(node)?;
        classes.iter().position(|class| class.queue == queue)
    }

    /// Counts the departure of `cost` units of a class.
    pub fn count_departure(classes: &mut [ClassQueue], class: usize, cost: u64, shares: &Shares) {
        let start = classes[class].lead;
        for other in classes.iter_mut() {
            other.lead = other.lead.saturating_sub(start);
        }
        classes[class].lead = u128::from(cost) * unit_time(classes, class, shares);
    }

    /// Undoes the departure of `cost` units of a class, as far as the clock has not overtaken it.
    pub(crate) fn undo_departure(classes: &mut [ClassQueue], class: usize, cost: u64, shares: &Shares) {
        let time = u128::from(cost) * unit_time(classes, class, shares);
        classes[class].lead = classes[class].lead.saturating_sub(time);
    }

    /// The classes of a bucket that nobody uses start anew.
    pub(crate) fn forget_leads(classes: &mut [ClassQueue]) {
        classes.iter_mut().for_each(|class| class.lead = 0);
    }

    /// Units of the class `other` that begin before the next unit of `class` does, which comes after `before` of its
    /// own.
    pub(crate) fn units_before(
        classes: &[ClassQueue],
        other: usize,
        (class, before): (usize, u64),
        shares: &Shares,
    ) -> u64 {
        let start = classes[class].lead + u128::from(before) * unit_time(classes, class, shares);
        let Some(ahead) = start.checked_sub(classes[other].lead) else { return 0 };
        let time = unit_time(classes, other, shares);
        // Of classes that are level, the first one goes.
        let units = if other < class { ahead / time + 1 } else { ahead.div_ceil(time) };
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

// === impl ShardQueues ===

impl ShardQueues {
    /// The position of one more waiter in the queue of its class, and the class of the waiter that has to make room;
    /// `None` = all `places` are taken. They have floors and are lent as well. `queue_of` finds the queue of a class.
    pub fn find_class_position(
        &self,
        shares: &Shares,
        places: u64,
        (class, fair_hash): (u8, Option<u64>),
        queue_of: impl Fn(u8) -> u32,
    ) -> Option<(FoundPosition, u8)> {
        let classes = || 0..=CLASSES_MAX as u8;
        let waiting = |class: u8| self.queued_units(queue_of(class));
        let floor = |class: u8| shares.classes.get(usize::from(class)).map_or(0, |one| one.least_of(places));
        let own = waiting(class);
        let all: u64 = classes().map(waiting).sum();
        let found = self.find_position(queue_of(class), places.saturating_sub(all - own), fair_hash);
        if found.is_some() || own >= floor(class) {
            return found.map(|found| (found, class));
        }
        let excess = |other: &u8| waiting(*other).saturating_sub(floor(*other));
        let other = classes().filter(|other| excess(other) > 0).max_by_key(excess)?;
        let newest = self.forecast_waiter(queue_of(other), NO_NODE).newest;
        let found = FoundPosition { before: own, displaced: newest.node };
        (all - newest.cost < places).then_some((found, other))
    }
}

/// The virtual time of one unit: the smaller the floor, the longer. Classes without a floor share what no class has.
fn unit_time(classes: &[ClassQueue], class: usize, shares: &Shares) -> u128 {
    let floor = |index: usize| shares.classes.get(index).map_or(0, |class| class.least);
    let whole = UNIT_TIME * u128::from(Shares::WHOLE);
    match floor(class) {
        0 => {
            let others = classes.iter().enumerate();
            let sharing = others
                .filter(|(index, other)| *index == class || floor(*index) == 0 && !other.is_empty())
                .count();
            whole * sharing as u128 / u128::from(shares.free().max(FREE_MIN))
        }
        floor => whole / u128::from(floor),
    }
}
