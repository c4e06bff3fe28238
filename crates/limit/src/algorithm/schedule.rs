//! The interface between a bucket and its rate: how long units take, and how charges and refunds change the usage.

use super::open_charges::ShardCharges;
use super::rate::{ChargeMark, Level, TickRate};
use crate::Decision;
use crate::table::TableEntry;
use sluicegate_base::clock::Now;

/// The spacing of a key's units: even ([`TickRate`]), or slower while the key is cold
/// ([`WarmUpRate`](super::warm_up::WarmUpRate)).
pub(crate) trait Schedule: PartialEq + Clone {
    type Used: BucketUsage;
    /// The most time a unit takes, as a multiple of its time at the full rate.
    const SLOWEST: u64;

    fn tick_rate(&self) -> &TickRate;

    /// Ticks that the next `units` take if they come at `now`.
    fn next_ticks(&self, used: &Self::Used, now: Now, units: u64) -> u128;

    /// Ticks that the last `units` took.
    fn last_ticks(&self, used: &Self::Used, units: u64) -> u128;

    /// Takes `cost` units; also returns how many ticks they take.
    fn charge_usage(&self, used: &mut Self::Used, now: Now, cost: u64) -> (ChargeMark, u128);

    /// Gives back `cost` units that may have departed.
    fn refund_usage(&self, used: &mut Self::Used, cost: u64, since: ChargeMark);

    /// [`Schedule::refund_usage`] of units before which the TAT was at `tat_min` ticks, and stays there at least.
    fn refund_to_tat(&self, used: &mut Self::Used, cost: u64, tat_min: u128);

    /// Gives back `cost` units that took `span` and have not departed.
    fn withdraw_usage(&self, used: &mut Self::Used, cost: u64, span: u128);

    /// Forgets the usage as of `now`, which is not before the last charge.
    fn reset_usage(&self, used: &mut Self::Used, now: Now);

    /// Converts the usage beside the level from the schedule `before`, as of `now`; the level is not yet converted.
    fn convert_usage(&self, used: &mut Self::Used, before: &Self, now: Now);

    /// The decision on no further units of a bucket that is `depth` ticks deep at the full rate: one more unit fits as
    /// long as the backlog leaves room for one at that rate.
    fn remaining_units(&self, used: &Self::Used, now: Now, depth: u128, backlog: u128) -> Decision;
}

/// The usage of one key.
pub(crate) trait BucketUsage: TableEntry<Extra = ShardCharges> {
    fn level(&self) -> &Level;

    fn level_mut(&mut self) -> &mut Level;
}

/// The greatest number from `least` that holds, below `end`: `least` holds, and so does every number below one that
/// does.
pub(crate) fn greatest_where(least: u64, end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut greatest, mut end) = (least, end);
    while end - greatest > 1 {
        let middle = greatest + (end - greatest) / 2;
        match holds(middle) {
            true => greatest = middle,
            false => end = middle,
        }
    }
    greatest
}

// === impl TickRate ===

impl Schedule for TickRate {
    type Used = Level;
    const SLOWEST: u64 = 1;

    #[inline]
    fn tick_rate(&self) -> &TickRate {
        self
    }

    #[inline]
    fn next_ticks(&self, _: &Level, _: Now, units: u64) -> u128 {
        self.units_to_ticks(units)
    }

    #[inline]
    fn last_ticks(&self, _: &Level, units: u64) -> u128 {
        self.units_to_ticks(units)
    }

    #[inline]
    fn charge_usage(&self, level: &mut Level, now: Now, cost: u64) -> (ChargeMark, u128) {
        let span = match cost {
            1 => (self.unit_ns, self.unit_frac),
            _ => self.split_ticks(self.units_to_ticks(cost)),
        };
        (self.advance_tat(level, now, span), self.units_to_ticks(cost))
    }

    fn refund_usage(&self, level: &mut Level, cost: u64, since: ChargeMark) {
        let regained = self.regained_ticks(level, self.unit_ticks(), since);
        self.retreat_tat(level, cost, self.units_to_ticks(cost), regained);
    }

    fn refund_to_tat(&self, level: &mut Level, cost: u64, tat_min: u128) {
        let span = self.units_to_ticks(cost);
        let regained = (tat_min + span).saturating_sub(self.tat_ticks(level));
        self.retreat_tat(level, cost, span, regained);
    }

    fn withdraw_usage(&self, level: &mut Level, _: u64, span: u128) {
        let tat = self.tat_ticks(level).saturating_sub(span);
        self.set_tat(level, tat);
    }

    fn reset_usage(&self, level: &mut Level, now: Now) {
        self.set_backlog(level, now, 0);
    }

    fn convert_usage(&self, _: &mut Level, _: &TickRate, _: Now) {}

    #[inline]
    fn remaining_units(&self, _: &Level, _: Now, depth: u128, backlog: u128) -> Decision {
        TickRate::remaining_units(self, depth, backlog)
    }
}

// === impl Level ===

impl BucketUsage for Level {
    #[inline]
    fn level(&self) -> &Level {
        self
    }

    #[inline]
    fn level_mut(&mut self) -> &mut Level {
        self
    }
}
