//! The demand of a request on one limit: whether the limit applies, under which key, and at which cost.

use std::borrow::Cow;
use std::num::IntErrorKind;

use http::Method;
use http::header::{HeaderMap, HeaderName};

use super::facts::RequestFacts;
use crate::gateway::{ChainPlace, Gateway};
use crate::reject::Fault;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_http::request::client::Client;
use sluicegate_http::request::key::{self, KeyHasher, KeyInput, KeyOutcome, KeySpec};
use sluicegate_http::request::source::{
    self, BodyForm, BodyValue, BodyValues, CostFault, HeaderMismatch, SourceValue,
};
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{
    BodyReserve, ChargeConfig, Cost, EnforcedShare, InvalidCost, KeyPart, LlmWeights, RequestPrice, Reserve,
    Shares, ValueSource, model_pointer,
};
use sluicegate_store::SharedKey;

/// The caller of a request, as limits see it.
pub struct Caller<'a> {
    /// The client's address, and the trust in its peer.
    pub client: Client,
    now: Now,
    /// The prices of the request; `None` = its caller states the units.
    prices: Option<&'a [RequestPrice]>,
    /// The name of the location.
    location: Option<&'a str>,
    /// The facts that keys are made of.
    pub subject: KeyInput<'a>,
}

/// Why a limit cannot count a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeFault {
    /// A source of the key occurs more than once.
    RepeatedKey,
    /// A value of the body that is the cost or the model, or is reserved by, occurs more than once.
    RepeatedCost,
    /// The cost cannot be read, and the limit is configured to reject that.
    InvalidCost,
    /// The model of the request has no price, and the limit is configured to reject that.
    UnknownModel,
    /// The key or the cost is a value in a body that cannot be read.
    Body(Fault),
}

impl From<ChargeFault> for Fault {
    fn from(fault: ChargeFault) -> Fault {
        match fault {
            ChargeFault::RepeatedKey | ChargeFault::RepeatedCost => Fault::RepeatedKey,
            ChargeFault::InvalidCost => Fault::InvalidCost,
            ChargeFault::UnknownModel => Fault::UnknownModel,
            ChargeFault::Body(fault) => fault,
        }
    }
}

/// Why a limit does not apply to a request, independent of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exemption {
    /// The limit is for other methods.
    Methods,
    /// The client's address is in its `bypass`.
    Bypass,
    /// The limit is `none` for the caller's tier.
    Tier,
}

