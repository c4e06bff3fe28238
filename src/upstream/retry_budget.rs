//! How many retries an upstream may get: a share of its requests, so that retries cannot multiply an overload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::base::clock::Now;

/// Seconds that are looked back on.
const WINDOW: u64 = 10;
/// A power of two above the window, so that no second of it shares a slot.
const SLOTS: usize = 16;
/// Retries in flight that are always allowed.
const ALWAYS: u32 = 3;
const SECOND: u64 = 1_000_000_000;

/// One second's count in each slot: the second in the upper half, the count in the lower.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seconds([AtomicU64; SLOTS]);

impl Seconds {
    /// Only one thread at a time may call this.
    #[inline]
    fn add(&self, second: u64) {
        let cell = &self.0[second as usize % SLOTS];
        let (count, tag) = (cell.load(Relaxed), second << 32);
        cell.store(if (count ^ tag) >> 32 == 0 { count + 1 } else { tag | 1 }, Relaxed);
    }

    fn sum(&self, second: u64) -> u64 {
        let recent = |count: &u64| {
            let age = (second as u32).wrapping_sub((count >> 32) as u32);
            u64::from(age) < WINDOW
        };
        self.0.iter().map(|cell| cell.load(Relaxed)).filter(recent).map(|count| count & 0xffff_ffff).sum()
    }
}

/// What an upstream was asked, and what of it were retries.
#[derive(Debug)]
pub(super) struct Budget {
    /// Each worker writes its own.
    requests: Box<[Seconds]>,
    retries: Mutex<Seconds>,
    in_flight: AtomicU32,
    refused: AtomicU64,
}

/// A retry in flight; over when dropped.
#[derive(Debug)]
pub struct Retrying(Arc<Budget>);

impl Budget {
    pub fn new(workers: usize) -> Arc<Budget> {
        Arc::new(Budget {
            requests: (0..workers.max(1)).map(|_| Seconds::default()).collect(),
            retries: Mutex::default(),
            in_flight: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Counts a request; only the worker itself may call this.
    #[inline]
    pub fn request(&self, worker: usize, now: Now) {
        if let Some(seconds) = self.requests.get(worker) {
            seconds.add(now.0 / SECOND);
        }
    }

    /// Leave to retry once, if retries are at most `percent` of the requests of the last ten seconds.
    pub fn take(self: &Arc<Self>, percent: Option<f64>, now: Now) -> Option<Retrying> {
        let second = now.0 / SECOND;
        // The lock makes looking and counting one thing.
        let retries = self.retries.lock();
        if let Some(percent) = percent
            && self.in_flight.load(Relaxed) >= ALWAYS
        {
            let requests: u64 = self.requests.iter().map(|seconds| seconds.sum(second)).sum();
            if (retries.sum(second) + 1) as f64 * 100.0 > requests as f64 * percent {
                self.refused.fetch_add(1, Relaxed);
                return None;
            }
        }
        retries.add(second);
        self.in_flight.fetch_add(1, Relaxed);
        Some(Retrying(self.clone()))
    }

    /// Retries that were not allowed.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

impl Drop for Retrying {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now((1 << 60) + seconds * SECOND)
    }

    fn asked(budget: &Budget, requests: usize, now: Now) {
        (0..requests).for_each(|n| budget.request(n % 2, now));
    }

    /// How many of 100 retries are allowed when each stays in flight.
    fn allowed(budget: &Arc<Budget>, percent: Option<f64>, now: Now) -> usize {
        let held: Vec<_> = (0..100).map_while(|_| budget.take(percent, now)).collect();
        held.len()
    }

    #[test]
    fn three_in_flight_are_always_allowed() {
        let budget = Budget::new(2);
        assert_eq!(allowed(&budget, Some(0.0), at(0)), 3);
        assert_eq!(allowed(&budget, Some(0.0), at(0)), 3, "they ended");
        assert_eq!(budget.refused(), 2);
        assert_eq!(allowed(&budget, None, at(0)), 100);
    }

    #[test]
    fn retries_are_a_share_of_the_last_ten_seconds() {
        let budget = Budget::new(2);
        asked(&budget, 50, at(3));
        asked(&budget, 50, at(9));
        assert_eq!(allowed(&budget, Some(20.0), at(9)), 20);
        // Those in flight are over, but the window remembers them: only the three remain.
        assert_eq!(allowed(&budget, Some(20.0), at(12)), 3);
        // The first fifty are out of sight, and the retries of then are not.
        assert_eq!(allowed(&budget, Some(20.0), at(14)), 3);
        asked(&budget, 100, at(30));
        assert_eq!(allowed(&budget, Some(20.0), at(30)), 20);
    }

    #[test]
    fn a_slot_forgets_the_second_it_had_before() {
        let seconds = Seconds::default();
        (0..5).for_each(|_| seconds.add(7));
        seconds.add(7 + SLOTS as u64);
        assert_eq!((seconds.sum(7 + SLOTS as u64), seconds.sum(7 + 100)), (1, 0));
    }
}
