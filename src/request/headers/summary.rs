//! One look over the names of a request's header: which of the rare ones are there.
//!
//! Most heads have none of them, and a look-up for each would cost more than the look over all.

use http::HeaderMap;

/// What a head contains, beside the ordinary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeaderSummary {
    flags: u8,
    may_have_underscores: bool,
}

impl HeaderSummary {
    const TRANSFER_ENCODING: u8 = 1;
    const EXPECT: u8 = 1 << 1;
    const TE: u8 = 1 << 2;
    const CONTENT_TYPE: u8 = 1 << 3;
    const CONTENT_LENGTH: u8 = 1 << 4;

    #[inline]
    pub fn scan_headers(headers: &HeaderMap) -> HeaderSummary {
        let (mut rare, mut underscores) = (0, 0);
        for name in headers.keys() {
            let name = name.as_str();
            underscores |= underscores_in(name.as_bytes());
            // By length first: one jump sorts out nearly every other header.
            rare |= match name.len() {
                2 if name == "te" => HeaderSummary::TE,
                6 if name == "expect" => HeaderSummary::EXPECT,
                12 if name == "content-type" => HeaderSummary::CONTENT_TYPE,
                14 if name == "content-length" => HeaderSummary::CONTENT_LENGTH,
                17 if name == "transfer-encoding" => HeaderSummary::TRANSFER_ENCODING,
                _ => 0,
            };
        }
        HeaderSummary { flags: rare, may_have_underscores: underscores & EACH_BYTE_64 != 0 }
    }

    /// False means that no name has an underscore.
    #[inline]
    pub fn may_have_underscores(self) -> bool {
        self.may_have_underscores
    }

    #[inline]
    pub fn has_transfer_encoding(self) -> bool {
        self.flags & HeaderSummary::TRANSFER_ENCODING != 0
    }

    #[inline]
    pub fn has_expect(self) -> bool {
        self.flags & HeaderSummary::EXPECT != 0
    }

    #[inline]
    pub fn has_te(self) -> bool {
        self.flags & HeaderSummary::TE != 0
    }

    #[inline]
    pub fn has_content_type(self) -> bool {
        self.flags & HeaderSummary::CONTENT_TYPE != 0
    }

    #[inline]
    pub fn has_content_length(self) -> bool {
        self.flags & HeaderSummary::CONTENT_LENGTH != 0
    }
}

/// The bit with the value 64 of each byte.
const EACH_BYTE_64: u64 = 0x4040_4040_4040_4040;

/// Has a bit of [`EACH_BYTE_64`] set if there is an underscore, eight bytes at a time: every name of every request is
/// asked. Names are in lower case, so that `_` and the odd `^` are the only bytes in them with the bit 64 and without
/// the bit 32.
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
    fn sees_what_is_there_and_nothing_else() {
        let mut headers = HeaderMap::new();
        for name in ["host", "accept", "ts", "cookie", "content-kind", "content-weight", "x-forwarded-proto"]
        {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        assert_eq!(HeaderSummary::scan_headers(&headers), HeaderSummary::default());
        for (name, is_seen) in [
            ("te", HeaderSummary::has_te as fn(HeaderSummary) -> bool),
            ("expect", HeaderSummary::has_expect),
            ("content-type", HeaderSummary::has_content_type),
            ("content-length", HeaderSummary::has_content_length),
            ("transfer-encoding", HeaderSummary::has_transfer_encoding),
        ] {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_static("x"));
            assert!(is_seen(HeaderSummary::scan_headers(&headers)), "{name}");
        }
    }

    #[test]
    fn sees_an_underscore_wherever_it_is() {
        for length in 1..40 {
            let plain: String = (0..length).map(|n| char::from(b"az09-.~!#|`"[n % 11])).collect();
            assert_eq!(underscores_in(plain.as_bytes()) & EACH_BYTE_64, 0, "{plain}");
            for place in 0..length {
                let name = format!("{}_{}", &plain[..place], &plain[place + 1..]);
                assert_ne!(underscores_in(name.as_bytes()) & EACH_BYTE_64, 0, "{name}");
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert("x_real_ip", HeaderValue::from_static("x"));
        headers.insert("x-real-ip", HeaderValue::from_static("x"));
        assert!(HeaderSummary::scan_headers(&headers).may_have_underscores());
        headers.remove("x_real_ip");
        assert!(!HeaderSummary::scan_headers(&headers).may_have_underscores());
    }
}
