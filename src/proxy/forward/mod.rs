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

use crate::admission::chain::Passage;
use crate::base::clock::Now;
use crate::config::HostHeader;
use crate::limit::Went;
use crate::observe::metrics::Answered;
use crate::proxy::gateway::{Action, Gateway, Route};
use crate::proxy::reject::RejectContext;
use crate::proxy::request_state::Visit;
use crate::proxy::worker::Worker;
use crate::request::body;
use crate::request::body::{Culprit, RequestBody};
use crate::request::client::Client;
use crate::request::location;
use crate::upstream::{Spread, Trouble, Upstream, fnv1a};

use exchange::Exchange;
pub use fault::Fault;
pub use response_body::{AnswerBody, rendered};
pub use rewrite::{close, settle_reason};
use upgrade::Wish;
pub use upgrade::settle_connect;

/// What cannot be: a request without its route, its head or its answer.
const NO_ANSWER: Fault = Fault::Broken(Trouble::Closed);

/// A request that was judged and may be forwarded. It stands in its visit, so that no stage moves it.
pub struct Admitted(Box<Visit>);

impl Admitted {
    /// For `throttle` to say, after judging.
    pub fn new(visit: Box<Visit>) -> Admitted {
        Admitted(visit)
    }
}

/// An answer, or why there is none; either way the visit goes on.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum Forwarded {
    Answered(Response<AnswerBody>),
    Failed(Fault, Box<Visit>),
}

/// The door: a tower service from admitted requests to what became of them.
pub fn door() -> impl Service<Admitted, Response = Forwarded, Error = Infallible, Future: 'static> + Clone {
    tower::service_fn(async |Admitted(visit)| Ok(forward(visit).await))
}

async fn forward(mut visit: Box<Visit>) -> Forwarded {
    let worker = visit.worker.clone();
    let gateway = &*worker.gateway;
    let Some(route) = visit.route else { return Forwarded::Failed(NO_ANSWER, visit) };
    let route = &gateway.routes[route];
    if let Some(passage) = &mut visit.passage {
        passage.forwarded();
    }
    let upstream = match (visit.degraded, &route.action) {
        (Some(instead), _) => &gateway.upstreams[instead],
        (None, Action::Upstream(upstream)) => upstream,
        (None, Action::Respond { .. } | Action::Redirect { .. }) => return respond(route, visit),
    };
    match Outgoing::new(gateway, route, upstream.spread(), &mut visit) {
        Some(_) if upstream.is_demo() => demonstrate(route, visit).await,
        Some(outgoing) => proxy(&worker, route, upstream, outgoing, visit).await,
        None => Forwarded::Failed(NO_ANSWER, visit),
    }
}

async fn demonstrate(route: &Route, mut visit: Box<Visit>) -> Forwarded {
    let Some(request) = visit.request.take() else { return Forwarded::Failed(NO_ANSWER, visit) };
    match demo::answer(request).await {
        Ok(response) => {
            let mut response = rendered(response, visit);
            rewrite::edit(response.headers_mut(), &route.response_headers);
            Forwarded::Answered(response)
        }
        Err(fault) => Forwarded::Failed(Fault::Client(fault), visit),
    }
}

/// What is to be known of the request that stands in its visit as the upstream shall see it.
struct Outgoing {
    /// Whose fault a failed body was.
    culprit: Option<Culprit>,
    /// What the balancer goes by.
    hash: u64,
    /// The Host names the server: `host_header: upstream`, or none was left in the request.
    own_host: bool,
    wants_trailers: bool,
    /// The client wants to speak something else, if the upstream does.
    wish: Option<Wish>,
}

impl Outgoing {
    /// Makes the visit's request the upstream's; `None` when there is none.
    fn new(gateway: &Gateway, route: &Route, spread: &Spread, visit: &mut Visit) -> Option<Outgoing> {
        let request = visit.request.as_ref()?;
        let hash = spread_hash(spread, request, visit.client);
        // HTTP/1.0 may come without a Host, and edits may remove it; what goes upstream is HTTP/1.1.
        let version = request.version();
        let may_lack_host = version < Version::HTTP_11 || !route.request_headers.remove.is_empty();
        let mut asked = rewrite::request(gateway, route, visit);
        let request = visit.request.as_mut()?;
        let own_host = route.host_header == HostHeader::Upstream
            || may_lack_host && !request.headers().contains_key(HOST);
        let wish = Wish::of(version, &mut asked, request);
        if let Some(wish) = &wish {
            wish.ask(request.headers_mut());
        }
        request.extensions_mut().clear();
        let (worker, place) = (&visit.worker, visit.route);
        let trailers = || visit.is_grpc.then(|| rewrite::trailers(worker.clone(), place));
        let culprit = request.body_mut().depart(&visit.watch, gateway.server.max_body, trailers);
        if !request.body().is_empty() && !request.headers().contains_key(CONTENT_LENGTH) {
            // hyper takes a GET or HEAD without a length for one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Some(Outgoing { culprit, hash, own_host, wants_trailers: asked.trailers, wish })
    }
}

async fn proxy(
    worker: &Worker,
    route: &Route,
    upstream: &Upstream,
    outgoing: Outgoing,
    mut visit: Box<Visit>,
) -> Forwarded {
    let watch = visit.watch.clone();
    let exchange = Exchange { worker, upstream, route, watch: &watch, outgoing: &outgoing };
    // Without a wait the judgement was just now, and one look at the clock is enough for both.
    let sent = if visit.waited_ns == 0 { visit.started } else { Now::read() };
    upstream.asked(worker.id, sent);
    let passage = visit.passage.as_ref().filter(|_| visit.degraded.is_none());
    let teller = Teller { passage, culprit: outgoing.culprit.as_ref(), sent };
    let mut answer = None;
    let outcome = exchange.run(&mut visit.request, &mut answer, &mut visit.server).await;
    // It was kept for a further try.
    visit.request = None;
    let now = Now::read();
    let went = outcome.as_ref().map(|(status, _)| *status).map_err(|fault| *fault);
    count(worker, upstream, &visit, went, now.since(sent));
    teller.tell(went, now);
    let (lease, response) = match (outcome, answer) {
        (Ok((_, lease)), Some(response)) => (lease, response),
        (Ok(_), None) => return Forwarded::Failed(NO_ANSWER, visit),
        (Err(fault), _) => return Forwarded::Failed(fault, visit),
    };
    // What an upstream makes of an Upgrade that it does not answer is its own affair.
    let reuse = outgoing.wish.is_none();
    match outgoing.wish {
        Some(wish) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            tunnel::open(wish, route, response, lease, visit)
        }
        Some(wish) if !wish.may_be_told(response.status()) => Forwarded::Failed(Fault::BadAnswer, visit),
        _ => Forwarded::Answered(response_body::streamed(response, lease, reuse, upstream.body_span, visit)),
    }
}

