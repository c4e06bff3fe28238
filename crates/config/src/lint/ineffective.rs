//! Warns of fields without effect because of the rest of the file, and of shadows that tell nothing new.

use http::HeaderName;
use http::header::ACCESS_CONTROL_EXPOSE_HEADERS;

use super::LintContext;
use sluicegate_model::{
    ActionConfig, Algorithm, BanKey, Config, Degrade, HeaderEdits, KeyPart, LimitId, LocationConfig,
    ObeyConfig, RetryReason, Shares, StatusRanges, StrikeRules, UpstreamConfig, UpstreamId, codes,
};

pub(super) fn lint_ineffective(file: &LintContext<'_>) {
    warn_of_accounts(file);
    warn_of_turns(file);
    warn_of_classes(file);
    warn_of_degrading(file);
    warn_of_bans(file);
    warn_of_bodies(file);
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
            file.value_at(&["upstreams", &upstream.name, "queue"]).warn(codes::NO_EFFECT, message, help);
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
            value.warn(codes::NO_EFFECT, message, help);
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
            file.location_value(index, &["response_headers"]).warn(
                codes::NO_EFFECT,
                message,
                "remove it here, or write cors: none",
            );
        }
    }
}

/// Bandwidth limits only pace the bodies of upstreams, and a reading of bodies needs a reader.
fn warn_of_bodies(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let warn = |field: &str, message: &str, help: &str| {
            file.location_value(index, &[field]).warn(codes::NO_EFFECT, message, help);
        };
        if location.bandwidth.is_some() && !matches!(location.action, ActionConfig::Upstream(_)) {
            let message = "only bodies of an upstream's answers are paced, and this location has no upstream";
            warn("bandwidth", message, "write bandwidth: none, or leave it out");
        }
        if location.body_peek.is_some() && !location.reads_body(file.config) {
            let message =
                "no body is read, because no key, no cost and no account of this location is a value in it";
            let help = "write e.g. key: json:/model in a limit of this location, or leave it out";
            warn("body_peek", message, help);
        }
    }
}

