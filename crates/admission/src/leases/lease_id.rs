//! The ids of leases: 128 random bits, so that no caller can guess the lease of another.

use std::fmt;

use aws_lc_rs::rand;

/// The id of a lease; 32 hexadecimal digits in calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u128);

/// Hexadecimal digits of an id.
const DIGITS: usize = 32;

impl LeaseId {
    /// An id from the generator of the cryptographic library; `None` if that fails.
    pub fn random() -> Option<LeaseId> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(LeaseId(u128::from_be_bytes(bytes)))
    }

    /// The id in a call; `None` of any other text.
    pub fn parse(text: &str) -> Option<LeaseId> {
        let is_id =
            text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let parsed = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        parsed.map(LeaseId)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A holder of an id can end the lease, so it is not written elsewhere.
impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let [one, other] = [LeaseId::random().unwrap(), LeaseId::random().unwrap()];
        assert_ne!(one, other);
        assert_eq!(LeaseId::parse(&one.to_string()), Some(one));
        assert_eq!(format!("{one:?}"), "LeaseId");
        let text = LeaseId(1).to_string();
        for wrong in
            ["", "1", "+1", &text[1..], &text.replace('1', "A"), &text.replace('1', "g"), &format!("0{text}")]
        {
            assert_eq!(LeaseId::parse(wrong), None, "{wrong}");
        }
    }
}
