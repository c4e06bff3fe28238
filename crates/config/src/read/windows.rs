//! Reads the numbers of the window algorithms: rates, alignment, sub-windows.

use super::rates::{RateForm, read_rates};
use crate::schema::tables::limits::limit;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::cost::Cost;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::limit::Algorithm;
use sluicegate_model::value::scalars::Rate;

pub(crate) fn read_fixed_window(
    fields: &FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
    form: RateForm,
) -> Option<Algorithm> {
    let align = fields.read(&limit::ALIGN);
    let rates = read_windows(fields, cost, cost_value, u64::MAX, form)?;
    Some(Algorithm::FixedWindow { rates, align })
}

pub(crate) fn read_sliding_window(
    fields: &FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
    form: RateForm,
) -> Option<Algorithm> {
    // The table bounds it by BUCKETS_MAX.
    let buckets = fields.read(&limit::BUCKETS) as u8;
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into(), form)?;
    Some(Algorithm::SlidingWindow { rates, buckets })
}

pub(crate) fn read_sliding_log(
    fields: &FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
    form: RateForm,
) -> Option<Algorithm> {
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into(), form)?;
    Some(Algorithm::SlidingLog { rates })
}

/// The rates; each must pass at least the cost of one request, and at most `units_max` units.
fn read_windows(
    fields: &FieldReader<'_>,
    cost: &Cost,
    cost_value: Option<&FieldValue<'_>>,
    units_max: u64,
    form: RateForm,
) -> Option<Vec<Rate>> {
    let rates = read_rates(fields, form)?;
    for (value, rate) in &rates {
        let units = rate.units.get();
        if units > units_max {
            let (units, most) = (form.show_amount(units), form.show_amount(units_max));
            value.report_at_value(
                ValueError::new(
                    codes::LIMIT_NUMBERS,
                    format!("{units} in one window are more than this algorithm counts"),
                )
                .with_help(format!("write at most {most}, or algorithm: fixed_window")),
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
