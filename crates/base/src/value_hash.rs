//! SHA-256, and the hashes that stand for accounts and keys wherever these must not be shown.

use std::hash::{BuildHasher, Hasher, RandomState};

use aws_lc_rs::digest::{SHA256, digest};
use siphasher::sip::SipHasher13;

/// Hashes values under a secret: equal values have equal hashes, which tell nothing else about them.
#[derive(Clone, PartialEq, Eq)]
pub struct ValueHasher {
    secret: [u8; 16],
}

impl ValueHasher {
    /// A hasher of this process alone.
    pub fn random() -> ValueHasher {
        ValueHasher { secret: random_secret() }
    }

    /// The hasher of every process with this secret.
    pub fn from_secret(text: &str) -> ValueHasher {
        ValueHasher { secret: sha256(text.as_bytes()) }
    }

    /// The hasher of every process that was told this secret.
    pub fn from_shared_secret(secret: [u8; 16]) -> ValueHasher {
        ValueHasher { secret }
    }

    /// The hash of a value, the same in every process with this secret.
    pub fn hash_value(&self, value: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(value);
        hasher.finish()
    }
}

impl std::fmt::Debug for ValueHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueHasher(MASKED)")
    }
}

/// A new secret.
pub fn random_secret() -> [u8; 16] {
    // The standard library seeds its maps from the operating system's randomness.
    let random = RandomState::new();
    let halves = ["low half", "high half"].map(|half| u128::from(random.hash_one(half)));
    (halves[0] | halves[1] << 64).to_le_bytes()
}

/// The first N bytes of the SHA-256, at most 32.
pub fn sha256<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut hash = [0; N];
    hash.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..N]);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_secrets_make_equal_hashes() {
        let (one, same, other) = (
            ValueHasher::from_secret("one"),
            ValueHasher::from_secret("one"),
            ValueHasher::from_secret("two"),
        );
        assert_eq!(one.hash_value(b"alice"), same.hash_value(b"alice"));
        assert_ne!(one.hash_value(b"alice"), other.hash_value(b"alice"));
        assert_ne!(one.hash_value(b"alice"), one.hash_value(b"bob"));
        assert_ne!(ValueHasher::random().hash_value(b"alice"), ValueHasher::random().hash_value(b"alice"));
    }

    /// Gateways of all versions agree, so this number must not change.
    #[test]
    fn hashes_are_the_same_in_every_version() {
        assert_eq!(ValueHasher::from_secret("one").hash_value(b"alice"), 8_983_484_456_644_844_052);
    }

    #[test]
    fn the_secret_is_never_shown() {
        assert_eq!(format!("{:?}", ValueHasher::from_secret("hunter2")), "ValueHasher(MASKED)");
    }
}
