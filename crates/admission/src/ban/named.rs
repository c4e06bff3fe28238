//! The names of banned clients, which the table keeps as hashes only; and the end of a ban before its time.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Bans, ClientIdentity};
use crate::ban_target::BanTarget;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::BanKey;
use sluicegate_store::SharedKey;

/// The most bans with a name. Further ones are counted, but not listed.
const NAMES_MAX: usize = 10_000;

/// Minimum time between two searches for ended bans.
const PURGE_NS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct NamedBans(Mutex<NamedBansInner>);

#[derive(Debug, Default)]
struct NamedBansInner {
    /// Bans by the id of their key.
    by_key: HashMap<u128, NamedBan>,
    purged: Now,
}

type NamedBan = (CounterKey, AutomaticBan);

/// A ban of a client that was rejected too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutomaticBan {
    /// The client; of an account, the text in log lines.
    pub target: BanTarget,
    /// The moment at which the ban ends.
    pub until: Now,
    /// The number of consecutive bans before it.
    pub repeats: u32,
}

/// A ban that an operator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiftedBan {
    /// The moment at which the ban would have ended.
    pub until: Now,
    /// The client of a shared ban in the store, which still has to forget the ban and the strikes.
    pub in_store: Option<SharedKey>,
}

/// A name in another process; `until` in ns since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedName {
    id: [u8; 16],
    prefix: u64,
    target: BanTarget,
    until: u64,
    repeats: u32,
}

// === impl NamedBans ===

impl NamedBans {
    fn insert(&self, key: CounterKey, ban: AutomaticBan, now: Now) {
        let NamedBansInner { by_key, purged } = &mut *self.0.lock();
        if by_key.len() >= NAMES_MAX && now.ns_since(*purged) >= PURGE_NS {
            by_key.retain(|_, (_, ban)| ban.until > now);
            *purged = now;
        }
        if by_key.len() < NAMES_MAX || by_key.contains_key(&key.id) {
            by_key.insert(key.id, (key, ban));
        }
    }

    /// A copy, so that no request waits for the lock meanwhile.
    fn copy_all(&self) -> Vec<NamedBan> {
        self.0.lock().by_key.values().cloned().collect()
    }
}

// === impl Bans ===

impl Bans {
    /// Keeps the name of a client at the start of its ban.
    pub fn name_ban(&self, key: &CounterKey, client: &ClientIdentity, until: Now, repeats: u32, now: Now) {
        let target = match (self.state.key, &client.account) {
            (BanKey::Account, Some(account)) => BanTarget::Account(account.clone()),
            _ => BanTarget::from_network(client.network),
        };
        self.state.named.insert(*key, AutomaticBan { target, until, repeats }, now);
    }

    /// The active bans of clients that are known by name; [`Bans::active_count`] counts all.
    pub fn list_bans(&self, now: Now) -> Vec<AutomaticBan> {
        let is_active = |(key, _): &NamedBan| self.ban_left_ns(key, now).is_some();
        self.state.named.copy_all().into_iter().filter(is_active).map(|(_, ban)| ban).collect()
    }

    /// The names, for another process that restores the bans themselves or learns them from the store.
    pub fn save_names(&self, now: Now) -> Vec<SavedName> {
        let saved = |(key, ban): NamedBan| SavedName {
            id: key.id.to_le_bytes(),
            prefix: key.prefix,
            target: ban.target,
            until: ban.until.to_unix_ns(),
            repeats: ban.repeats,
        };
        let named = self.state.named.copy_all().into_iter();
        named.filter(|(_, ban)| ban.until > now).map(saved).collect()
    }

    /// Adopts the names of another process that hashes keys alike.
    pub fn restore_names(&self, saved: Vec<SavedName>, now: Now) {
        for SavedName { id, prefix, target, until, repeats } in saved {
            let (key, until) = (CounterKey::new(u128::from_le_bytes(id), prefix), Now::from_unix_ns(until));
            if until > now {
                self.state.named.insert(key, AutomaticBan { target, until, repeats }, now);
            }
        }
    }

    /// The key of a listed ban.
    pub fn find_named(&self, target: &BanTarget) -> Option<CounterKey> {
        let names = self.state.named.0.lock();
        names.by_key.values().find(|(_, ban)| ban.target == *target).map(|(key, _)| *key)
    }

    /// Ends the ban of a client and forgets its strikes: its next ban begins with the first length again. `None`: it
    /// is not banned.
    pub fn lift_ban(&self, key: &CounterKey, now: Now) -> Option<LiftedBan> {
        let until = self.state.table.update_existing(key, false, |record, pool, ()| {
            let until = record.banned_until;
            if until > now.0 {
                record.strikes.clear(pool);
                (record.banned_until, record.repeats, record.idle_at) = (0, 0, 0);
            }
            until
        });
        let until = until.filter(|until| *until > now.0)?;
        self.state.active.remove_ban(until, now);
        self.state.named.0.lock().by_key.remove(&key.id);
        let in_store = self.state.outbox.as_ref().map(|outbox| {
            outbox.ledger.lock().forget_ban(key.id);
            SharedKey(key.id.to_le_bytes())
        });
        Some(LiftedBan { until: Now(until), in_store })
    }
}
