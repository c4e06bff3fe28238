//! The call `/check`: judged as a request, and answered instead of forwarded.

use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::answer::{self, CheckAnswer};
use super::call_body::CheckCall;
use super::call_value::CallFault;
use super::described::Described;
use super::{count_call, refuse_fault};
use crate::forward::{self, ResponseBody};
use crate::gateway::Gateway;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::judge::{NextPhase, Received, limit_report};
use crate::reject::Fault;
use sluicegate_admission::chain::{self, RateDecision};
use sluicegate_admission::leases::{LeasePlace, NoLease};
use sluicegate_base::clock::Now;
use sluicegate_http::request::client::{Client, UNIX_CLIENT};
use sluicegate_http::request::location::{self, Arrival, LocationLookup};
use sluicegate_http::request::source::SourceInput;
use sluicegate_limit::{Decision, Limit, LimitOutcome};
use sluicegate_model::{LocationId, Scheme};
use sluicegate_observe::metrics::CallResult;

const NS_PER_MS: u64 = 1_000_000;

/// Reads the request that a check describes, and the time for which it wants to hold a lease.
///
/// # Errors
/// The call is not understood.
pub(super) fn prepare_check(body: &[u8], state: &RequestState) -> Result<(Described, Duration), CallFault> {
    let call = CheckCall::read(body)?;
    Ok((Described::from_call(&call, &state.worker.gateway)?, call.lease_for))
}

/// Judges a check, with a place for the lease that it may hold.
///
/// # Errors
/// The response to one that no limit judges.
pub(super) fn judge_check(
    described: Described,
    mut state: Box<RequestState>,
) -> Result<(NextPhase, Option<LeasePlace>), Box<Response<ResponseBody>>> {
    let Described { request, ip, terms } = described;
    let worker = state.worker.clone();
    let gateway = &worker.gateway;
    let inbound = InboundRequest::new(request);
    state.identity.client = Client { ip, trusted_peer: false };
    log_described(&mut state, &inbound, terms.limits.is_none());
    let named = terms.limits.as_ref().map(|_| gateway.call_route());
    let route = named.or_else(|| find_route(gateway, &inbound, terms.scheme));
    // It must not be charged as a request is that no location serves: a refused call changes nothing.
    let Some(route) = route else {
        count_call(&state, CallResult::CheckFault);
        let response = refuse_fault(&mut state, Fault::NoLocation, "request", Fault::NoLocation.detail());
        return Err(Box::new(forward::local_response(response, state)));
    };
    let may_hold = |limit: &Limit| limit.is_concurrency() || limit.config.charge.is_some();
    let may_hold_any = match &terms.limits {
        Some(named) => named.iter().any(|id| may_hold(&gateway.limits[id.0])),
        None => gateway.chain_for(Some(route)).chain.limits().iter().any(|limit| may_hold(limit)),
    };
    let place = may_hold_any.then(|| gateway.calls.leases.reserve_place(worker.id, state.judged_at));
    let place = match place.transpose() {
        Ok(place) => place,
        Err(why) => {
            count_call(&state, CallResult::CheckFault);
            let (fault, message) = match why {
                NoLease::Full => (Fault::TooManyWaiting, "too many leases are held"),
                NoLease::NoRandomness => (Fault::Internal, "no id of a lease can be made"),
            };
            let response = refuse_fault(&mut state, fault, "", message);
            return Err(Box::new(forward::local_response(response, state)));
        }
    };
    Ok((Received { inbound, state }.judge_call(&terms), place))
}

/// The access log shows the client and the request that were judged.
fn log_described(state: &mut RequestState, inbound: &InboundRequest, is_request: bool) {
    let ip = state.identity.client.ip;
    let Some(fields) = &mut state.log_fields else { return };
    if ip != UNIX_CLIENT {
        fields.ip = Some(ip);
    }
    if is_request {
        fields.line.describe(&inbound.request);
    }
}

/// The location that serves the described request.
fn find_route(gateway: &Gateway, inbound: &InboundRequest, scheme: Scheme) -> Option<LocationId> {
    let request = &inbound.request;
    let host = location::request_host(request.version(), request.headers(), None).ok()?;
    let path = location::normalise_path(request.uri().path()).ok()?;
    let values =
        SourceInput { headers: request.headers(), query: request.uri().query(), token: None, body: None };
    let arrival = Arrival { method: request.method(), scheme, listener: None, values: Some(values) };
    match gateway.locations.find_location(&host, &path, &arrival) {
        LocationLookup::Found(route) => Some(route),
        _ => None,
    }
}

