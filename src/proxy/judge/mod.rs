//! The first door: identify → locate → judge → wait. What passes is forwarded; the rest is answered here.

mod ban_strike;
mod caller;
mod decisions;
mod head;
mod queue_wait;
mod rejection_response;
mod shared_limits;

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
use crate::proxy::forward::{Admitted, ForwardOutcome, ResponseBody};
use crate::proxy::request_state::RequestState;
use crate::proxy::worker::{ClientConnection, Worker, WorkerThread};
use crate::request::body;
use crate::request::body::RequestBody;
use crate::request::location;

pub use caller::{Caller, CallerIdentity, ChargeFault, Exemption, RequestHead};
pub use head::{strip_target, target_fault};
pub use rejection_response::translate_rejection;

/// The door of one connection: a tower service from raw requests to answers. It never fails.
pub fn judge_service(
    home: Rc<WorkerThread>,
    connection: Rc<ClientConnection>,
) -> impl Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible, Future: 'static> + Clone
{
    let forward = forward::forward_service();
    tower::service_fn(move |request: Request<Incoming>| {
        let watch = connection.open_request_watch(&home);
        serve_request(&home.current_worker(), &connection, watch, request, forward.clone())
    })
}

/// What the head decides alone is decided at once, the rest in the future. What that captures stays where it is: the
/// arguments of an `async fn` would be copied once more.
fn serve_request<F>(
    worker: &Rc<Worker>,
    connection: &Rc<ClientConnection>,
    watch: Rc<RequestWatch>,
    request: Request<Incoming>,
    forward: F,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + use<F>
where
    F: Service<Admitted, Response = ForwardOutcome, Error = Infallible>,
{
    let mut request = request.map(RequestBody::new);
    let connects = forward::rewrite_connect(&mut request);
    let authority = location::take_authority(request.uri_mut());
    let is_old = request.version() < Version::HTTP_11;
    let last = connection.count_request(worker);
    let client = worker.gateway.clients.find_client(connection.peer, request.headers());
    let mut visit = RequestState::start_request(worker, connection, watch, client, Now::read_clock());
    visit.is_websocket_connect = connects;
    let mut refused = head::judge_head(worker, &request, authority.as_ref(), &mut visit);
    visit.request = Some(request);
    visit.authority = authority;
    async move {
        let connection = visit.connection.clone();
        if connection.watch.is_multiplexed() {
            visit.watch.adopt_current_task().await;
        }
        if refused.is_none() {
            refused = match needs_wait(&visit) {
                // Boxed: what few requests wait for would make the future of each of them thrice as large.
                true => Box::pin(wait_for_admission(&mut visit)).await,
                false => admit_now(&mut visit),
            };
        }
        decisions::log_dry_runs(&mut visit);
        let tells_state = visit.used_fallback && visit.client.trusted_peer;
        let mut response = match refused {
            Some(refused) => {
                if let Some(request) = visit.request.take() {
                    body::discard_body(&connection.watch, request);
                }
                forward::local_response(refused, visit)
            }
            None => forward_request(visit, forward).await?,
        };
        if tells_state {
            response.headers_mut().insert(shared_limits::STATE_HEADER, shared_limits::STATE_DEGRADED);
        }
        if let Some(date) = wall_clock::date_after_step() {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        if is_old && response.body().size_hint().exact().is_none() {
            connection.watch.mark_close_delimited();
        }
        if connection.watch.is_multiplexed() {
            // A stream's connection says goodbye by itself, after the streams that are open.
            if last {
                connection.watch.close_gracefully();
            }
        } else if (last || connection.watch.is_closing())
            && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            forward::set_connection_close(response.headers_mut());
        }
        forward::clear_unknown_reason(&mut response);
        Ok(response)
    }
}

fn needs_wait(visit: &RequestState) -> bool {
    shared_limits::must_ask_store(visit) || queue_wait::must_wait(visit)
}

/// Waits for all that the request has to wait for; what it is answered if it is refused.
async fn wait_for_admission(visit: &mut RequestState) -> Option<Response<Bytes>> {
    let request = visit.take_request();
    let worker = visit.worker.clone();
    let mut refused = None;
    if let Err(rejection) = shared_limits::ask_store(&request, visit).await {
        refused = rejection_response::reject_request(&worker, &request, visit, &rejection);
    }
    if refused.is_none()
        && let Err(rejection) = queue_wait::wait_and_take_slots(visit).await
    {
        refused = rejection_response::reject_request(&worker, &request, visit, &rejection);
    }
    visit.request = Some(request);
    refused
}

/// As [`wait`], for a request that need not wait.
fn admit_now(visit: &mut RequestState) -> Option<Response<Bytes>> {
    let rejection = queue_wait::take_slots_now(visit).err()?;
    let request = visit.take_request();
    let worker = visit.worker.clone();
    let refused = rejection_response::reject_request(&worker, &request, visit, &rejection);
    visit.request = Some(request);
    refused
}

/// Has an admitted request forwarded, and says with the answer what the limits said.
async fn forward_request<F>(
    visit: Box<RequestState>,
    mut forward: F,
) -> Result<Response<ResponseBody>, Infallible>
where
    F: Service<Admitted, Response = ForwardOutcome, Error = Infallible>,
{
    let worker = visit.worker.clone();
    let told = rejection_response::TargetCopy::copy_target(&visit);
    let route = visit.route;
    let degraded_by = visit.limit.filter(|_| visit.degraded.is_some());
    let mut response = match forward.call(Admitted::new(visit)).await? {
        ForwardOutcome::Responded(mut response) => {
            let taken = response.body_mut().take_decisions();
            decisions::write_decisions(&worker.gateway, route, &taken, response.headers_mut());
            response
        }
        ForwardOutcome::Faulted(fault, mut visit) => {
            let failed =
                rejection_response::render_forward_fault(told.as_deref(), &worker, &mut visit, fault);
            forward::local_response(failed, visit)
        }
    };
    if let Some(limit) = degraded_by {
        worker.gateway.rejecters.for_location(route).mark_degraded(limit, response.headers_mut());
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
        fn future_size<S: Service<Request<Incoming>>>(
            _: impl Fn(Rc<WorkerThread>, Rc<ClientConnection>) -> S,
        ) -> usize {
            size_of::<S::Future>()
        }
        let size = future_size(judge_service);
        assert!(size <= 1792, "{size} bytes");
    }
}
