//! fixed_window: N units per window; up to 2N may pass around the edge of two windows.
//!
//! Units beyond N carry into the next window, which begins at once.

use std::task::Waker;

use super::meter::{Locked, MeterSpec};
use super::open_charges::{OpenUnits, ShardCharges};
use super::settle::{ForcedUnits, GivenBack, SettleParams};
use super::window_quota::{WindowParams, WindowQuota};
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry, TableParams};
use crate::{ChargeMark, Decision};
use sluicegate_base::clock::{self, ClockShift, Now};
use sluicegate_model::{Rate, WindowAlign};

pub(crate) struct FixedWindowParams {
    quota: WindowQuota,
    align: WindowAlign,
}

/// The newest window of one key: 16 bytes, packed so that a cell of the table is 28.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(crate) struct FixedWindowEntry {
    /// The end of the window, ns.
    ends: u64,
    /// Units charged in the window; one without any has not begun.
    used: u64,
}

// === impl FixedWindowParams ===

impl FixedWindowParams {
    pub(crate) fn new(
        rate: Rate,
        align: WindowAlign,
        spec: &MeterSpec<'_, FixedWindowParams>,
    ) -> FixedWindowParams {
        FixedWindowParams { quota: WindowQuota::new(rate, u64::MAX, spec, |before| &before.quota), align }
    }

    /// Carries the debt of a window that is over into the next.
    #[inline]
    fn carry_window(&self, window: &mut FixedWindowEntry, now: Now) {
        // At most a whole limit, so nothing carries into a third window.
        if self.quota.debt(window.used) > 0 && window.ends <= now.0 {
            *window = self.next_window(window);
        }
    }

    /// The window after one with debt.
    fn next_window(&self, window: &FixedWindowEntry) -> FixedWindowEntry {
        let ends = self.window_end(*window, Now(window.ends), clock::unix_at_zero());
        FixedWindowEntry { ends, used: self.quota.debt(window.used) }
    }

    /// Nanoseconds until `cost` units fit; the window ends in `left_ns`.
    #[inline]
    fn wait_ns(&self, window: &FixedWindowEntry, cost: u64, left_ns: u64, now: Now) -> u64 {
        match cost.saturating_add(self.quota.debt(window.used)) > self.quota.max {
            true if left_ns > 0 => self.next_window(window).ends.saturating_sub(now.0),
            _ => left_ns,
        }
    }

    /// Begins a window unless one is running.
    #[inline]
    fn begin_window(&self, window: &mut FixedWindowEntry, now: Now) {
        if !window.is_running(now) {
            *window =
                FixedWindowEntry { ends: self.window_end(*window, now, clock::unix_at_zero()), used: 0 };
        }
    }

    fn window_end(&self, before: FixedWindowEntry, now: Now, unix_at_zero: u64) -> u64 {
        window_end(self.quota.period, self.align, before.ends, now, unix_at_zero)
    }
}

/// The end of a window that begins `now`, after one that ended or ends at `before`. It is kept, so a correction of the
/// system's clock moves later windows only, and makes none of them shorter than half a period.
#[cold]
pub(crate) fn window_end(period: u64, align: WindowAlign, before: u64, now: Now, unix_at_zero: u64) -> u64 {
    if align == WindowAlign::First {
        return now.0.saturating_add(period);
    }
    if now.0 < before {
        return before;
    }
    let into = (u128::from(now.0) + u128::from(unix_at_zero)) % u128::from(period);
    let end = now.0.saturating_add(period - into as u64);
    if before > 0 && end.saturating_sub(before) < period / 2 {
        return end.saturating_add(period);
    }
    end
}

impl TableParams<FixedWindowEntry> for FixedWindowParams {
    fn is_idle(&self, window: &FixedWindowEntry, now: Now) -> bool {
        let mut window = *window;
        self.carry_window(&mut window, now);
        window.is_idle(now)
    }

    /// Carries the running count into a window of a new period that begins now. A debt stays, and a lower limit makes
    /// none of the units used within the earlier one.
    fn convert_entry(
        &self,
        (window, charges): Locked<'_, Self>,
        before: &FixedWindowParams,
        now: Now,
        _: &mut Vec<Waker>,
    ) {
        before.carry_window(window, now);
        // Nothing of a window that is over becomes debt because the limit is lower now.
        window.used = match window.is_running(now) {
            true => self.quota.convert_used(window.used, &before.quota, charges),
            false => 0,
        };
        if self.quota.period == before.quota.period {
            return;
        }
        let used = if window.is_running(now) { window.used } else { 0 };
        let ends = self.window_end(FixedWindowEntry::default(), now, clock::unix_at_zero());
        *window = if used > 0 { FixedWindowEntry { ends, used } } else { FixedWindowEntry::default() };
    }
}

impl WindowParams for FixedWindowParams {
    type Entry = FixedWindowEntry;

    #[inline]
    fn quota(&self) -> &WindowQuota {
        &self.quota
    }