/// Answers a check that is admitted.
pub(super) fn answer_admitted(
    mut state: Box<RequestState>,
    place: Option<LeasePlace>,
    lease_for: Duration,
) -> Response<ResponseBody> {
    let status = http::StatusCode::TOO_MANY_REQUESTS;
    if state.judgement.degraded.is_some() {
        return answer_refused(state, status);
    }
    limit_report::log_decisions(&mut state);
    let (worker, now) = (state.worker.clone(), Now::read_clock());
    let gateway = &worker.gateway;
    let mut permit = state.permits.chain.take();
    // The used units of the caller are told by its settlement, and not by this response.
    state.response.reading = None;
    let mut tightest = find_tightest(&state);
    for (limit, free) in permit.iter().flat_map(|permit| permit.free_slots(now)) {
        if tightest.as_ref().is_none_or(|(_, decision)| free < decision.remaining) {
            let decision = Decision { remaining: free, ..Decision::without_numbers(LimitOutcome::Admit) };
            tightest = Some((limit.name.clone(), decision));
        }
    }
    if let Some(permit) = &mut permit {
        permit.keep_charges();
    }
    let held = permit.filter(|permit| permit.holds_anything()).zip(place);
    let lease = held.map(|(permit, place)| place.hold(permit, gateway.metrics.clone(), lease_for, now));
    let waited = state.outcome.verdict == Verdict::Wait;
    count_call(&state, if waited { CallResult::CheckWaited } else { CallResult::CheckAdmitted });
    let (limit, decision) = tightest.as_ref().map(|(name, decision)| (&**name, *decision)).unzip();
    let lease = lease.map(|lease| lease.to_string());
    let answer = CheckAnswer { retry_after_ms: Some(0), lease, ..Default::default() };
    answer_judged(state, limit, decision, answer)
}

/// The enforced rate with the fewest units left.
fn find_tightest(state: &RequestState) -> Option<(Arc<str>, Decision)> {
    let limits = state.worker.gateway.chain_for(state.route).chain.limits();
    let is_rate = |judged: &&RateDecision| !limits[usize::from(judged.limit_index)].is_concurrency();
    let enforced = state.judgement.decisions.iter().filter(|judged| !judged.dry_run).filter(is_rate);
    let tightest = enforced.min_by_key(|judged| judged.decision.remaining)?;
    Some((limits[usize::from(tightest.limit_index)].name.clone(), tightest.decision))
}

/// The decision of the limit that rejected.
pub(super) fn find_rejecting(state: &RequestState) -> Option<Decision> {
    let limits = state.worker.gateway.chain_for(state.route).chain.limits();
    let is_own = |judged: &RateDecision| {
        !judged.dry_run && state.judgement.limit == Some(limits[usize::from(judged.limit_index)].id)
    };
    chain::strictest_by_limit(&state.judgement.decisions).find(is_own).map(|judged| judged.decision)
}

/// `status` is the one that a request would have got in this place.
pub(super) fn answer_refused(
    mut state: Box<RequestState>,
    status: http::StatusCode,
) -> Response<ResponseBody> {
    limit_report::log_decisions(&mut state);
    let worker = state.worker.clone();
    let gateway = &worker.gateway;
    let result = match state.outcome.verdict {
        Verdict::Fault(fault) => {
            count_call(&state, CallResult::CheckFault);
            let response = answer::render_fault(status, fault.cause(), "", fault.detail());
            return forward::local_response(response, state);
        }
        Verdict::Ban => CallResult::CheckBanned,
        _ => CallResult::CheckRejected,
    };
    count_call(&state, result);
    let limit = state.judgement.limit.map(|limit| &*gateway.limits[limit.0].name);
    let class = state.judgement.class;
    let class = class.and_then(|(limit, class)| gateway.limits[limit.0].config.class_name(class));
    let decision = find_rejecting(&state);
    let retry_after_ms = state.judgement.retry_after_ns.map(|ns| ns.div_ceil(NS_PER_MS));
    let status = Some(status.as_u16());
    answer_judged(state, limit, decision, CheckAnswer { class, retry_after_ms, status, ..Default::default() })
}

/// Completes `answer` by the verdict, and by the decision of the limit that the caller has to know.
fn answer_judged(
    state: Box<RequestState>,
    limit: Option<&str>,
    decision: Option<Decision>,
    answer: CheckAnswer<'_>,
) -> Response<ResponseBody> {
    let reset_ns = decision.and_then(|decision| decision.window_ns());
    let answer = CheckAnswer {
        verdict: state.outcome.verdict.as_str(),
        limit,
        remaining: decision.map(|decision| decision.remaining),
        reset_ms: reset_ns.map(|ns| ns.div_ceil(NS_PER_MS)),
        waited_ms: state.judgement.wait_ns / NS_PER_MS,
        ..answer
    };
    let mut response = answer.render();
    let (gateway, decisions) = (&state.worker.gateway, &state.judgement.decisions);
    limit_report::write_decisions(gateway, state.route, decisions, response.headers_mut());
    forward::local_response(response, state)
}
