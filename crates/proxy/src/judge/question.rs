//! The question to an auth service about a request: its head, and the key of equal requests.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Request};

use super::facts::RequestHead;
use crate::gateway::auth::RouteAuth;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::request::headers::forwarded::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REAL_IP, peer_value,
};
use sluicegate_http::request::key::KeyHasher;
use sluicegate_http::request::location;
use sluicegate_model::{LocationId, Scheme};

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
// The names by which services know the same behind nginx and ingress-nginx.
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");

/// The question about a request that came by `scheme`.
pub(super) fn build_question(
    auth: &RouteAuth,
    head: &RequestHead<'_>,
    scheme: Scheme,
) -> Request<RequestBody> {
    let mut question = Request::new(RequestBody::Empty);
    *question.uri_mut() = auth.config.target.clone().into();
    let headers = question.headers_mut();
    for name in &auth.config.send {
        headers.extend(head.headers.get_all(name).iter().map(|value| (name.clone(), value.clone())));
    }
    let text = |text: &str| HeaderValue::from_str(text).ok();
    let method = text(head.method.as_str());
    let written = head.uri.path_and_query().map_or("", |target| target.as_str());
    let (target, host) = (text(written), location::named_host(head.headers, head.authority));
    let named = host.as_ref().and_then(|host| host.to_str().ok());
    let url = named.and_then(|host| text(&format!("{}://{host}{written}", scheme.as_str())));
    let ip = (head.client.ip != UNIX_CLIENT).then(|| peer_value(head.client.ip));
    let facts = [
        (X_FORWARDED_METHOD, method.clone()),
        (X_ORIGINAL_METHOD, method),
        (X_FORWARDED_URI, target.clone()),
        (X_ORIGINAL_URI, target),
        (X_ORIGINAL_URL, url),
        (X_FORWARDED_HOST, host),
        (X_FORWARDED_PROTO, Some(HeaderValue::from_static(scheme.as_str()))),
        (X_FORWARDED_FOR, ip.clone()),
        (X_REAL_IP, ip),
    ];
    headers.extend(facts.into_iter().filter_map(|(name, value)| Some((name, value?))));
    question
}

/// The key of the requests for which the answer is the same; `None` = answers are not kept. It is a keyed hash, so the
/// credentials of clients are not kept with the answers.
pub(super) fn hash_request(
    keys: &KeyHasher,
    (route, auth): (LocationId, &RouteAuth),
    head: &RequestHead<'_>,
    scheme: Scheme,
) -> Option<u128> {
    let cache = auth.config.cache.as_ref()?;
    let mut text = Vec::with_capacity(256);
    text.extend_from_slice(&route.0.to_le_bytes());
    text.push(u8::from(scheme == Scheme::Https));
    // Each part has its length in front, so that no two requests have one text.
    let mut push = |part: &[u8]| {
        text.extend_from_slice(&(part.len() as u32).to_le_bytes());
        text.extend_from_slice(part);
    };
    push(location::named_host(head.headers, head.authority).as_ref().map_or(&[], HeaderValue::as_bytes));
    if !cache.ignores_method {
        push(head.method.as_str().as_bytes());
    }
    if !cache.ignores_target {
        push(head.uri.path_and_query().map_or("", |target| target.as_str()).as_bytes());
    }
    match head.client.ip {
        _ if cache.ignores_address => {}
        IpAddr::V4(ip) => push(&ip.octets()),
        IpAddr::V6(ip) => push(&ip.octets()),
    }
    for name in &cache.by {
        let values = head.headers.get_all(name);
        push(&values.iter().count().to_le_bytes());
        values.iter().for_each(|value| push(value.as_bytes()));
    }
    Some(keys.hash_name(&text).id)
}
