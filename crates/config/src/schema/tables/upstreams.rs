//! The fields of `upstreams`.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use rustls::pki_types::ServerName;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{
    COUNT, FILE, NONZERO_TIME, Nested, NestedOrNone, Number, OrWord, PERCENTAGE, SHARE, STATUS_RANGE, SWITCH,
    Scalar, Special, StatusRange, Text, Words, text,
};
use sluicegate_model::value::server_url::parse_server;
use sluicegate_model::value::statuses::parse_status_range;
use sluicegate_model::value::words::parse_word;
use sluicegate_model::value::{names, scalars};
use sluicegate_model::{
    BalancePolicy, EjectConfig, HealthConfig, KeyPart, Parsed, RetryReason, Secret, ServerQueueConfig,
    StickyConfig, UpstreamProtocol, UpstreamServerConfig, UpstreamTimeouts, ValueError, codes,
};

use super::limits::KEY_PART;
use super::operation::parse_hash_secret;

const SERVER_FORMS: &str = "`HOST:PORT`, `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`";

section! {
    /// A group of servers that requests are forwarded to. Servers alone can be written without `servers`.
    mod upstream = "upstreams.NAME";
    /// The servers: `HOST:PORT`, `http://…`, `https://…`, `unix:/PATH`, or mappings.
    SERVERS: Special = Special(servers_shape), "servers", required, "[10.0.0.1:9000]";
    /// The choice among the servers; `p2c` takes the less busy of two, `hash:ip` tells clients apart as limits do.
    BALANCE: Text<BalancePolicy> = Text::new(
        "`p2c`, `round_robin`, `least_conn`, `random`, `hash:ip`, `hash:uri` or `hash:header:NAME`", parse_balance
    ).matching("^(p2c|round_robin|least_conn|random|hash:(ip|uri|header:.+))$"),
        "balance", "p2c", "least_conn";
    /// A cookie that leads a client to the same server; while that one is draining, down, ejected or full, `balance`
    /// chooses another.
    STICKY: NestedOrNone = NestedOrNone(&sticky::SECTION), "sticky", "none", "{ cookie: sg, for: 1h }";
    /// A header of the PROXY protocol, in version 2, in front of each connection to a server: it tells the client's
    /// address. Such a connection serves one client connection.
    PROXY_PROTOCOL: Words<bool> = Words(&[("none", false), ("v2", true)]), "proxy_protocol", "none", "v2";
    /// The HTTP version; `auto` is HTTP/1.1, and over TLS the choice of the server.
    PROTOCOL: Words<UpstreamProtocol> = Words(&UpstreamProtocol::WORDS), "protocol", "auto", "http2";
    /// Idle connections that each worker keeps to each server.
    KEEPALIVE: Number<usize> = Number(0, 1_000_000), "keepalive", "128", "32";
    /// Requests that each server gets at once, over all workers; while all servers have that many, further ones wait in
    /// the `queue` or get 503.
    MAX_CONNECTIONS: OrWord<Number<u32>> = OrWord("none", COUNT), "max_connections", "none", "100";
    /// The queue of requests that wait until a server is below `max_connections`; without it they get 503 at once.
    QUEUE: NestedOrNone = NestedOrNone(&server_queue::SECTION), "queue", "none", "{ size: 500, max_wait: 5s }";
    /// The interval at which host names are resolved again.
    DNS_REFRESH: Text<Duration> = NONZERO_TIME, "dns_refresh", "30s", "5s";
    /// The times that a server may take.
    TIMEOUTS: Nested = Nested(&timeouts::SECTION), "timeouts", "{}", "{ connect: 1s, response: 30s }";
    /// Further tries of failed requests, by default one.
    RETRIES: NestedOrNone = NestedOrNone(&retries::SECTION), "retries", "{}", "{ attempts: 2 }";
    /// The time in which a server that came up gets from a tenth of its weight to all of it.
    SLOW_START: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "slow_start", "none", "30s";
    /// Health checks by requests of the gateway itself.
    HEALTH: NestedOrNone = NestedOrNone(&health::SECTION), "health", "none", "{ path: /healthz }";
    /// Ejection of a server after errors in a row.
    EJECT: NestedOrNone = NestedOrNone(&eject::SECTION), "eject", "{}", "{ errors: 3, for: 30s }";
    /// Stops when the upstream says that it has had enough: requests wait where a leaky bucket lets them, and are
    /// rejected otherwise.
    OBEY: NestedOrNone = NestedOrNone(&obey::SECTION), "obey", "none", "{ status: [429, 503], at_most: 30s }";
    /// TLS to the servers, all of which are then `https://`.
    TLS: NestedOrNone = NestedOrNone(&tls::SECTION), "tls", "{}", "{ ca: authority.pem }";
}

