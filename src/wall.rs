//! The time of day, told from the one clock: asked of the system once a second, counted on in between.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{self, Now};

/// Turns moments of the one clock into times of day. One per worker.
#[derive(Debug)]
pub struct Wall {
    asked: Cell<(Now, u64)>,
}

const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// How soon windows by the clock follow a correction of the system's time.
const TELL_AGAIN: Duration = Duration::from_secs(10);

impl Wall {
    pub fn new(now: Now) -> Wall {
        Wall { asked: Cell::new((now, unix_ns())) }
    }

    /// Milliseconds since 1970 at `now`. The system is asked once a second, so that corrections of its clock show.
    #[inline]
    pub fn unix_ms(&self, now: Now) -> u64 {
        let (asked, unix) = self.asked.get();
        if now.since(asked) < ASK_AGAIN_NS {
            return (unix + now.since(asked)) / 1_000_000;
        }
        let unix = unix_ns();
        self.asked.set((now, unix));
        unix / 1_000_000
    }
}

/// Tells the one clock what time of day it is.
pub fn tell_clock() {
    clock::tell_unix(Now::read(), unix_ns());
}

/// Goes on telling it, so that corrections of the system's clock show.
pub async fn keep_telling_clock() {
    loop {
        tokio::time::sleep(TELL_AGAIN).await;
        tell_clock();
    }
}

/// Nanoseconds since 1970, asked of the system.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_on_between_two_looks() {
        let wall = Wall::new(Now(5_000_000_000));
        let start = wall.unix_ms(Now(5_000_000_000));
        assert_eq!(wall.unix_ms(Now(5_250_000_000)), start + 250);
        assert!(wall.unix_ms(Now(9_000_000_000)).abs_diff(start) < 10_000);
    }

    #[test]
    fn the_clock_knows_the_time_of_day_once_told() {
        tell_clock();
        let unix = clock::unix_at_zero() + Now::read().0;
        assert!(unix.abs_diff(unix_ns()) < 10_000_000_000, "{unix}");
    }
}
