//! concurrency: at most `max` in flight per key; whoever holds a slot gives it back by a guard.

use crate::clock::Now;
use crate::table::{Entry, Key, Table};

/// The slots of one limit.
pub(super) struct Concurrency {
    max: u64,
    pub(super) table: Table<InFlight>,
}

/// Slots in use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlight(u32);

// === impl Concurrency ===

impl Concurrency {
    pub(super) fn new(max: u32, keys_max: usize) -> Concurrency {
        Concurrency { max: max.into(), table: Table::new(keys_max) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.max
    }

    /// Takes `slots` if they are free (else `None`); the flag tells [`Concurrency::leave`] where they were counted.
    #[inline]
    pub(super) fn enter(&self, key: &Key, slots: u64, now: Now) -> Option<bool> {
        self.table.update(key, now, |in_flight, (), shared| {
            let used = u64::from(in_flight.0).saturating_add(slots);
            if used > self.max {
                return None;
            }
            // `max` is 32 bits wide, so what it admits is too.
            in_flight.0 = used as u32;
            Some(shared)
        })
    }

    pub(super) fn in_flight(&self, key: &Key) -> u64 {
        self.table.peek(key, |in_flight, ()| in_flight.0.into())
    }

    pub(super) fn leave(&self, key: &Key, slots: u64, shared: bool) {
        self.table.revisit(key, shared, |in_flight, ()| {
            in_flight.0 = u64::from(in_flight.0).saturating_sub(slots) as u32;
        });
    }
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
