//! The conditions of `when`.

use std::fmt;

use super::Arrival;
use crate::request::source::{SourceValue, read_source};
use sluicegate_model::{ConditionConfig, LocationConfig, ValueTest};

/// A condition that a request does not meet. `Display` says why: "its header:x-env=canary does not hold: it is absent
/// or empty".
#[derive(Debug, Clone, Copy)]
pub struct UnmetCondition<'c> {
    condition: &'c ConditionConfig,
    reason: &'static str,
}

impl<'c> UnmetCondition<'c> {
    /// The first condition of `location` that does not hold.
    pub fn find(location: &'c LocationConfig, arrival: &Arrival<'_>) -> Option<UnmetCondition<'c>> {
        find_unmet(&location.when, arrival)
    }
}

impl fmt::Display for UnmetCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} does not hold: {}", self.condition, self.reason)
    }
}

/// The first of `conditions` that does not hold. Values are read as those of keys are.
pub(super) fn find_unmet<'c>(
    conditions: &'c [ConditionConfig],
    arrival: &Arrival<'_>,
) -> Option<UnmetCondition<'c>> {
    conditions.iter().find_map(|condition| {
        let value = arrival.values.as_ref().map(|values| read_source(&condition.source, values));
        let reason = find_reason(&condition.test, &value.unwrap_or(SourceValue::Absent))?;
        Some(UnmetCondition { condition, reason })
    })
}

/// The reason why a value does not pass; `None` = it passes.
fn find_reason(test: &ValueTest, value: &SourceValue<'_>) -> Option<&'static str> {
    let passes = match (test, value) {
        (_, SourceValue::Repeated) => return Some("it is given twice"),
        (ValueTest::Absent, SourceValue::Absent) | (ValueTest::Present, SourceValue::One(_)) => true,
        (ValueTest::Absent, SourceValue::One(_)) => return Some("it is present"),
        (_, SourceValue::Absent) => return Some("it is absent or empty"),
        (ValueTest::Equals(text), SourceValue::One(value)) => **value == *text.as_bytes(),
        (ValueTest::Matches(regex), SourceValue::One(value)) => {
            regex.is_match(value, &String::from_utf8_lossy(value))
        }
    };
    (!passes).then_some("it has another value")
}
