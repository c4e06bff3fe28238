//! Renders the response to a request that is not served, and stores and counts its fault or ban.

use std::borrow::Cow;

use bytes::Bytes;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Response};

use crate::gateway::{Action, LimitChain};
use crate::judge::inbound::InboundRequest;
use crate::judge::limit_report::{write_dry_runs, write_judged};
use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::{LimitRejection, RejectContext, Rejection};
use sluicegate_admission::chain::RateDecision;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::location;
use sluicegate_observe::metrics::BanEvent;

/// The texts of a request that a response may contain.
pub struct RequestTexts<'r> {
    /// Canonical.
    pub host: Cow<'r, str>,
    /// Normalised.
    pub path: Cow<'r, [u8]>,
    pub uri: &'r Uri,
}

impl<'r> RequestTexts<'r> {
    /// Reads the texts again, for a rejection after a wait.
    pub fn read_again(inbound: &'r InboundRequest) -> RequestTexts<'r> {
        let InboundRequest { request, authority, .. } = inbound;
        RequestTexts {
            host: location::request_host(request.version(), request.headers(), authority.as_ref())
                .unwrap_or_default(),
            path: location::normalise_path(request.uri().path()).unwrap_or_default(),
            uri: request.uri(),
        }
    }
}

/// The facts of a request that a response or a header value may contain.
pub fn response_context<'c>(state: &'c RequestState, texts: &'c RequestTexts<'_>) -> RejectContext<'c> {
    let gateway = &state.worker.gateway;
    let route = state.route.map(|route| &gateway.routes[route.0]);
    let upstream = match (state.degraded, route.map(|route| &route.action)) {
        (Some(degraded), _) => &gateway.upstreams[degraded.0].name,
        (None, Some(Action::Upstream(upstream))) => &upstream.name,
        (None, _) => "",
    };
    RejectContext {
        request_id: state.request_id.as_bytes(),
        client_ip: Some(state.client.ip),
        account: state.account.as_deref().unwrap_or_default(),
        tier: state.tier_name(),
        host: &texts.host,
        uri: str::from_utf8(&texts.path).unwrap_or(texts.uri.path()),
        path: &texts.path,
        request_uri: texts.uri.path_and_query().map_or("", PathAndQuery::as_str),
        scheme: state.scheme.as_str(),
        location: gateway.location_name(state.route).map_or("", |name| name),
        upstream,
    }
}

/// Renders the response, and stores and counts the fault or the ban.
pub fn render_rejection(
    state: &mut RequestState,
    texts: &RequestTexts<'_>,
    rejection: &Rejection,
) -> Response<Bytes> {
    let worker = state.worker.clone();
    let gateway = &worker.gateway;
    if let Some(fault) = rejection.counted_fault() {
        state.verdict = Verdict::Fault(fault);
        gateway.metrics.count_fault(worker.id, fault.index());
    }
    if let Rejection::Banned { by_operator, left_ns } = rejection {
        state.verdict = Verdict::Ban;
        state.error = by_operator.then_some("banned by an operator");
        state.retry_after_ns = Some(*left_ns);
        gateway.metrics.count_ban_event(worker.id, BanEvent::Rejected);
    }
    if let Rejection::Stopped(stop) = rejection {
        state.verdict = Verdict::Reject;
        state.error = Some("stopped by the upstream");
        state.retry_after_ns = Some(stop.retry_after_ns);
        if let Some(obey) = &gateway.upstreams[stop.upstream.0].obey {
            obey.gate().count_refused();
        }
    }
    let context = || response_context(state, texts);
    let edit_headers = |headers: &mut HeaderMap| {
        let edits = &gateway.response_edits;
        let values = if edits.has_variables() { edits.render_values(&context()) } else { Default::default() };
        edits.apply(headers, &values);
    };
    let rejecter = gateway.rejecters.for_location(state.route);
    let usual = match (rejection, &state.decisions[..]) {
        (Rejection::Limit(limit_rejection), [only])
            if !state.is_grpc && is_decision_of(only, limit_rejection, state.chain()) =>
        {
            rejecter.find_usual(limit_rejection, &only.decision, state.request_id.as_bytes())
        }
        _ => None,
    };
    let mut response = match usual {
        Some(usual) => usual.build_response(state.request_id.as_bytes(), context),
        None => {
            let mut response = rejecter.render_rejection(rejection, &context(), state.is_grpc);
            // No wait brings a missing key, so the fields about limits would mislead.
            let write_fields = if rejection.is_missing_key() { write_dry_runs } else { write_judged };
            write_fields(gateway, state.route, state.chain(), &state.decisions, response.headers_mut());
            response
        }
    };
    edit_headers(response.headers_mut());
    if rejection.closes_connection() {
        hop_by_hop::set_connection_close(response.headers_mut());
    }
    response
}

/// True if this is the decision that rejects.
#[inline]
fn is_decision_of(judged: &RateDecision, limit_rejection: &LimitRejection, limits: &LimitChain) -> bool {
    !judged.dry_run
        && limits.chain.limits()[usize::from(judged.limit_index)].id == limit_rejection.limit
        && usize::from(judged.rate) == limit_rejection.rate
}
