//! Whether the connections of a listener may go on, or a reload has changed the terms on which they were let in.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// The terms on which connections came in; shared by all of them.
#[derive(Debug, Default)]
pub struct ListenerTerms {
    /// Of [`OPEN`] and the others.
    state: AtomicU8,
    without_http2: AtomicBool,
}

const OPEN: u8 = 0;
/// The listener is gone.
const REMOVED: u8 = 1;
/// The listener asks more of a connection now.
const TIGHTENED: u8 = 2;

impl ListenerTerms {
    /// What the listener asks now, these connections were not asked.
    pub fn mark_tightened(&self) {
        self.state.store(TIGHTENED, Relaxed);
    }

    /// Nothing listens any more where they came in.
    pub fn mark_removed(&self) {
        self.state.store(REMOVED, Relaxed);
    }

    /// Whether HTTP/2 may be spoken.
    pub fn allow_http2(&self, allowed: bool) {
        self.without_http2.store(!allowed, Relaxed);
    }

    /// Whether a connection that exists would be refused now.
    pub(super) fn is_outdated_for(&self, speaks_http2: bool) -> bool {
        self.state.load(Relaxed) != OPEN || speaks_http2 && self.without_http2.load(Relaxed)
    }

    /// Whether connections go on as they came in.
    #[cfg(test)]
    pub fn is_open(&self) -> bool {
        self.state.load(Relaxed) == OPEN
    }

    /// Whether not even a request that is on its way may be answered.
    pub fn is_tightened(&self) -> bool {
        self.state.load(Relaxed) == TIGHTENED
    }
}
