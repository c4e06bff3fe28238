//! The forward service: an admitted request becomes a response, from an upstream, `respond`, `redirect`, `demo` or
//! `cors`.
//!
//! It takes an [`Admitted`], which only `judge` creates, so no request gets here without a judgement. `rewrite` makes
//! the head the upstream's, `retry` chooses a server and decides which attempts are repeated, `exchange` sends it, and
//! `response_body` streams the body to the client. The state of the request and the loan of the upstream connection are
//! inside that body: at its end the connection returns to its pool; dropped earlier, the connection is closed (over
//! HTTP/2, only its stream is reset). If client and upstream agree on another protocol (`upgrade`), the state continues
//! in a `tunnel`.

mod exchange;
mod fault;
mod latency_feedback;
pub mod question;
mod response_body;
mod retry;
mod rewrite;
pub mod scripted;
mod server_wait;
mod told_usage;
mod tunnel;
mod upgrade;

use std::cell::Cell;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, LOCATION, SET_COOKIE, TRANSFER_ENCODING,
};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::Service;

use crate::gateway::worker::Worker;
use crate::gateway::{Action, Gateway, Route};
use crate::judge::Admitted;
use crate::judge::conclusion::{RequestTexts, response_context};
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::RequestState;
use crate::reject::header_edits::RenderedValues;
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::{self, BodyFault, BodyOutcomeCell, RequestBody};
use sluicegate_http::request::headers::added_fields::AddedFields;
use sluicegate_http::upstream::{PooledConnection, ServerBody, StickyCookie, Upstream, fnv1a, hash_address};
use sluicegate_model::{BalancePolicy, HostHeader, Scheme, ServerId};
use sluicegate_observe::metrics::{AnswerOrigin, UpstreamOutcome};

use exchange::Exchange;
use fault::ExchangeResult;
pub use fault::ForwardFault;
use latency_feedback::LatencyFeedback;
pub use response_body::{GrpcFrames, ResponseBody, grpc_response, local_response};
use retry::NextTry;
pub use rewrite::{clear_unknown_reason, drop_unsent_body};
use told_usage::tell_caller;
use upgrade::UpgradeRequest;

/// A response, or the fault that prevented it; the state of the request continues in both.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum ForwardOutcome {
    /// The response, with the state of the request in its body.
    Responded(Response<ResponseBody>),
    /// The fault, with the state of the request.
    Faulted(ForwardFault, Box<RequestState>),
}

/// The service from admitted requests to their outcomes.
pub fn forward_service()
-> impl Service<Admitted, Response = ForwardOutcome, Error = Infallible, Future: 'static> + Clone {
    tower::service_fn(async |admitted| Ok(forward_admitted(admitted).await))
}

/// Forwards the request or answers it here. From now on its charges stay.
async fn forward_admitted(admitted: Admitted) -> ForwardOutcome {
    let (mut inbound, mut state, route) = admitted.into_parts();
    let worker = state.worker.clone();
    let gateway = &*worker.gateway;
    if let Some(permit) = &mut state.permits.chain {
        permit.keep_charges();
    }
    let upstream = state.upstream(gateway, route);
    let route = &gateway.routes[route.0];
    if state.is_preflight() {
        return respond_to_preflight(route, *inbound, state);
    }
    let Some(upstream) = upstream else {
        let response = match &route.action {
            // Boxed, because the future of every request is as large as the largest wait in it.
            Action::Usage(shown) => {
                Box::pin(tell_caller(&worker, shown, &state, inbound.request.headers())).await
            }
            _ => Response::new(Bytes::new()),
        };
        return respond_locally(route, *inbound, state, response);
    };
    let mut outgoing = OutgoingRequest::new(gateway, route, upstream, &mut inbound, &state);
    if upstream.is_demo() {
        outgoing.added_fields.move_into(inbound.request.headers_mut());
        serve_demo(route, &outgoing.response_values, inbound.request, state).await
    } else {
        proxy_request(&worker, route, upstream, outgoing, inbound, state).await
    }
}

async fn serve_demo(
    route: &Route,
    values: &RenderedValues,
    request: Request<RequestBody>,
    state: Box<RequestState>,
) -> ForwardOutcome {
    let watch = state.watch.clone();
    let echo = exchange::run_until_due(&watch, None, pin!(render_echo(request))).await;
    match echo.and_then(|echo| echo.map_err(ForwardFault::Client)) {
        Ok(response) => {
            let mut response = respond_here(response, state);
            route.response_edits.apply(response.headers_mut(), values);
            ForwardOutcome::Responded(response)
        }
        Err(fault) => ForwardOutcome::Faulted(fault, state),
    }
}

