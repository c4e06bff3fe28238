//! Request bodies: streamed to the upstream with bounds and deadlines, or discarded when the request is answered here.
//!
//! If a limit reads the body, its beginning is read first (`peek`): a body that is complete by then is kept as a
//! [`WholeBody`], a longer one goes on to stream behind its beginning.

mod inbound;
mod memory;
mod peek;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::net::deadline::{ConnectionWatch, RequestWatch};
use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use inbound::InboundBody;
use peek::PeekedBody;
use sluicegate_base::clock::Now;

pub use memory::{BodyMemory, BodyRoom};

/// Bytes that an HTTP/2 client may send on a stream before the gateway reads them.
pub const STREAM_WINDOW: u32 = 256 * 1024;

/// Most bytes drained of an unread body to keep the connection of a request that is answered here.
const DRAIN_BYTES_MAX: u64 = 64 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// The client's fault in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// Bad chunks, or the connection broke in the middle.
    #[error("the request body is malformed")]
    Malformed,
    /// Longer than `server.max_body`.
    #[error("the request body is too large")]
    TooLarge,
    /// Longer than `timeouts.body` without a byte.
    #[error("the request body stalled")]
    Stalled,
}

/// Shared with the forwarding side, which reads from it whether the client caused a failed exchange or a delay.
pub type BodyOutcomeCell = Rc<BodyOutcome>;

/// The outcome of a client's body.
#[derive(Debug, Default)]
pub struct BodyOutcome {
    fault: Cell<Option<BodyFault>>,
    ended_at: Cell<Option<Now>>,
    /// The client had sent nothing for a while when the body was dropped.
    was_idle: Cell<bool>,
    bytes_read: Cell<u64>,
}

impl BodyOutcome {
    /// The fault of the client that broke the body, if there is one.
    pub fn client_fault(&self) -> Option<BodyFault> {
        self.fault.get()
    }

    /// True if the client has sent nothing for a while, now or when the body was dropped.
    pub fn is_idle(&self, watch: &RequestWatch) -> bool {
        self.was_idle.get() || watch.is_body_idle()
    }

    /// Bytes that were read for the upstream.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    /// The moment at which the last byte was read for the upstream, if it was.
    pub fn ended_at(&self) -> Option<Now> {
        self.ended_at.get()
    }
}

/// The body of a request. The variants are boxed, because requests are moved often and most have no body.
pub enum RequestBody {
    /// No body, or one without a byte.
    Empty,
    /// No byte of it was read yet.
    Unread(Box<InboundBody>),
    /// A body with a beginning that was read before judging.
    Peeked(Box<PeekedBody>),
    /// All of it was read before judging.
    Whole(Box<WholeBody>),
    /// Being forwarded to an upstream.
    Client(Box<ClientBody>),
    /// Moved out by [`RequestBody::take_body`].
    Consumed,
    /// The announced bytes of a request that did not come over a connection; there is nothing to read.
    Announced(u64),
}

/// A body that is being forwarded while the client sends it.
pub struct ClientBody {
    /// The part that was read before judging.
    beginning: Bytes,
    incoming: InboundBody,
    watch: Rc<RequestWatch>,
    outcome: BodyOutcomeCell,
    /// Bytes left until `server.max_body`.
    left: u64,
    /// `None` = trailers are dropped.
    trailers: Option<TrailerFilter>,
    has_ended: bool,
}

/// Removes the trailers that may not pass.
pub type TrailerFilter = Box<dyn Fn(&mut HeaderMap)>;

impl RequestBody {
    /// The body of a request that hyper has just handed out.
    #[inline]
    pub fn receive(incoming: Incoming, watch: &Rc<ConnectionWatch>) -> RequestBody {
        match InboundBody::receive(incoming, watch) {
            None => RequestBody::Empty,
            Some(body) => RequestBody::Unread(Box::new(body)),
        }
    }

    /// The body of a request that did not come over a connection.
    pub fn at_hand(data: Bytes) -> RequestBody {
        match data.is_empty() {
            true => RequestBody::Empty,
            false => RequestBody::Whole(Box::new(WholeBody::new(data, None, true))),
        }
    }