section! {
    /// One server with settings of its own.
    mod server = "upstreams.NAME.servers[]";
    /// The address of the server.
    URL: Text<UpstreamServerConfig> = Text::new(SERVER_FORMS, parse_server),
        "url", required, "\"http://10.0.0.1:9000\"";
    /// The share of requests that the server gets, in relation to the weights of the others.
    WEIGHT: Number<u32> = Number(1, 65_535), "weight", "1", "2";
    /// Whether the server gets requests only while no other one is available.
    BACKUP: Scalar<bool> = SWITCH, "backup", "false", "true";
}

section! {
    /// The queue in front of all servers of the upstream: first in, first out, over all workers.
    mod server_queue = "upstreams.NAME.queue" for ServerQueueConfig;
    /// Requests that may wait at once; further ones get 503 at once.
    size: Number<usize> = Number(1, 1_000_000), "1000", "500";
    /// The time that a request waits at most; then it gets 503.
    max_wait: Text<Duration> = NONZERO_TIME, "10s", "5s";
}

section! {
    /// A cookie that leads a client to the same server. Nobody can read or forge it.
    mod sticky = "upstreams.NAME.sticky" for StickyConfig;
    /// The name of the cookie.
    cookie: Text<String> = Text::new("the name of a cookie", names::parse_cookie_name), "sg", "shop_server";
    /// The time from the first response on after which `balance` chooses again.
    span as "for": Text<Duration> = NONZERO_TIME, "1h", "8h";
    /// The secret that cookies are sealed with: gateways with the same secret accept each other's. `auto` is made from
    /// `access_log.hash_secret`, and lives where that one does.
    secret: OrWord<Text<Secret>> = OrWord("auto", Text::new("a text that is not empty", parse_hash_secret)),
        "auto", "\"${STICKY_SECRET}\"";
}

section! {
    /// The times that a server may take.
    mod timeouts = "upstreams.NAME.timeouts" for UpstreamTimeouts;
    /// The time to connect, TLS included; then 502, or a retry.
    connect: Text<Duration> = NONZERO_TIME, "2s", "500ms";
    /// From the request to the head of its response; then 504, or a retry.
    response: Text<Duration> = NONZERO_TIME, "60s", "10s";
    /// The longest gap in the body of a response, after which it is cut.
    body: Text<Duration> = NONZERO_TIME, "60s", "5m";
    /// The time after which an unused connection is closed, and a WebSocket or another tunnel in which neither side
    /// sends a byte.
    idle: Text<Duration> = NONZERO_TIME, "60s", "20s";
}

section! {
    /// Further tries of failed requests, if possible on other servers; `none` switches them off.
    mod retries = "upstreams.NAME.retries";
    /// Tries after the first one.
    ATTEMPTS: Number<u32> = Number(0, 10), "attempts", "1", "2";
    /// The failures that are tried again: no connection, and a request that the server did not accept; for GET, HEAD,
    /// OPTIONS, TRACE, QUERY, PUT and DELETE without a body also no response in time (`timeout`) and responses with
    /// these statuses. A list replaces the default one.
    WHEN: OneOrMore<Scalar<Vec<RetryReason>>> = OneOrMore(RETRY_REASONS),
        "when", "[connect, refused]", "[connect, refused, 502-504]";
    /// The share of requests that may be retries; three at a time are always allowed.
    BUDGET: OrWord<Text<f64>> = OrWord("none", PERCENTAGE), "budget", "20%", "10%";
    /// The time of one try, from the connect to the head of the response.
    PER_TRY: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "per_try", "none", "2s";
    /// The time of all tries together.
    TOTAL: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "total", "none", "10s";
}