/// Facts about a request that is rewritten for its upstream.
#[derive(Default)]
struct OutgoingRequest {
    /// Tells whether the client or the upstream broke the request body.
    body_outcome: Option<BodyOutcomeCell>,
    /// The hash that the balancer selects by; with `sticky`, 1 + the position of the named server, or 0.
    balance_hash: u64,
    /// The server that the cookie names was full, so the cookie stays.
    is_named_full: Cell<bool>,
    /// The Host field must name the server: by `host_header: upstream`, or because the request has none.
    is_host_of_server: bool,
    wants_trailers: bool,
    /// Fields that are sent with the head.
    added_fields: AddedFields,
    /// The values with variables for the head of the response.
    response_values: RenderedValues,
    /// The protocol that the client asks to switch to.
    upgrade: Option<UpgradeRequest>,
}

impl OutgoingRequest {
    /// Rewrites the request for the upstream.
    fn new(
        gateway: &Gateway,
        route: &Route,
        upstream: &Upstream,
        inbound: &mut InboundRequest,
        state: &RequestState,
    ) -> OutgoingRequest {
        let request = &mut inbound.request;
        let client = || gateway.clients.mask_address(state.identity.client.ip);
        let cookie = gateway.sticky_cookie(upstream);
        let named = cookie.map(|cookie| cookie.take(request.headers_mut(), judged_second(state)));
        let balance_hash = match named {
            Some(named) => named.map_or(0, |server| server.0 as u64 + 1),
            None => balance_hash_for(&upstream.balance, request, client()),
        };
        let named = named.flatten().and_then(|named| upstream.servers.get(named.0));
        let is_named_full = named.is_some_and(|named| named.is_full());
        // HTTP/1.0 allows a request without Host, and edits may remove it; the upstream gets HTTP/1.1, which requires
        // it.
        let version = request.version();
        let may_lack_host = version < Version::HTTP_11 || !route.request_headers.remove.is_empty();
        let response_values = rewrite::render_values(&route.response_edits, inbound, state);
        let (mut hop_options, added_fields) = rewrite::rewrite_request(gateway, route, inbound, state);
        let request = &mut inbound.request;
        let is_host_of_server = route.host_header == HostHeader::Upstream
            || may_lack_host && !request.headers().contains_key(HOST);
        let upgrade = UpgradeRequest::from_request(version, &mut hop_options, request);
        if let Some(upgrade) = &upgrade {
            upgrade.add_upgrade_fields(request.headers_mut());
        }
        request.extensions_mut().clear();
        let (worker, route_index) = (&state.worker, state.route);
        let trailers =
            || state.identity.is_grpc.then(|| rewrite::trailer_filter(worker.clone(), route_index));
        let body_outcome = request.body_mut().start_forwarding(&state.watch, route.max_body, trailers);
        if !request.body().is_empty() && !request.headers().contains_key(CONTENT_LENGTH) {
            // hyper would send a GET or HEAD without a length as one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        OutgoingRequest {
            body_outcome,
            balance_hash,
            is_named_full: is_named_full.into(),
            is_host_of_server,
            wants_trailers: hop_options.trailers,
            added_fields,
            response_values,
            upgrade,
        }
    }

    /// Tells the client the server that answered, unless its cookie names that one or one that was full.
    fn set_cookie(
        &self,
        cookie: &StickyCookie,
        answered: ServerId,
        state: &RequestState,
        headers: &mut HeaderMap,
    ) {
        let is_named = self.balance_hash == answered.0 as u64 + 1;
        if is_named || self.is_named_full.get() {
            return;
        }
        let is_https = state.identity.scheme == Scheme::Https;
        let line = cookie.write(answered, is_https, judged_second(state));
        headers.extend(line.map(|line| (SET_COOKIE, line)));
    }
}

/// The moment of its judgement, in seconds since 1970.
fn judged_second(state: &RequestState) -> u64 {
    state.worker.wall_clock.unix_ms(state.judged_at) / 1_000
}

