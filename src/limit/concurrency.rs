//! concurrency: at most `max` in flight per key; whoever holds a slot gives it back by a guard.

use super::adaptive::{Adaptive, Went};
use crate::clock::Now;
use crate::table::{Entry, Key, Table};

/// The slots of one limit.
pub(super) struct Concurrency {
    max: Max,
    pub(super) table: Table<InFlight>,
}

enum Max {
    Fixed(u64),
    Adaptive(Box<Adaptive>),
}

/// Slots in use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlight(u32);

// === impl Concurrency ===

impl Concurrency {
    /// `min`: the limit adapts between `min` and `max`.
    pub(super) fn new(min: Option<u32>, max: u32, keys_max: usize) -> Concurrency {
        let max = match min {
            None => Max::Fixed(max.into()),
            Some(min) => Max::Adaptive(Box::new(Adaptive::new(min, max))),
        };
        Concurrency { max, table: Table::new(keys_max) }
    }

    /// Slots of a key, now.
    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        match &self.max {
            Max::Fixed(max) => *max,
            Max::Adaptive(adaptive) => adaptive.allowed(),
        }
    }

    pub(super) fn is_adaptive(&self) -> bool {
        matches!(self.max, Max::Adaptive(_))
    }

    /// Learns how a request went upstream that holds a slot.
    #[inline]
    pub(super) fn note(&self, went: Went, now: Now) {
        if let Max::Adaptive(adaptive) = &self.max {
            adaptive.note(went, now);
        }
    }

    /// Takes `slots` if they are free (else `None`); the flag tells [`Concurrency::leave`] where they were counted.
    #[inline]
    pub(super) fn enter(&self, key: &Key, slots: u64, now: Now) -> Option<bool> {
        let max = self.capacity();
        let (used, shared) = self.table.update(key, now, |in_flight, (), shared| {
            let used = u64::from(in_flight.0).saturating_add(slots);
            if used > max {
                return None;
            }
            // `max` is 32 bits wide, so what it admits is too.
            in_flight.0 = used as u32;
            Some((used, shared))
        })?;
        if let Max::Adaptive(adaptive) = &self.max {
            adaptive.entered(used);
        }
        Some(shared)
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
