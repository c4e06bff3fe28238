//! Bans: a client that is rejected or refused too often is turned away for a while without being judged.
//!
//! The Nth strike within any span of the period starts a ban, which lasts `for`. A ban that starts less than `max`
//! after the previous one ended lasts twice as long as that one, up to `max`; a later one begins with `for` again.
//! Bounded memory errs towards banning late or not at all, never towards banning a neighbour.
//!
//! Shared bans are enforced here too: the control thread reports strikes to the store, which decides when a ban
//! starts, and all gateways install it. Requests consult the local table alone. While the store cannot be reached,
//! strikes count here. Bans that the store does not know (begun during an outage, or lost when it was emptied) are
//! reported to it from a ledger.

mod active;
mod ledger;
mod named;
mod outbox;
mod strikes;
mod sync;

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::{HeaderMap, Method};
use ipnet::IpNet;
use siphasher::sip::SipHasher13;

use active::ActiveBans;
use named::NamedBans;
use outbox::StrikeOutbox;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_http::request::key::{self, KeyHasher, KeyInput, KeyOutcome, KeySpec};
use sluicegate_limit::table::persistent::SnapshotTable;
use sluicegate_limit::table::{CounterKey, Table};
use sluicegate_model::{self as model, BanKey, KeyPart, MissingKey, StrikeRules};
use strikes::{ClientRecord, StrikePool};

pub use named::{AutomaticBan, LiftedBan, SavedName};
pub use sync::{share_bans, share_bans_by};

/// The strikes and bans of all clients.
pub struct Bans {
    spec: KeySpec,
    /// Strikes that start a ban, within `period_ns`.
    after: u32,
    period_ns: u64,
    first_ns: u64,
    longest_ns: u64,
    max_keys: usize,
    strikes: StrikeRules,
    state: Arc<BanState>,
}

/// The records of all clients.
struct BanState {
    key: BanKey,
    table: Table<ClientRecord>,
    /// The number of strike times that the pools of all shards may still add.
    budget: AtomicUsize,
    active: ActiveBans,
    named: NamedBans,
    /// Present for shared bans.
    outbox: Option<StrikeOutbox>,
}

/// The outcome of a strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrikeOutcome {
    /// The strike was counted and starts no ban.
    Counted,
    /// The strike started this ban.
    Started(BanStart),
    /// A ban is active already: the strike is not counted.
    Banned,
    /// The table has no room for this client, and it cannot be told from its neighbours: the strike is not counted.
    Uncounted,
}

/// A ban that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BanStart {
    /// The length in nanoseconds.
    pub lasts_ns: u64,
    /// The number of consecutive bans before it.
    pub repeats: u32,
    /// The number of earlier unlogged starts, if this one is to be logged. The log is bounded per second.
    pub log_skipped: Option<u64>,
}

/// The client that a strike of a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrikeTarget {
    /// The key of the client.
    Key(CounterKey),
    /// The account and the address, from which [`Bans::deferred_key`] makes the key: a hash that most requests never
    /// need.
    Deferred,
}

/// The client as the log names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The client's address, not masked.
    pub ip: IpAddr,
    /// The masked address, by which limits count.
    pub network: IpNet,
    /// The text in log lines.
    pub account: Option<String>,
}

/// The outcome of installing a ban that the store announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallOutcome {
    /// The ban is in force from now on, in place of one that ends earlier.
    New,
    /// A ban that ends as late, or nearly so, was active already.
    AlreadyActive,
    /// The table has no room for this client.
    NoRoom,
}

/// Strike times that the pools may hold per key of the table; each record holds one more itself.
const TIMES_PER_KEY: usize = 4;
/// Tolerance for the end of the same ban: when the store announces it again, it ends later by the time that the call
/// took.
const SAME_BAN_NS: u64 = 1_000_000_000;

// === impl Bans ===

impl Bans {
    /// Bans of this process alone, which remember at most `max_keys` clients.
    pub fn new(config: &model::BansConfig, max_keys: usize) -> Bans {
        Bans::adopt_from(None, config, max_keys, false)
    }

