//! The first door: identify → locate → judge → wait. What passes is forwarded; the rest is answered here.

mod ask;
mod judge;
mod refuse;
mod shared;
mod strike;
mod wait;

use std::convert::Infallible;
use std::rc::Rc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use crate::body;
use crate::clock::Now;
use crate::deadline::RequestWatch;
use crate::forward::{self, Admitted, AnswerBody, Forwarded};
use crate::visit::Visit;
use crate::worker::{Connection, Home, Worker};

pub use ask::{Caller, Exempt, Head, KeyRepeated, Named};
pub use judge::{rewritten, target_fault};
pub use refuse::rejection;

/// The door of one connection: a tower service from raw requests to answers. It never fails.
pub fn door(
    home: Rc<Home>,
    connection: Rc<Connection>,
) -> impl Service<Request<Incoming>, Response = Response<AnswerBody>, Error = Infallible, Future: 'static> + Clone
{
    let forward = forward::door();
    tower::service_fn(move |request| {
        let watch = connection.request_watch(&home);
        throttle(home.worker(), connection.clone(), watch, forward.clone(), request)
    })
}

async fn throttle<F>(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    watch: Rc<RequestWatch>,
    mut forward: F,
    mut request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible>
where
    F: Service<Admitted, Response = Forwarded, Error = Infallible>,
{
    let connects = forward::settle_connect(&mut request);
    let last = connection.count_request(&worker);
    let is_stream = connection.watch.is_multiplexed();
    let client = worker.gateway.clients.address(connection.peer, request.headers());
    let mut visit = Visit::open(&worker, &connection, watch, client, Now::read());
    visit.connects = connects;
    let mut refused = judge::judge(&worker, &request, &mut visit);
    if refused.is_none()
        && let Err(rejection) = shared::ask(&request, &mut visit).await
    {
        refused = refuse::answer(&worker, &request, &mut visit, &rejection);
    }
    if refused.is_none()
        && let Err(rejection) = wait::wait_and_enter(&mut visit).await
    {
        refused = refuse::answer(&worker, &request, &mut visit, &rejection);
    }
    judge::note_dry_runs(&mut visit);
    let tells_state = visit.fell_back && visit.client.trusted_peer;
    let mut response = if let Some(refused) = refused {
        body::settle(&connection.watch, request);
        forward::rendered(refused, visit)
    } else {
        let told = refuse::Told::of(&request, &visit);
        let (route, decisions) = (visit.route, std::mem::take(&mut visit.decisions));
        let degraded_by = visit.limit.filter(|_| visit.degraded.is_some());
        let mut response = match forward.call(Admitted::new(visit, request)).await? {
            Forwarded::Answered(mut response) => {
                judge::tell(&worker.gateway, route, &decisions, response.headers_mut());
                response
            }
            Forwarded::Failed(fault, mut visit) => {
                visit.decisions = decisions;
                let failed = told.answer(&worker, &mut visit, fault);
                forward::rendered(failed, visit)
            }
        };
        if let Some(limit) = degraded_by {
            worker.gateway.rejecters.at(route).mark_degraded(limit, response.headers_mut());
        }
        response
    };
    if tells_state {
        response.headers_mut().insert(shared::STATE, shared::DEGRADED);
    }
    if is_stream {
        // A stream's connection says goodbye by itself, after the streams that are open.
        if last {
            connection.watch.close_gracefully();
        }
    } else if (last || connection.watch.closing()) && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        forward::close(response.headers_mut());
    }
    Ok(response)
}
