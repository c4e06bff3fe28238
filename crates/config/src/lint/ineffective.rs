//! Warns of fields without effect because of the rest of the file.

use http::HeaderName;
use http::header::ACCESS_CONTROL_EXPOSE_HEADERS;

use super::{LintContext, warn_at};
use sluicegate_model::access::{BanKey, StrikeRules};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::headers::HeaderEdits;
use sluicegate_model::key::KeyPart;
use sluicegate_model::limit::Algorithm;
use sluicegate_model::reject::Degrade;
use sluicegate_model::upstream::StatusRanges;
use sluicegate_model::{ActionConfig, LimitId, LocationConfig, UpstreamId};

pub(super) fn lint_ineffective(file: &LintContext<'_>) {
    warn_of_accounts(file);
    warn_of_turns(file);
    warn_of_degrading(file);
    warn_of_bans(file);
    warn_of_bandwidth(file);
    warn_of_body_peeks(file);
    warn_of_cors_headers(file);
    warn_of_sampling(file);
    warn_of_server_queues(file);
}

/// A queue in front of servers that are never full.
fn warn_of_server_queues(file: &LintContext<'_>) {
    for upstream in &file.config.upstreams {
        if upstream.queue.is_some() && upstream.max_connections.is_none() {
            let message = "no request ever waits, because no server is full without `max_connections`";
            let help =
                "write e.g. max_connections: 100 beside it, the requests that one server takes at once";
            warn_at(
                &file.value_at(&["upstreams", &upstream.name, "queue"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// A share of requests to sample, or headers of exports, without a collector.
fn warn_of_sampling(file: &LintContext<'_>) {
    for field in ["sample", "headers"] {
        let value = file.value_at(&["tracing", field]);
        if file.config.tracing.otlp.is_none() && value.path == format!("tracing.{field}") {
            let message = format!("`{field}` has no effect, because `tracing.otlp` is not set");
            let help = "write e.g. otlp: \"http://127.0.0.1:4318\" beside it";
            warn_at(&value, ValueError::new(codes::NO_EFFECT, message).with_help(help));
        }
    }
}

/// Edits of fields that `cors` writes or removes. More fields may be exposed.
fn warn_of_cors_headers(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let HeaderEdits { set, add, .. } = &location.response_headers;
        let is_replaced = |name: &&HeaderName| {
            name.as_str().starts_with("access-control-") && *name != ACCESS_CONTROL_EXPOSE_HEADERS
        };
        let replaced = set.iter().chain(add).map(|(name, _)| name).find(is_replaced);
        if let (Some(name), true) = (replaced, location.cors.is_some()) {
            let message = format!("`cors` replaces the header `{name}`");
            warn_at(
                &file.location_value(index, &["response_headers"]),
                ValueError::new(codes::NO_EFFECT, message).with_help("remove it here, or write cors: none"),
            );
        }
    }
}

/// Bandwidth limits only pace the bodies of upstreams.
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

/// The size of a reading that nothing asks for.
fn warn_of_body_peeks(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        if location.body_peek.is_some() && !location.reads_body(file.config) {
            let message =
                "no body is read, because no key, no cost and no account of this location is a value in it";
            let help = "write e.g. key: json:/model in a limit of this location, or leave it out";
            warn_at(
                &file.location_value(index, &["body_peek"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// Keys that count by account although no request has one.
fn warn_of_accounts(file: &LintContext<'_>) {
    if file.config.account.from.is_some() {
        return;
    }
    let by_account = |parts: &[KeyPart]| parts.contains(&KeyPart::Account);
    let mut values = Vec::new();
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        values.extend(by_account(&config.key).then(|| file.limit_value(limit, &["key"])));
        values.extend(by_account(&config.fair_by).then(|| file.limit_value(limit, &["fair_by"])));
    }
    for (index, location) in file.config.locations.iter().enumerate() {
        let paced = location.bandwidth.as_ref().is_some_and(|bandwidth| by_account(&bandwidth.key));
        values.extend(paced.then(|| file.location_value(index, &["bandwidth", "key"])));
    }
    for upstream in &file.config.upstreams {
        let obeyed = upstream.obey.as_ref().is_some_and(|obey| by_account(&obey.key));
        values.extend(obeyed.then(|| file.value_at(&["upstreams", &upstream.name, "obey", "key"])));
    }
    let bans = file.config.bans.as_ref().filter(|bans| bans.key == BanKey::Account);
    values.extend(bans.map(|_| file.value_at(&["bans", "key"])));
    for value in values {
        let message = "no request has an account, because `account.from` is not set";
        let help = "write e.g. account: { from: header:X-Account-Id }, or count by ip";
        warn_at(&value, ValueError::new(codes::NO_EFFECT, message).with_help(help));
    }
}

/// A `fair_by` that is the same for all waiters of a queue.
fn warn_of_turns(file: &LintContext<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        let same = |part: &KeyPart| *part == KeyPart::Global || config.key.contains(part);
        if !config.fair_by.is_empty() && config.fair_by.iter().all(same) {
            let message = "this key is the same for all waiters of a queue, so they take no turns";
            let help = "take turns by a value that is not in the limit's own key";
            warn_at(
                &file.limit_value(limit, &["fair_by"]),
                ValueError::new(codes::NO_EFFECT, message).with_help(help),
            );
        }
    }
}

/// A limit that degrades rejected requests to the location's own upstream.
fn warn_of_degrading(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let ActionConfig::Upstream(own) = location.action else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits).copied();
        let is_ineffective = |&limit: &LimitId| {
            !file.config.limits[limit].dry_run && degrade_target(file, limit, location) == Some(Some(own))
        };
        if let Some(limit) = chain.find(is_ineffective) {
            let message = format!(
                "requests that limit `{}` rejects are sent to upstream {} anyway: it limits nothing here",
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

/// The upstream that rejections by a limit are degraded to; `Some(None)` = a fixed response, `None` = not degraded.
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

/// Strikes by responses that tell a client that all is well.
fn warn_of_good_strikes(file: &LintContext<'_>, statuses: &StatusRanges) {
    if statuses.contains(200) || statuses.contains(304) {
        let message = "responses to good requests are strikes, so ordinary clients are banned";
        let help = "name the responses to bad requests, e.g. [reject, 401, 403, 404]";
        warn_at(
            &file.value_at(&["bans", "strikes"]),
            ValueError::new(codes::MISREAD, message).with_help(help),
        );
    }
}

/// Bans that nothing can lead to, and those that good requests lead to.
fn warn_of_bans(file: &LintContext<'_>) {
    let Some(bans) = &file.config.bans else { return };
    let StrikeRules { rejections, statuses } = &bans.strikes;
    warn_of_good_strikes(file, statuses);
    let is_final = |range: &(u16, u16)| range.1 >= 200;
    if statuses.0.iter().any(is_final) {
        return;
    }
    if !rejections {
        let message = "no client is ever banned: no final response has one of these statuses";
        let help = "write e.g. strikes: [reject, 401, 403, 404]";
        warn_at(
            &file.value_at(&["bans", "strikes"]),
            ValueError::new(codes::NO_EFFECT, message).with_help(help),
        );
        return;
    }
    let rejects = |limit: LimitId| {
        let config = &file.config.limits[limit];
        !config.dry_run && !matches!(config.algorithm, Algorithm::Concurrency { .. })
    };
    let mut locations = file.config.locations.iter();
    // Requests without a location are never degraded.
    let strikes = file.config.server.limits.iter().any(|&limit| rejects(limit))
        || locations.any(|location| {
            let own = |&limit: &LimitId| rejects(limit) && degrade_target(file, limit, location).is_none();
            location.limits.iter().any(own)
        });
    if !strikes {
        let message = "no client is ever banned: no rate and no queue of this file rejects requests";
        let help = "rejections by concurrency, in dry runs and degraded ones do not count; statuses do where strikes \
                    names them, e.g. strikes: [reject, 404]";
        warn_at(
            &file.value_at(&["bans", "after"]),
            ValueError::new(codes::NO_EFFECT, message).with_help(help),
        );
    }
}
