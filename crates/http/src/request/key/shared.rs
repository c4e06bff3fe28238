//! Keys of shared limits: hashed without a secret, so that all gateways agree on them.

use smallvec::SmallVec;

use super::{KeyHasher, KeyInput, KeyOutcome, KeySink, KeySpec, KeyText};
use sluicegate_base::value_hash::sha256;
use sluicegate_limit::table::CounterKey;

/// The first 16 bytes of SHA-256 of the text that [`KeyHasher::hash_key`](super::KeyHasher::hash_key) hashes; `None`
/// where that finds no key. Collisions cannot be chosen, so gateways need not share a secret.
///
/// The text contains neither the limit nor the name of a header, cookie, parameter or claim: limits that count by equal
/// values may share an id, in which each rate has an entry of its own.
pub fn hash_shared(spec: &KeySpec, subject: &KeyInput<'_>) -> Option<[u8; 16]> {
    let mut text = KeyText(KeyBuffer::default());
    text.write_parts(spec, subject).ok()?;
    Some(sha256(&text.0))
}

impl KeyHasher {
    /// The key of `subject` by `spec`, with an id that all gateways agree on.
    pub fn hash_agreed_key(&self, spec: &KeySpec, subject: &KeyInput<'_>) -> KeyOutcome {
        let mut text = KeyText(KeyBuffer::default());
        if let Err(outcome) = text.write_parts(spec, subject) {
            return outcome;
        }
        let id = u128::from_le_bytes(sha256(&text.0));
        KeyOutcome::Key(CounterKey::new(id, self.prefix_of(subject, id)))
    }
}

/// Collects the whole text: hashing it at once needs no further memory.
type KeyBuffer = SmallVec<[u8; 128]>;

impl KeySink for KeyBuffer {
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::IpAddr;

    use aws_lc_rs::digest::{SHA256, digest};
    use http::{HeaderMap, HeaderName, HeaderValue, Method};

    use super::*;
    use crate::request::key::{KeyHasher, KeyOutcome};
    use sluicegate_model::{KeyPart, MissingKey, ValueSource};

    const LIMIT: &[KeyPart] = &[KeyPart::Account];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// The key of a request of `account` with `x-key: header`.
    fn of(
        parts: &[KeyPart],
        missing: MissingKey,
        account: &[u8],
        header: &str,
        from: &str,
    ) -> Option<[u8; 16]> {
        let mut headers = HeaderMap::new();
        for value in header.split('|').filter(|value| !value.is_empty()) {
            headers.append("x-key", HeaderValue::from_str(value).expect("a header value"));
        }
        let subject = KeyInput {
            ip: ip(from),
            ip_key: None,
            account: (!account.is_empty()).then_some(account),
            tier: "default",
            path: b"/",
            query: None,
            location: Some(7),
            host: "a.test",
            method: &Method::GET,
            headers: &headers,
            trusted_peer: false,
            token: None,
            body: None,
        };
        let spec = KeySpec::new(parts, missing);
        let found = hash_shared(&spec, &subject);
        let keyed = matches!(KeyHasher::random().hash_key(&spec, &subject), KeyOutcome::Key(_));
        assert_eq!(found.is_some(), keyed, "the outcomes agree");
        found
    }

    fn account(account: &[u8]) -> [u8; 16] {
        of(LIMIT, MissingKey::Reject, account, "", "192.0.2.1").expect("a key")
    }

    fn x_key() -> KeyPart {
        KeyPart::Source(ValueSource::Header(HeaderName::from_static("x-key")))
    }

    /// Gateways of all versions count together, so these numbers must not change.
    #[test]
    fn all_gateways_agree() {
        let by_ip = of(&[KeyPart::Ip], MissingKey::Ip, b"", "", "192.0.2.1").expect("a key");
        assert_eq!(by_ip, digest_of(&[1, 4, 192, 0, 2, 1]));
        assert_eq!(account(b"al"), digest_of(&[2, 2, 0, 0, 0, 0, 0, 0, 0, b'a', b'l']));
        let hex: String = by_ip.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "b91ffee72039e4a9fd2f8cfac662bb45");
    }

    fn digest_of(text: &[u8]) -> [u8; 16] {
        digest(&SHA256, text).as_ref()[..16].try_into().expect("16 bytes")
    }

    #[test]
    fn values_of_any_bytes_have_distinct_ids() {
        let long = vec![b'x'; 1 << 20];
        let values: [&[u8]; 12] = [
            b"a",
            b"b",
            b"a\0",
            b"\0",
            b"{a}",
            b"}{",
            b"a b",
            b"\xff\xfe",
            b"\xff",
            b"192.0.2.1",
            &long,
            &long[1..],
        ];
        let ids: HashSet<_> = values.iter().map(|value| account(value)).collect();
        assert_eq!(ids.len(), values.len());
        assert!(values.iter().all(|value| account(value) == account(value)));
    }

    #[test]
    fn kinds_of_parts_and_their_order_are_distinct() {
        let both = [KeyPart::Account, x_key()];
        let ids = [
            of(&[KeyPart::Ip], MissingKey::Ip, b"a", "a", "192.0.2.1"),
            of(&[KeyPart::Ip], MissingKey::Ip, b"a", "a", "192.0.2.2"),
            of(LIMIT, MissingKey::Ip, b"a", "a", "192.0.2.1"),
            of(&[x_key()], MissingKey::Ip, b"a", "a", "192.0.2.1"),
            of(LIMIT, MissingKey::Ip, b"", "a", "192.0.2.1"),
            of(LIMIT, MissingKey::Shared, b"", "a", "192.0.2.1"),
            of(&[KeyPart::Global], MissingKey::Shared, b"", "a", "192.0.2.1"),
            of(&[KeyPart::Location], MissingKey::Ip, b"", "a", "192.0.2.1"),
            of(&both, MissingKey::Ip, b"ab", "c", "192.0.2.1"),
            of(&both, MissingKey::Ip, b"a", "bc", "192.0.2.1"),
            of(&both, MissingKey::Ip, b"", "a", "192.0.2.1"),
            of(&both, MissingKey::Ip, b"a", "", "192.0.2.1"),
        ];
        assert!(ids.iter().all(Option::is_some));
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!(
            of(LIMIT, MissingKey::Ip, b"a", "a", "192.0.2.1"),
            of(LIMIT, MissingKey::Skip, b"a", "b", "::1")
        );
    }

    #[test]
    fn without_a_local_key_there_is_no_shared_one() {
        for missing in [MissingKey::Reject, MissingKey::Skip] {
            assert_eq!(of(LIMIT, missing, b"", "", "192.0.2.1"), None);
        }
        assert_eq!(of(&[x_key()], MissingKey::Ip, b"", "a|a", "192.0.2.1"), None);
    }
}
