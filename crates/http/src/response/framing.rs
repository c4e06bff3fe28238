//! The documents in a body, by its content type.

use http::HeaderValue;

use super::aws_framing::AwsFraming;
use super::event_framing::{EventFraming, FramePiece};

/// The form of the documents in a body, with the state between its pieces.
#[derive(Debug, Clone, Copy)]
pub(super) enum BodyFraming {
    /// The body is one document.
    Document,
    Events(EventFraming),
    Messages(AwsFraming),
    /// Each line is a document.
    Lines,
    /// Compressed, or of a type that is not read.
    Opaque,
}

/// Types of JSON by lines; the last is that of Cohere.
const LINE_TYPES: [&[u8]; 3] = [b"application/x-ndjson", b"application/jsonl", b"application/stream+json"];

// === impl BodyFraming ===

impl BodyFraming {
    pub(super) fn new(content_type: Option<&HeaderValue>, content_encoding: Option<&HeaderValue>) -> Self {
        let is_plain = content_encoding.is_none_or(|encoding| is_word(encoding.as_bytes(), b"identity"));
        let Some(content_type) = content_type.filter(|_| is_plain) else { return BodyFraming::Opaque };
        let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let is_type = |name: &[u8]| is_word(essence, name);
        if is_type(b"text/event-stream") {
            BodyFraming::Events(EventFraming::default())
        } else if LINE_TYPES.iter().any(|name| is_type(name)) {
            BodyFraming::Lines
        } else if is_type(b"application/vnd.amazon.eventstream") {
            BodyFraming::Messages(AwsFraming::default())
        } else if is_type(b"application/json") || is_json_suffix(essence) {
            BodyFraming::Document
        } else {
            BodyFraming::Opaque
        }
    }

    pub(super) fn scan(&mut self, bytes: &[u8], mut each: impl FnMut(FramePiece<'_>)) {
        match self {
            BodyFraming::Document => each(FramePiece::Data(bytes)),
            BodyFraming::Events(stream) => stream.scan(bytes, each),
            BodyFraming::Messages(stream) => stream.scan(bytes, each),
            BodyFraming::Lines => {
                let mut start = 0;
                for end in memchr::memchr_iter(b'\n', bytes) {
                    each(FramePiece::Data(&bytes[start..end]));
                    each(FramePiece::End);
                    start = end + 1;
                }
                each(FramePiece::Data(&bytes[start..]));
            }
            BodyFraming::Opaque => {}
        }
    }
}

fn is_word(text: &[u8], word: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(word)
}

/// True if a media type is JSON by its suffix (RFC 6839), as `application/problem+json` is.
fn is_json_suffix(essence: &[u8]) -> bool {
    let essence = essence.trim_ascii();
    essence.len().checked_sub(b"+json".len()).is_some_and(|at| essence[at..].eq_ignore_ascii_case(b"+json"))
}
