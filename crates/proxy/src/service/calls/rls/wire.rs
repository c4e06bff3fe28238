//! gRPC over HTTP/2, as far as one message there and one back need it: framing, deadlines and statuses.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;

use crate::forward::GrpcFrames;
use crate::reject::Fault;

pub(super) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Bytes before a message: a flag, and its length.
const PREFIX_BYTES: usize = 5;

/// The characters that `grpc-message` must escape: all but printable ASCII, and the percent sign.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service::calls) struct RlsFault {
    /// The number of the gRPC status.
    pub status: &'static str,
    /// Empty = none.
    pub message: String,
    /// The same over plain HTTP.
    pub http_status: StatusCode,
    /// The caller sends a compression that this service does not read.
    pub lists_encodings: bool,
}

// === impl RlsFault ===

impl RlsFault {
    pub(super) fn invalid(message: impl Into<String>) -> RlsFault {
        RlsFault::new("3", message, StatusCode::BAD_REQUEST)
    }

    pub(super) fn unimplemented(message: impl Into<String>) -> RlsFault {
        RlsFault::new("12", message, StatusCode::NOT_FOUND)
    }

    pub(super) fn of_gateway(fault: Fault) -> RlsFault {
        RlsFault::new(fault.grpc_status(), fault.detail(), fault.status())
    }

    /// The same number, for answers without gRPC.
    pub(super) fn code(&self) -> u8 {
        self.status.parse().unwrap_or(2)
    }

    pub(super) fn new(status: &'static str, message: impl Into<String>, http_status: StatusCode) -> RlsFault {
        RlsFault { status, message: message.into(), http_status, lists_encodings: false }
    }

    /// The whole answer: a head alone, with the fields of trailers.
    pub(super) fn render(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.status));
        let escaped = utf8_percent_encode(&self.message, ESCAPED).to_string();
        if let Ok(message) = HeaderValue::from_str(&escaped)
            && !escaped.is_empty()
        {
            headers.insert(GRPC_MESSAGE, message);
        }
        if self.lists_encodings {
            headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
        }
        response
    }
}

/// Why messages come compressed although this service reads none of them.
pub(super) fn compressed() -> RlsFault {
    let message = "messages must not be compressed";
    RlsFault { lists_encodings: true, ..RlsFault::unimplemented(message) }
}

/// The only message in a body.
///
/// # Errors
/// The body is no single message, or it is compressed.
pub(super) fn read_message<M: Message + Default>(body: &[u8]) -> Result<M, RlsFault> {
    let Some((prefix, rest)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RlsFault::invalid("the body has no message"));
    };
    let [flag, length @ ..] = *prefix;
    match flag {
        0 => {}
        1 => return Err(compressed()),
        _ => return Err(RlsFault::invalid("the flag before the message is unknown")),
    }
    if rest.len() as u64 != u64::from(u32::from_be_bytes(length)) {
        let message = "the body is not one message of the length that stands before it";
        return Err(RlsFault::invalid(message));
    }
    M::decode(rest).map_err(|error| RlsFault::invalid(error.to_string()))
}

/// A message with its prefix.
pub(super) fn frame_message(message: &impl Message) -> Frame<Bytes> {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    // Cannot overflow: answers are far below 4 GiB.
    framed.put_u32(length as u32);
    // Cannot fail: the buffer grows.
    let _ = message.encode(&mut framed);
    Frame::data(framed.freeze())
}

/// An answer of one message.
pub(super) fn render_unary(message: &impl Message) -> Response<GrpcFrames> {
    render_frames(stream::iter([frame_message(message), trailers("0", "")]))
}

pub(super) fn render_frames(frames: impl Stream<Item = Frame<Bytes>> + 'static) -> Response<GrpcFrames> {
    let mut response = Response::new(Box::pin(frames) as GrpcFrames);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The end of an answer; an empty `message` is none.
pub(super) fn trailers(status: &'static str, message: &'static str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static(status));
    if !message.is_empty() {
        trailers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    }
    Frame::trailers(trailers)
}

/// The time that the caller allows; `None` = any.
///
/// # Errors
/// The field is malformed.
pub(super) fn read_timeout(headers: &HeaderMap) -> Result<Option<Duration>, RlsFault> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let wrong = || RlsFault::invalid("grpc-timeout must be up to eight digits and a unit, such as 20m");
    let text = value.to_str().map_err(|_| wrong())?;
    let (digits, unit) = text.split_at_checked(text.len().wrapping_sub(1)).ok_or_else(wrong)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    Ok(Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::messages::HealthCheckRequest;
    use super::*;

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(text));
            read_timeout(&headers).map_err(|fault| fault.status)
        };
        for (text, expected) in [
            ("20m", Duration::from_millis(20)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
            ("1M", Duration::from_secs(60)),
            ("0S", Duration::ZERO),
            ("7u", Duration::from_micros(7)),
            ("1n", Duration::from_nanos(1)),
        ] {
            assert_eq!(read(text), Ok(Some(expected)), "{text}");
        }
        for wrong in ["", "m", "20", "20x", "123456789n", "-1S", "1.5S", " 1S"] {
            assert_eq!(read(wrong), Err("3"), "{wrong}");
        }
        assert_eq!(read_timeout(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn a_body_is_exactly_one_message() {
        let message = HealthCheckRequest { service: "a".to_owned() };
        let framed = frame_message(&message).into_data().unwrap();
        assert_eq!(framed, [0, 0, 0, 0, 3, 10, 1, b'a'].as_slice());
        assert_eq!(read_message::<HealthCheckRequest>(&framed), Ok(message));
        for wrong in
            [&framed[..7], &framed[..4], &[], &[2, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 1, 0xff]]
        {
            let fault = read_message::<HealthCheckRequest>(wrong).unwrap_err();
            assert_eq!(fault.status, "3", "{wrong:?}");
        }
        let fault = read_message::<HealthCheckRequest>(&[1, 0, 0, 0, 0]).unwrap_err();
        assert_eq!((fault.status, fault.lists_encodings), ("12", true));
    }

    #[test]
    fn messages_are_percent_encoded() {
        let response = RlsFault::invalid("50% of ü\n").render();
        assert_eq!(response.headers()["grpc-message"], "50%25 of %C3%BC%0A");
        assert_eq!(response.headers()["grpc-status"], "3");
    }
}