    /// Prepares an unread body for forwarding, with at most `max` bytes and the filter from `trailers`. `None` if
    /// nothing of it is still to come: it has no outcome.
    pub fn start_forwarding(
        &mut self,
        watch: &Rc<RequestWatch>,
        max: Option<u64>,
        trailers: impl FnOnce() -> Option<TrailerFilter>,
    ) -> Option<BodyOutcomeCell> {
        let (beginning, incoming) = match std::mem::replace(self, RequestBody::Empty) {
            RequestBody::Unread(incoming) => (Bytes::new(), *incoming),
            RequestBody::Peeked(peeked) => (peeked.beginning, peeked.rest),
            RequestBody::Whole(mut body) => {
                body.filter_trailers(trailers());
                *self = RequestBody::Whole(body);
                return None;
            }
            other => {
                *self = other;
                return None;
            }
        };
        let outcome = BodyOutcomeCell::default();
        let body = ClientBody {
            beginning,
            incoming,
            watch: watch.clone(),
            outcome: outcome.clone(),
            left: max.unwrap_or(u64::MAX),
            trailers: trailers(),
            has_ended: false,
        };
        *self = RequestBody::Client(Box::new(body));
        Some(outcome)
    }

    /// Takes the body out of its request. One that is at hand stays there; any other is marked as consumed, so that
    /// the request cannot be sent again without it.
    pub fn take_body(&mut self) -> RequestBody {
        self.copy_at_hand().unwrap_or_else(|| std::mem::replace(self, RequestBody::Consumed))
    }

    /// A copy of a body that can be sent again.
    pub fn copy_at_hand(&self) -> Option<RequestBody> {
        match self {
            RequestBody::Empty => Some(RequestBody::Empty),
            RequestBody::Whole(body) => Some(RequestBody::Whole(body.clone())),
            _ => None,
        }
    }

    /// True if nothing of it is still to come from the client, so that it can be sent again.
    pub fn is_at_hand(&self) -> bool {
        matches!(self, RequestBody::Empty | RequestBody::Whole(_))
    }

    /// True if the request has no body; one that is unread counts as a body.
    pub fn is_empty(&self) -> bool {
        matches!(self, RequestBody::Empty)
    }
}

