//! Upstreams in one line each.

use std::time::Duration;

use super::{describe_key, format_full_period, join_names, shorten};
use crate::schema::tables::upstreams::timeouts;
use sluicegate_model::{
    BalancePolicy, Config, KeyPart, ObeyConfig, RetryConfig, RetryReason, ServerQueueConfig, StickyConfig,
    UpstreamConfig, UpstreamKind, UpstreamProtocol, UpstreamServerConfig,
};

/// More servers would hide the rest of the line.
const SERVERS_MAX: usize = 5;

/// "10.0.0.1:9000 (weight 2), 10.0.0.2:9000; balanced in turn; health check GET /healthz every 5 seconds; no retries".
/// Timeouts are named if they are not the usual ones.
pub fn describe_upstream(config: &Config, upstream: &UpstreamConfig) -> String {
    let servers = match &upstream.kind {
        UpstreamKind::Demo => return "built in, echoes each request".to_owned(),
        UpstreamKind::Servers(servers) => servers,
    };
    let addresses: Vec<String> = servers.iter().map(describe_server).collect();
    let mut parts = vec![join_names(&addresses, SERVERS_MAX)];
    parts.extend(describe_protocol(upstream));
    if servers.len() > 1 {
        parts.push(describe_balance(&upstream.balance));
    }
    parts.extend(upstream.sticky.as_ref().map(|sticky| describe_sticky(config, sticky)));
    parts.extend(upstream.proxy_protocol.then(|| "announces clients by PROXY protocol version 2".to_owned()));
    parts.extend(upstream.max_connections.map(|most| format!("at most {most} connections to each")));
    parts.extend(upstream.queue.as_ref().map(describe_queue));
    parts.push(match &upstream.health {
        Some(health) => {
            let path = shorten(health.path.as_str());
            format!("health check GET {path} every {}", format_full_period(health.interval))
        }
        None => "no health checks".to_owned(),
    });
    parts.extend(upstream.eject.is_none().then(|| "no ejection".to_owned()));
    parts.push(describe_retries(&upstream.retries));
    parts.extend(upstream.obey.as_ref().map(describe_obey));
    parts.extend(describe_timeouts(upstream));
    parts.join("; ")
}

/// "sticky by cookie sg for 1 hour", with an addition if a restart begins anew.
fn describe_sticky(config: &Config, sticky: &StickyConfig) -> String {
    let is_kept = sticky.secret.is_some()
        || config.access_log.hash_secret.is_some()
        || config.state.redis.is_some()
        || config.state.snapshot.is_some();
    let restart = if is_kept { "" } else { ", and a restart begins anew: nothing keeps the secret" };
    format!("sticky by cookie {} for {}{restart}", sticky.cookie, format_full_period(sticky.span))
}

/// "up to 1000 requests wait at most 10 seconds for a free server".
fn describe_queue(queue: &ServerQueueConfig) -> String {
    let ServerQueueConfig { size, max_wait } = queue;
    let requests =
        if *size == 1 { "1 request waits".to_owned() } else { format!("up to {size} requests wait") };
    format!("{requests} at most {} for a free server", format_full_period(*max_wait))
}

/// "10.0.0.1:9000", "10.0.0.2:9000 (weight 2, backup)".
fn describe_server(server: &UpstreamServerConfig) -> String {
    let mut details = Vec::new();
    details.extend((server.weight != 1).then(|| format!("weight {}", server.weight)));
    details.extend(server.backup.then(|| "backup".to_owned()));
    match details.is_empty() {
        true => server.address.to_string(),
        false => format!("{} ({})", server.address, details.join(", ")),
    }
}

/// "TLS", "TLS with any certificate", "HTTP/2", "HTTP/2 over TLS"; `None` for the usual HTTP/1.1.
fn describe_protocol(upstream: &UpstreamConfig) -> Option<String> {
    let tls = upstream.tls.as_ref().map(|tls| match tls.roots {
        Some(_) => "TLS",
        None => "TLS with any certificate",
    });
    let version = match upstream.protocol {
        UpstreamProtocol::Auto => return tls.map(str::to_owned),
        UpstreamProtocol::Http1 => "HTTP/1.1",
        UpstreamProtocol::Http2 => "HTTP/2",
    };
    Some(tls.map_or(version.to_owned(), |tls| format!("{version} over {tls}")))
}

fn describe_balance(balance: &BalancePolicy) -> String {
    match balance {
        BalancePolicy::P2c => "balanced to the less busy of two".to_owned(),
        BalancePolicy::RoundRobin => "balanced in turn".to_owned(),
        BalancePolicy::LeastConn => "balanced to the least busy".to_owned(),
        BalancePolicy::Random => "balanced at random".to_owned(),
        BalancePolicy::HashIp => "balanced by client IP".to_owned(),
        BalancePolicy::HashUri => "balanced by path".to_owned(),
        BalancePolicy::HashHeader(name) => format!("balanced by header {name}"),
    }
}

/// "1 retry (connect, refused)", "2 retries (connect, 503), 2 seconds each, 5 seconds in all", "no retries".
fn describe_retries(retries: &RetryConfig) -> String {
    let reasons = RetryReason::ALL.into_iter().filter(|reason| retries.when.contains(*reason));
    let reasons: Vec<&str> = reasons.map(RetryReason::as_str).collect();
    let number = match retries.attempts {
        0 => return "no retries".to_owned(),
        _ if reasons.is_empty() => return "no retries".to_owned(),
        1 => "1 retry".to_owned(),
        more => format!("{more} retries"),
    };
    let bound = |time: Option<Duration>, of: &str| {
        time.map(|time| format!(", {} {of}", format_full_period(time))).unwrap_or_default()
    };
    let (each, all) = (bound(retries.per_try, "each"), bound(retries.total, "in all"));
    format!("{number} ({}){each}{all}", reasons.join(", "))
}

