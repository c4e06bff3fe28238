//! Warns of turns for rejected requests where clients that come too often take them, or where nothing tells them.

use super::LintContext;
use sluicegate_model::{Algorithm, KeyPart, LimitConfig, LimitId, OnRejectPatch, codes};

pub(super) fn lint_turns(file: &LintContext<'_>) {
    let server = (None, &file.config.server.limits[..], None);
    let locations = file.config.locations.iter().enumerate();
    let locations = locations.map(|(index, own)| (Some(index), own.limits.as_slice(), Some(&own.on_reject)));
    let mut warned: Vec<LimitId> = Vec::new();
    // A limit of `server` is judged with those of each location, and alone where there is no location.
    for (location, own, patch) in locations.chain(std::iter::once(server)) {
        let chain: Vec<LimitId> = match location {
            Some(_) => file.config.server.limits.iter().chain(own).copied().collect(),
            None => own.to_vec(),
        };
        for (position, &limit) in chain.iter().enumerate() {
            if tells_turns(file, limit, patch) && !warned.contains(&limit) {
                let before = chain[..position].iter().map(|other| &file.config.limits[*other]);
                if warn_of_callers(file, location, limit, before) {
                    warned.push(limit);
                }
            }
        }
        warn_of_none(file, location, &chain, patch);
    }
}

fn judges_rates(limit: &LimitConfig) -> bool {
    !matches!(limit.algorithm, Algorithm::Concurrency { .. }) && !limit.dry_run
}

fn tells_turns(file: &LintContext<'_>, limit: LimitId, patch: Option<&OnRejectPatch>) -> bool {
    let config = &file.config.limits[limit];
    file.config.on_reject_at(config, patch).turns().is_some() && judges_rates(config)
}

/// Turns of one caller, and turns of many that a single caller can take; returns whether it warned.
fn warn_of_callers<'l>(
    file: &LintContext<'_>,
    location: Option<usize>,
    limit: LimitId,
    mut before: impl Iterator<Item = &'l LimitConfig>,
) -> bool {
    let config = &file.config.limits[limit];
    let (message, help) = if KeyPart::count_callers(&config.key) {
        let message = format!(
            "limit `{}` counts each caller apart: turns only make a hasty client wait longer, and spread nobody else",
            config.name
        );
        (message, "write on_reject: { retry_after: exact } in this limit")
    } else if before.any(|other| judges_rates(other) && KeyPart::count_callers(&other.key)) {
        return false;
    } else {
        let message = format!(
            "the turns of limit `{}` are taken by a client that does not wait for its own: no limit per caller is in \
             front of it in this chain",
            config.name
        );
        (
            message,
            "put a limit by ip or account before it in the chain, e.g. 5/s, which clients that wait never reach",
        )
    };
    let value = match (location, file.limit_value(limit, &["on_reject", "retry_after"])) {
        (_, own) if own.path.ends_with("retry_after") => own,
        (Some(index), _) if file.location_value(index, &["on_reject"]).path.ends_with("on_reject") => {
            file.location_value(index, &["on_reject", "retry_after"])
        }
        _ => file.value_at(&["on_reject", "retry_after"]),
    };
    value.warn(codes::TURNS, message, help);
    true
}

/// Turns at a place without a rate, and their bound where nothing tells any.
fn warn_of_none(
    file: &LintContext<'_>,
    location: Option<usize>,
    chain: &[LimitId],
    patch: Option<&OnRejectPatch>,
) {
    let (Some(index), Some(patch)) = (location, patch) else { return };
    let is_written = patch.turns_at_most.is_some() || patch.retry_after.is_some();
    if is_written && !chain.iter().any(|limit| judges_rates(&file.config.limits[*limit])) {
        let message = "no limit of this location judges a rate, and only those tell turns";
        file.location_value(index, &["on_reject"]).warn(codes::NO_EFFECT, message, "remove it here");
    } else if patch.turns_at_most.is_some()
        && !chain.iter().any(|limit| tells_turns(file, *limit, Some(patch)))
    {
        let message = "no limit of this location tells turns";
        let value = file.location_value(index, &["on_reject", "turns_at_most"]);
        value.warn(codes::NO_EFFECT, message, "write retry_after: turns beside it, or remove it");
    }
}
