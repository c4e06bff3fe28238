//! Parsers of rates, durations, sizes, percentages, numbers and booleans.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::value::fraction::reduce_fraction;
use crate::value::rate_hint::{find_unit, suggest_rate};
use sluicegate_base::calendar::CalendarUnit;

/// `N/period`: at least 1 unit in each period of at least 1 ns.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// The units that pass in each period.
    pub units: NonZeroU64,
    /// The period, at least 1 ns; the file allows 36,500 days at most. Of a calendar's unit the longest one.
    pub period: Duration,
    /// The windows are those of a calendar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarUnit>,
}

/// As without `calendar` where a rate has none: snapshots know counters by this text.
impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Rate");
        text.field("units", &self.units).field("period", &self.period);
        self.calendar.map(|unit| text.field("calendar", &unit));
        text.finish()
    }
}

impl Rate {
    /// A rate without a calendar.
    pub fn new(units: NonZeroU64, period: Duration) -> Rate {
        Rate { units, period, calendar: None }
    }

    /// A rate by a period of the file.
    pub(super) fn per(units: NonZeroU64, (period, calendar): Period) -> Rate {
        Rate { units, period, calendar }
    }

    /// Whole units that pass within `span`.
    pub fn units_within(&self, span: Duration) -> u64 {
        let units =
            span.as_nanos().saturating_mul(u128::from(self.units.get())) / self.period.as_nanos().max(1);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The time in which `units` pass, in nanoseconds, rounded up.
    pub fn span_ns(&self, units: u64) -> u64 {
        let ns =
            u128::from(units).saturating_mul(self.period.as_nanos()).div_ceil(u128::from(self.units.get()));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Units and nanoseconds without a common divisor.
    pub fn in_lowest_terms(&self) -> (u64, u64) {
        let (units, period) =
            (self.units.get(), u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX).max(1));
        reduce_fraction(units, period)
    }
}

/// Text that `Debug` masks.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MASKED")
    }
}

/// A period, and the unit of a calendar that it is.
pub(super) type Period = (Duration, Option<CalendarUnit>);

/// The value of a scalar's text, or the error in it.
pub type Parsed<T> = Result<T, ValueError>;

/// Units of time in the file, in nanoseconds, and their names.
const UNITS: [(&str, u64, &str); 7] = [
    ("ns", 1, "nanosecond"),
    ("us", 1_000, "microsecond"),
    ("ms", 1_000_000, "millisecond"),
    ("s", 1_000_000_000, "second"),
    ("m", 60_000_000_000, "minute"),
    ("h", 3_600_000_000_000, "hour"),
    ("d", 86_400_000_000_000, "day"),
];

/// A century: far longer than any timeout, and small enough for nanoseconds in 64 bits.
pub const DURATION_MAX: Duration = Duration::from_secs(36_500 * 86_400);
const DURATION_MAX_NS: u64 = DURATION_MAX.as_nanos() as u64;

fn unit_ns(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(short, ..)| *short == unit).map(|(_, ns, _)| *ns)
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// A duration outside of the file, written as in it.
///
/// # Errors
/// A sentence about the text.
pub fn read_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| match error.suggestion {
        Some(help) => format!("{}: {help}", error.message),
        None => error.message,
    })
}

/// `20ms`, `5s`, `10m`, `1h`, `1d`: a whole number and its unit.
pub fn parse_duration(text: &str) -> Parsed<Duration> {
    let (digits, unit) = split_digits(text);
    let wrong = |message: String| ValueError::new(codes::DURATION, message);
    if digits.is_empty() || unit.starts_with('.') {
        let shown = if text.is_empty() { "nothing" } else { text };
        return Err(wrong(format!("`{shown}` is not a duration")).with_help(suggest_duration(text)));
    }
    if unit.is_empty() {
        return Err(wrong(format!("the duration `{text}` has no unit"))
            .with_help(format!("write {digits}s for seconds or {digits}ms for milliseconds")));
    }
    let Some(ns) = unit_ns(unit) else {
        let help = match unit.trim() {
            known if unit_ns(known).is_some() => format!("write {digits}{known}"),
            "M" => format!("write {digits}m for minutes; months are not a unit here"),
            "w" | "week" | "weeks" => "write it in days, e.g. 7d".to_owned(),
            other => match find_unit(&other.to_ascii_lowercase()) {
                Some(known) => format!("write {digits}{known}"),
                None => add_spans(text).map_or_else(
                    || "the units are ms, s, m, h and d, one number with one unit".to_owned(),
                    |sum| format!("write {sum}, one number with one unit"),
                ),
            },
        };
        return Err(wrong(format!("`{unit}` is not a unit of time")).with_help(help));
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(ns)) {
        Some(total) if total <= DURATION_MAX_NS => Ok(Duration::from_nanos(total)),
        _ => Err(wrong(format!("the duration `{text}` is too long")).with_help("the longest is 36500d")),
    }
}

