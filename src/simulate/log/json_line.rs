//! Reads lines of the gateway's own access log, without building a tree.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::record::{HeaderNames, LogRecord, TextField};
use sluicegate_base::time_text as time;
use sluicegate_limit::LimitOutcome;

/// Fills `record` from a line. `None`: it is no JSON object with a `ts`; the record is then undefined.
pub(super) fn parse_line(line: &[u8], names: &mut HeaderNames, record: &mut LogRecord) -> Option<()> {
    let mut reader = serde_json::Deserializer::from_str(str::from_utf8(line).ok()?);
    reader.deserialize_map(LineVisitor { names, record }).ok()?;
    reader.end().ok()
}

struct LineVisitor<'r> {
    names: &'r mut HeaderNames,
    record: &'r mut LogRecord,
}

/// A text that is copied only if it has escapes.
#[derive(Deserialize)]
struct LineText<'l>(#[serde(borrow)] Cow<'l, str>);

impl<'l> Visitor<'l> for LineVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line of an access log")
    }

    fn visit_map<M: MapAccess<'l>>(self, mut line: M) -> Result<(), M::Error> {
        let LineVisitor { names, record } = self;
        let mut has_time = false;
        while let Some(LineText(key)) = line.next_key()? {
            match &*key {
                "ts" => {
                    let time = time::parse_rfc3339(next_text(&mut line)?.as_bytes());
                    let (ns, is_exact) = time.ok_or_else(|| M::Error::custom("no time"))?;
                    (record.arrival_ns, record.is_whole_second, has_time) = (ns, !is_exact, true);
                }
                "ip" => record.ip = next_text(&mut line)?.parse().ok(),
                "method" => record.set_text(TextField::Method, next_text(&mut line)?.as_bytes()),
                "path" => record.set_text(TextField::Target, next_text(&mut line)?.as_bytes()),
                "host" => record.set_text(TextField::Host, next_text(&mut line)?.as_bytes()),
                "account" => record.set_text(TextField::Account, next_text(&mut line)?.as_bytes()),
                "tier" => record.set_text(TextField::Tier, next_text(&mut line)?.as_bytes()),
                "limit" => record.set_text(TextField::Limit, next_text(&mut line)?.as_bytes()),
                "scheme" => record.set_text(TextField::Scheme, next_text(&mut line)?.as_bytes()),
                "status" => record.status = u16::try_from(line.next_value::<u64>()?).ok(),
                "dur_ms" => record.duration_ns = Some(ns_of_ms(line.next_value()?)),
                "wait_ms" => record.waited_ns = ns_of_ms(line.next_value()?),
                "verdict" => note_verdict(record, &next_text(&mut line)?),
                "dry_run" => {
                    let decisions = next_text(&mut line)?;
                    record.set_text(TextField::DryRun, decisions.as_bytes());
                    for one in decisions.split(',') {
                        note_verdict(record, one.rsplit('=').next().unwrap_or_default());
                    }
                }
                "headers" => {
                    for (name, value) in line.next_value::<Map<String, Value>>()? {
                        push_header(&name, value.as_str().unwrap_or_default(), names, record);
                    }
                }
                "user_agent" => push_header("user-agent", &next_text(&mut line)?, names, record),
                "referer" => push_header("referer", &next_text(&mut line)?, names, record),
                _ => drop(line.next_value::<IgnoredAny>()?),
            }
        }
        if has_time { Ok(()) } else { Err(M::Error::missing_field("ts")) }
    }
}

fn next_text<'l, M: MapAccess<'l>>(line: &mut M) -> Result<Cow<'l, str>, M::Error> {
    Ok(line.next_value::<LineText<'l>>()?.0)
}

fn push_header(name: &str, value: &str, names: &mut HeaderNames, record: &mut LogRecord) {
    if let Some(index) = names.index_of(name.as_bytes()) {
        record.push_header(index, value.as_bytes());
    }
}

