//! Reads the steps of quotas.

use std::time::Duration;

use crate::schema::tables::limits::{limit, step};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{Algorithm, ChargeConfig, OverrunAction, QuotaStep, STEPS_MAX, StepAction, codes};

/// The steps of a limit with these numbers, rising; the last one slows or rejects.
pub(crate) fn read_steps(fields: &FieldReader<'_>, numbers: &Algorithm) -> Vec<QuotaStep> {
    let Some(value) = fields.find(&limit::STEPS) else { return Vec::new() };
    value.check_filled(&format!("write e.g. steps: {}", limit::STEPS.example));
    check_windows(&value, numbers);
    let mut steps: Vec<QuotaStep> = Vec::new();
    for item in value.one_or_more() {
        let Some(step) = read_step(&item) else { return Vec::new() };
        if let Some(before) = steps.last() {
            check_order(&item, before, &step);
        }
        steps.push(step);
    }
    match steps.last() {
        Some(QuotaStep { at, then: StepAction::Warn }) if *at < QuotaStep::WHOLE => {
            steps.push(QuotaStep { at: QuotaStep::WHOLE, then: StepAction::Reject });
        }
        Some(QuotaStep { then: StepAction::Warn, .. }) => {
            let help = "add e.g. { at: 120%, then: reject }";
            value.refuse(codes::LIMIT_NUMBERS, "the last step neither slows nor rejects", help);
        }
        _ => {}
    }
    if steps.len() > STEPS_MAX {
        let message = format!("a quota has at most {STEPS_MAX} steps, with its rejection");
        value.refuse(codes::NUMBER, message, "leave some out");
        steps.clear();
    }
    steps
}

/// Redis keeps the borders of such windows in seconds.
fn check_windows(value: &FieldValue<'_>, numbers: &Algorithm) {
    let is_exact = |period: Duration| period.subsec_nanos() == 0;
    if numbers.rate_quotas().iter().any(|(rate, _)| rate.calendar.is_none() && !is_exact(rate.period)) {
        let message = "a window with steps is of whole seconds";
        value.refuse_name(codes::LIMIT_NUMBERS, message, "write e.g. rate: 1000/60s");
    }
}

fn read_step(item: &FieldValue<'_>) -> Option<QuotaStep> {
    let form = "a mapping such as { at: 80%, then: warn }";
    item.open_map(&step::SECTION, form)?.read_all(|fields| {
        let (at, word) = (fields.read_required(&step::AT), fields.read_required(&step::THEN));
        let rate = fields.find(&step::RATE);
        let then = match word? {
            "slow" if rate.is_none() => {
                fields.report_missing(step::RATE.name, "write e.g. rate: 1/s");
                return None;
            }
            "slow" => StepAction::Slow(fields.read(&step::RATE)?),
            "warn" => StepAction::Warn,
            _ => StepAction::Reject,
        };
        if let Some(rate) = rate.filter(|_| !matches!(then, StepAction::Slow(_))) {
            let message = format!("`rate` is for steps that slow, and this one says {}", then.as_str());
            rate.refuse_name(codes::FOREIGN_FIELD, message, "remove it, or write then: slow");
        }
        Some(QuotaStep { at: at?, then })
    })
}

fn check_order(item: &FieldValue<'_>, before: &QuotaStep, step: &QuotaStep) {
    if before.then == StepAction::Reject {
        let message = "a step above one that rejects is never reached";
        item.refuse(codes::LIMIT_NUMBERS, message, "remove it, or move the rejection to the end");
    } else if step.at <= before.at {
        let message = format!("{}% is not above the step before, {}%", step.percent(), before.percent());
        item.refuse(codes::LIMIT_NUMBERS, message, "write the steps in rising order");
    }
}

/// Refuses a limit that would cut a response because the next part of it is above the pace.
pub(crate) fn check_cut(fields: &FieldReader<'_>, steps: &[QuotaStep], charge: Option<&ChargeConfig>) {
    let slows = steps.iter().any(|step| matches!(step.then, StepAction::Slow(_)));
    if let Some(value) = fields.find(&limit::STEPS).filter(|_| slows)
        && charge.is_some_and(|charge| charge.over == OverrunAction::Cut)
    {
        let message = "a step that slows requests cannot pace the parts of a response that is cut";
        value.refuse_name(codes::FOREIGN_FIELD, message, "write over: finish, or a step that rejects");
    }
}
