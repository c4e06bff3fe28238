//! What one limit is to count for a request: whether it concerns it, under which key, and how much.

use std::num::IntErrorKind;

use http::header::{HeaderMap, HeaderName};
use http::{Method, Uri};

use crate::admission::chain::Ask;
use crate::config::{Cost, InvalidCost};
use crate::limit::table::Key;
use crate::limit::{Limit, Units};
use crate::proxy::gateway::Gateway;
use crate::proxy::reject::Fault;
use crate::request::client::Client;
use crate::request::key;
use crate::request::key::{KeyOutcome, KeySpec, Keys, LimitKeys, Subject};
use crate::request::source::Token;
use crate::shared::SharedKey;

/// What of a request's head limits may look at.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    /// Canonical.
    pub host: &'a str,
    /// Normalised.
    pub path: &'a [u8],
}

/// Who a request says it is from.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    pub account: Option<&'a [u8]>,
    pub tier: &'a str,
    pub token: Option<&'a Token<'a>>,
}

/// Who makes a request, as far as limits can tell.
pub struct Caller<'a> {
    pub client: Client,
    pub subject: Subject<'a>,
}

/// Why a limit cannot count a request: 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskFault {
    /// A source that the key is made of is there twice.
    KeyRepeated,
    /// The cost is not a number, and the limit says to reject then.
    InvalidCost,
}

impl From<AskFault> for Fault {
    fn from(fault: AskFault) -> Fault {
        match fault {
            AskFault::KeyRepeated => Fault::RepeatedKey,
            AskFault::InvalidCost => Fault::InvalidCost,
        }
    }
}

/// Why a limit does not concern a request, whatever its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exempt {
    /// It limits other methods.
    Methods,
    /// The client's address is in its `bypass`.
    Bypass,
    /// It is `none` for the caller's tier.
    Tier,
}

impl<'a> Caller<'a> {
    /// `ip_key` is the key of the client's address if it is known already.
    #[inline]
    pub fn new(
        gateway: &Gateway,
        head: Head<'a>,
        client: Client,
        ip_key: Option<Key>,
        named: Named<'a>,
        route: Option<usize>,
    ) -> Caller<'a> {
        let subject = Subject {
            ip: gateway.clients.masked(client.ip),
            ip_key,
            account: named.account,
            tier: named.tier,
            path: head.path,
            query: head.uri.query(),
            location: route.map(|place| gateway.locations.identity(place)),
            host: head.host,
            method: head.method,
            headers: head.headers,
            token: named.token,
        };
        Caller { client, subject }
    }

    /// What `limit`, whose keys are made by `by`, is to count.
    #[inline]
    pub fn ask(&self, keys: &Keys, limit: &Limit, by: &LimitKeys) -> Result<Ask, AskFault> {
        let Ok(variant) = self.variant(limit) else { return Ok(Ask::Skip) };
        match keys.key(&by.counts, &self.subject) {
            KeyOutcome::Key(key) => {
                let fair = match &by.turns {
                    Some(turns) => self.fair(keys, turns)?,
                    None => 0,
                };
                let units = Units { key, cost: self.cost(limit)?, variant, fair };
                Ok(match limit.config.shared {
                    None => Ask::Units(units),
                    Some(_) => self.shared(units, &by.counts),
                })
            }
            KeyOutcome::Skip => Ok(Ask::Skip),
            KeyOutcome::Missing => Ok(Ask::MissingKey),
            KeyOutcome::Duplicate => Err(AskFault::KeyRepeated),
        }
    }

    /// Under the key that all gateways know the same by.
    fn shared(&self, units: Units, counts: &KeySpec) -> Ask {
        match key::shared(counts, &self.subject) {
            Some(key) => Ask::Shared(units, SharedKey(key)),
            None => Ask::Skip,
        }
    }

    fn fair(&self, keys: &Keys, turns: &KeySpec) -> Result<u64, AskFault> {
        match keys.key(turns, &self.subject) {
            KeyOutcome::Key(key) => Ok(key.id as u64),
            KeyOutcome::Duplicate => Err(AskFault::KeyRepeated),
            KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
        }
    }

    /// Which numbers of `limit` judge the request, or why it does not concern it.
    #[inline]
    pub fn variant(&self, limit: &Limit) -> Result<usize, Exempt> {
        let config = &limit.config;
        if !config.methods.is_empty() && !self.is_of(&config.methods) {
            return Err(Exempt::Methods);
        }
        if limit.bypass.contain(self.client.ip) {
            return Err(Exempt::Bypass);
        }
        config.variant(Some(self.subject.tier)).ok_or(Exempt::Tier)
    }

    /// HEAD costs the upstream what GET does, and is served where GET is.
    fn is_of(&self, methods: &[Method]) -> bool {
        let method = self.subject.method;
        methods.contains(method) || *method == Method::HEAD && methods.contains(&Method::GET)
    }

    /// What the request takes. A header's word counts only from a trusted proxy.
    #[inline]
    fn cost(&self, limit: &Limit) -> Result<u64, AskFault> {
        match &limit.config.cost {
            Cost::Units(units) => Ok(*units),
            Cost::Header { name, invalid } if self.client.trusted_peer => {
                match (header_cost(self.subject.headers, name), invalid) {
                    (Ok(cost), _) => Ok(cost),
                    (Err(InvalidNumber), InvalidCost::Reject) if !limit.config.dry_run => {
                        Err(AskFault::InvalidCost)
                    }
                    (Err(InvalidNumber), _) => Ok(1),
                }
            }
            Cost::Header { .. } => Ok(1),
        }
    }

    /// Whether a trusted proxy says a cost for `limit` that is not a number.
    #[inline]
    pub fn has_invalid_cost(&self, limit: &Limit) -> bool {
        match &limit.config.cost {
            Cost::Header { name, .. } if self.client.trusted_peer => {
                header_cost(self.subject.headers, name).is_err()
            }
            _ => false,
        }
    }
}

/// A header that is there and not one number.
struct InvalidNumber;

/// 1 without the header.
fn header_cost(headers: &HeaderMap, name: &HeaderName) -> Result<u64, InvalidNumber> {
    let mut lines = headers.get_all(name).iter();
    let said = match (lines.next(), lines.next()) {
        (None, _) => return Ok(1),
        (Some(said), None) => said.to_str().unwrap_or_default().trim(),
        (Some(_), Some(_)) => return Err(InvalidNumber),
    };
    match said.parse() {
        Ok(cost) => Ok(cost),
        // More than can be counted is not one.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(u64::MAX),
        Err(_) => Err(InvalidNumber),
    }
}
