//! The typed model of callers: their accounts, tiers and tokens.

use std::sync::Arc;

use http::HeaderName;
use jsonwebtoken::Algorithm;

use super::key::ValueSource;
use crate::members::TierMembers;
use crate::token_keys::TokenKeys;
use crate::value::scalars::Secret;
use sluicegate_base::file::NamedFile;

/// The `account` section: where the account and the tier of a request are read from.
#[derive(Debug, Clone, Default)]
pub struct AccountConfig {
    /// The source of the account; `None` = no request has one.
    pub from: Option<ValueSource>,
    /// The sources of the tier.
    pub tier: TierRules,
    /// Present whenever a `jwt:` source is written.
    pub jwt: Option<JwtConfig>,
}

/// The sources of a caller's tier, in order: its account in `members`, then in `file`, then `from`, then `default`.
#[derive(Debug, Clone)]
pub struct TierRules {
    /// The source of the tier itself; `None` = none.
    pub from: Option<ValueSource>,
    /// The tiers of accounts written in the file.
    pub members: TierMembers,
    /// The CSV file with the tiers of accounts, read again when it changes; `None` = none.
    pub file: Option<Arc<NamedFile<TierMembers>>>,
    /// The tier of every other caller.
    pub default: String,
}

impl TierRules {
    /// The tier of every caller unless the file sets another.
    pub const DEFAULT: &str = "default";

    /// True if some caller may be in a tier other than `default`.
    pub fn is_configured(&self) -> bool {
        self.from.is_some()
            || !self.members.is_empty()
            || self.file.is_some()
            || self.default != TierRules::DEFAULT
    }
}

impl Default for TierRules {
    fn default() -> TierRules {
        TierRules {
            from: None,
            members: TierMembers::default(),
            file: None,
            default: TierRules::DEFAULT.to_owned(),
        }
    }
}

/// The rules for tokens: they are verified with a secret, a file of public keys, or both.
#[derive(Debug, Clone)]
pub struct JwtConfig {
    /// The file with public keys, read again when it changes; `None` = tokens are verified by `secret` alone.
    pub keys: Option<Arc<NamedFile<TokenKeys>>>,
    /// The secret of the HS algorithms; `None` = tokens are verified by `keys` alone.
    pub secret: Option<Secret>,
    /// Empty = any.
    pub issuers: Vec<String>,
    /// Empty = any.
    pub audiences: Vec<String>,
    /// One or more; each has keys that can verify it.
    pub algorithms: Vec<Algorithm>,
    /// The header that carries the token.
    pub header: HeaderName,
}
