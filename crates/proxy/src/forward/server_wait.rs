//! The wait for a place at a server, in the queue of its upstream.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use http::{Request, Version};
use http_body::Body;
use tokio::time::Instant;

use super::exchange::{Exchange, run_until_due};
use super::fault::ForwardFault;
use super::retry::{RetryState, TryServer};
use crate::gateway::worker::{ClientConnection, Worker};
use crate::judge::inbound::waiting_bytes;
use sluicegate_admission::chain::{Charge, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::upstream::{ServerPlace, ServerWaiter};
use sluicegate_model::{ServerId, UpstreamId};

/// Records a wait, whatever ends it.
struct WaitObserver<'a> {
    worker: &'a Worker,
    upstream: UpstreamId,
    since: Now,
}

impl Drop for WaitObserver<'_> {
    fn drop(&mut self) {
        let waited_ns = Now::read_clock().ns_since(self.since);
        self.worker.gateway.metrics.observe_upstream_wait(self.worker.id, self.upstream, waited_ns);
    }
}

impl<'a> Exchange<'a> {
    /// Waits in the queue of the upstream until a server that is not in `tried` has a place, at most until `due`. The
    /// body is not read meanwhile. If the client hangs up, the future never ends.
    ///
    /// # Errors
    /// The wait took too long, too many requests wait, or no server is usable any more.
    pub(super) async fn wait_for_server(
        &self,
        tried: &[ServerId],
        due: Option<Instant>,
        request: &Request<RequestBody>,
    ) -> Result<TryServer<'a>, ForwardFault> {
        let (upstream, since) = (self.upstream, Now::read_clock());
        let waiter = match upstream.join_queue(self.outgoing.balance_hash, tried, since) {
            Ok(waiter) => waiter,
            Err(place) => return TryServer::at_place(upstream, place),
        };
        let held_bytes = || self.count_held_bytes(request);
        let cap = WaitingRequest::new(&self.worker.gateway.load.waiting, &held_bytes);
        let Some(counted) = cap.take_place::<Charge>() else { return Err(ForwardFault::TooManyWaiting) };
        let observer = WaitObserver { worker: self.worker, upstream: upstream.id, since };
        let longest = upstream.queue().map(|queue| Instant::now() + queue.max_wait);
        let due = longest.into_iter().chain(due).min();
        let waited = run_until_due(self.watch, due, pin!(self.turn_or_hangup(&waiter))).await;
        drop((counted, observer));
        match waited {
            Ok(Some(place)) => TryServer::at_place(upstream, place),
            Ok(None) => {
                drop(waiter);
                // This ends the task at its next await; until then the request must have no response.
                self.watch.abort_now();
                std::future::pending().await
            }
            Err(ForwardFault::ResponseTimeout) => {
                waiter.time_out();
                Err(ForwardFault::QueueTimeout)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Waits for the server of a further try after `failed`, within the deadlines of the tries.
    pub(super) async fn wait_for_retry(
        &self,
        retries: &RetryState<'_>,
        request: &Option<Request<RequestBody>>,
        failed: ForwardFault,
    ) -> Result<TryServer<'a>, ForwardFault> {
        let Some(request) = request else { return Err(failed) };
        let due = retries.attempt_deadline();
        self.wait_for_server(&retries.tried_servers, due, request).await.map_err(|fault| match fault {
            ForwardFault::LocationTimeout => fault,
            // The failure of the try before says more.
            _ => failed,
        })
    }

    /// The waiter's turn; `None`: the client hung up.
    async fn turn_or_hangup(&self, waiter: &ServerWaiter) -> Option<ServerPlace> {
        let mut hangup: Pin<&mut Option<_>> = pin!(self.connection.map(ClientConnection::wait_for_hangup));
        poll_fn(|cx| {
            // First, so that a client that has left costs the server nothing.
            if hangup.as_mut().as_pin_mut().is_some_and(|hangup| hangup.poll(cx).is_ready()) {
                return Poll::Ready(None);
            }
            waiter.poll_turn(cx).map(Some)
        })
        .await
    }

    fn count_held_bytes(&self, request: &Request<RequestBody>) -> usize {
        let is_multiplexed = self.watch.connection.is_multiplexed();
        let version = if is_multiplexed { Version::HTTP_2 } else { Version::HTTP_11 };
        waiting_bytes(version, request.uri(), request.headers(), request.body().size_hint())
    }
}
