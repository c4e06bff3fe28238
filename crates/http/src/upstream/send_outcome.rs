//! The outcome of sending a request to a server, and the faults that break an exchange.

use std::error::Error;
use std::io;

use http::StatusCode;

use super::fault::{ServerFault, is_reset};
use crate::request::body::BodyFault;

/// The outcome of a request that was given to a connection. The caller still has its head; its body only if nothing was
/// sent.
pub enum SendOutcome {
    /// The status of the response, which is in its slot.
    Responded(StatusCode),
    /// Nothing was sent, or the server has certainly not begun to process it.
    Unsent,
    /// The exchange broke after a part of the request was sent.
    Failed(ExchangeFault),
}

/// The reason why an exchange with a server broke.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeFault {
    /// The server closed before the first byte of a response.
    #[error("the connection was closed without a response")]
    NoResponse,
    /// The server reset before the first byte of a response.
    #[error("the connection was reset without a response")]
    Reset,
    /// The server closed within its response.
    #[error("the connection was closed within the response")]
    Incomplete,
    /// The connection broke with this error.
    #[error("the connection broke: {0}")]
    Connection(io::Error),
    /// The response is not valid HTTP.
    #[error("the response is not valid HTTP: {0}")]
    Malformed(&'static str),
    /// The client broke its request body.
    #[error("{0}")]
    Client(BodyFault),
    /// The stream or the connection of HTTP/2 broke with this error.
    #[error("{0}")]
    Http2(hyper::Error),
}

/// The reason why a server has certainly not begun to process a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnprocessedCause {
    /// RST_STREAM with REFUSED_STREAM (RFC 9113, 8.7).
    RefusedStream,
    /// GOAWAY with a lower stream number than the request's (RFC 9113, 6.8).
    GoAway,
}

impl ExchangeFault {
    /// True if the server has certainly not begun to process the request.
    pub fn is_unprocessed(&self) -> bool {
        matches!(self, ExchangeFault::Http2(error) if UnprocessedCause::of(error).is_some())
    }

    /// True if the connection ended before the first byte of a response.
    pub fn has_no_response(&self) -> bool {
        match self {
            ExchangeFault::NoResponse | ExchangeFault::Reset => true,
            ExchangeFault::Http2(error) => !error.is_parse() && !error.is_user() && !error.is_timeout(),
            _ => false,
        }
    }

    /// True if the response is not valid HTTP; over HTTP/2 this side detects that, and resets the stream.
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

    /// The fault of the server.
    pub fn server_fault(&self) -> ServerFault {
        match self {
            _ if self.is_malformed() => ServerFault::BadResponse,
            ExchangeFault::Reset => ServerFault::Reset,
            ExchangeFault::Connection(error) if is_reset(error) => ServerFault::Reset,
            ExchangeFault::Connection(error) => {
                ServerFault::from_alert(error).unwrap_or(ServerFault::ClosedMidResponse)
            }
            ExchangeFault::Incomplete => ServerFault::ClosedMidResponse,
            ExchangeFault::Http2(error) => ServerFault::from_http2(error),
            ExchangeFault::NoResponse | ExchangeFault::Malformed(_) | ExchangeFault::Client(_) => {
                ServerFault::Closed
            }
        }
    }
}

// === impl UnprocessedCause ===

impl UnprocessedCause {
    pub(super) fn of(error: &hyper::Error) -> Option<UnprocessedCause> {
        let error = error.source()?.downcast_ref::<h2::Error>()?;
        if !error.is_remote() {
            None
        } else if error.is_go_away() {
            Some(UnprocessedCause::GoAway)
        } else {
            (error.reason() == Some(h2::Reason::REFUSED_STREAM)).then_some(UnprocessedCause::RefusedStream)
        }
    }
}
