//! The typed model of `charge`: a limit reserves units for a request, and its response settles the cost.

use std::sync::Arc;

use http::HeaderName;

use super::prices::{LlmWeights, Pricing};
use super::upstream::StatusRanges;
use super::value::money::Currency;
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_base::labelled::labelled_enum;

/// The `charge` section of a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct ChargeConfig {
    /// The responses that cost anything; `None` = any.
    pub when: Option<ResponseSet>,
    /// The responses that reset the used units of the key; open reservations stay. One that is in `when` too is charged
    /// first.
    pub clear: ResponseSet,
    /// One or more; their sum is the cost of a response.
    pub units: Vec<ChargedUnits>,
    /// The units that a request takes until its response settles them.
    pub reserve: Reserve,
    /// The cost of a response that does not tell it.
    pub missing: MissingUnits,
    /// The treatment of a response that uses more than was reserved while nothing is left.
    pub over: OverrunAction,
    /// The rates are written as sizes: the units are bytes alone, counted in KiB and rounded up for each request.
    pub counts_kib: bool,
    /// The prices of [`ChargedUnits::Money`]; `None` = the units are others.
    pub pricing: Option<Arc<Pricing>>,
}

/// Responses by their status or by their code of gRPC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponseSet {
    /// The statuses in the set.
    pub statuses: StatusRanges,
    /// The codes of gRPC in the set, each once.
    pub grpc_codes: Vec<u8>,
}

/// One summand of the cost of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum ChargedUnits {
    /// The cost of the request.
    Request,
    /// Bytes of the response body that were delivered; see [`ChargeConfig::counts_kib`].
    Bytes,
    /// A number in a response header.
    Header(HeaderName),
    /// A number in the JSON of the response body.
    Json(JsonPointer),
    /// Tokens of a language model.
    Llm(LlmWeights),
    /// The price of these tokens, in millionths of the currency; see [`ChargeConfig::pricing`].
    Money(Currency),
}

/// The units that a request reserves.
#[derive(Debug, Clone, PartialEq)]
pub enum Reserve {
    /// The cost of the limit.
    Cost,
    /// The minimum is 1.
    Units(u64),
    /// A claim in the JSON of the request's body.
    Body(BodyReserve),
}

/// Units that the body of a request claims.
#[derive(Debug, Clone, PartialEq)]
pub struct BodyReserve {
    /// The first that is a number counts. Of money, it is tokens of output.
    pub from: Vec<JsonPointer>,
    /// Bytes of the body per unit that is added, at least 1; `None` = none are. Of money, the units are tokens of
    /// input.
    pub bytes_per_unit: Option<u64>,
    /// The units without a claim, or of a body that is no JSON or longer than the peek; at least 1. Of money, they are
    /// tokens of output.
    pub default: u64,
    /// Millionths of the smallest burst or window of the limit, above 0; larger claims are cut to it.
    pub at_most: u64,
}

labelled_enum! {
    /// The cost of a response that does not tell it, or that was left before its end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MissingUnits: as_str -> &'static str {
        /// An estimate from the delivered part.
        Estimate = "estimate",
        /// The reserved units.
        Reserved = "reserved",
        /// No units; the reserved ones are given back.
        Nothing = "nothing",
    }

    /// The treatment of a response that uses more than was reserved while nothing is left.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OverrunAction: as_str -> &'static str {
        /// The response goes on to its end, and the excess becomes a debt.
        Finish = "finish",
        /// The response is cut.
        Cut = "cut",
    }
}

// === impl ChargeConfig ===

impl ChargeConfig {
    /// The contents of the counters of a limit with or without a charge: the units, and true if sizes count in KiB.
    pub fn counted_units(charge: Option<&ChargeConfig>) -> (&[ChargedUnits], bool) {
        const REQUESTS: &[ChargedUnits] = &[ChargedUnits::Request];
        charge.map_or((REQUESTS, false), |charge| (charge.units.as_slice(), charge.counts_kib))
    }
}

// === impl ChargedUnits ===

impl ChargedUnits {
    /// True if the body of the response says them.
    pub fn is_in_body(&self) -> bool {
        matches!(self, ChargedUnits::Json(_) | ChargedUnits::Llm(_) | ChargedUnits::Money(_))
    }
}

// === impl ResponseSet ===

impl ResponseSet {
    /// True if no response is in the set.
    pub fn is_empty(&self) -> bool {
        self.statuses.0.is_empty() && self.grpc_codes.is_empty()
    }

    /// True if a response is in the set; `grpc_code` is `None` unless it answers a gRPC call.
    pub fn contains(&self, status: u16, grpc_code: Option<u8>) -> bool {
        self.statuses.contains(status) || grpc_code.is_some_and(|code| self.grpc_codes.contains(&code))
    }
}
