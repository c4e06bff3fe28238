//! The request pipeline without sockets: a request is judged, queued and settled as in production, and a scripted
//! upstream answers it.
//!
//! The clock is tokio's, so on a paused runtime a day of traffic passes in seconds. All counters are those of the
//! gateway that the pipeline is made with.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use crate::forward::{ResponseBody, scripted};
use crate::gateway::Gateway;
use crate::gateway::worker::{ClientConnection, Worker, WorkerThread};
use crate::judge::inbound::InboundRequest;
use crate::judge::quotas::told_step;
use crate::judge::request_state::Verdict;
use crate::service::{self, ResponseFuture};
use sluicegate_http::net::deadline::{ClientSpans, ListenerTerms, TICK};
use sluicegate_http::request::body::RequestBody;
use sluicegate_model::{LimitId, Scheme};

/// A worker that serves requests in process.
pub struct Pipeline {
    thread: WorkerThread,
    /// A location has a timeout, so deadlines are checked.
    has_timeouts: bool,
    next_sweep: Cell<Instant>,
    /// Requests since the last sweep.
    unswept: Cell<usize>,
    /// The number of them from which a sweep costs each of them little.
    sweep_after: Cell<usize>,
}

/// The fewest requests between sweeps that only forget.
const UNSWEPT_MIN: usize = 1024;

/// The connection that a request arrives on.
pub struct ArrivingConnection {
    /// `None` = a unix socket.
    pub peer: Option<IpAddr>,
    /// The scheme of the connection.
    pub scheme: Scheme,
    /// The terms of its listener; `None` = the connection has none.
    pub listener: Option<Arc<ListenerTerms>>,
}

/// A request with a judged head.
pub struct JudgedRequest {
    served: ResponseFuture,
    connection: Rc<ClientConnection>,
}

/// The answer of the scripted upstream to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedAnswer {
    /// The status of the response.
    pub status: StatusCode,
    /// Time until the upstream answers.
    pub hold: Duration,
}

/// The outcome of one request, in the words of its access-log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineOutcome {
    /// The verdict, a fault of the upstream included.
    pub verdict: Verdict,
    /// The status of the response, whichever phase made it.
    pub status: StatusCode,
    /// The limit that rejected the request or made it wait.
    pub limit: Option<LimitId>,
    /// The time after which a rejected request may come again, ns; `None` = no such time is known.
    pub retry_after_ns: Option<u64>,
    /// The time from its judgement to its turn; 0 = it did not wait.
    pub wait_ns: u64,
    /// The request was sent to an upstream.
    pub is_forwarded: bool,
    /// The gravest of the steps of quotas that its caller was told.
    pub step: Option<&'static str>,
}

impl Pipeline {
    /// A pipeline with one worker, which has the index 0.
    pub fn new(gateway: Arc<Gateway>) -> Pipeline {
        let has_timeouts = gateway.routes.iter().any(|route| route.timeout.is_some());
        let thread = WorkerThread::new(0, gateway);
        let next_sweep = Cell::new(Instant::now() + TICK);
        let (unswept, sweep_after) = (Cell::new(0), Cell::new(UNSWEPT_MIN));
        Pipeline { thread, has_timeouts, next_sweep, unswept, sweep_after }
    }

    /// The worker of its next request.
    pub fn worker(&self) -> Rc<Worker> {
        self.thread.current_worker()
    }

    /// Serves one request from `peer` as the only one of its connection; `on_forward` is called when it is sent to its
    /// upstream. Dropping the future is the client's hang-up.
    pub async fn serve(
        &self,
        request: Request<RequestBody>,
        peer: IpAddr,
        answer: ScriptedAnswer,
        on_forward: impl Fn() + Clone + 'static,
    ) -> PipelineOutcome {
        let respond = move || {
            on_forward();
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = answer.status;
            response
        };
        self.serve_from(request, peer, answer.hold, respond).await
    }

    /// [`Pipeline::serve`] with a response that the upstream decides on when the request is sent to it.
    pub async fn serve_from(
        &self,
        request: Request<RequestBody>,
        peer: IpAddr,
        hold: Duration,
        respond: impl Fn() -> Response<Bytes> + Clone + 'static,
    ) -> PipelineOutcome {
        let arrival = ArrivingConnection { peer: Some(peer), scheme: Scheme::Http, listener: None };
        self.begin(request, arrival, hold, respond).finish(self).await
    }