/// The strictest one counts: a dry run stands beside the verdict.
fn note_verdict(record: &mut LogRecord, word: &str) {
    let verdict = match word {
        "admit" => Some(LimitOutcome::Admit),
        "wait" => Some(LimitOutcome::Wait),
        "reject" | "missing_key" | "degrade" => Some(LimitOutcome::Reject),
        // Bans and faults are not decisions of limits.
        _ => None,
    };
    record.verdict = record.verdict.max(verdict);
}

/// The log has three decimals, which a float holds exactly enough.
fn ns_of_ms(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<(LogRecord, HeaderNames)> {
        let (mut record, mut names) = (LogRecord::default(), HeaderNames::default());
        parse_line(line.as_bytes(), &mut names, &mut record)?;
        Some((record, names))
    }

    #[test]
    fn other_lines_are_not_read() {
        for line in [
            "",
            "{",
            "{}",
            "[]",
            "garbage",
            r#"{"ts":"2025-11-20T20:22:11.045Z""#,
            r#"{"ts":5}"#,
            r#"{"ip":"192.0.2.1"}"#,
            r#"{"ts":"yesterday"}"#,
            r#"{"ts":"2025-11-20T20:22:11Z"} x"#,
            r#"{"ts":"2025-11-20T20:22:11Z","status":"two hundred"}"#,
            r#"{"ts":"2025-11-20T20:22:11Z","a":"\"}"#,
            r#"{"ts":"2025-11-20T20:22:11Z","a":[1,}"#,
        ] {
            assert!(parse(line).is_none(), "{line}");
        }
        assert!(parse(&format!(r#"{{"ts":"2025-11-20T20:22:11Z","a":{}"#, "[".repeat(100_000))).is_none());
    }

    #[test]
    fn a_line_of_ours_is_read() {
        let (record, names) = parse(
            &[
                r#"{"ts":"2025-11-20T20:22:11.045123Z","id":"01","ip":"192.0.2.17","method":"GET","host":"a.test","#,
                r#""path":"/a\"b\u00fc","status":429,"bytes":282,"dur_ms":3.512,"wait_ms":1.500,"verdict":"admit","#,
                r#""location":"/","account":"acme","tier":"gold","limit":"per-ip","retry_after":0.076,"#,
                r#""dry_run":"one=wait,two=reject","user_agent":"curl","more":{"a":[1,{"b":null}],"c":"x"},"#,
                r#""headers":{"x-team":"blue"}}"#,
            ]
            .concat(),
        )
        .unwrap();
        assert_eq!(record.arrival_ns, 1_763_670_131_045_123_000);
        assert_eq!((record.is_whole_second, record.status), (false, Some(429)));
        assert_eq!((record.duration_ns, record.waited_ns), (Some(3_512_000), 1_500_000));
        assert_eq!(record.ip, Some("192.0.2.17".parse().unwrap()));
        assert_eq!(record.text(TextField::Target), Some("/a\"bü".as_bytes()));
        assert_eq!(record.text(TextField::Account), Some(&b"acme"[..]));
        assert_eq!(record.text(TextField::Tier), Some(&b"gold"[..]));
        assert_eq!(record.verdict, Some(LimitOutcome::Reject));
        let headers: Vec<_> = record
            .headers()
            .map(|(name, value)| (names.get(name).unwrap().as_str(), str::from_utf8(value).unwrap()))
            .collect();
        assert_eq!(headers, [("user-agent", "curl"), ("x-team", "blue")]);
    }

    #[test]
    fn bans_and_faults_are_no_verdicts_of_limits() {
        for verdict in ["ban", "no_location", "upstream_timeout"] {
            let line = format!(r#"{{"ts":"2025-11-20T20:22:11.0Z","verdict":"{verdict}"}}"#);
            assert_eq!(parse(&line).unwrap().0.verdict, None);
        }
    }

    #[test]
    fn surrogates_become_characters() {
        let path = |text: &str| parse(&format!(r#"{{"ts":"2025-11-20T20:22:11Z","path":"{text}"}}"#));
        let (record, _) = path(r"a\ud83d\ude00b\n\/").unwrap();
        assert_eq!(record.text(TextField::Target), Some("a😀b\n/".as_bytes()));
        for wrong in [r"\ud83d", r"\q", r"\"] {
            assert!(path(wrong).is_none(), "{wrong}");
        }
    }
}
