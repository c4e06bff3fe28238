//! Everything that a pass over a chain finds besides the decisions.

use super::ChainCause;

#[derive(Clone, Copy)]
pub(super) struct PassFindings {
    pub max_wait_ns: u64,
    pub takes_slots: bool,
    /// Slots that are counted here are to be taken.
    pub wants_slots: bool,
    /// A waiter has to make room in a queue.
    pub displaces: bool,
    /// The longest wait so far, ns, and the index of its limit.
    pub longest_wait: Option<(u64, u16)>,
    pub rejection: Option<PassRejection>,
    /// Of a look: the slots that are not free. They matter only if the request does not have to wait first.
    pub lacking: Option<PassRejection>,
}

// === impl PassFindings ===

impl PassFindings {
    /// Every limit admits the request, and nothing is left to be done.
    #[inline]
    pub(super) fn is_plain_admission(&self) -> bool {
        !self.wants_slots && !self.displaces && self.longest_wait.is_none() && self.lacking.is_none()
    }
}

#[derive(Clone, Copy)]
pub(super) struct PassRejection {
    pub cause: ChainCause,
    pub limit_index: usize,
    pub rate: usize,
    pub retry_after_ns: Option<u64>,
}
