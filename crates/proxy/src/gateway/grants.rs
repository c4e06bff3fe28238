//! Grants: other numbers for one key of a limit, until a moment. A grant is a variant of its limit, as a tier is, so a
//! gateway with another set of grants is built from the one before as after a reload.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Gateway;
use super::key_reset::KeyRef;
use super::limit_changes::{describe_problem, drop_ended_changes};
use sluicegate_admission::operator_bans::TEXT_MAX;
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_model::{self as model, Algorithm, Config, GrantConfig, LimitConfig, LimitId, Problem};

/// The most grants of one limit, and of all.
pub(super) const GRANTS_PER_LIMIT: usize = 100;
pub(super) const GRANTS_MAX: usize = 1000;
/// The longest grant, and that of a limit with windows of the calendar. A longer one belongs in the file, as a tier.
const GRANT_LENGTH_MAX: Duration = Duration::from_secs(30 * 86_400);
const QUOTA_GRANT_LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A grant that an operator asks for.
#[derive(Debug, Clone)]
pub struct NewGrant {
    /// The name of the limit.
    pub limit: String,
    /// The key that gets the numbers.
    pub key: KeyRef,
    /// A mapping with the fields of a tier, in YAML or JSON.
    pub numbers: String,
    /// The length, above zero and at most 30 days, or 366 for windows of the calendar.
    pub lasts: Duration,
    /// The reason, at most [`TEXT_MAX`] bytes.
    pub reason: String,
    /// The name of the operator, at most [`TEXT_MAX`] bytes.
    pub by: String,
}

/// One grant in force.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveGrant {
    /// The name of the limit.
    pub limit: String,
    /// The key as operators write it.
    pub key: String,
    /// The numbers that hold in place of those of the limit or of a tier.
    pub numbers: Algorithm,
    /// The moment at which it was made.
    pub at: Now,
    /// The moment at which it ends.
    pub until: Now,
    /// The reason that the operator gave.
    pub reason: String,
    /// The name of the operator.
    pub by: String,
}

/// Why a grant is not made or not ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantFault {
    /// No limit has this name.
    #[error("there is no such limit")]
    UnknownLimit,
    /// The numbers are not valid, as those of a tier would not be.
    #[error("{}", describe_problem(.0.first()))]
    Numbers(Vec<Problem>),
    /// The length is zero or too long.
    #[error("a grant lasts at least a moment and at most 30 days, or 366 for windows of the calendar")]
    Length,
    /// The key, the reason or the name of the operator is longer than [`TEXT_MAX`].
    #[error("a key and a reason have at most {TEXT_MAX} bytes")]
    Text,
    /// The limit has [`GRANTS_PER_LIMIT`] others.
    #[error("the limit has {GRANTS_PER_LIMIT} grants; write a tier into the file")]
    TooManyOfLimit,
    /// There are [`GRANTS_MAX`] others.
    #[error("there are {GRANTS_MAX} grants; write a tier into the file")]
    TooMany,
    /// The key has no grant in force.
    #[error("the key has no grant")]
    NotGranted,
    /// The gateway cannot be built; the one in force stays.
    #[error("the change cannot be put in force: {0}")]
    Build(String),
}

/// A grant in another process; moments are times of day, in ns since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedGrant {
    pub(super) limit: String,
    /// The parts of the limit's key, which must be the same.
    parts: String,
    pub(super) grant: GrantConfig,
}

// === impl Gateway ===

impl Gateway {
    /// All grants in force.
    pub fn list_grants(&self, now: Now) -> Vec<ActiveGrant> {
        let active = active_grants(&self.config, now);
        active.map(|(limit, grant)| ActiveGrant::from_config(&limit.name, grant)).collect()
    }

