//! Whether a request is tried again, and where: never one that may have run and may not run twice, never a body that
//! was sent, and never more than the upstream's budget.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::fault::Fault;
use crate::config::{Reason, Retries};
use crate::request::body::{RequestBody, read_out};
use crate::upstream::{Answer, Choice, Lease, Retrying, Server, Trouble, Upstream};

/// What is read of an answer that nobody gets, so that its connection can be kept.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_millis(500);

/// Why a try came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    pub fault: Fault,
    /// An answer that may be retried instead of being passed on.
    pub status: Option<StatusCode>,
    /// `None` = it will not get better.
    reason: Option<Reason>,
    /// The request was sent, and may have run. The same server may be asked again if there is no other.
    was_sent: bool,
}

impl Failed {
    /// Neither time nor another server would help.
    pub fn for_good(fault: Fault) -> Failed {
        Failed { fault, status: None, reason: None, was_sent: false }
    }

    pub fn to_connect(fault: Fault) -> Failed {
        Failed { reason: Some(Reason::Connect), ..Failed::for_good(fault) }
    }

    /// The server was not asked, for want of room.
    pub fn to_enter() -> Failed {
        Failed::for_good(Fault::Full)
    }

    /// The request was handed back untouched, over two connections.
    pub fn untaken() -> Failed {
        Failed { reason: Some(Reason::Refused), ..Failed::for_good(Fault::Broken(Trouble::NotTaken)) }
    }

    /// The request was sent, and may have run.
    pub fn sent(fault: Fault) -> Failed {
        let reason = match fault {
            Fault::Broken(_) | Fault::BadAnswer => Some(Reason::BadGateway),
            Fault::ResponseTimeout => Some(Reason::Timeout),
            _ => None,
        };
        Failed { fault, status: None, reason, was_sent: true }
    }

    /// `None` for an answer that is always passed on.
    #[inline]
    pub fn answered(status: StatusCode) -> Option<Failed> {
        let reason = Reason::of_status(status.as_u16())?;
        let fault = Fault::Broken(Trouble::Status(status));
        Some(Failed { fault, status: Some(status), reason: Some(reason), was_sent: true })
    }
}

/// The tries of one request.
pub struct Tries<'a> {
    rules: &'a Retries,
    /// Tries after this one.
    left: u32,
    /// Places of servers.
    tried: SmallVec<[usize; 4]>,
    /// No try lasts longer, and none begins after.
    end: Option<Instant>,
    retrying: Option<Retrying>,
}

impl<'a> Tries<'a> {
    pub fn new(rules: &'a Retries) -> Tries<'a> {
        Tries {
            rules,
            left: rules.attempts,
            tried: SmallVec::new(),
            end: rules.total.map(|total| Instant::now() + total),
            retrying: None,
        }
    }

    /// When the try that begins now has to have its answer.
    pub fn due(&self) -> Option<Instant> {
        earlier(self.rules.per_try.map(|span| Instant::now() + span), self.end)
    }

    /// The same for a request that is connected. One with a body is as slow as its client, and has only the upstream's
    /// own timeout; so has one that would not be tried again for want of an answer.
    pub fn answer_due(
        &self,
        due: Option<Instant>,
        request: &Option<Request<RequestBody>>,
        timeout: Duration,
    ) -> Option<Instant> {
        if request.as_ref().is_none_or(|request| !request.body().is_empty()) {
            return None;
        }
        let is_retried = self.left > 0 && self.rules.when.has(Reason::Timeout) && may_run_twice(request);
        earlier(due, is_retried.then(|| Instant::now() + timeout))
    }

    /// Whether a connection that did not take the request, dead or leaving, is replaced by another one to the same
    /// server. It does not count as a try: nothing is asked twice.
    pub fn may_replace(&self) -> bool {
        self.rules.attempts > 0 && self.rules.when.has(Reason::Refused)
    }

    /// Where to try next, now that `server` failed; `None` when that is the end of it.
    pub fn next<'u>(
        &mut self,
        upstream: &'u Upstream,
        hash: u64,
        server: &'u Arc<Server>,
        failed: &Failed,
        request: &Option<Request<RequestBody>>,
    ) -> Option<&'u Arc<Server>> {
        if failed.fault == Fault::Full {
            self.tried.push(server.place);
            return self.other(upstream, hash);
        }
        let reason = failed.reason?;
        let is_over = self.end.is_some_and(|end| Instant::now() >= end);
        let is_there = if failed.was_sent { may_run_twice(request) } else { request.is_some() };
        if self.left == 0 || is_over || !is_there || !self.rules.when.has(reason) {
            return None;
        }
        self.tried.push(server.place);
        let mut next = self.other(upstream, hash);
        if next.is_none() && failed.was_sent {
            self.tried.clear();
            self.tried.push(server.place);
            next = Some(self.other(upstream, hash).unwrap_or(server));
        }
        let next = next?;
        self.retrying = None;
        self.retrying = Some(upstream.retry(reason)?);
        self.left -= 1;
        Some(next)
    }

    fn other<'u>(&self, upstream: &'u Upstream, hash: u64) -> Option<&'u Arc<Server>> {
        match upstream.choose(hash, &self.tried) {
            Choice::Server(server) => Some(server),
            Choice::Full | Choice::Exhausted | Choice::Down => None,
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
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
pub fn discard(answer: &mut Answer, lease: Lease) {
    let Some(mut body) = answer.take().map(Response::into_body) else { return };
    if body.is_end_stream() {
        return lease.finish();
    }
    if body.size_hint().lower() <= DISCARD_BYTES_MAX {
        tokio::task::spawn_local(async move {
            let read = tokio::time::timeout(DISCARD_TIME_MAX, read_out(&mut body, DISCARD_BYTES_MAX));
            if let Ok(Some(())) = read.await {
                lease.finish();
            }
        });
    }
}
