//! The decisions of limits, as they are counted.

/// The decision of a limit on one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionKind {
    Admit,
    Wait,
    Reject,
    /// Rejected, but another response was sent instead.
    Degrade,
    /// A dry run that would have made the request wait.
    DryRunWait,
    /// A dry run that would have rejected the request.
    DryRunReject,
    /// The request lacks the limit's key.
    MissingKey,
    /// A wait, if the limit acted on the request's key.
    UnenforcedWait,
    /// A rejection, if the limit acted on the request's key.
    UnenforcedReject,
}

pub(super) const DECISION_NAMES: [&str; 9] = [
    "admit",
    "wait",
    "reject",
    "degrade",
    "dry_run_wait",
    "dry_run_reject",
    "missing_key",
    "unenforced_wait",
    "unenforced_reject",
];

impl DecisionKind {
    /// True for a rejection without effect.
    #[inline]
    pub fn is_dry_rejection(self) -> bool {
        matches!(self, DecisionKind::DryRunReject | DecisionKind::UnenforcedReject)
    }
}
