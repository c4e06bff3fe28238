//! The second door: an admitted request becomes an answer — forwarded, responded or redirected.
//!
//! Nothing gets here unjudged: the door takes an [`Admitted`], and only `throttle` makes one.

mod answer;
mod demo;
mod exchange;
mod fault;
mod rewrite;

use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use crate::body::{BodyFault, Culprit, RequestBody};
use crate::client::Client;
use crate::config::HostHeader;
use crate::gateway::{Action, Gateway, Route};
use crate::hop_by_hop;
use crate::reject::{Rejection, Told};
use crate::upstream::{Spread, Upstream};
use crate::visit::Visit;
use crate::worker::Worker;

pub use answer::{AnswerBody, rendered};
use exchange::{Exchange, Exchanged};
use fault::Fault;

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

/// The door: a tower service from admitted requests to answers. It never fails; faults are answers.
pub fn door(
    worker: Rc<Worker>,
) -> impl Service<Admitted, Response = Response<AnswerBody>, Error = Infallible, Future: 'static> + Clone {
    tower::service_fn(move |admitted| forward(worker.clone(), admitted))
}

async fn forward(worker: Rc<Worker>, mut admitted: Admitted) -> Result<Response<AnswerBody>, Infallible> {
    let gateway = worker.gateway.clone();
    let route = &gateway.routes[admitted.route];
    if let Some(passage) = &mut admitted.visit.passage {
        passage.forwarded();
    }
    let outcome = match &route.action {
        Action::Upstream(upstream) if upstream.is_demo() => demo(&gateway, route, &mut admitted).await,
        Action::Upstream(upstream) => return Ok(proxy(&worker, &gateway, route, upstream, admitted).await),
        Action::Respond { .. } | Action::Redirect { .. } => Ok(respond(route, &admitted)),
        Action::Missing(rejection) => Ok(route.faults.answer(rejection, &told(&gateway, &admitted))),
    };
    Ok(match outcome {
        Ok(mut response) => {
            rewrite::edit(response.headers_mut(), &route.response_headers);
            rendered(response, admitted.visit)
        }
        Err(fault) => refuse(&gateway, route, fault, admitted.visit, &admitted.request),
    })
}
