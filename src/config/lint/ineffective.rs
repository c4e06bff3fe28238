//! Fields that can have no effect, because of what the rest of the file says.

use super::{LintContext, warn_at};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::access::BanKey;
use crate::config::model::limit::{Algorithm, KeyPart};
use crate::config::model::reject::Degrade;
use crate::config::model::{ActionConfig, LocationConfig};
use crate::config::{LimitId, UpstreamId};

pub(super) fn lint_ineffective(file: &LintContext<'_>) {
    warn_of_accounts(file);
    warn_of_turns(file);
    warn_of_degrading(file);
    warn_of_bans(file);
    warn_of_bandwidth(file);
}

/// Bodies that are not an upstream's leave at once.
fn warn_of_bandwidth(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        if location.bandwidth.is_some() && !matches!(location.action, ActionConfig::Upstream(_)) {
            let message = "only bodies of an upstream's answers are paced, and this location has no upstream";
            let help = "write bandwidth: none, or leave it out";
            warn_at(
                &file.location_value(index, &["bandwidth"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// Accounts that nobody can have.
fn warn_of_accounts(file: &LintContext<'_>) {
    if file.config.account.from.is_some() {
        return;
    }
    let by_account = |parts: &[KeyPart]| parts.contains(&KeyPart::Account);
    let mut places = Vec::new();
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        places.extend(by_account(&config.key).then(|| file.limit_value(limit, &["key"])));
        places.extend(by_account(&config.fair_by).then(|| file.limit_value(limit, &["fair_by"])));
    }
    for (index, location) in file.config.locations.iter().enumerate() {
        let paced = location.bandwidth.as_ref().is_some_and(|bandwidth| by_account(&bandwidth.key));
        places.extend(paced.then(|| file.location_value(index, &["bandwidth", "key"])));
    }
    let bans = file.config.bans.as_ref().filter(|bans| bans.key == BanKey::Account);
    places.extend(bans.map(|_| file.value_at(&["bans", "key"])));
    for place in places {
        let message = "no request has an account, because nothing says where it stands";
        let help = "write e.g. account: { from: header:X-Account-Id }, or count by ip";
        warn_at(&place, ValueError::new(codes::NO_EFFECT, message).with_help(help));
    }
}

/// A queue of one key in which all waiters are of the same turn.
fn warn_of_turns(file: &LintContext<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        let same = |part: &KeyPart| *part == KeyPart::Global || config.key.contains(part);
        if !config.fair_by.is_empty() && config.fair_by.iter().all(same) {
            let message = "all who wait in one queue are the same by this key: nobody takes turns";
            let help = "take turns by something that the limit's own key does not name";
            warn_at(
                &file.limit_value(limit, &["fair_by"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// What is refused goes where it would have gone.
fn warn_of_degrading(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let ActionConfig::Upstream(own) = location.action else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits).copied();
        let in_vain = |&limit: &LimitId| {
            !file.config.limits[limit].dry_run && degrade_target(file, limit, location) == Some(Some(own))
        };
        if let Some(limit) = chain.find(in_vain) {
            let message = format!(
                "what limit `{}` refuses is sent to upstream {} all the same: it limits nothing here",
                file.config.limits[limit].name, file.config.upstreams[own].name
            );
            let help = "degrade to another upstream, or write on_reject: { degrade: none } here";
            warn_at(
                &file.location_value(index, &["upstream"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// Whether refusals of a limit are degraded, and to which upstream.
fn degrade_target(
    file: &LintContext<'_>,
    limit: LimitId,
    location: &LocationConfig,
) -> Option<Option<UpstreamId>> {
    let on_reject = file
        .config
        .on_reject
        .merge_patch(&file.config.limits[limit].on_reject)
        .merge_patch(&location.on_reject);
    match on_reject.degrade? {
        Degrade::Upstream(upstream) => Some(Some(upstream)),
        Degrade::Canned(_) => Some(None),
    }
}

/// Bans that no refusal leads to.
fn warn_of_bans(file: &LintContext<'_>) {
    if file.config.bans.is_none() {
        return;
    }
    let refuses = |limit: LimitId| {
        let config = &file.config.limits[limit];
        !config.dry_run && !matches!(config.algorithm, Algorithm::Concurrency { .. })
    };
    let mut locations = file.config.locations.iter();
    // What no location serves is never degraded.
    let strikes = file.config.server.limits.iter().any(|&limit| refuses(limit))
        || locations.any(|location| {
            let own = |&limit: &LimitId| refuses(limit) && degrade_target(file, limit, location).is_none();
            location.limits.iter().any(own)
        });
    if !strikes {
        let message = "nobody is ever banned: no rate and no queue of this file rejects anybody";
        let help = "rejections by concurrency, in dry runs and that are degraded do not count";
        warn_at(
            &file.value_at(&["bans", "after"]),
            ValueError::new(codes::NO_EFFECT, message).with_help(help),
        );
    }
}
