//! Grants: other numbers for one key of a limit, which an operator sets while the gateway runs.

use serde::{Deserialize, Serialize};

use super::limit::Algorithm;

/// A grant, a variant of its limit with counters of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantConfig {
    /// Names its counters, see [`GrantConfig::name_for`].
    pub name: String,
    pub key: GrantKey,
    pub numbers: Algorithm,
    /// When it began and when it ends, in ns of the gateway's clock.
    pub at_ns: u64,
    pub until_ns: u64,
    pub reason: String,
    /// The operator.
    pub by: String,
}

/// The hashes of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantKey {
    /// The key of local counters, little endian, and the hash of its wider group.
    pub id: [u8; 16],
    pub prefix: u64,
    /// The key of shared counters.
    pub shared: [u8; 16],
}

/// No tier has a space in its name.
const NAME_PREFIX: &str = "grant ";

// === impl GrantConfig ===

impl GrantConfig {
    /// The name of the counters of a grant for the key with this text. No tier is called so.
    pub fn name_for(key: &str) -> String {
        format!("{NAME_PREFIX}{key}")
    }

    /// The key as operators write it.
    pub fn key_text(&self) -> &str {
        self.name.strip_prefix(NAME_PREFIX).unwrap_or(&self.name)
    }

    /// The numbers of a grant that is otherwise unknown.
    pub(super) fn from_numbers(name: &str, numbers: &Algorithm) -> GrantConfig {
        GrantConfig {
            name: name.to_owned(),
            key: GrantKey::default(),
            numbers: numbers.clone(),
            at_ns: 0,
            until_ns: 0,
            reason: String::new(),
            by: String::new(),
        }
    }
}

impl GrantKey {
    /// The id of the local key.
    pub fn local_id(&self) -> u128 {
        u128::from_le_bytes(self.id)
    }
}
