//! What one limit is to count for a request: whether it concerns it, under which key, and how much.

use http::header::{HeaderMap, HeaderName};

use crate::chain::Ask;
use crate::client::Client;
use crate::config::Cost;
use crate::key::{KeyOutcome, KeySpec, Keys, Subject};
use crate::limit::{Limit, Units};

/// Who makes a request, as far as limits can tell.
pub struct Caller<'a> {
    pub client: Client,
    pub subject: Subject<'a>,
}

/// A source that the key is made of is there twice: 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRepeated;

impl Caller<'_> {
    /// What `limit`, whose key is made by `spec`, is to count.
    #[inline]
    pub fn ask(&self, keys: &Keys, limit: &Limit, spec: &KeySpec) -> Result<Ask, KeyRepeated> {
        if self.is_exempt(limit) {
            return Ok(Ask::Skip);
        }
        let Some(variant) = limit.config.variant(Some(self.subject.tier)) else {
            return Ok(Ask::Skip);
        };
        match keys.key(spec, &self.subject) {
            KeyOutcome::Key(key) => Ok(Ask::Units(Units { key, cost: self.cost(limit), variant, fair: 0 })),
            KeyOutcome::Skip => Ok(Ask::Skip),
            KeyOutcome::Missing => Ok(Ask::MissingKey),
            KeyOutcome::Duplicate => Err(KeyRepeated),
        }
    }

    #[inline]
    fn is_exempt(&self, limit: &Limit) -> bool {
        let config = &limit.config;
        (!config.methods.is_empty() && !config.methods.contains(self.subject.method))
            || config.bypass.iter().any(|net| net.contains(&self.client.ip))
    }

    /// What the request takes. A header's word counts only from a trusted proxy; nonsense counts as 1.
    #[inline]
    fn cost(&self, limit: &Limit) -> u64 {
        match &limit.config.cost {
            Cost::Units(units) => *units,
            Cost::Header(name) if self.client.trusted_peer => header_cost(self.subject.headers, name),
            Cost::Header(_) => 1,
        }
    }
}

fn header_cost(headers: &HeaderMap, name: &HeaderName) -> u64 {
    let digits = headers.get(name).and_then(|value| value.to_str().ok());
    digits.and_then(|digits| digits.trim().parse().ok()).unwrap_or(1)
}
