//! A client's request body on its way upstream: streamed, bounded, watched, and honest about who broke it; and what
//! becomes of one that nobody wants.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::base::clock::Now;
use crate::net::deadline::{ConnectionWatch, RequestWatch};

/// Bytes of its body that a client of HTTP/2 may send on a stream before anybody reads them.
pub const STREAM_WINDOW: u32 = 256 * 1024;

/// Bytes of an unread body that are drained to keep the connection of a request that is answered here.
const DRAIN_BYTES_MAX: u64 = 64 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// What the client did wrong with its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// Bad chunks, or the connection broke in the middle.
    Malformed,
    /// Longer than `server.max_body`.
    TooLarge,
    /// Longer than `timeouts.body` without a byte.
    Stalled,
}

impl std::fmt::Display for BodyFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BodyFault::Malformed => "the request body is malformed",
            BodyFault::TooLarge => "the request body is too large",
            BodyFault::Stalled => "the request body stalled",
        })
    }
}

impl std::error::Error for BodyFault {}

/// Tells the forwarding side afterwards whose fault a failed exchange was, and whose delay.
pub type BodyOutcomeCell = Rc<BodyOutcome>;

/// What became of a client's body.
#[derive(Debug, Default)]
pub struct BodyOutcome {
    fault: Cell<Option<BodyFault>>,
    ended_at: Cell<Option<Now>>,
    /// It was given up when the client had sent nothing for a while.
    was_idle: Cell<bool>,
}

impl BodyOutcome {
    pub fn client_fault(&self) -> Option<BodyFault> {
        self.fault.get()
    }

    fn set_fault(&self, fault: Option<BodyFault>) {
        self.fault.set(fault);
    }

    /// Whether the client sends nothing for a while, or did when the body was given up.
    pub fn is_idle(&self, watch: &RequestWatch) -> bool {
        self.was_idle.get() || watch.is_body_idle()
    }

    /// When the last of it went to the upstream, if it did.
    pub fn ended_at(&self) -> Option<Now> {
        self.ended_at.get()
    }
}

/// The body of a request; small, because requests are moved often, and most have none.
pub enum RequestBody {
    Empty,
    /// As it came; nobody has read of it yet.
    Unread(Box<Incoming>),
    /// On its way to an upstream.
    Client(Box<ClientBody>),
    /// Somebody took it.
    Consumed,
}

/// A body that the client is still sending.
pub struct ClientBody {
    incoming: Incoming,
    watch: Rc<RequestWatch>,
    outcome: BodyOutcomeCell,
    /// Bytes that may still come.
    left: u64,
    /// `None` = trailers are dropped.
    trailers: Option<TrailerFilter>,
    has_ended: bool,
}

/// Takes out of trailers what may not pass.
pub type TrailerFilter = Box<dyn Fn(&mut HeaderMap)>;

impl RequestBody {
    /// What hyper hands us.
    pub fn new(incoming: Incoming) -> RequestBody {
        if incoming.is_end_stream() { RequestBody::Empty } else { RequestBody::Unread(Box::new(incoming)) }
    }

    /// Sends an unread body on its way, with at most `max` bytes and the trailers that `trailers` makes the filter for;
    /// nothing is to be told of one that is empty.
    pub fn start_forwarding(
        &mut self,
        watch: &Rc<RequestWatch>,
        max: Option<u64>,
        trailers: impl FnOnce() -> Option<TrailerFilter>,
    ) -> Option<BodyOutcomeCell> {
        let incoming = match std::mem::replace(self, RequestBody::Empty) {
            RequestBody::Unread(incoming) => incoming,
            other => {
                *self = other;
                return None;
            }
        };
        // Its answer may be complete before it is; what belongs to which, streams tell by themselves.
        if !watch.connection.is_multiplexed() {
            watch.connection.mark_body_unread();
        }
        let culprit = BodyOutcomeCell::default();
        let body = ClientBody {
            incoming: *incoming,
            watch: watch.clone(),
            outcome: culprit.clone(),
            left: max.unwrap_or(u64::MAX),
            trailers: trailers(),
            has_ended: false,
        };
        *self = RequestBody::Client(Box::new(body));
        Some(culprit)
    }