section! {
    /// Health checks by GET requests of the gateway itself. A server starts as healthy.
    mod health = "upstreams.NAME.health" for HealthConfig;
    /// The path of the request.
    path: Text<PathAndQuery> = Text::new("a path", parse_check_path).matching("^/"), "/", "/healthz";
    /// From the start of one check to the start of the next.
    interval: Text<Duration> = NONZERO_TIME, "5s", "10s";
    /// The time of one check.
    timeout: Text<Duration> = NONZERO_TIME, "2s", "1s";
    /// The statuses of a healthy server.
    status: OneOrMore<StatusRange> = OneOrMore(STATUS_RANGE), "200-399", "[200, 204]";
    /// Passed checks in a row after which the server gets requests again.
    rise: Number<u32> = COUNT, "2", "1";
    /// Failed checks in a row after which the server gets no requests.
    fall: Number<u32> = COUNT, "3", "5";
}

section! {
    /// Ejection: a server with this many errors in a row gets no requests for a while. `none` switches it off.
    mod eject = "upstreams.NAME.eject" for EjectConfig;
    /// Errors in a row: no connection, no response in time, a broken or invalid response, or one with `status`.
    errors: Number<u32> = COUNT, "5", "3";
    /// The time without requests.
    span as "for": Text<Duration> = NONZERO_TIME, "10s", "30s";
    /// The share of servers that may be ejected at once; one always may, and the last one never.
    max: Text<f64> = Text::new("a percentage above 0%", parse_eject_share).matching(SHARE), "50%", "30%";
    /// Responses that count as errors.
    status: OneOrMore<StatusRange> = OneOrMore(STATUS_RANGE), "[]", "[502-504]";
}

section! {
    /// Stops that the upstream asks for: by one of these statuses, for the time in `Retry-After`, or by `RateLimit`
    /// fields of any response that say that nothing is left.
    mod obey = "upstreams.NAME.obey";
    /// Responses that begin a stop, of 400 to 599; without a time it lasts a second.
    STATUS: OneOrMore<StatusRange> = OneOrMore(STATUS_RANGE), "status", "[429]", "[429, 503]";
    /// The longest stop.
    AT_MOST: Text<Duration> = NONZERO_TIME, "at_most", "60s", "10s";
    /// What is stopped apart from the rest; `global` stops all requests to the upstream.
    KEY: OneOrMore<Text<KeyPart>> = OneOrMore(KEY_PART), "key", "global", "account";
}

section! {
    /// TLS to `https://` servers. A relative path starts at the folder of this file.
    mod tls = "upstreams.NAME.tls";
    /// A PEM file with the trusted authorities; `system` stands for those of the system.
    CA: OrWord<Text<PathBuf>> = OrWord("system", FILE), "ca", "system", "authority.pem";
    /// The name in SNI and in the certificate; `auto` is the host of the server's address.
    SERVER_NAME: OrWord<Text<ServerName<'static>>> =
        OrWord("auto", Text::new("a host name or an address", parse_server_name)),
        "server_name", "auto", "app.internal";
    /// A PEM file with a certificate for servers that ask for one.
    CERT: OrWord<Text<PathBuf>> = OrWord("none", FILE), "cert", "none", "gateway.pem";
    /// A PEM file with the private key of `cert`.
    KEY: OrWord<Text<PathBuf>> = OrWord("none", FILE), "key", "none", "gateway.key";
    /// Whether the certificate of a server is verified; with `false` any server is trusted.
    VERIFY: Scalar<bool> = SWITCH, "verify", "true", "false";
}

