//! What comes back from a server: the head of its answer, the body as it comes, or why there is none.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::fault::{ServerFault, is_reset};
use super::http1;
use crate::request::body::BodyFault;

/// The head of an answer, once it came; in a place of its own, because it is large and passes many hands.
pub type ResponseSlot = Option<Response<ServerBody>>;

/// What became of a request that was handed to a connection. Its head is still in its place; its body only if nothing
/// was sent.
pub enum SendOutcome {
    /// With this status; the answer is in its place.
    Responded(StatusCode),
    /// Nothing was sent, or the server has certainly not begun with it.
    Unsent,
    Failed(ExchangeFault),
}

/// The body of a server's answer.
pub enum ServerBody {
    Http1(http1::Http1Body),
    Http2(Incoming),
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
                // A stream that is reset without an error has no more, but is no whole body.
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

/// Why an exchange with a server broke off.
#[derive(Debug)]
pub enum ExchangeFault {
    /// The server closed before the first byte of an answer.
    NoResponse,
    /// The same by a reset.
    Reset,
    /// The server closed in the middle of its answer.
    Incomplete,
    Connection(io::Error),
    /// What came is no HTTP.
    Malformed(&'static str),
    /// The client broke its request body.
    Client(BodyFault),
    Http2(hyper::Error),
}

impl ExchangeFault {
    /// Whether the connection ended before a single byte of an answer.
    pub fn has_no_response(&self) -> bool {
        match self {
            ExchangeFault::NoResponse | ExchangeFault::Reset => true,
            ExchangeFault::Http2(error) => !error.is_parse() && !error.is_user() && !error.is_timeout(),
            _ => false,
        }
    }

    /// Whether what the server sent is no HTTP; over HTTP/2 it is our side that finds so, and says it by a reset.
    pub fn is_malformed(&self) -> bool {
        match self {
            ExchangeFault::Malformed(_) => true,
            ExchangeFault::Http2(error) => {
                let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
                error.is_parse() || cause.is_some_and(h2::Error::is_library)
            }
            _ => false,
        }
    }
}

impl ExchangeFault {
    /// What it says of the server.
    pub fn server_fault(&self) -> ServerFault {
        match self {
            _ if self.is_malformed() => ServerFault::BadResponse,
            ExchangeFault::Reset => ServerFault::Reset,
            ExchangeFault::Connection(error) if is_reset(error) => ServerFault::Reset,
            ExchangeFault::Incomplete | ExchangeFault::Connection(_) => ServerFault::ClosedMidResponse,
            ExchangeFault::Http2(error) => ServerFault::from_http2(error),
            ExchangeFault::NoResponse | ExchangeFault::Malformed(_) | ExchangeFault::Client(_) => {
                ServerFault::Closed
            }
        }
    }
}

impl fmt::Display for ExchangeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeFault::NoResponse => f.write_str("the connection was closed without an answer"),
            ExchangeFault::Reset => f.write_str("the connection was reset without an answer"),
            ExchangeFault::Incomplete => f.write_str("the connection was closed within the answer"),
            ExchangeFault::Connection(error) => write!(f, "the connection broke: {error}"),
            ExchangeFault::Malformed(what) => write!(f, "the answer is no HTTP: {what}"),
            ExchangeFault::Client(fault) => fault.fmt(f),
            ExchangeFault::Http2(error) => error.fmt(f),
        }
    }
}

impl Error for ExchangeFault {}
