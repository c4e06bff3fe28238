//! The demand of a request on one limit: whether the limit applies, under which key, and at which cost.

use std::num::IntErrorKind;

use http::Method;
use http::header::{HeaderMap, HeaderName};

use super::facts::RequestFacts;
use crate::admission::chain::LimitDemand;
use crate::base::clock::Now;
use crate::config::{Cost, InvalidCost};
use crate::limit::table::CounterKey;
use crate::limit::{Limit, Units};
use crate::proxy::gateway::Gateway;
use crate::proxy::reject::Fault;
use crate::request::client::Client;
use crate::request::key;
use crate::request::key::{KeyHasher, KeyInput, KeyOutcome, KeySpec, LimitKeys};
use crate::shared::SharedKey;

/// The caller of a request, as limits see it.
pub struct Caller<'a> {
    pub client: Client,
    now: Now,
    pub subject: KeyInput<'a>,
}

/// Why a limit cannot count a request; the response is a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeFault {
    /// A source of the key occurs more than once.
    RepeatedKey,
    /// The cost is not a number, and the limit is configured to reject that.
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

/// Why a limit does not apply to a request, independent of its key.
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
    /// The caller of a judged request; `ip_key` is the key of the client's address, if it is known already.
    #[inline]
    pub fn new(gateway: &Gateway, facts: &'a RequestFacts<'a>, ip_key: Option<CounterKey>) -> Caller<'a> {
        let head = &facts.head;
        let subject = KeyInput {
            ip: gateway.clients.mask_address(head.client.ip),
            ip_key,
            account: facts.account.as_deref(),
            tier: facts.tier_name(),
            path: &facts.path,
            query: head.uri.query(),
            location: facts.route().map(|index| gateway.locations.identity_of(index)),
            host: &facts.host,
            method: head.method,
            headers: head.headers,
            token: facts.token,
        };
        Caller { client: head.client, now: head.received, subject }
    }

    /// The demand on `limit`, which makes its keys with `limit_keys`.
    #[inline]
    pub fn build_demand(
        &self,
        keys: &KeyHasher,
        limit: &Limit,
        limit_keys: &LimitKeys,
    ) -> Result<LimitDemand, ChargeFault> {
        let Ok(variant) = self.select_variant(limit) else { return Ok(LimitDemand::Skip) };
        match keys.hash_key(&limit_keys.count_key, &self.subject) {
            KeyOutcome::Key(key) => {
                let fair = match &limit_keys.turn_key {
                    Some(turn_key) => self.fair_queue_id(keys, turn_key)?,
                    None => 0,
                };
                let units = Units { key, cost: self.read_cost(limit)?, variant, fair_hash: fair };
                Ok(match limit.config.shared {
                    None => LimitDemand::Units(self.use_grant(units, limit, key.id)),
                    Some(_) => self.shared_demand(units, limit, &limit_keys.count_key),
                })
            }
            KeyOutcome::Skip => Ok(LimitDemand::Skip),
            KeyOutcome::Missing => Ok(LimitDemand::MissingKey),
            KeyOutcome::Duplicate => Err(ChargeFault::RepeatedKey),
        }
    }

    /// The demand under the key that all gateways compute alike.
    fn shared_demand(&self, units: Units, limit: &Limit, count_key: &KeySpec) -> LimitDemand {
        match key::hash_shared(count_key, &self.subject) {
            Some(key) => {
                let units = self.use_grant(units, limit, u128::from_le_bytes(key));
                LimitDemand::Shared(units, SharedKey(key))
            }
            None => LimitDemand::Skip,
        }
    }

    /// The units by the numbers granted to the key with this id, or unchanged.
    #[inline]
    fn use_grant(&self, units: Units, limit: &Limit, id: u128) -> Units {
        Units { variant: limit.granted_variant(id, self.now).unwrap_or(units.variant), ..units }
    }

    fn fair_queue_id(&self, keys: &KeyHasher, turn_key: &KeySpec) -> Result<u64, ChargeFault> {
        match keys.hash_key(turn_key, &self.subject) {
            KeyOutcome::Key(key) => Ok(key.id as u64),
            KeyOutcome::Duplicate => Err(ChargeFault::RepeatedKey),
            KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
        }
    }

    /// The variant of `limit` for the caller's tier, or the reason why the limit does not apply.
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

    /// A limit of GET also limits HEAD, which costs the upstream the same and is served in the same places.
    fn matches_method(&self, methods: &[Method]) -> bool {
        let method = self.subject.method;
        methods.contains(method) || *method == Method::HEAD && methods.contains(&Method::GET)
    }

    /// The cost of the request. A cost header is used only from a trusted proxy.
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

    /// Whether a trusted proxy sent a cost for `limit` that is not a number.
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

/// A cost header that is not exactly one number.
struct InvalidNumber;

/// The cost in the header; 1 without the header.
fn parse_cost_header(headers: &HeaderMap, name: &HeaderName) -> Result<u64, InvalidNumber> {
    let mut lines = headers.get_all(name).iter();
    let value = match (lines.next(), lines.next()) {
        (None, _) => return Ok(1),
        (Some(value), None) => value.to_str().unwrap_or_default().trim(),
        (Some(_), Some(_)) => return Err(InvalidNumber),
    };
    match value.parse() {
        Ok(cost) => Ok(cost),
        // A number that overflows is the highest cost, not an invalid one.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(u64::MAX),
        Err(_) => Err(InvalidNumber),
    }
}
