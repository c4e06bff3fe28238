//! The changes by operators while the gateway runs.

use std::fmt;

use super::{ActiveBan, EndedBans, GrantFault, KeyRef, KeyResetFault, NewGrant};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::{BanFault, NewBan, UnbanFault};
use sluicegate_store::operator_entries::EntryFault;

/// A change of grants, bans or the use of a key.
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
    /// Removes the rest of grants that have ended.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorFault {
    /// The key is not reset.
    Reset(KeyResetFault),
    /// The ban is not made.
    Ban(BanFault),
    /// The ban is not lifted.
    Unban(UnbanFault),
    /// The grant is not made or not ended.
    Grant(GrantFault),
    /// Other gateways cannot be told.
    Entry(EntryFault),
    /// A process with this id has taken over.
    HandedOver(u32),
    /// The gateway stops, and takes no change any more.
    ShuttingDown,
}

// === impl OperatorFault ===

impl fmt::Display for OperatorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperatorFault::Reset(fault) => fault.fmt(f),
            OperatorFault::Ban(fault) => fault.fmt(f),
            OperatorFault::Unban(fault) => fault.fmt(f),
            OperatorFault::Grant(fault) => fault.fmt(f),
            OperatorFault::Entry(fault) => write!(f, "other gateways cannot be told: {fault}"),
            OperatorFault::HandedOver(pid) => write!(f, "process {pid} has taken over; ask again"),
            OperatorFault::ShuttingDown => f.write_str("the gateway is shutting down"),
        }
    }
}
