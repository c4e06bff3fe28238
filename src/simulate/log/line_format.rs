//! The format of a log: named, given as nginx's `log_format`, or guessed from its first lines.

use super::line_pattern::{COMBINED, COMMON, LinePattern};
use super::record::{HeaderNames, LogRecord};
use super::{haproxy, json_line};

/// How lines are read.
#[derive(Debug, Clone)]
pub enum LogLineFormat {
    /// The gateway's own.
    Json,
    /// nginx's or Apache's.
    Pattern(LinePattern),
    /// HAProxy's, by `option httplog`.
    HaProxy,
}

/// The values of `--format`, for messages.
pub const FORMATS: &str = "json, combined, common, haproxy, or an nginx log_format such as \
                           '$msec $request_time $remote_addr \"$request\"'";

impl LogLineFormat {
    /// The format that a user names.
    ///
    /// # Errors
    /// A sentence that names the formats, or the missing part of the given one.
    pub fn named(text: &str) -> Result<LogLineFormat, String> {
        Ok(match text {
            "json" => LogLineFormat::Json,
            "combined" => LogLineFormat::Pattern(LinePattern::well_known(COMBINED)),
            "common" => LogLineFormat::Pattern(LinePattern::well_known(COMMON)),
            "haproxy" => LogLineFormat::HaProxy,
            format if format.contains('$') => LogLineFormat::Pattern(LinePattern::compile(format)?),
            other => {
                return Err(format!(
                    "there is no format `{}`; the formats are: {FORMATS}",
                    other.escape_debug()
                ));
            }
        })
    }

    /// The well-known format that this line has.
    pub fn guess(line: &[u8]) -> Option<LogLineFormat> {
        let mut known = ["json", "haproxy", "combined", "common"].into_iter();
        let mut record = LogRecord::default();
        known.find_map(|name| {
            let format = LogLineFormat::named(name).ok()?;
            format.parse_line(line, &mut HeaderNames::default(), &mut record).then_some(format)
        })
    }

    /// Fills `record` from a line; false: the line has another format, and the record is undefined.
    pub fn parse_line(&self, line: &[u8], names: &mut HeaderNames, record: &mut LogRecord) -> bool {
        record.clear();
        match self {
            LogLineFormat::Json => json_line::parse_line(line, names, record),
            LogLineFormat::Pattern(pattern) => pattern.parse_line(line, names, record),
            LogLineFormat::HaProxy => haproxy::parse_line(line, record),
        }
        .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_format_names_the_known_ones() {
        let error = LogLineFormat::named("apache").unwrap_err();
        assert!(error.contains("`apache`") && error.contains("combined"), "{error}");
        assert!(LogLineFormat::named("$status").unwrap_err().contains("no time"));
    }

    #[test]
    fn formats_are_guessed_from_a_line() {
        let guess = |line: &str| match LogLineFormat::guess(line.as_bytes()) {
            None => "none",
            Some(LogLineFormat::Json) => "json",
            Some(LogLineFormat::HaProxy) => "haproxy",
            Some(LogLineFormat::Pattern(_)) => "pattern",
        };
        let combined = "192.0.2.1 - - [20/Nov/2025:20:22:11 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"";
        assert_eq!(guess(combined), "pattern");
        assert_eq!(guess(&combined[..combined.len() - 8]), "pattern", "without referer and user agent");
        assert_eq!(guess(r#"{"ts":"2025-11-20T20:22:11.5Z","verdict":"admit"}"#), "json");
        assert_eq!(
            guess(
                "192.0.2.1:5 [06/Feb/2009:12:14:14.655] in in/a 0/0/0/0/0 200 0 - - ---- 1/1/0/0/0 0/0 \
                 \"GET / HTTP/1.1\""
            ),
            "haproxy"
        );
        assert_eq!(guess("hello"), "none");
    }
}
