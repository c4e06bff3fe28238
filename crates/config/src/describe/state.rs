//! Describes the store of counters, without its credentials.

use super::{join_names, show_percent};
use sluicegate_model::{
    Config, DEFAULT_PREFIX, LimitConfig, OnFailure, RedisConfig, RedisServers, StoreConfig, check_leases,
};

/// More servers would hide the rest of the line.
const SERVERS_MAX: usize = 5;

/// "redis at 10.0.0.1:6379 (prefix sg)"; `None` if no limit or ban counts in Redis.
pub fn describe_state(config: &Config) -> Option<String> {
    config.state.redis.as_ref().map(describe_redis)
}

/// Advice on valid settings that could be better, shown by `check` only.
pub fn advise_on_state(config: &Config) -> Option<String> {
    let redis = config.state.redis.as_ref()?;
    (redis.prefix == DEFAULT_PREFIX).then(|| {
        format!(
            "another service on this Redis with the same prefix and limits of the same names shares these \
             counters; a prefix of its own keeps them apart, e.g. state.redis.prefix: {DEFAULT_PREFIX}-shop"
        )
    })
}

fn describe_redis(redis: &RedisConfig) -> String {
    let servers = describe_servers(&redis.servers);
    let mut details = vec![format!("prefix {}", redis.prefix)];
    details.extend((redis.database > 0).then(|| format!("database {}", redis.database)));
    details.extend(redis.tls.then(|| "TLS".to_owned()));
    let nodes = redis.nodes_at_least;
    details.extend((nodes > 1).then(|| format!("at least {nodes} gateways")));
    let home = redis.home.as_ref().map(|home| {
        let (servers, share) = (describe_servers(&home.redis.servers), show_percent(home.share.into()));
        format!("; a region with a floor of {share} of its home, {servers}")
    });
    format!("{servers} ({}){}", details.join(", "), home.unwrap_or_default())
}

fn describe_servers(servers: &RedisServers) -> String {
    match servers {
        RedisServers::Single(host, port) => format!("redis at {}", format_address(host, *port)),
        RedisServers::Sentinel { sentinels, name } => {
            format!("redis, the primary {name} of the Sentinels at {}", format_addresses(sentinels))
        }
        RedisServers::Cluster(seeds) => format!("redis, the Cluster at {}", format_addresses(seeds)),
    }
}

fn format_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn format_addresses(servers: &[(String, u16)]) -> String {
    let addresses: Vec<String> = servers.iter().map(|(host, port)| format_address(host, *port)).collect();
    join_names(&addresses, SERVERS_MAX)
}

