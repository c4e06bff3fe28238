//! The outcome of scenarios, as text and as JSON.

use std::fmt::{self, Write as _};
use std::time::Duration;

use ipnet::IpNet;
use serde::Serialize;

use super::compare::{Mismatch, show_ns};
use super::model::ScenarioStep;
use super::tally::RequestEnd;
use crate::operate::explain::Explanation;
use crate::operate::text_table::show_count;
use sluicegate_model::value::scalars::show_duration;
use sluicegate_proxy::gateway::Gateway;

/// The outcome of all files. `Display` renders it for people.
#[derive(Debug, Default, Serialize)]
pub struct TestReport {
    /// Scenarios with no failed step.
    pub passed: usize,
    /// Scenarios with a failed step, or that could not be run.
    pub failed: usize,
    /// The outcome of each file.
    pub files: Vec<FileReport>,
}

/// The outcome of one scenario file.
#[derive(Debug, Serialize)]
pub struct FileReport {
    /// The name of the scenario file, as it was given.
    pub file: String,
    /// The path of the configuration under test.
    pub config: String,
    /// The outcomes in the order of the file.
    pub scenarios: Vec<ScenarioReport>,
}

/// The outcome of one scenario.
#[derive(Debug, Serialize)]
pub struct ScenarioReport {
    /// The name of the scenario.
    pub name: String,
    /// The line in the file, counted from 1.
    pub line: usize,
    /// Requests of all steps, as the file says.
    pub requests: u64,
    /// Milliseconds of the virtual clock from the start to the end of the last request.
    pub virtual_ms: u64,
    /// The steps that were not as expected, in their order.
    pub failures: Vec<StepFailure>,
    /// Why it could not be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A step that was not as expected.
#[derive(Debug, Serialize)]
pub struct StepFailure {
    /// Counted from 1.
    pub step: usize,
    pub line: usize,
    /// The requests of the step, in words.
    pub sent: String,
    pub mismatches: Vec<Mismatch>,
    /// Present for the first step that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<DifferingRequest>,
}

/// The first request that was not as expected.
#[derive(Debug, Serialize)]
pub struct DifferingRequest {
    /// Counted from 1, in its step.
    pub number: u64,
    /// Time since the start of the scenario, as it is written in the file.
    pub at: String,
    pub from: String,
    /// The end of the request, in words.
    pub outcome: String,
    /// The explanation by `explain` at that moment.
    pub explanation: Box<Explanation>,
}

impl TestReport {
    /// Adds the outcome of a file, and counts its scenarios.
    pub fn add_file(&mut self, file: FileReport) {
        let failed = file.scenarios.iter().filter(|scenario| !scenario.has_passed()).count();
        self.failed += failed;
        self.passed += file.scenarios.len() - failed;
        self.files.push(file);
    }
}

impl ScenarioReport {
    /// True if the scenario could be run and every step was as expected.
    pub fn has_passed(&self) -> bool {
        self.failures.is_empty() && self.error.is_none()
    }