    /// Bans that remember at most `max_keys` clients; `shared` ones are so once [`share_bans`] runs. They continue with
    /// the records of `before`, if those bans have the same key and are shared alike. Active bans keep their end.
    pub fn adopt_from(
        before: Option<&Bans>,
        config: &model::BansConfig,
        max_keys: usize,
        shared: bool,
    ) -> Bans {
        let part = match config.key {
            BanKey::Ip => KeyPart::Ip,
            BanKey::Account => KeyPart::Account,
        };
        let state = before.map(|before| &before.state);
        let state = state.filter(|state| state.key == config.key && state.outbox.is_some() == shared);
        let fresh = || BanState {
            key: config.key,
            table: Table::new(max_keys),
            budget: AtomicUsize::new(max_keys.saturating_mul(TIMES_PER_KEY)),
            active: ActiveBans::default(),
            named: NamedBans::default(),
            outbox: shared.then(StrikeOutbox::default),
        };
        Bans {
            spec: KeySpec::new(&[part], MissingKey::Ip),
            after: u32::try_from(config.after.units.get()).unwrap_or(u32::MAX),
            period_ns: duration_ns(config.after.period),
            first_ns: duration_ns(config.first),
            longest_ns: duration_ns(config.longest),
            max_keys,
            strikes: config.strikes.clone(),
            state: state.cloned().unwrap_or_else(|| Arc::new(fresh())),
        }
    }

    /// The events that count towards these bans.
    pub fn strike_rules(&self) -> &StrikeRules {
        &self.strikes
    }

    /// Puts the cap on clients of these bans into force.
    pub fn apply_cap(&self, clock: &dyn Fn() -> Now) {
        self.state.table.replace_params(&Arc::default(), self.max_keys, clock);
    }

    /// The key under which a request's strikes count: its account, or else its masked address.
    #[inline]
    pub fn client_key(&self, keys: &KeyHasher, subject: &KeyInput<'_>) -> CounterKey {
        if self.state.outbox.is_some()
            && let Some(id) = key::hash_shared(&self.spec, subject)
        {
            return sync::local_key(u128::from_le_bytes(id));
        }
        match keys.hash_key(&self.spec, subject) {
            KeyOutcome::Key(key) => key,
            KeyOutcome::Skip | KeyOutcome::Missing | KeyOutcome::Duplicate => keys.hash_ip(subject.ip),
        }
    }

    /// [`Bans::client_key`] for a request of [`StrikeTarget::Deferred`]; `ip` is masked.
    pub fn deferred_key(&self, keys: &KeyHasher, ip: IpAddr, account: Option<&str>) -> CounterKey {
        let subject = KeyInput {
            ip,
            ip_key: None,
            account: account.map(str::as_bytes),
            tier: "",
            path: b"",
            query: None,
            location: None,
            host: "",
            method: &Method::GET,
            headers: &HeaderMap::new(),
            trusted_peer: false,
            token: None,
            body: None,
        };
        self.client_key(keys, &subject)
    }

    /// The client that a strike would count against, and the nanoseconds for which it is still banned. Changes
    /// nothing.
    #[inline]
    pub fn judge(&self, keys: &KeyHasher, subject: &KeyInput<'_>, now: Now) -> (StrikeTarget, Option<u64>) {
        let is_text = |account: &[u8]| str::from_utf8(account).is_ok();
        if self.state.outbox.is_some()
            && !self.state.active.any_active(now)
            && subject.account.is_none_or(is_text)
        {
            return (StrikeTarget::Deferred, None);
        }
        let key = self.client_key(keys, subject);
        (StrikeTarget::Key(key), self.ban_left_ns(&key, now))
    }

    /// Nanoseconds for which the client is still banned; `None` if it is not. Changes nothing.
    #[inline]
    pub fn ban_left_ns(&self, key: &CounterKey, now: Now) -> Option<u64> {
        if !self.state.active.any_active(now) {
            return None;
        }
        let until = self.state.table.peek_entry(key, |record, _, ()| record.banned_until);
        until.checked_sub(now.0).filter(|left| *left > 0)
    }

    /// Queues a strike for the store; `None` if it must be counted here.
    pub fn queue_strike(
        &self,
        key: &CounterKey,
        now: Now,
        client: impl FnOnce() -> ClientIdentity,
    ) -> Option<StrikeOutcome> {
        let outbox = self.state.outbox.as_ref()?;
        if self.ban_left_ns(key, now).is_some() {
            return Some(StrikeOutcome::Banned);
        }
        Some(outbox.add_strike(key, now, client))
    }

