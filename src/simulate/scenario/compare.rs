//! Compares the expectations of a step with its outcome, and finds the first request that differs.

use std::time::Duration;

use serde::Serialize;

use super::model::{ExpectedRange, ExpectedStatus, StepExpectation};
use super::tally::{RequestEnd, StepTally};
use sluicegate_model::value::scalars::show_duration;
use sluicegate_proxy::gateway::Gateway;

/// One expectation that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// E.g. `admitted`.
    pub field: &'static str,
    /// The expected value or range, in words.
    pub expected: String,
    /// The outcome in its place, in words.
    pub seen: String,
}

/// Every expectation that is not met, in the order of the fields.
pub(super) fn compare(expected: &StepExpectation, seen: &StepTally, gateway: &Gateway) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let mut add = |field, expected: String, seen: String| found.push(Mismatch { field, expected, seen });
    for (field, range, count, _) in counts(expected, seen) {
        if let Some(range) = range.filter(|range| !range.contains(count)) {
            add(field, show_range(range, |count| count.to_string()), count.to_string());
        }
    }
    let is_named = |name: &str| expected.by.iter().any(|by| by == name);
    if !expected.by.is_empty()
        && (seen.causes.is_empty() || !seen.causes.iter().all(|(cause, _)| is_named(cause.name(gateway))))
    {
        let causes = seen.causes.iter().map(|(cause, count)| format!("{} ({count})", cause.name(gateway)));
        add("by", expected.by.join(", "), join_or_none(causes.collect()));
    }
    if let Some(range) = expected.retry_after {
        let first = seen.first_rejection.map(|(_, retry_ns)| retry_ns);
        if !first.flatten().is_some_and(|retry_ns| range.contains_span(retry_ns)) {
            let shown = match first {
                None => "no request was rejected".to_owned(),
                Some(None) => "a rejection without a time".to_owned(),
                Some(Some(retry_ns)) => show_ns(retry_ns),
            };
            add("retry_after", show_range(range, show_ns), shown);
        }
    }
    if let Some(range) = expected.waited_max.filter(|range| !range.contains_span(seen.waited_max_ns)) {
        add("waited_max", show_range(range, show_ns), show_ns(seen.waited_max_ns));
    }
    if let Some(status) = &expected.status
        && !is_status_met(status, seen)
    {
        add("status", show_status(status), show_statuses(judged_statuses(status, seen)));
    }
    let told = seen.last.1.unwrap_or("none");
    if let Some(step) = expected.step.filter(|step| *step != told) {
        add("step", step.to_owned(), told.to_owned());
    }
    found
}

/// The expected ranges with the counts that were seen, and the test of a counted end.
type ExpectedCount = (&'static str, Option<ExpectedRange>, u64, fn(&RequestEnd) -> bool);

fn counts(expected: &StepExpectation, seen: &StepTally) -> [ExpectedCount; 4] {
    [
        ("admitted", expected.admitted, seen.admitted, RequestEnd::is_admitted),
        ("rejected", expected.rejected, seen.rejected, |end| !end.is_admitted()),
        ("waited", expected.waited, seen.waited, RequestEnd::has_waited),
        ("degraded", expected.degraded, seen.degraded, |end| end.is_degraded),
    ]
}

/// The statuses that the expectation is about.
fn judged_statuses<'t>(expected: &ExpectedStatus, seen: &'t StepTally) -> &'t [(u16, u64)] {
    match expected {
        ExpectedStatus::Every(_) if seen.rejected > 0 => &seen.rejected_statuses,
        _ => &seen.statuses,
    }
}

fn is_status_met(expected: &ExpectedStatus, seen: &StepTally) -> bool {
    let statuses = judged_statuses(expected, seen);
    match expected {
        ExpectedStatus::Every(status) => statuses.iter().all(|(seen, _)| seen == status),
        ExpectedStatus::Counts(counts) => {
            let count =
                |status| statuses.iter().find(|(seen, _)| *seen == status).map_or(0, |(_, count)| *count);
            let is_known = |status: u16| counts.iter().any(|(known, _)| *known == status);
            counts.iter().all(|(status, range)| range.contains(count(*status)))
                && statuses.iter().all(|(status, _)| is_known(*status))
        }
    }
}

