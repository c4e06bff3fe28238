//! Reads the algorithm of a limit with its numbers, and checks that they fit together.

use std::time::Duration;

use super::rates::{RateForm, read_amounts, read_rates};
use crate::schema::field::ParseScalar;
use crate::schema::tables::limits::{adaptive, limit};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{
    Algorithm, AlgorithmKind, Cost, LeakyBucketRate, Rate, TokenBucketRate, ValueError, WindowAlign, codes,
};

/// Fields that only some algorithms have, with the words of those.
const FIELDS: [(&str, &str); 11] = [
    ("rate", RATED),
    ("burst", "token_bucket leaky_bucket"),
    ("queue", QUEUED),
    ("max_wait", QUEUED),
    ("fair_by", QUEUED),
    ("warm_up", "token_bucket leaky_bucket"),
    ("max_concurrent", "concurrency"),
    // A cost is a number of units, while concurrency counts requests.
    ("cost", RATED),
    // A wait or a slot cannot be given back.
    ("charge", "token_bucket fixed_window sliding_window sliding_log"),
    ("align", "fixed_window"),
    ("buckets", "sliding_window"),
];
/// Algorithms that count units of a rate.
const RATED: &str = "token_bucket leaky_bucket fixed_window sliding_window sliding_log";
/// Algorithms in which requests can wait.
const QUEUED: &str = "leaky_bucket concurrency";

/// The fields of a limit or a tier, with the limit's cost and the form of its rates.
#[derive(Clone, Copy)]
pub(crate) struct NumberReader<'f> {
    pub fields: &'f FieldReader<'f>,
    pub cost: &'f Cost,
    pub form: RateForm,
}

impl NumberReader<'_> {
    /// Reads the algorithm and its fields; `None` after an error.
    pub(crate) fn read_algorithm(self) -> Option<Algorithm> {
        let fields = self.fields;
        let kind = fields.read_valid(&limit::ALGORITHM)?;
        if self.written_rates().iter().any(|rate| rate.calendar.is_some()) {
            return self.read_calendar_windows(kind);
        }
        if let Some(value) = fields.find(&limit::STEPS) {
            if kind == AlgorithmKind::FixedWindow {
                return self.read_calendar_windows(kind);
            }
            let help = "write algorithm: fixed_window, or a unit of the calendar such as 1000/month";
            value.refuse_name(codes::FOREIGN_FIELD, "`steps` is for fixed windows", help);
        }
        report_foreign_fields(fields, kind);
        Some(match kind {
            AlgorithmKind::TokenBucket => Algorithm::TokenBucket { rates: self.read_token_bucket()? },
            AlgorithmKind::LeakyBucket => {
                let max_wait = fields.read(&limit::MAX_WAIT);
                Algorithm::LeakyBucket { rates: self.read_leaky_bucket()?, max_wait }
            }
            AlgorithmKind::FixedWindow => {
                let align = fields.read(&limit::ALIGN);
                Algorithm::FixedWindow { rates: self.read_windows(u64::MAX)?, align }
            }
            AlgorithmKind::SlidingWindow => {
                let buckets = fields.read(&limit::BUCKETS);
                Algorithm::SlidingWindow { rates: self.read_windows(u32::MAX.into())?, buckets }
            }
            AlgorithmKind::SlidingLog => Algorithm::SlidingLog { rates: self.read_windows(u32::MAX.into())? },
            AlgorithmKind::Concurrency => read_concurrency(fields)?,
        })
    }

    /// The rates that are written and valid.
    pub(crate) fn written_rates(self) -> Vec<Rate> {
        let items = self.fields.find(&limit::RATE).map(|value| value.one_or_more()).unwrap_or_default();
        items.iter().filter_map(|item| self.form.parse_rate(item.as_text()?).ok()).collect()
    }

    /// Windows of which at least one is of the calendar, or that have steps.
    fn read_calendar_windows(self, kind: AlgorithmKind) -> Option<Algorithm> {
        let written = self.fields.find(&limit::ALGORITHM);
        if let Some(value) = written.filter(|_| kind != AlgorithmKind::FixedWindow) {
            let message =
                format!("units of the calendar count in fixed windows, and this is a {}", kind.as_str());
            value.refuse(codes::LIMIT_NUMBERS, message, "remove it, or write a period such as 30d");
            return None;
        }
        if let Some(value) = self.fields.find(&limit::ALIGN) {
            let message = "`align` is for windows without a calendar and steps";
            value.refuse_name(
                codes::FOREIGN_FIELD,
                message,
                "remove it; windows of the calendar begin by the clock",
            );
        }
        report_foreign_fields(self.fields, AlgorithmKind::FixedWindow);
        Some(Algorithm::FixedWindow { rates: self.read_windows(u64::MAX)?, align: WindowAlign::Calendar })
    }

    fn read_token_bucket(self) -> Option<Vec<TokenBucketRate>> {
        let rates = read_rates(self.fields, self.form)?;
        let bursts = read_amounts(self.fields, &limit::BURST, rates.len(), self.form)?;
        let rates = rates.iter().zip(bursts).map(|((value, rate), burst)| {
            let burst = burst.unwrap_or(rate.units.get());
            self.fits_bucket(value, *rate, burst, "burst").then_some(TokenBucketRate { rate: *rate, burst })
        });
        rates.collect()
    }

    fn read_leaky_bucket(self) -> Option<Vec<LeakyBucketRate>> {
        let rates = read_rates(self.fields, self.form)?;
        let bursts = read_amounts(self.fields, &limit::BURST, rates.len(), self.form);
        let queues = read_amounts(self.fields, &limit::QUEUE, rates.len(), self.form);
        let rates = rates.iter().zip(bursts?).zip(queues?).map(|(((value, rate), burst), queue)| {
            let burst = burst.unwrap_or(1);
            let queue = queue.unwrap_or_else(|| units_per_second(*rate));
            let fits = self.fits_bucket(value, *rate, burst.saturating_add(queue), "burst + queue");
            fits.then_some(LeakyBucketRate { rate: *rate, burst, queue })
        });
        rates.collect()
    }

    /// True if a bucket of `what`, with the rate of `value`, drains in time and takes the cost; reports what is wrong.
    fn fits_bucket(self, value: &FieldValue<'_>, rate: Rate, bucket: u64, what: &str) -> bool {
        let cost_value = self.fields.find(&limit::COST);
        check_drain_time(value, rate, bucket, self.form)
            && check_cost(self.cost, cost_value.as_ref(), bucket, what)
    }

    /// The rates; each must pass at least the cost of one request, and at most `units_max` units.
    fn read_windows(self, units_max: u64) -> Option<Vec<Rate>> {
        let rates = read_rates(self.fields, self.form)?;
        for (value, rate) in &rates {
            let units = rate.units.get();
            if units > units_max {
                let (units, most) = (self.form.show_amount(units), self.form.show_amount(units_max));
                let message = format!("{units} in one window are more than this algorithm counts");
                let help = format!("write at most {most}, or algorithm: fixed_window");
                value.refuse(codes::LIMIT_NUMBERS, message, help);
                return None;
            }
            if let (Cost::Units(cost), Some(cost_value)) = (self.cost, self.fields.find(&limit::COST))
                && *cost > units
            {
                let message = format!("a cost of {cost} can never pass: a window lets {units} pass");
                let help = format!("write a cost of at most {units} or a larger rate");
                cost_value.refuse(codes::LIMIT_NUMBERS, message, help);
                return None;
            }
        }
        Some(rates.into_iter().map(|(_, rate)| rate).collect())
    }
}

