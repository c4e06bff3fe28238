//! Converts a request between HTTP/1 (origin form and Host) and HTTP/2 (absolute target).

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Version};
use http_body::Body;

/// Converts a request from HTTP/1 to HTTP/2: Host becomes `:authority`. Returns false and changes nothing if Host is no
/// valid authority.
pub(super) fn to_http2<B>(request: &mut Request<B>, scheme: &Scheme) -> bool {
    let authority = match request.headers().get(HOST) {
        Some(host) => Authority::from_maybe_shared(bytes::Bytes::copy_from_slice(host.as_bytes())),
        None => return false,
    };
    let Ok(authority) = authority else { return false };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(scheme.clone());
    parts.authority = Some(authority);
    let target = parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/")).clone();
    let Ok(uri) = Uri::from_parts(parts) else {
        *request.uri_mut() = Uri::from(target);
        return false;
    };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
    request.headers_mut().remove(TRANSFER_ENCODING);
    normalise_length(request.headers_mut());
    true
}

/// Removes leading zeros from Content-Length.
fn normalise_length(headers: &mut HeaderMap) {
    if let Some(length) = headers.get_mut(CONTENT_LENGTH)
        && let [b'0', _, ..] = length.as_bytes()
        && let Some(number) = length.to_str().ok().and_then(|text| text.parse::<u64>().ok())
    {
        *length = HeaderValue::from(number);
    }
}

/// Undoes [`to_http2`].
pub(super) fn to_http1<B: Body>(request: &mut Request<B>) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let target = parts.path_and_query.take().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(target);
    *request.version_mut() = Version::HTTP_11;
    let is_chunked = !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH);
    let headers = request.headers_mut();
    if let Some(authority) = parts.authority
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    if is_chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};

    use super::*;

    fn both_ways<B: Body>(mut request: Request<B>, target: &str) {
        let before = (request.uri().clone(), request.headers().clone(), request.version());
        assert!(to_http2(&mut request, &Scheme::HTTPS));
        assert_eq!(request.uri().to_string(), target);
        assert_eq!(request.version(), Version::HTTP_2);
        assert!(!request.headers().contains_key(HOST) && !request.headers().contains_key(TRANSFER_ENCODING));
        to_http1(&mut request);
        assert_eq!(before, (request.uri().clone(), request.headers().clone(), request.version()));
    }

    #[test]
    fn a_conversion_can_be_undone() {
        let build = |target: &str| Request::builder().uri(target).header(HOST, "a.test:81");
        both_ways(build("/x?y").body(Empty::<Bytes>::new()).unwrap(), "https://a.test:81/x?y");
        both_ways(build("/").body(Empty::<Bytes>::new()).unwrap(), "https://a.test:81/");
        let chunked = build("/up").header(TRANSFER_ENCODING, "chunked");
        both_ways(chunked.body(Full::new(Bytes::from("body"))).unwrap(), "https://a.test:81/up");
        let sized = build("/up").header(CONTENT_LENGTH, "4");
        both_ways(sized.body(Full::new(Bytes::from("body"))).unwrap(), "https://a.test:81/up");
    }

    #[test]
    fn a_length_is_written_as_a_number() {
        for (length, written) in [("3", "3"), ("003", "3"), ("00", "0"), ("0", "0"), ("30", "30")] {
            let request = Request::post("/up").header(HOST, "a.test").header(CONTENT_LENGTH, length);
            let mut request = request.body(Empty::<Bytes>::new()).unwrap();
            assert!(to_http2(&mut request, &Scheme::HTTP));
            assert_eq!(request.headers()[CONTENT_LENGTH], written, "{length}");
        }
    }

    #[test]
    fn options_of_a_whole_server_keep_their_target() {
        let mut request = Request::options("*").header(HOST, "a.test").body(Empty::<Bytes>::new()).unwrap();
        assert!(to_http2(&mut request, &Scheme::HTTP));
        assert_eq!(request.uri().path(), "*");
        to_http1(&mut request);
        assert_eq!(request.uri().to_string(), "*");
    }

    #[test]
    fn a_host_that_is_no_authority_leaves_the_request_as_it_was() {
        let mut request = Request::get("/x").header(HOST, "a b").body(Empty::<Bytes>::new()).unwrap();
        assert!(!to_http2(&mut request, &Scheme::HTTP));
        assert_eq!((request.uri().to_string().as_str(), request.version()), ("/x", Version::HTTP_11));
        assert!(!to_http2(&mut Request::get("/x").body(Empty::<Bytes>::new()).unwrap(), &Scheme::HTTP));
    }
}
