//! The body of an answer: streamed from upstream or rendered here, with the request's visit inside.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::fault::LOCATION_TIMEOUT;
use crate::admission::chain::Decisions;
use crate::net::deadline::Due;
use crate::proxy::reject::Fault;
use crate::proxy::request_state::Visit;
use crate::upstream::{ExchangeError, Lease, ServerBody, Trouble};

/// A response body. Dropping it ends the visit; dropped before its end it closes the upstream connection.
pub struct AnswerBody {
    source: Source,
    /// `None` = it goes on in a tunnel.
    visit: Option<Box<Visit>>,
}

/// Bytes that a stream is handed at a time. HTTP/2 takes a whole piece as soon as its reader has room for one byte,
/// and would keep all the rest.
const PIECE: usize = 16 * 1024;

enum Source {
    Rendered(Bytes),
    /// What is still to be told of the request.
    Tunnel(Box<Decisions>),
    Upstream {
        incoming: ServerBody,
        /// What came and is still to be handed on; boxed, because few answers ever have some.
        rest: Option<Box<Rest>>,
        /// `None` once the exchange is complete and the connection is back in its pool.
        lease: Option<Lease>,
        /// The connection may go back to its pool.
        reuse: bool,
        /// Ticks the upstream may take for the next piece.
        span: u64,
    },
}

/// What is not handed on at once.
enum Rest {
    Data(Bytes),
    Cut(Cut),
}

/// Why an answer was cut.
#[derive(Debug)]
pub enum Cut {
    Upstream(ExchangeError),
    /// The upstream sent nothing for `timeouts.body`.
    Stalled,
    /// `location.timeout` passed.
    TimedOut,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Upstream(error) => write!(f, "the upstream's body broke: {error}"),
            Cut::Stalled => f.write_str("the upstream's body stalled"),
            Cut::TimedOut => f.write_str("the location's timeout passed"),
        }
    }
}

impl std::error::Error for Cut {}

/// An answer rendered by the gateway itself.
pub fn rendered(mut response: Response<Bytes>, mut visit: Box<Visit>) -> Response<AnswerBody> {
    // Any success would say to a CONNECT that its tunnel stands.
    if visit.connects && response.status().is_success() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    visit.status = response.status();
    visit.watch.handed_on();
    response.map(|bytes| AnswerBody { source: Source::Rendered(bytes), visit: Some(visit) })
}

/// The head after which a tunnel follows.
pub fn switched(response: Response<()>, decisions: Decisions) -> Response<AnswerBody> {
    response.map(|()| AnswerBody { source: Source::Tunnel(Box::new(decisions)), visit: None })
}

/// An upstream's answer, its body still to come; `reuse` its connection when it has.
pub fn streamed(
    response: Response<ServerBody>,
    lease: Lease,
    reuse: bool,
    span: u64,
    mut visit: Box<Visit>,
) -> Response<AnswerBody> {
    visit.status = response.status();
    visit.watch.handed_on();
    response.map(|incoming| {
        let lease = if incoming.is_end_stream() {
            finish(lease, reuse);
            None
        } else {
            Some(lease)
        };
        let source = Source::Upstream { incoming, rest: None, lease, reuse, span };
        AnswerBody { source, visit: Some(visit) }
    })
}

fn finish(lease: Lease, reuse: bool) {
    if reuse {
        lease.finish();
    }
}

