//! The body of an answer: streamed from upstream or rendered here, with the request's visit inside.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::fault::LOCATION_TIMEOUT;
use crate::admission::chain::Decisions;
use crate::net::deadline::GatewayDeadline;
use crate::proxy::reject::{Fault, status};
use crate::proxy::request_state::{RequestState, Verdict};
use crate::upstream::{ExchangeFault, Lease, ServerBody, ServerFault};

/// A response body. Dropping it ends the visit; dropped before its end it closes the upstream connection.
pub struct ResponseBody {
    source: BodySource,
    /// `None` = it goes on in a tunnel.
    visit: Option<Box<RequestState>>,
}

/// Bytes that a stream is handed at a time. HTTP/2 takes a whole piece as soon as its reader has room for one byte,
/// and would keep all the rest.
const PIECE_BYTES: usize = 16 * 1024;

enum BodySource {
    Rendered(Bytes),
    /// What is still to be told of the request.
    Tunnel(Box<Decisions>),
    Upstream {
        incoming: ServerBody,
        /// What came and is still to be handed on; boxed, because few answers ever have some.
        pending: Option<Box<PendingFrame>>,
        /// `None` once the exchange is complete and the connection is back in its pool.
        lease: Option<Lease>,
        /// The connection may go back to its pool.
        reuse: bool,
        /// Ticks the upstream may take for the next piece.
        span: u64,
    },
}

/// What is not handed on at once.
enum PendingFrame {
    Data(Bytes),
    Fault(ResponseBodyFault),
}

/// Why an answer was cut.
#[derive(Debug)]
pub enum ResponseBodyFault {
    Upstream(ExchangeFault),
    /// The upstream sent nothing for `timeouts.body`.
    Stalled,
    /// `location.timeout` passed.
    TimedOut,
}

impl fmt::Display for ResponseBodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseBodyFault::Upstream(error) => write!(f, "the upstream's body broke: {error}"),
            ResponseBodyFault::Stalled => f.write_str("the upstream's body stalled"),
            ResponseBodyFault::TimedOut => f.write_str("the location's timeout passed"),
        }
    }
}

impl std::error::Error for ResponseBodyFault {}

/// An answer rendered by the gateway itself.
pub fn local_response(mut response: Response<Bytes>, mut visit: Box<RequestState>) -> Response<ResponseBody> {
    if visit.is_websocket_connect {
        *response.status_mut() = status::without_tunnel(response.status());
    }
    visit.status = response.status();
    visit.watch.mark_unread();
    response.map(|bytes| ResponseBody { source: BodySource::Rendered(bytes), visit: Some(visit) })
}

/// The head after which a tunnel follows.
pub fn switched_response(response: Response<()>, decisions: Decisions) -> Response<ResponseBody> {
    response.map(|()| ResponseBody { source: BodySource::Tunnel(Box::new(decisions)), visit: None })
}

/// An upstream's answer, its body still to come; `reuse` its connection when it has.
pub fn streamed_response(
    response: Response<ServerBody>,
    lease: Lease,
    reuse: bool,
    span: u64,
    mut visit: Box<RequestState>,
) -> Response<ResponseBody> {
    visit.status = response.status();
    visit.watch.mark_unread();
    response.map(|incoming| {
        let lease = if incoming.is_end_stream() {
            finish_lease(lease, reuse);
            None
        } else {
            Some(lease)
        };
        let source = BodySource::Upstream { incoming, pending: None, lease, reuse, span };
        ResponseBody { source, visit: Some(visit) }
    })
}

fn finish_lease(lease: Lease, reuse: bool) {
    if reuse {
        lease.finish();
    }
}

