//! One claim of a request: units or slots that it takes from one rate of a limit.

use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, SlotGrant, Units};

/// Units or slots that a request takes from one rate of a limit; packed, because it travels with the response.
#[repr(C, packed(8))]
pub(super) struct Claim {
    id: u128,
    prefix: u64,
    pub cost: u64,
    pub kind: ClaimKind,
    pub limit_index: u16,
    pub rate: u16,
    /// The limit does not act on its key.
    pub unenforced: bool,
}

#[derive(Clone, Copy)]
pub(super) enum ClaimKind {
    Charge(ChargeRecord),
    /// Concurrency slots that are still to be taken, after the wait. `fair`: the hash of the request's `fair_by` value.
    WantedSlots {
        fair: u64,
    },
    /// Concurrency slots.
    Slots {
        grant: SlotGrant,
        fair: u64,
    },
    /// Concurrency slots that a dry run lacks.
    LackedSlots,
    /// Held in the store: the index of a rate lease in the store lease.
    Shared(u32),
}

// === impl Claim ===

impl Claim {
    #[inline]
    pub(super) fn new(units: &Units, limit_index: usize, rate: usize, kind: ClaimKind) -> Claim {
        let Units { key, cost, unenforced, .. } = *units;
        Claim {
            id: key.id,
            prefix: key.prefix,
            cost,
            kind,
            limit_index: limit_index as u16,
            rate: rate as u16,
            unenforced,
        }
    }

    /// The units to peek with: the rate is known already, and no turn in a fair queue depends on them.
    pub(super) fn to_units(&self) -> Units {
        Units {
            key: self.table_key(),
            cost: self.cost,
            variant: 0,
            fair_hash: 0,
            unenforced: self.unenforced,
        }
    }

    #[inline]
    pub(super) fn table_key(&self) -> CounterKey {
        CounterKey { id: self.id, prefix: self.prefix }
    }
}
