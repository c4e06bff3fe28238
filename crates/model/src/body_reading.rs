//! The values that a configuration reads from the bodies of requests.

use std::sync::Arc;

use super::account::AccountConfig;
use super::charge::{BodyReserve, Reserve};
use super::key::{KeyPart, ValueSource, mcp_pointers};
use super::limit::{Cost, LimitConfig};
use super::location::BandwidthConfig;
use super::prices::{Pricing, model_pointer};
use super::{Config, LocationConfig};
use sluicegate_base::json_pointer::JsonPointer;

/// The bytes of a body that are read before its request is judged, unless the location sets others.
pub const BODY_PEEK_AUTO: u64 = 64 << 10;

/// The purposes of a request's body, by rising need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyUse {
    /// The body is not read before the request is judged.
    Unused,
    /// A response of the gateway may contain values of the body.
    Response,
    /// The body is counted in dry runs alone.
    DryRun,
    /// Units are reserved by the body, and corrected by the response.
    Estimate,
    /// The body has a key, a cost or the caller.
    Required,
}

impl ValueSource {
    /// The place of the value in the body.
    pub fn body_pointer(&self) -> Option<&JsonPointer> {
        match self {
            ValueSource::Json(pointer) => Some(pointer),
            ValueSource::Header(_) | ValueSource::Cookie(_) | ValueSource::Query(_) => None,
            ValueSource::Jwt(_) | ValueSource::Auth(_) => None,
        }
    }
}

impl KeyPart {
    /// The places of the values in the body that it is made of.
    pub fn body_pointers(&self) -> &[JsonPointer] {
        match self {
            KeyPart::Source(source) => source.body_pointer().map_or(&[], std::slice::from_ref),
            KeyPart::Mcp(_) => mcp_pointers(),
            _ => &[],
        }
    }
}

impl LimitConfig {
    /// The values in the body that keys, cost and price are made of.
    pub fn body_pointers(&self) -> impl Iterator<Item = &JsonPointer> {
        let of_cost = match &self.cost {
            Cost::Json { pointer, .. } => Some(pointer),
            Cost::Units(_) | Cost::Header { .. } | Cost::JsonRpc { .. } => None,
        };
        let of_price = self.pricing().map(|_| model_pointer());
        self.parts().flat_map(KeyPart::body_pointers).chain(of_cost).chain(of_price)
    }

    /// The prices of a limit that charges money.
    pub fn pricing(&self) -> Option<&Arc<Pricing>> {
        self.charge.as_ref()?.pricing.as_ref()
    }

    /// The facts of a request by which it counts, takes turns and tells classes.
    pub fn parts(&self) -> impl Iterator<Item = &KeyPart> {
        let by_class = self.shares.as_ref().map(|shares| &shares.by);
        self.key.iter().chain(&self.fair_by).chain(by_class)
    }

    /// True if a key, the cost or the price is read from the body.
    pub fn reads_body(&self) -> bool {
        self.reads_values() || self.hashes_body()
    }

    /// True if a key, the cost or the price is made of values in the JSON of the body.
    pub fn reads_values(&self) -> bool {
        matches!(self.cost, Cost::JsonRpc { .. }) || self.body_pointers().next().is_some()
    }

    /// True if a key is the hash of the body.
    pub fn hashes_body(&self) -> bool {
        self.parts().any(|part| *part == KeyPart::BodyHash)
    }

    /// True if a key is a value of an MCP message.
    pub fn reads_mcp(&self) -> bool {
        self.parts().any(|part| matches!(part, KeyPart::Mcp(_)))
    }

    /// The purpose of a request's body for this limit.
    pub fn body_use(&self) -> BodyUse {
        match (self.reads_body(), self.body_reserve()) {
            (false, None) => BodyUse::Unused,
            _ if self.dry_run => BodyUse::DryRun,
            (true, _) => BodyUse::Required,
            (false, Some(_)) => BodyUse::Estimate,
        }
    }

    /// The claim in the body that reserves units.
    pub fn body_reserve(&self) -> Option<&BodyReserve> {
        match &self.charge.as_ref()?.reserve {
            Reserve::Body(claim) => Some(claim),
            Reserve::Cost | Reserve::Units(_) => None,
        }
    }
}

impl BandwidthConfig {
    /// The values in the body that its key is made of.
    pub fn body_pointers(&self) -> impl Iterator<Item = &JsonPointer> {
        self.key.iter().flat_map(KeyPart::body_pointers)
    }
}

impl AccountConfig {
    /// The values in the body that account and tier are made of.
    pub fn body_pointers(&self) -> impl Iterator<Item = &JsonPointer> {
        self.from.iter().chain(&self.tier.from).filter_map(ValueSource::body_pointer)
    }
}

impl LocationConfig {
    /// The bytes of a body that are read before its request is judged, if anything asks for them.
    pub fn body_peek_bytes(&self) -> u64 {
        self.body_peek.unwrap_or(BODY_PEEK_AUTO)
    }

    /// True if the body of a request is read before it is judged.
    pub fn reads_body(&self, config: &Config) -> bool {
        let mut chain = config.server.limits.iter().chain(&self.limits);
        config.account.body_pointers().next().is_some()
            || self.bandwidth.as_ref().is_some_and(|own| own.body_pointers().next().is_some())
            || chain.any(|&limit| config.limits[limit].body_use() > BodyUse::Unused)
            || !config.echoed_values(Some(self)).is_empty()
    }
}
