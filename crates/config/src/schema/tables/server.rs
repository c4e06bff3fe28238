//! The fields of `server`.

use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;

use crate::schema::field::{OneOrMore, section};
use crate::schema::kinds::{COUNT, NONZERO_TIME, Nested, Number, OrWord, Size, Span, Special, Text, Words};
use crate::schema::tables::limits::chain;
use crate::schema::tables::reject::edits;
use sluicegate_model::value::names;
use sluicegate_model::value::words::parse_word_or;
use sluicegate_model::{ClientIpConfig, Parsed, ServerTimeouts, UnderscoreHeaders};

section! {
    /// Settings for all clients and locations.
    mod server = "server";
    /// Worker threads; `auto` is the number of cores that the process may use. A change needs a restart.
    WORKERS: OrWord<Number<usize>> = OrWord("auto", Number(1, 1024)), "workers", "auto", "4";
    /// The peers that may tell the address, scheme and request id of a client.
    TRUSTED_PROXIES: OneOrMore<Text<IpNet>> = OneOrMore(Text::new("an address or network", names::parse_network)),
        "trusted_proxies", "[]", "[10.0.0.0/8]";
    /// The header with the client's address: the right-most address that is not of a trusted proxy counts.
    CLIENT_IP: Text<ClientIpConfig> = Text::new("x-forwarded-for, forwarded or header:NAME", parse_client_ip),
        "client_ip", "x-forwarded-for", "header:X-Real-IP";
    /// The bits of an IPv6 address that tell clients apart.
    IPV6_PREFIX: Number<u8> = Number(1, 128), "ipv6_prefix", "64", "56";
    /// The bits of an IPv4 address that tell clients apart.
    IPV4_PREFIX: Number<u8> = Number(1, 32), "ipv4_prefix", "32", "24";
    /// A chain of limits before that of every location, for requests without a location, too.
    LIMITS: Special = Special(chain), "limits", "[]", "[per-ip]";
    /// Open connections; above it, new ones wait in the accept queue of the kernel.
    MAX_CONNECTIONS: Number<usize> = Number(1, 10_000_000), "max_connections", "65536", "20000";
    /// Open connections of one client; more are closed at once.
    CONNECTIONS_PER_IP: OrWord<Number<u32>> = OrWord("none", COUNT), "connections_per_ip", "none", "100";
    /// The end of connections of clients.
    KEEPALIVE: Nested = Nested(&keepalive::SECTION), "keepalive", "{}", "{ requests: 10000, age: 1h }";
    /// Requests in all queues, and those whose bodies are being read; above it, a request that would have to wait gets
    /// 503.
    MAX_WAITING: Number<usize> = Number(0, 100_000_000), "max_waiting", "50000", "10000";
    /// Requests in flight; above it, a request gets 503.
    MAX_IN_FLIGHT: OrWord<Number<usize>> = OrWord("none", Number(1, 100_000_000)), "max_in_flight", "none", "5000";
    /// The size of a request's head; a larger one gets 431.
    MAX_HEADER_SIZE: Size = Size(8 << 10, 16 << 20), "max_header_size", "64KiB", "16KiB";
    /// The number of header fields of a request; more get 431.
    MAX_HEADERS: Number<usize> = Number(1, 10_000), "max_headers", "100", "50";
    /// The size of a request's body; a larger one gets 413. Bodies stream in any case.
    MAX_BODY: OrWord<Size> = OrWord("none", Size(0, u64::MAX)), "max_body", "none", "10MiB";
    /// The memory for bodies that are read before the limits are judged, see [body](concepts.md#body). One network
    /// holds at most a quarter of it, and one client an eighth. A body that finds no room waits within its location's
    /// `timeout`, then gets 503.
    BODY_MEMORY: Size = Size(256 << 10, 1 << 50), "body_memory", "256MiB", "1GiB";
    /// The times that a client may take.
    TIMEOUTS: Nested = Nested(&timeouts::SECTION), "timeouts", "{}", "{ header: 5s, idle: 30s }";
    /// The header of the request id. Its value is taken over from trusted proxies, else made here.
    REQUEST_ID: Text<HeaderName> = Text::new("a header name", names::parse_editable_header),
        "request_id", "x-request-id", "x-correlation-id";
    /// Changes to the headers of every response, before those of its location.
    HEADERS: Nested = Nested(&edits::SECTION), "headers", "{}", "{ set: { X-Content-Type-Options: nosniff } }";
    /// Request headers with an underscore in their names, which some servers take for a hyphen.
    UNDERSCORE_HEADERS: Words<UnderscoreHeaders> =
        Words(&[("drop", UnderscoreHeaders::Drop), ("pass", UnderscoreHeaders::Pass)]),
        "underscore_headers", "drop", "pass";
}

section! {
    /// The end of connections of clients: `Connection: close` over HTTP/1, GOAWAY over HTTP/2.
    mod keepalive = "server.keepalive";
    /// Requests on one connection, after which it ends.
    REQUESTS: Number = Number(1, u64::MAX), "requests", "100000", "10000";
    /// The age of a connection at which it ends.
    AGE: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "age", "none", "1h";
}

section! {
    /// The times that a client may take.
    mod timeouts = "server.timeouts" for ServerTimeouts;
    /// From the first byte of a head to its end; then 408, or the connection is closed.
    header: Text<Duration> = NONZERO_TIME, "10s", "5s";
    /// Between two requests on a connection.
    idle: Text<Duration> = NONZERO_TIME, "75s", "30s";
    /// The longest gap between two reads of a request's body; then 408. There is no least pace; the `timeout` of a
    /// location bounds the whole.
    body: Text<Duration> = NONZERO_TIME, "60s", "30s";
    /// The longest time in which a write to the client makes no progress.
    write: Text<Duration> = NONZERO_TIME, "60s", "30s";
    /// TLS and PROXY protocol together.
    handshake: Text<Duration> = NONZERO_TIME, "5s", "10s";
    /// The time for which the program goes on serving after a signal to stop, while `/readyz` answers 503, so that a
    /// load balancer can take it out first.
    drain: Span = Span::from(Duration::ZERO), "0s", "10s";
    /// The time that requests in flight have to end when the program stops, after `drain`.
    shutdown: Span = Span::from(Duration::ZERO), "30s", "2m";
}

fn parse_client_ip(text: &str) -> Parsed<ClientIpConfig> {
    match text.strip_prefix("header:") {
        Some(name) => names::parse_header_name(name).map(ClientIpConfig::Header),
        None => {
            let kinds = [
                ("x-forwarded-for", ClientIpConfig::XForwardedFor),
                ("forwarded", ClientIpConfig::Forwarded),
            ];
            parse_word_or(&kinds, text, || "write x-forwarded-for, forwarded or header:NAME".to_owned())
        }
    }
}
