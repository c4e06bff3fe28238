//! One key of a limit, as operators see it.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::operate::explain::LeasedUnits;
use sluicegate_admission::ban_target::BanTarget;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_config::describe::describe_rates;
use sluicegate_limit::{Decision, Limit, Units};
use sluicegate_model::{Amount, GrantConfig, GrantKey, LimitId};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::heavy_keys::report::HeavyKey;
use sluicegate_proxy::gateway::usage::UsageEntry;
use sluicegate_store::{LeaseLeft, LeaseOutcome};

json_object! {
    #[derive(Debug)]
    pub(super) struct KeyStatus as "Key" {
        pub key: String = "Its name, e.g. `ip=192.0.2.7`.",
        pub asked_per_s: f64 = "Units, or money, that it asked per second, faded with a half-life of a minute.",
        pub refused_per_s: f64 = "Units that it was refused, or would be if the limit acted on it, likewise.",
        pub error_per_s: f64 = "The greatest amount by which either rate may be too low.",
        pub remaining: Option<Amount>
            = "Units, or money, that it has left, of classes the one with most; null without a limit, or if unknown.",
        pub leased: Option<LeasedUnits> = "Where they are, as this gateway knows; null if the limit is not leased.",
        pub classes: Vec<ClassRest> = maybe "What each class of its shares has left; absent without shares.",
        pub reset_s: Option<f64> = "Seconds until one more unit fits.",
        pub step: Option<&'static str> = "The last step of its quota that is reached." in ["warn", "slow", "reject"],
        pub waiting: Option<u64> = "Units that wait in its queue; null if unknown.",
        pub grant: Option<KeyGrant> = "Other numbers that an operator granted it.",
        pub usage: Vec<UsageEntry> = maybe "What it has used of each rate; absent from lists.",
        pub ban: Option<String> = "The address, network or account to ban; null if the key names none.",
    }

    #[derive(Debug)]
    pub(super) struct ClassRest as "ClassRest" {
        pub class: String = "Its name.",
        pub remaining: Option<Amount> = "Units, or money, that it can take; null if unknown.",
    }

    #[derive(Debug)]
    pub(super) struct KeyGrant as "Grant" {
        pub numbers: String = "Its rates or slots, in words.",
        pub left_s: f64 = "Seconds until it ends.",
        pub reason: Option<String> = "The reason that the operator gave.",
        pub by: String = "The operator: the name of a token.",
    }
}

impl KeyStatus {
    /// `tier`: that of the caller.
    pub(super) fn of_key(
        gateway: &Gateway,
        limit: LimitId,
        key: &HeavyKey,
        tier: Option<&str>,
        sees_accounts: bool,
        now: Now,
    ) -> KeyStatus {
        let (name, config) = (key.shown_name(sees_accounts), &gateway.config.limits[limit.0]);
        let shown = |per_s: f64| if config.currency().is_some() { per_s / 1e6 } else { per_s };
        let usage_of = |class| read_usage(gateway, limit, key, (tier, class), now);
        // Without shares all requests are of the first class.
        let count = config.class_names().count();
        let of_classes: Vec<_> = (0..count.max(1)).map(|class| usage_of(class as u8)).collect();
        let ((remaining, reset_s, waiting), reached) =
            of_classes.iter().max_by_key(|((remaining, ..), _)| *remaining).copied().unwrap_or_default();
        let rest = |(name, ((remaining, ..), _)): (&str, &(KeyUsage, u8))| ClassRest {
            class: name.to_owned(),
            remaining: remaining.map(|units| config.amount(units)),
        };
        KeyStatus {
            key: name.to_owned(),
            asked_per_s: shown(key.asked.per_s),
            refused_per_s: shown(key.refused.per_s),
            error_per_s: shown(key.asked.error_per_s.max(key.refused.error_per_s)),
            remaining: remaining.map(|units| config.amount(units)),
            leased: find_leased(gateway, limit, key, tier, now),
            classes: config.class_names().zip(&of_classes).map(rest).collect(),
            reset_s,
            step: config.steps_in(reached).next_back().map(|step| step.then.as_str()),
            waiting,
            grant: KeyGrant::find(gateway, limit, key, now),
            usage: Vec::new(),
            ban: find_ban_target(name).map(|target| target.to_string()),
        }
    }
}

impl KeyGrant {
    pub(super) fn find(gateway: &Gateway, limit: LimitId, key: &HeavyKey, now: Now) -> Option<KeyGrant> {
        let limit = &gateway.config.limits[limit.0];
        let id = grant_key(key).id_in(limit);
        let is_own = |grant: &&GrantConfig| grant.key.id_in(limit) == id && grant.until_ns > now.0;
        limit.grants.iter().find(is_own).map(|grant| KeyGrant {
            numbers: describe_rates(limit, &grant.numbers).join(", "),
            left_s: seconds(grant.until_ns.saturating_sub(now.0)),
            reason: Some(grant.reason.clone()).filter(|reason| !reason.is_empty()),
            by: grant.by.clone(),
        })
    }
}

fn grant_key(key: &HeavyKey) -> GrantKey {
    let shared = key.shared.map_or([0; 16], |shared| shared.0);
    GrantKey { id: key.key.id.to_le_bytes(), prefix: key.key.prefix, shared }
}

/// One unit of a key, with the variant that judges it; `None` = the limit leaves out callers of `tier`.
pub(super) fn find_units(limit: &Limit, key: &HeavyKey, tier: Option<&str>, now: Now) -> Option<Units> {
    let granted = limit.granted_variant(grant_key(key).id_in(&limit.config), now);
    let variant = granted.or_else(|| limit.config.variant_at(0, tier))?;
    let account = find_account(key.shown_name(true));
    let anchor = account.and_then(|account| limit.config.anchor_of(Some(&account)));
    Some(Units { variant, anchor, ..Units::new(key.key, 1) })
}

