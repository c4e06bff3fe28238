//! A line on stderr that is no log event, as a JSON line with the fields of one.

use std::time::SystemTime;

use serde::Serialize;

use sluicegate_model::Problem;

/// The fields of a JSON line, in the order and under the names of log events.
#[derive(Debug, Serialize)]
pub struct StderrLine<'a> {
    timestamp: String,
    level: &'static str,
    message: &'a str,
    /// `FILE:LINE:COLUMN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    details: &'a [String],
}

impl<'a> StderrLine<'a> {
    /// A line of this moment; `level` is e.g. `INFO`.
    pub fn new(level: &'static str, message: &'a str) -> StderrLine<'a> {
        let timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        StderrLine { timestamp, level, message, at: None, code: None, help: None, details: &[] }
    }

    /// The line of a problem in `file` or one that it includes: its message, position, code and advice.
    pub fn from_problem(level: &'static str, problem: &'a Problem, file: &str) -> StderrLine<'a> {
        StderrLine {
            at: Some(format!("{}:{}:{}", problem.file_or(file), problem.line, problem.column)),
            code: Some(problem.code),
            help: problem.suggestion.as_deref(),
            ..StderrLine::new(level, &problem.message)
        }
    }

    /// The same line with these details, one text each; an empty list is not written.
    pub fn with_details(self, details: &'a [String]) -> StderrLine<'a> {
        StderrLine { details, ..self }
    }

    /// One line, with its end.
    pub fn render_json(&self) -> String {
        // Only maps with odd keys fail to serialize, and there are none.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_fields_of_a_log_event() {
        let details = ["per-ip: 10/s".to_owned()];
        let line = StderrLine::new("INFO", "a \"line\"\n").with_details(&details).render_json();
        let end = "\",\"level\":\"INFO\",\"message\":\"a \\\"line\\\"\\n\",\"details\":[\"per-ip: 10/s\"]}\n";
        assert!(line.starts_with("{\"timestamp\":\"2") && line.ends_with(end), "{line}");
        let report = sluicegate_config::parse("limts: 1\n", "x.yaml").unwrap_err();
        let line = StderrLine::from_problem("ERROR", &report.problems[0], "x.yaml").render_json();
        assert!(line.contains("\"at\":\"x.yaml:1:1\",\"code\":\"E"), "{line}");
        assert!(line.contains("\"help\":\"did you mean"), "{line}");
    }
}
