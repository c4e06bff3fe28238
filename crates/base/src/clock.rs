//! The one clock of the gateway: tokio's, so that a paused runtime drives every limit in tests.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A moment, in nanoseconds since long before the process began. Never goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// 36 years: far enough back that no subtraction on a `Now` meets zero, and that the moments an earlier process
/// counted still fit.
const HEAD_START_NS: u64 = 1 << 60;

/// Translates moments of an earlier process to the clock of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockShift(i128);

static START: OnceLock<Instant> = OnceLock::new();
static UNIX_AT_ZERO: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The moment that this thread's clock shows; `None` = it runs.
    static HELD_AT: Cell<Option<Now>> = const { Cell::new(None) };
}

/// Holds the clock of this thread at `moment` until the next call, for a replay of the past; `None` lets it run again.
/// Timers are not affected.
pub fn hold_clock(moment: Option<Now>) {
    HELD_AT.set(moment);
}

/// Nanoseconds from 1970 to `Now(0)`, by the last [`set_unix_time`]; 0 before the first.
#[inline]
pub fn unix_at_zero() -> u64 {
    UNIX_AT_ZERO.load(Relaxed)
}

/// Tells the clock that `now` is `unix_ns` after 1970. Moments do not change: only windows aligned to the time of
/// day follow, each from its next window on.
pub fn set_unix_time(now: Now, unix_ns: u64) {
    UNIX_AT_ZERO.store(unix_ns.saturating_sub(now.0), Relaxed);
}

/// Microseconds since the machine started, those in which it slept included, which no [`Now`] counts.
pub fn boot_time_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// The nanoseconds of a span; the greatest number for one beyond 584 years.
pub fn duration_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Now {
    /// Reads the clock; a request does so once and passes the moment on.
    #[inline]
    pub fn read_clock() -> Now {
        match HELD_AT.get() {
            None => Now::from_instant(Instant::now()),
            Some(moment) => moment,
        }
    }

    /// The moment of a tokio instant; one before the start of the clock counts as the start.
    #[inline]
    pub fn from_instant(instant: Instant) -> Now {
        let start = *START.get_or_init(|| instant);
        Now(HEAD_START_NS + instant.saturating_duration_since(start).as_nanos() as u64)
    }

    /// The tokio instant of this moment, for timers.
    pub fn to_instant(self) -> Instant {
        let start = *START.get_or_init(Instant::now);
        start + Duration::from_nanos(self.0.saturating_sub(HEAD_START_NS))
    }

    /// The time of day, in nanoseconds since 1970.
    pub fn to_unix_ns(self) -> u64 {
        unix_at_zero().saturating_add(self.0)
    }

    /// The moment of a time of day; before this clock's zero it is zero.
    pub fn from_unix_ns(unix_ns: u64) -> Now {
        Now(unix_ns.saturating_sub(unix_at_zero()))
    }

    /// Nanoseconds from `earlier` to here; a negative span counts as zero.
    #[inline]
    pub fn ns_since(self, earlier: Now) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl ClockShift {
    /// The shift between two clocks: the earlier one showed `then` `elapsed_ns` before this one shows `now`.
    pub fn new(then: Now, elapsed_ns: u64, now: Now) -> ClockShift {
        ClockShift(i128::from(now.0) - i128::from(elapsed_ns) - i128::from(then.0))
    }

    /// The moment `ns` of the earlier clock on this one; a moment before this clock's zero becomes zero.
    pub fn translate_ns(self, ns: u64) -> u64 {
        (i128::from(ns) + self.0).clamp(0, u64::MAX.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_this_process_is_representable() {
        let now = Now::read_clock();
        let year = 365 * 86_400 * 1_000_000_000;
        let shift = ClockShift::new(Now(500), 30 * year, now);
        assert_eq!(shift.translate_ns(500), now.0 - 30 * year);
        assert_eq!(shift.translate_ns(800), now.0 - 30 * year + 300);
        assert_eq!(shift.translate_ns(0), now.0 - 30 * year - 500);
        assert!(shift.translate_ns(500) > 0);
    }

    #[test]
    fn a_shift_saturates() {
        assert_eq!(ClockShift::new(Now(0), u64::MAX, Now(7)).translate_ns(3), 0);
        assert_eq!(ClockShift::new(Now(0), 0, Now(u64::MAX)).translate_ns(3), u64::MAX);
    }

    #[test]
    fn a_held_clock_shows_its_moment() {
        hold_clock(Some(Now(5)));
        assert_eq!(Now::read_clock(), Now(5));
        hold_clock(None);
        assert!(Now::read_clock() > Now(HEAD_START_NS - 1));
    }

    #[test]
    fn an_instant_comes_back() {
        let now = Now::read_clock();
        assert_eq!(Now::from_instant(now.to_instant()), now);
    }
}
