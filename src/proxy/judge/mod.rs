//! The judge service: identifies, locates and judges each request, waits if it must, and hands it to forwarding.
//! It responds to rejections itself.
//!
//! 1. `head` judges by the head alone. It checks the framing, finds the location, applies access rules, reads account
//!    and tier (from a token only if its signature holds), and rejects banned clients; none of this charges a limit.
//! 2. `head` ends with the limits. `caller` finds the key and the cost for each, and the chain judges those of
//!    `server.limits` and of the location as one transaction: if one rejects, none is charged. `shared_limits` asks the
//!    store about shared ones, in one call per group of keys.
//! 3. `queue_wait` waits for the request's turn without reading its body. Dropping the wait (the client hung up, the
//!    location's timeout passed) refunds the charges, and the requests behind move up. Concurrency comes last, so a
//!    waiting request holds no slot. A request that no location serves is rejected only here, so that it is charged.
//! 4. `rejection_response` is the only place where a rejection is final: it is counted, may be a strike, and is
//!    rendered or degraded.

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

/// The service of one connection, from raw requests to responses. It never fails.
pub fn judge_service(
    thread: Rc<WorkerThread>,
    connection: Rc<ClientConnection>,
) -> impl Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible, Future: 'static> + Clone
{
    let forward = forward::forward_service();
    tower::service_fn(move |request: Request<Incoming>| {
        let watch = connection.open_request_watch(&thread);
        serve_request(&thread.current_worker(), &connection, watch, request, forward.clone())
    })
}

/// Judges the head at once and everything else in the future. This is no `async fn`, because its arguments would be
/// copied once more.
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
    let is_websocket_connect = forward::rewrite_connect(&mut request);
    let authority = location::take_authority(request.uri_mut());
    let is_http10 = request.version() < Version::HTTP_11;
    let last = connection.count_request(worker);
    let client = worker.gateway.clients.find_client(connection.peer, request.headers());
    let mut state = RequestState::start_request(worker, connection, watch, client, Now::read_clock());
    state.is_websocket_connect = is_websocket_connect;
    let mut rejected = head::judge_head(worker, &request, authority.as_ref(), &mut state);
    state.request = Some(request);
    state.authority = authority;
    async move {
        let connection = state.connection.clone();
        if connection.watch.is_multiplexed() {
            state.watch.adopt_current_task().await;
        }
        if rejected.is_none() {
            rejected = match needs_wait(&state) {
                // Boxed: few requests wait, and inline the wait would triple the size of every request's future.
                true => Box::pin(wait_for_admission(&mut state)).await,
                false => admit_now(&mut state),
            };
        }
        decisions::log_dry_runs(&mut state);
        let marks_fallback = state.used_fallback && state.client.trusted_peer;
        let mut response = match rejected {
            Some(rejected) => {
                if let Some(request) = state.request.take() {
                    body::discard_body(&connection.watch, request);
                }
                forward::local_response(rejected, state)
            }
            None => forward_request(state, forward).await?,
        };
        if marks_fallback {
            response.headers_mut().insert(shared_limits::FALLBACK_HEADER, shared_limits::FALLBACK_VALUE);
        }
        if let Some(date) = wall_clock::date_after_step() {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        if is_http10 && response.body().size_hint().exact().is_none() {
            connection.watch.mark_close_delimited();
        }
        if connection.watch.is_multiplexed() {
            // HTTP/2 ends its connection with a GOAWAY, after the open streams.
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

fn needs_wait(state: &RequestState) -> bool {
    shared_limits::must_ask_store(state) || queue_wait::must_wait(state)
}

/// Waits for the store, for the queues and for slots; returns the response if the request is rejected.
async fn wait_for_admission(state: &mut RequestState) -> Option<Response<Bytes>> {
    let request = state.take_request();
    let worker = state.worker.clone();
    let mut rejected = None;
    if let Err(rejection) = shared_limits::ask_store(&request, state).await {
        rejected = rejection_response::reject_request(&worker, &request, state, &rejection);
    }
    if rejected.is_none()
        && let Err(rejection) = queue_wait::wait_and_take_slots(state).await
    {
        rejected = rejection_response::reject_request(&worker, &request, state, &rejection);
    }
    state.request = Some(request);
    rejected
}

/// As [`wait_for_admission`], for a request that need not wait.
fn admit_now(state: &mut RequestState) -> Option<Response<Bytes>> {
    let rejection = queue_wait::reject_unserved(state).err()?;
    let request = state.take_request();
    let worker = state.worker.clone();
    let rejected = rejection_response::reject_request(&worker, &request, state, &rejection);
    state.request = Some(request);
    rejected
}

/// Forwards an admitted request, and writes the limits' decisions into the response.
async fn forward_request<F>(
    state: Box<RequestState>,
    mut forward: F,
) -> Result<Response<ResponseBody>, Infallible>
where
    F: Service<Admitted, Response = ForwardOutcome, Error = Infallible>,
{
    let worker = state.worker.clone();
    let target_copy = rejection_response::TargetCopy::copy_target(&state);
    let route = state.route;
    let degraded_by = state.limit.filter(|_| state.degraded.is_some());
    let mut response = match forward.call(Admitted::new(state)).await? {
        ForwardOutcome::Responded(mut response) => {
            let chain_decisions = response.body_mut().take_decisions();
            decisions::write_decisions(&worker.gateway, route, &chain_decisions, response.headers_mut());
            response
        }
        ForwardOutcome::Faulted(fault, mut state) => {
            let failed =
                rejection_response::render_forward_fault(target_copy.as_deref(), &worker, &mut state, fault);
            forward::local_response(failed, state)
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

    /// A request's future is copied when it begins, over HTTP/2 several times, so the needs of few requests must not
    /// enlarge it.
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
