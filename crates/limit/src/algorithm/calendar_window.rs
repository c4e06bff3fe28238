//! fixed_window by the calendar: N units per window, and nothing crosses a border.
//!
//! A counter keeps the latest window that it has seen: a request of an earlier one, by another clock, file or zone,
//! counts in that. The units of the window before stay until the present one ends, for responses that settle charges
//! late.

use std::sync::Arc;
use std::task::Waker;

use super::meter::{Locked, MeterSpec};
use super::open_charges::{OpenUnits, ShardCharges};
use super::settle::{ForcedUnits, GivenBack, SettleParams};
use super::window_quota::{WindowParams, WindowQuota};
use crate::Decision;
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry, TableParams};
use sluicegate_base::calendar::{Calendar, CalendarUnit, CalendarWindow};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::Rate;

pub(crate) struct CalendarParams {
    quota: WindowQuota,
    /// `None`: a window begins with its first request.
    borders: Option<(CalendarUnit, Arc<Calendar>)>,
}

/// The newest window of one key, and the one before. All times are in ns since 1970.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CalendarEntry {
    /// The number of the window; 0 = there is none.
    begins: u64,
    ends: u64,
    used: u64,
    begins_before: u64,
    used_before: u64,
}

/// A window that begins this much later shows that the clock was set back.
const CLOCK_STEP_NS: u64 = 60 * SECOND_NS;
const SECOND_NS: u64 = 1_000_000_000;

// === impl CalendarParams ===

impl CalendarParams {
    pub(crate) fn new(
        rate: Rate,
        calendar: Option<&Arc<Calendar>>,
        spec: &MeterSpec<'_, CalendarParams>,
    ) -> CalendarParams {
        let quota = WindowQuota::new(rate, u64::MAX, spec, |before| &before.quota);
        CalendarParams { quota, borders: rate.calendar.zip(calendar.cloned()) }
    }

    /// The window with a moment.
    fn window_at(&self, at: u64) -> (u64, u64) {
        let Some((unit, calendar)) = &self.borders else { return (at, at.saturating_add(self.quota.period)) };
        let CalendarWindow { begins, ends } = calendar.window_at(*unit, at / SECOND_NS);
        (begins.saturating_mul(SECOND_NS), ends.saturating_mul(SECOND_NS))
    }

    /// Brings a counter to the window of now.
    #[inline]
    fn advance_window(&self, entry: &mut CalendarEntry, now: Now) {
        let at = now.to_unix_ns();
        if at < entry.begins || entry.ends <= at {
            self.find_window(entry, at);
        }
    }

    /// Begins a new window, or gives the present one a number or an end that suits `at`, in ns since 1970.
    #[cold]
    fn find_window(&self, entry: &mut CalendarEntry, at: u64) {
        let (begins, ends) = self.window_at(at);
        let ahead = if self.borders.is_some() { CLOCK_STEP_NS } else { 0 };
        if entry.begins < begins {
            let CalendarEntry { begins: begins_before, used: used_before, .. } = *entry;
            *entry = CalendarEntry { begins, ends, used: 0, begins_before, used_before };
        } else if entry.begins > at.saturating_add(ahead) {
            (entry.begins, entry.ends) = (begins, ends);
        } else {
            entry.ends = entry.ends.max(ends);
        }
    }
}

impl TableParams<CalendarEntry> for CalendarParams {
    /// The units of a window count until the one after it ends.
    fn is_idle(&self, entry: &CalendarEntry, now: Now) -> bool {
        let at = now.to_unix_ns();
        (entry.used == 0 || entry.ends.saturating_add(self.quota.period) <= at)
            && (entry.used_before == 0 || entry.ends <= at)
    }

    /// A window goes on until the next border, wherever the new calendar has it.
    fn convert_entry(
        &self,
        (entry, _): Locked<'_, Self>,
        before: &CalendarParams,
        now: Now,
        _: &mut Vec<Waker>,
    ) {
        before.advance_window(entry, now);
        entry.ends = 0;
        self.find_window(entry, now.to_unix_ns());
    }
}

