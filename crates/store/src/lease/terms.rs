//! The numbers by which the leases of a limit are judged.

use crate::script::rule_shape::RuleShape;
use sluicegate_model::WindowAlign;

/// One part of a limit in so many may be in the hands of gateways; `check` knows it, too.
pub(super) const LEASED_PART: u64 = 5;
/// The longest term of a lease among gateways of one zone, in microseconds.
const TERM_MAX_US: u64 = 250_000;
/// The shortest term that is worth a lease, in microseconds.
const TERM_MIN_US: u64 = 10_000;
/// A sub-window is at least so many terms long.
const TERMS_OF_WINDOW: u64 = 4;
/// The store counts a lease for at least so many microseconds beyond its end.
const GUARD_MIN_US: u64 = 50_000;
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
    /// Units count in windows, and come back when these leave; of a bucket `None`.
    pub(crate) windows: Option<LeaseWindows>,
}

/// The windows of a limit. A lease ends with the window in which it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseWindows {
    /// The length of one, in microseconds.
    pub(crate) width: u64,
    /// The windows before the present one that count.
    pub(crate) earlier: u64,
    /// They begin at multiples of their length, else with the first request of each.
    pub(crate) is_aligned: bool,
}

// === impl LeaseTerms ===

impl LeaseTerms {
    /// The terms of a rate; `None` if leases of it would be too short or too small to be worth a call.
    pub(crate) fn new(shape: RuleShape) -> Option<LeaseTerms> {
        match shape {
            RuleShape::TokenBucket { num, unit, burst } => LeaseTerms::of_bucket(num, unit, burst),
            RuleShape::FixedWindow { max, period, align } => {
                let is_aligned = align == WindowAlign::Clock;
                let windows = LeaseWindows { width: period, earlier: 0, is_aligned };
                LeaseTerms::of_depth(0, (1, max), period / LEASED_PART, Some(windows))
            }
            RuleShape::SlidingWindow { max, buckets, .. } => {
                let width = shape.bucket_width();
                let windows = LeaseWindows { width, earlier: buckets.max(1).into(), is_aligned: true };
                LeaseTerms::of_depth(0, (1, max), width / TERMS_OF_WINDOW, Some(windows))
            }
            _ => None,
        }
    }

    fn of_bucket(num: u64, unit: u64, burst: u64) -> Option<LeaseTerms> {
        let depth = unit.checked_mul(burst).filter(|depth| *depth <= DEPTH_MAX)?;
        let mut scale = 1;
        while depth * scale * 2 <= DEPTH_MAX && num.saturating_mul(scale * 2) <= RATE_MAX {
            scale *= 2;
        }
        let (rate, unit, depth) = (num.checked_mul(scale)?, unit * scale, depth * scale);
        LeaseTerms::of_depth(rate, (unit, depth), depth / LEASED_PART / rate, None)
    }

    /// Windows have no rate.
    fn of_depth(
        rate: u64,
        (unit, depth): (u64, u64),
        term: u64,
        windows: Option<LeaseWindows>,
    ) -> Option<LeaseTerms> {
        let (leased_max, term) = (depth / LEASED_PART, term.min(TERM_MAX_US));
        if term < TERM_MIN_US || leased_max < 2 * unit || depth / unit > UNITS_MAX {
            return None;
        }
        let terms = LeaseTerms { rate, unit, depth, leased_max, term, hold: 0, guard: 0, windows };
        Some(terms.with_hold())
    }

    /// The same with the times that follow from the term.
    pub(super) fn with_hold(self) -> LeaseTerms {
        let hold = 3 * self.term;
        LeaseTerms { hold, guard: (hold / 4).max(GUARD_MIN_US), ..self }
    }

    /// All numbers, for comparison.
    pub(crate) fn to_numbers(self) -> [u64; 10] {
        let LeaseTerms { rate, unit, depth, leased_max, term, hold, guard, windows } = self;
        let (width, earlier, is_aligned) =
            windows.map_or((0, 0, 0), |of| (of.width, of.earlier, of.is_aligned.into()));
        [rate, unit, depth, leased_max, term, hold, guard, width, earlier, is_aligned]
    }

    /// Microseconds until a bucket that regains `rate` has `lacking` more ticks.
    pub(super) fn wait_for(lacking: u64, rate: u64) -> u64 {
        lacking.div_ceil(rate.max(1))
    }
}