/// The store of a limit and its behaviour while Redis fails; `None` if no limit of the file counts in Redis.
pub(super) fn describe_store(config: &Config, limit: &LimitConfig) -> Option<String> {
    let home = config.state.redis.as_ref()?.home.as_ref();
    let otherwise = match limit.shared {
        None => return Some("counted by each gateway for itself".to_owned()),
        Some(OnFailure::Local) => "this gateway's share of it",
        Some(OnFailure::Allow) => "no limit",
        Some(OnFailure::Reject) if limit.dry_run => "all would be rejected",
        Some(OnFailure::Reject) => "all are rejected with 503",
    };
    let how = match (limit.leased, home) {
        (true, Some(home)) => {
            let share = show_percent(home.share.into());
            return Some(format!(
                "leased from the home for all regions together; {share} of it while that does not answer; \
                 while Redis does not answer: {otherwise}"
            ));
        }
        (true, None) => "leased from Redis for all gateways together",
        (false, Some(_)) => "counted in Redis for all gateways of this region together",
        (false, None) => "counted in Redis for all gateways together",
    };
    let why = match check_leases(limit) {
        Err(reason) if config.state.store == StoreConfig::Leased && !limit.leased => {
            format!(" ({})", reason.split(": ").next().unwrap_or_default())
        }
        _ => String::new(),
    };
    Some(format!("{how}{why}; while it does not answer: {otherwise}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::{describe_bans, describe_limit};
    use sluicegate_model::LimitId;

    fn config(url: &str, more: &str, limit: &str) -> Config {
        let text = format!(
            "state:\n  store: redis\n  redis:\n    url: {url}\nbans: {{ after: 5/1m, for: 1h, max: 1h }}\n\
             locations: [{{ path: /, upstream: demo, limits: {{ rate: 10/s{limit} }} }}]\n{more}\n"
        );
        crate::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config
    }

    #[test]
    fn nodes_at_least_is_described_if_it_is_set() {
        let described = |nodes: u64| {
            let text = format!(
                "state: {{ store: redis, redis: {{ url: redis://h, nodes_at_least: {nodes} }} }}\n\
                 locations: [{{ path: /, upstream: demo, limits: 10/s }}]\n"
            );
            let loaded = crate::parse(&text, "x").unwrap_or_else(|report| panic!("{report}"));
            describe_state(&loaded.config).expect("limits count in Redis")
        };
        assert_eq!(described(1), "redis at h:6379 (prefix sg)");
        assert_eq!(described(3), "redis at h:6379 (prefix sg, at least 3 gateways)");
    }

    #[test]
    fn servers_are_described_and_credentials_are_not() {
        for (url, described) in [
            ("redis://u:hunter2@h", "redis at h:6379 (prefix sg)"),
            ("\"rediss://hunter2:hunter2@[::1]:1/2\"", "redis at [::1]:1 (prefix sg, database 2, TLS)"),
            (
                "redis+sentinel://:hunter2@h1,h2:7/main",
                "redis, the primary main of the Sentinels at h1:26379, h2:7 (prefix sg)",
            ),
            ("[redis://:hunter2@a, redis://:hunter2@b]", "redis, the Cluster at a:6379, b:6379 (prefix sg)"),
            (
                "[redis://a, redis://b, redis://c, redis://d, redis://e, redis://f]",
                "redis, the Cluster at a:6379, b:6379, c:6379, d:6379, e:6379, 1 more (prefix sg)",
            ),
        ] {
            let config = config(url, "", "");
            assert_eq!(describe_state(&config).as_deref(), Some(described));
            assert!(!format!("{config:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_prefix_is_advised_if_the_default_is_used() {
        let text = |redis: &str, limit: &str| {
            let text = format!(
                "state: {{ redis: {{ url: redis://h{redis} }} }}\n\
                 locations: [{{ path: /, upstream: demo, limits: {{ rate: 10/s{limit} }} }}]\n"
            );
            let loaded = crate::parse(&text, "x").unwrap_or_else(|report| panic!("{report}"));
            (advise_on_state(&loaded.config), loaded.warnings.len())
        };
        for (redis, limit, is_advised, warnings) in [
            ("", ", state: redis", true, 0),
            (", prefix: sg", ", state: redis", true, 0),
            (", prefix: shop", ", state: redis", false, 0),
            // No limit counts there.
            ("", "", false, 1),
        ] {
            let (advice, warned) = text(redis, limit);
            assert_eq!((advice.is_some(), warned), (is_advised, warnings), "{redis} {limit}");
            assert!(advice.is_none_or(|advice| advice.contains("state.redis.prefix: sg-shop")));
        }
    }

    #[test]
    fn each_limit_says_where_it_counts() {
        let described = |limit: &str| describe_limit(&config("redis://h", "", limit), LimitId(0), None);
        let shared = "; counted in Redis for all gateways together; while it does not answer: ";
        for (limit, otherwise) in [
            ("", "this gateway's share of it"),
            (", on_failure: allow", "no limit"),
            (", on_failure: reject", "all are rejected with 503"),
            (
                ", on_failure: reject, dry_run: true",
                "all would be rejected (dry run: counted, never rejected)",
            ),
        ] {
            assert!(described(limit).ends_with(&format!("{shared}{otherwise}")), "{}", described(limit));
        }
        assert!(described(", state: local").ends_with("; counted by each gateway for itself"));
    }

    #[test]
    fn no_store_is_described_if_redis_is_not_used() {
        let text = "limits: { x: 10/s }\nlocations: [{ path: /, upstream: demo, limits: x }]";
        let config = crate::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
        assert_eq!(describe_state(&config), None);
        assert!(!describe_limit(&config, LimitId(0), None).contains("counted"));
    }

    #[test]
    fn bans_say_that_they_are_shared() {
        let described = describe_bans(&config("redis://h", "", "")).expect("bans");
        assert_eq!(
            described,
            "5 rejections per 60 seconds ban a client IP for 1 hour, at all gateways together"
        );
    }
}