impl ResponseBody {
    /// What the chain said of the request, for the one who tells it.
    pub fn take_decisions(&mut self) -> Decisions {
        match self {
            ResponseBody { visit: Some(visit), .. } => std::mem::take(&mut visit.decisions),
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
        let ResponseBody { source, visit: Some(visit) } = self.get_mut() else { return Poll::Ready(None) };
        visit.watch.clear_unread();
        match source {
            BodySource::Tunnel(_) => Poll::Ready(None),
            BodySource::Rendered(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodySource::Rendered(bytes) => {
                let data = std::mem::take(bytes);
                visit.bytes_sent = data.len() as u64;
                visit.watch.mark_unread();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            BodySource::Upstream { incoming, pending: rest, lease, reuse, span } => {
                let frame = match rest.take().map(|rest| *rest) {
                    Some(PendingFrame::Data(data)) => Some(Ok(Frame::data(data))),
                    Some(PendingFrame::Fault(cut)) => Some(Err(cut)),
                    None => match ready!(poll_next_frame(incoming, lease, *reuse, *span, visit, cx)) {
                        // Whoever writes forgets what it has at the word of an error: that goes out first.
                        Some(Err(cut)) => {
                            *rest = Some(Box::new(PendingFrame::Fault(cut)));
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        frame => frame,
                    },
                };
                let frame = if visit.watch.connection.is_multiplexed() {
                    frame.map(|frame| frame.map(|frame| split_frame(frame, rest)))
                } else {
                    frame
                };
                match &frame {
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, Bytes::len);
                        visit.bytes_sent += bytes as u64;
                        visit.watch.mark_unread();
                        visit.watch.connection.record_piece(bytes);
                    }
                    Some(Err(cut)) => record_body_fault(visit, cut),
                    None => {}
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Rendered(bytes) => bytes.is_empty(),
            BodySource::Tunnel(_) => true,
            BodySource::Upstream { incoming, pending: rest, .. } => {
                rest.is_none() && paced_bytes(self.visit.as_deref()) == 0 && incoming.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Rendered(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodySource::Tunnel(_) => SizeHint::with_exact(0),
            // Asked for before the first piece is taken, when nothing is left of one.
            BodySource::Upstream { incoming, .. } => {
                add_to_hint(incoming.size_hint(), paced_bytes(self.visit.as_deref()))
            }
        }
    }
}

/// Keeps what goes beyond one piece for later.
fn split_frame(frame: Frame<Bytes>, rest: &mut Option<Box<PendingFrame>>) -> Frame<Bytes> {
    match frame.into_data() {
        Ok(mut data) if data.len() > PIECE_BYTES => {
            *rest = Some(Box::new(PendingFrame::Data(data.split_off(PIECE_BYTES))));
            Frame::data(data)
        }
        Ok(data) => Frame::data(data),
        Err(trailers) => trailers,
    }
}

/// Bytes that wait for their turn.
fn paced_bytes(visit: Option<&RequestState>) -> u64 {
    visit.and_then(|visit| visit.bandwidth.as_ref()).map_or(0, |share| share.pending_bytes.len() as u64)
}

fn add_to_hint(hint: SizeHint, held: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(held));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(held));
    }
    sum
}

/// The next frame from the upstream, when its moment has come.
fn poll_next_frame(
    incoming: &mut ServerBody,
    lease: &mut Option<Lease>,
    reuse: bool,
    span: u64,
    visit: &mut RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let mut frame = None;
    if paced_bytes(Some(visit)) == 0 {
        frame = ready!(poll_upstream(incoming, span, visit, cx));
        if (frame.is_none() || incoming.is_end_stream())
            && let Some(lease) = lease.take()
        {
            finish_lease(lease, reuse);
        }
    }
    if visit.bandwidth.is_some() {
        frame = ready!(poll_paced(frame, visit, cx));
    }
    Poll::Ready(frame)
}

/// Holds data back until its bandwidth lets a piece of it go. Meanwhile nothing is read from the upstream, and no
/// time of its runs.
fn poll_paced(
    frame: Option<Result<Frame<Bytes>, ResponseBodyFault>>,
    visit: &mut RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let Some(share) = &mut visit.bandwidth else { return Poll::Ready(frame) };
    match frame.map(|frame| frame.map(Frame::into_data)) {
        Some(Ok(Ok(data))) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
        Some(Ok(Ok(data))) => share.pending_bytes = data,
        Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
        Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
        None => {}
    }
    if share.pending_bytes.is_empty() {
        return Poll::Ready(None);
    }
    if visit.watch.fired_deadline() == Some(GatewayDeadline::Request) {
        return Poll::Ready(Some(Err(ResponseBodyFault::TimedOut)));
    }
    let piece = ready!(share.poll_allowance(share.pending_bytes.len(), cx));
    Poll::Ready(Some(Ok(Frame::data(share.pending_bytes.split_to(piece)))))
}

/// A cut answer has the status of its head: what became of it is told by the verdict.
fn record_body_fault(visit: &mut RequestState, cut: &ResponseBodyFault) {
    let (fault, error) = match cut {
        ResponseBodyFault::Upstream(error) => {
            (Fault::UpstreamBroke, fault_in_body(error.server_fault()).as_str())
        }
        ResponseBodyFault::Stalled => (Fault::UpstreamTimeout, "body timeout"),
        ResponseBodyFault::TimedOut => (Fault::LocationTimeout, LOCATION_TIMEOUT),
    };
    visit.error = Some(error);
    visit.verdict = Verdict::Fault(fault);
    visit.worker.gateway.metrics.count_fault(visit.worker.id, fault.index());
}

/// The reason where an answer had begun.
fn fault_in_body(trouble: ServerFault) -> ServerFault {
    match trouble {
        ServerFault::Closed => ServerFault::ClosedMidResponse,
        other => other,
    }
}

fn poll_upstream(
    incoming: &mut ServerBody,
    span: u64,
    visit: &RequestState,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyFault>>> {
    let watch = &visit.watch;
    // Not only when there is nothing to send: an answer may be slow because its reader is.
    if watch.fired_deadline() == Some(GatewayDeadline::Request) {
        return Poll::Ready(Some(Err(ResponseBodyFault::TimedOut)));
    }
    let polled = Pin::new(incoming).poll_frame(cx);
    let Poll::Ready(frame) = polled else {
        return match watch.fired_deadline() {
            Some(GatewayDeadline::Upstream) => Poll::Ready(Some(Err(ResponseBodyFault::Stalled))),
            _ => {
                watch.await_next_piece(span);
                Poll::Pending
            }
        };
    };
    watch.clear_upstream_span();
    Poll::Ready(frame.map(|frame| frame.map_err(ResponseBodyFault::Upstream)))
}
