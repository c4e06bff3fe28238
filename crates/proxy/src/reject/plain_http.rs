//! The answer to plain HTTP where TLS is required, sent before any request is parsed.

/// The whole answer to a plain HTTP request on a port that speaks TLS.
pub const PLAIN_HTTP_ON_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 41\r\n\r\nThis port speaks HTTPS, not plain HTTP.\r\n";