    /// Installs a ban that the store announced.
    pub fn install_ban(&self, key: &CounterKey, until: Now, repeats: u32, now: Now) -> InstallOutcome {
        let installed = self.state.table.update_entry(key, now, |record, pool, (), overflow| {
            if overflow {
                return InstallOutcome::NoRoom;
            }
            let current_end = record.banned_until.max(now.0);
            let tolerance = if record.banned_until > now.0 { SAME_BAN_NS } else { 0 };
            if until.0.saturating_sub(tolerance) <= current_end {
                return InstallOutcome::AlreadyActive;
            }
            record.strikes.clear(pool);
            (record.banned_until, record.repeats) = (until.0, repeats);
            record.idle_at = until.0.saturating_add(self.longest_ns);
            InstallOutcome::New
        });
        if installed == InstallOutcome::New {
            self.state.active.add_ban(until.0, now);
        }
        installed
    }

    /// Counts a strike in the local table at `now`, and starts the ban that it completes.
    pub fn count_strike(&self, key: &CounterKey, now: Now) -> StrikeOutcome {
        let strike = self.state.table.update_entry(key, now, |record, pool, (), overflow| {
            if overflow {
                return StrikeOutcome::Uncounted;
            }
            if record.banned_until > now.0 {
                return StrikeOutcome::Banned;
            }
            let strikes = record.strikes.add_strike(now, self.period_ns, pool, &self.state.budget);
            record.idle_at = record.idle_at.max(now.0.saturating_add(self.period_ns));
            if strikes < self.after {
                StrikeOutcome::Counted
            } else {
                StrikeOutcome::Started(self.start_ban(record, pool, now))
            }
        });
        let StrikeOutcome::Started(mut started) = strike else { return strike };
        self.state.active.add_ban(now.0.saturating_add(started.lasts_ns), now);
        started.log_skipped = self.state.active.try_log(now);
        StrikeOutcome::Started(started)
    }

    fn start_ban(&self, record: &mut ClientRecord, pool: &mut StrikePool, now: Now) -> BanStart {
        let before = (record.banned_until > 0).then_some(Now(record.banned_until));
        let repeated = before.is_some_and(|ended| now.ns_since(ended) < self.longest_ns);
        record.repeats = if repeated { record.repeats.saturating_add(1) } else { 0 };
        let lasts_ns = self.ban_length_ns(record.repeats);
        record.strikes.clear(pool);
        record.banned_until = now.0.saturating_add(lasts_ns);
        record.idle_at = record.banned_until.saturating_add(self.longest_ns);
        BanStart { lasts_ns, repeats: record.repeats, log_skipped: None }
    }

    /// The length of a ban after `repeats` consecutive ones.
    fn ban_length_ns(&self, repeats: u32) -> u64 {
        let doubled = 1_u64.checked_shl(repeats).and_then(|times| self.first_ns.checked_mul(times));
        doubled.unwrap_or(u64::MAX).min(self.longest_ns)
    }

    /// The table that a snapshot saves; none for shared bans, which the store keeps.
    pub fn saved_table(&self) -> Option<SnapshotTable<'_>> {
        if self.state.outbox.is_some() {
            return None;
        }
        let mut hasher = SipHasher13::new();
        let Bans { spec, after, period_ns, first_ns, longest_ns, .. } = self;
        hasher.write(format!("{spec:?} {after} {period_ns} {first_ns} {longest_ns}").as_bytes());
        Some(SnapshotTable { name: "bans", fingerprint: hasher.finish(), table: &self.state.table })
    }

    /// Counts the active bans that a snapshot restored.
    pub fn count_restored(&self, now: Now) {
        self.state.table.for_each_entry(|record, _, _| {
            if record.banned_until > now.0 {
                self.state.active.add_ban(record.banned_until, now);
            }
        });
    }

    /// The number of active bans.
    pub fn active_count(&self, now: Now) -> usize {
        self.state.active.count_active(now)
    }
}

// === impl BanStart ===

impl BanStart {
    /// Logs the start, unless too many were logged already.
    pub fn log_start(&self, client: &ClientIdentity) {
        let Some(untold) = self.log_skipped else { return };
        let (ip, account, repeats) = (client.ip, &client.account, self.repeats);
        let lasts = humantime::format_duration(Duration::from_nanos(self.lasts_ns));
        tracing::info!(%ip, account, %lasts, repeats, untold, "a client is banned");
    }
}

#[cfg(test)]
mod tests;
