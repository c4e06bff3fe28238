//! One exchange with a server of an upstream: borrows a connection of this worker, sends the request, waits for
//! the head of the response, and retries if that is safe.
//!
//! A dead pooled connection is replaced without counting as an attempt.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use http::header::HOST;
use http::{Request, Response, StatusCode};
use tokio::time::{Instant, Sleep};

use super::fault::ForwardFault;
use super::retry::{AttemptFault, NextTry, RetryState, TryServer, discard_response, may_run_twice};
use super::{OutgoingRequest, rewrite};
use crate::gateway::worker::{ClientConnection, Worker};
use crate::reject::header_edits::CompiledEdits;
use sluicegate_admission::settlement::ResponseReading;
use sluicegate_base::clock::Now;
use sluicegate_http::net::deadline::{GatewayDeadline, RequestWatch};
use sluicegate_http::request::body::{BodyFault, RequestBody};
use sluicegate_http::upstream::{
    ConnectFault, ExchangeFault, PooledConnection, Pools, ResponseSlot, SendOutcome, Server, ServerBody,
    ServerInFlight, Upstream,
};
use sluicegate_limit::table::CounterKey;
use sluicegate_observe::metrics::UpstreamOutcome;

/// The context of an exchange, beside its request.
pub(super) struct Exchange<'a> {
    pub worker: &'a Worker,
    /// The pools of the worker, or of a client that is announced to servers.
    pub pools: &'a Rc<Pools>,
    pub upstream: &'a Arc<Upstream>,
    pub response_edits: &'a CompiledEdits,
    /// The client that may hang up; `None` = the gateway itself asks.
    pub connection: Option<&'a ClientConnection>,
    pub watch: &'a RequestWatch,
    pub outgoing: &'a OutgoingRequest,
    /// `None`: no limit charges by the response.
    pub reading: Option<&'a ResponseReading>,
    /// The key that pauses with the request; `None` if its upstream never pushes back.
    pub pause_key: Option<&'a CounterKey>,
}

/// The request, while it may be sent again.
type RetryableRequest = Option<Request<RequestBody>>;

/// The outcome of sending a request on one connection.
enum SentRequest {
    Responded(StatusCode, PooledConnection),
    /// The connection was dead, so the request can be sent again from the same place.
    NotTaken(ServerInFlight),
}

/// The start of an attempt with a watched response.
struct AttemptStart {
    /// A server may have seen the request before.
    reached_before: bool,
    at: Now,
}

