//! One look over the names of a request's header: which of the rare ones are there.
//!
//! Most heads have none of them, and a look-up for each would cost more than the look over all.

use http::HeaderMap;

/// What a head contains, beside the ordinary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Glance(u8);

impl Glance {
    const TRANSFER_ENCODING: u8 = 1;
    const EXPECT: u8 = 1 << 1;
    const TE: u8 = 1 << 2;
    const CONTENT_TYPE: u8 = 1 << 3;
    const CONTENT_LENGTH: u8 = 1 << 4;

    #[inline]
    pub fn over(headers: &HeaderMap) -> Glance {
        let mut seen = 0;
        for name in headers.keys() {
            let name = name.as_str();
            // By length first: one jump sorts out nearly every other header.
            seen |= match name.len() {
                2 if name == "te" => Glance::TE,
                6 if name == "expect" => Glance::EXPECT,
                12 if name == "content-type" => Glance::CONTENT_TYPE,
                14 if name == "content-length" => Glance::CONTENT_LENGTH,
                17 if name == "transfer-encoding" => Glance::TRANSFER_ENCODING,
                _ => 0,
            };
        }
        Glance(seen)
    }

    #[inline]
    pub fn has_transfer_encoding(self) -> bool {
        self.0 & Glance::TRANSFER_ENCODING != 0
    }

    #[inline]
    pub fn has_expect(self) -> bool {
        self.0 & Glance::EXPECT != 0
    }

    #[inline]
    pub fn has_te(self) -> bool {
        self.0 & Glance::TE != 0
    }

    #[inline]
    pub fn has_content_type(self) -> bool {
        self.0 & Glance::CONTENT_TYPE != 0
    }

    #[inline]
    pub fn has_content_length(self) -> bool {
        self.0 & Glance::CONTENT_LENGTH != 0
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
        assert_eq!(Glance::over(&headers), Glance::default());
        for (name, is_seen) in [
            ("te", Glance::has_te as fn(Glance) -> bool),
            ("expect", Glance::has_expect),
            ("content-type", Glance::has_content_type),
            ("content-length", Glance::has_content_length),
            ("transfer-encoding", Glance::has_transfer_encoding),
        ] {
            let mut headers = headers.clone();
            headers.insert(name, HeaderValue::from_static("x"));
            assert!(is_seen(Glance::over(&headers)), "{name}");
        }
    }
}
