//! A finished span: the facts of a sampled request and of its end.

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;

use super::SpanContext;

/// Bytes of a path; a longer one is cut.
pub const PATH_MAX: usize = 1024;
/// Bytes of a host; a longer one is cut.
pub const HOST_MAX: usize = 256;
/// Bytes of any other text from a client, like a request's id; a longer one is cut.
pub const TEXT_MAX: usize = 128;

/// The methods that are named as they are.
const METHODS: [Method; 9] = [
    Method::GET,
    Method::POST,
    Method::HEAD,
    Method::PUT,
    Method::DELETE,
    Method::OPTIONS,
    Method::PATCH,
    Method::CONNECT,
    Method::TRACE,
];

/// One request, until it is encoded.
#[derive(Debug, Clone)]
pub struct SpanRecord {
    /// The place of the span in its trace.
    pub context: SpanContext,
    /// The end of the request, in nanoseconds since 1970.
    pub end_unix_ns: u64,
    /// Nanoseconds from the arrival of the request to its end.
    pub duration_ns: u64,
    /// `None` = an unusual one, whose name is in `unusual_method`.
    pub method: Option<Method>,
    /// The text of an unusual method, at most 128 bytes.
    pub unusual_method: Option<Box<str>>,
    /// The path without the query.
    pub path: Box<str>,
    /// The host as sent, with the port.
    pub host: Option<Box<str>>,
    /// The scheme, `http` or `https`, for trusted proxies as they say.
    pub scheme: &'static str,
    /// The version of HTTP, e.g. `1.1`.
    pub version: &'static str,
    /// `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// The id of the request, at most 128 bytes.
    pub request_id: Box<str>,
    /// The name of the location; `None` = no location serves it.
    pub location: Option<Arc<str>>,
    /// The status of the response; 499 = the client left before it.
    pub status: u16,
    /// The verdict of the access log.
    pub verdict: &'static str,
    /// The cause of a fault.
    pub fault: Option<&'static str>,
    /// The limit that rejected the request or made it wait, and the hash of its key there.
    pub limit: Option<Arc<str>>,
    /// The hash of the key's name by `limit`; `None` = no such key, or names are not kept.
    pub key_hash: Option<u64>,
    /// Nanoseconds spent in queues.
    pub wait_ns: u64,
    /// Nanoseconds until the request would fit; `None` = no wait is known to help.
    pub retry_after_ns: Option<u64>,
    /// The last server that was tried, and the time until the head of its response or its last fault.
    pub server: Option<Arc<str>>,
    /// Nanoseconds from sending the request to that head or fault; `None` = no server was tried.
    pub upstream_ns: Option<u64>,
}

/// The method as a span names it, and its text if it is unusual.
pub fn name_method(method: &Method) -> (Option<Method>, Option<Box<str>>) {
    match METHODS.contains(method) {
        true => (Some(method.clone()), None),
        false => (None, Some(cut_text(method.as_str(), TEXT_MAX))),
    }
}

/// The first `max` bytes at most, never cut inside a character.
pub fn cut_text(text: &str, max: usize) -> Box<str> {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].into()
}
