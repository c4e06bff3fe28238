//! The numbers of one limit: rates, bursts, queues, and whether they fit together.

use std::time::Duration;

use super::server::parse_count_u32;
use super::windows;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::limit::{Algorithm, Cost, LeakyBucketRate, TokenBucketRate};
use crate::config::value::scalars;
use crate::config::value::scalars::Rate;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_or_none, parse_word};
use crate::config::yaml::tree::NodeContent;

#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmKind {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency,
}

const KINDS: [(&str, AlgorithmKind); 6] = [
    ("token_bucket", AlgorithmKind::TokenBucket),
    ("leaky_bucket", AlgorithmKind::LeakyBucket),
    ("fixed_window", AlgorithmKind::FixedWindow),
    ("sliding_window", AlgorithmKind::SlidingWindow),
    ("sliding_log", AlgorithmKind::SlidingLog),
    ("concurrency", AlgorithmKind::Concurrency),
];

/// All that count units of a rate.
const RATED: [AlgorithmKind; 5] = [
    AlgorithmKind::TokenBucket,
    AlgorithmKind::LeakyBucket,
    AlgorithmKind::FixedWindow,
    AlgorithmKind::SlidingWindow,
    AlgorithmKind::SlidingLog,
];

/// Every field that belongs to some algorithms only.
const FIELDS: [(&str, &[AlgorithmKind]); 10] = [
    ("rate", &RATED),
    ("burst", &[AlgorithmKind::TokenBucket, AlgorithmKind::LeakyBucket]),
    ("queue", &[AlgorithmKind::LeakyBucket]),
    ("max_wait", &[AlgorithmKind::LeakyBucket]),
    ("fair_by", &[AlgorithmKind::LeakyBucket]),
    ("warm_up", &[AlgorithmKind::TokenBucket, AlgorithmKind::LeakyBucket]),
    ("max_concurrent", &[AlgorithmKind::Concurrency]),
    // Cost is a number of units, and concurrency counts requests.
    ("cost", &RATED),
    ("align", &[AlgorithmKind::FixedWindow]),
    ("buckets", &[AlgorithmKind::SlidingWindow]),
];

/// The longest wait when none is written.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The bounds of `max_concurrent: auto`: low enough to spare a struggling upstream, high enough to be no limit for
/// a healthy one.
const ADAPTIVE: (u32, u32) = (4, 1000);

/// Reads the algorithm of a limit and the fields that belong to it. `None` after a complaint.
pub(crate) fn read_algorithm(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let kind = match fields.get_field("algorithm") {
        Some(value) => value.parse_with(parse_word(&KINDS)),
        None => Some(AlgorithmKind::TokenBucket),
    };
    let Some(kind) = kind else {
        FIELDS.iter().for_each(|(name, _)| drop(fields.get_field(name)));
        return None;
    };
    report_foreign_fields(fields, kind);
    match kind {
        AlgorithmKind::TokenBucket => read_token_bucket(fields, cost, cost_value),
        AlgorithmKind::LeakyBucket => read_leaky_bucket(fields, cost, cost_value),
        AlgorithmKind::FixedWindow => windows::read_fixed_window(fields, cost, cost_value),
        AlgorithmKind::SlidingWindow => windows::read_sliding_window(fields, cost, cost_value),
        AlgorithmKind::SlidingLog => windows::read_sliding_log(fields, cost, cost_value),
        AlgorithmKind::Concurrency => read_concurrency(fields),
    }
}

/// A single rate, alone, as a token bucket.
pub(crate) fn read_short_rate(value: &FieldValue<'_>) -> Option<Algorithm> {
    let rate = value.parse_with(scalars::parse_rate)?;
    let burst = rate.units.get();
    check_drain_time(value, rate, burst)
        .then(|| Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst }] })
}