/// A rate alone, which is short for a token bucket.
pub(crate) fn read_short_rate(value: &FieldValue<'_>) -> Option<Algorithm> {
    let rate = value.parse_with(|text| RateForm::Units.parse_rate(text))?;
    if rate.calendar.is_some() {
        return Some(Algorithm::FixedWindow { rates: vec![rate], align: WindowAlign::Calendar });
    }
    let burst = rate.units.get();
    check_drain_time(value, rate, burst, RateForm::Units)
        .then(|| Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst }] })
}

/// Reads `warm_up`, which must fit every rate of `numbers`.
pub(crate) fn read_warm_up<'n>(
    fields: &FieldReader<'_>,
    mut numbers: impl Iterator<Item = &'n Algorithm>,
) -> Option<Duration> {
    let warm_up = fields.read(&limit::WARM_UP)?;
    let value = fields.find(&limit::WARM_UP)?;
    let fits = |(rate, bucket): &(Rate, u64)| {
        let (ticks_per_ns, _) = rate.in_lowest_terms();
        let ticks = warm_up.as_nanos().saturating_mul(ticks_per_ns.min(u32::MAX.into()).into());
        // In a cold bucket every unit takes three times as long.
        let drain = (3 * (u128::from(*bucket) + 1)).saturating_mul(rate.period.as_nanos());
        ticks <= WARM_TICKS_MAX && drain / u128::from(rate.units.get()) < DRAIN_MAX_NS
    };
    if numbers.all(|numbers| numbers.rate_quotas().iter().all(fits)) {
        return Some(warm_up);
    }
    value.refuse(
        codes::LIMIT_NUMBERS,
        "this `warm_up` does not fit the arithmetic of the rate",
        "write a shorter warm_up, a smaller burst or queue, or a rate with round numbers",
    );
    None
}

