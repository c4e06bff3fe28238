//! Reads the whole file: its sections, in the order that their references need, and `server`.

use std::sync::Arc;

use super::access::{self, IpSetReader};
use super::limits::LimitReader;
use super::state::StateReader;
use super::upstreams::UpstreamReader;
use super::{account, headers, listen, locations, operation, reject, service, state};
use crate::lint;
use crate::schema::tables::operation::{log, reload};
use crate::schema::tables::root::root;
use crate::schema::tables::server::{keepalive, server, timeouts};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::{Node, NodeContent};
use sluicegate_model::{Config, Position, ProblemSink, ServerConfig, codes};

/// Reads the whole tree; the result is valid only if there are no problems.
pub(crate) fn read_sections(root: &Node, sink: &ProblemSink) -> Option<Config> {
    let whole = FieldValue { node: root, path: String::new(), named_at: Position::START, sink };
    match &root.content {
        NodeContent::Map(entries) if !entries.is_empty() => {}
        NodeContent::Invalid => return None,
        NodeContent::Map(_) | NodeContent::Null => {
            let help = "write at least locations: [{ path: /, upstream: demo }]";
            whole.refuse_name(codes::EMPTY, "the file is empty", help);
            return None;
        }
        NodeContent::Text(_) | NodeContent::List(_) => {
            let help = "the file is made of sections such as upstreams:, limits: and locations:";
            whole.refuse_name(codes::SHAPE, "the file is not a mapping", help);
            return None;
        }
    }
    let root = whole.open_section(&root::SECTION);
    let sets = IpSetReader::read_sets(&root);
    let access = access::read_access_over(root.find(&root::ACCESS).as_ref(), &sets, &Arc::default());
    let upstreams = UpstreamReader::read_upstreams(&root);
    let state = state::read_state(&root);
    let mut limits = LimitReader::read_limits(&root, &sets, &state, &upstreams);
    let server = read_server(&root, &mut limits);
    let mut listen = listen::read_listen(&root, &server);
    let service = service::read_service(&root, &mut listen, &server, &mut limits);
    let locations = locations::read_locations(&root, &mut limits, &upstreams, &access, &listen, &server);
    let on_reject = reject::read_on_reject(&root, &upstreams);
    let mut limits = limits.into_limits(service.as_ref().is_some_and(|service| !service.listen.is_empty()));
    StateReader::check_leased_store(&root, &limits);
    let bans = access::read_bans(&root);
    let account = account::read_account(&root, &locations);
    for limit in limits.iter_mut().filter(|limit| limit.begins_by_account()) {
        limit.anchors = account.keys.as_ref().map(|keys| keys.file.clone());
    }
    let upstreams = upstreams.into_upstreams();
    let config = Config {
        listen,
        server,
        state: state.build_state(&limits, bans.is_some(), &upstreams),
        upstreams,
        limits,
        locations,
        access,
        ip_sets: sets.collect_sets(),
        bans,
        account,
        on_reject,
        reload: root.read_section(&root::RELOAD, reload::read),
        admin: operation::read_admin(&root),
        service,
        log: root.read_section(&root::LOG, log::read),
        access_log: operation::read_access_log(&root),
        tracing: operation::read_tracing(&root),
        notify: operation::read_notify(&root),
    };
    root.report_unknown();
    if !sink.has_problems() {
        lint::lint_config(&config, &whole);
    }
    Some(config)
}

/// Reads the section; its chain goes into `limits`.
pub(crate) fn read_server(root: &FieldReader<'_>, limits: &mut LimitReader<'_>) -> ServerConfig {
    root.read_section(&root::SERVER, |fields| {
        let (keepalive_requests, keepalive_age) = fields.read_section(&server::KEEPALIVE, |keep| {
            (keep.read(&keepalive::REQUESTS), keep.read(&keepalive::AGE))
        });
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let chain = fields.find(&server::LIMITS);
        let chain = chain.map(|chain| limits.read_chain(&chain, "server")).unwrap_or_default();
        ServerConfig {
            workers: fields.read(&server::WORKERS).unwrap_or_else(cores),
            trusted_proxies: fields.read(&server::TRUSTED_PROXIES),
            client_ip: fields.read(&server::CLIENT_IP),
            ipv6_prefix: fields.read(&server::IPV6_PREFIX),
            ipv4_prefix: fields.read(&server::IPV4_PREFIX),
            limits: chain.limits,
            views: chain.views,
            max_connections: fields.read(&server::MAX_CONNECTIONS),
            is_max_connections_written: fields.find(&server::MAX_CONNECTIONS).is_some(),
            connections_per_ip: fields.read(&server::CONNECTIONS_PER_IP),
            keepalive_requests,
            keepalive_age,
            max_waiting: fields.read(&server::MAX_WAITING),
            max_in_flight: fields.read(&server::MAX_IN_FLIGHT),
            max_header_size: fields.read(&server::MAX_HEADER_SIZE) as usize,
            max_headers: fields.read(&server::MAX_HEADERS),
            max_body: fields.read(&server::MAX_BODY),
            body_memory: fields.read(&server::BODY_MEMORY),
            timeouts: fields.read_section(&server::TIMEOUTS, timeouts::read),
            request_id: fields.read(&server::REQUEST_ID),
            underscore_headers: fields.read(&server::UNDERSCORE_HEADERS),
            headers: headers::read_edits(fields, &server::HEADERS),
        }
    })
}