/// The sum of `1m30s` in its last unit.
fn add_spans(text: &str) -> Option<String> {
    let (mut rest, mut sum, mut last) = (text, 0_u64, "");
    while !rest.is_empty() {
        let (digits, behind) = split_digits(rest);
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let span = digits.parse::<u64>().ok()?.checked_mul(unit_ns(unit)?)?;
        (rest, sum, last) = (behind, sum.checked_add(span)?, unit);
    }
    let unit = unit_ns(last)?;
    sum.is_multiple_of(unit).then(|| format!("{}{last}", sum / unit))
}

/// The right spelling of a time with a fraction or a sign.
fn suggest_duration(text: &str) -> String {
    let units = [("s", 1_000, "ms"), ("m", 60, "s"), ("h", 60, "m"), ("d", 24, "h")];
    write_whole(text, &units).map_or_else(
        || "write a whole number and a unit: 20ms, 5s, 10m, 1h, 1d".to_owned(),
        |exact| format!("write {exact}"),
    )
}

/// A number with a fraction as a whole number of the next smaller unit, of which a unit has so many.
fn write_whole(text: &str, units: &[(&str, u64, &str)]) -> Option<String> {
    units.iter().find_map(|(unit, times, smaller)| {
        let (whole, fraction) = text.strip_suffix(unit)?.split_once('.')?;
        let power = 10_u64.checked_pow(u32::try_from(fraction.len()).ok().filter(|digits| *digits <= 6)?)?;
        let number = format!("{whole}{fraction}").parse::<u64>().ok()?.checked_mul(*times)?;
        number.is_multiple_of(power).then(|| format!("{}{smaller}", number / power))
    })
}

/// A duration above zero.
pub fn parse_nonzero_duration(text: &str) -> Parsed<Duration> {
    match parse_duration(text)? {
        Duration::ZERO => Err(ValueError::new(codes::DURATION, format!("`{text}` would end at once"))
            .with_help("write a time above zero")),
        span => Ok(span),
    }
}

/// `10/s`, `600/m`, `300/60s`, `20/1d`.
pub fn parse_rate(text: &str) -> Parsed<Rate> {
    refuse_calendar(text, parse_limit_rate(text)?)
}

/// A rate that no calendar gives windows to.
pub(super) fn refuse_calendar(text: &str, rate: Rate) -> Parsed<Rate> {
    let Some(unit) = rate.calendar else { return Ok(rate) };
    let message = format!(
        "`{}` in the rate `{text}` is a unit of the calendar, and only limits have those",
        unit.as_str()
    );
    let help = match suggest_rate(text) {
        Some(rate) => format!("write {rate}"),
        None => "write a number of days, e.g. 100/7d".to_owned(),
    };
    Err(ValueError::new(codes::RATE, message).with_help(help))
}

/// A rate as [`parse_rate`] reads it, or one for a window of the calendar: `100000/month`.
pub fn parse_limit_rate(text: &str) -> Parsed<Rate> {
    read_rate(text).map_err(|error| match suggest_rate(text) {
        Some(rate) if rate != text && read_rate(&rate).is_ok() => error.with_help(format!("write {rate}")),
        _ => error,
    })
}

fn read_rate(text: &str) -> Parsed<Rate> {
    let wrong = |message: String| ValueError::new(codes::RATE, message);
    const EXAMPLES: &str = "write a whole number, a slash and a period: 10/s, 600/m, 300/60s";
    let Some((count, period)) = text.split_once('/') else {
        let digits = text.bytes().all(|b| b.is_ascii_digit()) && text.bytes().any(|b| b != b'0');
        let help = if digits { format!("write {text}/s or {text}/m") } else { EXAMPLES.to_owned() };
        return Err(wrong(format!("the rate `{text}` has no period")).with_help(help));
    };
    if count.starts_with('-') {
        let positive = text.trim_start_matches('-');
        let help = suggest_rate(positive).map_or(EXAMPLES.to_owned(), |rate| format!("write {rate}"));
        return Err(wrong(format!("the rate `{text}` is negative")).with_help(help));
    }
    if period.trim().is_empty() && count.bytes().all(|b| b.is_ascii_digit()) {
        let help = format!("write {count}/s or {count}/m");
        return Err(wrong(format!("the rate `{text}` has no period after the slash")).with_help(help));
    }
    if period.contains('/') {
        return Err(wrong(format!("the rate `{text}` has more than one slash")).with_help(EXAMPLES));
    }
    let units = parse_rate_units(text, count.trim())?;
    let period = parse_rate_period(text, period.trim())?;
    if u128::from(units.get()) > period.0.as_nanos() {
        return Err(wrong(format!("the rate `{text}` is more than one per nanosecond")));
    }
    Ok(Rate::per(units, period))
}

