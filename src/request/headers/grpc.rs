//! gRPC calls, which are told by their content type.

use http::header::{CONTENT_TYPE, HeaderMap};

/// Whether the content type is that of a gRPC call, which has trailers in both directions.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let suffix =
        headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    // A longer name, such as `application/grpc-web`, is another protocol.
    matches!(suffix, Some([] | [b'+' | b';' | b' ', ..]))
}
