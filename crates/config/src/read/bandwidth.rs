//! Reads `bandwidth` of a location: the pace of its response bodies.

use std::time::Duration;

use super::keys;
use crate::schema::tables::locations::{bandwidth, location};
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::bandwidth::BandwidthConfig;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::value::byte_rate::parse_byte_rate;
use sluicegate_model::value::scalars;

/// The default of `burst` is the bytes of this time …
const BURST: Duration = Duration::from_secs(1);
/// … but at least the head of a small page.
const BURST_LEAST: u64 = 16 << 10;

/// The least burst is the bytes of this time: timers count milliseconds, and a smaller bucket would refill before one
/// fires.
const BURST_SPAN: Duration = Duration::from_millis(10);

/// A bound on the time in which a bucket fills, in nanoseconds, that leaves room for the arithmetic on it.
const FILL_MAX_NS: u128 = 1 << 62;

/// Reads `bandwidth`; `None` = bodies are not paced.
pub(crate) fn read_bandwidth(fields: &FieldReader<'_>) -> Option<BandwidthConfig> {
    let value = fields.find(&location::BANDWIDTH).filter(|value| !value.is_word("none"))?;
    let (key, rate, burst) = fields.read_section_or_none(&location::BANDWIDTH, |fields| {
        let burst = fields.find(&bandwidth::BURST).filter(|value| !value.is_word("auto"));
        (keys::read_key(fields, &bandwidth::KEY), fields.find_required(&bandwidth::RATE), burst)
    })?;
    let rate = rate?.parse_with(parse_byte_rate)?;
    let mut pace = BandwidthConfig { rate, burst: 0, key };
    pace.burst = match &burst {
        Some(value) => value.parse_with(scalars::parse_size)?,
        None => pace.bytes_within(BURST).max(BURST_LEAST),
    };
    let least = pace.bytes_within(BURST_SPAN).max(1);
    let burst_value = burst.as_ref().unwrap_or(&value);
    if pace.burst < least {
        let message = format!("a burst of {} bytes is too small for this rate", pace.burst);
        let help = format!("write at least the bytes of 10 ms, {least}B, or leave it out");
        burst_value.report_at_value(ValueError::new(codes::LIMIT_NUMBERS, message).with_help(help));
    }
    let fill_ns =
        u128::from(pace.burst).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    if fill_ns >= FILL_MAX_NS {
        let message = "this burst would take more than 146 years to fill at this rate";
        burst_value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help("write a smaller burst, or a faster rate"),
        );
    }
    Some(pace)
}
