//! Concludes a rejection: counts it, and renders or degrades the response.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Request, Response};

use super::ban_strike::record_strike;
use super::decisions::write_decisions;
use crate::admission::chain;
use crate::admission::chain::{ChainCause, RateDecision};
use crate::limit::LimitOutcome;
use crate::observe::metrics::{BanEvent, DecisionKind};
use crate::proxy::forward;
use crate::proxy::gateway::LimitChain;
use crate::proxy::reject::{DegradedTo, Fault, LimitCause, LimitRejection, RejectContext, Rejection};
use crate::proxy::request_state::{RequestState, Verdict};
use crate::proxy::worker::Worker;
use crate::request::body::{BodyFault, RequestBody};
use crate::request::headers::summary::HeaderSummary;
use crate::request::location;

/// The facts that are known of a request when it is rejected.
pub struct RequestFacts<'r> {
    pub host: Cow<'r, str>,
    pub path: Cow<'r, [u8]>,
    pub header_summary: HeaderSummary,
    pub authority: Option<&'r Authority>,
    uri: &'r Uri,
    headers: Option<&'r HeaderMap>,
    grpc: bool,
}

impl<'r> RequestFacts<'r> {
    pub fn new(
        request: &'r Request<RequestBody>,
        authority: Option<&'r Authority>,
        header_summary: HeaderSummary,
    ) -> RequestFacts<'r> {
        RequestFacts {
            host: Cow::Borrowed(""),
            path: Cow::Borrowed(b""),
            header_summary,
            authority,
            uri: request.uri(),
            headers: Some(request.headers()),
            grpc: false,
        }
    }

    /// Only a request with a content type can be a gRPC call.
    pub fn is_grpc(&self) -> bool {
        let has_content_type = self.header_summary.has_any(HeaderSummary::CONTENT_TYPE);
        self.grpc || has_content_type && self.headers.is_some_and(forward::is_grpc)
    }
}

/// A copy of a request's target, for a rejection after the request was sent.
#[derive(Default)]
pub struct TargetCopy {
    uri: Uri,
    host: Option<HeaderValue>,
}

impl TargetCopy {
    /// Copies the target, if responses to faults contain it.
    pub fn copy_target(state: &RequestState) -> Option<Box<TargetCopy>> {
        let request = state.request.as_ref()?;
        let is_used = state.worker.gateway.rejecters.for_location(state.route).uses_target();
        let copy = || TargetCopy {
            uri: request.uri().clone(),
            host: location::named_host(request.headers(), state.authority.as_ref()),
        };
        is_used.then(copy).map(Box::new)
    }
}

/// The response to an exchange that failed.
pub fn render_forward_fault(
    target: Option<&TargetCopy>,
    worker: &Worker,
    state: &mut RequestState,
    fault: forward::ForwardFault,
) -> Response<Bytes> {
    state.error = fault.log_reason();
    let no_target = TargetCopy::default();
    let TargetCopy { uri, host } = target.unwrap_or(&no_target);
    let host_text = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let facts = RequestFacts {
        host: location::canonical_host(host_text).unwrap_or_default(),
        path: location::normalise_path(uri.path()).unwrap_or_default(),
        header_summary: HeaderSummary::default(),
        authority: None,
        uri,
        headers: None,
        grpc: state.is_grpc,
    };
    let mut response = render_rejection(worker, state, &facts, &translate_fault(fault).into());
    if let forward::ForwardFault::Client(_) = fault {
        state.connection.watch.mark_request_body_unread();
        forward::set_connection_close(response.headers_mut());
    }
    response
}

fn translate_fault(fault: forward::ForwardFault) -> Fault {
    use forward::ForwardFault as Forward;
    match fault {
        Forward::Client(BodyFault::Malformed) => Fault::BadBody,
        Forward::Client(BodyFault::TooLarge) => Fault::BodyTooLarge,
        Forward::Client(BodyFault::Stalled) => Fault::SlowBody,
        Forward::Unreachable(_) => Fault::Unreachable,
        Forward::Full => Fault::NoServer,
        Forward::Down => Fault::ServersDown,
        Forward::Broken(_) => Fault::UpstreamBroke,
        Forward::BadResponse => Fault::BadResponse,
        Forward::ConnectTimeout | Forward::ResponseTimeout => Fault::UpstreamTimeout,
        Forward::LocationTimeout => Fault::LocationTimeout,
    }
}

/// Translates the chain's rejection into the one that is rendered.
pub fn translate_rejection(rejection: &chain::ChainRejection) -> Rejection {
    let cause = match rejection.cause {
        ChainCause::Rate => LimitCause::Rate,
        ChainCause::Queue => LimitCause::Queue,
        ChainCause::Concurrency => LimitCause::Concurrency,
        ChainCause::TooCostly => LimitCause::TooCostly,
        ChainCause::MissingKey => LimitCause::MissingKey,
        ChainCause::QueuedTooLong => LimitCause::QueuedTooLong,
        ChainCause::Overload => return Fault::TooManyWaiting.into(),
        ChainCause::Unavailable => return Fault::StateUnavailable.into(),
    };
    match &rejection.limit {
        Some(limit) => Rejection::Limit(LimitRejection {
            limit: limit.id,
            rate: rejection.rate,
            cause,
            retry_after_ns: rejection.retry_after_ns,
        }),
        None => Fault::TooManyWaiting.into(),
    }
}

