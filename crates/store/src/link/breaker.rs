//! The circuit breaker of one server. It opens when calls fail, and only probes close it; calls then come back in a
//! ramp. All workers share it: nothing here waits or locks.

use crate::atomics::{AtomicU32, AtomicU64, Ordering::*};
use sluicegate_base::clock::Now;

pub(super) const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// The breaker opens after this many failures in a row, …
const FAILURES_IN_A_ROW: u32 = 5;
/// … or if half of at least this many calls within a second fail.
const CALLS_TO_JUDGE: u64 = 20;
/// The time from closing until all calls are admitted.
const RAMP: u64 = 250 * MS;
/// Per cent of the calls that are admitted at the start of the ramp.
const RAMP_START: u64 = 10;

/// The breaker of one server. A new one is open: it is unknown whether the server answers.
#[derive(Debug, Default)]
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
pub(super) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// 2⁶⁴ divided by the golden ratio: its multiples spread evenly, whatever share of them is taken.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

// === impl Breaker ===

impl Breaker {
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
pub(super) struct BreakerWindow(pub(super) u64);

impl BreakerWindow {
    /// The window in `second`; counts of another second are discarded.
    pub(super) fn from_packed(packed: u64, second: u64) -> BreakerWindow {
        let mark = second << (2 * COUNT_BITS);
        BreakerWindow(if packed >> (2 * COUNT_BITS) == mark >> (2 * COUNT_BITS) { packed } else { mark })
    }

    pub(super) fn calls(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MAX
    }

    pub(super) fn failures(self) -> u64 {
        self.0 & COUNT_MAX
    }

    pub(super) fn add_call(self, failed: bool) -> BreakerWindow {
        if self.calls() == COUNT_MAX {
            return self;
        }
        BreakerWindow(self.0 + (1 << COUNT_BITS) + u64::from(failed))
    }

    fn is_bad(self) -> bool {
        self.calls() >= CALLS_TO_JUDGE && self.failures() * 2 >= self.calls()
    }
}
