//! Rates that are written as sizes, such as `1MiB/s`, in bytes or in KiB.

use std::num::NonZeroU64;

use super::scalars::{self, Parsed, Rate};
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use crate::limit::LimitConfig;

/// Bytes of the unit that limits count sizes in.
pub const KIB: u64 = 1 << 10;

/// `1MiB/s`, `10MB/60s`, in bytes.
pub fn parse_byte_rate(text: &str) -> Parsed<Rate> {
    scalars::refuse_calendar(text, read_byte_rate(text)?)
}

fn read_byte_rate(text: &str) -> Parsed<Rate> {
    const EXAMPLES: &str = "write a size, a slash and a period: 1MiB/s, 100MB/60s";
    let wrong = |message: String| ValueError::new(codes::RATE, message).with_help(EXAMPLES);
    let Some((size, period)) = text.split_once('/') else {
        let error = wrong(format!("the rate `{text}` has no period"));
        let is_size = scalars::parse_size(text).is_ok();
        return Err(if is_size { error.with_help(format!("write {text}/s")) } else { error });
    };
    let bytes = scalars::parse_size(size.trim()).map_err(|error| {
        // The help is about the size alone.
        let help = error.suggestion.as_deref().filter(|help| help.matches(' ').count() == 1);
        let help = help.map(|help| format!("{help}/{}", period.trim()));
        ValueError { suggestion: help.or(error.suggestion.clone()), ..error }
    })?;
    let period = scalars::parse_rate_period(text, period.trim())?;
    let units =
        NonZeroU64::new(bytes).ok_or_else(|| wrong(format!("the rate `{text}` would let nothing pass")))?;
    Ok(Rate::per(units, period))
}

/// `50GiB/1d`, `1TiB/month`, in whole KiB.
pub fn parse_kib_rate(text: &str) -> Parsed<Rate> {
    let rate = read_byte_rate(text)?;
    let units = NonZeroU64::new(rate.units.get() / KIB).ok_or_else(|| below_kib(text))?;
    if u128::from(units.get()) > rate.period.as_nanos() {
        let message = format!("the rate `{text}` is more than one KiB per nanosecond");
        return Err(ValueError::new(codes::RATE, message).with_help("write a longer period"));
    }
    Ok(Rate { units, ..rate })
}

/// `1GiB`, in whole KiB, at least one.
pub fn parse_kib(text: &str) -> Parsed<u64> {
    match scalars::parse_size(text)? / KIB {
        0 => Err(below_kib(text)),
        kib => Ok(kib),
    }
}

impl LimitConfig {
    /// Units as the file would have them: "10", "50GiB" where rates are sizes, or "50 USD" where they are money.
    pub fn show_units(&self, units: u64) -> String {
        if self.counts_kib() { show_kib(units) } else { self.amount(units).to_string() }
    }
}

/// The shortest way to write a number of KiB.
pub fn show_kib(kib: u64) -> String {
    show_size(kib.saturating_mul(KIB))
}

/// The shortest way to write a size.
pub fn show_size(bytes: u64) -> String {
    let (number, unit) = scalars::split_size(bytes);
    format!("{number}{unit}")
}

fn below_kib(text: &str) -> ValueError {
    ValueError::new(codes::SIZE, format!("`{text}` is less than 1KiB, the unit in which sizes count here"))
        .with_help("write at least 1KiB")
}

/// True if a rate or an amount is meant as a size: `50GiB/1d`, `10 mb`.
pub fn is_size(text: &str) -> bool {
    let amount = text.split('/').next().unwrap_or_default().trim();
    let unit = amount.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim_start();
    unit.len() < amount.len() && unit.ends_with(['B', 'b']) && unit.bytes().all(|c| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_of_sizes_count_in_whole_kib() {
        for (text, kib, seconds) in [
            ("50GiB/1d", 50 << 20, 86_400),
            ("1KiB/s", 1, 1),
            ("50GB/1d", 48_828_125, 86_400),
            ("1MB / m", 976, 60),
            ("1024B/s", 1, 1),
        ] {
            let rate = parse_kib_rate(text).unwrap();
            assert_eq!((rate.units.get(), rate.period), (kib, Duration::from_secs(seconds)), "{text}");
        }
        for (wrong, code) in [
            ("1023B/s", codes::SIZE),
            ("0KiB/s", codes::RATE),
            ("1GiB", codes::RATE),
            ("1GiB/", codes::RATE),
            ("GiB/s", codes::SIZE),
            ("10/s", codes::SIZE),
            ("1TiB/1ns", codes::RATE),
        ] {
            assert_eq!(parse_kib_rate(wrong).unwrap_err().code, code, "{wrong}");
        }
        assert_eq!(parse_kib("1GiB").unwrap(), 1 << 20);
        assert_eq!(parse_kib("1B").unwrap_err().code, codes::SIZE);
    }

    #[test]
    fn sizes_are_told_from_numbers() {
        assert!(["50GiB/1d", "10 mb/s", "5B", "1GiB"].into_iter().all(is_size));
        assert!(!["10/s", "10", "", "/s", "B/s", "10r/s", "auto"].into_iter().any(is_size));
    }
}