impl AnswerBody {
    /// What the chain said of the request, for the one who tells it.
    pub fn take_decisions(&mut self) -> Decisions {
        match self {
            AnswerBody { visit: Some(visit), .. } => std::mem::take(&mut visit.decisions),
            AnswerBody { source: Source::Tunnel(decisions), .. } => std::mem::take(decisions),
            AnswerBody { .. } => Decisions::new(),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let AnswerBody { source, visit: Some(visit) } = self.get_mut() else { return Poll::Ready(None) };
        visit.watch.wanted();
        match source {
            Source::Tunnel(_) => Poll::Ready(None),
            Source::Rendered(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Rendered(bytes) => {
                let data = std::mem::take(bytes);
                visit.bytes = data.len() as u64;
                visit.watch.handed_on();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Source::Upstream { incoming, rest, lease, reuse, span } => {
                let frame = match rest.take().map(|rest| *rest) {
                    Some(Rest::Data(data)) => Some(Ok(Frame::data(data))),
                    Some(Rest::Cut(cut)) => Some(Err(cut)),
                    None => match ready!(poll_next(incoming, lease, *reuse, *span, visit, cx)) {
                        // Whoever writes forgets what it has at the word of an error: that goes out first.
                        Some(Err(cut)) => {
                            *rest = Some(Box::new(Rest::Cut(cut)));
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        frame => frame,
                    },
                };
                let frame = if visit.watch.connection.is_multiplexed() {
                    frame.map(|frame| frame.map(|frame| cut_off(frame, rest)))
                } else {
                    frame
                };
                match &frame {
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, Bytes::len);
                        visit.bytes += bytes as u64;
                        visit.watch.handed_on();
                        visit.watch.connection.piece_handed_on(bytes);
                    }
                    Some(Err(cut)) => note(visit, cut),
                    None => {}
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Rendered(bytes) => bytes.is_empty(),
            Source::Tunnel(_) => true,
            Source::Upstream { incoming, rest, .. } => {
                rest.is_none() && held(self.visit.as_deref()) == 0 && incoming.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Rendered(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Tunnel(_) => SizeHint::with_exact(0),
            // Asked for before the first piece is taken, when nothing is left of one.
            Source::Upstream { incoming, .. } => with_more(incoming.size_hint(), held(self.visit.as_deref())),
        }
    }
}

/// Keeps what goes beyond one piece for later.
fn cut_off(frame: Frame<Bytes>, rest: &mut Option<Box<Rest>>) -> Frame<Bytes> {
    match frame.into_data() {
        Ok(mut data) if data.len() > PIECE => {
            *rest = Some(Box::new(Rest::Data(data.split_off(PIECE))));
            Frame::data(data)
        }
        Ok(data) => Frame::data(data),
        Err(trailers) => trailers,
    }
}

/// Bytes that wait for their turn.
fn held(visit: Option<&Visit>) -> u64 {
    visit.and_then(|visit| visit.paced.as_ref()).map_or(0, |share| share.held.len() as u64)
}

fn with_more(hint: SizeHint, held: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(held));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(held));
    }
    sum
}

/// The next frame from the upstream, when its moment has come.
fn poll_next(
    incoming: &mut ServerBody,
    lease: &mut Option<Lease>,
    reuse: bool,
    span: u64,
    visit: &mut Visit,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
    let mut frame = None;
    if held(Some(visit)) == 0 {
        frame = ready!(poll_upstream(incoming, span, visit, cx));
        if (frame.is_none() || incoming.is_end_stream())
            && let Some(lease) = lease.take()
        {
            finish(lease, reuse);
        }
    }
    if visit.paced.is_some() {
        frame = ready!(poll_paced(frame, visit, cx));
    }
    Poll::Ready(frame)
}

/// Holds data back until its bandwidth lets a piece of it go. Meanwhile nothing is read from the upstream, and no
/// time of its runs.
fn poll_paced(
    frame: Option<Result<Frame<Bytes>, Cut>>,
    visit: &mut Visit,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
    let Some(share) = &mut visit.paced else { return Poll::Ready(frame) };
    match frame.map(|frame| frame.map(Frame::into_data)) {
        Some(Ok(Ok(data))) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
        Some(Ok(Ok(data))) => share.held = data,
        Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
        Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
        None => {}
    }
    if share.held.is_empty() {
        return Poll::Ready(None);
    }
    if visit.watch.fired() == Some(Due::Request) {
        return Poll::Ready(Some(Err(Cut::TimedOut)));
    }
    let piece = ready!(share.poll_take(share.held.len(), cx));
    Poll::Ready(Some(Ok(Frame::data(share.held.split_to(piece)))))
}

/// A cut answer has the status of its head: what became of it is told by the verdict.
fn note(visit: &mut Visit, cut: &Cut) {
    let (fault, error) = match cut {
        Cut::Upstream(error) => (Fault::UpstreamBroke, within(error.trouble()).as_str()),
        Cut::Stalled => (Fault::UpstreamTimeout, "body timeout"),
        Cut::TimedOut => (Fault::LocationTimeout, LOCATION_TIMEOUT),
    };
    visit.error = Some(error);
    visit.verdict = fault.cause();
    visit.worker.gateway.metrics.fault(visit.worker.id, fault.index());
}

/// The reason where an answer had begun.
fn within(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Closed => Trouble::ClosedWithin,
        other => other,
    }
}

fn poll_upstream(
    incoming: &mut ServerBody,
    span: u64,
    visit: &Visit,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
    let watch = &visit.watch;
    // Not only when there is nothing to send: an answer may be slow because its reader is.
    if watch.fired() == Some(Due::Request) {
        return Poll::Ready(Some(Err(Cut::TimedOut)));
    }
    let polled = Pin::new(incoming).poll_frame(cx);
    let Poll::Ready(frame) = polled else {
        return match watch.fired() {
            Some(Due::Upstream) => Poll::Ready(Some(Err(Cut::Stalled))),
            _ => {
                watch.await_upstream_more(span);
                Poll::Pending
            }
        };
    };
    watch.upstream_moved();
    Poll::Ready(frame.map(|frame| frame.map_err(Cut::Upstream)))
}
