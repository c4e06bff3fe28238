//! concurrency: at most `max` requests in flight per key; a guard gives each slot back. With `queue` requests wait for
//! a slot, in arrival order or taking turns by `fair_by`.
//!
//! A freed slot is handed to the next waiter under the lock that frees it, so nobody overtakes a waiter. While
//! requests wait, the entry of their key holds the place of its [`waiting::WaitedSlots`], and reads as full to
//! newcomers.
//!
//! A view compares the slots in use with a number of its own. With shares, slots and queues are counted by class
//! ([`shares`]).

pub mod freed_rate;
mod shares;
mod slot_queues;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;

use super::adaptive::Adaptive;
use super::gradient::Bounds;
use super::meter::{Locked, Meter, MeterParams, MeterSpec};
use super::queue::Wakers;
use crate::table::{TableEntry, TableParams};
pub(crate) use slot_queues::{PERIOD_NS, SlotQueues};
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_model as model;
pub use waiting::{SlotOutlook, SlotStep, SlotTurn, SlotWaiter};

/// The parameters of a concurrency limit; slots in use mean the same under any of them.
pub(crate) struct ConcurrencyParams {
    pub(crate) max: SlotLimit,
    /// Units that may wait; 0 = none waits.
    pub(crate) queue: u64,
    /// The longest wait, in nanoseconds.
    pub(crate) max_wait_ns: Option<u64>,
    /// The values of a key take turns, by `fair_by`.
    is_fair: bool,
    /// A dry run never waits: as many more requests in flight as the queue has room for count as waiting.
    dry_run: bool,
    /// An operator has paused it: every request takes its slots, so that they count when it acts again.
    pub(crate) is_paused: bool,
    pub(crate) shares: Option<Arc<model::Shares>>,
    /// The waiters of all keys.
    pub(crate) waiting: Arc<AtomicUsize>,
}

pub(crate) enum SlotLimit {
    Fixed(u64),
    Adaptive(Arc<Adaptive>),
}

/// Slots in use, or from [`WAITED`] on the place of the key's [`waiting::WaitedSlots`]. Of a limit with shares, always
/// the place of its [`shares::ClassSlots`], from [`WAITED`] + [`shares::BY_CLASS`] on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConcurrencyEntry(pub(crate) u32);

/// Marks the entry of a key with waiters.
const WAITED: u32 = 1 << 31;

/// The most slots of a key, so that an entry with waiters reads as full.
const SLOTS_MAX: u32 = WAITED - 1;

/// Slots that a request has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotGrant {
    /// Counted on an overflow counter; [`crate::Limit::release_slots`] needs it.
    pub overflow: bool,
    /// A dry run would have waited for them.
    pub waits: bool,
    /// The limit is paused, and would have rejected the request.
    pub rejects: bool,
    /// Slots of the key that are left.
    pub free: u32,
}

// === impl ConcurrencyParams ===

impl ConcurrencyParams {
    /// `min`: the lower bound of a limit that adapts; `max` is the upper one.
    pub(crate) fn new(
        (min, max): (Option<u32>, u32),
        (queue, max_wait): (u64, Option<Duration>),
        config: &model::LimitConfig,
        spec: &MeterSpec<'_, ConcurrencyParams>,
    ) -> ConcurrencyParams {
        let max = match min {
            None => SlotLimit::Fixed(max.min(SLOTS_MAX).into()),
            Some(min) => {
                let bounds = Bounds { min: min.min(SLOTS_MAX).into(), max: max.min(SLOTS_MAX).into() };
                let previous = spec.previous.and_then(|previous| match &previous.params.max {
                    SlotLimit::Adaptive(adaptive) if adaptive.bounds == bounds => Some(adaptive.clone()),
                    _ => None,
                });
                SlotLimit::Adaptive(previous.unwrap_or_else(|| Arc::new(Adaptive::new(bounds))))
            }
        };
        ConcurrencyParams {
            max,
            queue,
            max_wait_ns: max_wait.map(duration_ns),
            is_fair: !config.fair_by.is_empty(),
            dry_run: config.dry_run,
            is_paused: config.pause.is_some(),
            shares: config.shares.clone(),
            waiting: spec.previous.map(|previous| previous.params.waiting.clone()).unwrap_or_default(),
        }
    }

    /// The requests beyond the limit that count as waiting, because the limit does not make them wait.
    #[inline]
    pub(crate) fn dry_queue(&self, unenforced: bool) -> u64 {
        if self.dry_run || unenforced { self.queue } else { 0 }
    }

