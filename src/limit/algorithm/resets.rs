//! The resets of keys in one shard of a table.

use crate::limit::Epoch;

/// How many keys of a shard were reset. It is added to the epoch of each charge, so that no charge taken before a
/// reset is refunded after it: the counter has forgotten that charge, and a refund would give more than a fresh one.
/// Charges of other keys in the shard lose their refunds as well, which can only reject more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResetCount(Epoch);

// === impl ResetCount ===

impl ResetCount {
    pub(crate) fn count_reset(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    /// The epoch of charges that are taken now, by parameters of the epoch `params`.
    #[inline]
    pub(crate) fn charge_epoch(self, params: Epoch) -> Epoch {
        params.wrapping_add(self.0)
    }
}
