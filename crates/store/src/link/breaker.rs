//! The circuit breaker of one server. It opens when calls fail, and only probes close it; calls then come back in a
//! ramp. All workers share it: nothing here waits or locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use sluicegate_base::clock::Now;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// The breaker opens after this many failures in a row, …
const FAILURES_IN_A_ROW: u32 = 5;
/// … or if half of at least this many calls within a second fail.
const CALLS_TO_JUDGE: u64 = 20;
/// The time from closing until all calls are admitted.
const RAMP: u64 = 250 * MS;
/// Per cent of the calls that are admitted at the start of the ramp.
const RAMP_START: u64 = 10;

/// The breaker of one server.
#[derive(Debug)]
pub(super) struct Breaker {
    /// The moment at which it closed, in nanoseconds of [`Now`]; 0 while it is open.
    closed: AtomicU64,
    /// Counts openings, so that results of calls from before an opening are ignored.
    epoch: AtomicU64,
    failures: AtomicU32,
    /// The second, and the calls and failures in it, packed as [`BreakerWindow`].
    window: AtomicU64,
    /// Calls that came during a ramp.
    ramp_calls: AtomicU64,
}

/// Bits of each count in [`Breaker::window`].
const COUNT_BITS: u32 = 22;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// 2⁶⁴ divided by the golden ratio: its multiples spread evenly, whatever share of them is taken.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

// === impl Breaker ===

impl Breaker {
    /// A new breaker is open: it is unknown whether the server answers.
    pub(super) fn new() -> Breaker {
        Breaker {
            closed: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            window: AtomicU64::new(0),
            ramp_calls: AtomicU64::new(0),
        }
    }

    /// The epoch to pass to [`Breaker::record_call`], or `None` if the call must not be made.
    #[inline]
    pub(super) fn admit(&self, now: Now) -> Option<u64> {
        let closed = self.closed.load(Acquire);
        if closed == 0 {
            return None;
        }
        let age = now.ns_since(Now(closed));
        if age < RAMP {
            let share = RAMP_START + (100 - RAMP_START) * age / RAMP;
            let ticket = self.ramp_calls.fetch_add(1, Relaxed).wrapping_mul(GOLDEN) >> 32;
            if ticket * 100 >= share << 32 {
                return None;
            }
        }
        Some(self.epoch.load(Relaxed))
    }

    pub(super) fn is_open(&self) -> bool {
        self.closed.load(Acquire) == 0
    }

    /// True if it is closed and the ramp is over.
    pub(super) fn is_settled(&self, now: Now) -> bool {
        let closed = self.closed.load(Acquire);
        closed != 0 && now.ns_since(Now(closed)) >= RAMP
    }

    /// The number of openings: a connection of an earlier epoch is not used any more.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Records the result of a call of `epoch`. True for the call that opened the breaker.
    pub(super) fn record_call(&self, now: Now, epoch: u64, failed: bool) -> bool {
        if epoch != self.epoch.load(Acquire) {
            return false;
        }
        let second = now.0 / SECOND;
        let count = |window| Some(BreakerWindow::from_packed(window, second).add_call(failed).0);
        // Cannot fail: the closure always returns `Some`.
        let before = self.window.fetch_update(Relaxed, Relaxed, count).unwrap_or_default();
        if !failed {
            if self.failures.load(Relaxed) != 0 {
                self.failures.store(0, Relaxed);
            }
            return false;
        }
        let in_a_row = self.failures.fetch_add(1, Relaxed) + 1;
        let window = BreakerWindow::from_packed(before, second).add_call(failed);
        (in_a_row >= FAILURES_IN_A_ROW || window.is_bad()) && self.open()
    }

    /// True for the caller that opened it.
    fn open(&self) -> bool {
        let opened = self.closed.swap(0, AcqRel) != 0;
        if opened {
            self.epoch.fetch_add(1, AcqRel);
        }
        opened
    }

    /// Closes it after successful probes; without a ramp only at the start of the process.
    pub(super) fn close(&self, now: Now, ramp: bool) {
        self.failures.store(0, Relaxed);
        self.window.store(0, Relaxed);
        let since = if ramp { now.0 } else { now.0.saturating_sub(RAMP) };
        self.closed.store(since.max(1), Release);
    }
}

/// [`Breaker::window`] unpacked: second (its low bits), calls, failures.
#[derive(Clone, Copy)]
struct BreakerWindow(u64);

