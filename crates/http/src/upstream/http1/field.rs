//! One field of a response head or trailer, and the errors of the parser in words.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};

/// The reason why a response is malformed.
pub(super) type MalformedResponse = &'static str;

/// The name of a parsed field, and its value as a slice of `text`.
///
/// # Errors
/// The name or the value is invalid, although the parser accepted it.
pub(super) fn parse_field(
    text: &Bytes,
    field: &httparse::Header<'_>,
) -> Result<(HeaderName, HeaderValue), MalformedResponse> {
    let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "a field name is invalid")?;
    let value = HeaderValue::from_maybe_shared(text.slice_ref(field.value))
        .map_err(|_| "a field value is invalid")?;
    Ok((name, value))
}

pub(super) fn describe_error(error: httparse::Error) -> MalformedResponse {
    match error {
        httparse::Error::HeaderName => "a field name is invalid",
        httparse::Error::HeaderValue => "a field value is invalid",
        httparse::Error::NewLine => "a line end is invalid",
        httparse::Error::Status => "its status is invalid",
        httparse::Error::Token => "its status line is invalid",
        httparse::Error::TooManyHeaders => "it has too many fields",
        httparse::Error::Version => "its version is unknown",
    }
}
