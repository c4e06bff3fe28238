//! Answering for the gateway itself.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Request, Response};

use super::ban_strike::record_strike;
use crate::admission::chain;
use crate::admission::chain::{ChainCause, RateDecision};
use crate::limit::LimitOutcome;
use crate::observe::metrics::{BanEvent, DecisionKind};
use crate::proxy::forward;
use crate::proxy::reject::{DegradedTo, Fault, LimitCause, LimitRejection, RejectContext, Rejection};
use crate::proxy::request_state::RequestState;
use crate::proxy::worker::Worker;
use crate::request::body::{BodyFault, RequestBody};
use crate::request::headers::summary::HeaderSummary;
use crate::request::location;

/// What was found out about a request by the time it is refused.
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

/// What of a request outlives its forwarding, should the answer have to be ours.
#[derive(Default)]
pub struct TargetCopy {
    uri: Uri,
    host: Option<HeaderValue>,
}

impl TargetCopy {
    /// Of the visit's request, if such an answer tells of it.
    pub fn copy_target(visit: &RequestState) -> Option<Box<TargetCopy>> {
        let request = visit.request.as_ref()?;
        let tells = visit.worker.gateway.rejecters.for_location(visit.route).uses_target();
        let told = || TargetCopy {
            uri: request.uri().clone(),
            host: location::named_host(request.headers(), visit.authority.as_ref()),
        };
        tells.then(told).map(Box::new)
    }
}

/// The answer for an exchange that failed.
pub fn render_forward_fault(
    told: Option<&TargetCopy>,
    worker: &Worker,
    visit: &mut RequestState,
    fault: forward::ForwardFault,
) -> Response<Bytes> {
    visit.error = fault.log_reason();
    let nothing = TargetCopy::default();
    let TargetCopy { uri, host } = told.unwrap_or(&nothing);
    let named = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let seen = RequestFacts {
        host: location::canonical_host(named).unwrap_or_default(),
        path: location::normalise_path(uri.path()).unwrap_or_default(),
        header_summary: HeaderSummary::default(),
        authority: None,
        uri,
        headers: None,
        grpc: visit.is_grpc,
    };
    let mut response = render_rejection(worker, visit, &seen, &translate_fault(fault).into());
    if let forward::ForwardFault::Client(_) = fault {
        visit.connection.watch.mark_body_unread();
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
        Forward::BadResponse => Fault::BadAnswer,
        Forward::ConnectTimeout | Forward::ResponseTimeout => Fault::UpstreamTimeout,
        Forward::LocationTimeout => Fault::LocationTimeout,
    }
}

/// A chain's refusal in the words of the answer.
pub fn translate_rejection(refusal: &chain::ChainRejection) -> Rejection {
    let why = match refusal.cause {
        ChainCause::Rate => LimitCause::Rate,
        ChainCause::Queue => LimitCause::Queue,
        ChainCause::Concurrency => LimitCause::Concurrency,
        ChainCause::TooCostly => LimitCause::TooCostly,
        ChainCause::MissingKey => LimitCause::MissingKey,
        ChainCause::QueuedTooLong => LimitCause::QueuedTooLong,
        ChainCause::Overload => return Fault::TooManyWaiting.into(),
        ChainCause::Unavailable => return Fault::StateUnavailable.into(),
    };
    match &refusal.limit {
        Some(limit) => Rejection::Limit(LimitRejection {
            limit: limit.index,
            rate: refusal.rate,
            cause: why,
            retry_after_ns: refusal.retry_after_ns,
        }),
        None => Fault::TooManyWaiting.into(),
    }
}

/// As [`conclude`], for a request that is still whole.
pub fn reject_request(
    worker: &Worker,
    request: &Request<RequestBody>,
    visit: &mut RequestState,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    let authority = visit.authority.clone();
    let mut seen = RequestFacts::new(request, authority.as_ref(), visit.header_summary);
    seen.host =
        location::request_host(request.version(), request.headers(), seen.authority).unwrap_or_default();
    seen.path = location::normalise_path(request.uri().path()).unwrap_or_default();
    conclude_rejection(worker, visit, &seen, rejection)
}

