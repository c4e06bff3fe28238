//! The second door: an admitted request becomes an answer — forwarded, responded or redirected.
//!
//! Nothing gets here unjudged: the door takes an [`Admitted`], and only `throttle` makes one.

mod demo;
mod exchange;
mod fault;
mod response_body;
mod retry;
mod rewrite;
mod tunnel;
mod upgrade;

use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Version};
use tower::Service;

use crate::admission::chain::ChainPermit;
use crate::base::clock::Now;
use crate::config::HostHeader;
use crate::limit::SlotOutcome;
use crate::observe::metrics::UpstreamOutcome;
use crate::proxy::gateway::{Action, Gateway, Route};
use crate::proxy::reject::RejectContext;
use crate::proxy::request_state::RequestState;
use crate::proxy::worker::Worker;
use crate::request::body;
use crate::request::body::{BodyOutcomeCell, RequestBody};
use crate::request::client::Client;
use crate::request::location;
use crate::upstream::{HashInput, Upstream, fnv1a};

use exchange::Exchange;
pub use fault::ForwardFault;
pub use response_body::{ResponseBody, local_response};
pub use rewrite::{clear_unknown_reason, set_connection_close};
use upgrade::UpgradeRequest;
pub use upgrade::rewrite_connect;

/// A request that was judged and may be forwarded. It stands in its visit, so that no stage moves it.
pub struct Admitted {
    visit: Box<RequestState>,
    /// The index of its location.
    route: usize,
}

impl Admitted {
    /// For `judge` alone, once the request has passed everything.
    pub fn new(visit: Box<RequestState>) -> Admitted {
        // Cannot fail: a request without a location is rejected before it takes its slots.
        let route = visit.route.expect("an admitted request has a location");
        Admitted { visit, route }
    }
}

/// The request of a visit that is admitted and not yet sent.
fn admitted_request(request: &mut Option<Request<RequestBody>>) -> &mut Request<RequestBody> {
    // Cannot fail: judging leaves the request in its visit, and only the response to it takes it out.
    request.as_mut().expect("an admitted request stands in its visit")
}

/// An answer, or why there is none; either way the visit goes on.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum ForwardOutcome {
    Responded(Response<ResponseBody>),
    Faulted(ForwardFault, Box<RequestState>),
}

/// The door: a tower service from admitted requests to what became of them.
pub fn forward_service()
-> impl Service<Admitted, Response = ForwardOutcome, Error = Infallible, Future: 'static> + Clone {
    tower::service_fn(async |admitted| Ok(forward_admitted(admitted).await))
}

async fn forward_admitted(Admitted { mut visit, route }: Admitted) -> ForwardOutcome {
    let worker = visit.worker.clone();
    let gateway = &*worker.gateway;
    let route = &gateway.routes[route];
    if let Some(passage) = &mut visit.charged_chain {
        passage.mark_forwarded();
    }
    let upstream = match (visit.degraded, &route.action) {
        (Some(instead), _) => &gateway.upstreams[instead],
        (None, Action::Upstream(upstream)) => upstream,
        (None, Action::Respond { .. } | Action::Redirect { .. }) => return respond_locally(route, visit),
    };
    let outgoing = OutgoingRequest::new(gateway, route, upstream.hash_input(), &mut visit);
    if upstream.is_demo() {
        serve_demo(route, visit).await
    } else {
        proxy_request(&worker, route, upstream, outgoing, visit).await
    }
}

async fn serve_demo(route: &Route, mut visit: Box<RequestState>) -> ForwardOutcome {
    match demo::render_echo(visit.take_request()).await {
        Ok(response) => {
            let mut response = local_response(response, visit);
            rewrite::edit_headers(response.headers_mut(), &route.response_headers);
            ForwardOutcome::Responded(response)
        }
        Err(fault) => ForwardOutcome::Faulted(ForwardFault::Client(fault), visit),
    }
}

/// What is to be known of the request that stands in its visit as the upstream shall see it.
struct OutgoingRequest {
    /// Whose fault a failed body was.
    body_outcome: Option<BodyOutcomeCell>,
    /// What the balancer goes by.
    balance_hash: u64,
    /// The Host names the server: `host_header: upstream`, or none was left in the request.
    is_host_of_server: bool,
    wants_trailers: bool,
    /// The client wants to speak something else, if the upstream does.
    upgrade: Option<UpgradeRequest>,
}

