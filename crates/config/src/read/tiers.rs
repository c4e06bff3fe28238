//! Reads `tiers`, `shadow` and `enforce` of a limit: numbers laid over its own, and the share of keys it acts on.

use super::algorithm::NumberReader;
use crate::schema::tables::limits::{limit, tier_numbers};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::value::names;
use sluicegate_model::{Algorithm, EnforcedShare, KeyPart, Mention, ProblemSink, ValueError, codes};

/// Each tier has its own counters, and every request searches this list.
const TIERS_MAX: usize = 64;

/// Reads the tiers of `limit`; `is_sound` = the limit's own numbers are valid.
pub(crate) fn read_tiers(limit: NumberReader<'_>, is_sound: bool) -> Vec<(String, Option<Algorithm>)> {
    let mut tiers = Vec::new();
    let Some(value) = limit.fields.find(&limit::TIERS).filter(|value| !value.is_word("none")) else {
        return tiers;
    };
    let entries = value.entries();
    if entries.len() > TIERS_MAX {
        let message = format!("a limit has at most {TIERS_MAX} tiers, and this one has {}", entries.len());
        value.report_at_name(ValueError::new(codes::NUMBER, message));
        return tiers;
    }
    for (key, tier) in entries {
        tier.accept_name(names::check_tier_name(&key.name));
        tier.sink.record_mention(tier.named_at, &tier.path, Mention::Tier(key.name.clone()));
        if tier.is_word("none") {
            tiers.push((key.name.clone(), None));
        } else if let Some(numbers) = read_tier_numbers(limit, &tier, is_sound) {
            tiers.push((key.name.clone(), Some(numbers)));
        }
    }
    tiers
}

/// Reads the numbers of a tier, or of a grant, laid over those of `limit`.
pub(crate) fn read_tier_numbers(
    limit: NumberReader<'_>,
    tier: &FieldValue<'_>,
    is_sound: bool,
) -> Option<Algorithm> {
    let is_concurrency =
        limit.fields.find(&limit::ALGORITHM).is_some_and(|value| value.is_word("concurrency"));
    let slots = tier.as_text().filter(|text| is_concurrency && text.parse::<u32>().is_ok());
    if let Some(slots) = slots {
        let name = tier.path.rsplit('.').next().unwrap_or_default();
        let message = format!("`{name}` must be a mapping, not a single value");
        let help = format!("write {name}: {{ max_concurrent: {slots} }}");
        tier.refuse_name(codes::SHAPE, message, help);
        return None;
    }
    let own = tier.open_map(&tier_numbers::SECTION, "a mapping such as { rate: 50/s }, or none")?;
    own.report_unknown();
    let sink = ProblemSink::default();
    let numbers = {
        let merged = limit.fields.overlay_fields(&own, &sink);
        NumberReader { fields: &merged, ..limit }.read_algorithm()
    };
    for problem in sink.into_sorted().0 {
        let of_tier = problem.field.strip_prefix(&tier.path).is_some_and(|rest| rest.starts_with('.'));
        let (position, field) = (problem.position(), problem.field.clone());
        if of_tier {
            tier.sink.add_problem(position, &field, problem.into());
        } else if is_sound && problem.code == codes::LIMIT_NUMBERS {
            // The limit's own number is valid, but does not fit this tier.
            tier.report_at_name(problem.into());
        }
    }
    numbers
}

/// Reads the numbers of the shadow of `limit`; `is_sound` = the limit's own numbers are valid.
pub(crate) fn read_shadow(limit: NumberReader<'_>, is_sound: bool) -> Option<Algorithm> {
    let value = limit.fields.find(&limit::SHADOW).filter(|value| !value.is_word("none"))?;
    if value.is_map() && value.entries().is_empty() {
        value.refuse_name(
            codes::MISSING,
            "this shadow has no numbers",
            "write e.g. shadow: { rate: 5/s }, or remove it",
        );
        return None;
    }
    read_tier_numbers(limit, &value, is_sound)
}

/// Reads the share of the keys on which the limit in `fields` acts; `None` = all.
pub(crate) fn read_enforce(fields: &FieldReader<'_>, key: &[KeyPart]) -> Option<EnforcedShare> {
    let percent = fields.read(&limit::ENFORCE);
    let value = fields.find(&limit::ENFORCE)?;
    let report = |message: &str, help: &str| {
        value.refuse_name(codes::LIMIT_NUMBERS, message, help);
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
