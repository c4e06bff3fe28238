//! The arithmetic of windows with shares, on plain numbers: in memory with nanoseconds, for the store with
//! microseconds.

use smallvec::{SmallVec, smallvec};

use crate::{Decision, LimitOutcome};
use sluicegate_model::Shares;

/// The numbers of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowTerms {
    /// The width of a sub-window; a fixed window has one, and one that slides has one more than its period holds.
    pub width: u64,
    /// The number of sub-windows that are counted.
    pub slots: usize,
    /// The units that each class has for itself, and the most that it may use.
    pub parts: Box<[(u64, u64)]>,
    /// The units that no class has for itself.
    pub common: u64,
}

/// The used units of each class.
pub type UsedUnits = SmallVec<[u64; 4]>;

// === impl WindowTerms ===

impl WindowTerms {
    /// The terms of a window of `max` units with these sub-windows.
    pub fn new(max: u64, (width, slots): (u64, usize), shares: &Shares) -> WindowTerms {
        let part = |class: &sluicegate_model::ShareClass| (class.least_of(max), class.most_of(max));
        let parts: Box<[(u64, u64)]> = shares.classes.iter().map(part).collect();
        let common = max - parts.iter().map(|(own, _)| own).sum::<u64>();
        WindowTerms { width, slots, parts, common }
    }

    /// The number of sub-windows that have not left at `now`; the newest one leaves at `until`.
    #[inline]
    pub fn live_windows(&self, until: u64, now: u64) -> usize {
        let left = until.saturating_sub(now).div_ceil(self.width);
        usize::try_from(left).unwrap_or(self.slots).min(self.slots)
    }

    /// The units that each class has used in the newest `live` sub-windows.
    pub fn used_units(&self, counts: &[u64], live: usize) -> UsedUnits {
        let mut used: UsedUnits = smallvec![0; self.parts.len()];
        for window in counts.chunks_exact(self.parts.len()).take(live) {
            used.iter_mut().zip(window).for_each(|(sum, units)| *sum = sum.saturating_add(*units));
        }
        used
    }

    /// Makes the sub-window of `now` the newest, where those that have left are empty; returns when it leaves.
    pub fn slide(&self, until: u64, counts: &mut [u64], now: u64, period: u64) -> u64 {
        let last = u64::MAX - period - 2 * self.width;
        let newest = (now.min(last) / self.width + 1) * self.width + period;
        let Some(later) = newest.checked_sub(until).filter(|later| *later > 0) else { return until };
        let shift = usize::try_from(later / self.width).unwrap_or(self.slots).min(self.slots);
        counts.rotate_right(shift * self.parts.len());
        counts[..shift * self.parts.len()].fill(0);
        newest
    }

    /// Moves used units of the last class that neither its part nor the common one holds to the parts of the others, so
    /// that no more than the whole is admitted.
    pub(super) fn fill_parts(&self, used: &mut [u64]) {
        let beyond = used.iter().zip(&self.parts).map(|(used, part)| used.saturating_sub(part.0));
        let mut excess = beyond.fold(0_u64, u64::saturating_add).saturating_sub(self.common);
        let last = self.parts.len() - 1;
        for class in 0..last {
            let moved = self.parts[class].0.saturating_sub(used[class]).min(excess).min(used[last]);
            (used[class], used[last], excess) = (used[class] + moved, used[last] - moved, excess - moved);
        }
    }

    /// The units that a class can still use.
    pub fn room(&self, used: &[u64], class: usize) -> u64 {
        let beyond = |(used, part): (&u64, &(u64, u64))| used.saturating_sub(part.0);
        let (own, most) = self.parts[class];
        let of_others = used.iter().zip(&self.parts).enumerate().filter(|(index, _)| *index != class);
        let of_others = of_others.fold(0_u64, |sum, (_, one)| sum.saturating_add(beyond(one)));
        own.saturating_add(self.common.saturating_sub(of_others)).min(most).saturating_sub(used[class])
    }

    /// The greatest cost of a class that can ever be accepted.
    pub fn max_units(&self, class: usize) -> u64 {
        let (own, most) = self.parts[class];
        own.saturating_add(self.common).min(most)
    }

    /// The decision, with times in moments, on `cost` more units of a class, where these units are used.
    pub fn build_decision(
        &self,
        (until, counts): (u64, &[u64]),
        class: usize,
        cost: u64,
        now: u64,
    ) -> Decision {
        let live = self.live_windows(until, now);
        let leaves_in = |age: usize| until.saturating_sub(age as u64 * self.width).saturating_sub(now);
        let used = self.used_units(counts, live);
        let wait_for = |cost: u64| {
            let mut left = used.clone();
            let windows = counts.chunks_exact(self.parts.len()).take(live).enumerate();
            let mut fits_without = |window: &[u64]| {
                left.iter_mut().zip(window).for_each(|(sum, units)| *sum = sum.saturating_sub(*units));
                cost <= self.room(&left, class)
            };
            let found = windows.rev().find(|(_, window)| fits_without(window));
            found.map_or(u64::MAX, |(age, _)| leaves_in(age))
        };
        let remaining = self.room(&used, class);
        let newest = counts.iter().take(live * self.parts.len()).position(|units| *units > 0);
        let full_ns = newest.map_or(0, |index| leaves_in(index / self.parts.len()));
        let (outcome, retry_after_ns) = match cost <= remaining {
            true => (LimitOutcome::Admit, 0),
            false => (LimitOutcome::Reject, wait_for(cost)),
        };
        let reset_ns = if remaining == 0 { wait_for(1) } else { 0 };
        Decision { remaining, reset_ns, retry_after_ns, full_ns, ..Decision::without_numbers(outcome) }
    }
}