impl OutgoingRequest {
    /// Makes the visit's request the upstream's.
    fn new(
        gateway: &Gateway,
        route: &Route,
        spread: &HashInput,
        visit: &mut RequestState,
    ) -> OutgoingRequest {
        let request = admitted_request(&mut visit.request);
        let hash = spread_hash(spread, request, visit.client);
        // HTTP/1.0 may come without a Host, and edits may remove it; what goes upstream is HTTP/1.1.
        let version = request.version();
        let may_lack_host = version < Version::HTTP_11 || !route.request_headers.remove.is_empty();
        let mut asked = rewrite::rewrite_request(gateway, route, visit);
        let request = admitted_request(&mut visit.request);
        let own_host = route.host_header == HostHeader::Upstream
            || may_lack_host && !request.headers().contains_key(HOST);
        let wish = UpgradeRequest::from_request(version, &mut asked, request);
        if let Some(wish) = &wish {
            wish.add_upgrade_fields(request.headers_mut());
        }
        request.extensions_mut().clear();
        let (worker, place) = (&visit.worker, visit.route);
        let trailers = || visit.is_grpc.then(|| rewrite::trailer_filter(worker.clone(), place));
        let culprit = request.body_mut().start_forwarding(&visit.watch, gateway.server.max_body, trailers);
        if !request.body().is_empty() && !request.headers().contains_key(CONTENT_LENGTH) {
            // hyper takes a GET or HEAD without a length for one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        OutgoingRequest {
            body_outcome: culprit,
            balance_hash: hash,
            is_host_of_server: own_host,
            wants_trailers: asked.trailers,
            upgrade: wish,
        }
    }
}

async fn proxy_request(
    worker: &Worker,
    route: &Route,
    upstream: &Upstream,
    outgoing: OutgoingRequest,
    mut visit: Box<RequestState>,
) -> ForwardOutcome {
    let watch = visit.watch.clone();
    let exchange = Exchange { worker, upstream, route, watch: &watch, outgoing: &outgoing };
    // Without a wait the judgement was just now, and one look at the clock is enough for both.
    let sent = if visit.wait_ns == 0 { visit.started } else { Now::read_clock() };
    upstream.count_request(worker.id, sent);
    let passage = visit.charged_chain.as_ref().filter(|_| visit.degraded.is_none());
    let teller =
        LatencyFeedback { charged_chain: passage, body_outcome: outgoing.body_outcome.as_ref(), sent };
    let mut answer = None;
    let outcome = exchange.run_attempts(&mut visit.request, &mut answer, &mut visit.server).await;
    // It was kept for a further try.
    visit.request = None;
    let now = Now::read_clock();
    let went = outcome.as_ref().map(|(status, _)| *status).map_err(|fault| *fault);
    count_outcome(worker, upstream, &visit, went, now.ns_since(sent));
    teller.report_outcome(went, now);
    let lease = match outcome {
        Ok((_, lease)) => lease,
        Err(fault) => return ForwardOutcome::Faulted(fault, visit),
    };
    // Cannot fail: an exchange that succeeds has put the head of its answer there.
    let response = answer.expect("an exchange that succeeds has an answer");
    // What an upstream makes of an Upgrade that it does not answer is its own affair.
    let reuse = outgoing.upgrade.is_none();
    match outgoing.upgrade {
        Some(wish) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            tunnel::open_tunnel(wish, route, response, lease, visit)
        }
        Some(wish) if !wish.may_pass_on(response.status()) => {
            ForwardOutcome::Faulted(ForwardFault::BadResponse, visit)
        }
        _ => ForwardOutcome::Responded(response_body::streamed_response(
            response,
            lease,
            reuse,
            upstream.body_ticks,
            visit,
        )),
    }
}

/// How an exchange went: the status of its answer, or why there is none.
type ExchangeResult = Result<StatusCode, ForwardFault>;

/// Counts how the exchange ended, and how long the head of the answer took.
fn count_outcome(
    worker: &Worker,
    upstream: &Upstream,
    visit: &RequestState,
    went: ExchangeResult,
    took_ns: u64,
) {
    let answered = match went {
        Ok(status) => {
            worker.gateway.metrics.observe_upstream_time(worker.id, upstream.index, took_ns);
            UpstreamOutcome::Status(status)
        }
        Err(fault) => match fault.metric_outcome() {
            Some(answered) => answered,
            None => return,
        },
    };
    if let Some(server) = visit.server {
        let place = worker.gateway.servers[server].position;
        worker.gateway.metrics.count_upstream_outcome(worker.id, upstream.index, place, answered);
    }
}

