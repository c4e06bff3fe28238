//! The request pipeline without sockets: a request is judged, queued and settled as in production, and a scripted
//! upstream answers it.
//!
//! The clock is tokio's, so on a paused runtime a day of traffic passes in seconds. All counters are those of the
//! gateway that the pipeline is made with.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::Service;

use crate::base::clock::Now;
use crate::config::{LimitId, Scheme};
use crate::limit::SlotOutcome;
use crate::net::deadline::{ClientSpans, TICK};
use crate::proxy::forward;
use crate::proxy::forward::{ForwardFault, ForwardOutcome};
use crate::proxy::gateway::{Action, Gateway};
use crate::proxy::inbound::InboundRequest;
use crate::proxy::judge::Admitted;
use crate::proxy::request_state::Verdict;
use crate::proxy::service;
use crate::proxy::worker::{ClientConnection, Worker, WorkerThread};
use crate::request::body::RequestBody;

/// A worker that serves requests in process.
pub struct Pipeline {
    thread: Rc<WorkerThread>,
}

/// The answer of the scripted upstream to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptedAnswer {
    pub status: StatusCode,
    /// Time until the upstream answers.
    pub hold: Duration,
}

/// How the pipeline served one request, in the words of its access-log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineOutcome {
    pub verdict: Verdict,
    pub status: StatusCode,
    /// The limit that rejected the request or made it wait.
    pub limit: Option<LimitId>,
    pub retry_after_ns: Option<u64>,
    /// From its judgement to its turn; 0 = it did not wait.
    pub wait_ns: u64,
}

impl Pipeline {
    pub fn new(gateway: Arc<Gateway>) -> Pipeline {
        Pipeline { thread: Rc::new(WorkerThread::new(0, gateway)) }
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
            let mut head = Response::new(());
            *head.status_mut() = answer.status;
            head
        };
        self.serve_from(request, peer, answer.hold, respond).await
    }

    /// As [`Pipeline::serve`], but the upstream decides about the head of its response when the request is sent to it.
    pub async fn serve_from(
        &self,
        request: Request<RequestBody>,
        peer: IpAddr,
        hold: Duration,
        respond: impl Fn() -> Response<()> + Clone + 'static,
    ) -> PipelineOutcome {
        let watch = self.thread.watches.watch_connection();
        let connection =
            Rc::new(ClientConnection::new(&self.thread, None, watch, Some(peer), Scheme::Http, None));
        let request_watch = connection.open_request_watch(&self.thread);
        let worker = self.thread.current_worker();
        let upstream = tower::service_fn(move |admitted| {
            let respond = respond.clone();
            async move { Ok::<_, Infallible>(answer_admitted(admitted, hold, respond).await) }
        });
        let served = service::serve_request(
            &worker,
            &connection,
            request_watch,
            InboundRequest::new(request),
            upstream,
        );
        let Ok(response) = self.run_with_deadlines(&connection, served).await;
        // Cannot fail: only a tunnel takes the state out of a response, and the scripted upstream opens none.
        let state = response.body().state().expect("a response without a tunnel holds its state");
        PipelineOutcome {
            verdict: state.verdict,
            status: response.status(),
            limit: state.limit,
            retry_after_ns: state.retry_after_ns,
            wait_ns: state.wait_ns,
        }
    }

    /// Runs a request to its end, and checks its deadlines as a worker does.
    async fn run_with_deadlines<F: Future>(&self, connection: &ClientConnection, served: F) -> F::Output {
        let mut served = pin!(served);
        let mut tick = pin!(tokio::time::sleep(TICK));
        std::future::poll_fn(|cx| {
            connection.watch.set_waker(cx.waker());
            loop {
                if let Poll::Ready(output) = served.as_mut().poll(cx) {
                    return Poll::Ready(output);
                }
                if tick.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.thread.watches.sweep_deadlines(&NO_CLIENT_SPANS, |_| {});
                tick.as_mut().reset(tokio::time::Instant::now() + TICK);
            }
        })
        .await
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

/// Answers in the upstream's place; a location that responds by itself does so.
async fn answer_admitted(
    admitted: Admitted,
    hold: Duration,
    respond: impl Fn() -> Response<()>,
) -> ForwardOutcome {
    if !admitted.targets_upstream() {
        let Ok(outcome) = forward::forward_service().call(admitted).await;
        return outcome;
    }
    let (_, mut state, route) = admitted.into_parts();
    if let Some(permit) = &mut state.chain_permit {
        permit.keep_charges();
    }
    let head = respond();
    let sent = Now::read_clock();
    let mut hold = pin!(tokio::time::sleep(hold));
    let is_answered = std::future::poll_fn(|cx| match hold.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending if state.watch.fired_deadline().is_some() => Poll::Ready(false),
        Poll::Pending => Poll::Pending,
    });
    if !is_answered.await {
        return ForwardOutcome::Faulted(ForwardFault::LocationTimeout, state);
    }
    if let Some(permit) = state.chain_permit.as_ref().filter(|_| state.degraded.is_none()) {
        let now = Now::read_clock();
        permit.report_outcome(SlotOutcome::Answered(now.ns_since(sent)), now);
    }
    if let (Some(key), Action::Upstream(upstream)) =
        (state.stop_key(), &state.worker.gateway.routes[route.0].action)
    {
        let unix_s = || state.worker.wall_clock.unix_ms(Now::read_clock()) / 1_000;
        let stop = upstream.obey_response(key, sent, (head.status(), head.headers()), unix_s);
        if let Some(stop) = stop {
            state.worker.gateway.tell_stop(upstream, stop);
        }
    }
    state.read_final_status(head.status());
    let response = head.map(|()| Bytes::new());
    ForwardOutcome::Responded(forward::local_response(response, state))
}

#[cfg(test)]
mod tests;