async fn proxy_request(
    worker: &Worker,
    route: &Route,
    upstream: &Arc<Upstream>,
    outgoing: OutgoingRequest,
    inbound: Box<InboundRequest>,
    mut state: Box<RequestState>,
) -> ForwardOutcome {
    let watch = state.watch.clone();
    if let Some(reading) = &mut state.response.reading {
        reading.watch_request(outgoing.body_outcome.clone(), inbound.request.body().held_bytes());
    }
    let client_pools = upstream
        .announces_clients
        .then(|| state.connection.announced_pools(&worker.pools, state.identity.client.ip));
    let exchange = Exchange {
        worker,
        pools: client_pools.as_ref().unwrap_or(&worker.pools),
        upstream,
        response_edits: &route.response_edits,
        connection: Some(&state.connection),
        watch: &watch,
        outgoing: &outgoing,
        reading: state.response.reading.as_deref(),
        pause_key: state.permits.pause.as_ref().map(|pause| &pause.key),
    };
    let first = match NextTry::choose(upstream, outgoing.balance_hash, &[]) {
        Ok(NextTry::At(first)) => Ok(first),
        Ok(NextTry::Wait) => {
            let first = Box::pin(exchange.wait_for_server(&[], None, &inbound.request)).await;
            state.judgement.wait_ns = Now::read_clock().ns_since(state.judged_at);
            first
        }
        Err(fault) => Err(fault),
    };
    // Without a wait the judgement is so recent that its reading of the clock is exact enough.
    let sent = if state.judgement.wait_ns == 0 { state.judged_at } else { Now::read_clock() };
    upstream.count_request(worker.id, sent);
    let permit = state.permits.chain.as_ref().filter(|_| state.judgement.degraded.is_none());
    let feedback =
        LatencyFeedback { charged_chain: permit, body_outcome: outgoing.body_outcome.as_ref(), sent };
    let (mut request, mut answer) = (Some(inbound.request), None);
    let outcome = match first {
        Ok(first) => {
            let (chosen, tries) = (&mut state.outcome.server, &mut state.outcome.tries);
            exchange.run_attempts(first, &mut request, &mut answer, chosen, tries).await
        }
        Err(fault) => Err(fault),
    };
    // It was kept for another attempt.
    drop(request);
    let now = Now::read_clock();
    let result = outcome.as_ref().map(|(status, _)| *status).map_err(|fault| *fault);
    count_outcome(worker, upstream, state.outcome.server, result, now.ns_since(sent));
    feedback.report_outcome(result, now);
    state.outcome.upstream_ns = Some(now.ns_since(sent));
    let pooled = match outcome {
        Ok((_, pooled)) => pooled,
        Err(fault) => return ForwardOutcome::Faulted(fault, state),
    };
    // Cannot fail: an exchange that succeeds has stored the head of its response.
    let response = answer.expect("an exchange that succeeds has an answer");
    pass_on(route, upstream, outgoing, response, pooled, state)
}

/// Passes the response on to the client, or opens the tunnel that it begins.
#[inline]
fn pass_on(
    route: &Route,
    upstream: &Upstream,
    outgoing: OutgoingRequest,
    mut response: Response<ServerBody>,
    pooled: PooledConnection,
    state: Box<RequestState>,
) -> ForwardOutcome {
    if let Some(cookie) = state.worker.gateway.sticky_cookie(upstream) {
        outgoing.set_cookie(cookie, pooled.server().position, &state, response.headers_mut());
    }
    // After an Upgrade that the upstream did not accept, the state of the connection is unknown.
    let reuse = outgoing.upgrade.is_none();
    match outgoing.upgrade {
        Some(upgrade) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            tunnel::open_tunnel(upgrade, route, &outgoing.response_values, response, pooled, state)
        }
        Some(upgrade) if !upgrade.may_pass_on(response.status()) => {
            ForwardOutcome::Faulted(ForwardFault::BadResponse, state)
        }
        _ => ForwardOutcome::Responded(response_body::streamed_response(
            response,
            pooled,
            reuse,
            upstream.body_ticks,
            state,
        )),
    }
}

/// Counts the outcome of the exchange, and the time to the head of its response.
fn count_outcome(
    worker: &Worker,
    upstream: &Upstream,
    server: Option<usize>,
    result: ExchangeResult,
    took_ns: u64,
) {
    let outcome = match result {
        Ok(status) => {
            worker.gateway.metrics.observe_upstream_time(worker.id, upstream.id, took_ns);
            UpstreamOutcome::Status(status)
        }
        Err(fault) => match fault.metric_outcome() {
            Some(outcome) => outcome,
            None => return,
        },
    };
    if let Some(server) = server {
        let position = worker.gateway.servers[server].position;
        worker.gateway.metrics.count_upstream_outcome(worker.id, upstream.id, position, outcome);
    }
}