impl BreakerWindow {
    /// The window in `second`; counts of another second are discarded.
    fn from_packed(packed: u64, second: u64) -> BreakerWindow {
        let mark = second << (2 * COUNT_BITS);
        BreakerWindow(if packed >> (2 * COUNT_BITS) == mark >> (2 * COUNT_BITS) { packed } else { mark })
    }

    fn calls(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MAX
    }

    fn failures(self) -> u64 {
        self.0 & COUNT_MAX
    }

    fn add_call(self, failed: bool) -> BreakerWindow {
        if self.calls() == COUNT_MAX {
            return self;
        }
        BreakerWindow(self.0 + (1 << COUNT_BITS) + u64::from(failed))
    }

    fn is_bad(self) -> bool {
        self.calls() >= CALLS_TO_JUDGE && self.failures() * 2 >= self.calls()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Now = Now(1 << 60);

    fn at(ms: u64) -> Now {
        Now(START.0 + ms * MS)
    }

    fn settled() -> Breaker {
        let breaker = Breaker::new();
        breaker.close(START, false);
        breaker
    }

    #[test]
    fn it_is_open_until_it_is_closed() {
        let breaker = Breaker::new();
        assert!(breaker.is_open() && breaker.admit(START).is_none() && !breaker.is_settled(START));
        breaker.close(START, false);
        assert!(!breaker.is_open() && breaker.admit(START).is_some() && breaker.is_settled(START));
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_one_says_so() {
        let breaker = settled();
        let epoch = breaker.admit(START).unwrap();
        for _ in 0..4 {
            assert!(!breaker.record_call(START, epoch, true));
        }
        assert!(!breaker.record_call(START, epoch, false), "a success between");
        for _ in 0..4 {
            assert!(!breaker.record_call(START, epoch, true));
        }
        assert!(!breaker.is_open());
        assert!(breaker.record_call(START, epoch, true));
        assert!(breaker.is_open() && breaker.epoch() == epoch + 1);
        assert!(!breaker.record_call(START, epoch, true), "only one opened it");
    }

    #[test]
    fn half_of_twenty_calls_in_one_second_open_it() {
        let breaker = settled();
        let epoch = breaker.epoch();
        let alternate =
            |calls: u64, ms: u64| (0..calls).any(|n| breaker.record_call(at(ms), epoch, n % 2 == 0));
        assert!(!alternate(19, 0), "too few to judge");
        assert!(!alternate(19, 1000), "another second");
        assert!(alternate(1, 1000));
        assert!(breaker.is_open());
    }

    #[test]
    fn fewer_than_half_leave_it_closed() {
        let breaker = settled();
        let epoch = breaker.epoch();
        for n in 0..3000 {
            assert!(!breaker.record_call(at(n / 10), epoch, n % 3 == 2));
        }
    }

    #[test]
    fn results_from_before_an_opening_are_ignored() {
        let breaker = settled();
        let old = breaker.epoch();
        assert!((0..5).any(|_| breaker.record_call(START, old, true)));
        breaker.close(at(500), true);
        for _ in 0..100 {
            assert!(!breaker.record_call(at(500), old, true));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn calls_come_back_in_a_ramp() {
        let breaker = Breaker::new();
        breaker.close(START, true);
        let share = |ms| (0..1000).filter(|_| breaker.admit(at(ms)).is_some()).count();
        for (ms, wanted) in [(0, 100), (50, 280), (125, 550), (200, 820), (249, 996)] {
            let got = share(ms);
            assert!(got.abs_diff(wanted) <= 15, "after {ms} ms: {got} of 1000, not about {wanted}");
            assert!(!breaker.is_settled(at(ms)));
        }
        assert_eq!(share(250), 1000);
        assert!(breaker.is_settled(at(250)));
    }

    #[test]
    fn counts_of_a_second_never_spill_over() {
        let mut window = BreakerWindow::from_packed(0, 7);
        for _ in 0..COUNT_MAX + 5 {
            window = window.add_call(true);
        }
        assert_eq!((window.calls(), window.failures()), (COUNT_MAX, COUNT_MAX));
        assert_eq!(BreakerWindow::from_packed(window.0, 8).calls(), 0);
        assert_eq!(BreakerWindow::from_packed(window.0, 7).calls(), COUNT_MAX);
    }
}
