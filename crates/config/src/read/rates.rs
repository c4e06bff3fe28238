//! `rate` of a limit, and the fields that hold one number or size for each rate.

use std::num::NonZeroU64;

use crate::schema::field::{Field, OneOrMore, ParseScalar};
use crate::schema::kinds::OrWord;
use crate::schema::tables::limits::{charge, limit};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::byte_rate::{is_size, parse_kib, parse_kib_rate, show_kib};
use sluicegate_model::value::money::{parse_money, parse_money_rate};
use sluicegate_model::value::scalars;
use sluicegate_model::{Amount, Currency, LimitConfig, Parsed, Rate, ValueError, codes};

/// How the rates of a limit are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateForm {
    /// Numbers of units that are not bytes alone.
    Units,
    /// Numbers of bytes.
    Bytes,
    /// Sizes, which count in KiB.
    Kib,
    /// Money of this currency, which counts in millionths.
    Money(Currency),
}

impl RateForm {
    /// The form of the limit in `fields`, by its units and its first rate.
    pub(crate) fn find_form(fields: &FieldReader<'_>) -> RateForm {
        let rates = fields.find(&limit::RATE).map(|value| value.one_or_more()).unwrap_or_default();
        let units = find_units(fields);
        if units.iter().any(|one| one.is_word("money")) {
            let mut currencies = rates.iter().filter_map(|rate| Currency::find_in(rate.as_text()?));
            return RateForm::Money(currencies.next().unwrap_or(Currency::NONE));
        }
        let is_sized = || rates.first().and_then(FieldValue::as_text).is_some_and(is_size);
        match units.as_slice() {
            [one] if one.is_word("bytes") && is_sized() => RateForm::Kib,
            [one] if one.is_word("bytes") => RateForm::Bytes,
            _ => RateForm::Units,
        }
    }

    /// The form of a limit that was read before.
    pub(crate) fn of_limit(limit: &LimitConfig) -> RateForm {
        match limit.currency() {
            Some(currency) => RateForm::Money(currency),
            None if limit.counts_kib() => RateForm::Kib,
            None => RateForm::Units,
        }
    }

    /// A rate in this form.
    pub(crate) fn parse_rate(self, text: &str) -> Parsed<Rate> {
        self.check_form(text)?;
        match self {
            RateForm::Kib => parse_kib_rate(text),
            RateForm::Money(currency) => parse_money_rate(text, currency),
            RateForm::Units | RateForm::Bytes => scalars::parse_limit_rate(text),
        }
    }

    /// An amount beside a rate in this form, e.g. `burst`; `parse` reads a number.
    pub(crate) fn parse_amount(self, text: &str, parse: impl Fn(&str) -> Parsed<u64>) -> Parsed<u64> {
        self.check_form(text)?;
        match self {
            RateForm::Kib => parse_kib(text),
            RateForm::Money(currency) => parse_money(text, currency).map(NonZeroU64::get),
            RateForm::Units | RateForm::Bytes => parse(text),
        }
    }

    /// Refuses a size among numbers, a number among sizes, and money among both.
    fn check_form(self, text: &str) -> Parsed<()> {
        let (code, text) = (codes::LIMIT_NUMBERS, text.trim());
        let is_number = text.split('/').next().is_some_and(|amount| amount.trim().parse::<u64>().is_ok());
        let (message, help) = match self {
            RateForm::Money(_) => return Ok(()),
            // A size in capitals is misspelt.
            _ if Currency::find_in(text).is_some_and(|found| !found.to_string().ends_with("IB")) => (
                format!("`{text}` is money, and this limit does not count it"),
                "write charge: { units: money, prices: prices.yaml } beside the rate",
            ),
            RateForm::Kib if is_number => (
                format!("`{text}` is a number, and the rate of this limit is a size"),
                "write a size here too, e.g. 10MiB, or all of them as numbers of bytes",
            ),
            RateForm::Bytes if is_size(text) => (
                format!("`{text}` is a size, and the rate of this limit is a number of bytes"),
                "write all of them as sizes, or none",
            ),
            RateForm::Units if is_size(text) => (
                format!("`{text}` is a size, and this limit does not count bytes alone"),
                "write charge: { units: bytes } beside the rate; bandwidth of a location paces bodies",
            ),
            _ => return Ok(()),
        };
        Err(ValueError::new(code, message).with_help(help))
    }

