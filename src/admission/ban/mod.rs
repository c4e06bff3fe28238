//! Bans: a client that is refused too often is not judged for a while.
//!
//! The Nth strike within any span of the period starts the ban. It lasts `for`; one that starts less than `max` after
//! the one before had ended lasts twice as long as that, up to `max`; later ones begin with `for` again.
//! Whatever bounds the memory errs towards banning late or not at all, never towards banning a neighbour.
//!
//! Shared bans are judged here, too: strikes are told to the store, which says when a ban starts, and all gateways
//! install it. While the store cannot be told, strikes count here.

mod active;
mod ledger;
mod outbox;
mod strikes;
mod sync;

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use siphasher::sip::SipHasher13;

use crate::base::clock::{ClockShift, Now};
use crate::config::{self, BanKey, KeyPart, MissingKey};
use crate::limit::table::persistent::{PersistentEntry, SnapshotTable, take_bytes};
use crate::limit::table::{CounterKey, Table, TableEntry};
use crate::request::key;
use crate::request::key::{KeyHasher, KeyInput, KeyOutcome, KeySpec};
use active::ActiveBans;
use outbox::StrikeOutbox;
use strikes::{StrikeBudget, StrikePool, Strikes};

pub use sync::{share_bans, share_bans_by};

/// The strikes and bans of all clients.
pub struct Bans {
    spec: KeySpec,
    /// The strike that starts a ban, and within how many nanoseconds.
    after: u32,
    period_ns: u64,
    first_ns: u64,
    longest_ns: u64,
    max_keys: usize,
    state: Arc<BanState>,
}

/// What is known of all clients.
struct BanState {
    key: BanKey,
    table: Table<ClientRecord>,
    budget: StrikeBudget,
    active: ActiveBans,
    /// Of shared bans.
    outbox: Option<StrikeOutbox>,
}

/// What a strike led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrikeOutcome {
    Counted,
    Started(BanStart),
    /// A ban runs already: this one is not counted.
    Banned,
    /// No room for this client, and it cannot be told from its neighbours: not counted.
    Uncounted,
}

/// A ban that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BanStart {
    /// Nanoseconds that it lasts.
    pub lasts_ns: u64,
    /// How many bans in a row came before it.
    pub repeats: u32,
    /// Whether to tell the operator, and how many were not told before; bounded per second.
    pub log_skipped: Option<u64>,
}

/// Whom a strike of a request would count against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrikeTarget {
    Key(CounterKey),
    /// The account and the address, of which [`Bans::key_of`] makes the key: a hash that most requests never need.
    Deferred,
}

/// Whom the operator is told to be banned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    pub ip: IpAddr,
    /// As lines of the log show it.
    pub account: Option<String>,
}

/// What became of a ban that the store told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallOutcome {
    New,
    /// It runs already.
    AlreadyActive,
    /// No room for this client.
    NoRoom,
}

/// What is known of one client.
#[derive(Debug, Clone, Copy, Default)]
struct ClientRecord {
    strikes: Strikes,
    /// When its last ban ends or ended; 0 = there was none.
    banned_until: u64,
    /// When nothing of this matters any more.
    idle_at: u64,
    repeats: u32,
}

/// Strike times remembered per key that the table may hold; each key has one more of its own.
const TIMES_PER_KEY: usize = 4;
/// A ban that the store tells again ends at another moment, for the time that telling took.
const SAME_BAN_NS: u64 = 1_000_000_000;

// === impl Bans ===

impl Bans {
    /// Remembers at most `max_keys` clients.
    pub fn new(config: &config::BansConfig, max_keys: usize) -> Bans {
        Bans::adopt_from(None, config, max_keys, false)
    }

    /// As [`Bans::new`], for bans that are shared once [`share`] runs.
    pub fn new_shared(config: &config::BansConfig, max_keys: usize) -> Bans {
        Bans::adopt_from(None, config, max_keys, true)
    }

