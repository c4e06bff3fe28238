//! concurrency: at most `max` in flight per key; whoever holds a slot gives it back by a guard.

use std::sync::Arc;
use std::task::Waker;

use super::adaptive::{Adaptive, Went};
use crate::base::clock::Now;
use crate::limit::algorithm::table_spec::Make;
use crate::limit::table::{Entry, Key, Numbers, Table};

/// The slots of one limit.
pub(crate) struct Concurrency {
    numbers: Arc<Slots>,
    pub(crate) table: Arc<Table<InFlight, Slots>>,
}

/// The numbers beside the slots in use, which mean the same whatever these are.
pub(crate) struct Slots {
    max: Max,
}

enum Max {
    Fixed(u64),
    Adaptive(Arc<Adaptive>),
}

/// Slots in use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InFlight(u32);

// === impl Concurrency ===

impl Concurrency {
    /// `min`: the limit adapts between `min` and `max`.
    pub(crate) fn new(min: Option<u32>, max: u32, make: &Make<'_, Concurrency>) -> Concurrency {
        let max = match min {
            None => Max::Fixed(max.into()),
            Some(min) => {
                let learned = make.before.and_then(|before| before.adaptive(min, max));
                Max::Adaptive(learned.unwrap_or_else(|| Arc::new(Adaptive::new(min, max))))
            }
        };
        let numbers = Arc::new(Slots { max });
        let table = make.table(&numbers, |before| &before.table);
        Concurrency { numbers, table }
    }

    /// What was learned within these bounds.
    fn adaptive(&self, min: u32, max: u32) -> Option<Arc<Adaptive>> {
        match &self.numbers.max {
            Max::Adaptive(adaptive) if adaptive.is_within(min, max) => Some(adaptive.clone()),
            _ => None,
        }
    }

    pub(crate) fn apply(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.convert(&self.numbers, keys_max, clock);
    }

    /// Slots of a key, now.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.numbers.max.allowed()
    }

    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.numbers.max, Max::Adaptive(_))
    }

    /// Learns how a request went upstream that holds a slot.
    #[inline]
    pub(crate) fn note(&self, went: Went, now: Now) {
        if let Max::Adaptive(adaptive) = &self.numbers.max {
            adaptive.note(went, now);
        }
    }

    /// Takes `slots` if they are free (else `None`); the flag tells [`Concurrency::leave`] where they were counted.
    #[inline]
    pub(crate) fn enter(&self, key: &Key, slots: u64, now: Now) -> Option<bool> {
        self.table.update(key, now, |in_flight, (), numbers, shared| {
            let used = u64::from(in_flight.0).saturating_add(slots);
            if used > numbers.max.allowed() {
                return None;
            }
            // `max` is 32 bits wide, so what it admits is too.
            in_flight.0 = used as u32;
            if let Max::Adaptive(adaptive) = &numbers.max {
                adaptive.entered(used);
            }
            Some(shared)
        })
    }

    pub(crate) fn in_flight(&self, key: &Key) -> u64 {
        self.table.peek(key, |in_flight, (), _| in_flight.0.into())
    }

    pub(crate) fn leave(&self, key: &Key, slots: u64, shared: bool) {
        self.table.revisit(key, shared, |in_flight, (), _| {
            in_flight.0 = u64::from(in_flight.0).saturating_sub(slots) as u32;
        });
    }
}

// === impl Max ===

impl Max {
    #[inline]
    fn allowed(&self) -> u64 {
        match self {
            Max::Fixed(max) => *max,
            Max::Adaptive(adaptive) => adaptive.allowed(),
        }
    }
}

impl Numbers<InFlight> for Slots {
    fn convert(&self, _: &mut InFlight, (): &mut (), _: &Slots, _: Now, _: &mut Vec<Waker>) {}
}

// === impl InFlight ===

impl Entry for InFlight {
    type Extra = ();

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.0 == 0
    }

    /// Those counted on the shared counter leave it there, so nobody moves away before it is empty.
    fn inherit(&self) -> Option<InFlight> {
        (self.0 == 0).then_some(*self)
    }
}