impl WindowParams for CalendarParams {
    type Entry = CalendarEntry;
    const SHARES_COUNTERS: bool = true;

    #[inline]
    fn quota(&self) -> &WindowQuota {
        &self.quota
    }

    #[inline]
    fn carry_debt(&self, (entry, _): Locked<'_, Self>, now: Now) {
        self.advance_window(entry, now);
    }

    #[inline]
    fn take_units(&self, (entry, _): Locked<'_, Self>, cost: u64, _: Now, _: bool) -> Option<u64> {
        if cost > self.quota.max.saturating_sub(entry.used) {
            return None;
        }
        entry.used = entry.used.saturating_add(cost);
        Some(entry.begins)
    }

    #[inline]
    fn build_decision(&self, (entry, _): &Locked<'_, Self>, cost: u64, now: Now) -> Decision {
        let left_ns = entry.ends.saturating_sub(now.to_unix_ns());
        let full_ns = if entry.used == 0 { 0 } else { left_ns };
        self.quota.decide(entry.used, cost, full_ns, |_| left_ns)
    }

    /// The window before stays as it was.
    fn forget_units(&self, (entry, _): Locked<'_, Self>) {
        entry.used = 0;
    }
}

impl SettleParams for CalendarParams {
    fn give_back(&self, (entry, _): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        if let Some(used) = entry.used_at(given.charge.since.at_ns()) {
            *used = used.saturating_sub(given.units);
        }
    }

    fn credit_units(&self, (entry, _): Locked<'_, Self>, units: u64, _: Now) {
        entry.used = entry.used.saturating_sub(units);
    }

    /// In the window of its reservation; all of it counts, because a border ends every debt.
    fn force_units(&self, (entry, _): Locked<'_, Self>, forced: &ForcedUnits<'_>, _: Now) -> u64 {
        let is_before = forced.own.is_some_and(|own| own.since.at_ns() == entry.begins_before);
        let used = if is_before { &mut entry.used_before } else { &mut entry.used };
        *used = used.saturating_add(forced.units);
        0
    }

    fn keep_open_units(&self, (entry, _): Locked<'_, Self>, _: &CounterKey, open: &[OpenUnits], _: Now) {
        let begins = entry.begins;
        let counts = open.iter().filter(|open| open.at_ns.is_none_or(|at_ns| at_ns == begins));
        entry.used = entry.used.min(counts.fold(0, |sum: u64, open| sum.saturating_add(open.units)));
    }
}

// === impl CalendarEntry ===

impl CalendarEntry {
    /// The units of the window with this beginning; `None` = it is neither the newest nor the one before.
    fn used_at(&mut self, begins: u64) -> Option<&mut u64> {
        if begins == self.begins {
            Some(&mut self.used)
        } else if begins == self.begins_before {
            Some(&mut self.used_before)
        } else {
            None
        }
    }
}

impl TableEntry for CalendarEntry {
    type Extra = ShardCharges;

    #[inline]
    fn is_idle(&self, _: Now) -> bool {
        self.used == 0 && self.used_before == 0
    }
}

impl PersistentEntry for CalendarEntry {
    fn encode_entry(&self, _: &ShardCharges, out: &mut Vec<u8>) {
        for number in [self.begins, self.ends, self.used, self.begins_before, self.used_before] {
            out.extend(number.to_le_bytes());
        }
    }

    fn decode_entry(bytes: &mut &[u8], _: ClockShift, _: &mut ShardCharges) -> Option<CalendarEntry> {
        let mut number = || Some(u64::from_le_bytes(take_bytes(bytes)?));
        let (begins, ends, used) = (number()?, number()?, number()?);
        let (begins_before, used_before) = (number()?, number()?);
        // In any order, because a window gets another number when the clock is set back.
        Some(CalendarEntry { begins, ends, used, begins_before, used_before })
    }
}
