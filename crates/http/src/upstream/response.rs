//! The response of a server: its head, and a body that is streamed from the connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::Http1Body;
use super::send_outcome::ExchangeFault;

/// The slot for a response. Callers pass it down by reference, because a response is large.
pub type ResponseSlot = Option<Response<ServerBody>>;

/// The body of a server's response.
pub enum ServerBody {
    /// The body on a connection of HTTP/1.
    Http1(Http1Body),
    /// The body on a stream of HTTP/2.
    Http2(Incoming),
}

impl From<Http1Body> for ServerBody {
    #[inline]
    fn from(body: Http1Body) -> ServerBody {
        ServerBody::Http1(body)
    }
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = ExchangeFault;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeFault>>> {
        match self.get_mut() {
            ServerBody::Http1(body) => body.poll_frame(cx),
            ServerBody::Http2(body) => Poll::Ready(match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                // A stream that is reset without an error ends, but its body is incomplete.
                None if !body.is_end_stream() => Some(Err(ExchangeFault::Incomplete)),
                next => next.map(|frame| frame.map_err(ExchangeFault::Http2)),
            }),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            ServerBody::Http1(body) => body.is_complete(),
            ServerBody::Http2(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            ServerBody::Http1(body) => body.size_hint(),
            ServerBody::Http2(body) => body.size_hint(),
        }
    }
}
