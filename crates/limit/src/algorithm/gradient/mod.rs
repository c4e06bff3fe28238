//! Finds how many requests an upstream bears at once, from its latency against the recent minimum: one pure step.
//!
//! The step is the gradient limit of Netflix's concurrency-limits (tolerance 1.5, shrinking at most by half) and of
//! Envoy's adaptive_concurrency filter (`limit × minimum / latency + headroom`, the headroom a square root). Both
//! remeasure the minimum by holding requests back. Here half of the limit is held back, and only where latency has
//! risen, as BBRv2 does in its ProbeRTT: without overload no request is rejected for the sake of a measurement.

/// Fixed-point one: the whole of a share, or one request of a limit.
const ONE: u64 = 1 << 12;

/// The initial limit, within its bounds.
const LIMIT_FIRST: u64 = 20;

/// Latency may exceed the minimum by half before the limit shrinks, and by less where requests are rejected: they show
/// that the load is no passing burst.
const TOLERANCE: u64 = ONE + ONE / 2;
const TOLERANCE_FULL: u64 = ONE + ONE / 8 * 3;

/// The minimum is remeasured after this time, in microseconds and in multiples of the minimum itself …
const REMEASURE_US: u64 = 10_000_000;
const REMEASURE_TIMES: u64 = 100;
/// … and after latency was far from it for this long: the upstream itself has become slower or quicker.
const STRAY_US: u64 = 2_000_000;

/// The range of the limit; `min` is at least 1 and at most `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub min: u64,
    pub max: u64,
}

/// The state of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gradient {
    /// The limit in shares of [`ONE`].
    limit: u64,
    /// Latency without queueing, in microseconds; 0 = unknown.
    minimum_us: u64,
    /// Time since the minimum was measured.
    age_us: u64,
    /// Time for which latency has been more than twice the minimum.
    slow_us: u64,
    /// The number of times that the limit is halved now to measure the minimum; 0 = no measurement.
    depth: u32,
    /// The latency one depth above.
    above_us: u64,
    /// The limit when the minimum was measured last; 0 = never.
    measured_limit: u64,
}

/// The observations of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub answers: u64,
    /// Mean latency of the answers.
    pub mean_us: u64,
    /// Requests that their clients abandoned after more than [`Gradient::tolerated_us`].
    pub abandoned: u64,
    /// Mean time until they were abandoned.
    pub abandoned_us: u64,
    /// Requests that timed out or found no connection.
    pub failures: u64,
    /// The most requests that one key had in flight.
    pub peak: u64,
    /// Length of the window.
    pub span_us: u64,
}

// === impl Gradient ===

impl Gradient {
    pub(crate) fn new(bounds: Bounds) -> Gradient {
        let limit = LIMIT_FIRST.clamp(bounds.min, bounds.max) * ONE;
        Gradient { limit, minimum_us: 0, age_us: 0, slow_us: 0, depth: 0, above_us: 0, measured_limit: 0 }
    }

    /// Requests that may be in flight now.
    pub(crate) fn allowed_requests(&self, bounds: Bounds) -> u64 {
        ((self.limit / ONE) >> self.depth).clamp(bounds.min, bounds.max)
    }

    pub(crate) fn is_measuring(&self) -> bool {
        self.depth > 0
    }

    /// Latency without queueing, in microseconds; 0 = unknown.
    pub(crate) fn minimum_us(&self) -> u64 {
        self.minimum_us
    }

    /// The latency above which a request is a sign of overload, in microseconds; `u64::MAX` = unknown.
    pub(crate) fn tolerated_us(&self) -> u64 {
        match self.minimum_us {
            0 => u64::MAX,
            minimum_us => minimum_us.saturating_mul(TOLERANCE) / ONE,
        }
    }

    /// Applies the observations since the last step.
    pub(crate) fn apply_sample(self, bounds: Bounds, sample: &Sample) -> Gradient {
        let mut next = self;
        // A limit that does not bind gives no evidence about higher ones.
        let used = sample.peak * 2 >= self.allowed_requests(bounds);
        let full = sample.peak >= self.allowed_requests(bounds);
        match sample.answers {
            0 => next.depth = 0,
            _ if self.is_measuring() || self.minimum_us == 0 => {
                // Going deeper makes sense only where the halved limit binds.
                next.measure_minimum(
                    sample.mean_us.max(1),
                    full && self.allowed_requests(bounds) > bounds.min,
                )
            }
            _ => next.update_minimum(bounds, sample, used),
        }
        let limit = self.limit_after(sample, next.minimum_us, full);
        next.limit = if limit > self.limit {
            // While half is held back, latency gives no evidence about the whole.
            if used && !self.is_measuring() { limit.min(bounds.max * ONE) } else { self.limit }
        } else if used || sample.failures > 0 {
            limit.max(bounds.min * ONE)
        } else {
            // Shrink only until the limit counts as used: a few slow requests are no overload.
            limit.max(unused_floor(sample.peak, bounds) * ONE).min(self.limit)
        };
        next
    }

