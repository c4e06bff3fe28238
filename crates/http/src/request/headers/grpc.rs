//! gRPC calls, which are told by their content type, and the codes that end them.

use http::header::{CONTENT_TYPE, HeaderMap};

/// True if the content type is that of a gRPC call, which has trailers in both directions.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let suffix =
        headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    // A longer name, such as `application/grpc-web`, is another protocol.
    matches!(suffix, Some([] | [b'+' | b';' | b' ', ..]))
}

/// The code of a response or of its trailers, 0 to 16; `None` if it has none.
pub fn response_code(headers: &HeaderMap) -> Option<u8> {
    let text = headers.get("grpc-status")?.to_str().ok()?;
    text.parse().ok().filter(|code| *code <= 16)
}