fn parse_rate_units(text: &str, count: &str) -> Parsed<NonZeroU64> {
    let wrong = |message: String| ValueError::new(codes::RATE, message);
    if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
        let help = match count.split_once('.') {
            Some(_) => "write a longer period instead of a fraction: 1/10s for 0.1/s",
            None => "write a whole number from 1, e.g. 10/s",
        };
        return Err(wrong(format!("`{count}` in the rate `{text}` is not a whole number")).with_help(help));
    }
    let number =
        count.parse::<u64>().map_err(|_| wrong(format!("`{count}` in the rate `{text}` is too large")))?;
    NonZeroU64::new(number).ok_or_else(|| {
        wrong(format!("the rate `{text}` would let nothing pass"))
            .with_help("write at least 1, e.g. 1/s, or refuse with respond: { status: 403 }")
    })
}

pub(super) fn parse_rate_period(text: &str, period: &str) -> Parsed<Period> {
    if let Some(unit) = CalendarUnit::from_word(period) {
        return Ok((unit.longest(), Some(unit)));
    }
    let wrong = |message: String| ValueError::new(codes::RATE, message);
    let (digits, unit) = split_digits(period);
    let Some(ns) = unit_ns(unit) else {
        let help = match CalendarUnit::from_word(unit.trim_end_matches('s')) {
            Some(word) => &format!(
                "a limit has windows of one {0}: write the number of units in it, as in 100/{0}",
                word.as_str()
            ),
            None if unit == "M" => "write m for minutes, or month",
            None => "the units are ms, s, m, h and d, e.g. 10/s or 300/60s, and for limits hour to year",
        };
        return Err(wrong(format!("`{period}` in the rate `{text}` is not a period")).with_help(help));
    };
    let count = if digits.is_empty() { Some(1) } else { digits.parse::<u64>().ok() };
    match count.and_then(|count| count.checked_mul(ns)) {
        Some(0) => {
            Err(wrong(format!("the period of the rate `{text}` is zero")).with_help("write e.g. 10/s"))
        }
        Some(total) if total <= DURATION_MAX_NS => Ok((Duration::from_nanos(total), None)),
        _ => {
            Err(wrong(format!("the period of the rate `{text}` is too long"))
                .with_help("the longest is 36500d"))
        }
    }
}

