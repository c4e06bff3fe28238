//! Reads `bandwidth` of a location: the pace of its response bodies.

use std::num::NonZeroU64;
use std::time::Duration;

use super::limits;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::BandwidthConfig;
use crate::config::value::scalars;
use crate::config::value::scalars::Rate;
use crate::config::yaml::fields::FieldReader;
use crate::config::yaml::tree::NodeContent;

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
pub(crate) fn read_bandwidth(fields: &mut FieldReader<'_>) -> Option<BandwidthConfig> {
    let value = fields.get_field("bandwidth").filter(|value| !value.is_word("none"))?;
    if !matches!(value.node.content, NodeContent::Map(_)) {
        value.report_shape("a mapping such as { rate: 1MiB/s }, or none");
        return None;
    }
    let mut fields = value.field_reader();
    let key = limits::read_key(&mut fields);
    let rate = fields.get_field("rate");
    let burst = fields.get_field("burst").filter(|value| !value.is_word("auto"));
    if rate.is_none() {
        fields.report_missing("rate", "write bytes and a period, e.g. rate: 1MiB/s");
    }
    fields.report_unknown();
    let rate = rate?.parse_with(parse_byte_rate)?;
    let mut bandwidth = BandwidthConfig { rate, burst: 0, key };
    bandwidth.burst = match &burst {
        Some(value) => value.parse_with(scalars::parse_size)?,
        None => bandwidth.bytes_within(BURST).max(BURST_LEAST),
    };
    let least = bandwidth.bytes_within(BURST_SPAN).max(1);
    let burst_value = burst.as_ref().unwrap_or(&value);
    if bandwidth.burst < least {
        let message = format!("a burst of {} bytes is too small for this rate", bandwidth.burst);
        let help = format!("write at least the bytes of 10 ms, {least}B, or leave it out");
        burst_value.report_at_value(ValueError::new(codes::LIMIT_NUMBERS, message).with_help(help));
    }
    let fill_ns =
        u128::from(bandwidth.burst).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    if fill_ns >= FILL_MAX_NS {
        let message = "this burst would take more than 146 years to fill at this rate";
        burst_value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help("write a smaller burst, or a faster rate"),
        );
    }
    Some(bandwidth)
}

/// `1MiB/s`, `10MB/60s`.
fn parse_byte_rate(text: &str) -> scalars::Parsed<Rate> {
    const EXAMPLES: &str = "write a size, a slash and a period: 1MiB/s, 100MB/60s";
    let wrong = |message: String| ValueError::new(codes::RATE, message).with_help(EXAMPLES);
    let Some((size, period)) = text.split_once('/') else {
        return Err(wrong(format!("the rate `{text}` has no period")));
    };
    let bytes = scalars::parse_size(size.trim())?;
    let period = scalars::parse_rate_period(text, period.trim())?;
    let units =
        NonZeroU64::new(bytes).ok_or_else(|| wrong(format!("the rate `{text}` would let nothing pass")))?;
    Ok(Rate { units, period })
}

impl BandwidthConfig {
    /// Whole bytes that leave within `span`.
    pub fn bytes_within(&self, span: Duration) -> u64 {
        let bytes = u128::from(self.rate.units.get()).saturating_mul(span.as_nanos())
            / self.rate.period.as_nanos().max(1);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