    /// Takes it out of its request, which is not to be sent with another, or none.
    pub fn take_body(&mut self) -> RequestBody {
        if self.is_empty() { RequestBody::Empty } else { std::mem::replace(self, RequestBody::Consumed) }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, RequestBody::Empty)
    }
}

impl ClientBody {
    fn fail_with<T>(&self, fault: BodyFault) -> Poll<Option<Result<T, BodyFault>>> {
        self.outcome.set_fault(Some(fault));
        Poll::Ready(Some(Err(fault)))
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        loop {
            let polled = Pin::new(&mut self.incoming).poll_frame(cx);
            if polled.is_pending() {
                if self.watch.body_expired() {
                    return self.fail_with(BodyFault::Stalled);
                }
                self.watch.mark_body_blocked();
                return Poll::Pending;
            }
            self.watch.clear_body_blocked();
            let Some(frame) = ready!(polled) else {
                // A stream that is reset without an error has no more, but is no whole body.
                if self.watch.connection.is_multiplexed() && !self.incoming.is_end_stream() {
                    return self.fail_with(BodyFault::Malformed);
                }
                self.has_ended = true;
                return Poll::Ready(None);
            };
            let Ok(frame) = frame else { return self.fail_with(BodyFault::Malformed) };
            match frame.into_data() {
                Ok(data) => {
                    let Some(left) = self.left.checked_sub(data.len() as u64) else {
                        return self.fail_with(BodyFault::TooLarge);
                    };
                    self.left = left;
                    self.watch.restart_upstream_span();
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Err(trailers) => {
                    if let (Some(filter), Ok(mut trailers)) = (&self.trailers, trailers.into_trailers()) {
                        filter(&mut trailers);
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                }
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match self.get_mut() {
            RequestBody::Empty => Poll::Ready(None),
            // Whose it is, and how much of it there may be, is told when it departs.
            RequestBody::Unread(_) | RequestBody::Consumed => Poll::Ready(Some(Err(BodyFault::Malformed))),
            RequestBody::Client(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Consumed => false,
            RequestBody::Unread(incoming) => incoming.is_end_stream(),
            RequestBody::Client(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Consumed => SizeHint::default(),
            RequestBody::Unread(incoming) => incoming.size_hint(),
            RequestBody::Client(body) => body.incoming.size_hint(),
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.outcome.was_idle.set(self.watch.is_body_idle());
        self.watch.clear_body_blocked();
        // An upstream may answer, or fail, before it read everything: the client goes on sending what nobody reads.
        if self.has_ended || self.incoming.is_end_stream() {
            self.outcome.ended_at.set(Some(Now::read_clock()));
            self.watch.connection.mark_body_read();
        } else {
            self.watch.connection.mark_body_unread();
        }
    }
}

/// The request is answered without its body, which is drained a little so that the connection can be kept, or left for
/// a lingering close.
pub fn discard_body(watch: &Rc<ConnectionWatch>, request: Request<RequestBody>) {
    if request.body().is_empty() {
        return;
    }
    watch.mark_body_unread();
    let small = request.body().size_hint().upper().is_none_or(|bytes| bytes <= DRAIN_BYTES_MAX);
    // A client that waits for 100 Continue sends nothing until it is asked to, and reading asks.
    let awaits_word = request.headers().contains_key(EXPECT);
    if let RequestBody::Unread(body) = request.into_body()
        && small
        && !awaits_word
    {
        tokio::task::spawn_local(drain_body(*body, watch.clone()));
    }
}

async fn drain_body(mut body: Incoming, watch: Rc<ConnectionWatch>) {
    let drained = tokio::time::timeout(DRAIN_TIME_MAX, read_and_discard(&mut body, DRAIN_BYTES_MAX));
    if let Ok(Some(())) = drained.await {
        watch.mark_body_read();
    }
}

/// Reads a body that nobody wants; `None` when it breaks, or is longer than `most` bytes.
pub async fn read_and_discard(body: &mut (impl Body<Data = Bytes> + Unpin), most: u64) -> Option<()> {
    let mut left = most;
    // A body of known length ends with its last byte; its stream only with the next head.
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let read = frame.ok()?.data_ref().map_or(0, |data| data.len() as u64);
        left = left.checked_sub(read)?;
    }
    Some(())
}
