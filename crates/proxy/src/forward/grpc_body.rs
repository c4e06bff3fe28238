//! The body of a gRPC answer that the gateway makes itself: messages, then trailers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

type StreamEnd = Pin<Box<dyn Future<Output = (Bytes, HeaderMap)>>>;

/// The messages and the trailers that are still to be sent.
pub struct GrpcBody {
    message: Option<Bytes>,
    /// The last message of a stream, and the trailers behind it.
    last: Option<StreamEnd>,
    trailers: Option<HeaderMap>,
}

impl GrpcBody {
    /// One message, framed.
    pub fn unary(message: Bytes, trailers: HeaderMap) -> GrpcBody {
        GrpcBody { message: Some(message), last: None, trailers: Some(trailers) }
    }

    /// A message now, and another one as the end of the stream.
    pub fn stream(first: Bytes, last: impl Future<Output = (Bytes, HeaderMap)> + 'static) -> GrpcBody {
        GrpcBody { message: Some(first), last: Some(Box::pin(last)), trailers: None }
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Frame::data(message)));
        }
        if let Some(last) = &mut self.last {
            let (message, trailers) = ready!(last.as_mut().poll(cx));
            (self.last, self.trailers) = (None, Some(trailers));
            return Poll::Ready(Some(Frame::data(message)));
        }
        Poll::Ready(self.trailers.take().map(Frame::trailers))
    }

    pub(super) fn is_over(&self) -> bool {
        self.message.is_none() && self.last.is_none() && self.trailers.is_none()
    }
}