const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// The number of bytes in the largest unit that gives a whole number.
pub fn split_size(bytes: u64) -> (u64, &'static str) {
    let whole = SIZES.iter().filter(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    let (name, unit) = whole.max_by_key(|(_, unit)| *unit).copied().unwrap_or(("B", 1));
    (bytes / unit, name)
}

/// The number of the largest unit that gives a whole number, that unit as in the file, and its name; `None` for zero.
pub fn split_duration(span: Duration) -> Option<(u64, &'static str, &'static str)> {
    let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let whole = UNITS.iter().rev().find(|(_, unit, _)| ns > 0 && ns.is_multiple_of(*unit));
    whole.map(|(short, unit, name)| (ns / unit, *short, *name))
}

/// The shortest way to write a duration.
pub fn show_duration(span: Duration) -> String {
    let (number, unit, _) = split_duration(span).unwrap_or((0, "ms", ""));
    format!("{number}{unit}")
}

/// `64KiB`, `10MB`: a whole number and its unit.
pub fn parse_size(text: &str) -> Parsed<u64> {
    read_size(text).map_err(|error| match suggest_size(text) {
        Some(size) => error.with_help(format!("write {size}")),
        None => error,
    })
}

/// The right spelling of `10 MB`, `1_000_000` or `1.5MB`.
fn suggest_size(text: &str) -> Option<String> {
    let plain = text.replace([' ', '_', ','], "");
    let size = if plain.bytes().all(|byte| byte.is_ascii_digit()) { format!("{plain}B") } else { plain };
    if size.trim_end_matches('B') != text && read_size(&size).is_ok() {
        return Some(size);
    }
    let units = [
        ("KB", 1000, "B"),
        ("KiB", 1024, "B"),
        ("MB", 1000, "KB"),
        ("MiB", 1024, "KiB"),
        ("GB", 1000, "MB"),
        ("GiB", 1024, "MiB"),
    ];
    write_whole(&size, &units)
}

fn read_size(text: &str) -> Parsed<u64> {
    let (digits, unit) = split_digits(text);
    let wrong = |message: String| ValueError::new(codes::SIZE, message);
    if digits.is_empty() {
        return Err(wrong(format!("`{text}` is not a size"))
            .with_help("write a whole number and a unit: 64KiB, 10MB"));
    }
    if unit.starts_with('.') {
        return Err(wrong(format!("the size `{text}` is not a whole number"))
            .with_help("use a smaller unit, e.g. 512KiB for 0.5MiB"));
    }
    if unit.is_empty() {
        return Err(wrong(format!("the size `{text}` has no unit"))
            .with_help(format!("write {digits}B for bytes, or use KiB or MB")));
    }
    let Some((_, bytes)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        let same = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let help = match (same, unit) {
            (Some((name, _)), _) => format!("write {digits}{name}"),
            (None, "K" | "k" | "M" | "m" | "G" | "g") => {
                let letter = unit.to_uppercase();
                format!("write {digits}{letter}iB (steps of 1024) or {digits}{letter}B (steps of 1000)")
            }
            _ => "the units are B, KiB, MiB, GiB, KB, MB and GB".to_owned(),
        };
        return Err(wrong(format!("`{unit}` is not a unit of size")).with_help(help));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(*bytes))
        .filter(|total| *total <= i64::MAX as u64)
        .ok_or_else(|| wrong(format!("the size `{text}` is too large")))
}

/// `20%`, `0.5%`: a number from 0 to 100.
pub fn parse_percent(text: &str) -> Parsed<f64> {
    let wrong = |message: String| ValueError::new(codes::PERCENT, message);
    let Some(number) = text.strip_suffix('%') else {
        let bare = text.parse::<f64>().is_ok_and(|number| (0.0..=100.0).contains(&number));
        let example = match text.parse::<f64>() {
            Ok(part) if part > 0.0 && part < 1.0 => format!("{}", (part * 1e8).round() / 1e6),
            Ok(_) if bare => text.to_owned(),
            _ => "20".to_owned(),
        };
        return Err(wrong(format!("`{text}` is not a percentage"))
            .with_help(format!("write a number and a percent sign: {example}%")));
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match number.parse::<f64>() {
        Ok(value) if plain && value <= 100.0 => Ok(value),
        Ok(_) if plain => Err(wrong(format!("`{text}` is more than 100%"))),
        _ => Err(wrong(format!("`{text}` is not a percentage"))
            .with_help("write a number from 0 to 100 and a percent sign: 20%")),
    }
}

/// A percentage without a fraction.
pub fn parse_whole_percent(text: &str) -> Parsed<u8> {
    let value = parse_percent(text)?;
    if value.fract() != 0.0 {
        return Err(ValueError::new(codes::PERCENT, format!("`{text}` has a fraction"))
            .with_help("write a whole percentage: 20%"));
    }
    Ok(value as u8)
}

/// A whole number from `min` to `max`, in decimal digits.
pub fn parse_number(text: &str, min: u64, max: u64) -> Parsed<u64> {
    let wrong = |message: String| ValueError::new(codes::NUMBER, message);
    let range = if max == u64::MAX {
        format!("a whole number from {min}")
    } else {
        format!("a whole number from {min} to {max}")
    };
    let plain = text.replace('_', "");
    let (digits, unit) = split_digits(text);
    if !digits.is_empty() && unit.bytes().all(|b| b.is_ascii_alphabetic()) && !unit.is_empty() {
        let help = match (unit, digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1000))) {
            ("k" | "K", Some(thousands)) => format!("write {thousands}"),
            _ => format!("write a number without a unit, e.g. {digits}"),
        };
        return Err(wrong(format!("`{text}` is not {range}")).with_help(help));
    }
    if plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong(format!("`{text}` is not {range}")));
    }
    if plain != text {
        return Err(wrong(format!("`{text}` is not {range}")).with_help(format!("write {plain}")));
    }
    match text.parse::<u64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(wrong(format!("`{text}` is not {range}"))),
    }
}

/// `true` or `false`.
pub fn parse_bool(text: &str) -> Parsed<bool> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let error = ValueError::new(codes::WORD, format!("`{text}` is neither true nor false"));
            Err(match text.to_lowercase().as_str() {
                "yes" | "on" | "1" | "true" => error.with_help("write true"),
                "no" | "off" | "0" | "false" | "none" => error.with_help("write false"),
                _ => error,
            })
        }
    }
}

#[cfg(test)]
mod tests;
