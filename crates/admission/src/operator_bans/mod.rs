//! Bans that operators set while the gateway runs: of an address, a network or an account, each until its end.
//!
//! Requests read an immutable set without a lock, and only while a ban is active. A change replaces the set.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use parking_lot::Mutex;
use prefix_trie::joint::JointPrefixMap;
use serde::{Deserialize, Serialize};

use super::ban_target::BanTarget;
use sluicegate_base::clock::Now;

/// The most bans at once.
pub const BANS_MAX: usize = 10_000;
/// The length of a ban that names none.
pub const DEFAULT_LENGTH: Duration = Duration::from_secs(600);
/// The longest ban. A permanent denial belongs in the file.
pub const LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);
/// The longest reason and the longest name of an operator, in bytes.
pub const TEXT_MAX: usize = 256;

/// The bans of operators, shared by all workers.
#[derive(Default)]
pub struct OperatorBans {
    set: ArcSwap<BanSet>,
    /// The end of the last ban: from then on no request looks into the set.
    last_end: AtomicU64,
    changing: Mutex<()>,
}

#[derive(Clone, Default)]
struct BanSet {
    networks: JointPrefixMap<IpNet, Arc<OperatorBan>>,
    accounts: HashMap<Vec<u8>, Arc<OperatorBan>>,
}

/// A ban. For another process its moments are times of day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorBan {
    /// The target of the ban.
    pub target: BanTarget,
    /// The moment at which the operator set it.
    #[serde(with = "unix_ns")]
    pub at: Now,
    /// The moment at which it ends.
    #[serde(with = "unix_ns")]
    pub until: Now,
    /// The reason that the operator gave, at most [`TEXT_MAX`] bytes; empty if there is none.
    pub reason: String,
    /// The operator.
    pub by: String,
}

/// A ban that an operator asks for.
#[derive(Debug, Clone)]
pub struct NewBan {
    /// The target of the ban.
    pub target: BanTarget,
    /// The length, above zero and at most [`LENGTH_MAX`].
    pub lasts: Duration,
    /// The reason, at most [`TEXT_MAX`] bytes; it may be empty.
    pub reason: String,
    /// The name of the operator, at most [`TEXT_MAX`] bytes.
    pub by: String,
}

/// Why there is no such ban.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BanFault {
    /// [`BANS_MAX`] others are active.
    #[error("{BANS_MAX} bans are active; ban a network, or lift others")]
    TooMany,
    /// The length is zero or beyond [`LENGTH_MAX`].
    #[error("a ban lasts at least a moment and at most 366 days")]
    Length,
    /// The reason or the name of the operator is longer than [`TEXT_MAX`].
    #[error("a reason has at most {TEXT_MAX} bytes")]
    Text,
}

/// Why a ban is not lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnbanFault {
    /// No ban is active for the target.
    #[error("it is not banned")]
    NotBanned,
    /// This network around the target is banned, and not the target itself.
    #[error("it is banned as a part of {0}, which can only be lifted as a whole")]
    InNetwork(IpNet),
}

/// Writes and reads a moment as ns since 1970.
mod unix_ns {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Now;

    pub(super) fn serialize<S: Serializer>(moment: &Now, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(moment.to_unix_ns())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Now, D::Error> {
        u64::deserialize(from).map(Now::from_unix_ns)
    }
}

// === impl OperatorBans ===

impl OperatorBans {
    /// Nanoseconds for which a client at `ip`, in canonical form, is still banned.
    #[inline(always)]
    pub fn ban_left_ns(&self, ip: IpAddr, account: Option<&[u8]>, now: Now) -> Option<u64> {
        if self.last_end.load(Relaxed) <= now.0 {
            return None;
        }
        self.set.load().last_ban(ip, account, now).map(|ban| ban.until.ns_since(now))
    }

    /// The ban of such a client that ends last.
    pub fn find_ban(&self, ip: IpAddr, account: Option<&[u8]>, now: Now) -> Option<Arc<OperatorBan>> {
        self.set.load().last_ban(ip, account, now).cloned()
    }

    /// All active bans, of networks first.
    pub fn list_bans(&self, now: Now) -> Vec<Arc<OperatorBan>> {
        self.set.load().iter().filter(|ban| ban.until > now).cloned().collect()
    }

    /// The number of active bans.
    pub fn active_count(&self, now: Now) -> usize {
        if self.last_end.load(Relaxed) <= now.0 {
            return 0;
        }
        self.set.load().iter().filter(|ban| ban.until > now).count()
    }

    /// Starts a ban; a ban of the same target is replaced. Returns it, and the one it replaced.
    ///
    /// # Errors
    /// The ban is not valid, or there are too many.
    pub fn add_ban(
        &self,
        new: NewBan,
        now: Now,
    ) -> Result<(Arc<OperatorBan>, Option<Arc<OperatorBan>>), BanFault> {
        let NewBan { target, lasts, reason, by } = new;
        if lasts.is_zero() || lasts > LENGTH_MAX {
            return Err(BanFault::Length);
        }
        if reason.len().max(by.len()) > TEXT_MAX {
            return Err(BanFault::Text);
        }
        // Cannot be cut short: a year has fewer than 2^55 ns.
        let until = Now(now.0.saturating_add(lasts.as_nanos() as u64));
        let ban = Arc::new(OperatorBan { target, at: now, until, reason, by });
        let _changing = self.changing.lock();
        let mut set = self.set.load().active_at(now);
        let replaced = set.insert(ban.clone());
        if set.len() > BANS_MAX {
            return Err(BanFault::TooMany);
        }
        self.replace_set(set);
        Ok((ban, replaced))
    }

