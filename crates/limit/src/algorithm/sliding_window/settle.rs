//! Settles the charges of a sliding window by the used units of responses.

use super::{SlidingWindowEntry, SlidingWindowParams};
use crate::algorithm::meter::Locked;
use crate::algorithm::open_charges::OpenUnits;
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::algorithm::window_quota::Carried;
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

impl<const COUNTS: usize> SettleParams for SlidingWindowParams<COUNTS> {
    /// Nothing, if the units have already left.
    fn give_back(&self, (entry, _): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        let Some(age) = entry.age_of(given.charge.since.at_ns(), self.width) else { return };
        take_units(&mut entry.units[age..=age], given.units);
        entry.release_if_empty();
    }

    fn credit_units(&self, (entry, _): Locked<'_, Self>, _: &CounterKey, units: u64, now: Now) {
        self.advance_window(entry, now);
        take_units(&mut entry.units, units);
        entry.release_if_empty();
    }

    fn force_units(&self, (entry, _): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        self.advance_window(entry, now);
        let own = forced.own.map(|charge| charge.since.at_ns()).filter(|until| *until > now.0);
        let age = own.and_then(|until| entry.age_of(until, self.width)).unwrap_or(0);
        let units_max = self.quota.units_max().min(u32::MAX.into());
        let taken = forced.units.min(units_max.saturating_sub(entry.sum_units(COUNTS)));
        // Cannot overflow: a sum of at most `units_max`, which is 32 bits wide.
        entry.units[age] += taken as u32;
        forced.units - taken
    }

    fn keep_open_units(&self, (entry, _): Locked<'_, Self>, _: &CounterKey, open: &[OpenUnits], now: Now) {
        let before = *entry;
        entry.units.fill(0);
        // Units of an earlier epoch, or that count later than they were charged, count among the newest.
        let mut elsewhere = 0_u64;
        for open in open {
            let Some(until) = open.at_ns else {
                elsewhere = elsewhere.saturating_add(open.units);
                continue;
            };
            let Some(age) = before.age_of(until, self.width).filter(|_| until > now.0) else { continue };
            let kept = u64::from(before.units[age] - entry.units[age]).min(open.units);
            entry.units[age] += kept as u32;
            elsewhere = elsewhere.saturating_add(open.units - kept);
        }
        for age in 0..self.live_windows(&before, now) {
            let kept = u64::from(before.units[age] - entry.units[age]).min(elsewhere);
            entry.units[age] += kept as u32;
            elsewhere -= kept;
        }
        entry.release_if_empty();
    }
}

/// Takes `units` out of counts, in their order.
pub(super) fn take_units<'a>(counts: impl IntoIterator<Item = &'a mut u32>, mut units: u64) {
    for count in counts {
        let taken = u64::from(*count).min(units);
        *count -= taken as u32;
        units -= taken;
    }
}

// === impl SlidingWindowParams ===

impl<const COUNTS: usize> SlidingWindowParams<COUNTS> {
    /// Lets the sub-windows of a key with debt leave one by one, and carries its debt.
    #[inline]
    pub(super) fn carry_counts(&self, entry: &mut SlidingWindowEntry<COUNTS>, now: Now) {
        if self.has_debt(entry) {
            self.carry_sub_windows(entry, now);
        }
    }

    #[inline]
    pub(super) fn has_debt(&self, entry: &SlidingWindowEntry<COUNTS>) -> bool {
        self.quota.settle_terms.settles && entry.sum_units(COUNTS) > self.quota.max
    }

    #[cold]
    fn carry_sub_windows(&self, entry: &mut SlidingWindowEntry<COUNTS>, now: Now) {
        let (span, mut used) = (self.carry_span(), entry.sum_units(COUNTS));
        let mut age = COUNTS;
        while age > 0 && used > self.quota.max {
            age -= 1;
            if entry.until_ns().saturating_sub(age as u64 * self.width) > now.0 {
                return;
            }
            let units = std::mem::take(&mut entry.units[age]);
            if units == 0 {
                continue;
            }
            let carried = Carried::of(units.into(), used, self.quota.max);
            used -= carried.left;
            take_units(&mut entry.units[..age], carried.newest);
            let shift = span.saturating_sub(age);
            entry.shift_counts(shift);
            entry.set_until(entry.until_ns().saturating_add(shift as u64 * self.width));
            age += shift;
            // Cannot overflow: part of `max`, which is 32 bits wide.
            entry.units[age - span] += carried.debt as u32;
        }
    }

    /// The number of sub-windows in which a period ends.
    fn carry_span(&self) -> usize {
        self.quota.period.div_ceil(self.width) as usize
    }

    /// The time for which carried units count.
    pub(super) fn carry_ns(&self) -> u64 {
        (self.carry_span() as u64).saturating_mul(self.width)
    }
}

// === impl SlidingWindowEntry ===

impl<const COUNTS: usize> SlidingWindowEntry<COUNTS> {
    /// An entry without units is as that of a newcomer.
    fn release_if_empty(&mut self) {
        if self.sum_units(COUNTS) == 0 {
            *self = SlidingWindowEntry::default();
        }
    }
}
