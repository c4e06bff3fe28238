//! What one limit is to count for a request: whether it concerns it, under which key, and how much.

use std::num::IntErrorKind;

use http::header::{HeaderMap, HeaderName};
use http::{Method, Uri};

use crate::chain::Ask;
use crate::client::Client;
use crate::config::Cost;
use crate::gateway::Gateway;
use crate::key::{self, KeyOutcome, KeySpec, Keys, LimitKeys, Subject};
use crate::limit::{Limit, Units};
use crate::source::Token;
use crate::state::SharedKey;
use crate::table::Key;

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

/// A source that the key is made of is there twice: 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRepeated;

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
    pub fn ask(&self, keys: &Keys, limit: &Limit, by: &LimitKeys) -> Result<Ask, KeyRepeated> {
        let Ok(variant) = self.variant(limit) else { return Ok(Ask::Skip) };
        match keys.key(&by.counts, &self.subject) {
            KeyOutcome::Key(key) => {
                let fair = match &by.turns {
                    Some(turns) => self.fair(keys, turns)?,
                    None => 0,
                };
                let units = Units { key, cost: self.cost(limit), variant, fair };
                Ok(match limit.config.shared {
                    None => Ask::Units(units),
                    Some(_) => self.shared(units, &by.counts),
                })
            }
            KeyOutcome::Skip => Ok(Ask::Skip),
            KeyOutcome::Missing => Ok(Ask::MissingKey),
            KeyOutcome::Duplicate => Err(KeyRepeated),
        }
    }

    /// Under the key that all gateways know the same by.
    fn shared(&self, units: Units, counts: &KeySpec) -> Ask {
        match key::shared(counts, &self.subject) {
            Some(key) => Ask::Shared(units, SharedKey(key)),
            None => Ask::Skip,
        }
    }

    fn fair(&self, keys: &Keys, turns: &KeySpec) -> Result<u64, KeyRepeated> {
        match keys.key(turns, &self.subject) {
            KeyOutcome::Key(key) => Ok(key.id as u64),
            KeyOutcome::Duplicate => Err(KeyRepeated),
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
    let said = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    match said.parse() {
        Ok(cost) => cost,
        // More than can be counted is not one.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => u64::MAX,
        Err(_) => 1,
    }
}
