//! Reports in the form of JUnit, which systems for continuous integration read.

use std::fmt::Write as _;

use super::report::{FileReport, ScenarioReport, TestReport};

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
