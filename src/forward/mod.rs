//! The second door: an admitted request becomes an answer — forwarded, responded or redirected.
//!
//! Nothing gets here unjudged: the door takes an [`Admitted`], and only `throttle` makes one.

mod answer;
mod demo;
mod exchange;
mod fault;
mod rewrite;

use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, TE};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use crate::account;
use crate::body::RequestBody;
use crate::client::Client;
use crate::config::HostHeader;
use crate::gateway::{Action, Gateway, Route};
use crate::hop_by_hop;
use crate::location;
use crate::reject::RejectContext;
use crate::upstream::{Spread, Upstream, fnv1a};
use crate::visit::Visit;
use crate::worker::Worker;

pub use answer::{AnswerBody, rendered};
use exchange::{Exchange, Exchanged};
pub use fault::Fault;
pub use rewrite::close;

/// A request that was judged and may be forwarded.
pub struct Admitted {
    pub request: Request<Incoming>,
    pub visit: Box<Visit>,
    /// The place of its location among the gateway's routes.
    pub route: usize,
    pub client: Client,
    /// The target to ask the upstream for, when it is not the one that was sent.
    pub target: Option<PathAndQuery>,
}

/// An answer, or why there is none; either way the visit goes on.
pub enum Forwarded {
    Answered(Response<AnswerBody>),
    Failed(Fault, Box<Visit>),
}

/// The door: a tower service from admitted requests to what became of them.
pub fn door(
    worker: Rc<Worker>,
) -> impl Service<Admitted, Response = Forwarded, Error = Infallible, Future: 'static> + Clone {
    tower::service_fn(move |admitted| forward(worker.clone(), admitted))
}

async fn forward(worker: Rc<Worker>, mut admitted: Admitted) -> Result<Forwarded, Infallible> {
    let gateway = worker.gateway.clone();
    let route = &gateway.routes[admitted.route];
    if let Some(passage) = &mut admitted.visit.passage {
        passage.forwarded();
    }
    let mut response = match &route.action {
        Action::Upstream(upstream) if !upstream.is_demo() => {
            return Ok(proxy(&worker, route, upstream, admitted).await);
        }
        Action::Upstream(_demo) => {
            let (request, _, visit) = prepare(&gateway, route, admitted);
            match demo::answer(request).await {
                Ok(response) => rendered(response, visit),
                Err(fault) => return Ok(Forwarded::Failed(Fault::Client(fault), visit)),
            }
        }
        Action::Respond { .. } | Action::Redirect { .. } => respond(&gateway, route, admitted),
    };
    rewrite::edit(response.headers_mut(), &route.response_headers);
    Ok(Forwarded::Answered(response))
}

/// The request as the upstream shall see it.
fn prepare(
    gateway: &Gateway,
    route: &Route,
    mut admitted: Admitted,
) -> (Request<RequestBody>, Option<crate::body::Culprit>, Box<Visit>) {
    let grpc = is_grpc(admitted.request.headers());
    rewrite::request(gateway, route, &mut admitted);
    let Admitted { request, visit, .. } = admitted;
    let (mut head, incoming) = request.into_parts();
    head.extensions.clear();
    let watch = &visit.connection.watch;
    let (body, culprit) = RequestBody::new(incoming, watch, gateway.server.max_body, grpc);
    (Request::from_parts(head, body), culprit, visit)
}

async fn proxy(worker: &Rc<Worker>, route: &Route, upstream: &Upstream, admitted: Admitted) -> Forwarded {
    let hash = spread_hash(upstream.spread(), &admitted);
    let wants_trailers = admitted.request.headers().contains_key(TE);
    let (request, culprit, mut visit) = prepare(&worker.gateway, route, admitted);
    let connection = visit.connection.clone();
    let exchange = Exchange {
        upstream,
        pools: &worker.pools,
        watch: &connection.watch,
        culprit,
        hash,
        own_host: route.host_header == HostHeader::Upstream,
    };
    match exchange.run(request, &mut visit.server).await {
        Ok(Exchanged { mut response, lease }) => {
            if !may_pass(&response) {
                return Forwarded::Failed(Fault::BadAnswer, visit);
            }
            rewrite::response(route, &mut response, wants_trailers);
            Forwarded::Answered(answer::streamed(response, lease, upstream.body_span, visit))
        }
        Err(fault) => Forwarded::Failed(fault, visit),
    }
}

/// Whether an upstream's head is one that a client can take: unambiguous, and no switch of protocols.
fn may_pass(response: &Response<Incoming>) -> bool {
    response.status() != StatusCode::SWITCHING_PROTOCOLS
        && hop_by_hop::check_response_framing(response.headers()).is_ok()
}

fn respond(gateway: &Gateway, route: &Route, admitted: Admitted) -> Response<AnswerBody> {
    let mut response = Response::new(Bytes::new());
    {
        let request = &admitted.request;
        let host = location::host(request.version(), request.headers(), request.uri()).unwrap_or_default();
        let path = location::normalise(request.uri().path()).unwrap_or_default();
        let account = account::account(gateway.account.as_ref(), request.headers(), request.uri().query());
        let account = account.ok().flatten().unwrap_or_default();
        let context = RejectContext {
            request_id: admitted.visit.request_id.to_str().unwrap_or_default(),
            client_ip: Some(admitted.client.ip),
            account: &String::from_utf8_lossy(&account),
            host: &host,
            uri: &String::from_utf8_lossy(&path),
            request_uri: request.uri().path_and_query().map_or("/", PathAndQuery::as_str),
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
    }
    rendered(response, admitted.visit)
}

/// What the balancer's `hash:*` kinds go by.
fn spread_hash(spread: &Spread, admitted: &Admitted) -> u64 {
    match spread {
        Spread::Any => 0,
        Spread::Ip => match admitted.client.ip {
            IpAddr::V4(ip) => fnv1a(&ip.octets()),
            IpAddr::V6(ip) => fnv1a(&ip.octets()),
        },
        Spread::Uri => fnv1a(admitted.request.uri().path().as_bytes()),
        Spread::Header(name) => {
            admitted.request.headers().get(name).map_or(0, |value| fnv1a(value.as_bytes()))
        }
    }
}

/// gRPC calls carry their trailers both ways.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
