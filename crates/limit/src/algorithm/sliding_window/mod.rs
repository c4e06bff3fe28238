//! sliding_window: never more than N units in any window, in constant memory.
//!
//! Time is cut into sub-windows of width w = ⌈period/buckets⌉, and a unit counts until a period after the end of its
//! sub-window. So no unit leaves too early, and none more than w too late. `buckets` + 1 counts are enough: older
//! ones have left. Units beyond N, a debt, are the newest; when older ones leave, the debt counts in their place.

mod settle;

use std::task::Waker;

use super::meter::{Locked, MeterSpec};
use super::open_charges::ShardCharges;
use super::window_quota::{WindowParams, WindowQuota};
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{TableEntry, TableParams};
use crate::{ChargeMark, Decision};
use settle::take_units;
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::Rate;

pub(crate) struct SlidingWindowParams<const COUNTS: usize> {
    quota: WindowQuota,
    width: u64,
    /// The latest moment; later ones count as this one, so that no sum overflows.
    last: u64,
}

/// The counts of one key, newest sub-window first. A cell of the table with 11 counts is 64 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowEntry<const COUNTS: usize> {
    /// The moment at which `units[0]` leaves, ns; `units[age]` leaves `age` widths earlier. In halves, for alignment.
    until: [u32; 2],
    units: [u32; COUNTS],
}

// === impl SlidingWindowParams ===

impl<const COUNTS: usize> SlidingWindowParams<COUNTS> {
    /// At most `COUNTS` − 1 sub-windows.
    pub(crate) fn new(rate: Rate, buckets: u8, spec: &MeterSpec<'_, Self>) -> SlidingWindowParams<COUNTS> {
        let quota = WindowQuota::new(rate, u32::MAX.into(), spec, |before| &before.quota);
        let width = quota.period.div_ceil(u64::from(buckets).clamp(1, COUNTS as u64 - 1));
        SlidingWindowParams { quota, width, last: u64::MAX - quota.period - 2 * width }
    }

    /// The number of sub-windows that have not left.
    #[inline]
    fn live_windows(&self, entry: &SlidingWindowEntry<COUNTS>, now: Now) -> usize {
        let left = entry.until_ns().saturating_sub(now.0).div_ceil(self.width);
        usize::try_from(left).unwrap_or(COUNTS).min(COUNTS)
    }

    /// Makes the sub-window of `now` the newest, unless there is a newer one, and clears those that have left.
    #[inline]
    fn advance_window(&self, entry: &mut SlidingWindowEntry<COUNTS>, now: Now) {
        let live = self.live_windows(entry, now);
        entry.units[live..].fill(0);
        let until = (now.0.min(self.last) / self.width + 1) * self.width + self.quota.period;
        let Some(later) = until.checked_sub(entry.until_ns()).filter(|later| *later > 0) else { return };
        entry.shift_counts(usize::try_from(later / self.width).unwrap_or(COUNTS).min(COUNTS));
        entry.set_until(until);
    }

    /// Nanoseconds until `missing` more units have left.
    fn leaves_ns(&self, entry: &SlidingWindowEntry<COUNTS>, live: usize, missing: u64, now: Now) -> u64 {
        let mut left = 0;
        let age = (1..live).rev().find(|&age| {
            left += u64::from(entry.units[age]);
            left >= missing
        });
        entry.until_ns().saturating_sub(age.unwrap_or(0) as u64 * self.width).saturating_sub(now.0)
    }
}

impl<const COUNTS: usize> WindowParams for SlidingWindowParams<COUNTS> {
    type Entry = SlidingWindowEntry<COUNTS>;

    #[inline]
    fn quota(&self) -> &WindowQuota {
        &self.quota
    }

    #[inline]
    fn carry_debt(&self, (entry, _): Locked<'_, Self>, now: Now) {
        self.carry_counts(entry, now);
    }

    #[inline]
    fn take_units(&self, (entry, _): Locked<'_, Self>, cost: u64, now: Now, _: bool) -> Option<ChargeMark> {
        let used = entry.sum_units(self.live_windows(entry, now));
        if used.saturating_add(cost) > self.quota.max {
            return None;
        }
        self.advance_window(entry, now);
        // Cannot overflow: a sum of at most `max`, which is 32 bits wide.
        entry.units[0] += cost as u32;
        Some(ChargeMark::at_moment(entry.until_ns()))
    }