    /// Why it failed, in lines without indentation. `file` names the scenario file.
    pub(super) fn explain_failure(&self, file: &str) -> String {
        let mut out = String::new();
        for failure in &self.failures {
            let StepFailure { step, line, sent, .. } = failure;
            // Writing into a String cannot fail.
            let _ = writeln!(out, "step {step}, {file}:{line}: {sent}");
            for Mismatch { field, expected, seen } in &failure.mismatches {
                let _ = writeln!(out, "  {field:<12} expected {expected}; seen {seen}");
            }
            if let Some(first) = &failure.first_difference {
                let DifferingRequest { number, at, from, outcome, explanation } = first;
                let _ = writeln!(
                    out,
                    "  first request that differs: number {number}, at {at}, from {from}: {outcome}"
                );
                let _ = writeln!(out, "  explain, before it is sent:");
                for line in explanation.to_string().lines() {
                    let _ = writeln!(out, "    {line}");
                }
            }
        }
        if let Some(error) = &self.error {
            let _ = writeln!(out, "cannot be run: {error}");
        }
        out
    }
}

/// E.g. "60 times GET /api/ from 203.0.113.7 at 5s, every 50ms".
pub(super) fn describe_step(step: &ScenarioStep) -> String {
    let show_network = |network: &IpNet| match network.prefix_len() == network.max_prefix_len() {
        true => network.addr().to_string(),
        false => network.to_string(),
    };
    let from: Vec<String> = step.from.iter().map(show_network).collect();
    let (method, url, at) = (&step.query.method, &step.query.url, show_duration(step.at));
    let times = if step.send == 1 { String::new() } else { format!("{} times ", step.send) };
    let mut text = format!("{times}{method} {url} from {} at {at}", from.join(", "));
    if !step.every.is_zero() {
        let _ = write!(text, ", every {}", show_duration(step.every));
    }
    text
}

/// E.g. "rejected by per-ip, 429, retry after 2s".
pub(super) fn describe_end(end: &RequestEnd, gateway: &Gateway) -> String {
    let status = end.status;
    match end.cause {
        None if end.wait_ns > 0 => format!("admitted after {}, {status}", show_ns(end.wait_ns)),
        None => format!("admitted, {status}"),
        Some(cause) => {
            let word = if end.is_degraded { "degraded" } else { "rejected" };
            let retry = end.retry_after_ns.map(|ns| format!(", retry after {}", show_ns(ns)));
            format!("{word} by {}, {status}{}", cause.name(gateway), retry.unwrap_or_default())
        }
    }
}

/// A time for people, without fractions that do not matter to them.
fn show_span(ms: u64) -> String {
    let coarse_ms = match ms {
        0..10_000 => ms,
        10_000..600_000 => ms / 100 * 100,
        _ => ms / 1_000 * 1_000,
    };
    humantime::format_duration(Duration::from_millis(coarse_ms)).to_string()
}

impl fmt::Display for TestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FileReport { file, scenarios, .. } in &self.files {
            writeln!(f, "{file}")?;
            for scenario in scenarios {
                let ScenarioReport { name, requests, virtual_ms, .. } = scenario;
                let word = if scenario.has_passed() { "ok    " } else { "FAILED" };
                let plural = if *requests == 1 { "" } else { "s" };
                let requests = format!("{} request{plural}", show_count(*requests));
                let span = show_span(*virtual_ms);
                writeln!(f, "  {word}  {name} ({requests}, {span})")?;
                for line in scenario.explain_failure(file).lines() {
                    writeln!(f, "    {line}")?;
                }
            }
        }
        writeln!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The report as an XML document: a suite for each file, a case for each scenario.
pub fn render_junit(report: &TestReport) -> String {
    let (tests, failed) = (report.passed + report.failed, report.failed);
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
    // Writing into a String cannot fail.
    let _ = writeln!(out, "<testsuites name=\"sluicegate test\" tests=\"{tests}\" failures=\"{failed}\">");
    for FileReport { file, scenarios, .. } in &report.files {
        let failed = scenarios.iter().filter(|scenario| !scenario.has_passed()).count();
        let (name, tests) = (escape_xml(file), scenarios.len());
        let _ = writeln!(out, "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\">");
        scenarios.iter().for_each(|scenario| write_case(&mut out, file, scenario));
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn write_case(out: &mut String, file: &str, scenario: &ScenarioReport) {
    let (name, class, line) = (escape_xml(&scenario.name), escape_xml(file), scenario.line);
    let _ =
        write!(out, "    <testcase name=\"{name}\" classname=\"{class}\" file=\"{class}\" line=\"{line}\"");
    if scenario.has_passed() {
        out.push_str("/>\n");
        return;
    }
    let failures = scenario.failures.iter().flat_map(|failure| &failure.mismatches);
    let short: Vec<String> = failures
        .map(|found| format!("{}: expected {}, seen {}", found.field, found.expected, found.seen))
        .chain(scenario.error.clone())
        .collect();
    let (message, text) = (escape_xml(&short.join("; ")), escape_xml(&scenario.explain_failure(file)));
    let _ = writeln!(out, ">\n      <failure message=\"{message}\">{text}</failure>\n    </testcase>");
}

/// Text for an element or an attribute. Characters that XML 1.0 does not allow are replaced.
fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(character),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_control() && control < '\u{80}' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}