impl ClientBody {
    fn fail_with<T>(&self, fault: BodyFault) -> Poll<Option<Result<T, BodyFault>>> {
        self.outcome.fault.set(Some(fault));
        Poll::Ready(Some(Err(fault)))
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        if !self.beginning.is_empty() {
            let beginning = std::mem::take(&mut self.beginning);
            return self.pass_data(beginning);
        }
        loop {
            let frame = match ready!(poll_client(&mut self.incoming, &self.watch, cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(fault)) => return self.fail_with(fault),
                None => {
                    self.has_ended = true;
                    return Poll::Ready(None);
                }
            };
            match frame.into_data() {
                Ok(data) => return self.pass_data(data),
                Err(trailers) => {
                    if let (Some(filter), Ok(mut trailers)) = (&self.trailers, trailers.into_trailers()) {
                        filter(&mut trailers);
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                }
            }
        }
    }

    fn pass_data(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let Some(left) = self.left.checked_sub(data.len() as u64) else {
            return self.fail_with(BodyFault::TooLarge);
        };
        self.left = left;
        self.outcome.bytes_read.set(self.outcome.bytes_read.get() + data.len() as u64);
        self.watch.restart_upstream_span();
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.beginning.is_empty() && self.incoming.is_end_stream()
    }
}

/// The next frame that the client sends of a body; `None` at its end.
fn poll_client(
    incoming: &mut InboundBody,
    watch: &RequestWatch,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
    let polled = Pin::new(&mut *incoming).poll_frame(cx);
    if polled.is_pending() {
        if watch.body_expired() {
            return Poll::Ready(Some(Err(BodyFault::Stalled)));
        }
        watch.mark_body_blocked();
        return Poll::Pending;
    }
    watch.clear_body_blocked();
    Poll::Ready(match ready!(polled) {
        Some(frame) => Some(frame.map_err(|_| BodyFault::Malformed)),
        // A stream that is reset without an error ends, but its body is incomplete.
        None if watch.connection.is_multiplexed() && !incoming.is_end_stream() => {
            Some(Err(BodyFault::Malformed))
        }
        None => None,
    })
}

/// The size of a body of which some bytes were read already.
fn add_read(rest: SizeHint, read: u64) -> SizeHint {
    let mut whole = SizeHint::new();
    whole.set_lower(rest.lower().saturating_add(read));
    if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
        whole.set_upper(upper);
    }
    whole
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match self.get_mut() {
            RequestBody::Empty | RequestBody::Announced(_) => Poll::Ready(None),
            // A body is readable only once `start_forwarding` has bound it to a watch and a limit.
            RequestBody::Unread(_) | RequestBody::Peeked(_) | RequestBody::Consumed => {
                Poll::Ready(Some(Err(BodyFault::Malformed)))
            }
            RequestBody::Whole(body) => Poll::Ready(body.next_frame().map(Ok)),
            RequestBody::Client(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty | RequestBody::Announced(_) => true,
            RequestBody::Consumed | RequestBody::Peeked(_) => false,
            RequestBody::Unread(incoming) => incoming.is_end_stream(),
            RequestBody::Whole(body) => body.is_end_stream(),
            RequestBody::Client(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Consumed => SizeHint::default(),
            RequestBody::Announced(bytes) => SizeHint::with_exact(*bytes),
            RequestBody::Unread(incoming) => incoming.size_hint(),
            RequestBody::Peeked(body) => add_read(body.rest.size_hint(), body.beginning.len() as u64),
            RequestBody::Whole(body) => body.size_hint(),
            RequestBody::Client(body) => add_read(body.incoming.size_hint(), body.beginning.len() as u64),
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.outcome.was_idle.set(self.watch.is_body_idle());
        self.watch.clear_body_blocked();
        // An upstream may respond or fail before it has read everything; the client continues to send.
        if self.has_ended || self.incoming.is_end_stream() {
            self.outcome.ended_at.set(Some(Now::read_clock()));
        }
    }
}

/// Discards the body of a request that is answered here: a short one is drained, so that the connection can be kept; a
/// long one is left to a lingering close.
#[inline]
pub fn discard_body(request: &mut Request<RequestBody>) {
    if request.body().is_at_hand() {
        return;
    }
    let is_small = request.body().size_hint().upper().is_none_or(|bytes| bytes <= DRAIN_BYTES_MAX);
    // A client that waits for 100 Continue sends nothing yet, and reading would send it.
    let awaits_continue = request.headers().contains_key(EXPECT);
    let mut rest = match std::mem::replace(request.body_mut(), RequestBody::Consumed) {
        RequestBody::Unread(body) if !awaits_continue => *body,
        RequestBody::Peeked(body) => body.rest,
        _ => return,
    };
    if is_small {
        tokio::task::spawn_local(async move {
            let _ = tokio::time::timeout(DRAIN_TIME_MAX, read_and_discard(&mut rest, DRAIN_BYTES_MAX)).await;
        });
    }
}

/// Reads and discards a body; `None` if it breaks or is longer than `most` bytes.
pub async fn read_and_discard(body: &mut (impl Body<Data = Bytes> + Unpin), most: u64) -> Option<()> {
    let mut left = most;
    // A body of known length ends with its last byte, its stream only with the next head.
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let read = frame.ok()?.data_ref().map_or(0, |data| data.len() as u64);
        left = left.checked_sub(read)?;
    }
    Some(())
}

/// A body of which all bytes are here.
#[derive(Clone)]
pub struct WholeBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// The head told the length; otherwise the end of the body is marked in the stream, to the upstream as well.
    has_length: bool,
    is_taken: bool,
}

impl WholeBody {
    pub(super) fn new(data: Bytes, trailers: Option<HeaderMap>, has_length: bool) -> WholeBody {
        WholeBody { data, trailers, has_length, is_taken: false }
    }

    pub(super) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Lets `filter` remove trailers; without one there are none.
    pub(super) fn filter_trailers(&mut self, filter: Option<impl Fn(&mut HeaderMap)>) {
        match (&mut self.trailers, filter) {
            (Some(trailers), Some(filter)) => filter(trailers),
            (trailers, _) => *trailers = None,
        }
    }

    pub(super) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        self.is_taken = true;
        let data = std::mem::take(&mut self.data);
        if !data.is_empty() {
            return Some(Frame::data(data));
        }
        self.trailers.take().map(Frame::trailers)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        // An empty body without a length is still a body.
        self.data.is_empty() && self.trailers.is_none() && (self.is_taken || self.has_length)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.has_length { SizeHint::with_exact(self.len()) } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests;
