//! Decides whether and where a request is retried: only if it was not sent, or if its method may run twice and it has
//! no body that is read from the client while it is sent, and only within the upstream's retry budget.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::fault::ForwardFault;
use sluicegate_http::request::body::{RequestBody, read_and_discard};
use sluicegate_http::upstream::{
    PooledConnection, ResponseSlot, RetryPermit, Server, ServerFault, ServerInFlight, ServerPlace, Upstream,
};
use sluicegate_model::{RetryConfig, RetryReason, ServerId};

/// Bytes and time spent on the rest of a discarded response, so that its connection can be kept.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_millis(500);

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttemptFault {
    pub fault: ForwardFault,
    /// The status of a response that may be retried instead of being passed on.
    pub status: Option<StatusCode>,
    /// `None` = a retry would not help.
    reason: Option<RetryReason>,
    /// The request was sent and may have run. The same server may be tried again if there is no other.
    was_sent: bool,
}

impl AttemptFault {
    /// A fault that neither time nor another server would mend.
    pub(super) fn not_retryable(fault: ForwardFault) -> AttemptFault {
        AttemptFault { fault, status: None, reason: None, was_sent: false }
    }

    pub(super) fn on_connect(fault: ForwardFault) -> AttemptFault {
        AttemptFault { reason: Some(RetryReason::Connect), ..AttemptFault::not_retryable(fault) }
    }

    /// Two connections in turn returned the request unsent.
    pub(super) fn not_taken() -> AttemptFault {
        AttemptFault {
            reason: Some(RetryReason::Refused),
            ..AttemptFault::not_retryable(ForwardFault::Broken(ServerFault::RequestNotSent))
        }
    }

    /// The request was sent, and may have run.
    pub(super) fn after_send(fault: ForwardFault) -> AttemptFault {
        let reason = match fault {
            ForwardFault::Broken(_) | ForwardFault::BadResponse => Some(RetryReason::BadGateway),
            ForwardFault::ResponseTimeout => Some(RetryReason::Timeout),
            _ => None,
        };
        AttemptFault { fault, status: None, reason, was_sent: true }
    }

    /// `None` for a response that is always passed on.
    pub(super) fn for_status(status: StatusCode) -> Option<AttemptFault> {
        let reason = RetryReason::from_status(status.as_u16())?;
        let fault = ForwardFault::Broken(ServerFault::Status(status));
        Some(AttemptFault { fault, status: Some(status), reason: Some(reason), was_sent: true })
    }
}

/// The attempts of one request.
pub(super) struct RetryState<'a> {
    rules: &'a RetryConfig,
    /// Attempts after the current one.
    retries_left: u32,
    /// Positions of servers in the upstream; a wait is not for them.
    pub(super) tried_servers: SmallVec<[ServerId; 4]>,
    /// No attempt begins later, and none lasts longer except a connected one with a body.
    deadline: Option<Instant>,
    retry_permit: Option<RetryPermit>,
}