    /// Goes on with what the bans `before` know, if they have the same key and are shared as these are. Bans that run
    /// end when they were to end.
    pub fn adopt_from(
        before: Option<&Bans>,
        config: &config::BansConfig,
        max_keys: usize,
        shared: bool,
    ) -> Bans {
        let part = match config.key {
            BanKey::Ip => KeyPart::Ip,
            BanKey::Account => KeyPart::Account,
        };
        let ns = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let same = before.map(|before| &before.state);
        let same = same.filter(|known| known.key == config.key && known.outbox.is_some() == shared);
        let fresh = || BanState {
            key: config.key,
            table: Table::new(max_keys),
            budget: StrikeBudget::new(max_keys.saturating_mul(TIMES_PER_KEY)),
            active: ActiveBans::default(),
            outbox: shared.then(StrikeOutbox::default),
        };
        Bans {
            spec: KeySpec::new(&[part], MissingKey::Ip),
            after: u32::try_from(config.after.units.get()).unwrap_or(u32::MAX),
            period_ns: ns(config.after.period),
            first_ns: ns(config.first),
            longest_ns: ns(config.longest),
            max_keys,
            state: same.cloned().unwrap_or_else(|| Arc::new(fresh())),
        }
    }

    /// From now on these bans' cap on clients counts.
    pub fn apply_cap(&self, clock: &dyn Fn() -> Now) {
        self.state.table.replace_params(&Arc::default(), self.max_keys, clock);
    }

    /// Whose strikes a request would add to: its account, or else its masked address.
    #[inline]
    pub fn client_key(&self, keys: &KeyHasher, subject: &KeyInput<'_>) -> CounterKey {
        if self.state.outbox.is_some()
            && let Some(id) = key::hash_shared(&self.spec, subject)
        {
            return sync::local_key(id);
        }
        match keys.hash_key(&self.spec, subject) {
            KeyOutcome::Key(key) => key,
            KeyOutcome::Skip | KeyOutcome::Missing | KeyOutcome::Duplicate => keys.hash_ip(subject.ip),
        }
    }

