//! Settles charges by the used units of responses. Leaky buckets and concurrency have no settled charges.

use super::counters::Meters;
use super::{ChargeRecord, Limit};
use crate::algorithm::settle;
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

/// Runs the same expression for the counters of one rate, or `$otherwise` where charges are never settled.
macro_rules! settled {
    ($meters:expr, $rate:expr, $table:ident => $run:expr, $otherwise:expr) => {
        settled!($meters, $rate, $table => $run, $otherwise;
            TokenBucket WarmTokenBucket FixedWindow SlidingWindow SlidingWindowFine SlidingLog)
    };
    ($meters:expr, $rate:expr, $table:ident => $run:expr, $otherwise:expr; $($algorithm:ident)*) => {
        match $meters {
            $(Meters::$algorithm(rates) => {
                let $table = &rates[$rate].table;
                $run
            })*
            Meters::LeakyBucket(_) | Meters::WarmLeakyBucket(_) | Meters::Concurrency(_) => $otherwise,
        }
    };
}

// === impl Limit ===

impl Limit {
    /// Corrects a charge from `reserved` units to those that were used, exactly once. Too many are given back. Too few
    /// are charged whatever is left, up to a debt of one burst or window; returns the units beyond, which are forgiven.
    pub fn settle_charge(
        &self,
        rate: usize,
        key: &CounterKey,
        (reserved, actual): (u64, u64),
        charge: &ChargeRecord,
        now: Now,
    ) -> u64 {
        settled!(
            &self.meters,
            rate,
            table => settle::settle_charge(table, key, (reserved, actual), charge, now),
            0
        )
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
        settled!(
            &self.meters,
            rate,
            table => settle::extend_charge(table, key, units, charge, now),
            0
        )
    }

    /// Gives back units of a key, the newest first and at most as many as it has used. Units that have departed from a
    /// leaky bucket stay.
    pub fn credit_units(&self, rate: usize, key: &CounterKey, units: u64, now: Now) {
        settled!(&self.meters, rate, table => settle::credit_units(table, key, units, now), ());
    }

    /// Forgets the used units of a key except its open reservations, which settle as before. A counter shared with
    /// others stays. Open reservations are known only where the configuration asks for it.
    pub fn clear_key(&self, rate: usize, key: &CounterKey, now: Now) {
        settled!(&self.meters, rate, table => settle::clear_key(table, key, now), ());
    }
}

#[cfg(test)]
mod tests;