    /// The configuration in force with one more grant; a grant of the same key is replaced. Returns both as well.
    ///
    /// # Errors
    /// The grant is not valid, or there are too many.
    pub fn config_with_grant(
        &self,
        new: &NewGrant,
        now: Now,
    ) -> Result<(Config, ActiveGrant, Option<ActiveGrant>), GrantFault> {
        if [&new.key.name, &new.reason, &new.by].into_iter().any(|text| text.len() > TEXT_MAX) {
            return Err(GrantFault::Text);
        }
        let mut config = self.config.clone();
        drop_ended(&mut config, now);
        let all: usize = config.limits.iter().map(|limit| limit.grants.len()).sum();
        let limit = find_limit(&mut config, &new.limit)?;
        let longest = if limit.calendar.is_some() { QUOTA_GRANT_LENGTH_MAX } else { GRANT_LENGTH_MAX };
        if new.lasts.is_zero() || new.lasts > longest {
            return Err(GrantFault::Length);
        }
        let numbers = config::read_grant(limit, &new.numbers).map_err(GrantFault::Numbers)?;
        let grant = GrantConfig {
            name: GrantConfig::name_for(&new.key.name),
            key: new.key.to_grant_key(),
            numbers,
            at_ns: now.0,
            // Cannot be cut short: a year has fewer than 2^55 ns.
            until_ns: now.0.saturating_add(new.lasts.as_nanos() as u64),
            reason: new.reason.clone(),
            by: new.by.clone(),
        };
        let active = ActiveGrant::from_config(&limit.name, &grant);
        let others = limit.grants.len();
        let id = grant.key.id_in(limit);
        let replaced = match limit.grants.iter().position(|other| other.key.id_in(limit) == id) {
            Some(other) => Some(std::mem::replace(&mut limit.grants[other], grant)),
            None if others >= GRANTS_PER_LIMIT => return Err(GrantFault::TooManyOfLimit),
            None if all >= GRANTS_MAX => return Err(GrantFault::TooMany),
            None => {
                limit.grants.push(grant);
                None
            }
        };
        let replaced = replaced.map(|grant| ActiveGrant::from_config(&new.limit, &grant));
        Ok((config, active, replaced))
    }

    /// The configuration in force without the grant of a key. Returns the grant as well.
    ///
    /// # Errors
    /// There is none.
    pub fn config_without_grant(
        &self,
        limit: &str,
        key: &KeyRef,
        now: Now,
    ) -> Result<(Config, ActiveGrant), GrantFault> {
        let mut config = self.config.clone();
        drop_ended(&mut config, now);
        let limit = find_limit(&mut config, limit)?;
        let id = key.to_grant_key().id_in(limit);
        let found = limit.grants.iter().position(|grant| grant.key.id_in(limit) == id);
        let grant = limit.grants.remove(found.ok_or(GrantFault::NotGranted)?);
        let ended = ActiveGrant::from_config(&limit.name, &grant);
        Ok((config, ended))
    }

    /// The configuration in force without grants and changes of limits that have ended; `None` = there are none.
    pub fn config_without_ended(&self, now: Now) -> Option<Config> {
        self.next_grant_end().filter(|end| *end <= now)?;
        let mut config = self.config.clone();
        drop_ended(&mut config, now);
        Some(config)
    }

    /// The end of the first grant or change of a limit.
    pub fn next_grant_end(&self) -> Option<Now> {
        let ends = self.config.limits.iter().flat_map(|limit| {
            let changes = limit.changes().map(|change| Now::from_unix_ns(change.until_unix_ns));
            limit.grants.iter().map(|grant| Now(grant.until_ns)).chain(changes)
        });
        ends.min()
    }

    /// Takes the grants in force over into the next configuration, as far as their limits and keys stay.
    pub fn carry_grants(&self, next: &mut Config, now: Now) {
        for (limit, grant) in active_grants(&self.config, now) {
            SavedGrant::new_in_process(limit, grant.clone()).add_to(next);
        }
    }

    /// All grants in force, for another process.
    pub fn save_grants(&self, now: Now) -> Vec<SavedGrant> {
        let active = active_grants(&self.config, now);
        active.map(|(limit, grant)| SavedGrant::new(limit, grant.clone())).collect()
    }

    /// The limit with this name; `None` = there is none.
    pub fn find_limit(&self, name: &str) -> Option<LimitId> {
        self.config.limits.iter().position(|limit| limit.name == name).map(LimitId)
    }
}

/// The grants in force, each with its limit.
pub(super) fn active_grants(config: &Config, now: Now) -> impl Iterator<Item = (&LimitConfig, &GrantConfig)> {
    let all = config.limits.iter().flat_map(|limit| limit.grants.iter().map(move |grant| (limit, grant)));
    all.filter(move |(_, grant)| grant.until_ns > now.0)
}

fn find_limit<'c>(config: &'c mut Config, name: &str) -> Result<&'c mut LimitConfig, GrantFault> {
    config.limits.iter_mut().find(|limit| limit.name == name).ok_or(GrantFault::UnknownLimit)
}

fn drop_ended(config: &mut Config, now: Now) {
    for limit in &mut config.limits {
        limit.grants.retain(|grant| grant.until_ns > now.0);
        drop_ended_changes(limit);
    }
}

