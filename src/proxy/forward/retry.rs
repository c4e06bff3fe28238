//! Whether a request is tried again, and where: never one that may have run and may not run twice, never a body that
//! was sent, and never more than the upstream's budget.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::fault::ForwardFault;
use crate::config::ServerId;
use crate::config::{RetryConfig, RetryReason};
use crate::request::body::{RequestBody, read_and_discard};
use crate::upstream::{Lease, ResponseSlot, RetryPermit, Server, ServerChoice, ServerFault, Upstream};

/// What is read of an answer that nobody gets, so that its connection can be kept.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_millis(500);

/// Why a try came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFault {
    pub fault: ForwardFault,
    /// An answer that may be retried instead of being passed on.
    pub status: Option<StatusCode>,
    /// `None` = it will not get better.
    reason: Option<RetryReason>,
    /// The request was sent, and may have run. The same server may be asked again if there is no other.
    was_sent: bool,
}

impl AttemptFault {
    /// Neither time nor another server would help.
    pub fn not_retryable(fault: ForwardFault) -> AttemptFault {
        AttemptFault { fault, status: None, reason: None, was_sent: false }
    }

    pub fn on_connect(fault: ForwardFault) -> AttemptFault {
        AttemptFault { reason: Some(RetryReason::Connect), ..AttemptFault::not_retryable(fault) }
    }

    /// The server was not asked, for want of room.
    pub fn server_full() -> AttemptFault {
        AttemptFault::not_retryable(ForwardFault::Full)
    }

    /// The request was handed back untouched, over two connections.
    pub fn not_taken() -> AttemptFault {
        AttemptFault {
            reason: Some(RetryReason::Refused),
            ..AttemptFault::not_retryable(ForwardFault::Broken(ServerFault::RequestNotSent))
        }
    }

    /// The request was sent, and may have run.
    pub fn after_send(fault: ForwardFault) -> AttemptFault {
        let reason = match fault {
            ForwardFault::Broken(_) | ForwardFault::BadResponse => Some(RetryReason::BadGateway),
            ForwardFault::ResponseTimeout => Some(RetryReason::Timeout),
            _ => None,
        };
        AttemptFault { fault, status: None, reason, was_sent: true }
    }

    /// `None` for an answer that is always passed on.
    #[inline]
    pub fn for_status(status: StatusCode) -> Option<AttemptFault> {
        let reason = RetryReason::from_status(status.as_u16())?;
        let fault = ForwardFault::Broken(ServerFault::Status(status));
        Some(AttemptFault { fault, status: Some(status), reason: Some(reason), was_sent: true })
    }
}

/// The tries of one request.
pub struct RetryState<'a> {
    rules: &'a RetryConfig,
    /// Tries after this one.
    retries_left: u32,
    /// Places of servers.
    tried_servers: SmallVec<[ServerId; 4]>,
    /// No try lasts longer, and none begins after.
    deadline: Option<Instant>,
    retry_permit: Option<RetryPermit>,
}

impl<'a> RetryState<'a> {
    pub fn new(rules: &'a RetryConfig) -> RetryState<'a> {
        RetryState {
            rules,
            retries_left: rules.attempts,
            tried_servers: SmallVec::new(),
            deadline: rules.total.map(|total| Instant::now() + total),
            retry_permit: None,
        }
    }

    /// When the try that begins now has to have its answer.
    pub fn attempt_deadline(&self) -> Option<Instant> {
        earlier_of(self.rules.per_try.map(|span| Instant::now() + span), self.deadline)
    }

    /// The same for a request that is connected. One with a body is as slow as its client, and has only the upstream's
    /// own timeout; so has one that would not be tried again for want of an answer.
    pub fn response_deadline(
        &self,
        due: Option<Instant>,
        request: &Option<Request<RequestBody>>,
        timeout: Duration,
    ) -> Option<Instant> {
        if request.as_ref().is_none_or(|request| !request.body().is_empty()) {
            return None;
        }
        let is_retried =
            self.retries_left > 0 && self.rules.when.contains(RetryReason::Timeout) && may_run_twice(request);
        earlier_of(due, is_retried.then(|| Instant::now() + timeout))
    }

    /// Whether a connection that did not take the request, dead or leaving, is replaced by another one to the same
    /// server. It does not count as a try: nothing is asked twice.
    pub fn may_replace_connection(&self) -> bool {
        self.rules.attempts > 0 && self.rules.when.contains(RetryReason::Refused)
    }

    /// Where to try next, now that `server` failed; `None` when that is the end of it.
    pub fn next_server<'u>(
        &mut self,
        upstream: &'u Upstream,
        hash: u64,
        server: &'u Arc<Server>,
        failed: &AttemptFault,
        request: &Option<Request<RequestBody>>,
    ) -> Option<&'u Arc<Server>> {
        if failed.fault == ForwardFault::Full {
            self.tried_servers.push(server.position);
            return self.other_server(upstream, hash);
        }
        let reason = failed.reason?;
        let is_over = self.deadline.is_some_and(|end| Instant::now() >= end);
        let is_there = if failed.was_sent { may_run_twice(request) } else { request.is_some() };
        if self.retries_left == 0 || is_over || !is_there || !self.rules.when.contains(reason) {
            return None;
        }
        self.tried_servers.push(server.position);
        let mut next = self.other_server(upstream, hash);
        if next.is_none() && failed.was_sent {
            self.tried_servers.clear();
            self.tried_servers.push(server.position);
            next = Some(self.other_server(upstream, hash).unwrap_or(server));
        }
        let next = next?;
        self.retry_permit = None;
        self.retry_permit = Some(upstream.try_retry(reason)?);
        self.retries_left -= 1;
        Some(next)
    }

    fn other_server<'u>(&self, upstream: &'u Upstream, hash: u64) -> Option<&'u Arc<Server>> {
        match upstream.choose_server(hash, &self.tried_servers) {
            ServerChoice::Server(server) => Some(server),
            ServerChoice::Full | ServerChoice::Exhausted | ServerChoice::Down => None,
        }
    }
}

fn earlier_of(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Still there without a body, and by a method that does the same when it is done twice (RFC 9110 §9.2.2).
pub fn may_run_twice(request: &Option<Request<RequestBody>>) -> bool {
    let Some(request) = request else { return false };
    let is_idempotent = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    );
    is_idempotent && request.body().is_empty()
}

/// Gives up an answer that is tried again elsewhere; its connection is kept if the rest of it is short.
pub fn discard_response(answer: &mut ResponseSlot, lease: Lease) {
    let Some(mut body) = answer.take().map(Response::into_body) else { return };
    if body.is_end_stream() {
        return lease.finish();
    }
    if body.size_hint().lower() <= DISCARD_BYTES_MAX {
        tokio::task::spawn_local(async move {
            let read = tokio::time::timeout(DISCARD_TIME_MAX, read_and_discard(&mut body, DISCARD_BYTES_MAX));
            if let Ok(Some(())) = read.await {
                lease.finish();
            }
        });
    }
}