/// As [`conclude_rejection`], but collects the facts of the request again.
pub fn reject_request(
    worker: &Worker,
    request: &Request<RequestBody>,
    state: &mut RequestState,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    let authority = state.authority.clone();
    let mut facts = RequestFacts::new(request, authority.as_ref(), state.header_summary);
    facts.host =
        location::request_host(request.version(), request.headers(), facts.authority).unwrap_or_default();
    facts.path = location::normalise_path(request.uri().path()).unwrap_or_default();
    conclude_rejection(worker, state, &facts, rejection)
}

/// The response to a request that is not admitted. `None`: a limit rejected it, and the upstream in `degraded` responds
/// instead.
pub fn conclude_rejection(
    worker: &Worker,
    state: &mut RequestState,
    facts: &RequestFacts<'_>,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    if let Rejection::Limit(limit_rejection) = rejection {
        let gateway = &worker.gateway;
        let degraded_to =
            gateway.rejecters.for_location(state.route).degraded_to(limit_rejection, facts.is_grpc());
        record_rejection(state, limit_rejection, degraded_to.is_some());
        if let Some(DegradedTo::Upstream(upstream)) = degraded_to {
            state.degraded = Some(upstream);
            // It gets the whole timeout of the location again, also after a wait in the queue.
            if let Some(timeout) = state.route.and_then(|route| gateway.routes[route.0].timeout) {
                state.watch.set_request_deadline(timeout);
            }
            return None;
        }
    }
    Some(render_rejection(worker, state, facts, rejection))
}

/// Stores and counts the rejection by a limit. Only here is it final, so strikes are counted here.
fn record_rejection(state: &mut RequestState, limit_rejection: &LimitRejection, is_degraded: bool) {
    let kind = if is_degraded { DecisionKind::Degrade } else { DecisionKind::Reject };
    state.verdict = if is_degraded { Verdict::Degrade } else { Verdict::Reject };
    state.limit = Some(limit_rejection.limit);
    state.retry_after_ns = limit_rejection.retry_after_ns;
    if !is_degraded {
        record_strike(&state.worker, state, limit_rejection.cause);
    }
    let worker = &state.worker;
    worker.gateway.metrics.count_decision(worker.id, limit_rejection.limit, kind);
    let limits = worker.gateway.chain_for(state.route).chain.limits();
    let is_own = |judged: &RateDecision| limits[usize::from(judged.limit_index)].id == limit_rejection.limit;
    if state.decisions.iter().all(is_own) {
        return;
    }
    let is_rejection =
        |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run;
    let others = chain::strictest_by_limit(&state.decisions)
        .filter(is_rejection)
        .map(|judged| limits[usize::from(judged.limit_index)].id);
    for limit in others.filter(|limit| *limit != limit_rejection.limit) {
        worker.gateway.metrics.count_decision(worker.id, limit, kind);
    }
}

/// Renders the response, and stores and counts the fault or the ban.
fn render_rejection(
    worker: &Worker,
    state: &mut RequestState,
    facts: &RequestFacts<'_>,
    rejection: &Rejection,
) -> Response<Bytes> {
    let gateway = &worker.gateway;
    if let Some(fault) = rejection.counted_fault() {
        state.verdict = Verdict::Fault(fault);
        gateway.metrics.count_fault(worker.id, fault.index());
    }
    if let Rejection::Banned { left_ns } = rejection {
        state.verdict = Verdict::Ban;
        state.retry_after_ns = Some(*left_ns);
        gateway.metrics.count_ban_event(worker.id, BanEvent::Rejected);
    }
    let context = || RejectContext {
        request_id: state.request_id.as_bytes(),
        client_ip: Some(state.client.ip),
        account: state.account.as_deref().unwrap_or_default(),
        tier: state.tier_name(),
        host: &facts.host,
        uri: str::from_utf8(&facts.path).unwrap_or(facts.uri.path()),
        request_uri: facts.uri.path_and_query().map_or("", PathAndQuery::as_str),
        location: state.route.map_or("", |route| &gateway.routes[route.0].name),
    };
    let rejecter = gateway.rejecters.for_location(state.route);
    if let (Rejection::Limit(limit_rejection), [only]) = (rejection, &state.decisions[..])
        && !facts.is_grpc()
        && is_decision_of(only, limit_rejection, gateway.chain_for(state.route))
        && let Some(response) =
            rejecter.render_usual(limit_rejection, &only.decision, state.request_id.as_bytes(), context)
    {
        return response;
    }
    let mut response = rejecter.render_rejection(rejection, &context(), facts.is_grpc());
    write_decisions(gateway, state.route, &state.decisions, response.headers_mut());
    if rejection.closes_connection() {
        forward::set_connection_close(response.headers_mut());
    }
    response
}

/// Whether this is the decision that rejects.
#[inline]
fn is_decision_of(judged: &RateDecision, limit_rejection: &LimitRejection, limits: &LimitChain) -> bool {
    !judged.dry_run
        && limits.chain.limits()[usize::from(judged.limit_index)].id == limit_rejection.limit
        && usize::from(judged.rate) == limit_rejection.rate
}
