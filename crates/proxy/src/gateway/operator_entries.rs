//! The bans, grants and changes of limits by operators as entries that all gateways of a store learn.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Gateway;
use super::grants::{SavedGrant, active_grants};
use super::limit_changes::{LostChange, adopt_change, change_entry_name};
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_admission::operator_bans::OperatorBan;
use sluicegate_base::clock::Now;
use sluicegate_model::{Config, GrantConfig, GrantKey, LimitChange, LimitConfig};
use sluicegate_store::operator_entries::OperatorEntry;

/// The beginnings of the names of such entries.
const BAN_PREFIX: &str = "ban/";
const GRANT_PREFIX: &str = "grant/";

/// The same end differs between gateways by the time that a call to the store took.
const SAME_END_NS: u64 = 1_000_000_000;

/// The name of the entry of a ban. A target may be longer than a name, so its hash stands for it.
pub fn ban_entry_name(target: &BanTarget) -> Vec<u8> {
    let hash = digest(&SHA256, target.to_string().as_bytes());
    format!("{BAN_PREFIX}{}", URL_SAFE_NO_PAD.encode(&hash.as_ref()[..16])).into_bytes()
}

/// The name of the entry of a grant.
pub fn grant_entry_name(limit: &str, key: &GrantKey) -> Vec<u8> {
    format!("{GRANT_PREFIX}{limit}/{}", URL_SAFE_NO_PAD.encode(key.shared)).into_bytes()
}

/// The entry of a grant, or `None` if its limit is not counted in the store.
pub fn write_grant(limit: &LimitConfig, grant: &GrantConfig) -> Option<OperatorEntry> {
    limit.shared.as_ref()?;
    // Other gateways hash keys differently.
    let key = GrantKey { shared: grant.key.shared, ..GrantKey::default() };
    let saved = SavedGrant::new(limit, GrantConfig { key, ..grant.clone() });
    write_entry(grant_entry_name(&limit.name, &key), &saved, Now(grant.until_ns))
}

fn write_ban(ban: &OperatorBan) -> Option<OperatorEntry> {
    write_entry(ban_entry_name(&ban.target), ban, ban.until)
}

fn write_entry(name: Vec<u8>, value: &impl Serialize, until: Now) -> Option<OperatorEntry> {
    let value = serde_json::to_vec(value).ok()?;
    Some(OperatorEntry { name: name.into(), value: value.into(), until })
}

/// The entries of the changes of these limits, as far as they are counted in the store; `is_set`: set numbers, else
/// pauses.
pub fn write_changes(config: &Config, names: &[String], is_set: bool) -> Vec<OperatorEntry> {
    let own = config.limits.iter().filter(|limit| limit.shared.is_some() && names.contains(&limit.name));
    let changes = own.flat_map(LimitConfig::changes).filter(|change| change.numbers.is_some() == is_set);
    changes.filter_map(write_change).collect()
}

fn write_change(change: &LimitChange) -> Option<OperatorEntry> {
    let name = change_entry_name(&change.limit, change.numbers.is_some());
    write_entry(name, change, Now::from_unix_ns(change.until_unix_ns))
}

/// The entries with this beginning of their names and their ends, those of another release left out.
fn read_entries<T: DeserializeOwned>(
    living: &[OperatorEntry],
    prefix: &str,
) -> impl Iterator<Item = (T, Now)> {
    let found = living.iter().filter(move |entry| entry.name.starts_with(prefix.as_bytes()));
    found.filter_map(|entry| Some((serde_json::from_slice(&entry.value).ok()?, entry.until)))
}

// === impl Gateway ===

impl Gateway {
    /// All bans, grants and changes of limits that the gateways of the store share.
    pub fn operator_entries(&self, now: Now) -> Vec<OperatorEntry> {
        let bans = self.operator_bans.list_bans(now);
        let active = active_grants(&self.config, now);
        let granted = active.filter_map(|(limit, grant)| write_grant(limit, grant));
        let shared = self.config.limits.iter().filter(|limit| limit.shared.is_some());
        let changes = shared.flat_map(LimitConfig::changes).filter_map(write_change);
        let changes = changes.filter(|entry| entry.until > now);
        bans.iter().filter_map(|ban| write_ban(ban)).chain(granted).chain(changes).collect()
    }