/// Reads `warm_up`, which has to fit every rate of `numbers`.
pub(crate) fn read_warm_up<'n>(
    fields: &mut FieldReader<'_>,
    mut numbers: impl Iterator<Item = &'n Algorithm>,
) -> Option<Duration> {
    let value = fields.get_field("warm_up").filter(|value| !value.is_word("none"))?;
    let warm_up = value.parse_with(scalars::parse_nonzero_duration)?;
    let fits = |(rate, bucket): &(Rate, u64)| {
        let (ticks_per_ns, _) = rate.in_lowest_terms();
        let ticks = warm_up.as_nanos().saturating_mul(ticks_per_ns.min(u32::MAX.into()).into());
        // From cold every unit takes three times as long.
        let drain = (3 * (u128::from(*bucket) + 1)).saturating_mul(rate.period.as_nanos());
        ticks <= WARM_TICKS_MAX && drain / u128::from(rate.units.get()) < DRAIN_MAX_NS
    };
    if numbers.all(|numbers| numbers.rate_quotas().iter().all(fits)) {
        return Some(warm_up);
    }
    value.report_at_value(
        ValueError::new(codes::LIMIT_NUMBERS, "a `warm_up` that does not fit the arithmetic of the rate")
            .with_help("write a shorter warm_up, a smaller burst or queue, or a rate with round numbers"),
    );
    None
}

fn report_foreign_fields(fields: &mut FieldReader<'_>, kind: AlgorithmKind) {
    let own = KINDS.iter().find(|(_, other)| *other == kind).map_or("", |(name, _)| name);
    for (name, kinds) in FIELDS {
        let Some(value) = fields.get_field(name).filter(|_| !kinds.contains(&kind)) else { continue };
        let off = match name {
            "cost" => "1",
            _ => "none",
        };
        if ["cost", "fair_by", "warm_up"].contains(&name) && value.is_word(off) {
            continue;
        }
        let owners: Vec<&str> =
            KINDS.iter().filter(|(_, other)| kinds.contains(other)).map(|(name, _)| *name).collect();
        let complaint = ValueError::new(codes::FOREIGN_FIELD, format!("`{name}` is not a field of {own}"));
        value.report_at_name(complaint.with_help(format!(
            "it belongs to {}",
            owners.join(if owners.len() > 2 { ", " } else { " and " })
        )));
    }
}

fn read_concurrency(fields: &mut FieldReader<'_>) -> Option<Algorithm> {
    let Some(value) = fields.get_field("max_concurrent") else {
        fields.report_missing(
            "max_concurrent",
            "write how many requests may be in flight, e.g. max_concurrent: 100",
        );
        return None;
    };
    if value.is_word("auto") {
        return Some(Algorithm::Concurrency { min: Some(ADAPTIVE.0), max: ADAPTIVE.1 });
    }
    if !matches!(value.node.content, NodeContent::Map(_)) {
        let slots = |text: &str| {
            parse_count_u32(text).map_err(|complaint| {
                complaint.with_default_help("or write auto, or e.g. { min: 5, max: 200 }")
            })
        };
        return value.parse_with(slots).map(|max| Algorithm::Concurrency { min: None, max });
    }
    let mut fields = value.field_reader();
    let [min, max] =
        ["min", "max"].map(|name| fields.get_field(name).map(|value| value.parse_with(parse_count_u32)));
    fields.report_unknown();
    let (min, max) = match (min, max) {
        (None, None) => ADAPTIVE,
        (None, Some(max)) => (ADAPTIVE.0.min(max?), max?),
        (Some(min), None) => (min?, ADAPTIVE.1.max(min?)),
        (Some(min), Some(max)) => (min?, max?),
    };
    if min > max {
        let message = format!("a `max_concurrent` from {min} to {max} has its bounds the wrong way round");
        value.report_at_name(
            ValueError::new(codes::LIMIT_NUMBERS, message).with_help("write the smaller one as min"),
        );
        return None;
    }
    Some(Algorithm::Concurrency { min: Some(min), max })
}

fn read_token_bucket(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let rates = read_rates(fields)?;
    let bursts = read_amounts(fields, "burst", rates.len(), 1)?;
    let mut out = Vec::new();
    for ((value, rate), burst) in rates.iter().zip(bursts) {
        let burst = burst.unwrap_or(rate.units.get());
        if !check_drain_time(value, *rate, burst) || !check_cost(cost, cost_value, burst, "burst") {
            return None;
        }
        out.push(TokenBucketRate { rate: *rate, burst });
    }
    Some(Algorithm::TokenBucket { rates: out })
}

