//! The call `/auth`: another proxy asks whether it may pass a request on, with `auth_request` of nginx, `forward_auth`
//! of Caddy or ForwardAuth of Traefik.
//!
//! The request is judged as one that the proxy forwards to the gateway. Concurrency limits do not judge it, because no
//! call tells its end.

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::original::{self, HeaderFault};
use super::{NO_SERVICE, answer, check, count_call, refuse_fault};
use crate::forward::{self, ResponseBody};
use crate::gateway::CallerFault;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::judge::{CallTerms, Received, Rejected, StatedFacts, limit_report};
use crate::reject::Fault;
use sluicegate_http::request::body;
use sluicegate_observe::metrics::CallResult;

pub(super) const PATH: &str = "/auth";

const LIMIT_STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");
const LIMIT_NAME: HeaderName = HeaderName::from_static("x-ratelimit-name");
const LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Judges the request that the call describes, waits for its turn, and answers whether it may pass. If the proxy hangs
/// up meanwhile, the future never ends.
pub async fn answer_auth(
    mut inbound: Box<InboundRequest>,
    mut state: Box<RequestState>,
) -> Response<ResponseBody> {
    // The body of a request is not needed, and the proxies that send it do not wait for it.
    body::discard_body(&mut inbound.request);
    let (inbound, terms, is_forbidden) = match read_call(*inbound, &mut state) {
        Ok(read) => read,
        Err(response) => return forward::local_response(*response, state),
    };
    let judged = Received { inbound, state }.judge_call(&terms);
    drop(terms);
    match judged.conclude_call().await {
        Ok(admitted) => {
            let (_, state, _) = admitted.into_parts();
            match state.judgement.degraded {
                None => answer_admitted(state),
                Some(_) => answer_degraded(state, is_forbidden),
            }
        }
        Err(Rejected { response, state, .. }) => answer_refused(state, response, is_forbidden),
    }
}

/// The request that a call describes, its terms, and whether its refusals are 403.
type AuthCall = (Box<InboundRequest>, CallTerms, bool);

/// Reads the call, or renders the response to one that is not judged. That is never a 401 or 403, which nginx would
/// pass on as if its client had to log in: the proxy or the gateway is configured wrongly.
fn read_call(inbound: InboundRequest, state: &mut RequestState) -> Result<AuthCall, Box<Response<Bytes>>> {
    let (mut head, _) = inbound.request.into_parts();
    let token = original::single(&head.headers, &original::TOKEN).map(|token| token.cloned());
    head.headers.remove(original::TOKEN);
    if let Some(fields) = &mut state.log_fields {
        fields.protocol = Some("auth");
        fields.headers.retain(|(name, _)| *name != original::TOKEN);
    }
    let gateway = &state.worker.clone().gateway;
    let sent = token.map_err(|fault| refuse_call(state, &fault))?;
    if let Err(fault) = gateway.calls.authorize_token(sent.as_ref().map(HeaderValue::as_bytes)) {
        count_call(state, CallResult::AuthDenied);
        return Err(Box::new(refuse_proxy(state, fault)));
    }
    if !state.identity.client.trusted_peer {
        return Err(refuse_call(state, &untrusted_peer(state)));
    }
    let read = original::wants_forbidden(&head.headers)
        .and_then(|is_forbidden| Ok((is_forbidden, original::read_original(head, &gateway.clients)?)));
    let (is_forbidden, (request, scheme)) = read.map_err(|fault| refuse_call(state, &fault))?;
    let inbound = InboundRequest::new(request);
    record_original(state, &inbound);
    let stated = StatedFacts { has_ip: true, ..StatedFacts::default() };
    let (max_wait_ns, takes_slots) = (u64::MAX, false);
    let terms = CallTerms { limits: None, cost: None, max_wait_ns, takes_slots, scheme, stated };
    Ok((inbound, terms, is_forbidden))
}

/// The access log and the span show the request that was judged.
fn record_original(state: &mut RequestState, inbound: &InboundRequest) {
    let logged = state.log_fields.as_mut().map(|fields| &mut fields.line);
    let traced = state.span.as_mut().map(|span| &mut span.line);
    logged.into_iter().chain(traced).for_each(|line| line.describe(&inbound.request));
}

