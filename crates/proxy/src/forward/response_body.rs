//! The body of a response: streamed from the upstream or rendered here, with the state of its request inside.
//!
//! Each piece is streamed as the client takes it. Where the location limits `bandwidth`, a piece waits for its turn in
//! the bucket of its key, and nothing is read from the upstream meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::fault::{LOCATION_TIMEOUT, ResponseBodyFault};
use crate::judge::request_state::{RequestState, Verdict, strike};
use crate::reject::Fault;
use sluicegate_admission::chain::{Decisions, Overrun};
use sluicegate_http::net::deadline::GatewayDeadline;
use sluicegate_http::request::cors::CorsAnswer;
use sluicegate_http::upstream::{PooledConnection, ServerBody, ServerFault};
use sluicegate_observe::metrics::AnswerOrigin;

/// A response body. Dropping it ends the request; dropping it before its end also closes the upstream connection.
pub struct ResponseBody {
    source: BodySource,
    /// `None` = it continues in a tunnel.
    state: Option<Box<RequestState>>,
}

/// The messages and the trailers of a gRPC answer that are still to be sent.
pub type GrpcFrames = Pin<Box<dyn Stream<Item = Frame<Bytes>>>>;

/// Maximum bytes that an HTTP/2 stream gets at a time: it takes a whole piece as soon as its client has room for one
/// byte, and would buffer the rest.
const PIECE_BYTES: usize = 16 * 1024;

enum BodySource {
    Rendered(Bytes),
    Grpc(GrpcFrames),
    /// The decisions that are still to be written into the head.
    Tunnel(Box<Decisions>),
    Upstream {
        incoming: ServerBody,
        /// Received, but not yet passed on; boxed, because few responses need it.
        pending: Option<Box<PendingFrame>>,
        /// `None` once the exchange is complete and the connection is back in its pool.
        pooled: Option<PooledConnection>,
        /// The connection may return to its pool.
        reuse: bool,
        /// Ticks that the upstream may take for the next piece.
        span: u64,
    },
}

/// A part of the body that is passed on later.
enum PendingFrame {
    Data(Bytes),
    Fault(ResponseBodyFault),
    /// Nothing more is passed on, because a limit is used up.
    Cut,
    /// A limit may be used up: the store is being asked, and the response goes on meanwhile.
    Asked,
}

/// A response that the gateway rendered itself.
#[inline]
pub fn local_response(mut response: Response<Bytes>, mut state: Box<RequestState>) -> Response<ResponseBody> {
    // A success would tell the client that its tunnel is open.
    if state.identity.is_websocket_connect && response.status().is_success() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    state.outcome.status = response.status();
    strike::record_response(&state);
    state.watch.mark_response_unread();
    response.map(|bytes| ResponseBody { source: BodySource::Rendered(bytes), state: Some(state) })
}

/// A gRPC answer that the gateway made itself.
pub fn grpc_response(response: Response<GrpcFrames>, mut state: Box<RequestState>) -> Response<ResponseBody> {
    state.outcome.status = response.status();
    state.watch.mark_response_unread();
    response.map(|frames| ResponseBody { source: BodySource::Grpc(frames), state: Some(state) })
}

/// The head of a response that a tunnel follows.
pub(super) fn switched_response(response: Response<()>, decisions: Decisions) -> Response<ResponseBody> {
    response.map(|()| ResponseBody { source: BodySource::Tunnel(Box::new(decisions)), state: None })
}

/// An upstream's response with a streamed body; `reuse` returns the connection to its pool at the end.
pub(super) fn streamed_response(
    response: Response<ServerBody>,
    pooled: PooledConnection,
    reuse: bool,
    span: u64,
    mut state: Box<RequestState>,
) -> Response<ResponseBody> {
    (state.outcome.status, state.outcome.responder) = (response.status(), Some(AnswerOrigin::Server));
    strike::record_response(&state);
    state.watch.mark_response_unread();
    state.settle_by_final_status(response.status());
    response.map(|incoming| {
        let pooled = if incoming.is_end_stream() {
            state.settle_complete();
            finish_pooled(pooled, reuse);
            None
        } else {
            Some(pooled)
        };
        let source = BodySource::Upstream { incoming, pending: None, pooled, reuse, span };
        ResponseBody { source, state: Some(state) }
    })
}

fn finish_pooled(pooled: PooledConnection, reuse: bool) {
    if reuse {
        pooled.finish();
    }
}

impl ResponseBody {
    /// The state of the request; `None` if it continues in a tunnel.
    pub fn state(&self) -> Option<&RequestState> {
        self.state.as_deref()
    }

    /// Drops the unsent body.
    pub fn clear(&mut self) {
        self.source = BodySource::Rendered(Bytes::new());
    }