/// The index of the first request that is not as expected, given the ends of all requests of the step.
pub(super) fn first_difference(
    expected: &StepExpectation,
    seen: &StepTally,
    ends: &[RequestEnd],
    gateway: &Gateway,
) -> usize {
    let by_count = counts(expected, seen);
    let by_count = by_count.into_iter().filter_map(|(_, range, _, test)| beyond_range(range?, ends, &test));
    let by_cause = (!expected.by.is_empty()).then(|| {
        let is_other = |end: &RequestEnd| {
            end.cause.is_some_and(|cause| !expected.by.iter().any(|by| by == cause.name(gateway)))
        };
        ends.iter().position(is_other)
    });
    let by_retry = expected.retry_after.and_then(|range| {
        let (first, retry_ns) = seen.first_rejection?;
        let is_met = retry_ns.is_some_and(|retry_ns| range.contains_span(retry_ns));
        (!is_met).then(|| usize::try_from(first).unwrap_or_default())
    });
    let by_wait =
        expected.waited_max.filter(|range| !range.contains_span(seen.waited_max_ns)).and_then(|range| {
            let longest = |end: &RequestEnd| end.has_waited() && end.wait_ns == seen.waited_max_ns;
            let too_long = |end: &RequestEnd| end.has_waited() && end.wait_ns > range.most;
            ends.iter().position(too_long).or_else(|| ends.iter().position(longest))
        });
    let by_status = expected.status.as_ref().and_then(|status| match status {
        ExpectedStatus::Every(status) => {
            let judges = |end: &RequestEnd| seen.rejected == 0 || !end.is_admitted();
            ends.iter().position(|end| judges(end) && end.status != *status)
        }
        ExpectedStatus::Counts(counts) => {
            let unknown = |end: &RequestEnd| !counts.iter().any(|(status, _)| *status == end.status);
            let of_count = |(status, range): &(u16, ExpectedRange)| {
                beyond_range(*range, ends, &|end: &RequestEnd| end.status == *status)
            };
            counts.iter().filter_map(of_count).chain(ends.iter().position(unknown)).min()
        }
    });
    let by_step = expected.step.filter(|step| seen.last.1.unwrap_or("none") != *step);
    let by_step = by_step.map(|_| usize::try_from(seen.last.0).unwrap_or_default());
    let single = [by_cause.flatten(), by_retry, by_wait, by_status, by_step];
    by_count.chain(single.into_iter().flatten()).min().unwrap_or(0)
}

/// The first request beyond the range: one too many that passes the test, or one too many that does not.
fn beyond_range(
    range: ExpectedRange,
    ends: &[RequestEnd],
    test: &dyn Fn(&RequestEnd) -> bool,
) -> Option<usize> {
    let sent = ends.len() as u64;
    let nth = |passes: bool, most: u64| {
        let mut matching = ends.iter().enumerate().filter(|(_, end)| test(end) == passes);
        matching.nth(usize::try_from(most).unwrap_or(usize::MAX)).map(|(index, _)| index)
    };
    nth(true, range.most).or_else(|| nth(false, sent.saturating_sub(range.least)))
}

fn show_range(range: ExpectedRange, show: impl Fn(u64) -> String) -> String {
    match range.least == range.most {
        true => show(range.least),
        false => format!("{} to {}", show(range.least), show(range.most)),
    }
}

/// A time as responses show it: rounded up to milliseconds.
pub(super) fn show_ns(ns: u64) -> String {
    show_duration(Duration::from_millis(ns.div_ceil(1_000_000)))
}

fn show_status(expected: &ExpectedStatus) -> String {
    match expected {
        ExpectedStatus::Every(status) => status.to_string(),
        ExpectedStatus::Counts(counts) => {
            let show = |(status, range): &(u16, ExpectedRange)| {
                format!("{status} ({})", show_range(*range, |count| count.to_string()))
            };
            join_or_none(counts.iter().map(show).collect())
        }
    }
}

fn show_statuses(seen: &[(u16, u64)]) -> String {
    let mut seen = seen.to_vec();
    seen.sort_unstable();
    join_or_none(seen.iter().map(|(status, count)| format!("{status} ({count})")).collect())
}

fn join_or_none(parts: Vec<String>) -> String {
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}