fn untrusted_peer(state: &RequestState) -> HeaderFault {
    HeaderFault {
        field: "server.trusted_proxies".to_owned(),
        message: format!(
            "the proxy at {} is not in `server.trusted_proxies`, so its X-Forwarded headers are not believed",
            state.identity.client.ip
        ),
        reason: "the peer is no trusted proxy",
    }
}

fn refuse_call(state: &mut RequestState, fault: &HeaderFault) -> Box<Response<Bytes>> {
    count_call(state, CallResult::AuthBad);
    state.outcome.error = Some(fault.reason);
    Box::new(refuse_fault(state, Fault::BadCall, &fault.field, &fault.message))
}

fn refuse_proxy(state: &mut RequestState, fault: CallerFault) -> Response<Bytes> {
    if fault == CallerFault::NoService {
        return refuse_fault(state, Fault::NoLocation, "", NO_SERVICE);
    }
    let message = "the proxy must send one of the tokens of `service.token` as Sluicegate-Token";
    let mut response = refuse_fault(state, Fault::BadToken, "Sluicegate-Token", message);
    *response.status_mut() = Fault::BadCall.status();
    response
}

fn answer_admitted(mut state: Box<RequestState>) -> Response<ResponseBody> {
    limit_report::log_decisions(&mut state);
    // The response to the request passes elsewhere, so the reservations of limits stay charged.
    state.response.reading = None;
    if let Some(permit) = &mut state.permits.chain {
        permit.keep_charges();
    }
    let waited = state.outcome.verdict == Verdict::Wait;
    count_call(&state, if waited { CallResult::AuthWaited } else { CallResult::AuthAdmitted });
    let mut response = Response::new(Bytes::new());
    let gateway = &state.worker.gateway;
    limit_report::write_decisions(gateway, state.route, &state.judgement.decisions, response.headers_mut());
    forward::local_response(response, state)
}

/// The answer to a request that another upstream would get: the proxy knows none, so it is refused.
fn answer_degraded(state: Box<RequestState>, is_forbidden: bool) -> Response<ResponseBody> {
    let message = "a limit rejects this request";
    let mut response = answer::render_fault(StatusCode::TOO_MANY_REQUESTS, "degrade", "", message);
    let (gateway, decisions) = (&state.worker.gateway, &state.judgement.decisions);
    limit_report::write_decisions(gateway, state.route, decisions, response.headers_mut());
    answer_refused(state, response, is_forbidden)
}

/// Passes the rejection on. It is logged and counted with the status that a request would have got.
fn answer_refused(
    mut state: Box<RequestState>,
    mut response: Response<Bytes>,
    is_forbidden: bool,
) -> Response<ResponseBody> {
    limit_report::log_decisions(&mut state);
    let result = match state.outcome.verdict {
        Verdict::Fault(_) => CallResult::AuthFault,
        Verdict::Ban => CallResult::AuthBanned,
        _ => CallResult::AuthRejected,
    };
    count_call(&state, result);
    // The answer of `degrade` may be a success, by which the proxy would let the request pass.
    if response.status().is_success() {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    // A request that no location serves is charged.
    state.settle_by_final_status(response.status());
    if !is_forbidden {
        return forward::local_response(response, state);
    }
    write_refusal(&state, response.status(), response.headers_mut());
    let mut response = forward::local_response(response, state);
    if response.status() != StatusCode::UNAUTHORIZED {
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    response
}

/// Writes the fields that a proxy needs to make the rejection again from headers alone.
fn write_refusal(state: &RequestState, status: StatusCode, headers: &mut HeaderMap) {
    headers.insert(LIMIT_STATUS, HeaderValue::from(status.as_u16()));
    if let Some(limit) = state.judgement.limit {
        let name = &state.worker.gateway.limits[limit.0].name;
        if let Ok(name) = HeaderValue::from_str(name) {
            headers.insert(LIMIT_NAME, name);
        }
    }
    if let Some(decision) = check::find_rejecting(state) {
        headers.insert(LIMIT_REMAINING, HeaderValue::from(decision.remaining));
        if let Some(ns) = decision.window_ns() {
            headers.insert(LIMIT_RESET, HeaderValue::from(ns.div_ceil(NS_PER_SECOND).max(1)));
        }
    }
}
