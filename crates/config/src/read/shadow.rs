//! Reads `shadow` and `enforce` of a limit: numbers that are tried beside its own, and the share of keys it acts on.

use super::rates::RateForm;
use super::tiers;
use crate::schema::tables::limits::limit;
use crate::yaml::field_reader::FieldReader;
use sluicegate_model::cost::Cost;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::enforce::EnforcedShare;
use sluicegate_model::key::KeyPart;
use sluicegate_model::limit::Algorithm;

/// Reads the numbers of the shadow of the limit in `fields`; `is_sound` = the limit's own numbers are valid.
pub(crate) fn read_shadow(
    fields: &FieldReader<'_>,
    cost: &Cost,
    form: RateForm,
    is_sound: bool,
) -> Option<Algorithm> {
    let value = fields.find(&limit::SHADOW).filter(|value| !value.is_word("none"))?;
    if value.is_map() && value.entries().is_empty() {
        let error = ValueError::new(codes::MISSING, "this shadow has no numbers");
        value.report_at_name(error.with_help("write e.g. shadow: { rate: 5/s }, or remove it"));
        return None;
    }
    tiers::read_tier_numbers(fields, &value, cost, form, is_sound)
}

/// Reads the share of the keys on which the limit in `fields` acts; `None` = all.
pub(crate) fn read_enforce(fields: &FieldReader<'_>, key: &[KeyPart]) -> Option<EnforcedShare> {
    let percent = fields.read(&limit::ENFORCE);
    let value = fields.find(&limit::ENFORCE)?;
    let report = |message: &str, help: &str| {
        value.report_at_name(ValueError::new(codes::LIMIT_NUMBERS, message).with_help(help));
    };
    if key.iter().all(|part| *part == KeyPart::Global) {
        let message = "`enforce` chooses keys, and this limit counts all requests under one";
        report(message, "count by another key, e.g. key: ip, or write dry_run: true to act on no request");
    } else if fields.read(&limit::DRY_RUN) {
        let message = "`enforce` and `dry_run: true` contradict each other: a dry run acts on no key";
        report(message, "remove one of them");
    }
    (percent < 100.0).then(|| EnforcedShare::new(percent))
}
