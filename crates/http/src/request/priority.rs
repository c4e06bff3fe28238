//! The urgency of a request in its field `Priority` (RFC 9218), a dictionary of RFC 9651.

use http::HeaderMap;
use http::header::HeaderName;
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// The field.
pub const PRIORITY: HeaderName = HeaderName::from_static("priority");

/// The urgency of a request that tells none.
pub const DEFAULT: u8 = 3;

const LEAST_URGENT: u8 = 7;

/// The urgency, from 0, the most urgent, to 7. A field that cannot be read counts as none.
pub fn urgency(headers: &HeaderMap) -> u8 {
    let mut urgency = DEFAULT;
    for line in headers.get_all(PRIORITY) {
        let Ok(members) = Parser::new(line.as_bytes()).parse::<Dictionary>() else { return DEFAULT };
        urgency = members.get("u").map_or(urgency, read_member);
    }
    urgency
}

fn read_member(member: &ListEntry) -> u8 {
    let ListEntry::Item(item) = member else { return DEFAULT };
    let BareItem::Integer(number) = item.bare_item else { return DEFAULT };
    u8::try_from(number).ok().filter(|number| *number <= LEAST_URGENT).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(lines: &[&[u8]]) -> u8 {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PRIORITY, HeaderValue::from_bytes(line).unwrap());
        }
        urgency(&headers)
    }

    #[test]
    fn the_urgency_is_read_as_a_structured_field() {
        for (line, expected) in [
            ("u=0", 0),
            ("u=7", 7),
            ("u=5, i", 5),
            ("i;x=\"a,u=1\", u=2;why=?1", 2),
            ("a=(1 2);u=1, u=6", 6),
            // Of a key given twice the last counts.
            ("u=1, u=4", 4),
            ("u=1, u=a", 3),
            ("u=1, u=(2)", 3),
            ("", 3),
            ("i", 3),
            ("u", 3),
            ("u=8", 3),
            ("u=-1", 3),
            ("u=2.0", 3),
            ("u=\"2\"", 3),
            ("u=2,", 3),
            ("U=2", 3),
            ("u = 2", 3),
            ("u=2 i", 3),
            ("u=99999999999999999999", 3),
            ("u=1;", 3),
        ] {
            assert_eq!(of(&[line.as_bytes()]), expected, "{line}");
        }
        assert_eq!(of(&[]), 3);
        assert_eq!(of(&[b"u=1", b"i"]), 1);
        assert_eq!(of(&[b"u=1", b"u=6"]), 6);
        assert_eq!(of(&[b"u=1", b"\xff"]), 3);
    }
}
