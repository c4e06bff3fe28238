//! The header `traceparent` (W3C Trace Context): the trace of a request and the span of its caller.

use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The flag of a sampled request.
pub const SAMPLED: u8 = 1;
/// The flags that are passed on: sampled, and that the id of the trace is random.
const KNOWN_FLAGS: u8 = 0b11;

/// The bytes of `00-<trace id>-<span id>-<flags>`; later versions may append more.
const LEN: usize = 55;

/// The trace of a request, and the span that it was sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Not 0.
    pub trace_id: u128,
    /// Not 0.
    pub parent_id: u64,
    pub(crate) flags: u8,
}

impl TraceParent {
    /// `None` if the header is absent, repeated or invalid.
    pub fn read_header(headers: &HeaderMap) -> Option<TraceParent> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let line = lines.next()?;
        if lines.next().is_some() {
            return None;
        }
        TraceParent::parse(line.as_bytes())
    }

    fn parse(text: &[u8]) -> Option<TraceParent> {
        let (text, more) = text.split_at_checked(LEN)?;
        if [text[2], text[35], text[52]] != [b'-'; 3] {
            return None;
        }
        let version = parse_hex(&text[..2])?;
        let (trace_id, parent_id) = (parse_hex(&text[3..35])?, parse_hex(&text[36..52])? as u64);
        let flags = parse_hex(&text[53..])? as u8;
        let has_valid_end = more.is_empty() || version > 0 && more[0] == b'-';
        let is_valid = version != 0xff && has_valid_end && trace_id != 0 && parent_id != 0;
        is_valid.then_some(TraceParent { trace_id, parent_id, flags: flags & KNOWN_FLAGS })
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(crate) fn to_value(self) -> HeaderValue {
        let TraceParent { trace_id, parent_id, flags } = self;
        let text = format!("00-{trace_id:032x}-{parent_id:016x}-{flags:02x}");
        // Cannot fail: it is made of digits, letters and dashes.
        HeaderValue::try_from(text).expect("a header value")
    }
}

/// The number of at most 32 digits; capitals are not allowed.
fn parse_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_read_and_written() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        assert_eq!((parent.trace_id >> 96, parent.parent_id), (0x4bf9_2f35, 0x00f0_67aa_0ba9_02b7));
        assert!(parent.is_sampled());
        assert_eq!(parent.to_value(), VALID);
        let unsampled = TraceParent::parse(VALID.replace("-01", "-02").as_bytes()).unwrap();
        assert_eq!((unsampled.is_sampled(), unsampled.flags), (false, 2));
        // A later version may append fields, and its flags are not known.
        let later = TraceParent::parse(format!("cc{}-more", &VALID.replace("-01", "-ff")[2..]).as_bytes());
        assert_eq!(later.unwrap().to_value(), VALID.replace("-01", "-03"));
    }

    #[test]
    fn an_invalid_parent_is_none() {
        for wrong in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-"),
            &format!("{VALID}0"),
            &format!("cc{}0", &VALID[2..]),
            &VALID.replace("00-4", "ff-4"),
            &VALID.to_uppercase(),
            &VALID.replace('-', "_"),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &VALID.replace("4bf9", "xbf9"),
        ] {
            assert_eq!(TraceParent::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_repeated_header_is_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::read_header(&headers), None);
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert!(TraceParent::read_header(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(VALID));
        assert_eq!(TraceParent::read_header(&headers), None);
    }
}