impl<'a> Caller<'a> {
    /// The caller of a judged request; `ip_key` is the key of the client's address, if it is known already.
    #[inline]
    pub fn new(gateway: &'a Gateway, facts: &'a RequestFacts<'a>, ip_key: Option<CounterKey>) -> Caller<'a> {
        let head = &facts.head;
        let subject = KeyInput {
            ip: gateway.clients.mask_address(head.client.ip),
            ip_key,
            account: facts.account(),
            tier: facts.tier_name(),
            path: &facts.path,
            query: head.uri.query(),
            location: facts.route().map(|index| gateway.locations.identity_of(index)),
            host: &facts.host,
            method: head.method,
            headers: head.headers,
            trusted_peer: head.client.trusted_peer,
            token: facts.token,
            body: facts.body_values(),
        };
        let location = gateway.location_name(facts.route()).map(|name| &**name);
        let (client, now, prices) = (head.client, head.received, facts.prices.as_deref());
        Caller { client, now, prices, location, subject }
    }

    /// A caller with facts that a trusted caller states.
    pub fn stated(client: Client, now: Now, subject: KeyInput<'a>) -> Caller<'a> {
        Caller { client, now, prices: None, location: None, subject }
    }

    /// The demand on `limit` at its place in the chain.
    #[inline]
    pub fn build_demand(
        &self,
        keys: &KeyHasher,
        limit: &Limit,
        place: &ChainPlace,
    ) -> Result<LimitDemand, ChargeFault> {
        let ChainPlace { keys: limit_keys, own_variant } = place;
        let Ok(variant) = self.select_variant(limit, *own_variant) else { return Ok(LimitDemand::Skip) };
        let unenforced = match limit_keys.enforced {
            None => false,
            Some(share) => !self.is_in_share(share, &limit_keys.count_key),
        };
        let is_dry_run = limit.is_dry_run(unenforced);
        if let Some(body) = self.subject.body.filter(|_| !is_dry_run && limit.config.reads_body()) {
            if limit.config.reads_mcp() {
                let is_same = source::check_mcp_headers(self.subject.headers, body);
                is_same.map_err(|HeaderMismatch| ChargeFault::Body(Fault::HeaderMismatch))?;
            }
            check_form(body, limit.config.reads_values()).map_err(ChargeFault::Body)?;
        }
        match keys.hash_key(&limit_keys.count_key, &self.subject) {
            KeyOutcome::Key(mut key) => {
                if let Some(shares) = &limit.config.shares {
                    let class = self.find_class(shares);
                    key.class = if is_dry_run { class.unwrap_or(shares.default_class()) } else { class? };
                }
                let fair = limit_keys.fair_key.as_ref().map_or(Ok(0), |key| self.hash_fair_key(keys, key));
                let fair = if is_dry_run { fair.unwrap_or(0) } else { fair? };
                let cost = match self.read_units(limit, variant, key.class, unenforced) {
                    Err(ChargeFault::UnknownModel) if is_dry_run => return Ok(LimitDemand::Skip),
                    cost => cost?,
                };
                let anchor = limit.config.anchor_of(self.subject.account);
                let units = Units { key, cost, variant, fair_hash: fair, unenforced, anchor };
                Ok(match limit.config.shared {
                    None => LimitDemand::Units(self.use_grant(units, limit, key.id)),
                    Some(_) => self.shared_demand(units, limit, &limit_keys.count_key),
                })
            }
            KeyOutcome::Skip => Ok(LimitDemand::Skip),
            KeyOutcome::Missing => Ok(LimitDemand::MissingKey),
            // No counter can be told, and a dry run refuses nothing.
            KeyOutcome::Duplicate if is_dry_run => Ok(LimitDemand::Skip),
            KeyOutcome::Duplicate => Err(ChargeFault::RepeatedKey),
        }
    }

    /// The class of the request in a limit with shares.
    #[cold]
    fn find_class(&self, shares: &Shares) -> Result<u8, ChargeFault> {
        Ok(shares.find_class(self.read_class(shares)?.as_deref()))
    }

    /// The value that names the class of the request; a header names it from trusted proxies alone.
    ///
    /// # Errors
    /// It occurs more than once.
    pub fn read_class(&self, shares: &Shares) -> Result<Option<Cow<'_, [u8]>>, ChargeFault> {
        let subject = &self.subject;
        Ok(match &shares.by {
            KeyPart::Tier => Some(Cow::Borrowed(subject.tier.as_bytes())),
            KeyPart::Account => subject.account.map(Cow::Borrowed),
            KeyPart::Source(ValueSource::Header(_)) if !subject.trusted_peer => None,
            KeyPart::Source(source) => match source::read_source(source, &subject.sources()) {
                SourceValue::One(value) => Some(value),
                SourceValue::Absent => None,
                SourceValue::Repeated => return Err(ChargeFault::RepeatedKey),
            },
            _ => self.location.map(|name| Cow::Borrowed(name.as_bytes())),
        })
    }

    /// True if a limit acts on the key of this request, as all gateways agree.
    #[cold]
    fn is_in_share(&self, share: EnforcedShare, count_key: &KeySpec) -> bool {
        key::hash_shared(count_key, &self.subject).is_some_and(|hash| share.contains(hash))
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

    fn hash_fair_key(&self, keys: &KeyHasher, fair_key: &KeySpec) -> Result<u64, ChargeFault> {
        let key = keys.hash_key(fair_key, &self.subject).key_or_repeated();
        key.map(|key| key.id as u64).ok_or(ChargeFault::RepeatedKey)
    }

    /// The variant of `limit` for the caller's tier, or the reason why the limit does not apply. The variant `own`
    /// stands for the limit's own numbers.
    #[inline]
    pub fn select_variant(&self, limit: &Limit, own: usize) -> Result<usize, Exemption> {
        check_exemption(limit, self.subject.method, &self.client)?;
        limit.config.variant_at(own, Some(self.subject.tier)).ok_or(Exemption::Tier)
    }

    /// The units that the request takes when it is judged: its cost, or the reservation of a limit that charges by the
    /// response.
    #[inline]
    fn read_units(
        &self,
        limit: &Limit,
        variant: usize,
        class: u8,
        unenforced: bool,
    ) -> Result<u64, ChargeFault> {
        match &limit.config.charge {
            None => self.read_cost(limit, unenforced),
            Some(charge) => match &charge.reserve {
                Reserve::Cost => self.read_cost(limit, unenforced),
                Reserve::Units(units) => Ok(*units),
                Reserve::Body(claim) => {
                    self.claim_units((claim, charge), limit, (variant, class), unenforced)
                }
            },
        }
    }

    /// The units that the body claims, at least 1 and at most the limit's share for one request.
    fn claim_units(
        &self,
        (claim, charge): (&BodyReserve, &ChargeConfig),
        limit: &Limit,
        (variant, class): (usize, u8),
        unenforced: bool,
    ) -> Result<u64, ChargeFault> {
        let body = self.subject.body;
        let of_price = charge.pricing.as_ref().map(|_| model_pointer());
        let mut told = claim.from.iter().chain(of_price);
        let is_repeated = |body: &BodyValues| told.any(|at| *body.find(at) == BodyValue::Repeated);
        if body.is_some_and(is_repeated) && !limit.is_dry_run(unenforced) {
            return Err(ChargeFault::RepeatedCost);
        }
        let (claimed, added) = match body.and_then(|body| Some((body, body.json_bytes()?))) {
            None => (claim.default.into(), 0),
            Some((body, bytes)) => {
                let said = claim.from.iter().find_map(|pointer| body.find(pointer).millionths());
                let base = said.map_or(claim.default.into(), |said| said.div_ceil(LlmWeights::ONE.into()));
                (base, claim.bytes_per_unit.map_or(0, |per_unit| bytes.div_ceil(per_unit)))
            }
        };
        let units = match (&charge.pricing, self.prices) {
            (None, _) => claimed + u128::from(added),
            (Some(_), None) => 1,
            (Some(pricing), Some(prices)) => {
                let price =
                    prices.iter().find(|price| price.is_by(pricing)).ok_or(ChargeFault::UnknownModel)?;
                price.reserve(added, claimed)
            }
        };
        let most = |rate| limit.max_units(rate, class);
        let capacity = limit.rate_range(variant).map(most).min().unwrap_or(1);
        let most = u128::from(capacity) * u128::from(claim.at_most) / u128::from(LlmWeights::ONE);
        // Cannot exceed 64 bits: the capacity has as many, and `at_most` is a share of it.
        Ok(units.clamp(1, most.max(1)) as u64)
    }

    /// The cost of the request.
    #[inline]
    fn read_cost(&self, limit: &Limit, unenforced: bool) -> Result<u64, ChargeFault> {
        let fault = match self.tell_cost(limit) {
            Ok(cost) => return Ok(cost),
            Err(fault) => fault,
        };
        let invalid = match &limit.config.cost {
            Cost::Header { invalid, .. } | Cost::Json { invalid, .. } | Cost::JsonRpc { invalid } => *invalid,
            Cost::Units(_) => InvalidCost::One,
        };
        match (fault, invalid) {
            _ if limit.is_dry_run(unenforced) => Ok(1),
            (CostFault::Repeated, _) => Err(ChargeFault::RepeatedCost),
            (CostFault::NotANumber, InvalidCost::Reject) => Err(ChargeFault::InvalidCost),
            (CostFault::NotANumber, InvalidCost::One) => Ok(1),
        }
    }

    /// The cost that the request tells. A header is believed from a trusted proxy alone; a body, which says how much
    /// the client asks for, from everybody.
    #[inline]
    fn tell_cost(&self, limit: &Limit) -> Result<u64, CostFault> {
        match &limit.config.cost {
            Cost::Units(units) => Ok(*units),
            Cost::Header { name, .. } if self.client.trusted_peer => {
                parse_cost_header(self.subject.headers, name)
            }
            Cost::Header { .. } => Ok(1),
            Cost::Json { pointer, .. } => self.subject.body.map_or(Ok(1), |body| body.read_cost(pointer)),
            Cost::JsonRpc { .. } => self.subject.body.map_or(Ok(1), BodyValues::count_calls),
        }
    }

    /// True if the request tells a cost for `limit` that cannot be read.
    pub fn has_invalid_cost(&self, limit: &Limit) -> bool {
        !matches!(limit.config.cost, Cost::Units(_)) && self.tell_cost(limit).is_err()
    }
}

/// # Errors
/// `limit` leaves out all requests of this method or client.
#[inline]
pub(super) fn check_exemption(limit: &Limit, method: &Method, client: &Client) -> Result<(), Exemption> {
    let methods = &limit.config.methods;
    // A limit of GET also limits HEAD, which costs the upstream the same and is served in the same places.
    let is_limited =
        |method| methods.contains(method) || *method == Method::HEAD && methods.contains(&Method::GET);
    if !methods.is_empty() && !is_limited(method) {
        return Err(Exemption::Methods);
    }
    if limit.bypass.contain_ip(client.ip) { Err(Exemption::Bypass) } else { Ok(()) }
}

/// Many upstreams read a long or encoded body all the same, so it must not lead to another key or a lower cost.
pub(super) fn check_form(body: &BodyValues, reads_values: bool) -> Result<(), Fault> {
    match body.form {
        BodyForm::TooLong => Err(Fault::BodyBeyondPeek),
        BodyForm::Encoded if reads_values => Err(Fault::BodyUnreadable),
        BodyForm::Empty | BodyForm::Json | BodyForm::NotJson | BodyForm::Encoded => Ok(()),
    }
}

/// The cost in the header; 1 without the header.
fn parse_cost_header(headers: &HeaderMap, name: &HeaderName) -> Result<u64, CostFault> {
    let mut lines = headers.get_all(name).iter();
    let value = match (lines.next(), lines.next()) {
        (None, _) => return Ok(1),
        (Some(value), None) => value.to_str().unwrap_or_default().trim(),
        (Some(_), Some(_)) => return Err(CostFault::NotANumber),
    };
    match value.parse() {
        Ok(cost) => Ok(cost),
        // A number that overflows is the highest cost, not an invalid one.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(u64::MAX),
        Err(_) => Err(CostFault::NotANumber),
    }
}