    #[inline]
    fn carry_debt(&self, (window, _): Locked<'_, Self>, now: Now) {
        self.carry_window(window, now);
    }

    #[inline]
    fn take_units(&self, (window, _): Locked<'_, Self>, cost: u64, now: Now, _: bool) -> Option<ChargeMark> {
        let used = if window.is_running(now) { window.used } else { 0 };
        if cost > self.quota.max.saturating_sub(used) {
            return None;
        }
        self.begin_window(window, now);
        window.used = { window.used }.saturating_add(cost);
        Some(ChargeMark::at_moment(window.ends))
    }

    #[inline]
    fn build_decision(&self, (window, _): &Locked<'_, Self>, cost: u64, now: Now) -> Decision {
        let (used, left_ns) = match window.is_running(now) {
            true => (window.used, { window.ends }.saturating_sub(now.0)),
            false => (0, 0),
        };
        let full_ns = if used == 0 { 0 } else { left_ns };
        self.quota.decide(used, cost, full_ns, |cost| self.wait_ns(window, cost, left_ns, now))
    }

    /// Its end stays: with `align: clock` the next charge belongs to the same window.
    fn forget_units(&self, (window, _): Locked<'_, Self>) {
        window.used = 0;
    }
}

impl SettleParams for FixedWindowParams {
    fn give_back(&self, (window, _): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        if window.ends == given.charge.since.at_ns() {
            window.used = { window.used }.saturating_sub(given.units);
        }
    }

    fn credit_units(&self, (window, _): Locked<'_, Self>, _: &CounterKey, units: u64, now: Now) {
        if window.is_running(now) {
            window.used = { window.used }.saturating_sub(units);
        }
    }

    /// Only the newest window counts, so a charge that still counts is in it.
    fn force_units(&self, (window, _): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        self.begin_window(window, now);
        let taken = forced.units.min(self.quota.units_max().saturating_sub(window.used));
        window.used += taken;
        forced.units - taken
    }

    fn keep_open_units(&self, (window, _): Locked<'_, Self>, _: &CounterKey, open: &[OpenUnits], _: Now) {
        let ends = window.ends;
        let counts = open.iter().filter(|open| open.at_ns.is_none_or(|at_ns| at_ns == ends));
        let kept = counts.fold(0, |sum: u64, open| sum.saturating_add(open.units));
        window.used = { window.used }.min(kept);
    }
}

// === impl FixedWindowEntry ===

impl FixedWindowEntry {
    #[inline]
    fn is_running(&self, now: Now) -> bool {
        self.used > 0 && now.0 < self.ends
    }
}

impl TableEntry for FixedWindowEntry {
    type Extra = ShardCharges;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        !self.is_running(now)
    }
}

impl PersistentEntry for FixedWindowEntry {
    fn encode_entry(&self, _: &ShardCharges, out: &mut Vec<u8>) {
        out.extend({ self.ends }.to_le_bytes());
        out.extend({ self.used }.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, _: &mut ShardCharges) -> Option<FixedWindowEntry> {
        let ends = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        Some(FixedWindowEntry { ends, used: u64::from_le_bytes(take_bytes(bytes)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::meter::SettleTerms;

    const SECOND: u64 = 1_000_000_000;

    fn minutes() -> FixedWindowParams {
        let settle_terms = SettleTerms::default();
        let quota = WindowQuota { max: 1, period: 60 * SECOND, epoch: 0, settle_terms };
        FixedWindowParams { quota, align: WindowAlign::Clock }
    }

    /// The end of the window after one that ended at 600 s, if the time of day was moved by `shift` meanwhile.
    fn end_after(shift: i64, now: u64) -> u64 {
        let zero = 1_700_000_040 * SECOND;
        let zero = zero.checked_add_signed(shift * SECOND as i64).unwrap();
        let before = FixedWindowEntry { ends: 600 * SECOND, used: 1 };
        minutes().window_end(before, Now(now * SECOND), zero) / SECOND
    }

    #[test]
    fn a_correction_of_the_time_of_day_moves_later_windows_only() {
        assert_eq!((end_after(0, 600), end_after(0, 659), end_after(0, 660)), (660, 660, 720));
        assert_eq!((end_after(1, 600), end_after(-1, 600)), (659, 661), "a little shorter or longer");
        assert_eq!((end_after(29, 600), end_after(31, 600)), (631, 689), "never less than half a period");
        assert_eq!(end_after(3600, 600), 660, "the same minute");
        assert_eq!(end_after(-7, 10_000), 10_027, "long after, the new time alone counts");
    }

    #[test]
    fn a_refunded_window_begins_again_as_it_was() {
        let before = FixedWindowEntry { ends: 600 * SECOND, used: 0 };
        assert_eq!(minutes().window_end(before, Now(570 * SECOND), 7 * SECOND), 600 * SECOND);
    }

    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<FixedWindowEntry>(), align_of::<FixedWindowEntry>()), (16, 4));
    }
}