fn report_foreign_fields(fields: &FieldReader<'_>, kind: AlgorithmKind) {
    let own = kind.as_str();
    for (name, owners) in FIELDS {
        let owners: Vec<&str> = owners.split(' ').collect();
        let Some(value) = fields.find_by_name(name).filter(|_| !owners.contains(&own)) else { continue };
        let off = if name == "cost" { "1" } else { "none" };
        if ["cost", "charge", "fair_by", "warm_up"].contains(&name) && value.is_word(off) {
            continue;
        }
        let error = ValueError::new(codes::FOREIGN_FIELD, format!("`{name}` is not a field of {own}"));
        let help = match (name, kind) {
            ("max_concurrent", _) if fields.find(&limit::RATE).is_none() => {
                "write algorithm: concurrency".to_owned()
            }
            ("queue" | "max_wait" | "fair_by", _) if fields.find(&limit::ALGORITHM).is_none() => {
                "it belongs to leaky_bucket and concurrency: write algorithm: leaky_bucket".to_owned()
            }
            _ => format!("it belongs to {}", owners.join(if owners.len() > 2 { ", " } else { " and " })),
        };
        value.report_at_name(error.with_help(help));
    }
}

/// The slots of a limit, and the queue in front of them.
fn read_concurrency(fields: &FieldReader<'_>) -> Option<Algorithm> {
    let slots = read_slots(fields);
    let queue = read_amounts(fields, &limit::QUEUE, 1, RateForm::Units);
    let max_wait = fields.read(&limit::MAX_WAIT);
    let ((min, max), queue) = (slots?, queue?.first().copied().flatten().unwrap_or(0));
    Some(Algorithm::Concurrency { min, max, queue, max_wait })
}

/// The least slots of an adaptive limit, and the most.
fn read_slots(fields: &FieldReader<'_>) -> Option<(Option<u32>, u32)> {
    let Some(value) = fields.find(&limit::MAX_CONCURRENT) else {
        fields.report_missing(
            "max_concurrent",
            "write how many requests may be in flight, e.g. max_concurrent: 100",
        );
        return None;
    };
    let (least, most) = (adaptive::MIN.parse_default(), adaptive::MAX.parse_default());
    if value.is_word("auto") {
        return Some((Some(least), most));
    }
    if !value.is_map() {
        let slots = |text: &str| {
            adaptive::MAX
                .value
                .parse_text(text)
                .map_err(|error| error.with_default_help("or write auto, or e.g. { min: 5, max: 200 }"))
        };
        return value.parse_with(slots).map(|max| (None, max));
    }
    let (min, max) = value.open_section(&adaptive::SECTION).read_all(|fields| {
        let is_written = |field| fields.find(field).is_some();
        let (min, max) = (fields.read_valid(&adaptive::MIN), fields.read_valid(&adaptive::MAX));
        // One bound alone moves the default of the other.
        match (is_written(&adaptive::MIN), is_written(&adaptive::MAX)) {
            (false, true) => (max.map(|max| least.min(max)), max),
            (true, false) => (min, min.map(|min| most.max(min))),
            _ => (min, max),
        }
    });
    let (min, max) = (min?, max?);
    if min > max {
        let message = format!("a `max_concurrent` from {min} to {max} has its bounds the wrong way round");
        value.refuse_name(codes::LIMIT_NUMBERS, message, "write the smaller one as min");
        return None;
    }
    Some((Some(min), max))
}

/// The units that leave within one second, at least 1.
pub(crate) fn units_per_second(rate: Rate) -> u64 {
    rate.units_within(Duration::from_secs(1)).max(1)
}

/// The time a full bucket needs to drain, in nanoseconds, must leave room for the arithmetic on it.
const DRAIN_MAX_NS: u128 = 1 << 62;

/// The longest warm-up, in ticks: the fractions of a nanosecond that the rate is computed in.
const WARM_TICKS_MAX: u128 = 1 << 61;

pub(crate) fn check_drain_time(value: &FieldValue<'_>, rate: Rate, bucket: u64, form: RateForm) -> bool {
    let drain =
        (u128::from(bucket) + 1).saturating_mul(rate.period.as_nanos()) / u128::from(rate.units.get());
    let fits = drain < DRAIN_MAX_NS;
    if !fits {
        let bucket = form.show_amount(bucket);
        let message = format!("a bucket of {bucket} at this rate would take more than 146 years to drain");
        value.refuse(codes::LIMIT_NUMBERS, message, "write a smaller burst or queue, or a faster rate");
    }
    fits
}

pub(crate) fn check_cost(cost: &Cost, cost_value: Option<&FieldValue<'_>>, bucket: u64, what: &str) -> bool {
    let (Cost::Units(units), Some(value)) = (cost, cost_value) else {
        return true;
    };
    if *units > bucket {
        let message = format!("a cost of {units} can never pass: {what} is {bucket}");
        value.refuse(
            codes::LIMIT_NUMBERS,
            message,
            format!("write a cost of at most {bucket} or a larger burst"),
        );
    }
    *units <= bucket
}
