//! `GET /healthz`, `GET /readyz` and `GET /metrics`.

use http::StatusCode;

use super::answer::{AdminBody, Answer};
use super::endpoint::AdminRequest;
use sluicegate_observe::metrics;

pub(super) fn show_health(_: &AdminRequest) -> Answer {
    Answer::text("ok")
}

pub(super) fn show_readiness(request: &AdminRequest) -> Answer {
    if !request.state.is_ready() {
        return Answer::error(StatusCode::SERVICE_UNAVAILABLE, "not ready");
    }
    let gateway = request.state.gateway();
    let is_degraded = gateway.store.as_ref().is_some_and(|store| store.is_degraded());
    Answer::text(if is_degraded { "ready\ndegraded: redis\n" } else { "ready\n" })
}

pub(super) fn show_metrics(request: &AdminRequest) -> Answer {
    Answer::fixed(metrics::CONTENT_TYPE, AdminBody::from(request.state.gateway().metrics.render()))
}
