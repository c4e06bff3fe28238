//! Reads the numbers of the window algorithms: rates, alignment, sub-windows.

use super::rates::read_rates;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::limit::{Algorithm, BUCKETS_MAX, Cost, WindowAlign};
use crate::config::value::scalars;
use crate::config::value::scalars::Rate;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_word};

const BUCKETS: u8 = 10;

pub(crate) fn read_fixed_window(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let align = fields.read_scalar(
        "align",
        WindowAlign::First,
        parse_word(&[("first", WindowAlign::First), ("clock", WindowAlign::Clock)]),
    );
    let rates = read_windows(fields, cost, cost_value, u64::MAX)?;
    Some(Algorithm::FixedWindow { rates, align })
}

pub(crate) fn read_sliding_window(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let buckets = |text: &str| scalars::parse_number(text, 1, BUCKETS_MAX.into()).map(|number| number as u8);
    let buckets = fields.read_scalar("buckets", BUCKETS, buckets);
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into())?;
    Some(Algorithm::SlidingWindow { rates, buckets })
}

pub(crate) fn read_sliding_log(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
) -> Option<Algorithm> {
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into())?;
    Some(Algorithm::SlidingLog { rates })
}

/// The rates; each must pass at least the cost of one request, and at most `units_max` units.
fn read_windows(
    fields: &mut FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
    units_max: u64,
) -> Option<Vec<Rate>> {
    let rates = read_rates(fields)?;
    for (value, rate) in &rates {
        let units = rate.units.get();
        if units > units_max {
            value.report_at_value(
                ValueError::new(
                    codes::LIMIT_NUMBERS,
                    format!("{units} in one window are more than this algorithm counts"),
                )
                .with_help(format!("write at most {units_max}, or algorithm: fixed_window")),
            );
            return None;
        }
        if let (Cost::Units(cost), Some(cost_value)) = (cost, cost_value)
            && *cost > units
        {
            let message = format!("a cost of {cost} can never pass: a window lets {units} pass");
            cost_value.report_at_value(
                ValueError::new(codes::LIMIT_NUMBERS, message)
                    .with_help(format!("write a cost of at most {units} or a larger rate")),
            );
            return None;
        }
    }
    Some(rates.into_iter().map(|(_, rate)| rate).collect())
}
