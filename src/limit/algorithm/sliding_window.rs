//! sliding_window: never more than N in any window, in constant memory.
//!
//! Time is cut into sub-windows of width w = ⌈period/buckets⌉, and what is charged in one counts until a period
//! after its end. So nothing leaves too early, and nothing more than w too late. `buckets` + 1 counts are enough:
//! older ones have left.

use std::sync::Arc;
use std::task::Waker;

use super::queue::NONE;
use super::rate::Since;
use crate::base::clock::{Now, Shift};
use crate::config::Rate;
use crate::limit::algorithm::table_spec::Make;
use crate::limit::table::saved::{Saved, take};
use crate::limit::table::{Entry, Key, Numbers, Table};
use crate::limit::{Charge, Decision, Epoch, Outcome, Units, period_ns};

/// One rate of a sliding window with its counters, of at most `SLOTS` − 1 sub-windows.
pub(crate) struct SlidingWindow<const SLOTS: usize> {
    numbers: Arc<Grid>,
    pub(crate) table: Arc<Table<Counts<SLOTS>, Grid>>,
}

/// The numbers beside the counts.
pub(crate) struct Grid {
    max: u64,
    period: u64,
    width: u64,
    /// Later moments count as this one, so that no sum overflows.
    last: u64,
    epoch: Epoch,
}

/// What one key was charged, newest sub-window first. A slot of the table with 11 counts is 64 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts<const SLOTS: usize> {
    /// When `units[0]` leaves, ns; `units[age]` leaves `age` widths earlier. In halves, for the alignment.
    until: [u32; 2],
    units: [u32; SLOTS],
}

// === impl SlidingWindow ===

impl<const SLOTS: usize> SlidingWindow<SLOTS> {
    pub(crate) fn new(
        rate: Rate,
        buckets: u8,
        make: &Make<'_, SlidingWindow<SLOTS>>,
    ) -> SlidingWindow<SLOTS> {
        let period = period_ns(rate);
        let width = period.div_ceil(u64::from(buckets).clamp(1, SLOTS as u64 - 1));
        let max = rate.units.get().min(u32::MAX.into());
        let epoch = make.epoch(|before| (before.numbers.epoch, before.numbers.period == period));
        let numbers = Arc::new(Grid { max, period, width, last: u64::MAX - period - 2 * width, epoch });
        let table = make.table(&numbers, |before| &before.table);
        SlidingWindow { numbers, table }
    }

    pub(crate) fn apply(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.convert(&self.numbers, keys_max, clock);
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.numbers.max
    }

    /// Judges units and takes them if they fit.
    #[inline]
    pub(crate) fn charge(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let cost = units.cost;
        self.table.update(&units.key, now, |counts, (), grid, shared| {
            if counts.sum(grid.live(counts, now)).saturating_add(cost) > grid.max {
                return (grid.decision(counts, cost, now), None);
            }
            grid.advance(counts, now);
            // Cannot overflow: a sum of at most `max`, which is 32 bits wide.
            counts.units[0] += cost as u32;
            let (since, epoch) = (Since::at(counts.until()), grid.epoch);
            let charge = Charge { since, node: NONE, shared, displaces: false, epoch };
            (grid.decision(counts, 0, now), Some(charge))
        })
    }

    /// Judges units and takes nothing.
    pub(crate) fn peek(&self, units: &Units, now: Now) -> Decision {
        self.table.peek(&units.key, |counts, (), grid| grid.decision(counts, units.cost, now))
    }

    /// Gives a charge back; one that has left already changes nothing any more.
    pub(crate) fn refund(&self, key: &Key, cost: u64, charge: &Charge, _: impl FnOnce() -> Now) {
        self.table.revisit(key, charge.shared, |counts, (), grid| {
            let later = counts.until().checked_sub(charge.since.at_ns());
            let Some(later) = later.filter(|_| charge.epoch == grid.epoch) else { return };
            let age = usize::try_from(later / grid.width).unwrap_or(SLOTS);
            let Some(units) = counts.units.get_mut(age) else { return };
            *units = units.saturating_sub(cost.min(u32::MAX.into()) as u32);
            if counts.sum(SLOTS) == 0 {
                *counts = Counts::default();
            }
        });
    }
}

// === impl Grid ===

impl Grid {
    /// How many sub-windows have not left.
    #[inline]
    fn live<const SLOTS: usize>(&self, counts: &Counts<SLOTS>, now: Now) -> usize {
        let left = counts.until().saturating_sub(now.0).div_ceil(self.width);
        usize::try_from(left).unwrap_or(SLOTS).min(SLOTS)
    }

