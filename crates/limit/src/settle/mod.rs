//! Settles charges by the used units of responses. Leaky buckets and concurrency have no settled charges.

use super::counters::settled;
use super::{ChargeRecord, Limit};
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

// === impl Limit ===

impl Limit {
    /// Corrects a charge from its reserved units to those that were used, exactly once. Too many are given back. Too
    /// few are charged whatever is left, up to a debt of one burst or window; returns the units beyond, which are
    /// forgiven.
    pub fn settle_charge(
        &self,
        rate: usize,
        key: &CounterKey,
        corrected: (u64, u64),
        charge: &ChargeRecord,
        now: Now,
    ) -> u64 {
        let forgiven =
            settled!(&self.meters, rate, meter => meter.settle_charge(key, corrected, charge, now), else 0);
        if corrected.1 > 0 {
            self.note_settled(rate, key);
        }
        forgiven
    }

    /// Adds units to a charge that stays open, whatever is left, as [`Limit::settle_charge`] does; returns the units
    /// that are forgiven.
    pub fn extend_charge(
        &self,
        rate: usize,
        key: &CounterKey,
        units: u64,
        charge: &ChargeRecord,
        now: Now,
    ) -> u64 {
        settled!(&self.meters, rate, meter => meter.extend_charge(key, units, charge, now), else 0)
    }

    /// Gives back units of a key, the newest first and at most as many as it has used. Units that have departed from a
    /// leaky bucket stay.
    pub fn credit_units(&self, rate: usize, key: &CounterKey, units: u64, now: Now) {
        settled!(&self.meters, rate, meter => meter.credit_units(key, units, now), else {});
    }

    /// Forgets the used units of a key except its open reservations, which settle as before. A counter shared with
    /// others stays. Open reservations are known only where the configuration asks for it.
    pub fn clear_key(&self, rate: usize, key: &CounterKey, now: Now) {
        settled!(&self.meters, rate, meter => meter.clear_key(key, now), else {});
    }
}

#[cfg(test)]
mod tests;
