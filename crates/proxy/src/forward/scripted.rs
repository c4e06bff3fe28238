//! The scripted upstream: answers admitted requests in process, in the place of the servers of their upstream.
//!
//! A request takes a place at a server, or waits for one in the queue of its upstream, as in production. The answer of
//! the server is given: it comes after a time. Faults of connections, retries and the pace of bodies are not
//! simulated.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::{Request, Response};
use tokio::time::Instant;
use tower::Service;

use super::exchange::{Exchange, run_until_due};
use super::latency_feedback::LatencyFeedback;
use super::retry::{NextTry, TryServer};
use super::{ForwardFault, ForwardOutcome, OutgoingRequest, balance_hash_for, forward_service};
use crate::gateway::auth::{AuthOutcome, ScriptedService};
use crate::gateway::worker::Worker;
use crate::judge::Admitted;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::RequestState;
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::upstream::{Server, ServerInFlight, Upstream};
use sluicegate_model::LocationId;

/// A place at a server; `None`: the upstream has no servers, because it is the built-in one.
type ScriptedPlace = Option<ServerInFlight>;

/// Answers in the upstream's place: `respond` is called when the request is sent, and its response comes after `hold`.
/// A location that responds by itself does so.
pub async fn answer_admitted(
    admitted: Admitted,
    hold: Duration,
    respond: impl FnOnce() -> Response<Bytes>,
) -> ForwardOutcome {
    if !admitted.targets_upstream() {
        let Ok(outcome) = forward_service().call(admitted).await;
        return outcome;
    }
    let (mut inbound, mut state, route) = admitted.into_parts();
    if let Some(permit) = &mut state.permits.chain {
        permit.keep_charges();
    }
    let worker = state.worker.clone();
    // Cannot fail: a request for no upstream is answered above.
    let upstream = state.upstream(&worker.gateway, route).expect("the request has an upstream");
    let place = match take_place(upstream, &mut inbound, &mut state, route).await {
        Ok(place) => place,
        Err(fault) => return ForwardOutcome::Faulted(fault, state),
    };
    let sent = Now::read_clock();
    // As a body that was read whole: the request is complete when it is sent.
    if let Some(reading) = &mut state.response.reading {
        reading.watch_request(None, inbound.request.body().held_bytes());
        reading.begin_attempt();
    }
    let permit = state.permits.chain.as_ref().filter(|_| state.judgement.degraded.is_none());
    let feedback = LatencyFeedback { charged_chain: permit, body_outcome: None, sent };
    let response = respond();
    let answered = hold_request(&state, upstream, hold).await;
    let now = Now::read_clock();
    let result = answered.map(|()| response.status());
    feedback.report_outcome(result, now);
    state.outcome.upstream_ns = Some(now.ns_since(sent));
    if let Some(place) = &place {
        record_outcome(upstream, place.server(), result);
    }
    match answered {
        Ok(()) => ForwardOutcome::Responded(pass_on(response, upstream, sent, state)),
        Err(fault) => ForwardOutcome::Faulted(fault, state),
    }
}

/// Answers a question to an auth service by the script in its extensions; without one, every request is admitted.
pub fn answer_question(
    worker: Rc<Worker>,
    route: LocationId,
    question: Request<RequestBody>,
) -> LocalBoxFuture<'static, AuthOutcome> {
    let scripted = question.extensions().get::<ScriptedService>();
    let answer = scripted.map_or_else(Response::default, |scripted| (*scripted.0).clone());
    Box::pin(std::future::ready(AuthOutcome::read_answer(&worker.gateway, route, answer)))
}

/// Takes a place at a server, perhaps after a wait.
async fn take_place(
    upstream: &Arc<Upstream>,
    inbound: &mut InboundRequest,
    state: &mut RequestState,
    route: LocationId,
) -> Result<ScriptedPlace, ForwardFault> {
    if upstream.is_demo() {
        return Ok(None);
    }
    let worker = state.worker.clone();
    let gateway = &worker.gateway;
    let client = gateway.clients.mask_address(state.identity.client.ip);
    let hash = balance_hash_for(&upstream.balance, &inbound.request, client);
    let place = match NextTry::choose(upstream, hash, &[])? {
        NextTry::At(TryServer { server, place }) => place.or_else(|| server.begin_request()),
        NextTry::Wait => {
            let route = &gateway.routes[route.0];
            let outgoing = OutgoingRequest::new(gateway, route, upstream, inbound, state);
            let exchange = Exchange {
                worker: &worker,
                pools: &worker.pools,
                upstream,
                response_edits: &route.response_edits,
                connection: Some(&state.connection),
                watch: &state.watch,
                outgoing: &outgoing,
                reading: None,
                pause_key: None,
            };
            let waited = Box::pin(exchange.wait_for_server(&[], None, &inbound.request)).await;
            state.judgement.wait_ns = Now::read_clock().ns_since(state.judged_at);
            waited?.place
        }
    };
    state.outcome.server = place.as_ref().map(|place| place.server().index);
    state.outcome.tries = 1;
    place.ok_or(ForwardFault::Full).map(Some)
}

/// Waits until the server answers, at most until the deadline of the upstream or of the location.
async fn hold_request(state: &RequestState, upstream: &Upstream, hold: Duration) -> Result<(), ForwardFault> {
    if hold.is_zero() {
        return Ok(());
    }
    let due = (hold > upstream.response_timeout).then(|| Instant::now() + upstream.response_timeout);
    run_until_due(&state.watch, due, pin!(tokio::time::sleep(hold))).await
}

/// Counts the outcome for the ejection of servers.
fn record_outcome(upstream: &Upstream, server: &Server, result: Result<http::StatusCode, ForwardFault>) {
    match result {
        Ok(status) => upstream.record_response(server, status, true),
        Err(fault) => {
            if let Some(fault) = fault.server_fault() {
                upstream.record_fault(server, fault);
            }
        }
    }
}

/// The response of the server on its way to the client: it settles charges and may begin a pause.
fn pass_on(
    response: Response<Bytes>,
    upstream: &Upstream,
    sent: Now,
    mut state: Box<RequestState>,
) -> Response<super::ResponseBody> {
    if let Some(key) = state.pause_key() {
        state.worker.hear_pushback(upstream, key, sent, (response.status(), response.headers()));
    }
    if let Some(reading) = &state.response.reading {
        reading.read_head(response.headers());
    }
    state.settle_by_final_status(response.status());
    if let Some(reading) = &mut state.response.reading {
        reading.read_data(response.body());
    }
    if response.body().is_empty() {
        state.settle_complete();
    }
    super::local_response(response, state)
}