    /// As [`Bans::key`], of what a request of [`StrikeTarget::Named`] told; `ip` is masked.
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
            token: None,
        };
        self.client_key(keys, &subject)
    }

    /// Whom a strike would count against, and the nanoseconds that it is still banned; changes nothing.
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

    /// Nanoseconds that the client is still banned; changes nothing.
    #[inline]
    pub fn ban_left_ns(&self, key: &CounterKey, now: Now) -> Option<u64> {
        if !self.state.active.any_active(now) {
            return None;
        }
        let until = self.state.table.peek_entry(key, |record, _, ()| record.banned_until);
        until.checked_sub(now.0).filter(|left| *left > 0)
    }

    /// Notes a refusal by a rate or a queue for the store; `None` if it is to be counted here.
    pub fn queue_strike(
        &self,
        key: &CounterKey,
        now: Now,
        who: impl FnOnce() -> ClientIdentity,
    ) -> Option<StrikeOutcome> {
        let noted = self.state.outbox.as_ref()?;
        if self.ban_left_ns(key, now).is_some() {
            return Some(StrikeOutcome::Banned);
        }
        Some(if noted.add_strike(key, now, who) { StrikeOutcome::Counted } else { StrikeOutcome::Uncounted })
    }

    /// Takes over a ban that another told.
    pub fn install_ban(&self, key: &CounterKey, until: Now, repeats: u32, now: Now) -> InstallOutcome {
        let installed = self.state.table.update_entry(key, now, |record, pool, (), shared| {
            if shared {
                return InstallOutcome::NoRoom;
            }
            let runs_to = record.banned_until.max(now.0);
            let known = if record.banned_until > now.0 { SAME_BAN_NS } else { 0 };
            if until.0.saturating_sub(known) <= runs_to {
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

    /// Counts a refusal by a rate or a queue.
    pub fn count_strike(&self, key: &CounterKey, now: Now) -> StrikeOutcome {
        let strike = self.state.table.update_entry(key, now, |record, pool, (), shared| {
            if shared {
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
        started.log_skipped = self.state.active.start_ban(now.0.saturating_add(started.lasts_ns), now);
        StrikeOutcome::Started(started)
    }

    fn start_ban(&self, record: &mut ClientRecord, pool: &mut StrikePool, now: Now) -> BanStart {
        let before = (record.banned_until > 0).then_some(Now(record.banned_until));
        let repeated = before.is_some_and(|ended| now.ns_since(ended) < self.longest_ns);
        record.repeats = if repeated { record.repeats.saturating_add(1) } else { 0 };
        let doubled = 1_u64.checked_shl(record.repeats).and_then(|times| self.first_ns.checked_mul(times));
        let lasts_ns = doubled.unwrap_or(u64::MAX).min(self.longest_ns);
        record.strikes.clear(pool);
        record.banned_until = now.0.saturating_add(lasts_ns);
        record.idle_at = record.banned_until.saturating_add(self.longest_ns);
        BanStart { lasts_ns, repeats: record.repeats, log_skipped: None }
    }

    /// What a snapshot keeps; of shared bans nothing, the store has them.
    pub fn saved_table(&self) -> Option<SnapshotTable<'_>> {
        if self.state.outbox.is_some() {
            return None;
        }
        let mut hasher = SipHasher13::new();
        let Bans { spec, after, period_ns, first_ns, longest_ns, .. } = self;
        hasher.write(format!("{spec:?} {after} {period_ns} {first_ns} {longest_ns}").as_bytes());
        Some(SnapshotTable { name: "bans", fingerprint: hasher.finish(), table: &self.state.table })
    }

    /// Counts the bans that a snapshot brought back.
    pub fn count_restored(&self, now: Now) {
        self.state.table.for_each_entry(|record| {
            if record.banned_until > now.0 {
                self.state.active.add_ban(record.banned_until, now);
            }
        });
    }

    /// Bans that run now.
    pub fn active_count(&self, now: Now) -> usize {
        self.state.active.count_active(now)
    }
}

// === impl Started ===

impl BanStart {
    /// Tells the operator, unless there was too much to tell.
    pub fn log_start(&self, who: &ClientIdentity) {
        let Some(untold) = self.log_skipped else { return };
        let (ip, account, repeats) = (who.ip, &who.account, self.repeats);
        let lasts = humantime::format_duration(Duration::from_nanos(self.lasts_ns));
        tracing::info!(%ip, account, %lasts, repeats, untold, "a client is banned");
    }
}

// === impl Record ===

impl TableEntry for ClientRecord {
    type Extra = StrikePool;

    fn is_idle(&self, now: Now) -> bool {
        self.idle_at <= now.0
    }

    /// Nothing is ever counted on a shared record, so that a newcomer owes nothing.
    fn inherit_overflow(&self) -> Option<ClientRecord> {
        Some(ClientRecord::default())
    }

    fn release_extra(mut self, pool: &mut StrikePool) {
        self.strikes.clear(pool);
    }
}

impl PersistentEntry for ClientRecord {
    fn encode_entry(&self, pool: &StrikePool, out: &mut Vec<u8>) {
        self.strikes.encode_into(pool, out);
        out.extend(self.banned_until.to_le_bytes());
        out.extend(self.idle_at.to_le_bytes());
        out.extend(self.repeats.to_le_bytes());
    }

    fn decode_entry(mut bytes: &[u8], shift: ClockShift, _: &mut StrikePool) -> Option<ClientRecord> {
        let strikes = Strikes::decode_from(&mut bytes, shift)?;
        let banned_until = u64::from_le_bytes(take_bytes(&mut bytes)?);
        let record = ClientRecord {
            strikes,
            // 0 is no moment: there was no ban.
            banned_until: if banned_until == 0 { 0 } else { shift.translate_ns(banned_until).max(1) },
            idle_at: shift.translate_ns(u64::from_le_bytes(take_bytes(&mut bytes)?)),
            repeats: u32::from_le_bytes(take_bytes(&mut bytes)?),
        };
        bytes.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests;
