//! The terms on which a listener accepted its connections; a reload that changes them ends the connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use arc_swap::ArcSwapOption;

use sluicegate_model::ListenerPurpose;

/// The terms of one listener, shared by all connections it accepted.
#[derive(Debug, Default)]
pub struct ListenerTerms {
    /// [`OPEN`], [`REMOVED`] or [`TIGHTENED`].
    state: AtomicU8,
    without_http2: AtomicBool,
    /// The listener's name in the file.
    name: ArcSwapOption<String>,
    purpose: ListenerPurpose,
}

const OPEN: u8 = 0;
/// The listener no longer exists.
const REMOVED: u8 = 1;
/// The listener now requires more of a connection.
const TIGHTENED: u8 = 2;

impl ListenerTerms {
    /// The terms of a new listener.
    pub fn new(name: Option<Arc<String>>, purpose: ListenerPurpose) -> ListenerTerms {
        let terms = ListenerTerms { purpose, ..ListenerTerms::default() };
        terms.set_name(name);
        terms
    }

    /// The purpose of the connections.
    pub fn purpose(&self) -> ListenerPurpose {
        self.purpose
    }

    /// The listener now requires more than it required of these connections.
    pub fn mark_tightened(&self) {
        self.state.store(TIGHTENED, Relaxed);
    }

    /// The listener no longer exists.
    pub fn mark_removed(&self) {
        self.state.store(REMOVED, Relaxed);
    }

    /// Sets the listener's name; its open connections follow.
    pub fn set_name(&self, name: Option<Arc<String>>) {
        self.name.store(name);
    }

    /// The name of the listener, as last set; `None` if it has none.
    pub fn name(&self) -> Option<Arc<String>> {
        self.name.load_full()
    }

    /// Sets whether the listener accepts HTTP/2.
    pub fn allow_http2(&self, allowed: bool) {
        self.without_http2.store(!allowed, Relaxed);
    }

    /// True if an existing connection would not be accepted now.
    pub(super) fn is_outdated_for(&self, speaks_http2: bool) -> bool {
        self.state.load(Relaxed) != OPEN || speaks_http2 && self.without_http2.load(Relaxed)
    }

    /// True if the terms are unchanged.
    pub fn is_open(&self) -> bool {
        self.state.load(Relaxed) == OPEN
    }

    /// True if even requests on their way must not be answered.
    pub fn is_tightened(&self) -> bool {
        self.state.load(Relaxed) == TIGHTENED
    }
}