    /// Amounts as the file would have them.
    pub(crate) fn show_amount(self, amount: u64) -> String {
        match self {
            RateForm::Kib => show_kib(amount),
            RateForm::Money(currency) => Amount { units: amount, currency: Some(currency) }.to_string(),
            RateForm::Units | RateForm::Bytes => amount.to_string(),
        }
    }
}

/// One or more rates, each with its value; `None` after an error.
pub(crate) fn read_rates<'a>(
    fields: &FieldReader<'a>,
    form: RateForm,
) -> Option<Vec<(FieldValue<'a>, Rate)>> {
    let Some(value) = fields.find(&limit::RATE) else {
        // `max_concurrent` without an algorithm is reported as a field of another one.
        if fields.find(&limit::MAX_CONCURRENT).is_none() {
            fields.report_missing("rate", match fields.find(&limit::NAME) {
                Some(_) => "write e.g. rate: 10/s; a limit of the top is used by its name, as in limits: [per-ip]",
                None => "write e.g. rate: 10/s",
            });
        }
        return None;
    };
    if fields.has_separate_period() && value.as_text().is_some_and(|text| text.parse::<u64>().is_ok()) {
        return None;
    }
    let items = value.one_or_more();
    value.check_filled("write e.g. rate: 10/s");
    if items.is_empty() {
        return None;
    }
    let count = items.len();
    let rates: Vec<_> = items
        .into_iter()
        .filter_map(|item| item.parse_with(|text| form.parse_rate(text)).map(|rate| (item, rate)))
        .collect();
    (rates.len() == count).then_some(rates)
}

/// The `units` of the charge in `fields`.
fn find_units<'a>(fields: &FieldReader<'a>) -> Vec<FieldValue<'a>> {
    let Some(value) = fields.find(&limit::CHARGE).filter(|value| value.is_map()) else { return Vec::new() };
    let units = value.entries().into_iter().find(|(key, _)| key.name == charge::UNITS.name);
    units.map(|(_, units)| units.one_or_more()).unwrap_or_default()
}

/// `auto` (`None`), one amount for one rate, or a list as long as the rates.
pub(crate) fn read_amounts<S: ParseScalar<Parsed = u64>>(
    fields: &FieldReader<'_>,
    field: &Field<OneOrMore<OrWord<S>>>,
    rates: usize,
    form: RateForm,
) -> Option<Vec<Option<u64>>> {
    let (name, amount) = (field.name, &field.value.0.1);
    let Some(value) = fields.find(field).filter(|value| !value.is_word("auto")) else {
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
        value.refuse(
            codes::LIMIT_NUMBERS,
            message,
            format!("write {name}: auto or a list with one number for each rate"),
        );
        return None;
    }
    let read = |text: &str| match text {
        "auto" => Ok(None),
        "0" if amount.parse_text("0").is_err() => {
            Err(ValueError::new(codes::LIMIT_NUMBERS, format!("a {name} of 0 would let nothing pass"))
                .with_help(format!("write {name}: {} or leave it out", form.show_amount(1))))
        }
        _ => {
            let parsed = form.parse_amount(text, |text| amount.parse_text(text)).map(Some);
            parsed.map_err(|error| error.with_default_help("or write auto"))
        }
    };
    let amounts: Vec<_> = items.iter().filter_map(|item| item.parse_with(read)).collect();
    (amounts.len() == rates).then_some(amounts)
}
