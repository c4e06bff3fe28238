//! `rate` of a limit, and the fields that hold one number for each rate.

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::value::scalars;
use crate::config::value::scalars::Rate;
use crate::config::yaml::fields::{FieldReader, FieldValue};

/// One or more rates, each with its value; `None` after an error.
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
pub(crate) fn read_amounts(
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
