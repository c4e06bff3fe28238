//! The retry budget of an upstream: retries are a share of its requests, so that they cannot multiply an overload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use sluicegate_base::clock::Now;

/// The window in seconds.
const WINDOW_SECONDS: u64 = 10;
/// A power of two above the window, so that no two seconds of it share a slot.
const SLOTS: usize = 16;
/// Retries in flight that are always allowed.
const ALWAYS_ALLOWED: u32 = 3;
const SECOND_NS: u64 = 1_000_000_000;

/// One slot per second: the second in the upper half, its count in the lower.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SecondCounts([AtomicU64; SLOTS]);

impl SecondCounts {
    /// Only one thread at a time may call this.
    #[inline]
    fn count_in(&self, second: u64) {
        let cell = &self.0[second as usize % SLOTS];
        let (count, tag) = (cell.load(Relaxed), second << 32);
        cell.store(if (count ^ tag) >> 32 == 0 { count + 1 } else { tag | 1 }, Relaxed);
    }

    fn sum_window(&self, second: u64) -> u64 {
        let recent = |count: &u64| {
            let age = (second as u32).wrapping_sub((count >> 32) as u32);
            u64::from(age) < WINDOW_SECONDS
        };
        self.0.iter().map(|cell| cell.load(Relaxed)).filter(recent).map(|count| count & 0xffff_ffff).sum()
    }
}

/// Counts the requests and the retries of an upstream.
#[derive(Debug, Default)]
pub(super) struct RetryBudget {
    /// One per worker, which alone writes it.
    requests: Box<[SecondCounts]>,
    retries: Mutex<SecondCounts>,
    in_flight: AtomicU32,
    /// Retries that were not allowed.
    pub rejected: AtomicU64,
}

/// A retry in flight; it ends when this is dropped.
#[derive(Debug)]
pub struct RetryPermit(Arc<RetryBudget>);

impl RetryBudget {
    pub(super) fn new(workers: usize) -> Arc<RetryBudget> {
        let requests = (0..workers.max(1)).map(|_| SecondCounts::default()).collect();
        Arc::new(RetryBudget { requests, ..RetryBudget::default() })
    }

    /// Counts a request; only `worker` itself may call this.
    #[inline]
    pub(super) fn count_request(&self, worker: usize, now: Now) {
        if let Some(seconds) = self.requests.get(worker) {
            seconds.count_in(now.0 / SECOND_NS);
        }
    }

    /// A permit for one retry, if retries are at most `percent` of the requests of the last ten seconds.
    pub(super) fn try_retry(self: &Arc<Self>, percent: Option<f64>, now: Now) -> Option<RetryPermit> {
        let second = now.0 / SECOND_NS;
        // Locked, so that comparing and counting are atomic.
        let retries = self.retries.lock();
        if let Some(percent) = percent
            && self.in_flight.load(Relaxed) >= ALWAYS_ALLOWED
        {
            let requests: u64 = self.requests.iter().map(|seconds| seconds.sum_window(second)).sum();
            if (retries.sum_window(second) + 1) as f64 * 100.0 > requests as f64 * percent {
                self.rejected.fetch_add(1, Relaxed);
                return None;
            }
        }
        retries.count_in(second);
        self.in_flight.fetch_add(1, Relaxed);
        Some(RetryPermit(self.clone()))
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now((1 << 60) + seconds * SECOND_NS)
    }

    fn count_requests(budget: &RetryBudget, requests: usize, now: Now) {
        (0..requests).for_each(|n| budget.count_request(n % 2, now));
    }

    /// How many of 100 retries are allowed if each stays in flight.
    fn allowed(budget: &Arc<RetryBudget>, percent: Option<f64>, now: Now) -> usize {
        let permits: Vec<_> = (0..100).map_while(|_| budget.try_retry(percent, now)).collect();
        permits.len()
    }

    #[test]
    fn three_in_flight_are_always_allowed() {
        let budget = RetryBudget::new(2);
        assert_eq!(allowed(&budget, Some(0.0), at(0)), 3);
        assert_eq!(allowed(&budget, Some(0.0), at(0)), 3, "they ended");
        assert_eq!(budget.rejected.load(Relaxed), 2);
        assert_eq!(allowed(&budget, None, at(0)), 100);
    }

    #[test]
    fn retries_are_a_share_of_the_last_ten_seconds() {
        let budget = RetryBudget::new(2);
        count_requests(&budget, 50, at(3));
        count_requests(&budget, 50, at(9));
        assert_eq!(allowed(&budget, Some(20.0), at(9)), 20);
        // Those in flight have ended, but the window still counts them: only three remain.
        assert_eq!(allowed(&budget, Some(20.0), at(12)), 3);
        // The first fifty have left the window, and the retries have not.
        assert_eq!(allowed(&budget, Some(20.0), at(14)), 3);
        count_requests(&budget, 100, at(30));
        assert_eq!(allowed(&budget, Some(20.0), at(30)), 20);
    }

    #[test]
    fn a_slot_forgets_its_previous_second() {
        let seconds = SecondCounts::default();
        (0..5).for_each(|_| seconds.count_in(7));
        seconds.count_in(7 + SLOTS as u64);
        assert_eq!((seconds.sum_window(7 + SLOTS as u64), seconds.sum_window(7 + 100)), (1, 0));
    }
}
