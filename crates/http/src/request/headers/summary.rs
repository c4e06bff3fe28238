//! The header fields of a message that need work, found by one pass over the names.
//!
//! Most heads contain none of them, and one look-up per field would cost more than the pass.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The set of special fields that a head contains. The set of a request stays valid until the request is forwarded:
/// until then only Host and Cookie change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeaderSummary(u16);

impl HeaderSummary {
    /// The Connection field, which may name further fields of one connection.
    pub const CONNECTION: HeaderSummary = HeaderSummary(1);
    /// The TE field.
    pub const TE: HeaderSummary = HeaderSummary(1 << 1);
    /// The Trailer field.
    pub const TRAILER: HeaderSummary = HeaderSummary(1 << 2);
    /// The Upgrade field.
    pub const UPGRADE: HeaderSummary = HeaderSummary(1 << 3);
    /// The Transfer-Encoding field.
    pub const TRANSFER_ENCODING: HeaderSummary = HeaderSummary(1 << 4);
    /// The Keep-Alive field.
    pub const KEEP_ALIVE: HeaderSummary = HeaderSummary(1 << 5);
    /// The Proxy-Connection field, which some clients send in place of Connection.
    pub const PROXY_CONNECTION: HeaderSummary = HeaderSummary(1 << 6);
    /// The Proxy-Authenticate field.
    pub const PROXY_AUTHENTICATE: HeaderSummary = HeaderSummary(1 << 7);
    /// The Proxy-Authorization field.
    pub const PROXY_AUTHORIZATION: HeaderSummary = HeaderSummary(1 << 8);
    /// Part of an upgrade to h2c, which the gateway never requests.
    pub const HTTP2_SETTINGS: HeaderSummary = HeaderSummary(1 << 9);
    /// Every field of one connection: all of the above.
    pub const HOP_BY_HOP: HeaderSummary = HeaderSummary((1 << 10) - 1);
    /// The Expect field.
    pub const EXPECT: HeaderSummary = HeaderSummary(1 << 10);
    /// The Content-Type field.
    pub const CONTENT_TYPE: HeaderSummary = HeaderSummary(1 << 11);
    /// The Content-Length field.
    pub const CONTENT_LENGTH: HeaderSummary = HeaderSummary(1 << 12);
    /// A request without this has no name with an underscore. Responses never have it.
    pub const MAYBE_UNDERSCORES: HeaderSummary = HeaderSummary(1 << 13);

    /// Forwarded, X-Real-IP, or an X-Forwarded field.
    pub const ORIGIN: HeaderSummary = HeaderSummary(1 << 14);
    /// The Authorization field.
    pub const AUTHORIZATION: HeaderSummary = HeaderSummary(1 << 15);

    /// The fields of a request.
    #[inline]
    pub fn scan_request(headers: &HeaderMap) -> HeaderSummary {
        let (mut flags, mut underscores) = (0, 0);
        for name in headers.keys() {
            flags |= field_flag(name);
            underscores |= underscores_in(name.as_str().as_bytes());
        }
        if underscores & EACH_BYTE_64 != 0 {
            flags |= HeaderSummary::MAYBE_UNDERSCORES.0;
        }
        HeaderSummary(flags)
    }

    /// The fields of a response, and its line of Content-Length if there is exactly one.
    #[inline]
    pub fn scan_response(headers: &HeaderMap) -> (HeaderSummary, Option<&HeaderValue>) {
        let (mut flags, mut length, mut lengths) = (0, None, 0);
        for (name, value) in headers {
            let flag = field_flag(name);
            flags |= flag;
            if flag == HeaderSummary::CONTENT_LENGTH.0 {
                (length, lengths) = (Some(value), lengths + 1);
            }
        }
        (HeaderSummary(flags), length.filter(|_| lengths == 1))
    }

    /// True if any of `fields` is present.
    #[inline]
    pub fn has_any(self, fields: HeaderSummary) -> bool {
        self.0 & fields.0 != 0
    }
}

#[inline(always)]
fn field_flag(name: &HeaderName) -> u16 {
    let name = name.as_str();
    // By length first: one jump sorts out nearly every other field.
    let field = match name.len() {
        2 if name == "te" => HeaderSummary::TE,
        6 if name == "expect" => HeaderSummary::EXPECT,
        7 if name == "trailer" => HeaderSummary::TRAILER,
        7 if name == "upgrade" => HeaderSummary::UPGRADE,
        9 if name == "forwarded" || name == "x-real-ip" => HeaderSummary::ORIGIN,
        10 if name == "connection" => HeaderSummary::CONNECTION,
        10 if name == "keep-alive" => HeaderSummary::KEEP_ALIVE,
        12 if name == "content-type" => HeaderSummary::CONTENT_TYPE,
        13 if name == "authorization" => HeaderSummary::AUTHORIZATION,
        14 if name == "content-length" => HeaderSummary::CONTENT_LENGTH,
        14 if name == "http2-settings" => HeaderSummary::HTTP2_SETTINGS,
        15 if name == "x-forwarded-for" => HeaderSummary::ORIGIN,
        16 if name == "x-forwarded-host" => HeaderSummary::ORIGIN,
        16 if name == "proxy-connection" => HeaderSummary::PROXY_CONNECTION,
        17 if name == "x-forwarded-proto" => HeaderSummary::ORIGIN,
        17 if name == "transfer-encoding" => HeaderSummary::TRANSFER_ENCODING,
        18 if name == "proxy-authenticate" => HeaderSummary::PROXY_AUTHENTICATE,
        19 if name == "proxy-authorization" => HeaderSummary::PROXY_AUTHORIZATION,
        _ => HeaderSummary(0),
    };
    field.0
}

