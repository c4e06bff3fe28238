//! What one limit is to count for a request: whether it concerns it, under which key, and how much.

use std::num::IntErrorKind;

use http::header::{HeaderMap, HeaderName};
use http::{Method, Uri};

use crate::admission::chain::LimitDemand;
use crate::config::LocationId;
use crate::config::{Cost, InvalidCost};
use crate::limit::table::CounterKey;
use crate::limit::{Limit, Units};
use crate::proxy::gateway::Gateway;
use crate::proxy::reject::Fault;
use crate::request::client::Client;
use crate::request::key;
use crate::request::key::{KeyHasher, KeyInput, KeyOutcome, KeySpec, LimitKeys};
use crate::request::source::Token;
use crate::shared::SharedKey;

/// What of a request's head limits may look at.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
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
pub struct CallerIdentity<'a> {
    pub account: Option<&'a [u8]>,
    pub tier: &'a str,
    pub token: Option<&'a Token<'a>>,
}

/// Who makes a request, as far as limits can tell.
pub struct Caller<'a> {
    pub client: Client,
    pub subject: KeyInput<'a>,
}

/// Why a limit cannot count a request: 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeFault {
    /// A source that the key is made of is there twice.
    RepeatedKey,
    /// The cost is not a number, and the limit says to reject then.
    InvalidCost,
}

impl From<ChargeFault> for Fault {
    fn from(fault: ChargeFault) -> Fault {
        match fault {
            ChargeFault::RepeatedKey => Fault::RepeatedKey,
            ChargeFault::InvalidCost => Fault::InvalidCost,
        }
    }
}

/// Why a limit does not concern a request, whatever its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exemption {
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
        head: RequestHead<'a>,
        client: Client,
        ip_key: Option<CounterKey>,
        named: CallerIdentity<'a>,
        route: Option<LocationId>,
    ) -> Caller<'a> {
        let subject = KeyInput {
            ip: gateway.clients.mask_address(client.ip),
            ip_key,
            account: named.account,
            tier: named.tier,
            path: head.path,
            query: head.uri.query(),
            location: route.map(|place| gateway.locations.identity_of(place)),
            host: head.host,
            method: head.method,
            headers: head.headers,
            token: named.token,
        };
        Caller { client, subject }
    }

    /// What `limit`, whose keys are made by `by`, is to count.
    #[inline]
    pub fn build_charge(
        &self,
        keys: &KeyHasher,
        limit: &Limit,
        by: &LimitKeys,
    ) -> Result<LimitDemand, ChargeFault> {
        let Ok(variant) = self.select_variant(limit) else { return Ok(LimitDemand::Skip) };
        match keys.hash_key(&by.count_key, &self.subject) {
            KeyOutcome::Key(key) => {
                let fair = match &by.turn_key {
                    Some(turns) => self.fair_queue_id(keys, turns)?,
                    None => 0,
                };
                let units = Units { key, cost: self.read_cost(limit)?, variant, fair };
                Ok(match limit.config.shared {
                    None => LimitDemand::Units(units),
                    Some(_) => self.shared_charge(units, &by.count_key),
                })
            }
            KeyOutcome::Skip => Ok(LimitDemand::Skip),
            KeyOutcome::Missing => Ok(LimitDemand::MissingKey),
            KeyOutcome::Duplicate => Err(ChargeFault::RepeatedKey),
        }
    }

    /// Under the key that all gateways know the same by.
    fn shared_charge(&self, units: Units, counts: &KeySpec) -> LimitDemand {
        match key::hash_shared(counts, &self.subject) {
            Some(key) => LimitDemand::Shared(units, SharedKey(key)),
            None => LimitDemand::Skip,
        }
    }

    fn fair_queue_id(&self, keys: &KeyHasher, turns: &KeySpec) -> Result<u64, ChargeFault> {
        match keys.hash_key(turns, &self.subject) {
            KeyOutcome::Key(key) => Ok(key.id as u64),
            KeyOutcome::Duplicate => Err(ChargeFault::RepeatedKey),
            KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
        }
    }

    /// Which numbers of `limit` judge the request, or why it does not concern it.
    #[inline]
    pub fn select_variant(&self, limit: &Limit) -> Result<usize, Exemption> {
        let config = &limit.config;
        if !config.methods.is_empty() && !self.matches_method(&config.methods) {
            return Err(Exemption::Methods);
        }
        if limit.bypass.contain_ip(self.client.ip) {
            return Err(Exemption::Bypass);
        }
        config.variant_for_tier(Some(self.subject.tier)).ok_or(Exemption::Tier)
    }

    /// HEAD costs the upstream what GET does, and is served where GET is.
    fn matches_method(&self, methods: &[Method]) -> bool {
        let method = self.subject.method;
        methods.contains(method) || *method == Method::HEAD && methods.contains(&Method::GET)
    }

    /// What the request takes. A header's word counts only from a trusted proxy.
    #[inline]
    fn read_cost(&self, limit: &Limit) -> Result<u64, ChargeFault> {
        match &limit.config.cost {
            Cost::Units(units) => Ok(*units),
            Cost::Header { name, invalid } if self.client.trusted_peer => {
                match (parse_cost_header(self.subject.headers, name), invalid) {
                    (Ok(cost), _) => Ok(cost),
                    (Err(InvalidNumber), InvalidCost::Reject) if !limit.config.dry_run => {
                        Err(ChargeFault::InvalidCost)
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
                parse_cost_header(self.subject.headers, name).is_err()
            }
            _ => false,
        }
    }
}

/// A header that is there and not one number.
struct InvalidNumber;

/// 1 without the header.
fn parse_cost_header(headers: &HeaderMap, name: &HeaderName) -> Result<u64, InvalidNumber> {
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
