//! `rate` of a limit, and the fields that hold one number for each rate.

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::schema::field::{Field, OneOrMore, ParseScalar};
use crate::config::schema::kinds::{Number, OrWord, RATE_TEXT};
use crate::config::schema::tables::limits::limit;
use crate::config::value::scalars::Rate;
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;

/// One or more rates, each with its value; `None` after an error.
pub(crate) fn read_rates<'a>(fields: &FieldReader<'a>) -> Option<Vec<(FieldValue<'a>, Rate)>> {
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
    if value.is_empty() {
        value.report_empty("write e.g. rate: 10/s");
    }
    if items.is_empty() {
        return None;
    }
    let count = items.len();
    let rates: Vec<_> = items
        .into_iter()
        .filter_map(|item| item.parse_with(|text| RATE_TEXT.parse_text(text)).map(|rate| (item, rate)))
        .collect();
    (rates.len() == count).then_some(rates)
}

/// `auto` (`None`), one number for one rate, or a list as long as the rates.
pub(crate) fn read_amounts(
    fields: &FieldReader<'_>,
    field: &Field<OneOrMore<OrWord<Number>>>,
    rates: usize,
) -> Option<Vec<Option<u64>>> {
    let (name, amount) = (field.name, &field.value.0);
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
        value.report_at_value(
            ValueError::new(codes::LIMIT_NUMBERS, message)
                .with_help(format!("write {name}: auto or a list with one number for each rate")),
        );
        return None;
    }
    let read = |text: &str| match text {
        "0" if amount.1.0 > 0 => {
            Err(ValueError::new(codes::LIMIT_NUMBERS, format!("a {name} of 0 would let nothing pass"))
                .with_help(format!("write {name}: 1 or leave it out")))
        }
        _ => amount.parse_text(text),
    };
    let amounts: Vec<_> = items.iter().filter_map(|item| item.parse_with(read)).collect();
    (amounts.len() == rates).then_some(amounts)
}
