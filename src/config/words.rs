//! Scalars of the file that have a grammar of their own.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// `N/period`: N units in each period. Both are at least 1 (unit, nanosecond).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub units: NonZeroU64,
    pub period: Duration,
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MASKED")
    }
}