    /// Makes the sub-window of `now` the newest, unless a newer one is there, and forgets those that have left.
    #[inline]
    fn advance<const SLOTS: usize>(&self, counts: &mut Counts<SLOTS>, now: Now) {
        let live = self.live(counts, now);
        counts.units[live..].fill(0);
        let until = (now.0.min(self.last) / self.width + 1) * self.width + self.period;
        let Some(later) = until.checked_sub(counts.until()).filter(|later| *later > 0) else { return };
        let shift = usize::try_from(later / self.width).unwrap_or(SLOTS).min(SLOTS);
        counts.units.copy_within(..SLOTS - shift, shift);
        counts.units[..shift].fill(0);
        counts.until = [until as u32, (until >> 32) as u32];
    }

    #[inline]
    fn decision<const SLOTS: usize>(&self, counts: &Counts<SLOTS>, cost: u64, now: Now) -> Decision {
        let live = self.live(counts, now);
        let remaining = self.max.saturating_sub(counts.sum(live));
        let (outcome, retry_after_ns) = match cost.checked_sub(remaining) {
            None | Some(0) => (Outcome::Admit, 0),
            Some(missing) => (Outcome::Reject, self.wait(counts, live, missing, now)),
        };
        let reset_ns = if remaining == 0 { self.wait(counts, live, 1, now) } else { 0 };
        Decision { outcome, remaining, reset_ns, retry_after_ns, wait_ns: 0 }
    }

    /// Nanoseconds until `missing` more units have left than now.
    fn wait<const SLOTS: usize>(&self, counts: &Counts<SLOTS>, live: usize, missing: u64, now: Now) -> u64 {
        let mut left = 0;
        let age = (1..live).rev().find(|&age| {
            left += u64::from(counts.units[age]);
            left >= missing
        });
        counts.until().saturating_sub(age.unwrap_or(0) as u64 * self.width).saturating_sub(now.0)
    }
}

impl<const SLOTS: usize> Numbers<Counts<SLOTS>> for Grid {
    /// Of another period: what counts now counts as charged now.
    fn convert(&self, counts: &mut Counts<SLOTS>, (): &mut (), before: &Grid, now: Now, _: &mut Vec<Waker>) {
        if (self.period, self.width) == (before.period, before.width) {
            return;
        }
        let used = counts.sum(before.live(counts, now));
        *counts = Counts::default();
        if used > 0 {
            self.advance(counts, now);
            // Never more were admitted than 32 bits hold.
            counts.units[0] = used.min(u32::MAX.into()) as u32;
        }
    }
}

// === impl Counts ===

impl<const SLOTS: usize> Counts<SLOTS> {
    #[inline]
    fn until(&self) -> u64 {
        u64::from(self.until[0]) | u64::from(self.until[1]) << 32
    }

    #[inline]
    fn sum(&self, live: usize) -> u64 {
        self.units[..live].iter().map(|&units| u64::from(units)).sum()
    }
}

impl<const SLOTS: usize> Default for Counts<SLOTS> {
    fn default() -> Counts<SLOTS> {
        Counts { until: [0; 2], units: [0; SLOTS] }
    }
}

impl<const SLOTS: usize> Entry for Counts<SLOTS> {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.until() <= now.0
    }

    fn inherit(&self) -> Option<Counts<SLOTS>> {
        Some(*self)
    }
}

/// On another clock the sub-windows have other edges: what comes back leaves up to one width later than it would.
impl<const SLOTS: usize> Saved for Counts<SLOTS> {
    fn encode(&self, (): &(), out: &mut Vec<u8>) {
        out.extend(self.until().to_le_bytes());
        self.units.iter().for_each(|units| out.extend(units.to_le_bytes()));
    }

    fn decode(mut bytes: &[u8], shift: Shift, (): &mut ()) -> Option<Counts<SLOTS>> {
        let until = shift.moment(u64::from_le_bytes(take(&mut bytes)?));
        let mut units = [0; SLOTS];
        for units in &mut units {
            *units = u32::from_le_bytes(take(&mut bytes)?);
        }
        // More units than 32 bits hold were never admitted.
        let sound = units.iter().map(|&units| u64::from(units)).sum::<u64>() <= u32::MAX.into();
        let until = [until as u32, (until >> 32) as u32];
        (bytes.is_empty() && sound).then_some(Counts { until, units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_small() {
        assert_eq!((size_of::<Counts<11>>(), align_of::<Counts<11>>()), (52, 4));
        assert_eq!(size_of::<Counts<61>>(), 252);
    }
}
