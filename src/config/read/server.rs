//! `server`: what holds for all clients and all locations.

use std::time::Duration;

use http::HeaderName;

use super::limits::Limits;
use super::upstreams::Upstreams;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::{ClientIp, Server, ServerTimeouts, UnderscoreHeaders};
use crate::config::value::names;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, or_none, word};

/// Reads the section; its chain goes into `limits`.
pub(crate) fn read(root: &mut Fields<'_>, limits: &mut Limits<'_>, upstreams: &mut Upstreams<'_>) -> Server {
    let mut server = defaults();
    let Some(mut fields) = root.section("server") else {
        return server;
    };
    read_clients(&mut fields, &mut server);
    read_caps(&mut fields, &mut server);
    server.timeouts = read_timeouts(&mut fields, server.timeouts);
    if let Some(chain) = fields.get("limits") {
        server.limits = limits.read_chain(&chain, "server", upstreams);
    }
    server.request_id = fields.read("request_id", server.request_id, names::editable_header);
    let policies = [("drop", UnderscoreHeaders::Drop), ("pass", UnderscoreHeaders::Pass)];
    server.underscore_headers = fields.read("underscore_headers", server.underscore_headers, word(&policies));
    fields.close();
    server
}

fn defaults() -> Server {
    let seconds = Duration::from_secs;
    Server {
        workers: cores(),
        trusted_proxies: Vec::new(),
        client_ip: ClientIp::XForwardedFor,
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
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read_clients(fields: &mut Fields<'_>, server: &mut Server) {
    let workers = |text: &str| match text {
        "auto" => Ok(cores()),
        _ => count(text, 1, 1024),
    };
    server.workers = fields.read("workers", server.workers, workers);
    server.trusted_proxies = fields.read_list("trusted_proxies", names::network);
    server.client_ip = fields.read("client_ip", ClientIp::XForwardedFor, client_ip);
    server.ipv6_prefix = fields.read("ipv6_prefix", server.ipv6_prefix, |text| prefix(text, 128));
    server.ipv4_prefix = fields.read("ipv4_prefix", server.ipv4_prefix, |text| prefix(text, 32));
}

fn read_caps(fields: &mut Fields<'_>, server: &mut Server) {
    server.max_connections =
        fields.read("max_connections", server.max_connections, |text| count(text, 1, 10_000_000));
    server.connections_per_ip = fields.read("connections_per_ip", None, or_none(count_u32));
    if let Some(mut keepalive) = fields.section("keepalive") {
        let requests = |text: &str| scalars::number(text, 1, u64::MAX);
        server.keepalive_requests = keepalive.read("requests", server.keepalive_requests, requests);
        server.keepalive_age = keepalive.read("age", None, or_none(scalars::span));
        keepalive.close();
    }
    server.max_waiting = fields.read("max_waiting", server.max_waiting, |text| count(text, 0, 100_000_000));
    server.max_in_flight = fields.read("max_in_flight", None, or_none(|text| count(text, 1, 100_000_000)));
    server.max_header_size = fields.read("max_header_size", server.max_header_size, header_size);
    server.max_headers = fields.read("max_headers", server.max_headers, |text| count(text, 1, 10_000));
    server.max_body = fields.read("max_body", None, or_none(scalars::size));
}

fn read_timeouts(fields: &mut Fields<'_>, defaults: ServerTimeouts) -> ServerTimeouts {
    let Some(mut timeouts) = fields.section("timeouts") else {
        return defaults;
    };
    let read = ServerTimeouts {
        header: timeouts.read("header", defaults.header, scalars::span),
        idle: timeouts.read("idle", defaults.idle, scalars::span),
        body: timeouts.read("body", defaults.body, scalars::span),
        write: timeouts.read("write", defaults.write, scalars::span),
        handshake: timeouts.read("handshake", defaults.handshake, scalars::span),
        shutdown: timeouts.read("shutdown", defaults.shutdown, scalars::duration),
    };
    timeouts.close();
    read
}

fn client_ip(text: &str) -> Read<ClientIp> {
    match text.strip_prefix("header:") {
        Some(name) => names::header_name(name).map(ClientIp::Header),
        None => {
            let kinds = [("x-forwarded-for", ClientIp::XForwardedFor), ("forwarded", ClientIp::Forwarded)];
            word(&kinds)(text).map_err(|complaint| {
                let help = complaint.suggestion.clone().filter(|help| help.starts_with("did"));
                complaint.maybe_help(
                    help.or_else(|| Some("write x-forwarded-for, forwarded or header:NAME".to_owned())),
                )
            })
        }
    }
}

fn prefix(text: &str, max: u64) -> Read<u8> {
    scalars::number(text, 1, max).map(|bits| bits as u8)
}

/// A number of things held in memory.
pub(crate) fn count(text: &str, min: u64, max: u64) -> Read<usize> {
    scalars::number(text, min, max).map(|number| number as usize)
}

pub(crate) fn count_u32(text: &str) -> Read<u32> {
    scalars::number(text, 1, u64::from(u32::MAX)).map(|number| number as u32)
}

/// The parser below us needs room for at least 8 KiB.
fn header_size(text: &str) -> Read<usize> {
    let bytes = scalars::size(text)?;
    if !(8 * 1024..=16 * 1024 * 1024).contains(&bytes) {
        return Err(Complaint::new(
            codes::SIZE,
            format!("`{text}` is out of range: 8KiB to 16MiB is needed"),
        ));
    }
    Ok(bytes as usize)
}
