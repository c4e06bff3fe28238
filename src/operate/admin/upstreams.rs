//! The endpoints of `/upstreams`: the state of each server, and the start and end of a drain, in which a server gets
//! no new requests.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{AdminResponse, Answer, Change};
use super::endpoint::AdminRequest;
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_http::upstream::{DrainOutcome, ServerStatus, Upstream, UpstreamStatus};

json_object! {
    pub(super) struct UpstreamList as "UpstreamList" {
        upstreams: Vec<UpstreamStatus> = "All upstreams, in file order.",
    }
}

pub(super) fn list_upstreams(request: &AdminRequest) -> Answer {
    let (gateway, now) = (request.state.gateway(), Now::read_clock());
    let shown = gateway.upstreams.iter().filter(|upstream| !upstream.is_demo());
    Answer::json(&UpstreamList { upstreams: shown.map(|upstream| upstream.status_at(now)).collect() })
}

pub(super) fn show_upstream(request: &AdminRequest) -> Answer {
    let gateway = request.state.gateway();
    match find_upstream(&gateway.upstreams, request) {
        Ok(upstream) => Answer::json(&upstream.status_at(Now::read_clock())),
        Err(rejection) => rejection.into(),
    }
}

pub(super) fn drain_server(request: &AdminRequest) -> Answer {
    change_drain(request, true)
}

pub(super) fn undrain_server(request: &AdminRequest) -> Answer {
    change_drain(request, false)
}

fn change_drain(request: &AdminRequest, drain: bool) -> Answer {
    let gateway = request.state.gateway();
    let upstream = match find_upstream(&gateway.upstreams, request) {
        Ok(upstream) => upstream,
        Err(rejection) => return rejection.into(),
    };
    let server = request.path_value("server");
    let before = upstream.status_at(Now::read_clock()).servers;
    let before = list_states(before.iter().filter(|one| one.server == server));
    match upstream.drain_servers(server, drain, request.query_flag("force")) {
        DrainOutcome::Done(servers) => {
            let target = format!("upstream {}, server {server}", upstream.name);
            let after = list_states(servers.iter());
            Answer::json(&servers).with_change(Change { target, before, after })
        }
        DrainOutcome::NoSuchServer => {
            let why = format!("the upstream `{}` has no server `{}`", upstream.name, server.escape_debug());
            Answer::error(StatusCode::NOT_FOUND, &why)
        }
        DrainOutcome::LastServer => Answer::error(
            StatusCode::CONFLICT,
            "no other server of this upstream is up: its requests would be answered 503; use ?force=true to \
             drain it anyway",
        ),
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
) -> Result<&'u Upstream, AdminResponse> {
    let name = request.path_value("upstream");
    upstreams.iter().map(|upstream| &**upstream).find(|upstream| *upstream.name == *name).ok_or_else(|| {
        let why = format!("there is no upstream `{}`", name.escape_debug());
        AdminResponse::error(StatusCode::NOT_FOUND, &why)
    })
}