    #[inline]
    fn build_decision(&self, (entry, _): &Locked<'_, Self>, cost: u64, now: Now) -> Decision {
        let live = self.live_windows(entry, now);
        let newest = entry.units[..live].iter().position(|units| *units > 0);
        let full_ns = newest
            .map_or(0, |age| entry.until_ns().saturating_sub(age as u64 * self.width).saturating_sub(now.0));
        let leaves_ns = |units: u64| self.leaves_ns(entry, live, units, now);
        self.quota.decide_sliding(entry.sum_units(live), cost, full_ns, leaves_ns, || self.carry_ns())
    }
}

impl<const COUNTS: usize> TableParams<SlidingWindowEntry<COUNTS>> for SlidingWindowParams<COUNTS> {
    #[inline]
    fn is_idle(&self, entry: &SlidingWindowEntry<COUNTS>, now: Now) -> bool {
        let carries_ns = if self.has_debt(entry) { self.carry_ns() } else { 0 };
        entry.until_ns().saturating_add(carries_ns) <= now.0
    }

    /// Counts the present units as charged now, with a new period or width. A debt stays, and a lower limit makes
    /// none of the units used within the earlier one: as before, the newest units have to leave.
    fn convert_entry(&self, (entry, charges): Locked<'_, Self>, before: &Self, now: Now, _: &mut Vec<Waker>) {
        let keeps_times = (self.quota.period, self.width) == (before.quota.period, before.width);
        if keeps_times && !self.quota.settle_terms.settles {
            return;
        }
        before.carry_counts(entry, now);
        let live = before.live_windows(entry, now);
        let used = entry.sum_units(live);
        let kept = self.quota.convert_used(used, &before.quota, charges);
        if keeps_times {
            // Those that have left are no debt of a lower limit.
            entry.units[live..].fill(0);
            return take_units(entry.units[..live].iter_mut().rev(), used - kept);
        }
        *entry = SlidingWindowEntry::default();
        if kept > 0 {
            self.advance_window(entry, now);
            // Never more units were admitted than 32 bits hold.
            entry.units[0] = kept.min(u32::MAX.into()) as u32;
        }
    }
}

// === impl SlidingWindowEntry ===

impl<const COUNTS: usize> SlidingWindowEntry<COUNTS> {
    #[inline]
    fn until_ns(&self) -> u64 {
        u64::from(self.until[0]) | u64::from(self.until[1]) << 32
    }

    /// The age of the sub-window that leaves at `until`, if it has a count.
    fn age_of(&self, until: u64, width: u64) -> Option<usize> {
        let age = usize::try_from(self.until_ns().checked_sub(until)? / width).ok()?;
        Some(age).filter(|age| *age < COUNTS)
    }

    #[inline]
    fn set_until(&mut self, until: u64) {
        self.until = [until as u32, (until >> 32) as u32];
    }

    /// Makes all sub-windows older by `shift`.
    #[inline]
    fn shift_counts(&mut self, shift: usize) {
        self.units.copy_within(..COUNTS - shift, shift);
        self.units[..shift].fill(0);
    }

    #[inline]
    fn sum_units(&self, live: usize) -> u64 {
        self.units[..live].iter().map(|&units| u64::from(units)).sum()
    }
}

impl<const COUNTS: usize> Default for SlidingWindowEntry<COUNTS> {
    fn default() -> SlidingWindowEntry<COUNTS> {
        SlidingWindowEntry { until: [0; 2], units: [0; COUNTS] }
    }
}

impl<const COUNTS: usize> TableEntry for SlidingWindowEntry<COUNTS> {
    type Extra = ShardCharges;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.until_ns() <= now.0
    }
}

/// Restored units leave up to one width later, because the sub-windows have other edges on another clock.
impl<const COUNTS: usize> PersistentEntry for SlidingWindowEntry<COUNTS> {
    fn encode_entry(&self, _: &ShardCharges, out: &mut Vec<u8>) {
        out.extend(self.until_ns().to_le_bytes());
        self.units.iter().for_each(|units| out.extend(units.to_le_bytes()));
    }

    fn decode_entry(
        bytes: &mut &[u8],
        shift: ClockShift,
        _: &mut ShardCharges,
    ) -> Option<SlidingWindowEntry<COUNTS>> {
        let until = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        let mut units = [0; COUNTS];
        for units in &mut units {
            *units = u32::from_le_bytes(take_bytes(bytes)?);
        }
        // More units than 32 bits hold were never admitted.
        let is_valid = units.iter().map(|&units| u64::from(units)).sum::<u64>() <= u32::MAX.into();
        let until = [until as u32, (until >> 32) as u32];
        is_valid.then_some(SlidingWindowEntry { until, units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<SlidingWindowEntry<11>>(), align_of::<SlidingWindowEntry<11>>()), (52, 4));
        assert_eq!(size_of::<SlidingWindowEntry<61>>(), 252);
    }
}
