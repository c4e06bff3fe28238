//! Reads the expectations of a step.

use http::StatusCode;

use super::fields::{SEND_MAX, expect, step};
use super::model::{ExpectedRange, ExpectedStatus, StepExpectation};
use super::tally::{BAN, UPSTREAM_STOP};
use sluicegate_base::clock::duration_ns;
use sluicegate_config::schema::field::Field;
use sluicegate_config::schema::kinds::Special;
use sluicegate_config::yaml::field_reader::FieldReader;
use sluicegate_config::yaml::field_value::FieldValue;
use sluicegate_config::yaml::tree::NodeContent;
use sluicegate_model::diagnostics::problem::{ValueError, did_you_mean};
use sluicegate_model::value::names::parse_status;
use sluicegate_model::value::scalars::{Parsed, parse_duration, parse_number};
use sluicegate_model::{Config, codes};
use sluicegate_proxy::reject::Fault;

/// The expectation of a step that sends `send` requests.
pub(super) fn read_expectation(fields: &FieldReader<'_>, send: u64, config: &Config) -> StepExpectation {
    let Some(value) = fields.find(&step::EXPECT) else { return StepExpectation::default() };
    if !value.is_map() {
        value.report_shape("a mapping such as { admitted: 20 }");
        return StepExpectation::default();
    }
    let fields = value.open_section(&expect::SECTION);
    let number = |field: &Field<Special>| {
        let value = fields.find(field)?;
        let range = read_range(&value, parse_count)?;
        if range.least > send {
            let message = format!("the step sends only {send}");
            value.report_at_value(ValueError::new(codes::NUMBER, message));
        }
        Some(range)
    };
    let ns = |text: &str| parse_duration(text).map(duration_ns);
    let span = |field: &Field<Special>| read_range(&fields.find(field)?, ns);
    let expected = StepExpectation {
        admitted: number(&expect::ADMITTED),
        rejected: number(&expect::REJECTED),
        waited: number(&expect::WAITED),
        degraded: number(&expect::DEGRADED),
        by: fields.find(&expect::BY).map(|value| read_causes(&value, config)).unwrap_or_default(),
        retry_after: span(&expect::RETRY_AFTER),
        waited_max: span(&expect::WAITED_MAX),
        status: fields.find(&expect::STATUS).and_then(|value| read_status(&value)),
        step: fields.read_written(&expect::STEP),
    };
    if let (Some(admitted), Some(rejected)) = (expected.admitted, expected.rejected)
        && !(admitted.least + rejected.least..=admitted.most.saturating_add(rejected.most)).contains(&send)
    {
        let message = format!("`admitted` and `rejected` do not add up to the {send} requests of the step");
        value.report_at_name(ValueError::new(codes::NUMBER, message));
    }
    let has_fields = matches!(&value.node.content, NodeContent::Map(entries) if !entries.is_empty());
    if !has_fields {
        value.report_empty("write e.g. expect: { admitted: 20 }");
    }
    fields.report_unknown_here();
    expected
}

fn parse_count(text: &str) -> Parsed<u64> {
    parse_number(text, 0, SEND_MAX)
}

/// A value, or the list of the least and the most.
fn read_range(value: &FieldValue<'_>, parse: fn(&str) -> Parsed<u64>) -> Option<ExpectedRange> {
    let NodeContent::List(items) = &value.node.content else {
        return value.parse_with(parse).map(|exact| ExpectedRange { least: exact, most: exact });
    };
    if items.len() != 2 {
        let message = format!("a range has two ends, not {}", items.len());
        value.refuse_name(codes::SHAPE, message, "write the least and the most, e.g. [48, 52]");
        return None;
    }
    let ends = value.parse_list(parse);
    let [least, most] = ends[..] else { return None };
    if least > most {
        let message = "the range is empty: its least is above its most";
        value.refuse_name(codes::NUMBER, message, "write the least first");
        return None;
    }
    Some(ExpectedRange { least, most })
}

/// Names of limits, or causes of rejections.
fn read_causes(value: &FieldValue<'_>, config: &Config) -> Vec<String> {
    let limits = || config.limits.iter().map(|limit| limit.name.as_str());
    let causes = || Fault::ALL.iter().map(|fault| fault.cause()).chain([BAN, UPSTREAM_STOP]);
    let parse = |text: &str| {
        if limits().chain(causes()).any(|known| known == text) {
            return Ok(text.to_owned());
        }
        let known: Vec<&str> = limits().collect();
        let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let help = did_you_mean(text, limits().chain(causes()));
        Err(ValueError::new(codes::UNDEFINED, format!("no limit is named `{text}`"))
            .with_optional_help(help)
            .with_default_help(&format!("the limits are {list}; other causes have names such as {BAN}")))
    };
    if value.is_empty() {
        value.report_empty("write the name of a limit");
    }
    value.parse_list(parse)
}

/// A status, or a mapping of statuses to how often each was seen.
fn read_status(value: &FieldValue<'_>) -> Option<ExpectedStatus> {
    let parse = |text: &str| parse_status(text, 100).map(|status: StatusCode| status.as_u16());
    if !value.is_map() {
        return value.parse_with(parse).map(ExpectedStatus::Every);
    }
    let mut counts = Vec::new();
    for (key, count) in value.entries() {
        match parse(&key.name) {
            Ok(status) => counts.extend(read_range(&count, parse_count).map(|range| (status, range))),
            Err(error) => count.report_at_name(error),
        }
    }
    Some(ExpectedStatus::Counts(counts))
}