    /// Judges a request that arrives as the only one of its connection.
    pub fn begin(
        &self,
        request: Request<RequestBody>,
        arrival: ArrivingConnection,
        hold: Duration,
        respond: impl Fn() -> Response<Bytes> + Clone + 'static,
    ) -> JudgedRequest {
        let connection = self.connect(arrival);
        let request_watch = connection.open_request_watch(&self.thread);
        let worker = self.thread.current_worker();
        let upstream = tower::service_fn(move |admitted| {
            let respond = respond.clone();
            async move { Ok::<_, Infallible>(scripted::answer_admitted(admitted, hold, respond).await) }
        });
        let inbound = InboundRequest::new(request);
        let served = service::serve_request(
            &worker,
            &connection,
            request_watch,
            inbound,
            (upstream, scripted::answer_question),
        );
        JudgedRequest { served, connection }
    }

    /// Answers a call of the rate-limit service that arrives as the only one of its connection.
    pub fn begin_call(&self, call: Request<RequestBody>, arrival: ArrivingConnection) -> JudgedRequest {
        let connection = self.connect(arrival);
        let watch = connection.open_request_watch(&self.thread);
        let inbound = InboundRequest::new(call);
        let served = service::serve_call(&self.thread.current_worker(), &connection, watch, inbound);
        JudgedRequest { served, connection }
    }

    fn connect(&self, arrival: ArrivingConnection) -> Rc<ClientConnection> {
        self.forget_ended();
        if self.has_timeouts {
            // Its deadline is counted from the last sweep, which may be long ago.
            self.sweep_if_due();
        }
        let ArrivingConnection { peer, scheme, listener } = arrival;
        let watch = self.thread.watches.watch_connection();
        Rc::new(ClientConnection::new(&self.thread, None, watch, peer, scheme, listener))
    }

    /// Forgets the watches of requests that have ended, at a constant cost for each.
    fn forget_ended(&self) {
        let unswept = self.unswept.get() + 1;
        self.unswept.set(unswept);
        if unswept >= self.sweep_after.get() {
            self.sweep();
            self.sweep_after.set(self.thread.watches.open_count().max(UNSWEPT_MIN));
        }
    }

    /// Checks the deadlines at a moment of [`Pipeline::next_sweep`], once for all requests.
    fn sweep_if_due(&self) {
        let now = Instant::now();
        if now >= self.next_sweep.get() {
            self.sweep();
            let missed = now.duration_since(self.next_sweep.get()).as_nanos() / TICK.as_nanos();
            let ticks = u32::try_from(missed + 1).unwrap_or(u32::MAX);
            self.next_sweep.set(self.next_sweep.get() + TICK * ticks);
        }
    }

    fn sweep(&self) {
        self.unswept.set(0);
        self.thread.watches.sweep_deadlines(&NO_CLIENT_SPANS, |_| {});
    }
}

impl JudgedRequest {
    /// The outcome, if it does not depend on time any more.
    pub fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<PipelineOutcome> {
        self.connection.watch.set_waker(cx.waker());
        let Ok(response) = ready!(Pin::new(&mut self.served).poll(cx));
        Poll::Ready(end_response(response))
    }

    /// Runs the request to its end, and checks its deadlines as a worker does.
    pub async fn finish(mut self, pipeline: &Pipeline) -> PipelineOutcome {
        if !pipeline.has_timeouts {
            return std::future::poll_fn(|cx| self.poll_outcome(cx)).await;
        }
        let mut tick: Pin<&mut Option<Sleep>> = pin!(None);
        std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(outcome) = self.poll_outcome(cx) {
                    return Poll::Ready(outcome);
                }
                let due = || tokio::time::sleep_until(pipeline.next_sweep.get().max(Instant::now()));
                if tick.is_none() {
                    tick.set(Some(due()));
                }
                if tick.as_mut().as_pin_mut().is_some_and(|tick| tick.poll(cx).is_pending()) {
                    return Poll::Pending;
                }
                pipeline.sweep_if_due();
                tick.set(None);
            }
        })
        .await
    }
}

/// Takes the response as its client does, to its last byte.
fn end_response(mut response: Response<ResponseBody>) -> PipelineOutcome {
    while !response.body().is_end_stream()
        && let Some(Some(Ok(_))) = response.body_mut().frame().now_or_never()
    {}
    // Cannot fail: only a tunnel takes the state out of a response, and the scripted upstream opens none.
    let state = response.body().state().expect("a response without a tunnel holds its state");
    PipelineOutcome {
        verdict: state.outcome.verdict,
        status: response.status(),
        limit: state.judgement.limit,
        retry_after_ns: state.judgement.retry_after_ns,
        wait_ns: state.judgement.wait_ns,
        is_forwarded: state.outcome.upstream_ns.is_some(),
        step: told_step(response.headers()),
    }
}

/// A client in process never makes the gateway wait.
const NO_CLIENT_SPANS: ClientSpans = ClientSpans {
    header: u64::MAX,
    idle: u64::MAX,
    spare: u64::MAX,
    body: u64::MAX,
    write: u64::MAX,
    handshake: u64::MAX,
};

#[cfg(test)]
mod tests;