    #[inline]
    pub(crate) fn take_slots(
        &self,
        (entry, queues): Locked<'_, Self>,
        (class, slots): (u8, u64),
        dry_queue: u64,
        overflow: bool,
        now: Now,
    ) -> Option<SlotGrant> {
        if let Some(shares) = &self.shares {
            let wanted = (class, slots, dry_queue);
            return self.take_class_slots(shares, (entry, queues), wanted, overflow, now);
        }
        // With waiters it reads as more than any limit allows.
        let used = u64::from(entry.0).saturating_add(slots);
        let allowed = self.max.allowed_slots();
        let rejects = used > allowed.saturating_add(dry_queue);
        if used > SLOTS_MAX.into() || rejects && !self.is_paused {
            return None;
        }
        // Cannot overflow: it is at most `SLOTS_MAX`.
        entry.0 = used as u32;
        self.max.record_peak(used);
        let free = u32::try_from(allowed.saturating_sub(used)).unwrap_or(u32::MAX);
        Some(SlotGrant { overflow, waits: used > allowed, rejects, free })
    }
}

// === impl Meter ===

impl Meter<ConcurrencyParams> {
    /// The parameters in force in the table, or those of a view, for which nothing waits.
    #[inline]
    pub(crate) fn params_here<'a>(&'a self, in_force: &'a ConcurrencyParams) -> &'a ConcurrencyParams {
        if self.is_view { &self.params } else { in_force }
    }

    /// Requests that wait, of all keys.
    pub(crate) fn waiter_count(&self) -> usize {
        self.params.waiting.load(Relaxed)
    }
}

impl MeterParams for ConcurrencyParams {
    type Entry = ConcurrencyEntry;

    #[inline]
    fn max_units(&self, class: u8) -> u64 {
        match &self.shares {
            None => self.max.allowed_slots(),
            Some(shares) => self.max_slots_of(shares, class),
        }
    }
}

impl TableParams<ConcurrencyEntry> for ConcurrencyParams {
    #[inline]
    fn may_reuse(&self, entry: &ConcurrencyEntry, queues: &SlotQueues, now: Now) -> bool {
        entry.0 == 0 || queues.is_class_idle(*entry, now)
    }

    /// More slots go to the waiters, and a changed `max_wait` holds for them; nobody is thrown out.
    fn convert_entry(
        &self,
        (entry, queues): Locked<'_, Self>,
        before: &Self,
        now: Now,
        to_wake: &mut Vec<Waker>,
    ) {
        if !entry.has_waiters() {
            return;
        }
        let mut wakers = Wakers::new();
        self.hand_over(entry, queues, now, &mut wakers);
        if self.max_wait_ns != before.max_wait_ns {
            queues.queues_of(*entry).for_each(|queue| queues.waiters.wake_all_waiters(queue, &mut wakers));
        }
        to_wake.extend(wakers);
    }
}

// === impl SlotLimit ===

impl SlotLimit {
    #[inline]
    pub(crate) fn allowed_slots(&self) -> u64 {
        match self {
            SlotLimit::Fixed(max) => *max,
            SlotLimit::Adaptive(adaptive) => adaptive.allowed_slots(),
        }
    }

    /// Records that a key has so many slots in use.
    #[inline]
    fn record_peak(&self, used: u64) {
        if let SlotLimit::Adaptive(adaptive) = self {
            adaptive.record_peak(used);
        }
    }
}

// === impl ConcurrencyEntry ===

impl ConcurrencyEntry {
    #[inline]
    pub(crate) fn has_waiters(self) -> bool {
        self.0 >= WAITED
    }

    /// The place of its [`shares::ClassSlots`].
    #[inline]
    fn class_place(self) -> Option<u32> {
        self.0.checked_sub(WAITED + shares::BY_CLASS)
    }
}

impl TableEntry for ConcurrencyEntry {
    type Extra = SlotQueues;

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.0 == 0
    }

    /// Slots counted on the overflow counter are released there, so no key moves away before it is empty.
    fn inherit_overflow(&self) -> Option<ConcurrencyEntry> {
        (self.0 == 0).then_some(*self)
    }

    fn release_extra(self, queues: &mut SlotQueues) {
        if let Some(place) = self.class_place() {
            queues.by_class.remove(place);
        }
    }
}