/// "requests stop for at most 1 minute when it answers 429 or has nothing left".
fn describe_obey(obey: &ObeyConfig) -> String {
    let statuses = obey.status.0.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let statuses: Vec<String> = statuses.collect();
    let answers =
        if statuses.is_empty() { String::new() } else { format!("answers {} or ", statuses.join(", ")) };
    let whose = match obey.key[..] == [KeyPart::Global] {
        true => String::new(),
        false => format!(", each {} apart", describe_key(&obey.key)),
    };
    let at_most = format_full_period(obey.at_most);
    format!("requests stop for at most {at_most} when it {answers}has nothing left{whose}")
}

/// "timeouts: connect 500 milliseconds, response 10 seconds"; `None` if all are the usual ones.
fn describe_timeouts(upstream: &UpstreamConfig) -> Option<String> {
    let times = &upstream.timeouts;
    let unusual: Vec<String> = [
        (times.connect, &timeouts::connect),
        (times.response, &timeouts::response),
        (times.body, &timeouts::body),
        (times.idle, &timeouts::idle),
    ]
    .into_iter()
    .filter(|(time, field)| *time != field.parse_default())
    .map(|(time, field)| format!("{} {}", field.name, format_full_period(time)))
    .collect();
    (!unusual.is_empty()).then(|| format!("timeouts: {}", unusual.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_described(upstream: &str, expected: &str) {
        let file = format!("upstreams: {{ app: {upstream} }}\nlocations: [{{ path: /, upstream: app }}]");
        let config = crate::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
        assert_eq!(describe_upstream(&config, &config.upstreams[0]), expected);
    }

    #[test]
    fn the_usual_upstream_is_short() {
        assert_described("a:1", "a:1; no health checks; 1 retry (connect, refused)");
        assert_described(
            "[a:1, \"[::1]:2\"]",
            "a:1, [::1]:2; balanced to the less busy of two; no health checks; 1 retry (connect, refused)",
        );
    }

    #[test]
    fn what_differs_is_described() {
        assert_described(
            "{ servers: [{ url: \"http://a:1\", weight: 2 }, { url: \"unix:/b\", weight: 3, backup: true }], \
               balance: round_robin, health: { path: /healthz, interval: 10s }, max_connections: 9, \
               retries: { attempts: 2, when: [connect, 502-504], per_try: 2s, total: 5s }, eject: none, \
               timeouts: { connect: 500ms, body: 5m } }",
            "a:1 (weight 2), unix:/b (weight 3, backup); balanced in turn; at most 9 connections to each; \
             health check GET /healthz every 10 seconds; no ejection; 2 retries (connect, 502, 503, 504), \
             2 seconds each, 5 seconds in all; timeouts: connect 500 milliseconds, body 5 minutes",
        );
        assert_described(
            "{ servers: [a:1, b:1, c:1, d:1, e:1, f:1, g:1], balance: \"hash:header:X-User\", retries: none }",
            "a:1, b:1, c:1, d:1, e:1, 2 more; balanced by header x-user; no health checks; no retries",
        );
        assert_described(
            "{ servers: \"https://a\", tls: { verify: false }, protocol: http2 }",
            "a:443; HTTP/2 over TLS with any certificate; no health checks; 1 retry (connect, refused)",
        );
        assert_described(
            "{ servers: a:1, obey: { status: [429, 500-503], at_most: 5m } }",
            "a:1; no health checks; 1 retry (connect, refused); \
             requests stop for at most 5 minutes when it answers 429, 500-503 or has nothing left",
        );
        assert_described(
            "{ servers: a:1, obey: { status: [], key: [ip, uri] } }",
            "a:1; no health checks; 1 retry (connect, refused); \
             requests stop for at most 1 minute when it has nothing left, each client IP and URI apart",
        );
        assert_described(
            "{ servers: a:1, sticky: { cookie: s, for: 8h, secret: x }, proxy_protocol: v2 }",
            "a:1; sticky by cookie s for 8 hours; announces clients by PROXY protocol version 2; no health checks; \
             1 retry (connect, refused)",
        );
        assert_described(
            "{ servers: a:1, sticky: {} }",
            "a:1; sticky by cookie sg for 1 hour, and a restart begins anew: nothing keeps the secret; \
             no health checks; 1 retry (connect, refused)",
        );
        let retried = "no health checks; 1 retry (connect, refused)";
        for (queue, expected) in [
            ("{}", "up to 1000 requests wait at most 10 seconds"),
            ("{ size: 1, max_wait: 500ms }", "1 request waits at most 500 milliseconds"),
        ] {
            assert_described(
                &format!("{{ servers: a:1, max_connections: 3, queue: {queue} }}"),
                &format!("a:1; at most 3 connections to each; {expected} for a free server; {retried}"),
            );
        }
        let path = "x".repeat(100);
        let shown =
            format!("a:1; health check GET /{}… every 5 seconds; 1 retry (connect, refused)", &path[..79]);
        assert_described(&format!("{{ servers: a:1, health: {{ path: /{path} }} }}"), &shown);
    }
}
