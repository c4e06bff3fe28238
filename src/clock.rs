//! The one clock of the gateway: tokio's, so that a paused runtime drives every limit in tests.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

/// A moment, in nanoseconds since the process first asked for the time. Never goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// Far enough back that no subtraction on a `Now` meets zero: counters start "long ago".
const HEAD_START_NS: u64 = 1 << 32;

static START: OnceLock<Instant> = OnceLock::new();

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
