//! concurrency: at most `max` requests in flight per key; a guard gives each slot back.

use std::sync::Arc;
use std::task::Waker;

use super::adaptive::{Adaptive, SlotOutcome};
use crate::base::clock::Now;
use crate::limit::algorithm::table_spec::TableSpec;
use crate::limit::table::{CounterKey, Table, TableEntry, TableParams};

/// The slots of one limit.
pub(crate) struct Concurrency {
    params: Arc<ConcurrencyParams>,
    pub(crate) table: Arc<Table<ConcurrencyEntry, ConcurrencyParams>>,
}

/// The parameters of a concurrency limit; slots in use mean the same under any of them.
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
    /// With a `min` the limit adapts between `min` and `max`.
    pub(crate) fn new(min: Option<u32>, max: u32, spec: &TableSpec<'_, Concurrency>) -> Concurrency {
        let max = match min {
            None => SlotLimit::Fixed(max.into()),
            Some(min) => {
                let previous = spec.previous.and_then(|previous| previous.find_adaptive(min, max));
                SlotLimit::Adaptive(previous.unwrap_or_else(|| Arc::new(Adaptive::new(min, max))))
            }
        };
        let params = Arc::new(ConcurrencyParams { max });
        let table = spec.build_table(&params, |before| &before.table);
        Concurrency { params, table }
    }

    /// The controller, if it has these bounds.
    fn find_adaptive(&self, min: u32, max: u32) -> Option<Arc<Adaptive>> {
        match &self.params.max {
            SlotLimit::Adaptive(adaptive) if adaptive.is_within(min, max) => Some(adaptive.clone()),
            _ => None,
        }
    }

    pub(crate) fn apply_params(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.replace_params(&self.params, keys_max, clock);
    }

    /// The slots that each key has now.
    #[inline]
    pub(crate) fn max_units(&self) -> u64 {
        self.params.max.allowed_slots()
    }

    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.params.max, SlotLimit::Adaptive(_))
    }

    /// Records the upstream outcome of a request that holds a slot.
    #[inline]
    pub(crate) fn record_outcome(&self, outcome: SlotOutcome, now: Now) {
        if let SlotLimit::Adaptive(adaptive) = &self.params.max {
            adaptive.record_outcome(outcome, now);
        }
    }

    /// Takes `slots` if they are free, else returns `None`; [`Concurrency::release_slots`] needs the flag.
    #[inline]
    pub(crate) fn acquire_slots(&self, key: &CounterKey, slots: u64, now: Now) -> Option<bool> {
        self.table.update_entry(key, now, |in_flight, (), params, shared| {
            let used = u64::from(in_flight.0).saturating_add(slots);
            if used > params.max.allowed_slots() {
                return None;
            }
            // Cannot overflow: `max` is 32 bits wide.
            in_flight.0 = used as u32;
            if let SlotLimit::Adaptive(adaptive) = &params.max {
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

// === impl SlotLimit ===

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

// === impl ConcurrencyEntry ===

impl TableEntry for ConcurrencyEntry {
    type Extra = ();

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.0 == 0
    }

    /// Slots counted on the shared counter are released there, so no key moves away before it is empty.
    fn inherit_overflow(&self) -> Option<ConcurrencyEntry> {
        (self.0 == 0).then_some(*self)
    }
}
