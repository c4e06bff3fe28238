//! The time of day, told from the one clock: asked of the system once a second, counted on in between.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock::Now;

/// Turns moments of the one clock into times of day. One per worker.
#[derive(Debug)]
pub struct Wall {
    asked: Cell<(Now, u64)>,
}

const ASK_AGAIN_NS: u64 = 1_000_000_000;

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

fn unix_ns() -> u64 {
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
}
