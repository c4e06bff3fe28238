//! One exchange with an upstream: choose a server, send, wait for the head of the answer; retry only what is safe.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use http::header::HOST;
use http::{Request, StatusCode};
use tokio::time::{Instant, Sleep};

use super::fault::Fault;
use super::retry::{Failed, Tries, discard, may_run_twice};
use super::{Outgoing, rewrite};
use crate::net::deadline::{Due, RequestWatch};
use crate::observe::metrics::Answered;
use crate::proxy::gateway::Route;
use crate::proxy::worker::Worker;
use crate::request::body::{BodyFault, RequestBody};
use crate::upstream::{Answer, Choice, ConnectFault, ExchangeError, Lease, Sent, Server, Upstream};

/// What an exchange needs beside the request.
pub struct Exchange<'a> {
    pub worker: &'a Worker,
    pub upstream: &'a Upstream,
    pub route: &'a Route,
    pub watch: &'a RequestWatch,
    pub outgoing: &'a Outgoing,
}

/// The request, as long as it may be sent again.
type Spare = Option<Request<RequestBody>>;

impl Exchange<'_> {
    /// Sends what stands in `request`, puts the head of the answer into `answer`, and returns its status and the
    /// connection its body comes on; `chosen` learns the index of each server as it is tried. The heads are handed on
    /// by their places, because they are large and there are many hands.
    ///
    /// # Errors
    /// What kept the answer away, and whose fault it is.
    pub async fn run(
        &self,
        request: &mut Spare,
        answer: &mut Answer,
        chosen: &mut Option<usize>,
    ) -> Result<(StatusCode, Lease), Fault> {
        let upstream = self.upstream;
        let mut tries = Tries::new(&upstream.retries);
        let mut server = match upstream.choose(self.outgoing.hash, &[]) {
            Choice::Server(server) => server,
            Choice::Full => return Err(Fault::Full),
            Choice::Down | Choice::Exhausted => return Err(Fault::Down),
        };
        loop {
            *chosen = Some(server.index);
            let outcome = self.attempt(server, request, answer, &tries).await;
            let went = outcome.as_ref().map(|(status, _)| *status).map_err(|failed| *failed);
            self.tell(server, went);
            let failed = match went {
                Ok(status) => Failed::answered(status),
                Err(failed) => Some(failed),
            };
            let again = failed.and_then(|failed| {
                let next = tries.next(upstream, self.outgoing.hash, server, &failed, request)?;
                Some((failed, next))
            });
            let Some((failed, next)) = again else { return outcome.map_err(|failed| failed.fault) };
            self.count_in_vain(server, &failed);
            if let Ok((_, lease)) = outcome {
                discard(answer, lease);
            }
            server = next;
        }
    }

    /// Lets the upstream know how its server behaved. What a server made of a request that its client had not
    /// finished may be the client's doing, and is not held against it.
    fn tell(&self, server: &Server, went: Result<StatusCode, Failed>) {
        match went {
            Ok(status) => self.upstream.answered(server, status, self.is_request_complete()),
            Err(failed) => {
                if let Some(trouble) = failed.fault.trouble()
                    && (trouble.is_of_connect() || self.is_request_complete())
                {
                    self.upstream.failed(server, trouble);
                }
            }
        }
    }

    /// Whether the client has sent its whole body.
    fn is_request_complete(&self) -> bool {
        self.outgoing.culprit.as_ref().is_none_or(|body| body.ended().is_some())
    }

    /// Counts a try that is followed by another; the last one is counted with its request.
    fn count_in_vain(&self, server: &Server, failed: &Failed) {
        let answered = failed.status.map(Answered::Status).or_else(|| failed.fault.answered());
        if let Some(answered) = answered {
            let metrics = &self.worker.gateway.metrics;
            metrics.upstream_answered(self.worker.id, self.upstream.index, server.place, answered);
        }
    }

    /// One try at `server`. If it may be sent again, `request` holds the request in the end.
    async fn attempt(
        &self,
        server: &Arc<Server>,
        request: &mut Spare,
        answer: &mut Answer,
        tries: &Tries<'_>,
    ) -> Result<(StatusCode, Lease), Failed> {
        let due = tries.due();
        let lease = self.connected(due, pin!(self.lease(server, false))).await?;
        if self.outgoing.own_host
            && let Some(request) = request.as_mut()
        {
            request.headers_mut().insert(HOST, server.authority.clone());
        }
        let lease = match self.send(lease, request, answer, tries, due).await? {
            Some(answered) => return Ok(answered),
            None => self.connected(due, pin!(self.lease(server, true))).await?,
        };
        self.send(lease, request, answer, tries, due).await?.ok_or(Failed::untaken())
    }

    async fn lease(&self, server: &Arc<Server>, is_fresh: bool) -> Result<Lease, ConnectFault> {
        let pools = &self.worker.pools;
        // The connection may stop speaking HTTP: it has to be a fresh one, of HTTP/1.
        if self.outgoing.wish.is_some() {
            pools.lease_alone(server).await
        } else if is_fresh {
            pools.lease_fresh(server).await
        } else {
            pools.lease(server).await
        }
    }

    async fn connected(
        &self,
        due: Option<Instant>,
        leasing: Pin<&mut impl Future<Output = Result<Lease, ConnectFault>>>,
    ) -> Result<Lease, Failed> {
        match until_due(self.watch, due, leasing).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(fault)) => {
                tracing::debug!(upstream = %self.upstream.name, %fault, "cannot connect");
                Err(match fault {
                    ConnectFault::Full => Failed::to_enter(),
                    ConnectFault::TimedOut => Failed::to_connect(Fault::ConnectTimeout),
                    ConnectFault::Failed(trouble, _) => Failed::to_connect(Fault::Unreachable(trouble)),
                })
            }
            Err(Fault::ResponseTimeout) => Err(Failed::to_connect(Fault::ConnectTimeout)),
            Err(fault) => Err(Failed::for_good(fault)),
        }
    }

    /// `None` when the connection was dead and the request is back in its place.
    async fn send(
        &self,
        mut lease: Lease,
        request: &mut Spare,
        answer: &mut Answer,
        tries: &Tries<'_>,
        due: Option<Instant>,
    ) -> Result<Option<(StatusCode, Lease)>, Failed> {
        let due = tries.answer_due(due, request, self.upstream.response_timeout);
        self.watch.await_upstream(self.upstream.response_span);
        let sent = until_due(self.watch, due, pin!(lease.send(request, answer))).await;
        self.watch.upstream_moved();
        match sent {
            Ok(Sent::Answered(status)) if self.accept(answer) => Ok(Some((status, lease))),
            Ok(Sent::Answered(_)) => Err(Failed::for_good(Fault::BadAnswer)),
            Ok(Sent::Unsent) if tries.may_replace() => Ok(None),
            Ok(Sent::Unsent) => Err(Failed::untaken()),
            Ok(Sent::Failed(error)) => {
                // A pooled connection that the server was closing just then: nothing was answered.
                let is_dead = lease.may_be_closing() && error.is_unanswered() && tries.may_replace();
                let fault = self.blame(&error);
                if is_dead && may_run_twice(request) { Ok(None) } else { Err(Failed::sent(fault)) }
            }
            Err(Fault::ResponseTimeout) => Err(Failed::sent(Fault::ResponseTimeout)),
            Err(fault) => Err(Failed::for_good(fault)),
        }
    }

    /// Makes the head of an answer the client's; false when it is the server's fault that it cannot be. What a server
    /// makes of a wish is judged later, and not held against it: by wishes clients could have servers ejected.
    fn accept(&self, answer: &mut Answer) -> bool {
        let Some(response) = answer else { return false };
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => self.outgoing.wish.is_some(),
            _ => {
                let may_upgrade = !self.watch.connection.is_multiplexed();
                rewrite::response(self.route, response, self.outgoing.wants_trailers, may_upgrade).is_ok()
            }
        }
    }

    fn blame(&self, error: &ExchangeError) -> Fault {
        tracing::debug!(%error, "an exchange failed");
        let culprit = self.outgoing.culprit.as_ref();
        match (error, culprit.and_then(|culprit| culprit.get())) {
            (_, Some(fault)) => Fault::Client(fault),
            (ExchangeError::Client(fault), None) => Fault::Client(*fault),
            (_, None) if error.is_garbled() => Fault::BadAnswer,
            // The server waited for the rest of the request as long as it does.
            (_, None) if culprit.is_some_and(|body| body.is_idle(self.watch)) => {
                Fault::Client(BodyFault::Stalled)
            }
            (_, None) => Fault::Broken(error.trouble()),
        }
    }
}

/// Runs `work` until it is done, until a deadline of the request passes, or until `due`.
async fn until_due<T>(
    watch: &RequestWatch,
    due: Option<Instant>,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Fault> {
    let mut timer: Pin<&mut Option<Sleep>> = pin!(due.map(tokio::time::sleep_until));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        if timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready()) {
            return Poll::Ready(Err(Fault::ResponseTimeout));
        }
        match watch.fired() {
            Some(Due::Upstream) => Poll::Ready(Err(Fault::ResponseTimeout)),
            Some(Due::Request) => Poll::Ready(Err(Fault::LocationTimeout)),
            // A body that waits for the upstream is not asked for the client's failings.
            None if watch.body_expired() => Poll::Ready(Err(Fault::Client(BodyFault::Stalled))),
            None => Poll::Pending,
        }
    })
    .await
}
