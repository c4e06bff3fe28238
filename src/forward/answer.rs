//! The body of an answer: streamed from upstream or rendered here, with the request's visit inside.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::deadline::Due;
use crate::reject::Fault;
use crate::upstream::Lease;
use crate::visit::Visit;

/// A response body. Dropping it ends the visit; dropped before its end it closes the upstream connection.
pub struct AnswerBody {
    source: Source,
    visit: Box<Visit>,
}

enum Source {
    Rendered(Bytes),
    Upstream {
        incoming: Incoming,
        /// `None` once the exchange is complete and the connection is back in its pool.
        lease: Option<Lease>,
        /// Ticks the upstream may take for the next piece.
        span: u64,
    },
}

/// Why an answer was cut.
#[derive(Debug)]
pub enum Cut {
    Upstream(hyper::Error),
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
pub fn rendered(response: Response<Bytes>, mut visit: Box<Visit>) -> Response<AnswerBody> {
    visit.status = response.status();
    visit.watch.handed_on();
    response.map(|bytes| AnswerBody { source: Source::Rendered(bytes), visit })
}

/// An upstream's answer, its body still to come.
pub fn streamed(
    response: Response<Incoming>,
    lease: Lease,
    span: u64,
    mut visit: Box<Visit>,
) -> Response<AnswerBody> {
    visit.status = response.status();
    visit.watch.handed_on();
    response.map(|incoming| {
        let lease = if incoming.is_end_stream() {
            lease.finish();
            None
        } else {
            Some(lease)
        };
        AnswerBody { source: Source::Upstream { incoming, lease, span }, visit }
    })
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let AnswerBody { source, visit } = self.get_mut();
        visit.watch.wanted();
        match source {
            Source::Rendered(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Rendered(bytes) => {
                let data = std::mem::take(bytes);
                visit.bytes = data.len() as u64;
                visit.watch.handed_on();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Source::Upstream { incoming, lease, span } => {
                let mut frame = None;
                if held(visit) == 0 {
                    frame = ready!(poll_upstream(incoming, *span, visit, cx));
                    if (frame.is_none() || incoming.is_end_stream())
                        && let Some(lease) = lease.take()
                    {
                        lease.finish();
                    }
                }
                if visit.paced.is_some() {
                    frame = ready!(poll_paced(frame, visit, cx));
                }
                match &frame {
                    Some(Ok(frame)) => {
                        visit.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                        visit.watch.handed_on();
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
            Source::Upstream { incoming, .. } => held(&self.visit) == 0 && incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Rendered(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Upstream { incoming, .. } => with_more(incoming.size_hint(), held(&self.visit)),
        }
    }
}

/// Bytes that wait for their turn.
fn held(visit: &Visit) -> u64 {
    visit.paced.as_ref().map_or(0, |share| share.held.len() as u64)
}

fn with_more(hint: SizeHint, held: u64) -> SizeHint {
    let mut sum = SizeHint::new();
    sum.set_lower(hint.lower().saturating_add(held));
    if let Some(upper) = hint.upper() {
        sum.set_upper(upper.saturating_add(held));
    }
    sum
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
    let fault = match cut {
        Cut::Upstream(_) => Fault::UpstreamBroke,
        Cut::Stalled => Fault::UpstreamTimeout,
        Cut::TimedOut => Fault::LocationTimeout,
    };
    visit.verdict = fault.cause();
    visit.worker.gateway.metrics.fault(visit.worker.id, fault.index());
}

fn poll_upstream(
    incoming: &mut Incoming,
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
