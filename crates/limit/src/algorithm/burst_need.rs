//! The burst that a key needs so that a token bucket never rejects it: the largest level of its virtual queue.
//!
//! Without a rejection the bucket is the virtual queue of GCRA (ITU-T I.371, annex A.1): each unit takes T ticks, the
//! queue empties one tick per tick. A unit that finds b ticks in it is accepted by a bucket of B units exactly when
//! b ≤ (B − 1)·T, which is the decision of [`super::token_bucket`]; so the smallest burst is ⌈max b / T⌉ + 1.

use super::rate::TickRate;
use sluicegate_model::Rate;

/// A rate, in the arithmetic of token buckets.
#[derive(Debug, Clone, Copy)]
pub struct NeedRate(TickRate);

/// The virtual queue of one key at one rate: 20 bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed(4))]
pub struct BurstNeed {
    /// The moment at which the queue is empty, ns, and the ticks beyond.
    empty_ns: u64,
    empty_frac: u32,
    /// The most ticks that a unit has found in it.
    found_max: u64,
}

impl NeedRate {
    /// Converts `rate` into ticks.
    pub fn new(rate: Rate) -> NeedRate {
        NeedRate(TickRate::new(rate))
    }
}

impl BurstNeed {
    /// Adds a unit that arrives at `now_ns`; the moments must not go back.
    #[inline]
    pub fn add_unit(&mut self, NeedRate(rate): &NeedRate, now_ns: u64) {
        let found = match self.empty_ns.checked_sub(now_ns) {
            Some(ahead) => rate.ns_to_ticks(ahead) + u128::from(self.empty_frac),
            None => {
                (self.empty_ns, self.empty_frac) = (now_ns, 0);
                0
            }
        };
        self.found_max = self.found_max.max(u64::try_from(found).unwrap_or(u64::MAX));
        let (ns, frac) = rate.split_ticks(u128::from(self.empty_frac) + u128::from(rate.unit_ticks()));
        (self.empty_ns, self.empty_frac) = (self.empty_ns.saturating_add(ns), frac);
    }

    /// The smallest burst that rejects none of its units.
    pub fn burst(&self, NeedRate(rate): &NeedRate) -> u64 {
        { self.found_max }.div_ceil(rate.unit_ticks()) + 1
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;

    fn rate(units: u64, seconds: u64) -> NeedRate {
        let units = NonZeroU64::new(units).unwrap();
        NeedRate::new(Rate::new(units, Duration::from_secs(seconds)))
    }

    fn need(rate: &NeedRate, arrivals: &[u64]) -> u64 {
        let mut need = BurstNeed::default();
        for at in arrivals {
            need.add_unit(rate, *at);
        }
        need.burst(rate)
    }

    #[test]
    fn the_burst_is_the_largest_level() {
        let ms = 1_000_000;
        let start = 1_800_000_000_000 * ms;
        let rate = rate(10, 1);
        assert_eq!(need(&rate, &[start]), 1);
        assert_eq!(need(&rate, &[start; 20]), 20);
        assert_eq!(need(&rate, &[start, start + 100 * ms, start + 200 * ms]), 1, "exactly at the rate");
        assert_eq!(need(&rate, &[start, start + 100 * ms - 1]), 2, "a nanosecond too early");
        let two_volleys = [[start; 5], [start + 200 * ms; 5]].concat();
        assert_eq!(need(&rate, &two_volleys), 8);
        assert_eq!(size_of::<BurstNeed>(), 20);
    }

    #[test]
    fn a_rate_without_whole_nanoseconds_does_not_drift() {
        // 3/s: a unit takes 333,333,333 and a third ns.
        let (start, third) = (1_800_000_000 * 1_000_000_000_u64, rate(3, 1));
        let on_time: Vec<u64> = (0..3_000_u64).map(|n| start + n * 333_333_334).collect();
        assert_eq!(need(&third, &on_time), 1);
        let early: Vec<u64> = (0..3_000_u64).map(|n| start + n * 1_000_000_000 / 3).collect();
        assert_eq!(need(&third, &early), 2);
    }
}