    /// The answer of `cors`, to be written into the head.
    pub fn take_cors(&mut self) -> Option<CorsAnswer> {
        self.state.as_mut()?.response.cors.take()
    }

    /// The decisions of the chain, to be written into the head.
    pub fn take_decisions(&mut self) -> Decisions {
        match self {
            ResponseBody { state: Some(state), .. } => std::mem::take(&mut state.judgement.decisions),
            ResponseBody { source: BodySource::Tunnel(decisions), .. } => std::mem::take(decisions),
            ResponseBody { .. } => Decisions::new(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
        let ResponseBody { source, state: Some(state) } = self.get_mut() else { return Poll::Ready(None) };
        state.watch.clear_unread();
        match source {
            BodySource::Tunnel(_) => Poll::Ready(None),
            BodySource::Rendered(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Rendered(bytes) => {
                let data = std::mem::take(bytes);
                state.response.bytes_sent = data.len() as u64;
                state.settle_complete();
                state.watch.mark_response_unread();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            BodySource::Grpc(frames) => {
                let frame = ready!(frames.as_mut().poll_next(cx));
                let bytes = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
                state.response.bytes_sent += bytes as u64;
                state.watch.mark_response_unread();
                Poll::Ready(frame.map(Ok))
            }
            BodySource::Upstream { incoming, pending, pooled, reuse, span } => {
                let frame = match pending.take().map(|pending| *pending) {
                    Some(PendingFrame::Data(data)) => Some(Ok(Frame::data(data))),
                    Some(PendingFrame::Fault(fault)) => Some(Err(fault)),
                    Some(PendingFrame::Cut) => {
                        return postpone_fault(ResponseBodyFault::LimitUsedUp, pending, cx);
                    }
                    Some(PendingFrame::Asked) => {
                        let overrun = state.extend_reservations(cx.waker());
                        if let Overrun::UsedUp(_) = overrun {
                            return postpone_fault(ResponseBodyFault::LimitUsedUp, pending, cx);
                        }
                        *pending = (overrun == Overrun::Asked).then(|| Box::new(PendingFrame::Asked));
                        let frame = ready!(poll_next_frame(incoming, pooled, *reuse, *span, state, cx));
                        *pending = None;
                        match frame {
                            Some(Err(fault)) => return postpone_fault(fault, pending, cx),
                            frame => frame,
                        }
                    }
                    None => match ready!(poll_next_frame(incoming, pooled, *reuse, *span, state, cx)) {
                        Some(Err(fault)) => return postpone_fault(fault, pending, cx),
                        frame => frame,
                    },
                };
                let frame = if state.watch.connection.is_multiplexed() {
                    frame.map(|frame| frame.map(|frame| split_frame(frame, pending)))
                } else {
                    frame
                };
                match &frame {
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, Bytes::len);
                        state.response.bytes_sent += bytes as u64;
                        state.watch.mark_response_unread();
                        state.watch.connection.record_piece(bytes);
                        if state.response.reading.is_some() {
                            read_piece(state, frame, pending, incoming, cx);
                        }
                    }
                    Some(Err(fault)) => record_body_fault(state, fault),
                    None => state.settle_complete(),
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Rendered(bytes) => bytes.is_empty(),
            BodySource::Grpc(_) => false,
            BodySource::Tunnel(_) => true,
            BodySource::Upstream { incoming, pending, .. } => {
                pending.is_none() && paced_bytes(self.state.as_deref()) == 0 && incoming.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Rendered(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Tunnel(_) => SizeHint::with_exact(0),
            BodySource::Grpc(_) => SizeHint::new(),
            // hyper asks before it takes the first piece, while nothing is pending.
            BodySource::Upstream { incoming, .. } => {
                add_to_hint(incoming.size_hint(), paced_bytes(self.state.as_deref()))
            }
        }
    }
}

/// Postpones an error: hyper discards its write buffer on one, so let it flush first.
fn postpone_fault<T>(
    fault: ResponseBodyFault,
    pending: &mut Option<Box<PendingFrame>>,
    cx: &Context<'_>,
) -> Poll<T> {
    *pending = Some(Box::new(PendingFrame::Fault(fault)));
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Reads a piece that is passed on, for the limits that charge by the response.
fn read_piece(
    state: &mut RequestState,
    frame: &Frame<Bytes>,
    pending: &mut Option<Box<PendingFrame>>,
    incoming: &ServerBody,
    cx: &Context<'_>,
) {
    let is_last = pending.is_none() && paced_bytes(Some(state)) == 0 && incoming.is_end_stream();
    match state.read_frame(frame, is_last, cx.waker()) {
        Overrun::UsedUp(_) => *pending = Some(Box::new(PendingFrame::Cut)),
        Overrun::Asked if pending.is_none() => *pending = Some(Box::new(PendingFrame::Asked)),
        Overrun::Asked | Overrun::None => {}
    }
}

/// Splits off everything beyond one piece, for later.
fn split_frame(frame: Frame<Bytes>, pending: &mut Option<Box<PendingFrame>>) -> Frame<Bytes> {
    match frame.into_data() {
        Ok(mut data) if data.len() > PIECE_BYTES => {
            *pending = Some(Box::new(PendingFrame::Data(data.split_off(PIECE_BYTES))));
            Frame::data(data)
        }
        Ok(data) => Frame::data(data),
        Err(trailers) => trailers,
    }
}

/// Bytes that wait for bandwidth.
fn paced_bytes(state: Option<&RequestState>) -> u64 {
    state
        .and_then(|state| state.permits.bandwidth.as_ref())
        .map_or(0, |share| share.pending_bytes.len() as u64)
}

fn add_to_hint(hint: SizeHint, pending: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(pending));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(pending));
    }
    sum
}

/// The next frame from the upstream, once its bandwidth allows it.
fn poll_next_frame(
    incoming: &mut ServerBody,
    pooled: &mut Option<PooledConnection>,
    reuse: bool,
    span: u64,
    state: &mut RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let mut frame = None;
    if paced_bytes(Some(state)) == 0 {
        frame = ready!(poll_upstream(incoming, span, state, cx));
        if (frame.is_none() || incoming.is_end_stream())
            && let Some(pooled) = pooled.take()
        {
            finish_pooled(pooled, reuse);
        }
    }
    if state.permits.bandwidth.is_some() {
        frame = ready!(poll_paced(frame, state, cx));
    }
    Poll::Ready(frame)
}

/// Holds data back until the bandwidth allows a piece of it. Meanwhile nothing is read from the upstream, and its
/// deadline does not run.
fn poll_paced(
    frame: Option<Result<Frame<Bytes>, ResponseBodyFault>>,
    state: &mut RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let Some(share) = &mut state.permits.bandwidth else { return Poll::Ready(frame) };
    match frame.map(|frame| frame.map(Frame::into_data)) {
        Some(Ok(Ok(data))) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
        Some(Ok(Ok(data))) => share.pending_bytes = data,
        Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
        Some(Err(fault)) => return Poll::Ready(Some(Err(fault))),
        None => {}
    }
    if share.pending_bytes.is_empty() {
        return Poll::Ready(None);
    }
    if state.watch.fired_deadline() == Some(GatewayDeadline::Request) {
        return Poll::Ready(Some(Err(ResponseBodyFault::TimedOut)));
    }
    let piece = ready!(share.poll_allowance(share.pending_bytes.len(), cx));
    Poll::Ready(Some(Ok(Frame::data(share.pending_bytes.split_to(piece)))))
}

/// Stores and counts the fault. A cut response keeps the status of its head, so only the verdict shows the fault.
fn record_body_fault(state: &mut RequestState, fault: &ResponseBodyFault) {
    let (fault, error) = match fault {
        ResponseBodyFault::LimitUsedUp => {
            (state.outcome.error, state.outcome.verdict) = (Some("limit used up"), Verdict::Reject);
            return;
        }
        ResponseBodyFault::Upstream(error) => {
            (Fault::UpstreamBroke, fault_in_body(error.server_fault()).as_str())
        }
        ResponseBodyFault::Stalled => (Fault::UpstreamTimeout, "body timeout"),
        ResponseBodyFault::TimedOut => (Fault::LocationTimeout, LOCATION_TIMEOUT),
    };
    state.outcome.error = Some(error);
    state.outcome.verdict = Verdict::Fault(fault);
    state.worker.gateway.metrics.count_fault(state.worker.id, fault.index());
}

/// The reason, given that the response has begun.
fn fault_in_body(fault: ServerFault) -> ServerFault {
    match fault {
        ServerFault::Closed => ServerFault::ClosedMidResponse,
        other => other,
    }
}

fn poll_upstream(
    incoming: &mut ServerBody,
    span: u64,
    state: &RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let watch = &state.watch;
    // Checked even if data is there: a response may be slow because its client is.
    if watch.fired_deadline() == Some(GatewayDeadline::Request) {
        return Poll::Ready(Some(Err(ResponseBodyFault::TimedOut)));
    }
    let polled = Pin::new(incoming).poll_frame(cx);
    let Poll::Ready(frame) = polled else {
        return match watch.fired_deadline() {
            Some(GatewayDeadline::Upstream) => Poll::Ready(Some(Err(ResponseBodyFault::Stalled))),
            _ => {
                watch.set_piece_deadline(span);
                Poll::Pending
            }
        };
    };
    watch.clear_upstream_span();
    Poll::Ready(frame.map(|frame| frame.map_err(ResponseBodyFault::Upstream)))
}
