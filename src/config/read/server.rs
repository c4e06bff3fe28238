//! Reads `server`: settings for all clients and locations.

use std::time::Duration;

use http::HeaderName;

use super::headers;
use super::limits::LimitReader;
use super::upstreams::UpstreamReader;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::headers::HeaderEdits;
use crate::config::model::{ClientIpConfig, ServerConfig, ServerTimeouts, UnderscoreHeaders};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::fields::{FieldReader, parse_or_none, parse_word};

/// Reads the section; its chain goes into `limits`.
pub(crate) fn read_server(
    root: &mut FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &mut UpstreamReader<'_>,
) -> ServerConfig {
    let mut server = default_server();
    let Some(mut fields) = root.open_section("server") else {
        return server;
    };
    read_clients(&mut fields, &mut server);
    read_caps(&mut fields, &mut server);
    server.timeouts = read_timeouts(&mut fields, server.timeouts);
    if let Some(chain) = fields.get_field("limits") {
        server.limits = limits.read_chain(&chain, "server", upstreams);
    }
    server.request_id = fields.read_scalar("request_id", server.request_id, names::parse_editable_header);
    let policies = [("drop", UnderscoreHeaders::Drop), ("pass", UnderscoreHeaders::Pass)];
    server.underscore_headers =
        fields.read_scalar("underscore_headers", server.underscore_headers, parse_word(&policies));
    server.headers = headers::read_edits(&mut fields, "headers");
    fields.report_unknown();
    server
}

fn default_server() -> ServerConfig {
    let seconds = Duration::from_secs;
    ServerConfig {
        workers: count_cores(),
        trusted_proxies: Vec::new(),
        client_ip: ClientIpConfig::XForwardedFor,
        ipv6_prefix: 64,
        ipv4_prefix: 32,
        limits: Vec::new(),
        max_connections: 65_536,
        connections_per_ip: None,
        keepalive_requests: 100_000,
        keepalive_age: None,
        max_waiting: 50_000,
        max_in_flight: None,
        max_header_size: 64 * 1024,
        max_headers: 100,
        max_body: None,
        timeouts: ServerTimeouts {
            header: seconds(10),
            idle: seconds(75),
            body: seconds(60),
            write: seconds(60),
            handshake: seconds(5),
            shutdown: seconds(30),
        },
        request_id: HeaderName::from_static("x-request-id"),
        underscore_headers: UnderscoreHeaders::Drop,
        headers: HeaderEdits::default(),
    }
}

fn count_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read_clients(fields: &mut FieldReader<'_>, server: &mut ServerConfig) {
    let workers = |text: &str| match text {
        "auto" => Ok(count_cores()),
        _ => scalars::parse_count(text, 1, 1024),
    };
    server.workers = fields.read_scalar("workers", server.workers, workers);
    server.trusted_proxies = fields.read_list("trusted_proxies", names::parse_network);
    server.client_ip = fields.read_scalar("client_ip", ClientIpConfig::XForwardedFor, parse_client_ip);
    server.ipv6_prefix =
        fields.read_scalar("ipv6_prefix", server.ipv6_prefix, |text| parse_prefix_len(text, 128));
    server.ipv4_prefix =
        fields.read_scalar("ipv4_prefix", server.ipv4_prefix, |text| parse_prefix_len(text, 32));
}

fn read_caps(fields: &mut FieldReader<'_>, server: &mut ServerConfig) {
    server.max_connections = fields.read_scalar("max_connections", server.max_connections, |text| {
        scalars::parse_count(text, 1, 10_000_000)
    });
    server.connections_per_ip =
        fields.read_scalar("connections_per_ip", None, parse_or_none(scalars::parse_count_u32));
    if let Some(mut keepalive) = fields.open_section("keepalive") {
        let requests = |text: &str| scalars::parse_number(text, 1, u64::MAX);
        server.keepalive_requests = keepalive.read_scalar("requests", server.keepalive_requests, requests);
        server.keepalive_age =
            keepalive.read_scalar("age", None, parse_or_none(scalars::parse_nonzero_duration));
        keepalive.report_unknown();
    }
    server.max_waiting = fields
        .read_scalar("max_waiting", server.max_waiting, |text| scalars::parse_count(text, 0, 100_000_000));
    server.max_in_flight = fields.read_scalar(
        "max_in_flight",
        None,
        parse_or_none(|text| scalars::parse_count(text, 1, 100_000_000)),
    );
    server.max_header_size = fields.read_scalar("max_header_size", server.max_header_size, parse_header_size);
    server.max_headers =
        fields.read_scalar("max_headers", server.max_headers, |text| scalars::parse_count(text, 1, 10_000));
    server.max_body = fields.read_scalar("max_body", None, parse_or_none(scalars::parse_size));
}

fn read_timeouts(fields: &mut FieldReader<'_>, defaults: ServerTimeouts) -> ServerTimeouts {
    let Some(mut timeouts) = fields.open_section("timeouts") else {
        return defaults;
    };
    let read = ServerTimeouts {
        header: timeouts.read_scalar("header", defaults.header, scalars::parse_nonzero_duration),
        idle: timeouts.read_scalar("idle", defaults.idle, scalars::parse_nonzero_duration),
        body: timeouts.read_scalar("body", defaults.body, scalars::parse_nonzero_duration),
        write: timeouts.read_scalar("write", defaults.write, scalars::parse_nonzero_duration),
        handshake: timeouts.read_scalar("handshake", defaults.handshake, scalars::parse_nonzero_duration),
        shutdown: timeouts.read_scalar("shutdown", defaults.shutdown, scalars::parse_duration),
    };
    timeouts.report_unknown();
    read
}

fn parse_client_ip(text: &str) -> Parsed<ClientIpConfig> {
    match text.strip_prefix("header:") {
        Some(name) => names::parse_header_name(name).map(ClientIpConfig::Header),
        None => {
            let kinds = [
                ("x-forwarded-for", ClientIpConfig::XForwardedFor),
                ("forwarded", ClientIpConfig::Forwarded),
            ];
            parse_word(&kinds)(text).map_err(|error| {
                let help = error.suggestion.clone().filter(|help| help.starts_with("did"));
                error.with_optional_help(
                    help.or_else(|| Some("write x-forwarded-for, forwarded or header:NAME".to_owned())),
                )
            })
        }
    }
}

fn parse_prefix_len(text: &str, max: u64) -> Parsed<u8> {
    scalars::parse_number(text, 1, max).map(|bits| bits as u8)
}

/// The HTTP parser needs room for at least 8 KiB.
fn parse_header_size(text: &str) -> Parsed<usize> {
    let bytes = scalars::parse_size(text)?;
    if !(8 * 1024..=16 * 1024 * 1024).contains(&bytes) {
        return Err(ValueError::new(
            codes::SIZE,
            format!("`{text}` is out of range: 8KiB to 16MiB is needed"),
        ));
    }
    Ok(bytes as usize)
}
