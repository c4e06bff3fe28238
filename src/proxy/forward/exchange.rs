//! One exchange with an upstream: choose a server, send, wait for the head of the answer; retry only what is safe.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::header::HOST;
use http::{Request, StatusCode};
use tokio::time::{Instant, Sleep};

use super::fault::ForwardFault;
use super::retry::{AttemptFault, RetryState, discard_response, may_run_twice};
use super::{OutgoingRequest, rewrite};
use crate::net::deadline::{GatewayDeadline, RequestWatch};
use crate::observe::metrics::UpstreamOutcome;
use crate::proxy::gateway::Route;
use crate::proxy::worker::Worker;
use crate::request::body::{BodyFault, RequestBody};
use crate::upstream::{
    ConnectFault, ExchangeFault, Lease, ResponseSlot, SendOutcome, Server, ServerChoice, Upstream,
};

/// What an exchange needs beside the request.
pub struct Exchange<'a> {
    pub worker: &'a Worker,
    pub upstream: &'a Upstream,
    pub route: &'a Route,
    pub watch: &'a RequestWatch,
    pub outgoing: &'a OutgoingRequest,
}

/// The request, as long as it may be sent again.
type RetryableRequest = Option<Request<RequestBody>>;

impl Exchange<'_> {
    /// Sends what stands in `request`, puts the head of the answer into `answer`, and returns its status and the
    /// connection its body comes on; `chosen` learns the index of each server as it is tried. The heads are handed on
    /// by their places, because they are large and there are many hands.
    ///
    /// # Errors
    /// What kept the answer away, and whose fault it is.
    pub async fn run_attempts(
        &self,
        request: &mut RetryableRequest,
        answer: &mut ResponseSlot,
        chosen: &mut Option<usize>,
    ) -> Result<(StatusCode, Lease), ForwardFault> {
        let upstream = self.upstream;
        let mut tries = RetryState::new(&upstream.retries);
        let mut server = match upstream.choose_server(self.outgoing.balance_hash, &[]) {
            ServerChoice::Server(server) => server,
            ServerChoice::Full => return Err(ForwardFault::Full),
            ServerChoice::Down | ServerChoice::Exhausted => return Err(ForwardFault::Down),
        };
        loop {
            *chosen = Some(server.index);
            let outcome = self.attempt_server(server, request, answer, &tries).await;
            let went = outcome.as_ref().map(|(status, _)| *status).map_err(|failed| *failed);
            self.report_to_upstream(server, went);
            let failed = match went {
                Ok(status) => AttemptFault::for_status(status),
                Err(failed) => Some(failed),
            };
            let again = failed.and_then(|failed| {
                let next =
                    tries.next_server(upstream, self.outgoing.balance_hash, server, &failed, request)?;
                Some((failed, next))
            });
            let Some((failed, next)) = again else { return outcome.map_err(|failed| failed.fault) };
            self.count_retried(server, &failed);
            if let Ok((_, lease)) = outcome {
                discard_response(answer, lease);
            }
            server = next;
        }
    }

    /// Lets the upstream know how its server behaved. What a server made of a request that its client had not
    /// finished may be the client's doing, and is not held against it.
    fn report_to_upstream(&self, server: &Server, went: Result<StatusCode, AttemptFault>) {
        match went {
            Ok(status) => self.upstream.record_response(server, status, self.is_request_complete()),
            Err(failed) => {
                if let Some(trouble) = failed.fault.server_fault()
                    && (trouble.is_connect_fault() || self.is_request_complete())
                {
                    self.upstream.record_fault(server, trouble);
                }
            }
        }
    }

    /// Whether the client has sent its whole body.
    fn is_request_complete(&self) -> bool {
        self.outgoing.body_outcome.as_ref().is_none_or(|body| body.ended_at().is_some())
    }

    /// Counts a try that is followed by another; the last one is counted with its request.
    fn count_retried(&self, server: &Server, failed: &AttemptFault) {
        let answered = failed.status.map(UpstreamOutcome::Status).or_else(|| failed.fault.metric_outcome());
        if let Some(answered) = answered {
            let metrics = &self.worker.gateway.metrics;
            metrics.count_upstream_outcome(self.worker.id, self.upstream.index, server.position, answered);
        }
    }

    /// One try at `server`. If it may be sent again, `request` holds the request in the end.
    async fn attempt_server(
        &self,
        server: &Arc<Server>,
        request: &mut RetryableRequest,
        answer: &mut ResponseSlot,
        tries: &RetryState<'_>,
    ) -> Result<(StatusCode, Lease), AttemptFault> {
        let due = tries.attempt_deadline();
        let lease = self.await_lease(due, pin!(self.lease_connection(server, false))).await?;
        if self.outgoing.is_host_of_server
            && let Some(request) = request.as_mut()
        {
            request.headers_mut().insert(HOST, server.authority.clone());
        }
        let lease = match self.send_request(lease, request, answer, tries, due).await? {
            Some(answered) => return Ok(answered),
            None => self.await_lease(due, pin!(self.lease_connection(server, true))).await?,
        };
        self.send_request(lease, request, answer, tries, due).await?.ok_or(AttemptFault::not_taken())
    }

    async fn lease_connection(&self, server: &Arc<Server>, is_fresh: bool) -> Result<Lease, ConnectFault> {
        let pools = &self.worker.pools;
        // The connection may stop speaking HTTP: it has to be a fresh one, of HTTP/1.
        if self.outgoing.upgrade.is_some() {
            pools.lease_exclusive(server).await
        } else if is_fresh {
            pools.lease_fresh(server).await
        } else {
            pools.lease(server).await
        }
    }

    async fn await_lease(
        &self,
        due: Option<Instant>,
        leasing: Pin<&mut impl Future<Output = Result<Lease, ConnectFault>>>,
    ) -> Result<Lease, AttemptFault> {
        match run_until_due(self.watch, due, leasing).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(fault)) => {
                tracing::debug!(upstream = %self.upstream.name, %fault, "cannot connect");
                Err(match fault {
                    ConnectFault::Full => AttemptFault::server_full(),
                    ConnectFault::TimedOut => AttemptFault::on_connect(ForwardFault::ConnectTimeout),
                    ConnectFault::Failed(trouble, _) => {
                        AttemptFault::on_connect(ForwardFault::Unreachable(trouble))
                    }
                })
            }
            Err(ForwardFault::ResponseTimeout) => Err(AttemptFault::on_connect(ForwardFault::ConnectTimeout)),
            Err(fault) => Err(AttemptFault::not_retryable(fault)),
        }
    }

    /// `None` when the connection was dead and the request is back in its place.
    async fn send_request(
        &self,
        mut lease: Lease,
        request: &mut RetryableRequest,
        answer: &mut ResponseSlot,
        tries: &RetryState<'_>,
        due: Option<Instant>,
    ) -> Result<Option<(StatusCode, Lease)>, AttemptFault> {
        let due = tries.response_deadline(due, request, self.upstream.response_timeout);
        self.watch.await_upstream(self.upstream.response_ticks);
        let sent = run_until_due(self.watch, due, pin!(lease.send_request(request, answer))).await;
        self.watch.clear_upstream_span();
        match sent {
            Ok(SendOutcome::Responded(status)) if self.accept_response(answer) => Ok(Some((status, lease))),
            Ok(SendOutcome::Responded(_)) => Err(AttemptFault::not_retryable(ForwardFault::BadResponse)),
            Ok(SendOutcome::Unsent) if tries.may_replace_connection() => Ok(None),
            Ok(SendOutcome::Unsent) => Err(AttemptFault::not_taken()),
            Ok(SendOutcome::Failed(error)) => {
                // A pooled connection that the server was closing just then: nothing was answered.
                let is_dead =
                    lease.may_be_closing() && error.has_no_response() && tries.may_replace_connection();
                let fault = self.classify_fault(&error);
                if is_dead && may_run_twice(request) {
                    Ok(None)
                } else {
                    Err(AttemptFault::after_send(fault))
                }
            }
            Err(ForwardFault::ResponseTimeout) => {
                Err(AttemptFault::after_send(ForwardFault::ResponseTimeout))
            }
            Err(fault) => Err(AttemptFault::not_retryable(fault)),
        }
    }

    /// Makes the head of an answer the client's; false when it is the server's fault that it cannot be. What a server
    /// makes of a wish is judged later, and not held against it: by wishes clients could have servers ejected.
    fn accept_response(&self, answer: &mut ResponseSlot) -> bool {
        // Cannot fail: a server that responded has put the head of its response there.
        let response = answer.as_mut().expect("a response has a head");
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => self.outgoing.upgrade.is_some(),
            _ => {
                let may_upgrade = !self.watch.connection.is_multiplexed();
                rewrite::rewrite_response(self.route, response, self.outgoing.wants_trailers, may_upgrade)
                    .is_ok()
            }
        }
    }

    fn classify_fault(&self, error: &ExchangeFault) -> ForwardFault {
        tracing::debug!(%error, "an exchange failed");
        let culprit = self.outgoing.body_outcome.as_ref();
        match (error, culprit.and_then(|culprit| culprit.client_fault())) {
            (_, Some(fault)) => ForwardFault::Client(fault),
            (ExchangeFault::Client(fault), None) => ForwardFault::Client(*fault),
            (_, None) if error.is_malformed() => ForwardFault::BadResponse,
            // The server waited for the rest of the request as long as it does.
            (_, None) if culprit.is_some_and(|body| body.is_idle(self.watch)) => {
                ForwardFault::Client(BodyFault::Stalled)
            }
            (_, None) => ForwardFault::Broken(error.server_fault()),
        }
    }
}

/// Runs `work` until it is done, until a deadline of the request passes, or until `due`.
async fn run_until_due<T>(
    watch: &RequestWatch,
    due: Option<Instant>,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, ForwardFault> {
    let mut timer: Pin<&mut Option<Sleep>> = pin!(due.map(tokio::time::sleep_until));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        if timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready()) {
            return Poll::Ready(Err(ForwardFault::ResponseTimeout));
        }
        match watch.fired_deadline() {
            Some(GatewayDeadline::Upstream) => Poll::Ready(Err(ForwardFault::ResponseTimeout)),
            Some(GatewayDeadline::Request) => Poll::Ready(Err(ForwardFault::LocationTimeout)),
            // A body that waits for the upstream is not asked for the client's failings.
            None if watch.body_expired() => Poll::Ready(Err(ForwardFault::Client(BodyFault::Stalled))),
            None => Poll::Pending,
        }
    })
    .await
}
