//! The typed model of callers: their accounts, tiers and tokens.

use std::sync::Arc;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};
use jsonwebtoken::Algorithm;
use rustls::RootCertStore;

use super::key::ValueSource;
use crate::api_keys::ApiKeyTable;
use crate::members::TierMembers;
use crate::token_keys::TokenKeys;
use crate::value::https_url::HttpsUrl;
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
    /// The places and the file of API keys; `None` = keys are not read.
    pub keys: Option<ApiKeysConfig>,
}

/// The API keys that give a request its account.
#[derive(Debug, Clone)]
pub struct ApiKeysConfig {
    /// The hashes of the keys with their accounts.
    pub file: Arc<NamedFile<ApiKeyTable>>,
    /// The places of a key in a request.
    pub from: Vec<KeySource>,
    /// A key that no line has gets 401; otherwise the request has no account.
    pub rejects_unknown: bool,
    /// A request without a key gets 401.
    pub rejects_missing: bool,
    /// The key goes on to the upstream.
    pub is_passed: bool,
    /// The further columns of the file that texts of the configuration use.
    pub columns: Vec<Arc<str>>,
    /// What looks like a token behind `Bearer` is one, and no key.
    pub has_tokens: bool,
}

impl ApiKeysConfig {
    /// True if a key may stand in this header.
    pub fn holds_key(&self, header: &HeaderName) -> bool {
        self.from.iter().any(|place| match place {
            KeySource::Bearer | KeySource::Basic => *header == AUTHORIZATION,
            KeySource::Value(ValueSource::Header(name)) => header == name,
            KeySource::Value(ValueSource::Cookie(_)) => *header == COOKIE,
            KeySource::Value(_) => false,
        })
    }

    /// The parameters of a query that may hold a key.
    pub fn queries(&self) -> impl Iterator<Item = &[u8]> {
        self.from.iter().filter_map(|place| match place {
            KeySource::Value(ValueSource::Query(name)) => Some(name.as_bytes()),
            _ => None,
        })
    }
}

/// A place of an API key in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// The password of `Authorization: Basic`; its user name is ignored.
    Basic,
    /// A header, a cookie or a query parameter.
    Value(ValueSource),
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

/// The rules for tokens. A token is verified by the entry of its issuer.
#[derive(Debug, Clone)]
pub struct JwtConfig {
    /// The header that carries the token.
    pub header: HeaderName,
    /// One or more; of several, each names its issuers.
    pub entries: Vec<TokenRules>,
}

impl JwtConfig {
    /// Most entries.
    pub const ENTRIES_MAX: usize = 32;
}

/// The rules for the tokens of an issuer: they are verified with a secret, with public keys, or with both.
#[derive(Debug, Clone)]
pub struct TokenRules {
    /// The public keys; `None` = tokens are verified by `secret` alone.
    pub keys: Option<TokenKeySource>,
    /// The secret of the HS algorithms; `None` = tokens are verified by `keys` alone.
    pub secret: Option<Secret>,
    /// Empty = any.
    pub issuers: Vec<String>,
    /// Empty = any.
    pub audiences: Vec<String>,
    /// One or more; each has keys that can verify it, unless these are fetched.
    pub algorithms: Vec<Algorithm>,
}

/// The origin of public keys.
#[derive(Debug, Clone)]
pub enum TokenKeySource {
    /// A file, read again when it changes.
    File(Arc<NamedFile<TokenKeys>>),
    /// The issuer, asked again and again.
    Issuer(Arc<KeyFetchConfig>),
}

/// The place and the use of keys that are fetched from their issuer.
#[derive(Debug, Clone)]
pub struct KeyFetchConfig {
    /// The name of the issuer in logs and metrics, and the value of `iss`.
    pub issuer: String,
    /// The key set, or else the document of the issuer that names it.
    pub url: HttpsUrl,
    /// True if `url` is the discovery document.
    pub is_discovery: bool,
    /// The algorithms that keys are used for.
    pub algorithms: Vec<Algorithm>,
    /// The trusted authorities.
    pub roots: Arc<RootCertStore>,
}

impl PartialEq for KeyFetchConfig {
    fn eq(&self, other: &KeyFetchConfig) -> bool {
        (&self.issuer, &self.url, self.is_discovery) == (&other.issuer, &other.url, other.is_discovery)
            && self.algorithms == other.algorithms
            && self.roots.roots == other.roots.roots
    }
}