/// Tells limits that adapt how the upstream bears what they let through; what answers instead of a location is not
/// what the limit is for. A client that leaves drops the request on its way, and that is told, too.
struct LatencyFeedback<'a> {
    /// `None` = nothing is left to tell.
    charged_chain: Option<&'a ChainPermit>,
    body_outcome: Option<&'a BodyOutcomeCell>,
    sent: Now,
}

impl LatencyFeedback<'_> {
    /// Tells how it went. An answer that says "overloaded" is no quick one; other errors come too quickly to tell
    /// anything.
    fn report_outcome(mut self, outcome: ExchangeResult, now: Now) {
        let Some(passage) = self.charged_chain.take() else { return };
        let went = match outcome {
            Ok(status) => match status.as_u16() {
                502..=504 => SlotOutcome::Failed,
                500.. => return,
                _ => match self.request_sent_at() {
                    Some(asked) => SlotOutcome::Answered(now.ns_since(asked)),
                    // It answered before it had the whole request.
                    None => return,
                },
            },
            Err(ForwardFault::Client(_) | ForwardFault::BadResponse | ForwardFault::Full) => return,
            // Maybe the client's own doing: it was still sending.
            Err(ForwardFault::LocationTimeout | ForwardFault::ResponseTimeout | ForwardFault::Broken(_))
                if self.request_sent_at().is_none() =>
            {
                return;
            }
            Err(_) => SlotOutcome::Failed,
        };
        passage.report_outcome(went, now);
    }

    /// When the upstream had the whole request: the time in which a client sends its body is not the upstream's.
    fn request_sent_at(&self) -> Option<Now> {
        self.body_outcome.map_or(Some(self.sent), |body| body.ended_at())
    }
}

impl Drop for LatencyFeedback<'_> {
    fn drop(&mut self) {
        if let Some(passage) = self.charged_chain.take()
            && let Some(asked) = self.request_sent_at()
        {
            let now = Now::read_clock();
            passage.report_outcome(SlotOutcome::Abandoned(now.ns_since(asked)), now);
        }
    }
}

fn respond_locally(route: &Route, mut visit: Box<RequestState>) -> ForwardOutcome {
    let request = visit.take_request();
    let mut response = Response::new(Bytes::new());
    let is_redirect = matches!(route.action, Action::Redirect { .. });
    let authority = visit.authority.as_ref();
    let host = location::request_host(request.version(), request.headers(), authority).unwrap_or_default();
    let path = location::normalise_path(request.uri().path()).unwrap_or_default();
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let context = RejectContext {
        request_id: visit.request_id.to_str().unwrap_or_default(),
        client_ip: Some(visit.client.ip),
        account: visit.account.as_deref().unwrap_or_default(),
        tier: visit.tier_name(),
        host: &host,
        uri: &String::from_utf8_lossy(&path),
        // Behind a host the asterisk would be a part of its name.
        request_uri: if target == "*" && is_redirect { "" } else { target },
        location: &route.name,
    };
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
        Action::Upstream(_) => unreachable!("a request for an upstream is forwarded"),
    }
    body::discard_body(&visit.connection.watch, request);
    let mut response = local_response(response, visit);
    rewrite::edit_headers(response.headers_mut(), &route.response_headers);
    ForwardOutcome::Responded(response)
}

/// What the balancer's `hash:*` kinds go by.
fn spread_hash(spread: &HashInput, request: &Request<RequestBody>, client: Client) -> u64 {
    match spread {
        HashInput::Unused => 0,
        HashInput::Ip => match client.ip {
            IpAddr::V4(ip) => fnv1a(&ip.octets()),
            IpAddr::V6(ip) => fnv1a(&ip.octets()),
        },
        HashInput::Uri => fnv1a(request.uri().path().as_bytes()),
        HashInput::Header(name) => request.headers().get(name).map_or(0, |value| fnv1a(value.as_bytes())),
    }
}

/// gRPC calls carry their trailers both ways.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    // What has another name after it, as gRPC for browsers, is something else.
    matches!(kind, Some([] | [b'+' | b';' | b' ', ..]))
}
