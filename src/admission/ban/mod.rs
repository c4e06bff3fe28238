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

use crate::base::clock::{Now, Shift};
use crate::config::{self, BanKey, KeyPart, MissingKey};
use crate::limit::table::saved::{KeptTable, Saved, take};
use crate::limit::table::{Entry, Key, Table};
use crate::request::key;
use crate::request::key::{KeyOutcome, KeySpec, Keys, Subject};
use active::Running;
use outbox::Noted;
use strikes::{Budget, Pool, Strikes};

pub use sync::{share, share_by};

/// The strikes and bans of all clients.
pub struct Bans {
    spec: KeySpec,
    /// The strike that starts a ban, and within how many nanoseconds.
    after: u32,
    period_ns: u64,
    first_ns: u64,
    longest_ns: u64,
    max_keys: usize,
    known: Arc<Known>,
}

/// What is known of all clients.
struct Known {
    key: BanKey,
    table: Table<Record>,
    budget: Budget,
    running: Running,
    /// Of shared bans.
    noted: Option<Noted>,
}

/// What a strike led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    Counted,
    Started(Started),
    /// A ban runs already: this one is not counted.
    Banned,
    /// No room for this client, and it cannot be told from its neighbours: not counted.
    Uncounted,
}

/// A ban that begins now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Nanoseconds that it lasts.
    pub lasts_ns: u64,
    /// How many bans in a row came before it.
    pub repeats: u32,
    /// Whether to tell the operator, and how many were not told before; bounded per second.
    pub told: Option<u64>,
}

/// Whom a strike of a request would count against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blamed {
    Key(Key),
    /// The account and the address, of which [`Bans::key_of`] makes the key: a hash that most requests never need.
    Named,
}

/// Whom the operator is told to be banned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub ip: IpAddr,
    /// As lines of the log show it.
    pub account: Option<String>,
}

/// What became of a ban that the store told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    New,
    /// It runs already.
    Known,
    /// No room for this client.
    NoRoom,
}

