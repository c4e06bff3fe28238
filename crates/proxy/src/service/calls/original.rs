//! The request that another proxy received, read from the head of its call to `/auth`.
//!
//! The headers of the client come along, so the names that describe the request must be those that a proxy overwrites:
//! a proxy that forgets one of them is told so, and nothing takes the place of a missing one.

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Uri, Version};

use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::ClientIp;
use sluicegate_http::request::headers::forwarded::{self, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use sluicegate_model::Scheme;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// Asks for a status that nginx understands.
const X_AUTH_STATUS: HeaderName = HeaderName::from_static("x-auth-status");
/// The token of the proxy: `Authorization` is its client's.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("sluicegate-token");

/// Fields that concern the call, or the hop to the proxy, so no request can be judged by them.
const OF_CALL: [HeaderName; 9] = [
    X_FORWARDED_METHOD,
    X_FORWARDED_URI,
    X_AUTH_STATUS,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    EXPECT,
    CONNECTION,
    UPGRADE,
    TE,
];

/// Why a call to `/auth` is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeaderFault {
    /// The header at fault, or the field of the configuration.
    pub field: String,
    pub message: String,
    /// The access log names it.
    pub reason: &'static str,
}

/// True if a proxy wants 403 for every refusal but 401; headers then say which it was.
///
/// # Errors
/// The header has another value than 403, or several.
pub(super) fn wants_forbidden(headers: &HeaderMap) -> Result<bool, HeaderFault> {
    match single(headers, &X_AUTH_STATUS)?.map(HeaderValue::as_bytes) {
        None => Ok(false),
        Some(b"403") => Ok(true),
        Some(_) => Err(HeaderFault::malformed(&X_AUTH_STATUS, "must be 403")),
    }
}

/// Makes a request as another proxy received it, with its scheme, from the head of the call. `clients` tells which
/// header names the client.
///
/// # Errors
/// A header is missing, repeated or malformed.
pub(super) fn read_original(
    mut call: Parts,
    clients: &ClientIp,
) -> Result<(Request<RequestBody>, Scheme), HeaderFault> {
    let headers = &call.headers;
    if !headers.contains_key(clients.header()) {
        return Err(HeaderFault::missing(clients.header()));
    }
    let method = Method::from_bytes(required(headers, &X_FORWARDED_METHOD)?.as_bytes())
        .map_err(|_| HeaderFault::malformed(&X_FORWARDED_METHOD, "must be a method such as GET"))?;
    let target = required(headers, &X_FORWARDED_URI)?;
    let uri = read_target(target).ok_or_else(|| {
        HeaderFault::malformed(&X_FORWARDED_URI, "must be a path that begins with /, and its query")
    })?;
    let scheme = forwarded::parse_scheme(required(headers, &X_FORWARDED_PROTO)?)
        .ok_or_else(|| HeaderFault::malformed(&X_FORWARDED_PROTO, "must be http or https"))?;
    let host = required(headers, &X_FORWARDED_HOST)?.clone();
    OF_CALL.iter().for_each(|name| drop(call.headers.remove(name)));
    call.headers.insert(HOST, host);
    (call.method, call.uri, call.version) = (method, uri, Version::HTTP_11);
    call.extensions.clear();
    Ok((Request::from_parts(call, RequestBody::Empty), scheme))
}

/// A target in origin form, or `*`. The absolute form would name a second host.
fn read_target(value: &HeaderValue) -> Option<Uri> {
    let is_in_form = value.as_bytes().starts_with(b"/") || value.as_bytes() == b"*";
    let target = PathAndQuery::try_from(value.as_bytes()).ok().filter(|_| is_in_form)?;
    Some(Uri::from(target))
}

/// The value of a header that a proxy writes once.
fn required<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h HeaderValue, HeaderFault> {
    let value = single(headers, name)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| HeaderFault::missing(name))
}

/// The value of a header that may be absent.
///
/// # Errors
/// It has several values: the second one may be the client's.
pub(super) fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, HeaderFault> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    match values.next() {
        None => Ok(value),
        Some(_) => Err(HeaderFault {
            field: shown_name(name),
            message: format!("the header {} is given more than once", shown_name(name)),
            reason: "repeated header",
        }),
    }
}

// === impl HeaderFault ===

impl HeaderFault {
    fn missing(name: &HeaderName) -> HeaderFault {
        let name = shown_name(name);
        let message = format!("the header {name} is missing or empty: the proxy must set it");
        HeaderFault { field: name, message, reason: "missing header" }
    }

    fn malformed(name: &HeaderName, demand: &str) -> HeaderFault {
        let name = shown_name(name);
        let message = format!("the header {name} {demand}");
        HeaderFault { field: name, message, reason: "malformed header" }
    }
}

/// The name with the capitals that manuals write it with.
fn shown_name(name: &HeaderName) -> String {
    let mut after_dash = true;
    let capital = |letter: char| {
        let shown = if after_dash { letter.to_ascii_uppercase() } else { letter };
        after_dash = letter == '-';
        shown
    };
    name.as_str().chars().map(capital).collect()
}
