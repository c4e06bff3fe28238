//! A client's wish to speak something else than HTTP: what is asked of the upstream for it, and what it must answer.
//!
//! Over HTTP/1 it is an Upgrade (RFC 9110, section 7.8), over HTTP/2 an extended CONNECT (RFC 8441), which becomes an
//! Upgrade on the way.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};
use hyper::body::Body;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;

use crate::request::body::RequestBody;
use crate::request::headers::hop_by_hop::{HopOptions, list_members};

const WEBSOCKET: &str = "websocket";
/// What RFC 6455 (section 1.3) adds to a key before it is hashed.
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes of a key before they are encoded.
const KEY_BYTES: usize = 16;
/// Upgrades that would bring HTTP back in, past everything that judges requests; they are never asked for.
const FORBIDDEN_PROTOCOLS: [&str; 4] = ["h2c", "h2", "http", "tls"];

/// What a client wants to speak.
pub enum UpgradeRequest {
    /// Over HTTP/1: the Upgrade field as it was sent.
    Upgrade(HeaderValue),
    /// Over a stream of HTTP/2, which comes out of `client` once the switch is answered.
    WebSocket { key: HeaderValue, client: OnUpgrade },
}

/// Makes an extended CONNECT for a WebSocket the GET that it stands for, and tells whether it was one; other protocols
/// stay a CONNECT, which is not served.
#[inline]
pub fn rewrite_connect(request: &mut Request<RequestBody>) -> bool {
    let is_one = *request.method() == Method::CONNECT && is_websocket(request);
    if is_one {
        *request.method_mut() = Method::GET;
    }
    is_one
}

#[cold]
fn is_websocket(request: &Request<RequestBody>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case(WEBSOCKET))
}

impl UpgradeRequest {
    /// The wish of a request that came as `version` and whose hop-by-hop fields are `asked`. A request with a body
    /// has none: what follows its head is not what the new protocol begins with.
    pub fn from_request(
        version: Version,
        asked: &mut HopOptions,
        request: &mut Request<RequestBody>,
    ) -> Option<UpgradeRequest> {
        if version == Version::HTTP_2 {
            return if is_websocket(request) { UpgradeRequest::from_stream(request) } else { None };
        }
        let upgrade = asked.upgrade.take()?;
        let is_fit =
            version == Version::HTTP_11 && request.body().is_end_stream() && is_upgrade_allowed(&upgrade);
        is_fit.then_some(UpgradeRequest::Upgrade(upgrade))
    }

    fn from_stream(request: &mut Request<RequestBody>) -> Option<UpgradeRequest> {
        let mut dice = [0; KEY_BYTES];
        rand::fill(&mut dice).ok()?;
        let key = HeaderValue::from_str(&STANDARD.encode(dice)).ok()?;
        Some(UpgradeRequest::WebSocket { key, client: hyper::upgrade::on(request) })
    }

    /// Has the request ask for it.
    pub fn add_upgrade_fields(&self, headers: &mut HeaderMap) {
        let upgrade = match self {
            UpgradeRequest::Upgrade(upgrade) => upgrade.clone(),
            UpgradeRequest::WebSocket { key, .. } => {
                headers.insert(SEC_WEBSOCKET_KEY, key.clone());
                HeaderValue::from_static(WEBSOCKET)
            }
        };
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    }

    /// The protocol that an answer with status 101 switches to, if it is the one that was asked for.
    pub fn granted_protocol(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut lines = headers.get_all(UPGRADE).iter();
        let (Some(granted), None) = (lines.next(), lines.next()) else { return None };
        let is_named =
            headers.get_all(CONNECTION).iter().flat_map(list_members).any(|one| is_member(one, "upgrade"));
        let is_asked = match self {
            UpgradeRequest::Upgrade(asked) => list_members(granted)
                .all(|one| list_members(asked).any(|asked| one.eq_ignore_ascii_case(asked))),
            UpgradeRequest::WebSocket { key, .. } => {
                is_member(granted.as_bytes(), WEBSOCKET)
                    && headers.get(SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| *accept == accept_value(key))
            }
        };
        (is_named && is_asked).then(|| granted.clone())
    }

    /// Makes the head of the upstream's answer the one that tells the client of the switch; it has no hop-by-hop
    /// fields any more.
    pub fn write_switch_head(&self, granted: HeaderValue, headers: &mut HeaderMap) -> StatusCode {
        // Nothing that follows this head is HTTP.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        match self {
            UpgradeRequest::Upgrade(_) => {
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(UPGRADE, granted);
                StatusCode::SWITCHING_PROTOCOLS
            }
            UpgradeRequest::WebSocket { .. } => {
                headers.remove(SEC_WEBSOCKET_ACCEPT);
                StatusCode::OK
            }
        }
    }

    /// Whether an answer that is no switch may be passed on. To a CONNECT any success would say that there is one.
    pub fn may_pass_on(&self, status: StatusCode) -> bool {
        matches!(self, UpgradeRequest::Upgrade(_)) || !status.is_success()
    }
}

/// Whether every member is a protocol that may be asked for.
fn is_upgrade_allowed(upgrade: &HeaderValue) -> bool {
    let is_fit = |protocol: &[u8]| {
        let mut parts = protocol.splitn(2, |&byte| byte == b'/');
        let name = parts.next().unwrap_or_default();
        is_token(name)
            && parts.next().is_none_or(is_token)
            && !FORBIDDEN_PROTOCOLS.iter().any(|never| name.eq_ignore_ascii_case(never.as_bytes()))
    };
    list_members(upgrade).all(is_fit)
}

fn is_member(member: &[u8], name: &str) -> bool {
    member.eq_ignore_ascii_case(name.as_bytes())
}

/// RFC 9110's `token`.
fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// The Sec-WebSocket-Accept that answers `key` (RFC 6455, section 4.2.2).
fn accept_value(key: &HeaderValue) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), ACCEPT_SALT].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrade_request(upgrade: &'static str) -> UpgradeRequest {
        UpgradeRequest::Upgrade(HeaderValue::from_static(upgrade))
    }

    fn response_headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn http_within_http_is_never_asked_for() {
        for (upgrade, may) in [
            ("websocket", true),
            ("WebSocket", true),
            ("foo/1", true),
            ("proto1, websocket, proto2", true),
            ("h2c", false),
            ("H2C", false),
            ("websocket, h2c", false),
            ("h2c,websocket", false),
            ("HTTP/2.0", false),
            ("TLS/1.2", false),
            ("", false),
            ("websocket,", false),
            ("web socket", false),
            ("foo/", false),
        ] {
            assert_eq!(is_upgrade_allowed(&HeaderValue::from_static(upgrade)), may, "{upgrade}");
        }
    }

    #[test]
    fn only_what_was_asked_for_is_granted() {
        let asked = upgrade_request("proto1, websocket");
        for (lines, granted) in [
            (&[("connection", "upgrade"), ("upgrade", "websocket")][..], true),
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")], true),
            (&[("upgrade", "websocket")], false),
            (&[("connection", "upgrade")], false),
            (&[("connection", "upgrade"), ("upgrade", "h2c")], false),
            (&[("connection", "upgrade"), ("upgrade", "websocket, h2c")], false),
            (&[("connection", "upgrade"), ("upgrade", "proto1"), ("upgrade", "websocket")], false),
        ] {
            assert_eq!(asked.granted_protocol(&response_headers(lines)).is_some(), granted, "{lines:?}");
        }
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn a_key_is_answered_by_its_hash() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept_value(&key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
