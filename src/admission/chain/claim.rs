//! One claim of a request: units or slots that it takes from one rate of a limit.

use crate::limit::table::CounterKey;
use crate::limit::{Charge, Units};

/// Units or slots that a request takes from one rate of a limit; packed, because it travels with the response.
#[repr(C, packed(8))]
pub(super) struct Claim {
    id: u128,
    prefix: u64,
    pub cost: u64,
    pub kind: ClaimKind,
    pub limit_index: u16,
    pub rate: u16,
}

pub(super) enum ClaimKind {
    Charge(Charge),
    /// Concurrency slots. `None`: not taken, or nothing is left to give back. `Some(true)`: counted by the shared
    /// overflow counter of a full table; `Some(false)`: by the key's own.
    Slots(Option<bool>),
    /// Held in the store: the index of a rate lease in the permit's store lease.
    Shared(u32),
}

// === impl Claim ===

impl Claim {
    #[inline]
    pub(super) fn new(units: &Units, limit_index: usize, rate: usize, kind: ClaimKind) -> Claim {
        let Units { key, cost, .. } = *units;
        Claim {
            id: key.id,
            prefix: key.prefix,
            cost,
            kind,
            limit_index: limit_index as u16,
            rate: rate as u16,
        }
    }

    /// The units to peek with: the rate is known already, and no turn in a fair queue depends on them.
    pub(super) fn to_units(&self) -> Units {
        Units { key: self.table_key(), cost: self.cost, variant: 0, fair_hash: 0 }
    }

    pub(super) fn indices_and_units(&self) -> (u16, u16, Units) {
        (self.limit_index, self.rate, self.to_units())
    }

    #[inline]
    pub(super) fn table_key(&self) -> CounterKey {
        CounterKey { id: self.id, prefix: self.prefix }
    }
}
