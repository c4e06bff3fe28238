//! The tower service of a client connection: each request is received, judged, perhaps waits, and is then forwarded or
//! rejected.
//!
//! [`crate::judge`] decides and yields the next phase of the request; this module runs the phases one after the
//! other and completes the response, whichever phase made it.

pub mod calls;
pub mod pipeline;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower::Service;

use crate::forward::{self, ForwardFault, ForwardOutcome, ResponseBody, question};
use crate::gateway::worker::{ClientConnection, Worker, WorkerThread};
use crate::judge::conclusion::{self, RequestTexts};
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::judge::{Admitted, AskService, NextPhase, Received, Rejected, limit_report};
use crate::reject::Fault;
use crate::service::calls::CallProtocol;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock;
use sluicegate_http::net::acme_challenges::AcmeChallenges;
use sluicegate_http::net::deadline::RequestWatch;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::{body, location};
use sluicegate_model::{LimitId, LocationId, Scheme};

/// The response header that tells trusted proxies that the `on_failure` fallback judged instead of the store.
const FALLBACK_HEADER: HeaderName = HeaderName::from_static("sluicegate-state");
const FALLBACK_VALUE: HeaderValue = HeaderValue::from_static("degraded");

/// The service of one connection, from raw requests to responses. It never fails.
pub fn connection_service(
    thread: Rc<WorkerThread>,
    connection: Rc<ClientConnection>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<ResponseBody>,
    Error = Infallible,
    Future = ResponseFuture,
> + Clone {
    let forward = forward::forward_service();
    let is_for_calls = connection.is_for_service();
    tower::service_fn(move |request: Request<Incoming>| {
        let watch = connection.open_request_watch(&thread);
        let inbound = InboundRequest::receive(request, &connection.watch);
        if is_for_calls {
            return serve_call(&thread.current_worker(), &connection, watch, inbound);
        }
        let worker = thread.current_worker();
        if let Some(acme) = &worker.gateway.acme
            && acme.is_open()
            && let Some(answer) = find_challenge(acme, &connection, &inbound)
        {
            return answer_challenge(&worker, &connection, watch, inbound, answer);
        }
        serve_request(&worker, &connection, watch, inbound, (forward.clone(), question::ask_service))
    })
}

/// The response to one request. It is small, because it is moved when a request begins, over HTTP/2 several times.
#[expect(clippy::large_enum_variant, reason = "a rejection under attack must not cost an allocation")]
pub enum ResponseFuture {
    /// Made by the judgement of the head; `None` once it is taken.
    Ready(Option<Response<ResponseBody>>),
    /// The response is not made yet: the request waits or is forwarded.
    Pending(Pin<Box<dyn Future<Output = Response<ResponseBody>>>>),
}

impl Future for ResponseFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Cannot fail: a future is not polled again after it is ready.
            ResponseFuture::Ready(response) => Poll::Ready(Ok(response.take().expect("one response"))),
            ResponseFuture::Pending(response) => response.as_mut().poll(cx).map(Ok),
        }
    }
}

pin_project! {
    /// The forwarding of an admitted request, and all that is left to do with its response. It is no `async fn`,
    /// because each of those that are nested copies the one inside when it begins.
    struct Forwarding<F> {
        #[pin]
        outcome: F,
        // `None` once there is a response.
        last_steps: Option<ForwardingSteps>,
    }
}

/// See [`Forwarding`].
struct ForwardingSteps {
    completion: Completion,
    worker: Rc<Worker>,
    route: Option<LocationId>,
    target_copy: Option<Box<TargetCopy>>,
    degraded_by: Option<LimitId>,
    marks_fallback: bool,
    /// The watch of an HTTP/2 stream, until it knows its task.
    stream_watch: Option<Rc<RequestWatch>>,
}

