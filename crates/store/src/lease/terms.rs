//! The numbers by which the leases of a limit are judged.

use crate::script::rule_shape::RuleShape;

/// One part of a limit in so many may be in the hands of gateways; `check` knows it, too.
const LEASED_PART: u64 = 5;
/// The longest term of a lease among gateways of one zone, in microseconds.
const TERM_MAX_US: u64 = 250_000;
/// The shortest term that is worth a lease, in microseconds.
const TERM_MIN_US: u64 = 10_000;
/// Ticks of a full bucket at most: so many, and thrice their number, are exact in a double.
const DEPTH_MAX: u64 = 1 << 50;
/// Units of a full bucket at most.
const UNITS_MAX: u64 = u32::MAX as u64;
/// Ticks per microsecond at most.
const RATE_MAX: u64 = 1 << 32;

/// The terms of all leases of one rate. Times are in microseconds. Amounts are in ticks: one unit is `unit` ticks, and
/// the bucket regains `rate` ticks per microsecond, so that parts of a rate are whole numbers, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseTerms {
    /// Ticks per microsecond.
    pub(crate) rate: u64,
    pub(crate) unit: u64,
    /// Ticks of a full bucket.
    pub(crate) depth: u64,
    /// The most ticks that gateways may hold together.
    pub(crate) leased_max: u64,
    /// The time for which a gateway asks in advance.
    pub(crate) term: u64,
    /// The time after which a lease ends, from the moment of its question.
    pub(crate) hold: u64,
    /// The time for which the store counts a lease beyond its end.
    pub(crate) guard: u64,
}

// === impl LeaseTerms ===

impl LeaseTerms {
    /// The terms of a rate; `None` if leases of it would be too short or too small to be worth a call.
    pub(crate) fn new(shape: RuleShape) -> Option<LeaseTerms> {
        let RuleShape::TokenBucket { num, unit, burst } = shape else { return None };
        let depth = unit.checked_mul(burst).filter(|depth| *depth <= DEPTH_MAX && burst <= UNITS_MAX)?;
        let mut scale = 1;
        while depth * scale * 2 <= DEPTH_MAX && num.saturating_mul(scale * 2) <= RATE_MAX {
            scale *= 2;
        }
        let (rate, unit, depth) = (num.checked_mul(scale)?, unit * scale, depth * scale);
        let leased_max = depth / LEASED_PART;
        let term = (leased_max / rate).min(TERM_MAX_US);
        if term < TERM_MIN_US || leased_max < 2 * unit {
            return None;
        }
        Some(LeaseTerms { rate, unit, depth, leased_max, term, hold: 3 * term, guard: guard_of(3 * term) })
    }

    /// All numbers, for comparison.
    pub(crate) fn to_numbers(self) -> [u64; 7] {
        let LeaseTerms { rate, unit, depth, leased_max, term, hold, guard } = self;
        [rate, unit, depth, leased_max, term, hold, guard]
    }

    /// Microseconds in which the rate brings so many units.
    pub(crate) fn us_for(&self, units: u64) -> u64 {
        LeaseTerms::wait_for(units.saturating_mul(self.unit), self.rate)
    }

    /// Microseconds until a bucket that regains `rate` has `lacking` more ticks.
    pub(super) fn wait_for(lacking: u64, rate: u64) -> u64 {
        lacking.div_ceil(rate.max(1))
    }
}

fn guard_of(hold: u64) -> u64 {
    (hold / 4).max(50_000)
}
