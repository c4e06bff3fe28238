//! Warns of settings that conflict with counting in Redis.

use std::net::IpAddr;

use super::LintContext;
use crate::describe::format_full_period;
use sluicegate_model::{Algorithm, RedisConfig, RedisServers, codes};

pub(super) fn lint_shared(file: &LintContext<'_>) {
    match &file.config.state.redis {
        None => warn_of_unused_redis(file),
        Some(redis) => {
            warn_of_turns(file);
            warn_of_timeouts(file, redis);
            warn_of_password(file, redis);
        }
    }
}

/// A configured Redis without any use.
fn warn_of_unused_redis(file: &LintContext<'_>) {
    let url = file.value_at(&["state", "redis", "url"]);
    if url.path == "state.redis.url" && !url.is_null() && !url.is_word("none") {
        let message = "nothing counts in this Redis: every limit and the bans count locally";
        let help = "write state: redis in a limit, or store: redis for all limits without a `state`";
        file.value_at(&["state", "redis"]).warn(codes::NO_EFFECT, message, help);
    }
}

/// A shared queue with `fair_by`: each gateway gives turns only to its own waiters.
fn warn_of_turns(file: &LintContext<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        if config.shared.is_some() && !config.fair_by.is_empty() {
            let message = match config.algorithm {
                Algorithm::Concurrency { .. } => {
                    "each gateway has a queue of its own, and its waiters take turns within that only"
                }
                _ => "the gateways share this queue, and its waiters take turns within each of them only",
            };
            let help = "let one gateway serve this location, or leave fair_by out";
            file.limit_value(limit, &["fair_by"]).warn(codes::NOT_SHARED, message, help);
        }
        let is_queue = matches!(config.algorithm, Algorithm::LeakyBucket { .. });
        if config.shared.is_some() && config.shares.is_some() && is_queue {
            let message = "the gateways share this queue, and its classes take turns within each of them only, without \
                           places of their own and without the pace of `most`";
            let help = "let one gateway serve this location, or write algorithm: token_bucket";
            file.limit_value(limit, &["shares"]).warn(codes::NOT_SHARED, message, help);
        }
    }
}

/// Locations with a timeout shorter than that of Redis.
fn warn_of_timeouts(file: &LintContext<'_>, redis: &RedisConfig) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let Some(timeout) = location.timeout.filter(|timeout| *timeout < redis.timeout) else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits);
        let Some(limit) = chain.find(|&&limit| file.config.limits[limit].shared.is_some()) else { continue };
        let message = format!(
            "limit `{}` may wait {} for Redis, and this timeout ends after {}",
            file.config.limits[*limit].name,
            format_full_period(redis.timeout),
            format_full_period(timeout)
        );
        let help = "write a longer timeout, or a shorter state.redis.timeout";
        file.location_value(index, &["timeout"]).warn(codes::LONG_WAIT, message, help);
    }
}

/// A password that crosses the network unencrypted.
fn warn_of_password(file: &LintContext<'_>, redis: &RedisConfig) {
    let servers = match &redis.servers {
        RedisServers::Single(host, _) => vec![host.as_str()],
        RedisServers::Sentinel { sentinels: several, .. } | RedisServers::Cluster(several) => {
            several.iter().map(|(host, _)| host.as_str()).collect()
        }
    };
    if !redis.tls && redis.password.is_some() && servers.into_iter().any(is_remote_host) {
        let message = "the password of Redis goes over the network in plain text";
        let help = "write rediss://, which encrypts it and all counters";
        file.value_at(&["state", "redis", "url"]).warn(codes::WEAK, message, help);
    }
}

/// True if `host` is certainly another machine. A name without a dot may be a container on this one.
fn is_remote_host(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => !ip.to_canonical().is_loopback(),
        Err(_) => host.contains('.') && !host.ends_with(".localhost"),
    }
}