impl<F: Future<Output = Result<ForwardOutcome, Infallible>>> Future for Forwarding<F> {
    type Output = Response<ResponseBody>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response<ResponseBody>> {
        let this = self.project();
        if let Some(watch) = this.last_steps.as_mut().and_then(|steps| steps.stream_watch.take()) {
            watch.set_waker(cx.waker());
        }
        let Ok(outcome) = ready!(this.outcome.poll(cx));
        // Cannot fail: a future is not polled again after it is ready.
        let steps = this.last_steps.take().expect("one response");
        Poll::Ready(steps.finish_response(outcome))
    }
}

/// Judges the head at once; whatever remains to be done is in the future. `forward` is the service of
/// [`forward::forward_service`], and `ask` is [`question::ask_service`]; the pipeline without sockets puts its own in
/// these places.
#[inline]
pub fn serve_request<F>(
    worker: &Rc<Worker>,
    connection: &Rc<ClientConnection>,
    watch: Rc<RequestWatch>,
    mut inbound: Box<InboundRequest>,
    (forward, ask): (F, AskService),
) -> ResponseFuture
where
    F: Service<Admitted, Response = ForwardOutcome, Error = Infallible, Future: 'static> + 'static,
{
    // First of all: nothing may count, log or send a value that only the auth service may give.
    if let Some(copied) = &worker.gateway.headers.copied {
        copied.strip(inbound.request.headers_mut());
    }
    let completion = Completion::new(worker, connection, &inbound);
    let client = worker.gateway.clients.find_client(connection.peer, inbound.request.headers());
    let stream_watch = connection.watch.is_multiplexed().then(|| watch.clone());
    let mut state = RequestState::start_request(worker, connection, watch, client, Now::read_clock());
    state.read_head(&inbound);
    match (Received { inbound, state }).judge() {
        // Over HTTP/2 even a rejection is pending: its deadlines must first know the task of its stream.
        NextPhase::Reject(rejected) if stream_watch.is_none() => {
            ResponseFuture::Ready(Some(respond_rejected(rejected, completion)))
        }
        // The usual request: its future has no room for a wait.
        NextPhase::Admit(admitted) => {
            // Reserved first, so that the future is written in place and not copied into its box.
            let place = Box::new_uninit();
            let forwarding = forward_request(admitted, forward, completion, stream_watch);
            let forwarding = Box::write(place, forwarding);
            ResponseFuture::Pending(Box::into_pin(forwarding))
        }
        judged => ResponseFuture::Pending(Box::pin(async move {
            if let Some(watch) = &stream_watch {
                watch.adopt_current_task().await;
            }
            match judged.conclude(ask).await {
                Ok(admitted) => forward_request(admitted, forward, completion, None).await,
                Err(rejected) => respond_rejected(rejected, completion),
            }
        })),
    }
}

/// Serves one call of the rate-limit service.
#[cold]
pub fn serve_call(
    worker: &Rc<Worker>,
    connection: &Rc<ClientConnection>,
    watch: Rc<RequestWatch>,
    inbound: Box<InboundRequest>,
) -> ResponseFuture {
    let call = StartedCall::begin(worker, connection, watch, inbound);
    match CallProtocol::find(&call.inbound) {
        CallProtocol::Check => call.answer_by(calls::answer_check),
        CallProtocol::Auth => call.answer_by(calls::answer_auth),
        CallProtocol::Rls(kind) => {
            call.answer_by(move |inbound, state| calls::answer_rls(kind, inbound, state))
        }
    }
}

/// The answer to a challenge of an open order; only connections without TLS may ask for it.
#[cold]
fn find_challenge(
    acme: &AcmeChallenges,
    connection: &ClientConnection,
    inbound: &InboundRequest,
) -> Option<Bytes> {
    let is_read = matches!(*inbound.request.method(), Method::GET | Method::HEAD);
    let is_plain = connection.scheme == Scheme::Http;
    if is_read && is_plain { acme.find_token(inbound.request.uri().path()) } else { None }
}

