//! Limits that count in Redis, and what does not go there with them.

use std::net::IpAddr;

use super::{File, note};
use crate::config::describe::period_with_one;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::{Redis, RedisServers};

pub(super) fn warn(file: &File<'_>) {
    match &file.config.state.redis {
        None => warn_of_nobody(file),
        Some(redis) => {
            warn_of_turns(file);
            warn_of_timeouts(file, redis);
            warn_of_password(file, redis);
        }
    }
}

/// A Redis that nothing counts in.
fn warn_of_nobody(file: &File<'_>) {
    let url = file.at(&["state", "redis", "url"]);
    if url.path == "state.redis.url" && !url.is_null() && !url.is_word("none") {
        let message = "nothing counts in this Redis: every limit and the bans count locally";
        let help = "write state: redis in a limit, or store: redis for all that say nothing else";
        note(&file.at(&["state", "redis"]), Complaint::new(codes::IN_VAIN, message).help(help));
    }
}

/// Turns that each gateway gives to its own waiters.
fn warn_of_turns(file: &File<'_>) {
    for limit in file.used_limits() {
        let config = &file.config.limits[limit];
        if config.shared.is_some() && !config.fair_by.is_empty() {
            let message =
                "the gateways share this queue, and its waiters take turns within each of them only";
            let help = "let one gateway serve this location, or leave fair_by out";
            note(&file.limit(limit, &["fair_by"]), Complaint::new(codes::NOT_SHARED, message).help(help));
        }
    }
}

/// Locations that give up before Redis does.
fn warn_of_timeouts(file: &File<'_>, redis: &Redis) {
    for (index, location) in file.config.locations.iter().enumerate() {
        let Some(timeout) = location.timeout.filter(|timeout| *timeout < redis.timeout) else { continue };
        let mut chain = file.config.server.limits.iter().chain(&location.limits);
        let Some(limit) = chain.find(|&&limit| file.config.limits[limit].shared.is_some()) else { continue };
        let message = format!(
            "limit `{}` may wait {} for Redis, and this timeout ends after {}",
            file.config.limits[*limit].name,
            period_with_one(redis.timeout),
            period_with_one(timeout)
        );
        let help = "write a longer timeout, or a shorter state.redis.timeout";
        note(&file.location(index, &["timeout"]), Complaint::new(codes::LONG_WAIT, message).help(help));
    }
}

/// A password that travels unencrypted.
fn warn_of_password(file: &File<'_>, redis: &Redis) {
    let servers = match &redis.servers {
        RedisServers::Single(host, _) => vec![host.as_str()],
        RedisServers::Sentinel { sentinels: several, .. } | RedisServers::Cluster(several) => {
            several.iter().map(|(host, _)| host.as_str()).collect()
        }
    };
    if !redis.tls && redis.password.is_some() && servers.into_iter().any(is_elsewhere) {
        let message = "the password of Redis goes over the network in plain text";
        let help = "write rediss://, which encrypts it and all counters";
        note(&file.at(&["state", "redis", "url"]), Complaint::new(codes::WEAK, message).help(help));
    }
}

/// Surely on another machine. A name without a dot may be a container beside this one.
fn is_elsewhere(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => !ip.to_canonical().is_loopback(),
        Err(_) => host.contains('.') && !host.ends_with(".localhost"),
    }
}