/// What is known of one client.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
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
    pub fn new(config: &config::Bans, max_keys: usize) -> Bans {
        Bans::after(None, config, max_keys, false)
    }

    /// As [`Bans::new`], for bans that are shared once [`share`] runs.
    pub fn shared(config: &config::Bans, max_keys: usize) -> Bans {
        Bans::after(None, config, max_keys, true)
    }

    /// Goes on with what the bans `before` know, if they have the same key and are shared as these are. Bans that run
    /// end when they were to end.
    pub fn after(before: Option<&Bans>, config: &config::Bans, max_keys: usize, shared: bool) -> Bans {
        let part = match config.key {
            BanKey::Ip => KeyPart::Ip,
            BanKey::Account => KeyPart::Account,
        };
        let ns = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let same = before.map(|before| &before.known);
        let same = same.filter(|known| known.key == config.key && known.noted.is_some() == shared);
        let fresh = || Known {
            key: config.key,
            table: Table::new(max_keys),
            budget: Budget::new(max_keys.saturating_mul(TIMES_PER_KEY)),
            running: Running::default(),
            noted: shared.then(Noted::default),
        };
        Bans {
            spec: KeySpec::new(&[part], MissingKey::Ip),
            after: u32::try_from(config.after.units.get()).unwrap_or(u32::MAX),
            period_ns: ns(config.after.period),
            first_ns: ns(config.first),
            longest_ns: ns(config.longest),
            max_keys,
            known: same.cloned().unwrap_or_else(|| Arc::new(fresh())),
        }
    }

    /// From now on these bans' cap on clients counts.
    pub fn apply(&self, clock: &dyn Fn() -> Now) {
        self.known.table.convert(&Arc::default(), self.max_keys, clock);
    }

    /// Whose strikes a request would add to: its account, or else its masked address.
    #[inline]
    pub fn key(&self, keys: &Keys, subject: &Subject<'_>) -> Key {
        if self.known.noted.is_some()
            && let Some(id) = key::shared(&self.spec, subject)
        {
            return sync::local(id);
        }
        match keys.key(&self.spec, subject) {
            KeyOutcome::Key(key) => key,
            KeyOutcome::Skip | KeyOutcome::Missing | KeyOutcome::Duplicate => keys.ip(subject.ip),
        }
    }

    /// As [`Bans::key`], of what a request of [`Blamed::Named`] told; `ip` is masked.
    pub fn key_of(&self, keys: &Keys, ip: IpAddr, account: Option<&str>) -> Key {
        let subject = Subject {
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
        self.key(keys, &subject)
    }

    /// Whom a strike would count against, and the nanoseconds that it is still banned; changes nothing.
    #[inline]
    pub fn judge(&self, keys: &Keys, subject: &Subject<'_>, now: Now) -> (Blamed, Option<u64>) {
        let is_text = |account: &[u8]| str::from_utf8(account).is_ok();
        if self.known.noted.is_some() && !self.known.running.any(now) && subject.account.is_none_or(is_text) {
            return (Blamed::Named, None);
        }
        let key = self.key(keys, subject);
        (Blamed::Key(key), self.left(&key, now))
    }

    /// Nanoseconds that the client is still banned; changes nothing.
    #[inline]
    pub fn left(&self, key: &Key, now: Now) -> Option<u64> {
        if !self.known.running.any(now) {
            return None;
        }
        let until = self.known.table.peek(key, |record, _, ()| record.banned_until);
        until.checked_sub(now.0).filter(|left| *left > 0)
    }

    /// Notes a refusal by a rate or a queue for the store; `None` if it is to be counted here.
    pub fn note(&self, key: &Key, now: Now, who: impl FnOnce() -> Who) -> Option<Strike> {
        let noted = self.known.noted.as_ref()?;
        if self.left(key, now).is_some() {
            return Some(Strike::Banned);
        }
        Some(if noted.add(key, now, who) { Strike::Counted } else { Strike::Uncounted })
    }

    /// Takes over a ban that another told.
    pub fn install(&self, key: &Key, until: Now, repeats: u32, now: Now) -> Installed {
        let installed = self.known.table.update(key, now, |record, pool, (), shared| {
            if shared {
                return Installed::NoRoom;
            }
            let runs_to = record.banned_until.max(now.0);
            let known = if record.banned_until > now.0 { SAME_BAN_NS } else { 0 };
            if until.0.saturating_sub(known) <= runs_to {
                return Installed::Known;
            }
            record.strikes.clear(pool);
            (record.banned_until, record.repeats) = (until.0, repeats);
            record.idle_at = until.0.saturating_add(self.longest_ns);
            Installed::New
        });
        if installed == Installed::New {
            self.known.running.resume(until.0, now);
        }
        installed
    }

    /// Counts a refusal by a rate or a queue.
    pub fn strike(&self, key: &Key, now: Now) -> Strike {
        let strike = self.known.table.update(key, now, |record, pool, (), shared| {
            if shared {
                return Strike::Uncounted;
            }
            if record.banned_until > now.0 {
                return Strike::Banned;
            }
            let strikes = record.strikes.add(now, self.period_ns, pool, &self.known.budget);
            record.idle_at = record.idle_at.max(now.0.saturating_add(self.period_ns));
            if strikes < self.after { Strike::Counted } else { Strike::Started(self.ban(record, pool, now)) }
        });
        let Strike::Started(mut started) = strike else { return strike };
        started.told = self.known.running.start(now.0.saturating_add(started.lasts_ns), now);
        Strike::Started(started)
    }

    fn ban(&self, record: &mut Record, pool: &mut Pool, now: Now) -> Started {
        let before = (record.banned_until > 0).then_some(Now(record.banned_until));
        let repeated = before.is_some_and(|ended| now.since(ended) < self.longest_ns);
        record.repeats = if repeated { record.repeats.saturating_add(1) } else { 0 };
        let doubled = 1_u64.checked_shl(record.repeats).and_then(|times| self.first_ns.checked_mul(times));
        let lasts_ns = doubled.unwrap_or(u64::MAX).min(self.longest_ns);
        record.strikes.clear(pool);
        record.banned_until = now.0.saturating_add(lasts_ns);
        record.idle_at = record.banned_until.saturating_add(self.longest_ns);
        Started { lasts_ns, repeats: record.repeats, told: None }
    }

    /// What a snapshot keeps; of shared bans nothing, the store has them.
    pub fn kept(&self) -> Option<KeptTable<'_>> {
        if self.known.noted.is_some() {
            return None;
        }
        let mut hasher = SipHasher13::new();
        let Bans { spec, after, period_ns, first_ns, longest_ns, .. } = self;
        hasher.write(format!("{spec:?} {after} {period_ns} {first_ns} {longest_ns}").as_bytes());
        Some(KeptTable { name: "bans", fingerprint: hasher.finish(), table: &self.known.table })
    }

    /// Counts the bans that a snapshot brought back.
    pub fn restored(&self, now: Now) {
        self.known.table.each(|record| {
            if record.banned_until > now.0 {
                self.known.running.resume(record.banned_until, now);
            }
        });
    }

    /// Bans that run now.
    pub fn active(&self, now: Now) -> usize {
        self.known.running.count(now)
    }
}

// === impl Started ===

impl Started {
    /// Tells the operator, unless there was too much to tell.
    pub fn tell(&self, who: &Who) {
        let Some(untold) = self.told else { return };
        let (ip, account, repeats) = (who.ip, &who.account, self.repeats);
        let lasts = humantime::format_duration(Duration::from_nanos(self.lasts_ns));
        tracing::info!(%ip, account, %lasts, repeats, untold, "a client is banned");
    }
}

// === impl Record ===

impl Entry for Record {
    type Extra = Pool;

    fn is_idle(&self, now: Now) -> bool {
        self.idle_at <= now.0
    }

    /// Nothing is ever counted on a shared record, so that a newcomer owes nothing.
    fn inherit(&self) -> Option<Record> {
        Some(Record::default())
    }

    fn forget(mut self, pool: &mut Pool) {
        self.strikes.clear(pool);
    }
}

impl Saved for Record {
    fn encode(&self, pool: &Pool, out: &mut Vec<u8>) {
        self.strikes.encode(pool, out);
        out.extend(self.banned_until.to_le_bytes());
        out.extend(self.idle_at.to_le_bytes());
        out.extend(self.repeats.to_le_bytes());
    }

    fn decode(mut bytes: &[u8], shift: Shift, _: &mut Pool) -> Option<Record> {
        let strikes = Strikes::decode(&mut bytes, shift)?;
        let banned_until = u64::from_le_bytes(take(&mut bytes)?);
        let record = Record {
            strikes,
            // 0 is no moment: there was no ban.
            banned_until: if banned_until == 0 { 0 } else { shift.moment(banned_until).max(1) },
            idle_at: shift.moment(u64::from_le_bytes(take(&mut bytes)?)),
            repeats: u32::from_le_bytes(take(&mut bytes)?),
        };
        bytes.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests;
