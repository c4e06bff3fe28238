//! The algorithms of rates, as the script counts by them.

use sluicegate_model::WindowAlign;

/// An algorithm with its numbers. Times are in microseconds; a tick of a bucket is 1/`num` of one, and `unit` ticks
/// make a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleShape {
    TokenBucket {
        num: u64,
        unit: u64,
        burst: u64,
    },
    LeakyBucket {
        num: u64,
        unit: u64,
        queue: QueueTicks,
    },
    FixedWindow {
        max: u64,
        period: u64,
        align: WindowAlign,
    },
    /// `max`: the units below the last step; `longest`: the longest window of the unit.
    Calendar {
        max: u64,
        longest: u64,
    },
    SlidingWindow {
        max: u64,
        period: u64,
        buckets: u8,
    },
    SlidingLog {
        max: u64,
        period: u64,
    },
    Concurrency {
        max: u64,
    },
}

/// Bounds on the departures of a leaky bucket, in ticks ahead of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueTicks {
    /// Ticks by which `burst` − 1 units may run ahead of the clock.
    pub ahead: u64,
    pub wait_max: u64,
    /// The level at which not one more unit is accepted.
    pub depth: u64,
    /// Units: `burst` and queue together.
    pub capacity: u64,
}

/// The length of an entry is encoded in 6 bits, as words beyond this minimum.
pub(super) const WORDS_LEAST: u32 = 4;

// === impl RuleShape ===

impl RuleShape {
    /// The number of the algorithm.
    pub(crate) fn algorithm_code(self) -> u8 {
        match self {
            RuleShape::TokenBucket { .. } => 0,
            RuleShape::LeakyBucket { .. } => 1,
            RuleShape::FixedWindow { .. } => 2,
            RuleShape::SlidingWindow { .. } => 3,
            RuleShape::SlidingLog { .. } => 4,
            RuleShape::Concurrency { .. } => 5,
            RuleShape::Calendar { .. } => 6,
        }
    }

    /// The length of an entry's payload, in words.
    pub(super) fn entry_words(self) -> u32 {
        match self {
            RuleShape::SlidingWindow { .. } => 2 + self.window_counts() as u32,
            RuleShape::TokenBucket { .. } | RuleShape::LeakyBucket { .. } => WORDS_LEAST + 1,
            RuleShape::FixedWindow { .. } => WORDS_LEAST,
            // These have no entry.
            RuleShape::SlidingLog { .. } | RuleShape::Concurrency { .. } | RuleShape::Calendar { .. } => {
                WORDS_LEAST
            }
        }
    }

    /// The ticks of a bucket per microsecond and per unit; `None` for algorithms that count units.
    pub(super) fn ticks(self) -> Option<(u64, u64)> {
        match self {
            RuleShape::TokenBucket { num, unit, .. } | RuleShape::LeakyBucket { num, unit, .. } => {
                Some((num, unit))
            }
            _ => None,
        }
    }

    /// The part of a counter that a unit takes: ticks of a bucket.
    pub(super) fn unit(self) -> u64 {
        self.ticks().map_or(1, |(_, unit)| unit)
    }

    pub(crate) fn scale_units(self, units: u64) -> u64 {
        units.saturating_mul(self.unit())
    }

    /// Units that a bucket regains per microsecond, as its entry stores them.
    pub(crate) fn refill_pace(self) -> f32 {
        self.ticks().map_or(0.0, |(num, unit)| (num as f64 / unit as f64) as f32)
    }

    /// Microseconds after which no unit that was charged up to the limit counts any more.
    pub(crate) fn recovery_us(self) -> u64 {
        match self {
            RuleShape::TokenBucket { num, unit, burst } => burst.saturating_mul(unit) / num.max(1),
            RuleShape::LeakyBucket { num, queue, .. } => queue.depth / num.max(1),
            RuleShape::FixedWindow { period, .. }
            | RuleShape::SlidingLog { period, .. }
            | RuleShape::Calendar { longest: period, .. } => period,
            RuleShape::SlidingWindow { period, .. } => period.saturating_add(self.bucket_width()),
            RuleShape::Concurrency { .. } => 0,
        }
    }

    /// The counts of a sliding window: one more than its sub-windows; older ones have left.
    pub(crate) fn window_counts(self) -> usize {
        match self {
            RuleShape::SlidingWindow { buckets, .. } => usize::from(buckets).max(1) + 1,
            _ => 0,
        }
    }
}
