//! The changes by operators while the gateway runs.

use super::{ActiveBan, EndedBans, GrantFault, KeyRef, KeyResetFault, LimitChangeFault, NewGrant};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::{BanFault, NewBan, UnbanFault};
use sluicegate_model::LimitChange;
use sluicegate_store::operator_entries::EntryFault;

/// A change of limits, grants, bans or the use of a key.
#[derive(Debug, Clone)]
pub enum OperatorChange {
    /// Forgets the used units of a key; `tier`: only by the numbers of that tier.
    ResetKey {
        /// The name of the limit.
        limit: String,
        /// The key to reset.
        key: KeyRef,
        /// The tier with the numbers; `None` = all rates of the limit.
        tier: Option<String>,
    },
    /// Starts a ban, which replaces one of the same target.
    Ban(NewBan),
    /// Ends all bans of exactly this target.
    Unban(BanTarget),
    /// Starts a grant, which replaces one of the same key.
    Grant(NewGrant),
    /// Ends the grant of a key.
    Revoke {
        /// The name of the limit.
        limit: String,
        /// The key with the grant.
        key: KeyRef,
    },
    /// Makes a change to all of these limits, or to none.
    ChangeLimits {
        /// Their names.
        limits: Vec<String>,
        /// The change, for any limit.
        change: LimitChange,
    },
    /// Ends changes of limits.
    EndLimitChanges {
        /// Their names.
        limits: Vec<String>,
        /// Ends those of numbers, else pauses.
        is_set: bool,
        /// Limits that have none are left as they are.
        skips_ended: bool,
    },
    /// Removes the rest of grants and changes of limits that have ended.
    RemoveEnded,
    /// Adopts the changes of all gateways of the store.
    UseEntries,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq)]
pub enum OperatorOutcome {
    /// The ban, and the one of the same target that it replaced.
    Banned(ActiveBan, Option<ActiveBan>),
    /// The bans that ended.
    Unbanned(EndedBans),
    /// Any other change.
    Done,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorFault {
    /// The key is not reset.
    #[error(transparent)]
    Reset(#[from] KeyResetFault),
    /// The ban is not made.
    #[error(transparent)]
    Ban(#[from] BanFault),
    /// The ban is not lifted.
    #[error(transparent)]
    Unban(#[from] UnbanFault),
    /// The grant is not made or not ended.
    #[error(transparent)]
    Grant(#[from] GrantFault),
    /// The limits are not changed.
    #[error(transparent)]
    Limit(#[from] LimitChangeFault),
    /// Other gateways cannot be told.
    #[error("other gateways cannot be told: {0}")]
    Entry(#[from] EntryFault),
    /// A process with this id has taken over.
    #[error("process {0} has taken over; ask again")]
    HandedOver(u32),
    /// The gateway stops, and takes no change any more.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}