/// The bit with the value 64 of each byte.
const EACH_BYTE_64: u64 = 0x4040_4040_4040_4040;

/// Has a bit of [`EACH_BYTE_64`] set if `name` contains an underscore. It takes eight bytes at a time, because it runs
/// on every name of every request. Names are in lower case: only `_` and the rare `^` have the bit 64 without the bit
/// 32.
#[inline]
fn underscores_in(name: &[u8]) -> u64 {
    let marks = |bytes: u64| bytes & !(bytes << 1);
    if let Some(last) = name.last_chunk::<8>() {
        let (chunks, _) = name.as_chunks::<8>();
        return chunks.iter().chain([last]).fold(0, |seen, chunk| seen | marks(u64::from_ne_bytes(*chunk)));
    }
    match (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            marks(u64::from(u32::from_ne_bytes(*first)) | u64::from(u32::from_ne_bytes(*last)) << 32)
        }
        _ => name.iter().fold(0, |seen, byte| seen | marks(u64::from(*byte))),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn finds_exactly_the_special_fields() {
        let mut headers = HeaderMap::new();
        for name in ["host", "accept", "ts", "cookie", "content-kind", "content-weight", "x-forwarded-prot"] {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        assert_eq!(HeaderSummary::scan_request(&headers), HeaderSummary::default());
        assert_eq!(HeaderSummary::scan_response(&headers), (HeaderSummary::default(), None));
        for (name, field) in [
            ("connection", HeaderSummary::CONNECTION),
            ("te", HeaderSummary::TE),
            ("trailer", HeaderSummary::TRAILER),
            ("upgrade", HeaderSummary::UPGRADE),
            ("transfer-encoding", HeaderSummary::TRANSFER_ENCODING),
            ("keep-alive", HeaderSummary::KEEP_ALIVE),
            ("proxy-connection", HeaderSummary::PROXY_CONNECTION),
            ("proxy-authenticate", HeaderSummary::PROXY_AUTHENTICATE),
            ("proxy-authorization", HeaderSummary::PROXY_AUTHORIZATION),
            ("http2-settings", HeaderSummary::HTTP2_SETTINGS),
            ("expect", HeaderSummary::EXPECT),
            ("content-type", HeaderSummary::CONTENT_TYPE),
            ("content-length", HeaderSummary::CONTENT_LENGTH),
            ("forwarded", HeaderSummary::ORIGIN),
            ("x-real-ip", HeaderSummary::ORIGIN),
            ("x-forwarded-for", HeaderSummary::ORIGIN),
            ("x-forwarded-host", HeaderSummary::ORIGIN),
            ("x-forwarded-proto", HeaderSummary::ORIGIN),
        ] {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_static("x"));
            assert_eq!(HeaderSummary::scan_request(&headers), field, "{name}");
            assert_eq!(HeaderSummary::scan_response(&headers).0, field, "{name}");
        }
    }

    #[test]
    fn a_single_length_is_found() {
        let mut headers = HeaderMap::new();
        headers.insert("content-length", HeaderValue::from_static("5"));
        let length = HeaderSummary::scan_response(&headers).1.cloned();
        assert_eq!(length, Some(HeaderValue::from_static("5")));
        headers.append("content-length", HeaderValue::from_static("5"));
        assert_eq!(HeaderSummary::scan_response(&headers), (HeaderSummary::CONTENT_LENGTH, None));
    }

    #[test]
    fn finds_an_underscore_at_any_position() {
        for length in 1..40 {
            let plain: String = (0..length).map(|n| char::from(b"az09-.~!#|`"[n % 11])).collect();
            assert_eq!(underscores_in(plain.as_bytes()) & EACH_BYTE_64, 0, "{plain}");
            for position in 0..length {
                let name = format!("{}_{}", &plain[..position], &plain[position + 1..]);
                assert_ne!(underscores_in(name.as_bytes()) & EACH_BYTE_64, 0, "{name}");
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert("x_real_ip", HeaderValue::from_static("x"));
        headers.insert("x-real-ip", HeaderValue::from_static("x"));
        assert!(HeaderSummary::scan_request(&headers).has_any(HeaderSummary::MAYBE_UNDERSCORES));
        headers.remove("x_real_ip");
        assert!(!HeaderSummary::scan_request(&headers).has_any(HeaderSummary::MAYBE_UNDERSCORES));
    }
}
