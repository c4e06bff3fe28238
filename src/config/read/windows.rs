//! The numbers of the window algorithms: rates, where windows begin, sub-windows.

use super::algorithm::read_rates;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::limit::{Algorithm, Align, BUCKETS_MAX, Cost};
use crate::config::value::scalars;
use crate::config::value::scalars::Rate;
use crate::config::yaml::fields::{Fields, Value, word};

const BUCKETS: u8 = 10;

pub(crate) fn read_fixed_window(
    fields: &mut Fields<'_>,
    cost: &Cost,
    cost_value: Option<&Value<'_>>,
) -> Option<Algorithm> {
    let align = fields.read("align", Align::First, word(&[("first", Align::First), ("clock", Align::Clock)]));
    let rates = read_windows(fields, cost, cost_value, u64::MAX)?;
    Some(Algorithm::FixedWindow { rates, align })
}

pub(crate) fn read_sliding_window(
    fields: &mut Fields<'_>,
    cost: &Cost,
    cost_value: Option<&Value<'_>>,
) -> Option<Algorithm> {
    let buckets = |text: &str| scalars::number(text, 1, BUCKETS_MAX.into()).map(|number| number as u8);
    let buckets = fields.read("buckets", BUCKETS, buckets);
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into())?;
    Some(Algorithm::SlidingWindow { rates, buckets })
}

pub(crate) fn read_sliding_log(
    fields: &mut Fields<'_>,
    cost: &Cost,
    cost_value: Option<&Value<'_>>,
) -> Option<Algorithm> {
    let rates = read_windows(fields, cost, cost_value, u32::MAX.into())?;
    Some(Algorithm::SlidingLog { rates })
}

/// The rates, if each lets at most `units_max` pass and at least one whole request.
fn read_windows(
    fields: &mut Fields<'_>,
    cost: &Cost,
    cost_value: Option<&Value<'_>>,
    units_max: u64,
) -> Option<Vec<Rate>> {
    let rates = read_rates(fields)?;
    for (value, rate) in &rates {
        let units = rate.units.get();
        if units > units_max {
            value.complain(
                Complaint::new(
                    codes::LIMIT_NUMBERS,
                    format!("{units} in one window are more than this algorithm counts"),
                )
                .help(format!("write at most {units_max}, or algorithm: fixed_window")),
            );
            return None;
        }
        if let (Cost::Units(cost), Some(cost_value)) = (cost, cost_value)
            && *cost > units
        {
            let message = format!("a cost of {cost} can never pass: a window lets {units} pass");
            cost_value.complain(
                Complaint::new(codes::LIMIT_NUMBERS, message)
                    .help(format!("write a cost of at most {units} or a larger rate")),
            );
            return None;
        }
    }
    Some(rates.into_iter().map(|(_, rate)| rate).collect())
}
