//! One exchange with an upstream: choose a server, send, wait for the head of the answer; retry only what is safe.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

use http::header::HOST;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::fault::Fault;
use crate::body::{BodyFault, Culprit, RequestBody};
use crate::deadline::{Due, RequestWatch};
use crate::upstream::{Choice, ConnectFault, Lease, Pools, Sent, Upstream};

/// Further servers tried after the first could not be connected to; nothing was sent, so it is always safe.
const CONNECT_RETRIES: usize = 1;

/// What an exchange needs beside the request.
pub struct Exchange<'a> {
    pub upstream: &'a Upstream,
    pub pools: &'a std::rc::Rc<Pools>,
    pub watch: &'a RequestWatch,
    /// Whose fault a failed request body was.
    pub culprit: Option<Culprit>,
    /// What the balancer hashes.
    pub hash: u64,
    /// The Host names the server: `host_header: upstream`, or none was left in the request.
    pub own_host: bool,
    /// The connection may stop speaking HTTP: it has to be a fresh one, of HTTP/1.
    pub alone: bool,
}

/// The head of an answer, and the connection its body comes on.
pub struct Exchanged {
    pub response: Response<Incoming>,
    pub lease: Lease,
}

impl Exchange<'_> {
    /// Sends what stands in `request` and returns the head of the answer; `chosen` learns the index of each
    /// server as it is tried. The request is handed on by its place, because it is large and there are many hands.
    ///
    /// # Errors
    /// What kept the answer away, and whose fault it is.
    pub async fn run(
        &self,
        request: &mut Option<Request<RequestBody>>,
        chosen: &mut Option<usize>,
    ) -> Result<Exchanged, Fault> {
        let lease = until_due(self.watch, pin!(self.connect(chosen))).await??;
        if self.own_host
            && let Some(request) = request.as_mut()
        {
            request.headers_mut().insert(HOST, lease.server().authority.clone());
        }
        self.watch.await_upstream(self.upstream.response_span);
        let answered = until_due(self.watch, pin!(self.send(lease, request))).await?;
        self.watch.upstream_moved();
        answered
    }

    async fn connect(&self, chosen: &mut Option<usize>) -> Result<Lease, Fault> {
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let mut last = None;
        while tried.len() <= CONNECT_RETRIES {
            let server = match self.upstream.choose(self.hash, &tried) {
                Choice::Server(server) => server,
                Choice::Full => return Err(Fault::Full),
                Choice::Exhausted => break,
            };
            *chosen = Some(server.index);
            let leased = if self.alone {
                self.pools.lease_alone(server).await
            } else {
                self.pools.lease(server).await
            };
            match leased {
                Ok(lease) => return Ok(lease),
                Err(fault) => {
                    tracing::debug!(server = %server.name, %fault, "cannot connect");
                    tried.push(server.index);
                    last = Some(fault);
                }
            }
        }
        Err(match last {
            Some(ConnectFault::TimedOut) => Fault::ConnectTimeout,
            Some(ConnectFault::Full) => Fault::Full,
            _ => Fault::Unreachable,
        })
    }

    async fn send(
        &self,
        mut lease: Lease,
        request: &mut Option<Request<RequestBody>>,
    ) -> Result<Exchanged, Fault> {
        let spare = if lease.may_be_closing() { request.as_ref().and_then(spare) } else { None };
        match lease.send(request).await {
            Sent::Answered(response) => return Ok(Exchanged { response, lease }),
            Sent::Unsent => {}
            // A pooled connection that the server was closing just then: nothing was answered.
            Sent::Failed(error) if spare.is_some() && closed_unanswered(&error) => *request = spare,
            Sent::Failed(error) => return Err(self.blame(&error)),
        }
        let server = lease.server().clone();
        drop(lease);
        let mut lease = self.pools.lease_fresh(&server).await.map_err(|fault| match fault {
            ConnectFault::TimedOut => Fault::ConnectTimeout,
            ConnectFault::Full => Fault::Full,
            ConnectFault::Unresolved(_) | ConnectFault::Failed(_) => Fault::Unreachable,
        })?;
        match lease.send(request).await {
            Sent::Answered(response) => Ok(Exchanged { response, lease }),
            Sent::Unsent => Err(Fault::Broken),
            Sent::Failed(error) => Err(self.blame(&error)),
        }
    }

    fn blame(&self, error: &hyper::Error) -> Fault {
        tracing::debug!(%error, "an exchange failed");
        match self.culprit.as_ref().and_then(|culprit| culprit.get()) {
            Some(fault) => Fault::Client(fault),
            None => Fault::Broken,
        }
    }
}

/// A copy of a request that may be sent twice: without a body, and by a method that only asks.
fn spare(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.body().is_empty()
        || !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
    {
        return None;
    }
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// Whether the connection ended before a single byte of an answer.
fn closed_unanswered(error: &hyper::Error) -> bool {
    !error.is_parse() && !error.is_user() && !error.is_timeout()
}

/// Runs `work` until it is done, or until a deadline of the request passes.
async fn until_due<T>(watch: &RequestWatch, mut work: Pin<&mut impl Future<Output = T>>) -> Result<T, Fault> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        match watch.fired() {
            Some(Due::Upstream) => Poll::Ready(Err(Fault::ResponseTimeout)),
            Some(Due::Request) => Poll::Ready(Err(Fault::LocationTimeout)),
            // The upstream's own task polls the body and is not woken for the client's failings.
            None if watch.body_expired() => Poll::Ready(Err(Fault::Client(BodyFault::Stalled))),
            None => Poll::Pending,
        }
    })
    .await
}
