//! concurrency: at most `max` in flight per key; whoever holds a slot gives it back by a guard.

use std::sync::Arc;
use std::task::Waker;

use super::adaptive::{Adaptive, SlotOutcome};
use crate::base::clock::Now;
use crate::limit::algorithm::table_spec::TableSpec;
use crate::limit::table::{CounterKey, Table, TableEntry, TableParams};

/// The slots of one limit.
pub(crate) struct Concurrency {
    numbers: Arc<ConcurrencyParams>,
    pub(crate) table: Arc<Table<ConcurrencyEntry, ConcurrencyParams>>,
}

/// The numbers beside the slots in use, which mean the same whatever these are.
pub(crate) struct ConcurrencyParams {
    max: SlotLimit,
}

enum SlotLimit {
    Fixed(u64),
    Adaptive(Arc<Adaptive>),
}

/// Slots in use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConcurrencyEntry(u32);

// === impl Concurrency ===

impl Concurrency {
    /// `min`: the limit adapts between `min` and `max`.
    pub(crate) fn new(min: Option<u32>, max: u32, make: &TableSpec<'_, Concurrency>) -> Concurrency {
        let max = match min {
            None => SlotLimit::Fixed(max.into()),
            Some(min) => {
                let learned = make.before.and_then(|before| before.find_adaptive(min, max));
                SlotLimit::Adaptive(learned.unwrap_or_else(|| Arc::new(Adaptive::new(min, max))))
            }
        };
        let numbers = Arc::new(ConcurrencyParams { max });
        let table = make.build_table(&numbers, |before| &before.table);
        Concurrency { numbers, table }
    }

    /// What was learned within these bounds.
    fn find_adaptive(&self, min: u32, max: u32) -> Option<Arc<Adaptive>> {
        match &self.numbers.max {
            SlotLimit::Adaptive(adaptive) if adaptive.is_within(min, max) => Some(adaptive.clone()),
            _ => None,
        }
    }

    pub(crate) fn apply_params(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.replace_params(&self.numbers, keys_max, clock);
    }

    /// Slots of a key, now.
    #[inline]
    pub(crate) fn max_units(&self) -> u64 {
        self.numbers.max.allowed_slots()
    }

    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.numbers.max, SlotLimit::Adaptive(_))
    }

    /// Learns how a request went upstream that holds a slot.
    #[inline]
    pub(crate) fn record_outcome(&self, went: SlotOutcome, now: Now) {
        if let SlotLimit::Adaptive(adaptive) = &self.numbers.max {
            adaptive.record_outcome(went, now);
        }
    }

    /// Takes `slots` if they are free (else `None`); the flag tells [`Concurrency::leave`] where they were counted.
    #[inline]
    pub(crate) fn acquire_slots(&self, key: &CounterKey, slots: u64, now: Now) -> Option<bool> {
        self.table.update_entry(key, now, |in_flight, (), numbers, shared| {
            let used = u64::from(in_flight.0).saturating_add(slots);
            if used > numbers.max.allowed_slots() {
                return None;
            }
            // `max` is 32 bits wide, so what it admits is too.
            in_flight.0 = used as u32;
            if let SlotLimit::Adaptive(adaptive) = &numbers.max {
                adaptive.record_peak(used);
            }
            Some(shared)
        })
    }

    pub(crate) fn slots_in_use(&self, key: &CounterKey) -> u64 {
        self.table.peek_entry(key, |in_flight, (), _| in_flight.0.into())
    }

    pub(crate) fn release_slots(&self, key: &CounterKey, slots: u64, shared: bool) {
        self.table.update_existing(key, shared, |in_flight, (), _| {
            in_flight.0 = u64::from(in_flight.0).saturating_sub(slots) as u32;
        });
    }
}

// === impl Max ===

impl SlotLimit {
    #[inline]
    fn allowed_slots(&self) -> u64 {
        match self {
            SlotLimit::Fixed(max) => *max,
            SlotLimit::Adaptive(adaptive) => adaptive.allowed_slots(),
        }
    }
}

impl TableParams<ConcurrencyEntry> for ConcurrencyParams {
    fn convert_entry(
        &self,
        _: &mut ConcurrencyEntry,
        (): &mut (),
        _: &ConcurrencyParams,
        _: Now,
        _: &mut Vec<Waker>,
    ) {
    }
}

// === impl InFlight ===

impl TableEntry for ConcurrencyEntry {
    type Extra = ();

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.0 == 0
    }

    /// Those counted on the shared counter leave it there, so nobody moves away before it is empty.
    fn inherit_overflow(&self) -> Option<ConcurrencyEntry> {
        (self.0 == 0).then_some(*self)
    }
}
