//! Everything that a pass over a chain finds besides the decisions.

use super::ChainCause;

/// Slots in the store for which a request has to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct LackingSlots {
    /// Index of their limit in [`super::Chain::limits`].
    pub limit_index: u16,
    /// The store has just refused them; else others wait for them.
    pub is_refused: bool,
}

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
    /// More than one limit rejects.
    pub several_reject: bool,
    /// The slots that a look finds taken. They matter only if the request does not have to wait first.
    pub lacking: Option<PassRejection>,
    /// The position in the first queue for slots at a look, and the index of its limit; only if `lacking` is not set.
    pub slot_wait: Option<(u64, u16)>,
    /// The slots in the store for which the request has to wait.
    pub lacking_slots: Option<LackingSlots>,
}

// === impl PassFindings ===

impl PassFindings {
    /// Every limit admits the request, and nothing is left to be done.
    #[inline]
    pub(super) fn is_plain_admission(&self) -> bool {
        !self.wants_slots
            && !self.displaces
            && self.longest_wait.is_none()
            && self.lacking.is_none()
            && self.slot_wait.is_none()
    }
}

/// Small, because findings are moved for each request.
#[derive(Clone, Copy)]
pub(super) struct PassRejection {
    pub cause: ChainCause,
    pub limit_index: u16,
    pub rate: u16,
    pub retry_after_ns: Option<u64>,
}

// === impl PassRejection ===

impl PassRejection {
    /// `limit_index` and `rate` fit, because the file has fewer of both.
    #[inline]
    pub(super) fn new(
        cause: ChainCause,
        limit_index: usize,
        rate: usize,
        retry_after_ns: Option<u64>,
    ) -> PassRejection {
        PassRejection { cause, limit_index: limit_index as u16, rate: rate as u16, retry_after_ns }
    }
}
