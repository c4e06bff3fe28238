//! Requests to switch to another protocol: their fields towards the upstream, and the check of its response.
//!
//! Over HTTP/1 it is an Upgrade (RFC 9110, section 7.8), over HTTP/2 an extended CONNECT (RFC 8441), which is
//! translated into an Upgrade.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Version};
use hyper::body::Body;
use hyper::upgrade::OnUpgrade;

use crate::judge::inbound::is_websocket;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::headers::hop_by_hop::{HopOptions, list_members};

const WEBSOCKET: &str = "websocket";
/// The text that RFC 6455 (section 1.3) appends to a key before it is hashed.
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes of a key before encoding.
const KEY_BYTES: usize = 16;
/// Protocols that are never requested: HTTP inside the upgraded connection would bypass the judgement of requests.
const FORBIDDEN_PROTOCOLS: [&str; 4] = ["h2c", "h2", "http", "tls"];

/// The protocol that a client asks to switch to.
pub(super) enum UpgradeRequest {
    /// Over HTTP/1, with the Upgrade field as it was sent.
    Upgrade(HeaderValue),
    /// Over an HTTP/2 stream, which `client` yields once the response has switched it.
    WebSocket { key: HeaderValue, client: OnUpgrade },
}

impl UpgradeRequest {
    /// The upgrade that a request of this `version` asks for in its `hop_options`. A request with a body cannot
    /// upgrade, because the bytes after its head do not belong to the new protocol.
    pub(super) fn from_request(
        version: Version,
        hop_options: &mut HopOptions,
        request: &mut Request<RequestBody>,
    ) -> Option<UpgradeRequest> {
        if version == Version::HTTP_2 {
            return if is_websocket(request) { UpgradeRequest::from_stream(request) } else { None };
        }
        let upgrade = hop_options.upgrade.take()?;
        let is_fit =
            version == Version::HTTP_11 && request.body().is_end_stream() && is_upgrade_allowed(&upgrade);
        is_fit.then_some(UpgradeRequest::Upgrade(upgrade))
    }

    fn from_stream(request: &mut Request<RequestBody>) -> Option<UpgradeRequest> {
        let mut random_bytes = [0; KEY_BYTES];
        rand::fill(&mut random_bytes).ok()?;
        let key = HeaderValue::from_str(&STANDARD.encode(random_bytes)).ok()?;
        Some(UpgradeRequest::WebSocket { key, client: hyper::upgrade::on(request) })
    }

    /// Adds the fields that ask the upstream for the switch.
    pub(super) fn add_upgrade_fields(&self, headers: &mut HeaderMap) {
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

    /// The protocol that a response with status 101 switches to, if the client asked for it.
    pub(super) fn granted_protocol(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut lines = headers.get_all(UPGRADE).iter();
        let (Some(granted), None) = (lines.next(), lines.next()) else { return None };
        let is_named =
            headers.get_all(CONNECTION).iter().flat_map(list_members).any(|one| is_member(one, "upgrade"));
        let is_requested = match self {
            UpgradeRequest::Upgrade(requested) => list_members(granted)
                .all(|one| list_members(requested).any(|requested| one.eq_ignore_ascii_case(requested))),
            UpgradeRequest::WebSocket { key, .. } => {
                is_member(granted.as_bytes(), WEBSOCKET)
                    && headers.get(SEC_WEBSOCKET_ACCEPT).is_some_and(|accept| *accept == accept_value(key))
            }
        };
        (is_named && is_requested).then(|| granted.clone())
    }

    /// Turns the head of the upstream's response, already without hop-by-hop fields, into the one that announces the
    /// switch to the client; returns its status.
    pub(super) fn write_switch_head(&self, granted: HeaderValue, headers: &mut HeaderMap) -> StatusCode {
        // The bytes after this head are not HTTP.
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

    /// True if a response that does not switch may be passed on. A success would tell a CONNECT that it was switched.
    pub(super) fn may_pass_on(&self, status: StatusCode) -> bool {
        matches!(self, UpgradeRequest::Upgrade(_)) || !status.is_success()
    }
}

/// True if every member of the field is an allowed protocol.
fn is_upgrade_allowed(upgrade: &HeaderValue) -> bool {
    // RFC 9110's `token`, as names of fields are.
    let is_token = |text: &[u8]| HeaderName::from_bytes(text).is_ok();
    let is_fit = |protocol: &[u8]| {
        let mut parts = protocol.splitn(2, |&byte| byte == b'/');
        let name = parts.next().unwrap_or_default();
        is_token(name)
            && parts.next().is_none_or(is_token)
            && !FORBIDDEN_PROTOCOLS.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
    };
    list_members(upgrade).all(is_fit)
}

fn is_member(member: &[u8], name: &str) -> bool {
    member.eq_ignore_ascii_case(name.as_bytes())
}

/// The Sec-WebSocket-Accept for `key` (RFC 6455, section 4.2.2).
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
    fn http_protocols_are_never_requested() {
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
    fn only_requested_protocols_are_granted() {
        let requested = upgrade_request("proto1, websocket");
        for (lines, granted) in [
            (&[("connection", "upgrade"), ("upgrade", "websocket")][..], true),
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")], true),
            (&[("upgrade", "websocket")], false),
            (&[("connection", "upgrade")], false),
            (&[("connection", "upgrade"), ("upgrade", "h2c")], false),
            (&[("connection", "upgrade"), ("upgrade", "websocket, h2c")], false),
            (&[("connection", "upgrade"), ("upgrade", "proto1"), ("upgrade", "websocket")], false),
        ] {
            assert_eq!(requested.granted_protocol(&response_headers(lines)).is_some(), granted, "{lines:?}");
        }
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn a_key_is_answered_by_its_hash() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept_value(&key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