/// The units that a key has left, the seconds until one more fits, and the units that wait.
type KeyUsage = (Option<u64>, Option<f64>, Option<u64>);

/// The units of the strictest leased rate.
fn find_leased(
    gateway: &Gateway,
    id: LimitId,
    key: &HeavyKey,
    tier: Option<&str>,
    now: Now,
) -> Option<LeasedUnits> {
    let (limit, shared, key_in_store) = (&gateway.limits[id.0], gateway.shared[id.0].as_ref()?, key.shared?);
    let rates = limit.rate_range(find_units(limit, key, tier, now)?.variant);
    let units = rates.filter_map(|rate| shared.leased_units_of(rate, key_in_store));
    let left = units.min_by_key(LeaseLeft::units)?;
    Some(LeasedUnits { here: left.here, store: left.stored })
}

fn read_usage(
    gateway: &Gateway,
    id: LimitId,
    key: &HeavyKey,
    (tier, class): (Option<&str>, u8),
    now: Now,
) -> (KeyUsage, u8) {
    let limit = &gateway.limits[id.0];
    let Some(mut units) = find_units(limit, key, tier, now) else { return Default::default() };
    units.key.class = class;
    let reached = |decisions: &[Decision]| decisions.iter().fold(0, |bits, own| bits | own.reached);
    let (variant, rates) = (units.variant, limit.rate_range(units.variant));
    if let Some(shared) = &gateway.shared[id.0] {
        let last_decision = |rate| match key.shared.and_then(|key| shared.leased_units_of(rate, key)) {
            Some(left) => Some(shared.leased_decision(rate, &LeaseOutcome::Taken(0, left))),
            None => shared.last_decision(rate, &units, now),
        };
        let answers: Option<Vec<Decision>> = rates.map(last_decision).collect();
        let (answers, of_last) = (answers.unwrap_or_default(), |last: Decision| {
            (Some(last.remaining), (last.reset_ns > 0).then(|| seconds(last.reset_ns)), None)
        });
        let bits = reached(&answers);
        return (strictest(answers).map(of_last).unwrap_or_default(), bits);
    }
    if limit.is_concurrency() {
        // Requests that are in flight may be more than an adaptive limit admits now.
        let free = match limit.config.shares {
            None => limit.slot_count(variant).saturating_sub(limit.slots_in_use(variant, &key.key)),
            Some(_) => limit.peek_slots(rates.start, &units, now).free,
        };
        let waiting = limit.waiting_units(variant, &key.key);
        return ((Some(if waiting > 0 { 0 } else { free }), None, Some(waiting)), 0);
    }
    let decisions: Vec<Decision> = rates.clone().map(|rate| limit.peek_units(rate, &units, now)).collect();
    let waiting = rates.map(|rate| limit.waiting_units(rate, &key.key)).max().unwrap_or(0);
    let bits = reached(&decisions);
    let of_strictest = |own: Decision| (Some(own.remaining), Some(seconds(own.reset_ns)), Some(waiting));
    (strictest(decisions).map(of_strictest).unwrap_or_default(), bits)
}

/// The decision that leaves least, and of equal ones the one that lasts longest.
fn strictest(decisions: Vec<Decision>) -> Option<Decision> {
    decisions.into_iter().min_by_key(|decision| (decision.remaining, u64::MAX - decision.reset_ns))
}

pub(super) fn seconds(ns: u64) -> f64 {
    (ns as f64 / 1e6).round() / 1e3
}

/// The account that the name of a key contains; `None` if that has none, or hides or cuts it.
pub(super) fn find_account(name: &str) -> Option<Cow<'_, [u8]>> {
    whole_values(name).find_map(|(part, value)| (part == "account").then_some(value))
}

/// The parts of a key's name with their values, without those that are hidden or cut.
fn whole_values(name: &str) -> impl Iterator<Item = (&str, Cow<'_, [u8]>)> {
    let parts = name.split(',').filter_map(|part| part.split_once('='));
    // A hash is written with a plain `#`, and a cut text ends with a plain ellipsis.
    let is_whole = |(_, value): &(&str, &str)| !value.starts_with('#') && !value.ends_with('\u{2026}');
    parts.filter(is_whole).map(|(part, value)| (part, percent_decode_str(value).into()))
}

/// The client that the name of a key contains: its address or network, or its account unless that is hidden.
fn find_ban_target(name: &str) -> Option<BanTarget> {
    whole_values(name).find_map(|(part, value)| {
        let value = str::from_utf8(&value).ok()?;
        match part {
            "account" => format!("account={value}").parse().ok(),
            part if part == "ip" || part.starts_with("missing:") => {
                value.parse().ok().filter(|target| matches!(target, BanTarget::Network(_)))
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_the_client_to_ban() {
        let target = |name: &str| find_ban_target(name).map(|target| target.to_string());
        for (name, expected) in [
            ("ip=192.0.2.7", "192.0.2.7"),
            ("ip=192.0.2.0/24", "192.0.2.0/24"),
            ("uri=/a,ip=2001:db8::/64", "2001:db8::/64"),
            ("account=a%20b%2Cc", "account=a b,c"),
            ("missing:account=192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(target(name).as_deref(), Some(expected), "{name}");
        }
        for name in
            ["global", "uri=/a", "account=#0123456789abcdef", "account=abc\u{2026}", "missing:account"]
        {
            assert_eq!(target(name), None, "{name}");
        }
    }
}