/// Answers a challenge of an open order, which nothing judges and no metric counts.
#[cold]
fn answer_challenge(
    worker: &Rc<Worker>,
    connection: &Rc<ClientConnection>,
    watch: Rc<RequestWatch>,
    inbound: Box<InboundRequest>,
    answer: Bytes,
) -> ResponseFuture {
    let call = StartedCall::begin(worker, connection, watch, inbound);
    call.answer_by(async move |mut inbound, mut state| {
        state.outcome.verdict = Verdict::Acme;
        body::discard_body(&mut inbound.request);
        let mut response = Response::new(answer);
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        forward::local_response(response, state)
    })
}

struct StartedCall {
    inbound: Box<InboundRequest>,
    state: Box<RequestState>,
    /// `None` = it is the only request of its connection.
    stream_watch: Option<Rc<RequestWatch>>,
    completion: Completion,
}

impl StartedCall {
    fn begin(
        worker: &Rc<Worker>,
        connection: &Rc<ClientConnection>,
        watch: Rc<RequestWatch>,
        inbound: Box<InboundRequest>,
    ) -> StartedCall {
        let completion = Completion::new(worker, connection, &inbound);
        let client = worker.gateway.clients.find_client(connection.peer, inbound.request.headers());
        let stream_watch = connection.watch.is_multiplexed().then(|| watch.clone());
        let mut state = RequestState::start_request(worker, connection, watch, client, Now::read_clock());
        state.read_head(&inbound);
        StartedCall { inbound, state, stream_watch, completion }
    }

    /// Each protocol has a future of its own, so that a waiting call takes no more memory than its protocol needs.
    fn answer_by<F: Future<Output = Response<ResponseBody>>>(
        self,
        answer: impl FnOnce(Box<InboundRequest>, Box<RequestState>) -> F + 'static,
    ) -> ResponseFuture {
        let StartedCall { inbound, state, stream_watch, completion } = self;
        ResponseFuture::Pending(Box::pin(async move {
            if let Some(watch) = &stream_watch {
                watch.adopt_current_task().await;
            }
            let mut response = answer(inbound, state).await;
            completion.complete_response(&mut response);
            response
        }))
    }
}

#[inline]
fn respond_rejected(rejected: Rejected, completion: Completion) -> Response<ResponseBody> {
    let Rejected { response, mut inbound, mut state } = rejected;
    limit_report::log_decisions(&mut state);
    body::discard_body(&mut inbound.request);
    let marks_fallback = state.marks_fallback();
    // Settled here too, because a request that no location serves is charged.
    state.settle_by_final_status(response.status());
    let mut response = forward::local_response(response, state);
    if marks_fallback {
        response.headers_mut().insert(FALLBACK_HEADER, FALLBACK_VALUE);
    }
    completion.complete_response(&mut response);
    response
}

/// Begins to forward an admitted request.
#[inline]
fn forward_request<F>(
    mut admitted: Admitted,
    mut forward: F,
    completion: Completion,
    stream_watch: Option<Rc<RequestWatch>>,
) -> Forwarding<F::Future>
where
    F: Service<Admitted, Response = ForwardOutcome, Error = Infallible>,
{
    limit_report::log_decisions(admitted.state_mut());
    let target_copy = TargetCopy::copy_target(&admitted);
    let state = admitted.state();
    let last_steps = Some(ForwardingSteps {
        completion,
        worker: state.worker.clone(),
        route: state.route,
        target_copy,
        degraded_by: state.judgement.limit.filter(|_| state.judgement.degraded.is_some()),
        marks_fallback: state.marks_fallback(),
        stream_watch,
    });
    Forwarding { outcome: forward.call(admitted), last_steps }
}