/// Adds the grants of another process that have not ended.
pub(super) fn restore_grants(config: &mut Config, saved: Vec<SavedGrant>, now: Now) {
    for mut saved in saved.into_iter().take(GRANTS_MAX) {
        saved.grant.at_ns = Now::from_unix_ns(saved.grant.at_ns).0;
        saved.grant.until_ns = Now::from_unix_ns(saved.grant.until_ns).0;
        if saved.grant.until_ns > now.0 {
            saved.add_to(config);
        }
    }
}

/// A text that is equal for limits with the same key.
fn key_parts(limit: &LimitConfig) -> String {
    format!("{:?} {:?}", limit.key, limit.missing_key)
}

// === impl SavedGrant ===

impl SavedGrant {
    /// A grant of this process, for another one.
    pub(super) fn new(limit: &LimitConfig, mut grant: GrantConfig) -> SavedGrant {
        grant.at_ns = Now(grant.at_ns).to_unix_ns();
        grant.until_ns = Now(grant.until_ns).to_unix_ns();
        SavedGrant::new_in_process(limit, grant)
    }

    /// A grant with moments of this process.
    fn new_in_process(limit: &LimitConfig, grant: GrantConfig) -> SavedGrant {
        SavedGrant { limit: limit.name.clone(), parts: key_parts(limit), grant }
    }

    /// Adds a grant that all gateways of the store share, if this one counts its limit there.
    pub(super) fn add_shared(self, config: &mut Config) {
        let limit = config.limits.iter().find(|limit| limit.name == self.limit);
        if limit.is_none_or(|limit| limit.shared.is_none()) {
            return;
        }
        let (limit, key) = (self.limit.clone(), self.grant.key_text().to_owned());
        if let Err(reason) = self.try_add(config) {
            tracing::debug!(limit, key, reason, "a grant of another gateway does not hold here");
        }
    }

    /// Adds the grant to the limit it belongs to, or logs why it does not.
    fn add_to(self, config: &mut Config) {
        let (limit, key) = (self.limit.clone(), self.grant.key_text().to_owned());
        if let Err(reason) = self.try_add(config) {
            tracing::warn!(limit, key, reason, "a grant ends");
        }
    }

    fn try_add(self, config: &mut Config) -> Result<(), &'static str> {
        let limit = find_limit(config, &self.limit).map_err(|_| "its limit is gone")?;
        if key_parts(limit) != self.parts {
            return Err("its limit has another key");
        }
        let numbers = &self.grant.numbers;
        if !has_same_kind(&limit.algorithm, numbers) {
            return Err("its limit has another algorithm");
        }
        let alone =
            LimitConfig { algorithm: numbers.clone(), tiers: vec![], grants: vec![], ..limit.clone() };
        if limit.shared.is_some() && model::check_redis_range(&alone).is_err() {
            return Err("its numbers do not fit Redis, where its limit counts now");
        }
        if limit.grants.len() >= GRANTS_PER_LIMIT {
            return Err("its limit has too many");
        }
        let id = self.grant.key.id_in(limit);
        if id == 0 {
            return Err(
                "its key was named by a hash or by another gateway, and its limit counts elsewhere now",
            );
        }
        if limit.grants.iter().any(|other| other.key.id_in(limit) == id) {
            return Err("its key has another one");
        }
        limit.grants.push(self.grant);
        Ok(())
    }
}

/// True if all options that the variants of a limit share are the same.
fn has_same_kind(limit: &Algorithm, numbers: &Algorithm) -> bool {
    match (limit, numbers) {
        (Algorithm::FixedWindow { align: own, .. }, Algorithm::FixedWindow { align, .. }) => own == align,
        (Algorithm::SlidingWindow { buckets: own, .. }, Algorithm::SlidingWindow { buckets, .. }) => {
            own == buckets
        }
        _ => std::mem::discriminant(limit) == std::mem::discriminant(numbers),
    }
}

// === impl ActiveGrant ===

impl ActiveGrant {
    pub(super) fn from_config(limit: &str, grant: &GrantConfig) -> ActiveGrant {
        ActiveGrant {
            limit: limit.to_owned(),
            key: grant.key_text().to_owned(),
            numbers: grant.numbers.clone(),
            at: Now(grant.at_ns),
            until: Now(grant.until_ns),
            reason: grant.reason.clone(),
            by: grant.by.clone(),
        }
    }
}
