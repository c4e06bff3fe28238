//! Settles the charges that depend on a response: a request reserves units when it is judged, and when its response is
//! over, whatever ended it, the reservation is corrected to the used units.
//!
//! `reading` collects the needed parts of a response for the limits of a chain; this module computes the units.

mod extensions;
mod reading;

use sluicegate_base::labelled::labelled_enum;
use sluicegate_http::response::LlmUsage;
use sluicegate_model::{ChargeConfig, ChargedUnits, Cost, LimitConfig, LimitId, LlmWeights, MissingUnits};

pub(crate) use extensions::{
    ExtensionPart, Extensions, LimitExtension, OwedPart, PartCharges, PartSource, part_size,
};
pub use reading::{ReadingPlan, ResponseReading};

/// The charge of one limit for a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalCharge {
    /// The limit, by its index in the configuration.
    pub limit: LimitId,
    /// The place in the chain.
    pub limit_index: u16,
    /// Units taken when the request was judged.
    pub reserved: u64,
    /// Units that the response costs, debt and overrun included.
    pub charged: u64,
    /// The source of these units.
    pub source: ChargeSource,
    /// Units beyond the debt that a key may have; they are not charged.
    pub overrun: u64,
}

labelled_enum! {
    /// The source of the units of a response; a greater one says less of the response. `as_str` is the word of the
    /// access log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ChargeSource: as_str -> &'static str {
        /// The cost of the request.
        Request = "request",
        /// The response says them.
        Usage = "usage",
        /// An estimate from the delivered body.
        Estimate = "estimate",
        /// The reserved units.
        Reserve = "reserve",
        /// The response costs nothing, or never reached a server.
        Nothing = "nothing",
    }
}

/// The cost of a response, while its summands are added.
#[derive(Default)]
struct ChargeSum {
    millionths: u128,
    /// `None`: nothing was added.
    source: Option<ChargeSource>,
    /// A summand is unknown, and the reservation stands for the whole.
    is_incomplete: bool,
}

/// The bytes of a KiB, which sizes are counted in.
const KIB: u64 = 1_024;

/// The units of a response to a request that reserved `reserved`. `bytes` of its body were delivered.
pub(crate) fn compute_charge(
    limit: &LimitConfig,
    charge: &ChargeConfig,
    reserved: u64,
    reading: &ResponseReading,
    bytes: u64,
) -> (u64, ChargeSource) {
    if !reading.reached_server() || !is_met(charge, reading) {
        return (0, ChargeSource::Nothing);
    }
    // Without a response, the bytes are those of an error of the gateway itself.
    let bytes = reading.status().map_or(0, |_| bytes);
    let mut sum = ChargeSum::default();
    for summand in &charge.units {
        match summand {
            ChargedUnits::Request => {
                let cost = match limit.cost {
                    Cost::Units(units) => units,
                    Cost::Header { .. } | Cost::Json { .. } | Cost::JsonRpc { .. } => reserved,
                };
                sum.add(millionths(cost), ChargeSource::Request)
            }
            ChargedUnits::Bytes if charge.counts_kib => {
                sum.add(millionths(bytes.div_ceil(KIB)), ChargeSource::Usage)
            }
            ChargedUnits::Bytes => sum.add(millionths(bytes), ChargeSource::Usage),
            ChargedUnits::Header(name) => sum.add_said(reading.header_number(name).map(u128::from), charge),
            ChargedUnits::Json(pointer) => sum.add_said(reading.json_number(pointer), charge),
            ChargedUnits::Llm(weights) => sum.add_tokens(reading, charge, |usage| usage.units(weights)),
            ChargedUnits::Money(_) => {
                match charge.pricing.as_ref().and_then(|pricing| reading.find_price(pricing)) {
                    Some(price) => sum
                        .add_tokens(reading, charge, |usage| usage.units(price.for_input(usage.all_input()))),
                    None => sum.is_incomplete = true,
                }
            }
        }
    }
    sum.finish(reserved)
}

// === impl ChargeSum ===

impl ChargeSum {
    fn add(&mut self, millionths: u128, source: ChargeSource) {
        self.millionths = self.millionths.saturating_add(millionths);
        self.source = Some(self.source.map_or(source, |known| known.max(source)));
    }

    /// Adds a number that cannot be estimated, if the response does not say it.
    fn add_said(&mut self, said: Option<u128>, charge: &ChargeConfig) {
        match (said, charge.missing) {
            (Some(said), _) => self.add(said, ChargeSource::Usage),
            (None, MissingUnits::Nothing) => {}
            (None, MissingUnits::Estimate | MissingUnits::Reserved) => self.is_incomplete = true,
        }
    }

    /// `weigh` tells the millionths that tokens cost.
    fn add_tokens(
        &mut self,
        reading: &ResponseReading,
        charge: &ChargeConfig,
        weigh: impl Fn(&LlmUsage) -> u128,
    ) {
        let tokens = reading.count_tokens();
        // A response that broke off may have used all that it was allowed to.
        self.is_incomplete |= tokens.is_broken && charge.missing == MissingUnits::Estimate;
        match (tokens.is_said, charge.missing) {
            (true, _) => self.add(weigh(&tokens.usage), ChargeSource::Usage),
            (false, MissingUnits::Estimate) => self.add(weigh(&tokens.usage), ChargeSource::Estimate),
            (false, missing) => {
                self.is_incomplete |= missing == MissingUnits::Reserved;
                if tokens.said.is_said() {
                    self.add(weigh(&tokens.said), ChargeSource::Usage);
                }
            }
        }
    }

    /// The units, rounded up once, and at least the reserved ones where a summand is unknown; the source is that of the
    /// units.
    fn finish(self, reserved: u64) -> (u64, ChargeSource) {
        let units = u64::try_from(self.millionths.div_ceil(LlmWeights::ONE.into())).unwrap_or(u64::MAX);
        match (self.is_incomplete && units <= reserved, self.source) {
            (true, _) => (reserved, ChargeSource::Reserve),
            (false, Some(source)) => (units, source),
            (false, None) => (0, ChargeSource::Nothing),
        }
    }
}

/// True if `when` covers the response. One without a final status is charged, or hanging up would be free.
fn is_met(charge: &ChargeConfig, reading: &ResponseReading) -> bool {
    match (&charge.when, reading.status()) {
        (Some(when), Some(status)) => {
            let is_open = !when.grpc_codes.is_empty() && reading.lacks_grpc_code();
            is_open || when.contains(status.as_u16(), reading.grpc_code())
        }
        _ => true,
    }
}

fn millionths(units: u64) -> u128 {
    u128::from(units) * u128::from(LlmWeights::ONE)
}

#[cfg(test)]
mod tests;