impl ForwardingSteps {
    /// Writes the limits' decisions into the response, and renders one after a fault.
    fn finish_response(self, outcome: ForwardOutcome) -> Response<ResponseBody> {
        let ForwardingSteps { completion, worker, route, target_copy, .. } = self;
        let mut response = match outcome {
            ForwardOutcome::Responded(mut response) => {
                let decisions = response.body_mut().take_decisions();
                limit_report::write_decisions(&worker.gateway, route, &decisions, response.headers_mut());
                response
            }
            ForwardOutcome::Faulted(fault, mut state) => {
                let failed = render_forward_fault(target_copy.as_deref(), &mut state, fault);
                forward::local_response(failed, state)
            }
        };
        if let Some(limit) = self.degraded_by {
            worker.gateway.rejecters.for_location(route).mark_degraded(limit, response.headers_mut());
        }
        if self.marks_fallback {
            response.headers_mut().insert(FALLBACK_HEADER, FALLBACK_VALUE);
        }
        completion.complete_response(&mut response);
        response
    }
}

/// The remaining steps for every response, independent of its origin.
struct Completion {
    connection: Rc<ClientConnection>,
    is_http10: bool,
    is_head: bool,
    /// The request is the connection's last.
    is_last: bool,
}

impl Completion {
    #[inline]
    fn new(worker: &Worker, connection: &Rc<ClientConnection>, inbound: &InboundRequest) -> Completion {
        Completion {
            connection: connection.clone(),
            is_http10: inbound.request.version() < Version::HTTP_11,
            is_head: inbound.request.method() == Method::HEAD,
            is_last: connection.count_request(worker),
        }
    }

    #[inline]
    fn complete_response(self, response: &mut Response<ResponseBody>) {
        let watch = &self.connection.watch;
        if let Some(cors) = response.body_mut().take_cors() {
            cors.write_response_fields(response.headers_mut());
        }
        if let Some(answer) = response.body().state().and_then(RequestState::auth_answer).cloned() {
            answer.add_cookies(response.headers_mut());
        }
        if let Some(date) = wall_clock::date_after_step() {
            response.headers_mut().entry(DATE).or_insert(date);
        }
        if self.is_http10 && response.body().size_hint().exact().is_none() {
            watch.mark_close_delimited();
        }
        if watch.is_multiplexed() {
            forward::drop_unsent_body(self.is_head, response);
            // HTTP/2 ends its connection with a GOAWAY, after the open streams.
            if self.is_last {
                watch.close_gracefully();
            }
        } else if (self.is_last || watch.is_closing()) && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            hop_by_hop::set_connection_close(response.headers_mut());
        }
        forward::clear_unknown_reason(response);
    }
}

/// A copy of a request's target, for a rejection after the request was sent.
#[derive(Default)]
struct TargetCopy {
    uri: Uri,
    host: Option<HeaderValue>,
}

impl TargetCopy {
    /// Copies the target, if responses to faults contain it.
    fn copy_target(admitted: &Admitted) -> Option<Box<TargetCopy>> {
        let (state, inbound) = (admitted.state(), admitted.inbound());
        let gateway = &state.worker.gateway;
        if !gateway.rejecters.for_location(state.route).uses_target
            && !gateway.headers.response_edits.uses_target()
        {
            return None;
        }
        Some(Box::new(TargetCopy {
            uri: inbound.request.uri().clone(),
            host: location::named_host(inbound.request.headers(), inbound.authority.as_ref()),
        }))
    }
}

/// The response to an exchange that failed.
fn render_forward_fault(
    target: Option<&TargetCopy>,
    state: &mut RequestState,
    fault: ForwardFault,
) -> Response<Bytes> {
    state.outcome.error = fault.log_reason();
    let no_target = TargetCopy::default();
    let TargetCopy { uri, host } = target.unwrap_or(&no_target);
    let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let texts = RequestTexts {
        host: location::canonical_host(host).unwrap_or_default(),
        path: location::normalise_path(uri.path()).unwrap_or_default(),
        uri,
    };
    let mut response = conclusion::render_rejection(state, &texts, &Fault::from(fault).into());
    if let ForwardFault::Client(_) = fault {
        hop_by_hop::set_connection_close(response.headers_mut());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request's future is copied when it begins, over HTTP/2 several times, so the needs of few must not enlarge it.
    #[test]
    fn the_future_of_a_request_is_small() {
        let size = size_of::<ResponseFuture>();
        assert!(size <= 320, "{size} bytes");
    }
}
