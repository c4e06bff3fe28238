//! Amounts of money, written as decimals and counted in millionths of their currency.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Serialize, Serializer};

use super::scalars::{Parsed, Rate, parse_rate_period};
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;
use sluicegate_base::json_shape::{JsonShape, JsonShaped};

/// A currency by three capitals, such as `USD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency([u8; 3]);

/// Units of a limit as they are shown: money as a decimal, others as a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// The units, of money in millionths.
    pub units: u64,
    /// `None` = the units are no money.
    pub currency: Option<Currency>,
}

/// Millionths in a whole.
const ONE: u64 = 1_000_000;

// === impl Currency ===

impl Currency {
    /// The currency of a text without one, which no text can name.
    pub const NONE: Currency = Currency([0; 3]);

    /// The currency in a rate or an amount: `50 USD/1d`, `10 EUR`.
    pub fn find_in(text: &str) -> Option<Currency> {
        let (_, currency) = split_amount(text.split('/').next().unwrap_or_default());
        let letters: [u8; 3] = currency.as_bytes().try_into().ok()?;
        letters.iter().all(u8::is_ascii_uppercase).then_some(Currency(letters))
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.0).unwrap_or_default())
    }
}

// === impl Amount ===

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.currency {
            None => self.units.fmt(f),
            Some(currency) => write!(f, "{} {currency}", format_millionths(self.units.into())),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.currency {
            Some(_) if !self.units.is_multiple_of(ONE) => {
                // Exact up to 9 billion, because a double is written by the fewest digits that tell it.
                serializer.serialize_f64(self.units as f64 / ONE as f64)
            }
            Some(_) => serializer.serialize_u64(self.units / ONE),
            None => serializer.serialize_u64(self.units),
        }
    }
}

impl JsonShaped for Amount {
    const SHAPE: JsonShape = JsonShape::Number;
}

/// Millionths as a decimal.
pub fn format_millionths(millionths: u128) -> String {
    let (whole, rest) = (millionths / u128::from(ONE), millionths % u128::from(ONE));
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:06}").trim_end_matches('0').to_owned() }
}

/// A decimal with up to six places, in millionths.
///
/// # Errors
/// A phrase that follows the text: "is negative".
pub fn parse_decimal(text: &str) -> Result<u64, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if text.starts_with('-') {
        return Err("is negative");
    }
    if !is_plain(whole) || !is_plain(decimals) {
        return Err("is not a decimal number");
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 6 {
        return Err("has more than six decimals");
    }
    format!("{whole}{decimals:0<6}").parse().map_err(|_| "is too large")
}

/// `50.25 USD`, in millionths.
pub fn parse_money(text: &str, currency: Currency) -> Parsed<NonZeroU64> {
    let (number, written) = split_amount(text);
    let example = if currency == Currency::NONE { "USD".to_owned() } else { currency.to_string() };
    let wrong = |why: String| {
        ValueError::new(codes::LIMIT_NUMBERS, format!("`{}` {why}", text.trim()))
            .with_help(format!("write a number with up to six decimals and a currency: 50 {example}"))
    };
    let units = parse_decimal(number).map_err(|why| wrong(why.to_owned()))?;
    match Currency::find_in(text) {
        Some(other) if other == currency => {
            NonZeroU64::new(units).ok_or_else(|| wrong("would let nothing pass".to_owned()))
        }
        Some(other) => Err(wrong(format!("is in {other}, and this limit counts in {currency}"))),
        None if written.is_empty() => Err(wrong("has no currency, and this limit counts money".to_owned())),
        None => Err(wrong("has no currency of three capitals".to_owned())),
    }
}

/// `50 USD/1d`, in millionths for each period.
pub fn parse_money_rate(text: &str, currency: Currency) -> Parsed<Rate> {
    let wrong = |message: String| ValueError::new(codes::RATE, message);
    let Some((amount, period)) = text.split_once('/') else {
        return Err(wrong(format!("the rate `{text}` has no period")).with_help(format!("write {text}/1d")));
    };
    let (units, period) = (parse_money(amount, currency)?, parse_rate_period(text, period.trim())?);
    if u128::from(units.get()) > period.0.as_nanos() {
        let message = format!("the rate `{text}` is more than a millionth per nanosecond");
        return Err(wrong(message).with_help("write a longer period"));
    }
    Ok(Rate::per(units, period))
}

/// The number and the currency of an amount, which need no space between them.
fn split_amount(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..at].trim(), text[at..].trim())
}
