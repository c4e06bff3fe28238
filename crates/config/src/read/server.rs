//! Reads `server`: settings for all clients and locations.

use super::headers;
use super::limits::LimitReader;
use super::upstreams::UpstreamReader;
use crate::schema::tables::root::root;
use crate::schema::tables::server::{keepalive, server, timeouts};
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::{ServerConfig, ServerTimeouts};

/// Reads the section; its chain goes into `limits`.
pub(crate) fn read_server(
    root: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
    upstreams: &mut UpstreamReader<'_>,
) -> ServerConfig {
    root.read_section(&root::SERVER, |fields| {
        let (keepalive_requests, keepalive_age) = fields.read_section(&server::KEEPALIVE, |keep| {
            (keep.read(&keepalive::REQUESTS), keep.read(&keepalive::AGE))
        });
        let chain = fields.find(&server::LIMITS);
        let chain = chain.map(|chain| limits.read_chain(&chain, "server", upstreams)).unwrap_or_default();
        ServerConfig {
            workers: fields.read(&server::WORKERS).unwrap_or_else(count_cores),
            trusted_proxies: fields.read_list(&server::TRUSTED_PROXIES),
            client_ip: fields.read(&server::CLIENT_IP),
            // The table bounds both by 128.
            ipv6_prefix: fields.read(&server::IPV6_PREFIX) as u8,
            ipv4_prefix: fields.read(&server::IPV4_PREFIX) as u8,
            limits: chain.limits,
            views: chain.views,
            max_connections: fields.read(&server::MAX_CONNECTIONS),
            connections_per_ip: fields.read(&server::CONNECTIONS_PER_IP),
            keepalive_requests,
            keepalive_age,
            max_waiting: fields.read(&server::MAX_WAITING),
            max_in_flight: fields.read(&server::MAX_IN_FLIGHT),
            max_header_size: fields.read(&server::MAX_HEADER_SIZE) as usize,
            max_headers: fields.read(&server::MAX_HEADERS),
            max_body: fields.read(&server::MAX_BODY),
            body_memory: fields.read(&server::BODY_MEMORY),
            timeouts: fields.read_section(&server::TIMEOUTS, read_timeouts),
            request_id: fields.read(&server::REQUEST_ID),
            underscore_headers: fields.read(&server::UNDERSCORE_HEADERS),
            headers: headers::read_edits(fields, &server::HEADERS),
        }
    })
}

fn count_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read_timeouts(fields: &FieldReader<'_>) -> ServerTimeouts {
    ServerTimeouts {
        header: fields.read(&timeouts::HEADER),
        idle: fields.read(&timeouts::IDLE),
        body: fields.read(&timeouts::BODY),
        write: fields.read(&timeouts::WRITE),
        handshake: fields.read(&timeouts::HANDSHAKE),
        drain: fields.read(&timeouts::DRAIN),
        shutdown: fields.read(&timeouts::SHUTDOWN),
    }
}
