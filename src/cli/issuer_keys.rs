//! `check --fetch`: fetches the keys of the issuers of tokens as the gateway would.

use std::fmt;

use serde::Serialize;
use tokio::runtime::Builder;

use super::{CommandFault, FAILED};
use crate::process;
use sluicegate_model::{Config, KeyFetchConfig, TokenKeySource};

/// The keys of one issuer.
#[derive(Serialize)]
pub(super) struct IssuerKeys {
    issuer: String,
    /// Each with its id and its algorithms.
    keys: Vec<String>,
    /// Seconds after which they are fetched again.
    expires_s: u64,
    /// The reason why the fetch failed.
    pub error: Option<String>,
}

/// Fetches the keys of each issuer once.
///
/// # Errors
/// The runtime cannot be made.
pub(super) fn fetch_issuers(config: &Config) -> Result<Vec<IssuerKeys>, CommandFault> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandFault::new(FAILED, error))?;
    let entries = config.account.jwt.iter().flat_map(|jwt| &jwt.entries);
    let sources = entries.filter_map(|rules| match &rules.keys {
        Some(TokenKeySource::Issuer(source)) => Some(source),
        _ => None,
    });
    Ok(sources.map(|source| runtime.block_on(fetch_issuer(source))).collect())
}

async fn fetch_issuer(source: &KeyFetchConfig) -> IssuerKeys {
    let issuer = source.issuer.clone();
    match process::fetch_keys(source).await {
        Ok(fetched) => IssuerKeys {
            issuer,
            keys: fetched.keys.describe_keys().collect(),
            expires_s: fetched.lifetime.as_secs(),
            error: None,
        },
        Err(reason) => IssuerKeys { issuer, keys: Vec::new(), expires_s: 0, error: Some(reason) },
    }
}

impl fmt::Display for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IssuerKeys { issuer, keys, expires_s, error } = self;
        match error {
            Some(reason) => write!(f, "{issuer}: {reason}"),
            None => write!(f, "{issuer}: {}; fetched again after {expires_s} s", keys.join(", ")),
        }
    }
}
