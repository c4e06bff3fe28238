//! The endpoints of `/upstreams`: the state of each server, and the start and end of a drain, in which a server gets
//! no new requests.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, Change};
use super::endpoint::{AdminRequest, Answered};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_http::upstream::{DrainOutcome, ServerStatus, Upstream, UpstreamStatus};

json_object! {
    pub(super) struct UpstreamList as "UpstreamList" {
        upstreams: Vec<UpstreamStatus> = "All upstreams, in file order.",
    }
}

pub(super) async fn list_upstreams(request: AdminRequest) -> Answered {
    let (gateway, now) = (request.state.gateway(), Now::read_clock());
    let shown = gateway.upstreams.iter().filter(|upstream| !upstream.is_demo());
    Ok(Answer::json(&UpstreamList {
        upstreams: shown.map(|upstream| gateway.upstream_status(upstream, now)).collect(),
    }))
}

pub(super) async fn show_upstream(request: AdminRequest) -> Answered {
    let gateway = request.state.gateway();
    let upstream = find_upstream(&gateway.upstreams, &request)?;
    Ok(Answer::json(&gateway.upstream_status(upstream, Now::read_clock())))
}

/// Starts or ends a drain.
pub(super) async fn change_drain(request: AdminRequest, drain: bool) -> Answered {
    let gateway = request.state.gateway();
    let upstream = find_upstream(&gateway.upstreams, &request)?;
    let server = request.path_value("server");
    let read_servers = || -> Vec<ServerStatus> {
        let servers = gateway.upstream_status(upstream, Now::read_clock()).servers;
        servers.into_iter().filter(|one| one.server == server).collect()
    };
    let before = list_states(read_servers().iter());
    match upstream.drain_servers(server, drain, request.query_value("force") == "true") {
        DrainOutcome::Done => {
            let servers = read_servers();
            let target = format!("upstream {}, server {server}", upstream.name);
            let after = list_states(servers.iter());
            Ok(Answer::json(&servers).with_change(Change { target, before, after }))
        }
        DrainOutcome::NoSuchServer => {
            let why = format!("the upstream `{}` has no server `{}`", upstream.name, server.escape_debug());
            Err(AdminError::new(StatusCode::NOT_FOUND, &why))
        }
        DrainOutcome::LastServer => Err(AdminError::new(
            StatusCode::CONFLICT,
            "no other server of this upstream is up: its requests would be answered 503; use ?force=true to \
             drain it anyway",
        )),
    }
}

/// The state of each server, or of the only one.
fn list_states<'s>(servers: impl Iterator<Item = &'s ServerStatus>) -> Value {
    let mut states: Vec<&str> = servers.map(|server| server.state).collect();
    match (states.pop(), states.is_empty()) {
        (Some(only), true) => json!(only),
        (last, _) => json!(states.into_iter().chain(last).collect::<Vec<_>>()),
    }
}

/// The upstream that the path names.
fn find_upstream<'u>(
    upstreams: &'u [std::sync::Arc<Upstream>],
    request: &AdminRequest,
) -> Result<&'u Upstream, AdminError> {
    let name = request.path_value("upstream");
    upstreams.iter().map(|upstream| &**upstream).find(|upstream| *upstream.name == *name).ok_or_else(|| {
        let why = format!("there is no upstream `{}`", name.escape_debug());
        AdminError::new(StatusCode::NOT_FOUND, &why)
    })
}
