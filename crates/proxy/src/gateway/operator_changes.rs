//! The changes by operators while the gateway runs.

use std::fmt;

use super::{ActiveBan, EndedBans, GrantFault, KeyRef, KeyResetFault, NewGrant};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::{BanFault, NewBan, UnbanFault};
use sluicegate_store::operator_entries::EntryFault;

#[derive(Debug, Clone)]
pub enum OperatorChange {
    /// Forgets the used units of a key; `tier`: only by the numbers of that tier.
    ResetKey {
        limit: String,
        key: KeyRef,
        tier: Option<String>,
    },
    Ban(NewBan),
    Unban(BanTarget),
    Grant(NewGrant),
    /// Ends the grant of a key.
    Revoke {
        limit: String,
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
    Unbanned(EndedBans),
    /// Any other change.
    Done,
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorFault {
    Reset(KeyResetFault),
    Ban(BanFault),
    Unban(UnbanFault),
    Grant(GrantFault),
    /// Other gateways cannot be told.
    Entry(EntryFault),
    /// A process with this id has taken over.
    HandedOver(u32),
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
