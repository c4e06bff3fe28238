//! The one clock of the gateway: tokio's, so that a paused runtime drives every limit in tests.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// A moment, in nanoseconds since the process first asked for the time. Never goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// Far enough back that no subtraction on a `Now` meets zero: counters start "long ago".
const HEAD_START_NS: u64 = 1 << 32;

static START: OnceLock<Instant> = OnceLock::new();
static UNIX_AT_ZERO: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds from 1970 to `Now(0)`, as [`tell_unix`] was told last; 0 until then.
#[inline]
pub fn unix_at_zero() -> u64 {
    UNIX_AT_ZERO.load(Relaxed)
}

/// Tells the clock that `now` is `unix_ns` after 1970. It goes on as before: only what is counted by the time of
/// day follows, from its next window on.
pub fn tell_unix(now: Now, unix_ns: u64) {
    UNIX_AT_ZERO.store(unix_ns.saturating_sub(now.0), Relaxed);
}

impl Now {
    /// Reads the clock: once per request, then handed on.
    #[inline]
    pub fn read() -> Now {
        Now::at(Instant::now())
    }

    #[inline]
    pub fn at(instant: Instant) -> Now {
        let start = *START.get_or_init(|| instant);
        Now(HEAD_START_NS + instant.saturating_duration_since(start).as_nanos() as u64)
    }

    /// The tokio instant of this moment, for timers.
    pub fn instant(self) -> Instant {
        let start = *START.get_or_init(Instant::now);
        start + Duration::from_nanos(self.0.saturating_sub(HEAD_START_NS))
    }

    /// Nanoseconds from `earlier` to here; a negative span counts as zero.
    #[inline]
    pub fn since(self, earlier: Now) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