impl Exchange<'_> {
    /// Sends `request` to the `first` server and perhaps to others, stores the head of the response in `slot`, and
    /// returns its status with the connection of its body. `chosen` is set to the index of each server as it is tried,
    /// and `tries` counts them. Heads are passed by reference, because they are large and pass through many calls.
    ///
    /// # Errors
    /// The fault that prevented the response.
    pub(super) async fn run_attempts(
        &self,
        first: TryServer<'_>,
        request: &mut RetryableRequest,
        slot: &mut ResponseSlot,
        chosen: &mut Option<usize>,
        tries: &mut u32,
    ) -> Result<(StatusCode, PooledConnection), ForwardFault> {
        let upstream = self.upstream;
        let mut retries = RetryState::new(&upstream.retries);
        let TryServer { mut server, mut place } = first;
        loop {
            *chosen = Some(server.index);
            *tries += 1;
            let outcome = self.attempt_server(server, place, request, slot, &retries).await;
            let result = outcome.as_ref().map(|(status, _)| *status).map_err(|failed| *failed);
            self.report_to_upstream(server, result);
            let failed = match result {
                // Another try would only be refused as well.
                Ok(status) => AttemptFault::for_status(status).filter(|_| !upstream.pushes_back(status)),
                Err(failed) => Some(failed),
            };
            if failed.is_some_and(|failed| failed.fault == ForwardFault::Full)
                && self.outgoing.balance_hash == server.position.0 as u64 + 1
            {
                // It was free when it was chosen. Where `balance` hashes, nobody asks.
                self.outgoing.is_named_full.set(true);
            }
            let retry = failed.and_then(|failed| {
                let next =
                    retries.next_try(upstream, self.outgoing.balance_hash, server, &failed, request)?;
                Some((failed, next))
            });
            let Some((failed, next)) = retry else { return outcome.map_err(|failed| failed.fault) };
            let next = match next {
                NextTry::At(next) => next,
                NextTry::Wait => Box::pin(self.wait_for_retry(&retries, request, failed.fault)).await?,
            };
            self.count_retried(server, &failed);
            if let Ok((_, pooled)) = outcome {
                discard_response(slot, pooled);
            }
            TryServer { server, place } = next;
        }
    }

    /// Reports the result to the upstream's health accounting. Only faults to connect count while the client is still
    /// sending the request, because the client may have caused all others.
    fn report_to_upstream(&self, server: &Server, result: Result<StatusCode, AttemptFault>) {
        match result {
            Ok(status) => self.upstream.record_response(server, status, self.is_request_complete()),
            Err(failed) => {
                if let Some(server_fault) = failed.fault.server_fault()
                    && (server_fault.is_connect_fault() || self.is_request_complete())
                {
                    self.upstream.record_fault(server, server_fault);
                }
            }
        }
    }

    /// True if the client has sent its whole body.
    fn is_request_complete(&self) -> bool {
        self.outgoing.body_outcome.as_ref().is_none_or(|body| body.ended_at().is_some())
    }

    /// Counts an attempt that is followed by another; the last attempt is counted with its request.
    fn count_retried(&self, server: &Server, failed: &AttemptFault) {
        let outcome = failed.status.map(UpstreamOutcome::Status).or_else(|| failed.fault.metric_outcome());
        let metrics = &self.worker.gateway.metrics;
        for outcome in outcome.into_iter().chain(failed.status.map(UpstreamOutcome::Retried)) {
            metrics.count_upstream_outcome(self.worker.id, self.upstream.id, server.position, outcome);
        }
    }

    /// One attempt at `server`, from its `place` if it has one already. Afterwards `request` is `Some` if it may be
    /// sent again.
    async fn attempt_server(
        &self,
        server: &Arc<Server>,
        place: Option<ServerInFlight>,
        request: &mut RetryableRequest,
        slot: &mut ResponseSlot,
        retries: &RetryState<'_>,
    ) -> Result<(StatusCode, PooledConnection), AttemptFault> {
        let place = place
            .or_else(|| server.begin_request())
            .ok_or(AttemptFault::not_retryable(ForwardFault::Full))?;
        let due = retries.attempt_deadline();
        let pooled = match self.borrow_idle(place) {
            Ok(pooled) => pooled,
            Err(place) => self.await_connection(due, pin!(self.borrow_connection(place, false))).await?,
        };
        if self.outgoing.is_host_of_server
            && let Some(request) = request.as_mut()
        {
            request.headers_mut().insert(HOST, server.authority.clone());
        }
        let place = match self.send_request(pooled, request, slot, retries, due).await? {
            SentRequest::Responded(status, pooled) => return Ok((status, pooled)),
            SentRequest::NotTaken(place) => place,
        };
        let pooled = self.await_connection(due, pin!(self.borrow_connection(place, true))).await?;
        match self.send_request(pooled, request, slot, retries, due).await? {
            SentRequest::Responded(status, pooled) => Ok((status, pooled)),
            SentRequest::NotTaken(_) => Err(AttemptFault::not_taken()),
        }
    }

    /// An idle connection, unless the request needs one of its own.
    #[inline]
    fn borrow_idle(&self, place: ServerInFlight) -> Result<PooledConnection, ServerInFlight> {
        if self.outgoing.upgrade.is_some() { Err(place) } else { self.pools.borrow_idle(place) }
    }

    async fn borrow_connection(
        &self,
        place: ServerInFlight,
        is_fresh: bool,
    ) -> Result<PooledConnection, ConnectFault> {
        let pools = self.pools;
        // An upgrade ends HTTP on its connection, so it needs a fresh one of HTTP/1.
        if self.outgoing.upgrade.is_some() {
            pools.borrow_exclusive(place).await
        } else if is_fresh {
            pools.borrow_fresh(place).await
        } else {
            pools.borrow_connection(place).await
        }
    }

    async fn await_connection(
        &self,
        due: Option<Instant>,
        connecting: Pin<&mut impl Future<Output = Result<PooledConnection, ConnectFault>>>,
    ) -> Result<PooledConnection, AttemptFault> {
        match run_until_due(self.watch, due, connecting).await {
            Ok(Ok(pooled)) => Ok(pooled),
            Ok(Err(fault)) => {
                tracing::debug!(upstream = %self.upstream.name, %fault, "cannot connect");
                Err(match fault {
                    ConnectFault::Full => AttemptFault::not_retryable(ForwardFault::Full),
                    ConnectFault::TimedOut => AttemptFault::on_connect(ForwardFault::ConnectTimeout),
                    ConnectFault::Failed(server_fault, _) => {
                        AttemptFault::on_connect(ForwardFault::Unreachable(server_fault))
                    }
                })
            }
            Err(ForwardFault::ResponseTimeout) => Err(AttemptFault::on_connect(ForwardFault::ConnectTimeout)),
            Err(fault) => Err(AttemptFault::not_retryable(fault)),
        }
    }

    /// Sends the request on `pooled`. If the connection was dead, `request` is `Some` again.
    async fn send_request(
        &self,
        mut pooled: PooledConnection,
        request: &mut RetryableRequest,
        slot: &mut ResponseSlot,
        retries: &RetryState<'_>,
        due: Option<Instant>,
    ) -> Result<SentRequest, AttemptFault> {
        let due = retries.response_deadline(due, request, self.upstream.response_timeout);
        self.watch.set_upstream_deadline(self.upstream.response_ticks);
        let listens = self.reading.is_some() || self.pause_key.is_some();
        let start = listens.then(|| self.start_listening());
        let sending = pooled.send_request(request, &self.outgoing.added_fields, slot);
        let sent = run_until_due(self.watch, due, pin!(sending)).await;
        self.watch.clear_upstream_span();
        if let Some(start) = &start {
            let is_unsent = match &sent {
                Ok(SendOutcome::Unsent) => true,
                Ok(SendOutcome::Failed(error)) => error.is_unprocessed(),
                _ => false,
            };
            self.hear_response(start, is_unsent, slot.as_ref());
        }
        match sent {
            Ok(SendOutcome::Responded(status)) if self.rewrite_or_reject(slot) => {
                Ok(SentRequest::Responded(status, pooled))
            }
            Ok(SendOutcome::Responded(_)) => Err(AttemptFault::not_retryable(ForwardFault::BadResponse)),
            Ok(SendOutcome::Unsent) if retries.may_replace_connection() => {
                Ok(SentRequest::NotTaken(pooled.into_place()))
            }
            Ok(SendOutcome::Unsent) => Err(AttemptFault::not_taken()),
            Ok(SendOutcome::Failed(error)) => {
                // The server was just closing the pooled connection: no byte of a response came.
                let is_dead =
                    pooled.may_be_closing && error.has_no_response() && retries.may_replace_connection();
                let fault = self.classify_fault(&error);
                if is_dead && may_run_twice(request) {
                    Ok(SentRequest::NotTaken(pooled.into_place()))
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

    /// A charge or the pace of the upstream depends on the response.
    #[cold]
    fn start_listening(&self) -> AttemptStart {
        let reached_before = self.reading.is_some_and(ResponseReading::begin_attempt);
        AttemptStart { reached_before, at: Now::read_clock() }
    }

    /// Reads the head as the server sent it, and pauses the requests behind this one if the response asks for it.
    #[cold]
    fn hear_response(&self, start: &AttemptStart, is_unsent: bool, response: Option<&Response<ServerBody>>) {
        if let Some(reading) = self.reading {
            match response {
                Some(response) => reading.read_head(response.headers()),
                None if is_unsent => reading.cancel_attempt(start.reached_before),
                None => {}
            }
        }
        if let (Some(key), Some(response)) = (self.pause_key, response) {
            let head = (response.status(), response.headers());
            self.worker.hear_pushback(self.upstream, key, start.at, head);
        }
    }

    /// Rewrites the head of a response for the client; false if the server sent a head that cannot be passed on. A
    /// wrong response to an upgrade is judged later and does not count against the server, or clients could get
    /// servers ejected.
    fn rewrite_or_reject(&self, slot: &mut ResponseSlot) -> bool {
        // Cannot fail: a server that responded has put the head of its response there.
        let response = slot.as_mut().expect("a response has a head");
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => self.outgoing.upgrade.is_some(),
            _ => {
                let may_upgrade = !self.watch.connection.is_multiplexed();
                let OutgoingRequest { response_values, wants_trailers, .. } = self.outgoing;
                let edits = (self.response_edits, response_values);
                rewrite::rewrite_response(edits, response, *wants_trailers, may_upgrade).is_ok()
            }
        }
    }

    fn classify_fault(&self, error: &ExchangeFault) -> ForwardFault {
        tracing::debug!(%error, "an exchange failed");
        let body_outcome = self.outgoing.body_outcome.as_ref();
        match (error, body_outcome.and_then(|body_outcome| body_outcome.client_fault())) {
            (_, Some(fault)) => ForwardFault::Client(fault),
            (ExchangeFault::Client(fault), None) => ForwardFault::Client(*fault),
            (_, None) if error.is_malformed() => ForwardFault::BadResponse,
            // The server gave up waiting for the rest of the request.
            (_, None) if body_outcome.is_some_and(|body| body.is_idle(self.watch)) => {
                ForwardFault::Client(BodyFault::Stalled)
            }
            (_, None) => ForwardFault::Broken(error.server_fault()),
        }
    }
}

/// Runs `work` until it is done, a deadline of the request passes, or `due` is reached.
pub(super) async fn run_until_due<T>(
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
            // A body that waits for the upstream is not polled, so its deadline is checked here.
            None if watch.body_expired() => Poll::Ready(Err(ForwardFault::Client(BodyFault::Stalled))),
            None => Poll::Pending,
        }
    })
    .await
}