/// How an exchange went: the status of its answer, or why there is none.
type Outcome = Result<StatusCode, Fault>;

/// Counts how the exchange ended, and how long the head of the answer took.
fn count(worker: &Worker, upstream: &Upstream, visit: &Visit, went: Outcome, took_ns: u64) {
    let answered = match went {
        Ok(status) => {
            worker.gateway.metrics.upstream_responded(worker.id, upstream.index, took_ns);
            Answered::Status(status)
        }
        Err(fault) => match fault.answered() {
            Some(answered) => answered,
            None => return,
        },
    };
    if let Some(server) = visit.server {
        let place = worker.gateway.servers[server].place;
        worker.gateway.metrics.upstream_answered(worker.id, upstream.index, place, answered);
    }
}

/// Tells limits that adapt how the upstream bears what they let through; what answers instead of a location is not
/// what the limit is for. A client that leaves drops the request on its way, and that is told, too.
struct Teller<'a> {
    /// `None` = nothing is left to tell.
    passage: Option<&'a Passage>,
    culprit: Option<&'a Culprit>,
    sent: Now,
}

impl Teller<'_> {
    /// Tells how it went. An answer that says "overloaded" is no quick one; other errors come too quickly to tell
    /// anything.
    fn tell(mut self, outcome: Outcome, now: Now) {
        let Some(passage) = self.passage.take() else { return };
        let went = match outcome {
            Ok(status) => match status.as_u16() {
                502..=504 => Went::Failed,
                500.. => return,
                _ => match self.asked() {
                    Some(asked) => Went::Answered(now.since(asked)),
                    // It answered before it had the whole request.
                    None => return,
                },
            },
            Err(Fault::Client(_) | Fault::BadAnswer | Fault::Full) => return,
            // Maybe the client's own doing: it was still sending.
            Err(Fault::LocationTimeout | Fault::ResponseTimeout | Fault::Broken(_))
                if self.asked().is_none() =>
            {
                return;
            }
            Err(_) => Went::Failed,
        };
        passage.went(went, now);
    }

    /// When the upstream had the whole request: the time in which a client sends its body is not the upstream's.
    fn asked(&self) -> Option<Now> {
        self.culprit.map_or(Some(self.sent), |body| body.ended())
    }
}

impl Drop for Teller<'_> {
    fn drop(&mut self) {
        if let Some(passage) = self.passage.take()
            && let Some(asked) = self.asked()
        {
            let now = Now::read();
            passage.went(Went::Abandoned(now.since(asked)), now);
        }
    }
}

fn respond(route: &Route, mut visit: Box<Visit>) -> Forwarded {
    let Some(request) = visit.request.take() else { return Forwarded::Failed(NO_ANSWER, visit) };
    let mut response = Response::new(Bytes::new());
    let is_redirect = matches!(route.action, Action::Redirect { .. });
    let authority = visit.authority.as_ref();
    let host = location::host(request.version(), request.headers(), authority).unwrap_or_default();
    let path = location::normalise(request.uri().path()).unwrap_or_default();
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let context = RejectContext {
        request_id: visit.request_id.to_str().unwrap_or_default(),
        client_ip: Some(visit.client.ip),
        account: visit.account.as_deref().unwrap_or_default(),
        tier: visit.tier(),
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
        Action::Upstream(_) => {}
    }
    body::settle(&visit.connection.watch, request);
    let mut response = rendered(response, visit);
    rewrite::edit(response.headers_mut(), &route.response_headers);
    Forwarded::Answered(response)
}

/// What the balancer's `hash:*` kinds go by.
fn spread_hash(spread: &Spread, request: &Request<RequestBody>, client: Client) -> u64 {
    match spread {
        Spread::Any => 0,
        Spread::Ip => match client.ip {
            IpAddr::V4(ip) => fnv1a(&ip.octets()),
            IpAddr::V6(ip) => fnv1a(&ip.octets()),
        },
        Spread::Uri => fnv1a(request.uri().path().as_bytes()),
        Spread::Header(name) => request.headers().get(name).map_or(0, |value| fnv1a(value.as_bytes())),
    }
}

/// gRPC calls carry their trailers both ways.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    // What has another name after it, as gRPC for browsers, is something else.
    matches!(kind, Some([] | [b'+' | b';' | b' ', ..]))
}
