//! A concurrency limit that follows the latency of the requests it admits: sampled in windows, without a lock per
//! request.
//!
//! A limit (and each tier with its own bounds) has one controller, independent of its key, because latency is the
//! upstream's. With `key: global` the limit is the load that the upstream bears; with another key every key has the
//! same limit, which shrinks for all when the upstream slows down.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::gradient::{Bounds, Gradient, Sample};
use sluicegate_base::clock::Now;

/// A window lasts at least this long, in nanoseconds …
const WINDOW_NS: u64 = 100_000_000;
/// … and until so many requests have ended, more of them during a measurement, or at most this long.
const SAMPLES_MIN: u64 = 20;
const SAMPLES_TO_MEASURE: u64 = 32;
const WINDOW_MAX_NS: u64 = 2_000_000_000;

/// The longest pause before a new limit's effect is measured, in nanoseconds …
const SETTLE_MAX_NS: u64 = 2_000_000_000;
/// … and before the minimum is measured, unless the latency demands a longer one.
const SETTLE_TO_MEASURE_NS: u64 = 400_000_000;

/// Latencies are capped at this, in microseconds, and later at this multiple of the minimum: one long poll among many
/// quick requests must not look like a slow upstream.
const LATENCY_MAX_US: u64 = 60_000_000;
const LATENCY_MAX_TIMES: u64 = 8;

/// Latencies in one word: the count of requests above this bit, the sum of microseconds below it.
const COUNT_SHIFT: u32 = 40;

/// The upstream outcome of a request that held a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOutcome {
    /// The head of the response came after so many nanoseconds.
    Answered(u64),
    /// The client left after so many nanoseconds without a response.
    Abandoned(u64),
    /// The request timed out, found no connection, or the upstream reported overload.
    Failed,
}

/// The shared counters around a [`Gradient`].
pub(crate) struct Adaptive {
    pub(crate) bounds: Bounds,
    allowed: AtomicU64,
    /// The most requests that one key had in flight since the window opened.
    peak: AtomicU64,
    answers: AtomicU64,
    abandoned: AtomicU64,
    failures: AtomicU64,
    /// The moment from which the window counts; 0 = none was opened yet.
    counts_from: AtomicU64,
    longest_us: AtomicU64,
    tolerated_us: AtomicU64,
    /// The moment at which the window was opened, and the state before its samples.
    window: Mutex<(Now, Gradient)>,
}

// === impl Adaptive ===

impl Adaptive {
    pub(crate) fn new(bounds: Bounds) -> Adaptive {
        let gradient = Gradient::new(bounds);
        Adaptive {
            bounds,
            allowed: AtomicU64::new(gradient.allowed_requests(bounds)),
            peak: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            counts_from: AtomicU64::new(0),
            longest_us: AtomicU64::new(LATENCY_MAX_US),
            tolerated_us: AtomicU64::new(gradient.tolerated_us()),
            window: Mutex::new((Now(0), gradient)),
        }
    }

    /// The number of requests of one key that may be in flight now.
    #[inline]
    pub(crate) fn allowed_slots(&self) -> u64 {
        self.allowed.load(Relaxed)
    }

    /// Records that a key has so many requests in flight.
    #[inline]
    pub(crate) fn record_peak(&self, in_flight: u64) {
        // Usually it is below the peak, and nothing is written.
        if in_flight > self.peak.load(Relaxed) {
            self.peak.fetch_max(in_flight, Relaxed);
        }
    }

    /// Records the outcome of a request. Returns whether more slots are allowed because of it.
    #[inline]
    pub(crate) fn record_outcome(&self, outcome: SlotOutcome, now: Now) -> bool {
        let from = self.counts_from.load(Relaxed);
        if now.0 < from {
            return false;
        }
        match outcome {
            SlotOutcome::Answered(ns) => self.add_latency(&self.answers, ns),
            // A client that leaves sooner is no evidence.
            SlotOutcome::Abandoned(ns) if ns / 1_000 <= self.tolerated_us.load(Relaxed) => return false,
            SlotOutcome::Abandoned(ns) => self.add_latency(&self.abandoned, ns),
            SlotOutcome::Failed => {
                self.failures.fetch_add(1, Relaxed);
            }
        }
        now.0 - from >= WINDOW_NS && self.close_window(now)
    }

    #[inline]
    fn add_latency(&self, latencies: &AtomicU64, ns: u64) {
        let us = (ns / 1_000).min(self.longest_us.load(Relaxed));
        latencies.fetch_add(1 << COUNT_SHIFT | us, Relaxed);
    }

    /// Closes the window if it is over and no other thread is doing so. Returns whether more slots are allowed then.
    #[cold]
    fn close_window(&self, now: Now) -> bool {
        let Some(mut window) = self.window.try_lock() else { return false };
        let (opened, gradient) = &mut *window;
        let from = self.counts_from.load(Relaxed);
        let counted_ns = now.0.saturating_sub(from);
        let timed = [&self.answers, &self.abandoned].map(|latencies| latencies.load(Relaxed) >> COUNT_SHIFT);
        let ended = timed[0] + timed[1] + self.failures.load(Relaxed);
        let enough = if gradient.is_measuring() { SAMPLES_TO_MEASURE } else { SAMPLES_MIN };
        if counted_ns < WINDOW_NS || from != 0 && ended < enough && counted_ns < WINDOW_MAX_NS {
            return false;
        }
        let (answers, mean_us) = take_mean(&self.answers);
        let (abandoned, abandoned_us) = take_mean(&self.abandoned);
        let sample = Sample {
            answers,
            mean_us,
            abandoned,
            abandoned_us,
            failures: self.failures.swap(0, Relaxed),
            peak: self.peak.swap(0, Relaxed),
            span_us: now.ns_since(*opened) / 1_000,
        };
        if from != 0 {
            *gradient = gradient.apply_sample(self.bounds, &sample);
        }
        let allowed = gradient.allowed_requests(self.bounds);
        let before = self.allowed.swap(allowed, Relaxed);
        if gradient.minimum_us() != 0 {
            let longest = gradient.minimum_us().saturating_mul(LATENCY_MAX_TIMES);
            self.longest_us.store(longest.min(LATENCY_MAX_US), Relaxed);
            self.tolerated_us.store(gradient.tolerated_us(), Relaxed);
        }
        // Requests of the old limit are still on their way; before a measurement their queue has to drain, too, and
        // those that take several times the mean have to end.
        let once_ns = sample.latency_us().saturating_mul(1_000);
        let settle_ns = match gradient.is_measuring() {
            true => once_ns.saturating_mul(4).min(SETTLE_TO_MEASURE_NS).max(once_ns.saturating_mul(2)),
            false => once_ns,
        };
        *opened = now;
        self.counts_from.store(now.0 + settle_ns.min(SETTLE_MAX_NS), Relaxed);
        allowed > before
    }
}

/// Takes out the number of latencies and their mean.
fn take_mean(latencies: &AtomicU64) -> (u64, u64) {
    let sum = latencies.swap(0, Relaxed);
    let (count, sum_us) = (sum >> COUNT_SHIFT, sum & ((1 << COUNT_SHIFT) - 1));
    (count, sum_us / count.max(1))
}

#[cfg(test)]
mod tests;