    /// The entry of the active ban of exactly this target.
    pub fn ban_entry(&self, target: &BanTarget, now: Now) -> Option<OperatorEntry> {
        write_ban(&*self.operator_bans.find_exact(target, now)?)
    }

    /// Makes the bans among the living entries the only bans of operators.
    pub fn use_ban_entries(&self, living: &[OperatorEntry]) {
        self.operator_bans.replace_bans(read_entries::<OperatorBan>(living, BAN_PREFIX));
    }

    /// The configuration in force with the grants and the changes among the living entries as the only ones of shared
    /// limits; `None`: it is the same. Changes that do not fit the file are lost for all gateways if they were made
    /// before it was read, at `read_unix_ns`.
    pub fn config_with_entries(
        &self,
        living: &[OperatorEntry],
        read_unix_ns: u64,
    ) -> (Option<Config>, Vec<LostChange>) {
        let mut config = self.config.clone();
        for limit in config.limits.iter_mut().filter(|limit| limit.shared.is_some()) {
            limit.grants.clear();
            let _ = [false, true].map(|is_set| limit.end_change(is_set));
        }
        for (mut saved, until) in read_entries::<SavedGrant>(living, GRANT_PREFIX) {
            saved.grant.at_ns = Now::from_unix_ns(saved.grant.at_ns).0;
            saved.grant.until_ns = until.0;
            if let Some(known) = self.find_shared_grant(&saved) {
                saved.grant.key = known.key;
                saved.grant.at_ns = known.at_ns;
                if known.until_ns.abs_diff(until.0) <= SAME_END_NS {
                    saved.grant.until_ns = known.until_ns;
                }
            }
            saved.add_shared(&mut config);
        }
        let mut lost = Vec::new();
        let prefixes = [false, true].map(|is_set| change_entry_name("", is_set));
        let of_limits = living.iter().filter(|entry| prefixes.iter().any(|own| entry.name.starts_with(own)));
        for entry in of_limits {
            let Ok(mut change) = serde_json::from_slice::<LimitChange>(&entry.value) else { continue };
            let own = |own: &&LimitConfig| own.name == change.limit && own.shared.is_some();
            let Some(limit) = self.config.limits.iter().find(own) else { continue };
            // The clock of the gateway that made it may be another.
            let (until, is_set) = (entry.until.to_unix_ns(), change.numbers.is_some());
            let known = limit.changes().find(|own| own.numbers.is_some() == is_set);
            let same = known.filter(|known| known.until_unix_ns.abs_diff(until) <= SAME_END_NS);
            change.until_unix_ns = same.map_or(until, |known| known.until_unix_ns);
            let is_before = change.numbers.as_ref().is_some_and(|own| own.at_unix_ns < read_unix_ns);
            lost.extend(adopt_change(&change, &mut config).filter(|_| is_before));
        }
        lost.iter().for_each(|(_, why): &LostChange| tracing::warn!("{why}"));
        let in_order = |limit: &LimitConfig| {
            let mut grants = limit.grants.clone();
            grants.sort_by(|one, other| one.name.cmp(&other.name));
            grants
        };
        let mut limits = config.limits.iter().zip(&self.config.limits);
        let differs = |(next, before): (&LimitConfig, &LimitConfig)| {
            !next.changes().eq(before.changes()) || in_order(next) != in_order(before)
        };
        (limits.any(differs).then_some(config), lost)
    }

    fn find_shared_grant(&self, saved: &SavedGrant) -> Option<&GrantConfig> {
        let limit = self.config.limits.iter().find(|limit| limit.name == saved.limit)?;
        limit.grants.iter().find(|grant| grant.key.shared == saved.grant.key.shared)
    }
}
