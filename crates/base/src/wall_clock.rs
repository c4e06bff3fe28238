//! The time of day: read from the system once a second, and counted on by the gateway's clock in between.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;

use crate::clock::{self, Now};

/// Turns moments of the gateway's clock into times of day. One per worker.
#[derive(Debug)]
pub struct WallClock {
    last_reading: Cell<(Now, u64)>,
}

const REREAD_AFTER_NS: u64 = 1_000_000_000;
/// The interval at which windows aligned to the time of day follow corrections of the system's clock.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

impl WallClock {
    /// A clock that reads the system's time and takes it as that of `now`.
    pub fn new(now: Now) -> WallClock {
        WallClock { last_reading: Cell::new((now, unix_ns())) }
    }

    /// Milliseconds since 1970 at `now`.
    #[inline]
    pub fn unix_ms(&self, now: Now) -> u64 {
        self.unix_ns(now) / 1_000_000
    }

    /// Nanoseconds since 1970 at `now`, which may be in the past. The system's clock is read once a second, so that its
    /// corrections show.
    #[inline]
    pub fn unix_ns(&self, now: Now) -> u64 {
        let (read_at, unix) = self.last_reading.get();
        if now < read_at {
            return unix.saturating_sub(read_at.ns_since(now));
        }
        if now.ns_since(read_at) < REREAD_AFTER_NS {
            return unix + now.ns_since(read_at);
        }
        self.read_again(now)
    }

    /// The reading belongs to the present: `now` may be the start of a request that ends only now.
    #[cold]
    fn read_again(&self, now: Now) -> u64 {
        let (present, unix) = (Now::read_clock().max(now), unix_ns());
        self.last_reading.set((present, unix));
        unix.saturating_sub(present.ns_since(now))
    }
}

/// Sets the time of day of the gateway's clock.
pub fn sync_clock() {
    clock::set_unix_time(Now::read_clock(), unix_ns());
}

/// Repeats [`sync_clock`] for ever, so that corrections of the system's clock show.
pub async fn keep_clock_synced() {
    loop {
        tokio::time::sleep(SYNC_INTERVAL).await;
        sync_clock();
    }
}

/// The wall clock as this thread has seen it. hyper renews its Date only once the clock passes the latest time it
/// showed, so after a step back the Date would stand still until then; meanwhile responses get this one.
struct StepDetector {
    latest_ns: Cell<u64>,
    /// The second it is valid for, and the value; `None` = there was no step back.
    date: RefCell<Option<(u64, HeaderValue)>>,
    has_stepped_back: Cell<bool>,
}

thread_local! {
    static SEEN: StepDetector = const {
        StepDetector {
            latest_ns: Cell::new(0),
            date: RefCell::new(None),
            has_stepped_back: Cell::new(false),
        }
    };
}

/// Checks whether the wall clock was set back; each thread that sends responses has to call it periodically.
pub fn detect_clock_step() {
    SEEN.with(|seen| seen.check_step(unix_ns()));
}

/// The Date for a response of this thread that has none; `None` = hyper's is right.
#[inline]
pub fn date_after_step() -> Option<HeaderValue> {
    SEEN.with(|seen| if seen.has_stepped_back.get() { seen.current_date() } else { None })
}

impl StepDetector {
    fn check_step(&self, unix_ns: u64) {
        let has_stepped_back = unix_ns < self.latest_ns.get();
        self.has_stepped_back.set(has_stepped_back);
        if !has_stepped_back {
            return self.latest_ns.set(unix_ns);
        }
        let second = unix_ns / 1_000_000_000;
        let mut date = self.date.borrow_mut();
        if date.as_ref().is_none_or(|(known, _)| *known != second) {
            *date = http_date(second).map(|value| (second, value));
        }
    }

    #[cold]
    fn current_date(&self) -> Option<HeaderValue> {
        self.date.borrow().as_ref().map(|(_, value)| value.clone())
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7), which has no form for years of five digits.
fn http_date(unix_s: u64) -> Option<HeaderValue> {
    const YEAR_10000: u64 = 253_402_300_800;
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix_s)).filter(|_| unix_s < YEAR_10000)?;
    HeaderValue::try_from(httpdate::fmt_http_date(time)).ok()
}

/// The time of day follows the gateway's clock, and not the system's.
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);

/// Sets the time of day to `unix_ns` at this moment of the gateway's clock. From now on it follows that clock, in the
/// whole process: only for a process that serves no clients, with a clock that does not run by itself.
pub fn simulate_from(unix_ns: u64) {
    IS_SIMULATED.store(true, Relaxed);
    clock::set_unix_time(Now::read_clock(), unix_ns);
}

/// Whole seconds since 1970, as of [`unix_ns`].
pub fn unix_seconds() -> u64 {
    unix_ns() / 1_000_000_000
}

/// Nanoseconds since 1970, read from the system unless the time of day is simulated.
pub fn unix_ns() -> u64 {
    if IS_SIMULATED.load(Relaxed) {
        return Now::read_clock().to_unix_ns();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_on_between_two_readings() {
        let now = Now::read_clock();
        let wall = WallClock::new(now);
        let start = wall.unix_ms(now);
        assert_eq!(wall.unix_ms(Now(now.0 + 250_000_000)), start + 250);
        assert!(wall.unix_ms(Now(now.0 + 4_000_000_000)).abs_diff(start + 4_000) < 4_500);
    }

    #[test]
    fn the_start_of_a_long_request_is_told_after_later_readings() {
        let now = Now::read_clock();
        let wall = WallClock::new(Now(now.0 - 30_000_000_000));
        let present = wall.unix_ms(now);
        let start = wall.unix_ms(Now(now.0 - 20_000_000_000));
        assert_eq!(start, present - 20_000);
        let again = WallClock::new(Now(now.0 - 30_000_000_000));
        // The reading itself is made for a moment in the past.
        let start = again.unix_ms(Now(now.0 - 20_000_000_000));
        assert!(start.abs_diff(present - 20_000) < 5_000, "{start} {present}");
    }

    #[test]
    fn dates_have_the_format_of_http() {
        for (second, date) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT"),
        ] {
            assert_eq!(http_date(second).unwrap(), date);
        }
    }

    #[test]
    fn only_after_a_step_back_there_is_a_date() {
        let seen = StepDetector {
            latest_ns: Cell::new(0),
            date: RefCell::new(None),
            has_stepped_back: Cell::new(false),
        };
        let second = 1_000_000_000;
        let date_at = |unix_ns| {
            seen.check_step(unix_ns);
            seen.has_stepped_back.get().then(|| seen.current_date().unwrap())
        };
        assert_eq!(date_at(784_111_777 * second), None);
        assert_eq!(date_at(784_111_778 * second), None);
        assert_eq!(date_at(784_111_700 * second + 5).unwrap(), "Sun, 06 Nov 1994 08:48:20 GMT");
        assert_eq!(date_at(784_111_701 * second).unwrap(), "Sun, 06 Nov 1994 08:48:21 GMT");
        assert_eq!(date_at(784_111_778 * second), None);
        assert_eq!(date_at(784_111_779 * second), None);
    }
}