/// Keys that count by account although no request has one.
fn warn_of_accounts(file: &LintContext<'_>) {
    if file.config.account.from.is_some() || file.config.account.keys.is_some() {
        return;
    }
    let by_account = |parts: &[KeyPart]| parts.contains(&KeyPart::Account);
    let mut values = Vec::new();
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        values.extend(by_account(&config.key).then(|| file.limit_value(limit, &["key"])));
        values.extend(by_account(&config.fair_by).then(|| file.limit_value(limit, &["fair_by"])));
        let shared = config.shares.as_ref().is_some_and(|shares| shares.by == KeyPart::Account);
        values.extend(shared.then(|| file.limit_value(limit, &["shares", "by"])));
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
        value.warn(codes::NO_EFFECT, message, help);
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
            file.limit_value(limit, &["fair_by"]).warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// A class that is named after no location.
fn warn_of_classes(file: &LintContext<'_>) {
    let is_location = |name: &str| file.config.locations.iter().any(|location| location.name == name);
    for limit in file.used_limits() {
        let Some(shares) = &file.config.limits[limit].shares else { continue };
        let named = shares.classes.iter().map(|class| &*class.name).filter(|name| *name != Shares::DEFAULT);
        for class in named.filter(|name| shares.by == KeyPart::Location && !is_location(name)) {
            let message = format!("no request is of class `{class}`, because no location has this name");
            let help = "write the `name` of a location; without one it is the path";
            file.limit_value(limit, &["shares", "classes", class]).warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// A limit that degrades rejected requests to the location's own upstream.
fn warn_of_degrading(file: &LintContext<'_>) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let ActionConfig::Upstream(own) = location.action else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits).copied();
        let is_ineffective = |&limit: &LimitId| {
            !file.config.limits[limit].dry_run
                && find_degrade(file, limit, location) == Some(Degrade::Upstream(own))
        };
        if let Some(limit) = chain.find(is_ineffective) {
            let message = format!(
                "requests that limit `{}` rejects are sent to upstream {} anyway: it limits nothing here",
                file.config.limits[limit].name, file.config.upstreams[own].name
            );
            let help = "degrade to another upstream, or write on_reject: { degrade: none } here";
            file.location_value(index, &["upstream"]).warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// The place that rejections by a limit are degraded to.
fn find_degrade(file: &LintContext<'_>, limit: LimitId, location: &LocationConfig) -> Option<Degrade> {
    file.config.on_reject_at(&file.config.limits[limit], Some(&location.on_reject)).degrade
}

/// Bans that nothing can lead to, and those that good requests lead to.
fn warn_of_bans(file: &LintContext<'_>) {
    let Some(bans) = &file.config.bans else { return };
    let StrikeRules { rejections, statuses } = &bans.strikes;
    if statuses.contains(200) || statuses.contains(304) {
        let message = "responses to good requests are strikes, so ordinary clients are banned";
        let help = "name the responses to bad requests, e.g. [reject, 401, 403, 404]";
        file.value_at(&["bans", "strikes"]).warn(codes::MISREAD, message, help);
    }
    let is_final = |range: &(u16, u16)| range.1 >= 200;
    if statuses.0.iter().any(is_final) {
        return;
    }
    if !rejections {
        let message = "no client is ever banned: no final response has one of these statuses";
        let help = "write e.g. strikes: [reject, 401, 403, 404]";
        file.value_at(&["bans", "strikes"]).warn(codes::NO_EFFECT, message, help);
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
            let own = |&limit: &LimitId| rejects(limit) && find_degrade(file, limit, location).is_none();
            location.limits.iter().any(own)
        });
    if !strikes {
        let message = "no client is ever banned: no rate and no queue of this file rejects requests";
        let help = "rejections by concurrency, in dry runs and degraded ones do not count; statuses do where strikes \
                    names them, e.g. strikes: [reject, 404]";
        file.value_at(&["bans", "after"]).warn(codes::NO_EFFECT, message, help);
    }
}

pub(super) fn lint_shadows(file: &LintContext<'_>) {
    for (id, limit) in file.used_limits().into_iter().map(|id| (id, &file.config.limits[id])) {
        let Some(shadow) = limit.shadow.map(|shadow| &file.config.limits[shadow]) else { continue };
        let warn = |message: &str, help: &str| {
            file.limit_value(id, &["shadow"]).warn(codes::NO_EFFECT, message, help);
        };
        let numbers = || limit.file_variants();
        if numbers().all(|numbers| *numbers == shadow.algorithm) {
            warn(
                "this shadow has the numbers of its limit, and judges every request alike",
                "write other numbers",
            );
        } else if limit.dry_run && limit.tiers.is_empty() {
            let message = "this limit is a dry run, so its shadow compares two limits that never act";
            warn(message, "write the numbers to try in the limit itself, or remove dry_run");
        }
    }
}

pub(super) fn lint_obeyed(file: &LintContext<'_>) {
    for (index, upstream) in file.config.upstreams.iter().enumerate() {
        let Some(obey) = &upstream.obey else { continue };
        let field = |names: &[&str]| {
            let path: Vec<&str> = ["upstreams", &upstream.name].iter().chain(names).copied().collect();
            file.value_at(&path)
        };
        if let Some(status) = shared_status(upstream, obey) {
            let message = format!("{status} is obeyed, so it never counts as an error of a server");
            let help = "leave it out of eject.status, or of obey.status";
            field(&["eject", "status"]).warn(codes::NO_EFFECT, message, help);
        }
        let is_obeyed = |status: &u16| obey.status.contains(*status);
        let is_retried = |status: &u16| {
            let reason = RetryReason::from_status(*status);
            upstream.retries.attempts > 0 && reason.is_some_and(|own| upstream.retries.when.contains(own))
        };
        if let Some(status) = (502..=504).filter(is_obeyed).find(is_retried) {
            let message = format!("{status} is obeyed, so it is never tried again");
            let help = "leave it out of retries.when, or of obey.status";
            field(&["retries", "when"]).warn(codes::NO_EFFECT, message, help);
        }
        if obey.key != [KeyPart::Global] && is_degraded_to(file.config, index) {
            let message = "requests that come here by `degrade` stop together, whatever their key";
            let help = "write key: global, or degrade to another upstream";
            field(&["obey", "key"]).warn(codes::NO_EFFECT, message, help);
        }
    }
}

/// A status that is obeyed and would also count as an error.
fn shared_status(upstream: &UpstreamConfig, obey: &ObeyConfig) -> Option<u16> {
    let StatusRanges(ranges) = &upstream.eject.as_ref()?.status;
    let mut statuses = ranges.iter().flat_map(|(first, last)| *first..=*last);
    statuses.find(|status| obey.status.contains(*status))
}

/// True if rejected requests are sent to this upstream.
fn is_degraded_to(config: &Config, upstream: usize) -> bool {
    let own = Degrade::Upstream(UpstreamId(upstream));
    let is_target = |degrade: Option<&Degrade>| degrade == Some(&own);
    let limits = config.limits.iter().map(|limit| &limit.on_reject);
    let locations = config.locations.iter().map(|location| &location.on_reject);
    is_target(config.on_reject.degrade.as_ref())
        || limits.chain(locations).any(|patch| is_target(patch.degrade.as_ref().and_then(Option::as_ref)))
}
