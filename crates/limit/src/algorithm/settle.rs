//! Settles charges: the units that a request reserved are corrected by those that its response used.
//!
//! A limit of N units holds at most 2N: those beyond N are its debt. The debt is always the newest units, and as older
//! ones leave, as many of the debt count from that moment on, as if they had been charged only then. So a debt is paid
//! back by waiting, within two periods, and never more than N units per period pass on average.

use crate::algorithm::shard_charges::{OpenUnits, ShardCharges};
use crate::table::{CounterKey, Table, TableEntry, TableParams};
use crate::{ChargeRecord, Epoch};
use sluicegate_base::clock::Now;

/// The terms by which responses settle the charges of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SettleTerms {
    /// Charges are settled, so a counter may hold debt.
    pub settles: bool,
    /// A response may clear a key, so that open reservations are known.
    pub clears: bool,
}

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
    /// The counter is a shared overflow counter.
    pub shared: bool,
}

/// Parameters by which charges are settled.
pub(crate) trait SettleParams<E: TableEntry>: TableParams<E> {
    fn epoch(&self) -> Epoch;

    fn settle_terms(&self) -> SettleTerms;

    fn shard_charges(extra: &mut E::Extra) -> &mut ShardCharges;

    /// Brings a counter with debt up to date.
    fn carry_debt(&self, entry: &mut E, extra: &mut E::Extra, now: Now);

    /// Gives units of a charge of this epoch back.
    fn give_back(&self, entry: &mut E, extra: &mut E::Extra, given: &GivenBack<'_>, now: Now);

    /// Gives back the newest units of an entry that is up to date, whichever charge took them.
    fn credit_units(&self, entry: &mut E, extra: &mut E::Extra, units: u64, now: Now);

    /// Charges units to an entry that is up to date, at most until the debt is a whole limit; returns the units beyond.
    fn force_units(&self, entry: &mut E, extra: &mut E::Extra, forced: &ForcedUnits<'_>, now: Now) -> u64;

    /// Forgets all units of a key but those that are `open`, the oldest first.
    fn keep_open_units(
        &self,
        entry: &mut E,
        extra: &mut E::Extra,
        key: &CounterKey,
        open: &[OpenUnits],
        now: Now,
    );
}

/// Corrects a charge of `reserved` units to `actual`; returns the units that were forgiven.
pub fn settle_charge<E: TableEntry, N: SettleParams<E>>(
    table: &Table<E, N>,
    key: &CounterKey,
    corrected: (u64, u64),
    charge: &ChargeRecord,
    now: Now,
) -> u64 {
    let close = |charges: &mut ShardCharges, _| charges.close_charge(key, corrected.0, charge);
    correct_charge(table, key, corrected, charge, now, close)
}

/// Adds `units` to a charge that stays open; returns those that were forgiven.
pub fn extend_charge<E: TableEntry, N: SettleParams<E>>(
    table: &Table<E, N>,
    key: &CounterKey,
    units: u64,
    charge: &ChargeRecord,
    now: Now,
) -> u64 {
    let open = |charges: &mut ShardCharges, forgiven| charges.extend_charge(key, units - forgiven, charge);
    correct_charge(table, key, (0, units), charge, now, open)
}

/// [`settle_charge`], after which `record` notes the open charge, by the units that were forgiven.
fn correct_charge<E: TableEntry, N: SettleParams<E>>(
    table: &Table<E, N>,
    key: &CounterKey,
    (reserved, actual): (u64, u64),
    charge: &ChargeRecord,
    now: Now,
    record: impl FnOnce(&mut ShardCharges, u64),
) -> u64 {
    let excess = actual.saturating_sub(reserved);
    let settled = table.update_charged(key, charge.shared, |entry, extra, params| {
        let epoch = N::shard_charges(extra).charge_epoch(params.epoch());
        let own = Some(charge).filter(|charge| charge.epoch == epoch);
        let forgiven = entry.map(|entry| {
            if params.settle_terms().settles {
                params.carry_debt(entry, extra, now);
            }
            if let Some(charge) = own.filter(|_| actual < reserved) {
                let units = reserved - actual;
                params.give_back(entry, extra, &GivenBack { key, charge, units }, now);
            }
            let forced = ForcedUnits { key, units: excess, own, shared: charge.shared };
            if excess > 0 { params.force_units(entry, extra, &forced, now) } else { 0 }
        });
        record(N::shard_charges(extra), forgiven.unwrap_or(0));
        forgiven
    });
    match settled {
        Some(forgiven) => forgiven,
        None if excess == 0 => 0,
        // The counter was dropped since, because all that it counted had left.
        None => table.update_entry(key, now, |entry, extra, params, shared| {
            params.carry_debt(entry, extra, now);
            let forced = ForcedUnits { key, units: excess, own: None, shared };
            params.force_units(entry, extra, &forced, now)
        }),
    }
}

/// Gives back units of a key, at most as many as it has used; a counter that others share stays.
pub fn credit_units<E: TableEntry, N: SettleParams<E>>(
    table: &Table<E, N>,
    key: &CounterKey,
    units: u64,
    now: Now,
) {
    table.update_own(key, now, |entry, extra, params| {
        params.carry_debt(entry, extra, now);
        params.credit_units(entry, extra, units, now);
    });
}

/// Forgets the used units of a key but its open reservations; a counter that others share stays.
pub fn clear_key<E: TableEntry, N: SettleParams<E>>(table: &Table<E, N>, key: &CounterKey, now: Now) {
    table.update_own(key, now, |entry, extra, params| {
        let charges = N::shard_charges(extra);
        let open: Vec<OpenUnits> = charges.open_units(key, charges.charge_epoch(params.epoch())).collect();
        params.carry_debt(entry, extra, now);
        params.keep_open_units(entry, extra, key, &open, now);
    });
}