/// A reason to try a request again, or statuses that are reasons.
const RETRY_REASONS: Scalar<Vec<RetryReason>> = Scalar(
    || {
        let range = Shape::Text("a range such as `502-504`".to_owned(), Some("^50[2-4]( *- *50[2-4])?$"));
        let words = vec!["none", "connect", "refused", "timeout"];
        Shape::Either(vec![Shape::Words(words), Shape::Integer(502, 504), range])
    },
    parse_retry_reasons,
);

fn parse_retry_reasons(text: &str) -> Parsed<Vec<RetryReason>> {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return parse_word(&RetryReason::WORDS)(text).map(|reason| vec![reason]);
    }
    let (first, last) = parse_status_range(text)?;
    let reasons: Option<Vec<RetryReason>> = (first..=last).map(RetryReason::from_status).collect();
    reasons.ok_or_else(|| {
        ValueError::new(codes::STATUS, format!("`{text}` has statuses that are never tried again"))
            .with_help("those that can be are 502, 503 and 504")
    })
}

/// The value of `upstreams`.
pub fn upstreams_shape() -> Shape {
    let upstream = Shape::Either(vec![Shape::Section(&upstream::SECTION), servers_shape()]);
    Shape::Map("names", Box::new(upstream))
}

fn servers_shape() -> Shape {
    let server = Shape::Either(vec![text("the address of a server"), Shape::Section(&server::SECTION)]);
    Shape::OneOrMore(Box::new(server))
}

fn parse_balance(text: &str) -> Parsed<BalancePolicy> {
    if let Some(name) = text.strip_prefix("hash:header:") {
        return names::parse_header_name(name).map(BalancePolicy::HashHeader);
    }
    let kinds = [
        ("p2c", BalancePolicy::P2c),
        ("round_robin", BalancePolicy::RoundRobin),
        ("least_conn", BalancePolicy::LeastConn),
        ("random", BalancePolicy::Random),
        ("hash:ip", BalancePolicy::HashIp),
        ("hash:uri", BalancePolicy::HashUri),
        ("hash:header:NAME", BalancePolicy::P2c),
    ];
    parse_word(&kinds)(text)
}

pub(super) fn parse_check_path(text: &str) -> Parsed<PathAndQuery> {
    let wrong = || {
        ValueError::new(codes::PATH, format!("`{text}` is not a path that can be asked for"))
            .with_help("write a path that begins with a slash, e.g. /healthz")
    };
    if !text.starts_with('/') || text.contains('#') {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

fn parse_eject_share(text: &str) -> Parsed<f64> {
    match scalars::parse_percent(text)? {
        0.0 => {
            Err(ValueError::new(codes::PERCENT, "`0%` would eject no server").with_help("write eject: none"))
        }
        share => Ok(share),
    }
}

fn parse_server_name(text: &str) -> Parsed<ServerName<'static>> {
    ServerName::try_from(text.to_owned()).map_err(|_| {
        ValueError::new(codes::HOST, format!("`{text}` is not a name that a certificate can have"))
            .with_help("write a host name or an address, without a port")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_balance() {
        assert_eq!(parse_balance("least_conn").unwrap(), BalancePolicy::LeastConn);
        assert!(
            matches!(parse_balance("hash:header:X-A").unwrap(), BalancePolicy::HashHeader(name) if name == "x-a")
        );
        assert_eq!(
            parse_balance("least-conn").unwrap_err().suggestion.unwrap(),
            "did you mean `least_conn`?"
        );
    }

    #[test]
    fn statuses_are_reasons_to_retry_where_they_can_be() {
        let parse = parse_retry_reasons;
        assert_eq!(parse("timeout").unwrap(), [RetryReason::Timeout]);
        assert_eq!(parse("503").unwrap(), [RetryReason::Unavailable]);
        let all = [RetryReason::BadGateway, RetryReason::Unavailable, RetryReason::GatewayTimeout];
        assert_eq!(parse("502-504").unwrap(), all);
        for wrong in ["500", "5xx", "502-505", "504-502"] {
            assert_eq!(parse(wrong).unwrap_err().code, codes::STATUS, "{wrong}");
        }
    }
}