fn read_leaky_bucket(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let max_wait =
        fields.read_scalar("max_wait", Some(MAX_WAIT), parse_or_none(scalars::parse_nonzero_duration));
    let rates = read_rates(fields)?;
    let bursts = read_amounts(fields, "burst", rates.len(), 1);
    let queues = read_amounts(fields, "queue", rates.len(), 0);
    let mut out = Vec::new();
    for (((value, rate), burst), queue) in rates.iter().zip(bursts?).zip(queues?) {
        let burst = burst.unwrap_or(1);
        let queue = queue.unwrap_or_else(|| units_per_second(*rate));
        let bucket = burst.saturating_add(queue);
        if !check_drain_time(value, *rate, bucket) || !check_cost(cost, cost_value, bucket, "burst + queue") {
            return None;
        }
        out.push(LeakyBucketRate { rate: *rate, burst, queue });
    }
    Some(Algorithm::LeakyBucket { rates: out, max_wait })
}

/// What leaves within one second, at least one.
fn units_per_second(rate: Rate) -> u64 {
    let units =
        u128::from(rate.units.get()) * Duration::from_secs(1).as_nanos() / rate.period.as_nanos().max(1);
    u64::try_from(units).unwrap_or(u64::MAX).max(1)
}

pub(crate) fn read_rates<'a>(fields: &mut FieldReader<'a>) -> Option<Vec<(FieldValue<'a>, Rate)>> {
    let Some(value) = fields.get_field("rate") else {
        fields.report_missing("rate", "write e.g. rate: 10/s");
        return None;
    };
    let items = value.one_or_more();
    if value.is_empty() {
        value.report_empty("write e.g. rate: 10/s");
    }
    if items.is_empty() {
        return None;
    }
    let count = items.len();
    let rates: Vec<_> = items
        .into_iter()
        .filter_map(|item| item.parse_with(scalars::parse_rate).map(|rate| (item, rate)))
        .collect();
    (rates.len() == count).then_some(rates)
}

/// `auto` (`None`), one number for one rate, or a list as long as the rates.
fn read_amounts(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    rates: usize,
    min: u64,
) -> Option<Vec<Option<u64>>> {
    let Some(value) = fields.get_field(name).filter(|value| !value.is_word("auto")) else {
        return Some(vec![None; rates]);
    };
    let items = value.one_or_more();
    if items.len() != rates {
        let message = match (items.len(), rates) {
            (0, _) => {
                return {
                    value.report_shape("auto, a number or a list of numbers");
                    None
                };
            }
            (1, several) => format!("one {name} for {several} rates"),
            (given, 1) => format!("{given} numbers of {name} for one rate"),
            (given, several) => format!("{given} numbers of {name} for {several} rates"),
        };
        value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help(format!("write {name}: auto or a list with one number for each rate")),
        );
        return None;
    }
    let read = |text: &str| match text {
        "auto" => Ok(None),
        "0" if min > 0 => {
            Err(ValueError::new(codes::LIMIT_NUMBERS, format!("a {name} of 0 would let nothing pass"))
                .with_help(format!("write {name}: 1 or leave it out")))
        }
        _ => scalars::parse_number(text, min, u64::MAX).map(Some),
    };
    let amounts: Vec<_> = items.iter().filter_map(|item| item.parse_with(read)).collect();
    (amounts.len() == rates).then_some(amounts)
}

/// The time a full bucket needs to drain, in nanoseconds, must leave room for the arithmetic on it.
const DRAIN_MAX_NS: u128 = 1 << 62;

/// The longest time to warm up, in shares of a nanosecond that the rate is reckoned in.
const WARM_TICKS_MAX: u128 = 1 << 61;

fn check_drain_time(value: &FieldValue<'_>, rate: Rate, bucket: u64) -> bool {
    let drain =
        (u128::from(bucket) + 1).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    let fits = drain < DRAIN_MAX_NS;
    if !fits {
        let message = format!("a bucket of {bucket} at this rate would take more than 146 years to drain");
        value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help("write a smaller burst or queue, or a faster rate"),
        );
    }
    fits
}

fn check_cost(cost: &Cost, cost_value: Option<&FieldValue<'_>>, bucket: u64, what: &str) -> bool {
    let (Cost::Units(units), Some(value)) = (cost, cost_value) else {
        return true;
    };
    if *units > bucket {
        let message = format!("a cost of {units} can never pass: {what} is {bucket}");
        value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help(format!("write a cost of at most {bucket} or a larger burst")),
        );
    }
    *units <= bucket
}
