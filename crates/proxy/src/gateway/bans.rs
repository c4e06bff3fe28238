//! The bans of a gateway, as operators see and change them: their own, and those of clients that were rejected too
//! often.

use std::net::IpAddr;

use super::Gateway;
use sluicegate_admission::ban::{Bans, LiftedBan};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::{BanFault, NewBan, OperatorBan, UnbanFault};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_store::SharedKey;

/// One ban in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveBan {
    /// The banned network or account.
    pub target: BanTarget,
    /// The end of the ban.
    pub until: Now,
    /// The reason for the ban.
    pub origin: BanOrigin,
}

/// The reason why a client is banned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BanOrigin {
    /// An operator banned it.
    Operator {
        /// The moment at which it was set.
        at: Now,
        /// The name of the operator.
        by: String,
        /// The reason that the operator gave.
        reason: String,
    },
    /// Too many rejections.
    Rejections {
        /// The number of consecutive bans before; 0 = this is the first.
        repeats: u32,
    },
}

/// The bans that a lift has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedBans {
    /// The target that was named, exactly.
    pub target: BanTarget,
    /// The end that the operator's ban would have had; `None` = there was none.
    pub operator: Option<Now>,
    /// The end that the ban for rejections would have had; `None` = there was none.
    pub rejections: Option<Now>,
    /// The client in the store that shares bans, which still has to forget this one.
    pub in_store: Option<SharedKey>,
}

// === impl Gateway ===

impl Gateway {
    /// All active bans with a name, those of operators first; [`Gateway::active_bans`] counts all.
    pub fn list_bans(&self, now: Now) -> Vec<ActiveBan> {
        let own = self.operator_bans.list_bans(now).into_iter().map(|ban| ActiveBan::from_operator(&ban));
        let automatic = self.bans.iter().flat_map(|bans| bans.list_bans(now)).map(|ban| ActiveBan {
            target: ban.target,
            until: ban.until,
            origin: BanOrigin::Rejections { repeats: ban.repeats },
        });
        own.chain(automatic).collect()
    }

    /// The number of active bans.
    pub fn active_bans(&self, now: Now) -> usize {
        self.operator_bans.active_count(now) + self.bans.as_ref().map_or(0, |bans| bans.active_count(now))
    }

    /// Starts a ban of an operator. Returns it, and the one of the same target that it replaces.
    ///
    /// # Errors
    /// The ban is not valid, or there are too many.
    pub fn add_ban(&self, new: NewBan, now: Now) -> Result<(ActiveBan, Option<ActiveBan>), BanFault> {
        let (ban, replaced) = self.operator_bans.add_ban(new, now)?;
        Ok((ActiveBan::from_operator(&ban), replaced.map(|ban| ActiveBan::from_operator(&ban))))
    }

    /// Ends the bans of exactly this target, independent of their origin.
    ///
    /// # Errors
    /// The target is not banned, or only as a part of a network.
    pub fn lift_ban(&self, target: &BanTarget, now: Now) -> Result<EndedBans, UnbanFault> {
        let operator = self.operator_bans.remove_ban(target, now);
        let automatic = self.bans.as_ref().and_then(|bans| self.lift_automatic(bans, target, now));
        if automatic.is_none()
            && let Err(fault) = operator
        {
            let around = self.bans.as_ref().and_then(|bans| self.banned_around(bans, target, now));
            return Err(if fault == UnbanFault::NotBanned { around.unwrap_or(fault) } else { fault });
        }
        Ok(EndedBans {
            target: target.clone(),
            operator: operator.ok().map(|ban| ban.until),
            rejections: automatic.map(|ban| ban.until),
            in_store: automatic.and_then(|ban| ban.in_store),
        })
    }

    fn lift_automatic(&self, bans: &Bans, target: &BanTarget, now: Now) -> Option<LiftedBan> {
        let key = bans.find_named(target).or_else(|| match target {
            BanTarget::Network(network) if self.clients.mask_network(network.addr()) != *network => None,
            _ => Some(self.ban_key(bans, target)),
        })?;
        bans.lift_ban(&key, now)
    }

    /// Clients are banned by their masked address: whether that covers the target and is banned.
    fn banned_around(&self, bans: &Bans, target: &BanTarget, now: Now) -> Option<UnbanFault> {
        let BanTarget::Network(network) = target else { return None };
        let around = self.clients.mask_network(network.addr());
        let is_covered = around != *network && around.contains(network);
        let key = self.ban_key(bans, target);
        (is_covered && bans.ban_left_ns(&key, now).is_some()).then_some(UnbanFault::InNetwork(around))
    }

    fn ban_key(&self, bans: &Bans, target: &BanTarget) -> CounterKey {
        match target {
            BanTarget::Network(network) => {
                bans.deferred_key(&self.keys, self.clients.mask_address(network.addr()), None)
            }
            BanTarget::Account(name) => bans.deferred_key(&self.keys, IpAddr::from([0, 0, 0, 0]), Some(name)),
        }
    }
}

// === impl ActiveBan ===

impl ActiveBan {
    fn from_operator(ban: &OperatorBan) -> ActiveBan {
        let OperatorBan { target, at, until, reason, by } = ban.clone();
        ActiveBan { target, until, origin: BanOrigin::Operator { at, by, reason } }
    }
}
