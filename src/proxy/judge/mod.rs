//! The first door: identify → locate → judge → wait. What passes is forwarded; the rest is answered here.

mod head;
mod limits;
mod rejecting;
mod shared_limits;
mod strike;
mod wait;

use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http::header::DATE;
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use tower::Service;

use crate::base::clock::Now;
use crate::base::wall_clock;
use crate::net::deadline::RequestWatch;
use crate::proxy::forward;
use crate::proxy::forward::{Admitted, AnswerBody, Forwarded};
use crate::proxy::request_state::Visit;
use crate::proxy::worker::{Connection, Home, Worker};
use crate::request::body;
use crate::request::body::RequestBody;
use crate::request::location;

pub use head::{rewritten, target_fault};
pub use limits::{AskFault, Caller, Exempt, Head, Named};
pub use rejecting::rejection;

/// The door of one connection: a tower service from raw requests to answers. It never fails.
pub fn door(
    home: Rc<Home>,
    connection: Rc<Connection>,
) -> impl Service<Request<Incoming>, Response = Response<AnswerBody>, Error = Infallible, Future: 'static> + Clone
{
    let forward = forward::door();
    tower::service_fn(move |request: Request<Incoming>| {
        let watch = connection.request_watch(&home);
        throttle(&home.worker(), &connection, watch, request, forward.clone())
    })
}

/// What the head decides alone is decided at once, the rest in the future. What that captures stays where it is: the
/// arguments of an `async fn` would be copied once more.
fn throttle<F>(
    worker: &Rc<Worker>,
    connection: &Rc<Connection>,
    watch: Rc<RequestWatch>,
    request: Request<Incoming>,
    forward: F,
) -> impl Future<Output = Result<Response<AnswerBody>, Infallible>> + use<F>
where
    F: Service<Admitted, Response = Forwarded, Error = Infallible>,
{
    let mut request = request.map(RequestBody::new);
    let connects = forward::settle_connect(&mut request);
    let authority = location::take_authority(request.uri_mut());
    let is_old = request.version() < Version::HTTP_11;
    let last = connection.count_request(worker);
    let client = worker.gateway.clients.address(connection.peer, request.headers());
    let mut visit = Visit::open(worker, connection, watch, client, Now::read());
    visit.connects = connects;
    let mut refused = head::judge(worker, &request, authority.as_ref(), &mut visit);
    visit.request = Some(request);
    visit.authority = authority;
    async move {
        let connection = visit.connection.clone();
        if connection.watch.is_multiplexed() {
            visit.watch.know_task().await;
        }
        if refused.is_none() {
            refused = match must_wait(&visit) {
                // Boxed: what few requests wait for would make the future of each of them thrice as large.
                true => Box::pin(wait(&mut visit)).await,
                false => enter(&mut visit),
            };
        }
        head::note_dry_runs(&mut visit);
        let tells_state = visit.fell_back && visit.client.trusted_peer;
        let mut response = match refused {
            Some(refused) => {
                if let Some(request) = visit.request.take() {
                    body::settle(&connection.watch, request);
                }
                forward::rendered(refused, visit)
            }
            None => pass_on(visit, forward).await?,
        };
        if tells_state {
            response.headers_mut().insert(shared_limits::STATE, shared_limits::DEGRADED);
        }
        if let Some(date) = wall_clock::date_after_step() {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        if is_old && response.body().size_hint().exact().is_none() {
            connection.watch.close_ends_answer();
        }
        if connection.watch.is_multiplexed() {
            // A stream's connection says goodbye by itself, after the streams that are open.
            if last {
                connection.watch.close_gracefully();
            }
        } else if (last || connection.watch.closing()) && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            forward::close(response.headers_mut());
        }
        forward::settle_reason(&mut response);
        Ok(response)
    }
}

fn must_wait(visit: &Visit) -> bool {
    shared_limits::must_ask(visit) || wait::must_wait(visit)
}

/// Waits for all that the request has to wait for; what it is answered if it is refused.
async fn wait(visit: &mut Visit) -> Option<Response<Bytes>> {
    let request = visit.request.take()?;
    let worker = visit.worker.clone();
    let mut refused = None;
    if let Err(rejection) = shared_limits::ask(&request, visit).await {
        refused = rejecting::answer(&worker, &request, visit, &rejection);
    }
    if refused.is_none()
        && let Err(rejection) = wait::wait_and_enter(visit).await
    {
        refused = rejecting::answer(&worker, &request, visit, &rejection);
    }
    visit.request = Some(request);
    refused
}

/// As [`wait`], for a request that need not wait.
fn enter(visit: &mut Visit) -> Option<Response<Bytes>> {
    let rejection = wait::enter(visit).err()?;
    let request = visit.request.take()?;
    let worker = visit.worker.clone();
    let refused = rejecting::answer(&worker, &request, visit, &rejection);
    visit.request = Some(request);
    refused
}

/// Has an admitted request forwarded, and says with the answer what the limits said.
async fn pass_on<F>(visit: Box<Visit>, mut forward: F) -> Result<Response<AnswerBody>, Infallible>
where
    F: Service<Admitted, Response = Forwarded, Error = Infallible>,
{
    let worker = visit.worker.clone();
    let told = rejecting::Told::of(&visit);
    let route = visit.route;
    let degraded_by = visit.limit.filter(|_| visit.degraded.is_some());
    let mut response = match forward.call(Admitted::new(visit)).await? {
        Forwarded::Answered(mut response) => {
            let decisions = response.body_mut().take_decisions();
            head::tell(&worker.gateway, route, &decisions, response.headers_mut());
            response
        }
        Forwarded::Failed(fault, mut visit) => {
            let failed = rejecting::failed(told.as_deref(), &worker, &mut visit, fault);
            forward::rendered(failed, visit)
        }
    };
    if let Some(limit) = degraded_by {
        worker.gateway.rejecters.at(route).mark_degraded(limit, response.headers_mut());
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request's future is copied when it begins, over HTTP/2 several times: what few requests need shall not be
    /// paid for by all of them.
    #[test]
    fn the_future_of_a_request_is_small() {
        fn future_size<S: Service<Request<Incoming>>>(_: impl Fn(Rc<Home>, Rc<Connection>) -> S) -> usize {
            size_of::<S::Future>()
        }
        let size = future_size(door);
        assert!(size <= 1792, "{size} bytes");
    }
}
