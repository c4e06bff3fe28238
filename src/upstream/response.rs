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

use super::fault::{Trouble, is_reset};
use super::http1;
use crate::request::body::BodyFault;

/// The head of an answer, once it came; in a place of its own, because it is large and passes many hands.
pub type Answer = Option<Response<ServerBody>>;

/// What became of a request that was handed to a connection. Its head is still in its place; its body only if nothing
/// was sent.
pub enum Sent {
    /// With this status; the answer is in its place.
    Answered(StatusCode),
    /// Nothing was sent, or the server has certainly not begun with it.
    Unsent,
    Failed(ExchangeError),
}

/// The body of a server's answer.
pub enum ServerBody {
    Http1(http1::AnswerBody),
    Http2(Incoming),
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = ExchangeError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        match self.get_mut() {
            ServerBody::Http1(body) => body.poll_frame(cx),
            ServerBody::Http2(body) => Poll::Ready(match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                // A stream that is reset without an error has no more, but is no whole body.
                None if !body.is_end_stream() => Some(Err(ExchangeError::Incomplete)),
                next => next.map(|frame| frame.map_err(ExchangeError::Http2)),
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
pub enum ExchangeError {
    /// The server closed before the first byte of an answer.
    Unanswered,
    /// The same by a reset.
    Reset,
    /// The server closed in the middle of its answer.
    Incomplete,
    Connection(io::Error),
    /// What came is no HTTP.
    Garbled(&'static str),
    /// The client broke its request body.
    Client(BodyFault),
    Http2(hyper::Error),
}

impl ExchangeError {
    /// Whether the connection ended before a single byte of an answer.
    pub fn is_unanswered(&self) -> bool {
        match self {
            ExchangeError::Unanswered | ExchangeError::Reset => true,
            ExchangeError::Http2(error) => !error.is_parse() && !error.is_user() && !error.is_timeout(),
            _ => false,
        }
    }

    /// Whether what the server sent is no HTTP; over HTTP/2 it is our side that finds so, and says it by a reset.
    pub fn is_garbled(&self) -> bool {
        match self {
            ExchangeError::Garbled(_) => true,
            ExchangeError::Http2(error) => {
                let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
                error.is_parse() || cause.is_some_and(h2::Error::is_library)
            }
            _ => false,
        }
    }
}

impl ExchangeError {
    /// What it says of the server.
    pub fn trouble(&self) -> Trouble {
        match self {
            _ if self.is_garbled() => Trouble::BadAnswer,
            ExchangeError::Reset => Trouble::Reset,
            ExchangeError::Connection(error) if is_reset(error) => Trouble::Reset,
            ExchangeError::Incomplete | ExchangeError::Connection(_) => Trouble::ClosedWithin,
            ExchangeError::Http2(error) => Trouble::of_http2(error),
            ExchangeError::Unanswered | ExchangeError::Garbled(_) | ExchangeError::Client(_) => {
                Trouble::Closed
            }
        }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExchangeError::Unanswered => f.write_str("the connection was closed without an answer"),
            ExchangeError::Reset => f.write_str("the connection was reset without an answer"),
            ExchangeError::Incomplete => f.write_str("the connection was closed within the answer"),
            ExchangeError::Connection(error) => write!(f, "the connection broke: {error}"),
            ExchangeError::Garbled(what) => write!(f, "the answer is no HTTP: {what}"),
            ExchangeError::Client(fault) => fault.fmt(f),
            ExchangeError::Http2(error) => error.fmt(f),
        }
    }
}

impl Error for ExchangeError {}