    fn limit_after(&self, sample: &Sample, minimum_us: u64, full: bool) -> u64 {
        let tolerance = if full { TOLERANCE_FULL } else { TOLERANCE };
        let (latency_us, timed) = (sample.latency_us(), sample.answers + sample.abandoned);
        let quick = match timed {
            0 => ONE,
            _ => minimum_us.saturating_mul(tolerance) / latency_us,
        };
        let well = (timed * ONE).checked_div(timed + sample.failures).unwrap_or(ONE);
        let share = quick.min(well).clamp(ONE / 2, ONE);
        let root = (self.limit * ONE).isqrt();
        let calm = sample.failures == 0 && is_near(latency_us, minimum_us);
        let headroom = if calm { root } else { (root / 2).max(ONE) };
        self.limit * share / ONE + headroom
    }

    /// Updates the minimum: a latency near it moves it, one far above only starts a measurement.
    fn update_minimum(&mut self, bounds: Bounds, sample: &Sample, used: bool) {
        let (mean_us, minimum_us) = (sample.mean_us.max(1), self.minimum_us);
        let (slower, quicker) = (mean_us / 2 > minimum_us, mean_us < minimum_us / 4 * 3);
        let near = is_near(mean_us, minimum_us);
        // What a full limit adds to the latency is no part of the minimum, which would drift up with it.
        if near && (mean_us < minimum_us || sample.peak < self.allowed_requests(bounds)) {
            self.minimum_us = (minimum_us - minimum_us / 8 + mean_us / 8).max(1);
        }
        self.age_us = self.age_us.saturating_add(sample.span_us);
        self.slow_us = if slower { self.slow_us.saturating_add(sample.span_us) } else { 0 };
        // The limit lost a third, and latency did not fall with it.
        let in_vain = self.limit < self.measured_limit / 3 * 2 && mean_us > self.tolerated_us();
        let due = match (slower, quicker) {
            (true, _) => self.slow_us >= STRAY_US,
            _ if in_vain => self.age_us >= STRAY_US,
            (_, true) => self.age_us >= STRAY_US,
            _ => self.age_us >= REMEASURE_US.max(minimum_us.saturating_mul(REMEASURE_TIMES)),
        };
        // So high a latency shrinks the limit until it is used; then the minimum is measured.
        let will_be_used =
            mean_us > self.tolerated_us() && sample.peak * 2 >= unused_floor(sample.peak, bounds);
        if due && used && (quicker || !near) {
            (self.depth, self.above_us) = (1, mean_us);
        } else if due && !near && !will_be_used {
            self.set_minimum(mean_us);
        }
    }

    /// Accepts a latency as the minimum, unless half as many requests might have an even lower one.
    fn measure_minimum(&mut self, mean_us: u64, full: bool) {
        let (first, minimum_us) = (self.minimum_us == 0, self.minimum_us);
        // As low as before, and no queue that half as many requests would halve.
        let confirms = is_near(mean_us, minimum_us) && is_near(minimum_us, mean_us);
        if !first && confirms && mean_us > self.above_us / 8 * 5 {
            // The earlier measurement is as good as this one.
            self.set_minimum(minimum_us / 2 + mean_us / 2);
        } else if full && (first || mean_us < self.above_us / 4 * 3) {
            self.minimum_us = mean_us;
            // The first latency was measured while a queue built up.
            self.above_us = if first { u64::MAX } else { mean_us };
            self.depth += 1;
        } else {
            self.set_minimum(mean_us);
        }
    }

    fn set_minimum(&mut self, minimum_us: u64) {
        let measured_limit = self.limit;
        *self =
            Gradient { minimum_us, age_us: 0, slow_us: 0, depth: 0, above_us: 0, measured_limit, ..*self };
    }
}

// === impl Sample ===

impl Sample {
    /// The mean over answered and abandoned requests; an abandoned one would have taken longer.
    pub(crate) fn latency_us(&self) -> u64 {
        let answers_us = self.mean_us.saturating_mul(self.answers);
        let abandoned_us = self.abandoned_us.saturating_mul(self.abandoned);
        let sum_us = answers_us.saturating_add(abandoned_us);
        sum_us.checked_div(self.answers + self.abandoned).unwrap_or(0).max(1)
    }
}

/// The floor to which latency alone shrinks a limit that is not used: where it would count as used, but at least
/// [`LIMIT_FIRST`].
fn unused_floor(peak: u64, bounds: Bounds) -> u64 {
    (peak * 2).max(LIMIT_FIRST).clamp(bounds.min, bounds.max)
}

/// True if a latency is at most a quarter above the minimum: such a queue is not worth a measurement.
fn is_near(mean_us: u64, minimum_us: u64) -> bool {
    mean_us <= minimum_us.saturating_add(minimum_us / 4)
}

#[cfg(test)]
mod tests;