impl<'a> RetryState<'a> {
    pub(super) fn new(rules: &'a RetryConfig) -> RetryState<'a> {
        RetryState {
            rules,
            retries_left: rules.attempts,
            tried_servers: SmallVec::new(),
            deadline: rules.total.map(|total| Instant::now() + total),
            retry_permit: None,
        }
    }

    /// The moment by which an attempt that begins now must have its response.
    pub(super) fn attempt_deadline(&self) -> Option<Instant> {
        earlier_of(self.rules.per_try.map(|span| Instant::now() + span), self.deadline)
    }

    /// The same for an attempt that is connected. A request with a body is as slow as its client, so only the
    /// upstream's own timeout applies to it.
    pub(super) fn response_deadline(
        &self,
        due: Option<Instant>,
        request: &Option<Request<RequestBody>>,
        timeout: Duration,
    ) -> Option<Instant> {
        if request.as_ref().is_none_or(|request| !request.body().is_at_hand()) {
            return None;
        }
        let is_retried =
            self.retries_left > 0 && self.rules.when.contains(RetryReason::Timeout) && may_run_twice(request);
        earlier_of(due, is_retried.then(|| Instant::now() + timeout))
    }

    /// True if a dead or closing connection that did not take the request is replaced by another one to the same
    /// server. That does not count as an attempt, because nothing is sent twice.
    pub(super) fn may_replace_connection(&self) -> bool {
        self.rules.attempts > 0 && self.rules.when.contains(RetryReason::Refused)
    }

    /// The next try after the one at `server` failed; `None` to give up.
    pub(super) fn next_try<'u>(
        &mut self,
        upstream: &'u Upstream,
        balance_hash: u64,
        server: &'u Arc<Server>,
        failed: &AttemptFault,
        request: &Option<Request<RequestBody>>,
    ) -> Option<NextTry<'u>> {
        if failed.fault == ForwardFault::Full {
            self.tried_servers.push(server.position);
            // This machine lacks descriptors or memory, or another request was faster: waiting is for neither.
            return self.other_server(upstream, balance_hash).filter(|next| matches!(next, NextTry::At(_)));
        }
        let reason = failed.reason?;
        let is_over = self.deadline.is_some_and(|end| Instant::now() >= end);
        let is_available = if failed.was_sent { may_run_twice(request) } else { request.is_some() };
        if self.retries_left == 0 || is_over || !is_available || !self.rules.when.contains(reason) {
            return None;
        }
        self.tried_servers.push(server.position);
        let mut next = self.other_server(upstream, balance_hash);
        if next.is_none() && failed.was_sent {
            self.tried_servers.clear();
            self.tried_servers.push(server.position);
            next = self.other_server(upstream, balance_hash);
            // The server that was just tried, once more; with a queue it may have given the place to a waiter.
            if next.is_none() && upstream.queue().is_none() {
                next = Some(NextTry::At(TryServer { server, place: None }));
            } else if next.is_none() {
                self.tried_servers.clear();
                next = self.other_server(upstream, balance_hash);
            }
        }
        // A request with a response, which still holds its place, does not wait for another one.
        let next = next.filter(|next| failed.status.is_none() || matches!(next, NextTry::At(_)))?;
        self.retry_permit = None;
        self.retry_permit = Some(upstream.try_retry(reason)?);
        self.retries_left -= 1;
        Some(next)
    }

    fn other_server<'u>(&self, upstream: &'u Upstream, balance_hash: u64) -> Option<NextTry<'u>> {
        NextTry::choose(upstream, balance_hash, &self.tried_servers).ok()
    }
}

fn earlier_of(first: Option<Instant>, second: Option<Instant>) -> Option<Instant> {
    first.into_iter().chain(second).min()
}

/// True if the request is still available with its body, if it has one, and has an idempotent method (RFC 9110,
/// section 9.2.2).
pub(super) fn may_run_twice(request: &Option<Request<RequestBody>>) -> bool {
    request.as_ref().is_some_and(|request| request.method().is_idempotent() && request.body().is_at_hand())
}

/// Discards a response before its request is retried; its connection is kept if the rest of the response is short.
pub(super) fn discard_response(answer: &mut ResponseSlot, pooled: PooledConnection) {
    let Some(mut body) = answer.take().map(Response::into_body) else { return };
    if body.is_end_stream() {
        return pooled.finish();
    }
    if body.size_hint().lower() <= DISCARD_BYTES_MAX {
        tokio::task::spawn_local(async move {
            let read = tokio::time::timeout(DISCARD_TIME_MAX, read_and_discard(&mut body, DISCARD_BYTES_MAX));
            if let Ok(Some(())) = read.await {
                pooled.finish();
            }
        });
    }
}

pub(super) struct TryServer<'u> {
    pub server: &'u Arc<Server>,
    /// `None` = the try takes a place itself, and fails if there is none.
    pub place: Option<ServerInFlight>,
}

/// The next step of a request.
pub(super) enum NextTry<'u> {
    At(TryServer<'u>),
    /// The request waits for a place.
    Wait,
}

impl<'u> TryServer<'u> {
    /// The try at the server of a place that the queue of the upstream gives.
    ///
    /// # Errors
    /// It gives none.
    pub(super) fn at_place(
        upstream: &'u Upstream,
        place: ServerPlace,
    ) -> Result<TryServer<'u>, ForwardFault> {
        let place = place?;
        Ok(TryServer { server: &upstream.servers[place.server().position.0], place: Some(place) })
    }
}

impl<'u> NextTry<'u> {
    /// The next try of a request with this `hash` at a server that is not in `tried`.
    ///
    /// # Errors
    /// No server is usable, or every one is full and the upstream has no queue.
    #[inline(always)]
    pub(super) fn choose(
        upstream: &'u Upstream,
        hash: u64,
        tried: &[ServerId],
    ) -> Result<NextTry<'u>, ForwardFault> {
        if upstream.queue().is_some() {
            return match TryServer::at_place(upstream, upstream.take_place(hash, tried)) {
                Err(ForwardFault::Full) => Ok(NextTry::Wait),
                next => next.map(NextTry::At),
            };
        }
        Ok(NextTry::At(TryServer { server: upstream.choose_server(hash, tried)?, place: None }))
    }
}
