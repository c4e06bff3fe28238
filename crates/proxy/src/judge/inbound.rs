//! A request as the client sent it, until it is forwarded or answered here.

use std::rc::Rc;

use http::header::COOKIE;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use http_body::{Body, SizeHint};
use hyper::body::Incoming;
use hyper::ext::Protocol;

use sluicegate_http::net::deadline::ConnectionWatch;
use sluicegate_http::request::body::{RequestBody, STREAM_WINDOW};
use sluicegate_http::request::headers::summary::HeaderSummary;
use sluicegate_http::request::location;

const WEBSOCKET: &str = "websocket";

/// A received request. It is boxed once, so that no later stage moves its head.
pub struct InboundRequest {
    /// The head and the body, which may have been read in part.
    pub request: Request<RequestBody>,
    /// The authority of an absolute target or of HTTP/2; the request's own target no longer contains it.
    pub authority: Option<Authority>,
    /// The request was a CONNECT for a WebSocket, to which any success would say that there is one.
    pub is_websocket_connect: bool,
    /// The special fields of its head, as judged; forwarding uses it again.
    pub summary: HeaderSummary,
    /// The target to send, if it differs from the one that was judged.
    pub target: Option<PathAndQuery>,
}

impl InboundRequest {
    /// A request that hyper has just handed out on the connection of `watch`.
    #[inline]
    pub fn receive(request: Request<Incoming>, watch: &Rc<ConnectionWatch>) -> Box<InboundRequest> {
        InboundRequest::with_body(request, |incoming| RequestBody::receive(incoming, watch))
    }

    /// A request that did not come over a connection.
    pub fn new(request: Request<RequestBody>) -> Box<InboundRequest> {
        InboundRequest::with_body(request, |body| body)
    }

    /// Takes the authority out of the target, and turns an extended CONNECT for a WebSocket (RFC 8441) into the GET
    /// that it stands for. For other protocols it stays a CONNECT, which is not served.
    #[inline]
    fn with_body<B>(request: Request<B>, read_body: impl FnOnce(B) -> RequestBody) -> Box<InboundRequest> {
        let (head, body) = request.into_parts();
        // Boxed before anything else, because each move copies the head.
        let place = Box::new_uninit();
        let inbound = InboundRequest {
            request: Request::from_parts(head, read_body(body)),
            authority: None,
            is_websocket_connect: false,
            summary: HeaderSummary::default(),
            target: None,
        };
        let mut inbound = Box::write(place, inbound);
        let request = &mut inbound.request;
        let is_websocket_connect = *request.method() == Method::CONNECT && is_websocket(request);
        if is_websocket_connect {
            *request.method_mut() = Method::GET;
        }
        if request.version() == Version::HTTP_2 {
            join_cookies(request.headers_mut());
        }
        let authority = location::take_authority(request.uri_mut());
        (inbound.authority, inbound.is_websocket_connect) = (authority, is_websocket_connect);
        inbound
    }

    /// Bytes that the request occupies while it waits: its head, with each field counted as in HTTP/2 (RFC 9113,
    /// section 6.5.2), and the part of its body that a stream may send meanwhile. The body of HTTP/1 stays at the
    /// client, and the part that was read counts in [`BodyMemory`](sluicegate_http::request::body::BodyMemory).
    pub fn waiting_bytes(&self) -> usize {
        let request = &self.request;
        waiting_bytes(request.version(), request.uri(), request.headers(), request.body().size_hint())
    }
}

/// [`InboundRequest::waiting_bytes`] for the parts of a request.
pub fn waiting_bytes(version: Version, uri: &Uri, headers: &HeaderMap, body: SizeHint) -> usize {
    let fields = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let body = match version {
        Version::HTTP_2 => body.upper().unwrap_or(u64::MAX).min(u64::from(STREAM_WINDOW)),
        _ => 0,
    };
    fields.sum::<usize>() + target + body as usize
}

/// Joins the cookie fields. HTTP/2 allows one field per pair, which is one field to every reader (RFC 9113, section
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    if let (Some(_), Some(_)) = (crumbs.next(), crumbs.next()) {
        let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// True if the request asks for a WebSocket by an extended CONNECT.
#[cold]
pub fn is_websocket(request: &Request<RequestBody>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case(WEBSOCKET))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crumbs_of_cookies_become_one_field() {
        let mut headers = HeaderMap::new();
        for crumb in ["a=b", "c=d", "e=f; g=h"] {
            headers.append(COOKIE, HeaderValue::from_static(crumb));
        }
        join_cookies(&mut headers);
        let joined: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(joined, ["a=b; c=d; e=f; g=h"]);
        join_cookies(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
