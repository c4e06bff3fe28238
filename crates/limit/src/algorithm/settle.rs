//! Settles charges: the units that a request reserved are corrected by those that its response used.
//!
//! A limit of N units holds at most 2N: those beyond N are its debt. The debt is always the newest units, and as older
//! ones leave, as many of the debt count from that moment on, as if they had been charged only then. So a debt is paid
//! back by waiting, within two periods, and never more than N units per period pass on average.

use super::meter::{Locked, Meter, RateParams};
use super::open_charges::{OpenUnits, ShardCharges};
use crate::ChargeRecord;
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

/// Units of a charge that were not used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GivenBack<'a> {
    pub key: &'a CounterKey,
    pub charge: &'a ChargeRecord,
    pub units: u64,
}

/// Units that are charged whatever is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForcedUnits<'a> {
    pub key: &'a CounterKey,
    pub units: u64,
    /// The charge with which they count, if that still counts.
    pub own: Option<&'a ChargeRecord>,
    /// The counter is an overflow counter.
    pub overflow: bool,
}

/// Parameters by which charges are settled. Every counter that they get is up to date.
pub(crate) trait SettleParams: RateParams {
    /// Gives units of a charge of this epoch back.
    fn give_back(&self, counter: Locked<'_, Self>, given: &GivenBack<'_>, now: Now);

    /// Gives back the newest units, whichever charge took them.
    fn credit_units(&self, counter: Locked<'_, Self>, key: &CounterKey, units: u64, now: Now);

    /// Charges units, at most until the debt is a whole limit; returns the units beyond.
    fn force_units(&self, counter: Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64;

    /// Notes that `closed` reserved units of a charge of this epoch are reserved no longer, and that `opened` ones are.
    fn note_reserved(&self, _: Locked<'_, Self>, _: &ChargeRecord, _closed: u64, _opened: u64) {}

    /// Forgets all units of a key but those that are `open`, the oldest first.
    fn keep_open_units(&self, counter: Locked<'_, Self>, key: &CounterKey, open: &[OpenUnits], now: Now);
}

// === impl Meter ===

impl<N: SettleParams> Meter<N> {
    /// Corrects a charge of `reserved` units to `actual`; returns the units that were forgiven.
    pub(crate) fn settle_charge(
        &self,
        key: &CounterKey,
        corrected: (u64, u64),
        charge: &ChargeRecord,
        now: Now,
    ) -> u64 {
        let close = |charges: &mut ShardCharges, _| charges.close_charge(key, corrected.0, charge);
        self.correct_charge(key, corrected, charge, (0, now), close)
    }

    /// Adds `units` to a charge that stays open; returns those that were forgiven.
    pub(crate) fn extend_charge(&self, key: &CounterKey, units: u64, charge: &ChargeRecord, now: Now) -> u64 {
        let open =
            |charges: &mut ShardCharges, forgiven| charges.extend_charge(key, units - forgiven, charge);
        self.correct_charge(key, (0, units), charge, (units, now), open)
    }

    /// [`Meter::settle_charge`], after which `opened` units stay reserved, and `record` notes the open charge, by the
    /// units that were forgiven.
    fn correct_charge(
        &self,
        key: &CounterKey,
        (reserved, actual): (u64, u64),
        charge: &ChargeRecord,
        (opened, now): (u64, Now),
        record: impl FnOnce(&mut ShardCharges, u64),
    ) -> u64 {
        let excess = actual.saturating_sub(reserved);
        let settled = self.table.update_charged(key, charge.overflow, |entry, extra, params| {
            let epoch = extra.as_mut().charge_epoch(params.epoch());
            let own = Some(charge).filter(|charge| charge.epoch == epoch);
            let forgiven = entry.map(|entry| {
                advance_settled(params, (entry, extra), now);
                if let Some(charge) = own.filter(|_| actual < reserved) {
                    let units = reserved - actual;
                    params.give_back((entry, extra), &GivenBack { key, charge, units }, now);
                }
                if let Some(charge) = own {
                    params.note_reserved((entry, extra), charge, reserved, opened);
                }
                let forced = ForcedUnits { key, units: excess, own, overflow: charge.overflow };
                if excess > 0 { params.force_units((entry, extra), &forced, now) } else { 0 }
            });
            record(extra.as_mut(), forgiven.unwrap_or(0));
            forgiven
        });
        match settled {
            Some(forgiven) => forgiven,
            None if excess == 0 => 0,
            // The counter was dropped since, because all that it counted had left.
            None => self.table.update_entry(key, now, |entry, extra, params, overflow| {
                advance_settled(params, (entry, extra), now);
                let forced = ForcedUnits { key, units: excess, own: None, overflow };
                params.force_units((entry, extra), &forced, now)
            }),
        }
    }

    /// Gives back units of a key, at most as many as it has used; a counter that others share stays.
    pub(crate) fn credit_units(&self, key: &CounterKey, units: u64, now: Now) {
        self.table.update_own(key, now, |entry, extra, params| {
            advance_settled(params, (entry, extra), now);
            params.credit_units((entry, extra), key, units, now);
        });
    }

    /// Forgets the used units of a key but its open reservations; a counter that others share stays.
    pub(crate) fn clear_key(&self, key: &CounterKey, now: Now) {
        self.table.update_own(key, now, |entry, extra, params| {
            let charges = extra.as_mut();
            let epoch = charges.charge_epoch(params.epoch());
            let open: Vec<OpenUnits> = charges.open_units(key, epoch).collect();
            advance_settled(params, (entry, extra), now);
            params.keep_open_units((entry, extra), key, &open, now);
        });
    }
}

/// Brings a counter without a queue up to date, in which nothing waits for a waker.
fn advance_settled<N: SettleParams>(params: &N, counter: Locked<'_, N>, now: Now) {
    params.advance_entry(counter, now, &mut N::Wakers::default());
}