    /// Ends the ban of exactly this target, and returns it.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_ban(&self, target: &BanTarget, now: Now) -> Result<Arc<OperatorBan>, UnbanFault> {
        let _changing = self.changing.lock();
        let mut set = self.set.load().active_at(now);
        let Some(ban) = set.remove(target) else {
            return Err(set.network_around(target).map_or(UnbanFault::NotBanned, UnbanFault::InNetwork));
        };
        self.replace_set(set);
        Ok(ban)
    }

    /// All active bans, for another process.
    pub fn save_bans(&self, now: Now) -> Vec<OperatorBan> {
        self.list_bans(now).iter().map(|ban| OperatorBan::clone(ban)).collect()
    }

    /// The active ban of exactly this target.
    pub fn find_exact(&self, target: &BanTarget, now: Now) -> Option<Arc<OperatorBan>> {
        self.set.load().get(target).filter(|ban| ban.until > now).cloned()
    }

    /// Makes these bans the only ones, each with its end.
    pub fn replace_bans(&self, bans: impl IntoIterator<Item = (OperatorBan, Now)>) {
        let _changing = self.changing.lock();
        let mut set = BanSet::default();
        for (ban, until) in bans.into_iter().take(BANS_MAX) {
            set.insert(Arc::new(OperatorBan { until, ..ban.with_short_texts() }));
        }
        self.replace_set(set);
    }

    /// Adopts the bans of another process, as far as they are still active.
    pub fn restore_bans(&self, saved: Vec<OperatorBan>, now: Now) {
        let _changing = self.changing.lock();
        let mut set = self.set.load().active_at(now);
        for ban in saved.into_iter().take(BANS_MAX) {
            if ban.until > now && set.len() < BANS_MAX {
                set.insert(Arc::new(ban.with_short_texts()));
            }
        }
        self.replace_set(set);
    }

    fn replace_set(&self, set: BanSet) {
        let last_end = set.iter().map(|ban| ban.until.0).max().unwrap_or(0);
        self.set.store(Arc::new(set));
        self.last_end.store(last_end, Relaxed);
    }
}

// === impl BanSet ===

impl BanSet {
    fn iter(&self) -> impl Iterator<Item = &Arc<OperatorBan>> {
        self.networks.iter().map(|(_, ban)| ban).chain(self.accounts.values())
    }

    fn len(&self) -> usize {
        self.networks.len() + self.accounts.len()
    }

    fn last_ban(&self, ip: IpAddr, account: Option<&[u8]>, now: Now) -> Option<&Arc<OperatorBan>> {
        let of_networks = self.networks.cover_values(&IpNet::from(ip));
        let of_account = account.and_then(|account| self.accounts.get(account));
        of_networks.chain(of_account).filter(|ban| ban.until > now).max_by_key(|ban| ban.until)
    }

    /// The bans that are active at `now`.
    fn active_at(&self, now: Now) -> BanSet {
        if self.iter().all(|ban| ban.until > now) {
            return self.clone();
        }
        let mut active = BanSet::default();
        self.iter().filter(|ban| ban.until > now).for_each(|ban| drop(active.insert(ban.clone())));
        active
    }

    fn get(&self, target: &BanTarget) -> Option<&Arc<OperatorBan>> {
        match target {
            BanTarget::Network(network) => self.networks.get(network),
            BanTarget::Account(name) => self.accounts.get(name.as_bytes()),
        }
    }

    /// Returns the ban of the same target that it replaces.
    fn insert(&mut self, ban: Arc<OperatorBan>) -> Option<Arc<OperatorBan>> {
        match &ban.target {
            BanTarget::Network(network) => self.networks.insert(*network, ban.clone()),
            BanTarget::Account(name) => self.accounts.insert(name.clone().into_bytes(), ban.clone()),
        }
    }

    fn remove(&mut self, target: &BanTarget) -> Option<Arc<OperatorBan>> {
        match target {
            BanTarget::Network(network) => self.networks.remove(network),
            BanTarget::Account(name) => self.accounts.remove(name.as_bytes()),
        }
    }

    /// The smallest banned network that covers the target.
    fn network_around(&self, target: &BanTarget) -> Option<IpNet> {
        match target {
            BanTarget::Network(network) => self.networks.cover(network).last().map(|(around, _)| around),
            BanTarget::Account(_) => None,
        }
    }
}

// === impl OperatorBan ===

impl OperatorBan {
    /// The ban of another process, which may allow longer texts.
    fn with_short_texts(mut self) -> OperatorBan {
        for text in [&mut self.reason, &mut self.by] {
            let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
        }
        self
    }
}

#[cfg(test)]
mod tests;
