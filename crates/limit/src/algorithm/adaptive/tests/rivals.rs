//! The controllers of others, after their published descriptions, as rivals of ours in a simulation.
//!
//! Gradient2, Vegas and AIMD: `Gradient2Limit`, `VegasLimit` and `AIMDLimit` behind `WindowedLimit`, with their
//! defaults, of <https://github.com/Netflix/concurrency-limits>. Cinnamon: the tuner of Uber's load shedder, "Cinnamon
//! Auto-Tuner: Adaptive Concurrency in the Wild",
//! <https://www.uber.com/blog/cinnamon-auto-tuner-adaptive-concurrency-in-the-wild/>; where the article
//! names no number, that of failsafe-go's limiter, which follows it.

use std::collections::VecDeque;

use super::simulation::{Controller, SECOND};
use crate::algorithm::adaptive::SlotOutcome;
use sluicegate_base::clock::Now;

/// As many requests as ours allows at least, at first and at most.
const LIMITS: [f64; 3] = [4.0, 20.0, 1000.0];

pub(super) enum Rule {
    /// The long-term mean of the latency, and the windows in it.
    Gradient2 {
        long: f64,
        windows: u32,
    },
    /// The latency without load, and the windows since it was measured.
    Vegas {
        no_load: f64,
        windows: u32,
    },
    /// A latency above this counts as a drop.
    Aimd {
        timeout: u64,
    },
    Cinnamon(Tuner),
}

#[derive(Default)]
pub(super) struct Tuner {
    /// The last 90th percentiles, and their smoothed median.
    recent: VecDeque<u64>,
    smoothed: f64,
    target: f64,
    /// Requests in flight and answers per second, of each window since the target was captured.
    pairs: Vec<(f64, f64)>,
}

pub(super) struct Rival {
    rule: Rule,
    limit: f64,
    /// The length of a window, and the fewest samples in it.
    span: u64,
    least: usize,
    ends: u64,
    latencies: Vec<u64>,
    answers: u64,
    peak: u64,
    dropped: bool,
}

// === impl Rival ===

impl Rival {
    pub(super) fn new(rule: Rule, span: u64) -> Rival {
        let least = if matches!(rule, Rule::Cinnamon(_)) { 50 } else { 10 };
        let (latencies, ends) = (Vec::new(), 0);
        Rival { rule, limit: LIMITS[1], span, least, ends, latencies, answers: 0, peak: 0, dropped: false }
    }

    fn close_window(&mut self) {
        let mean = self.latencies.iter().sum::<u64>() as f64 / self.latencies.len() as f64;
        let (limit, used) = (self.limit, self.peak as f64 * 2.0 >= self.limit);
        let next = match &mut self.rule {
            Rule::Gradient2 { long, windows } => {
                *windows += 1;
                let weight = if *windows <= 10 { 1.0 / f64::from(*windows) } else { 2.0 / 601.0 };
                *long += (mean - *long) * weight;
                if *long / mean > 2.0 {
                    *long *= 0.9;
                }
                let target = limit * (*long / mean).clamp(0.5, 1.0) + 4.0;
                if used { limit * 0.8 + target * 0.2 } else { limit }
            }
            Rule::Vegas { no_load, windows } => {
                *windows += 1;
                // Between 0.5 and 1 at random, there.
                let probes = f64::from(*windows) >= 0.75 * 30.0 * limit;
                if probes || *no_load == 0.0 || mean < *no_load {
                    *windows = if probes { 0 } else { *windows };
                    *no_load = mean;
                    limit
                } else {
                    vegas(limit, *no_load / mean, used, self.dropped)
                }
            }
            Rule::Aimd { timeout } => match self.dropped || mean > *timeout as f64 {
                true => (limit - 1.0).min(limit * 0.9),
                false => limit + f64::from(u8::from(used)),
            },
            Rule::Cinnamon(tuner) => {
                self.latencies.sort_unstable();
                let slow = self.latencies[self.latencies.len() * 9 / 10];
                let rate = self.answers as f64 * SECOND as f64 / self.span as f64;
                // A limit of more than five times what is used shrinks.
                let next = tuner.step(limit, slow, (self.peak as f64, rate));
                if next > self.peak as f64 * 5.0 { limit - root(limit) } else { next }
            }
        };
        self.limit = next.clamp(LIMITS[0], LIMITS[2]);
    }
}

impl Controller for Rival {
    fn allowed(&self) -> u64 {
        self.limit as u64
    }

    fn admit(&mut self, in_flight: u64) {
        self.peak = self.peak.max(in_flight);
    }

    fn end(&mut self, outcome: SlotOutcome, in_flight: u64, now: Now) {
        self.peak = self.peak.max(in_flight);
        match outcome {
            SlotOutcome::Answered(ns) => {
                self.answers += 1;
                self.latencies.push(ns);
            }
            SlotOutcome::Abandoned(ns) => {
                self.dropped = true;
                self.latencies.push(ns);
            }
            SlotOutcome::Failed => self.dropped = true,
        }
        if now.0 >= self.ends {
            if self.latencies.len() >= self.least && self.ends > 0 {
                self.close_window();
            } else if self.ends > 0 && self.least > 10 {
                return;
            }
            self.ends = now.0 + self.span;
            self.latencies.clear();
            (self.answers, self.peak, self.dropped) = (0, 0, false);
        }
    }
}

/// The step of a limit: its decimal logarithm, at least 1.
fn root(limit: f64) -> f64 {
    limit.log10().floor().max(1.0)
}

fn vegas(limit: f64, share: f64, used: bool, dropped: bool) -> f64 {
    let (queued, step) = ((limit * (1.0 - share)).ceil(), root(limit));
    match () {
        () if dropped => limit - step,
        () if !used => limit,
        () if queued <= step => limit + 6.0 * step,
        () if queued < 3.0 * step => limit + step,
        () if queued > 6.0 * step => limit - step,
        () => limit,
    }
}

// === impl Tuner ===

/// Windows between two captures of the target.
const CAPTURE: usize = 50;
const SMOOTHED: usize = 5;

impl Tuner {
    fn step(&mut self, limit: f64, slow: u64, pair: (f64, f64)) -> f64 {
        self.recent.push_back(slow);
        if self.recent.len() > SMOOTHED {
            self.recent.pop_front();
        }
        let mut sorted: Vec<u64> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        let median = sorted[sorted.len() / 2] as f64;
        let weight = if self.smoothed == 0.0 { 1.0 } else { 2.0 / (SMOOTHED as f64 + 1.0) };
        self.smoothed += (median - self.smoothed) * weight;
        self.pairs.push(pair);
        if self.target == 0.0 || self.smoothed < self.target {
            self.target = self.smoothed;
        }
        if self.pairs.len() >= CAPTURE {
            let overloaded = covariance(&self.pairs) < 0.0;
            self.pairs.clear();
            if overloaded {
                // More requests in flight were fewer answers: the latency is no new target.
                return limit - root(limit);
            }
            self.target = self.smoothed;
        }
        let queued = (limit * (1.0 - self.target / self.smoothed)).ceil();
        match queued {
            queued if queued > 6.0 * root(limit) => limit - root(limit),
            queued if queued < 3.0 * root(limit) => limit + root(limit),
            _ => limit,
        }
    }
}

fn covariance(pairs: &[(f64, f64)]) -> f64 {
    let count = pairs.len() as f64;
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0 / count, y + pair.1 / count));
    pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum::<f64>() / count
}