/// The answer to a request that is not admitted. `None`: a limit refused it, and the upstream that the visit now
/// names answers instead.
pub fn conclude_rejection(
    worker: &Worker,
    visit: &mut RequestState,
    seen: &RequestFacts<'_>,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    if let Rejection::Limit(refusal) = rejection {
        let gateway = &worker.gateway;
        let instead = gateway.rejecters.for_location(visit.route).degraded_to(refusal, seen.is_grpc());
        record_rejection(visit, refusal, instead.is_some());
        if let Some(DegradedTo::Upstream(upstream)) = instead {
            visit.degraded = Some(upstream);
            // It has the location's whole time, whatever was spent in the queue.
            if let Some(timeout) = visit.route.and_then(|place| gateway.routes[place].timeout) {
                visit.watch.await_request(timeout);
            }
            return None;
        }
    }
    Some(render_rejection(worker, visit, seen, rejection))
}

/// Notes and counts the refusal of a limit. It is final here and only here: what holds refusals against a client
/// belongs here.
fn record_rejection(visit: &mut RequestState, refusal: &LimitRejection, is_degraded: bool) {
    let said = if is_degraded { DecisionKind::Degrade } else { DecisionKind::Reject };
    visit.verdict = if is_degraded { "degrade" } else { "reject" };
    visit.limit = Some(refusal.limit);
    visit.retry_after_ns = refusal.retry_after_ns;
    if !is_degraded {
        record_strike(&visit.worker, visit, refusal.cause);
    }
    let worker = &visit.worker;
    worker.gateway.metrics.count_decision(worker.id, refusal.limit, said);
    let limits = worker.gateway.chain_for(visit.route).chain.limits();
    let own = |judged: &RateDecision| limits[usize::from(judged.limit_index)].index == refusal.limit;
    if visit.decisions.iter().all(own) {
        return;
    }
    let no = |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run;
    let others = chain::strictest_by_limit(&visit.decisions)
        .filter(no)
        .map(|judged| limits[usize::from(judged.limit_index)].index);
    for limit in others.filter(|limit| *limit != refusal.limit) {
        worker.gateway.metrics.count_decision(worker.id, limit, said);
    }
}

/// Renders the answer; the visit notes which fault it was.
fn render_rejection(
    worker: &Worker,
    visit: &mut RequestState,
    seen: &RequestFacts<'_>,
    rejection: &Rejection,
) -> Response<Bytes> {
    let gateway = &worker.gateway;
    if let Some(fault) = rejection.counted_fault() {
        visit.verdict = fault.cause();
        gateway.metrics.count_fault(worker.id, fault.index());
    }
    if let Rejection::Banned { left_ns } = rejection {
        visit.verdict = rejection.cause_name();
        visit.retry_after_ns = Some(*left_ns);
        gateway.metrics.count_ban_event(worker.id, BanEvent::Rejected);
    }
    let context = RejectContext {
        request_id: visit.request_id.to_str().unwrap_or_default(),
        client_ip: Some(visit.client.ip),
        account: visit.account.as_deref().unwrap_or_default(),
        tier: visit.tier_name(),
        host: &seen.host,
        uri: str::from_utf8(&seen.path).unwrap_or(seen.uri.path()),
        request_uri: seen.uri.path_and_query().map_or("", PathAndQuery::as_str),
        location: visit.route.map_or("", |route| &gateway.routes[route].name),
    };
    let mut response =
        gateway.rejecters.for_location(visit.route).render_rejection(rejection, &context, seen.is_grpc());
    super::head::write_decisions(gateway, visit.route, &visit.decisions, response.headers_mut());
    if rejection.closes_connection() {
        forward::set_connection_close(response.headers_mut());
    }
    response
}
