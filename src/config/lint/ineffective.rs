//! Fields that can have no effect, because of what the rest of the file says.

use super::{File, note};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::access::BanKey;
use crate::config::model::limit::{Algorithm, KeyPart};
use crate::config::model::reject::Degrade;
use crate::config::model::{Action, Location};

pub(super) fn warn(file: &File<'_>) {
    warn_of_accounts(file);
    warn_of_turns(file);
    warn_of_degrading(file);
    warn_of_bans(file);
    warn_of_bandwidth(file);
}

/// Bodies that are not an upstream's leave at once.
fn warn_of_bandwidth(file: &File<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        if location.bandwidth.is_some() && !matches!(location.action, Action::Upstream(_)) {
            let message = "only bodies of an upstream's answers are paced, and this location has no upstream";
            let help = "write bandwidth: none, or leave it out";
            note(&file.location(index, &["bandwidth"]), Complaint::new(codes::IN_VAIN, message).help(help));
        }
    }
}

/// Accounts that nobody can have.
fn warn_of_accounts(file: &File<'_>) {
    if file.config.account.from.is_some() {
        return;
    }
    let by_account = |parts: &[KeyPart]| parts.contains(&KeyPart::Account);
    let mut places = Vec::new();
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        places.extend(by_account(&config.key).then(|| file.limit(limit, &["key"])));
        places.extend(by_account(&config.fair_by).then(|| file.limit(limit, &["fair_by"])));
    }
    for (index, location) in file.config.locations.iter().enumerate() {
        let paced = location.bandwidth.as_ref().is_some_and(|bandwidth| by_account(&bandwidth.key));
        places.extend(paced.then(|| file.location(index, &["bandwidth", "key"])));
    }
    let bans = file.config.bans.as_ref().filter(|bans| bans.key == BanKey::Account);
    places.extend(bans.map(|_| file.at(&["bans", "key"])));
    for place in places {
        let message = "no request has an account, because nothing says where it stands";
        let help = "write e.g. account: { from: header:X-Account-Id }, or count by ip";
        note(&place, Complaint::new(codes::IN_VAIN, message).help(help));
    }
}

/// A queue of one key in which all waiters are of the same turn.
fn warn_of_turns(file: &File<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        let same = |part: &KeyPart| *part == KeyPart::Global || config.key.contains(part);
        if !config.fair_by.is_empty() && config.fair_by.iter().all(same) {
            let message = "all who wait in one queue are the same by this key: nobody takes turns";
            let help = "take turns by something that the limit's own key does not name";
            note(&file.limit(limit, &["fair_by"]), Complaint::new(codes::IN_VAIN, message).help(help));
        }
    }
}

/// What is refused goes where it would have gone.
fn warn_of_degrading(file: &File<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let Action::Upstream(own) = location.action else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits).copied();
        let in_vain = |&limit: &usize| {
            !file.config.limits[limit].dry_run && degrades(file, limit, location) == Some(Some(own))
        };
        if let Some(limit) = chain.find(in_vain) {
            let message = format!(
                "what limit `{}` refuses is sent to upstream {} all the same: it limits nothing here",
                file.config.limits[limit].name, file.config.upstreams[own].name
            );
            let help = "degrade to another upstream, or write on_reject: { degrade: none } here";
            note(&file.location(index, &["upstream"]), Complaint::new(codes::IN_VAIN, message).help(help));
        }
    }
}

/// Whether refusals of a limit are degraded, and to which upstream.
fn degrades(file: &File<'_>, limit: usize, location: &Location) -> Option<Option<usize>> {
    let on_reject =
        file.config.on_reject.over(&file.config.limits[limit].on_reject).over(&location.on_reject);
    match on_reject.degrade? {
        Degrade::Upstream(upstream) => Some(Some(upstream)),
        Degrade::Canned(_) => Some(None),
    }
}

/// Bans that no refusal leads to.
fn warn_of_bans(file: &File<'_>) {
    if file.config.bans.is_none() {
        return;
    }
    let refuses = |limit: usize| {
        let config = &file.config.limits[limit];
        !config.dry_run && !matches!(config.algorithm, Algorithm::Concurrency { .. })
    };
    let mut locations = file.config.locations.iter();
    // What no location serves is never degraded.
    let strikes = file.config.server.limits.iter().any(|&limit| refuses(limit))
        || locations.any(|location| {
            let own = |&limit: &usize| refuses(limit) && degrades(file, limit, location).is_none();
            location.limits.iter().any(own)
        });
    if !strikes {
        let message = "nobody is ever banned: no rate and no queue of this file rejects anybody";
        let help = "rejections by concurrency, in dry runs and that are degraded do not count";
        note(&file.at(&["bans", "after"]), Complaint::new(codes::IN_VAIN, message).help(help));
    }
}