/// `response`: empty, or what the caller is told of its limits.
fn respond_locally(
    route: &Route,
    mut inbound: InboundRequest,
    state: Box<RequestState>,
    mut response: Response<Bytes>,
) -> ForwardOutcome {
    let is_redirect = matches!(route.action, Action::Redirect { .. });
    let texts = RequestTexts::read_again(&inbound);
    let mut context = response_context(&state, &texts);
    if context.request_uri == "*" && is_redirect {
        // After a host, the asterisk of OPTIONS would become part of the host's name.
        context.request_uri = "";
    }
    let values = route.response_edits.render_values(&context);
    match &route.action {
        Action::Respond { status, body, content_type } => {
            *response.status_mut() = *status;
            *response.body_mut() = body.render(&context).into();
            response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
        }
        Action::Redirect { to, status } => {
            *response.status_mut() = *status;
            if let Ok(to) = HeaderValue::from_maybe_shared(Bytes::from(to.render(&context))) {
                response.headers_mut().insert(LOCATION, to);
            }
        }
        Action::Usage(_) => {}
        Action::Upstream(_) => unreachable!("a request for an upstream is forwarded"),
    }
    body::discard_body(&mut inbound.request);
    let mut response = respond_here(response, state);
    route.response_edits.apply(response.headers_mut(), &values);
    ForwardOutcome::Responded(response)
}

/// A response of the gateway in place of an upstream's, which charges the limits like one.
fn respond_here(response: Response<Bytes>, mut state: Box<RequestState>) -> Response<ResponseBody> {
    state.outcome.responder = Some(AnswerOrigin::Location);
    state.settle_by_final_status(response.status());
    if let Some(reading) = &mut state.response.reading {
        reading.read_data(response.body());
    }
    local_response(response, state)
}

fn respond_to_preflight(
    route: &Route,
    mut inbound: InboundRequest,
    mut state: Box<RequestState>,
) -> ForwardOutcome {
    state.outcome.responder = Some(AnswerOrigin::Location);
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let values = rewrite::render_values(&route.response_edits, &inbound, &state);
    route.response_edits.apply(response.headers_mut(), &values);
    if let Some(cors) = state.response.cors.take() {
        cors.write_preflight_fields(inbound.request.headers(), response.headers_mut());
    }
    body::discard_body(&mut inbound.request);
    ForwardOutcome::Responded(local_response(response, state))
}

/// The hash of the request for the balancer's `hash:*` kinds. `client` is the network that counts as one client, so
/// that temporary IPv6 addresses do not move a client to another server.
fn balance_hash_for(policy: &BalancePolicy, request: &Request<RequestBody>, client: IpAddr) -> u64 {
    match policy {
        BalancePolicy::HashIp => hash_address(client),
        BalancePolicy::HashUri => fnv1a(request.uri().path().as_bytes()),
        BalancePolicy::HashHeader(name) => {
            request.headers().get(name).map_or(0, |value| fnv1a(value.as_bytes()))
        }
        _ => 0,
    }
}

/// Maximum number of echoed header fields.
const ECHO_FIELDS_MAX: usize = 32;
/// Maximum bytes of one echoed value.
const ECHO_VALUE_MAX: usize = 256;

/// Reads and discards the whole body, and answers 200.
///
/// # Errors
/// The client broke its own body.
async fn render_echo(request: Request<RequestBody>) -> Result<Response<Bytes>, BodyFault> {
    let (head, mut body) = request.into_parts();
    let mut received: u64 = 0;
    while let Some(frame) = body.frame().await {
        received += frame?.data_ref().map_or(0, |data| data.len() as u64);
    }
    let headers: serde_json::Map<String, Value> = head
        .headers
        .iter()
        .take(ECHO_FIELDS_MAX)
        .map(|(name, value)| {
            let shown = &value.as_bytes()[..value.len().min(ECHO_VALUE_MAX)];
            (name.as_str().to_owned(), Value::from(String::from_utf8_lossy(shown)))
        })
        .collect();
    let echo = json!({
        "upstream": "demo",
        "method": head.method.as_str(),
        "target": head.uri.path_and_query().map_or("/", |target| target.as_str()),
        "headers": headers,
        "body_bytes": received,
    });
    let mut response = Response::new(Bytes::from(format!("{echo}\n")));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
