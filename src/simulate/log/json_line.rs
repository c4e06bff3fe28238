//! Reads lines of the gateway's own access log, without building a tree.

use std::net::IpAddr;

use memchr::{memchr, memchr2};

use super::record::{HeaderNames, LogRecord, LoggedVerdict, TextField};
use super::time;

/// Deeper values are no lines of ours.
const DEPTH_MAX: usize = 16;

/// Fills `record` from a line. `None`: it is no JSON object with a `ts`; the record is then undefined.
pub fn parse_line(line: &[u8], names: &mut HeaderNames, record: &mut LogRecord) -> Option<()> {
    let mut cursor = Cursor { rest: line };
    let mut has_time = false;
    cursor.take(b'{')?;
    loop {
        let key = cursor.string()?;
        cursor.take(b':')?;
        match key.raw {
            b"ts" => {
                let (ns, is_exact) = time::parse_rfc3339(cursor.string()?.raw)?;
                (record.arrival_ns, record.is_whole_second) = (ns, !is_exact);
                has_time = true;
            }
            b"ip" => record.ip = str::from_utf8(cursor.string()?.raw).ok()?.parse::<IpAddr>().ok(),
            b"method" => cursor.string()?.store(record, TextField::Method),
            b"path" => cursor.string()?.store(record, TextField::Target),
            b"host" => cursor.string()?.store(record, TextField::Host),
            b"account" => cursor.string()?.store(record, TextField::Account),
            b"tier" => cursor.string()?.store(record, TextField::Tier),
            b"limit" => cursor.string()?.store(record, TextField::Limit),
            b"scheme" => cursor.string()?.store(record, TextField::Scheme),
            b"status" => record.status = u16::try_from(time::digits(cursor.number()?)?).ok(),
            b"dur_ms" => record.duration_ns = Some(time::parse_seconds(cursor.number()?)? / 1_000),
            b"wait_ms" => record.waited_ns = time::parse_seconds(cursor.number()?)? / 1_000,
            b"verdict" => note_verdict(record, read_verdict(cursor.string()?.raw)),
            b"dry_run" => {
                let decisions = cursor.string()?;
                decisions.store(record, TextField::DryRun);
                for one in decisions.raw.split(|byte| *byte == b',') {
                    let word = one.rsplit(|byte| *byte == b'=').next().unwrap_or_default();
                    note_verdict(record, read_verdict(word));
                }
            }
            b"headers" => cursor.headers(names, record)?,
            b"user_agent" => cursor.header(b"user-agent", names, record)?,
            b"referer" => cursor.header(b"referer", names, record)?,
            _ => cursor.skip_value(0)?,
        }
        match cursor.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    cursor.skip_space();
    (has_time && cursor.rest.is_empty()).then_some(())
}

fn read_verdict(word: &[u8]) -> Option<LoggedVerdict> {
    match word {
        b"admit" => Some(LoggedVerdict::Admit),
        b"wait" => Some(LoggedVerdict::Wait),
        b"reject" | b"missing_key" | b"degrade" => Some(LoggedVerdict::Reject),
        // Bans and faults are not decisions of limits.
        _ => None,
    }
}

/// The strictest one counts: a dry run stands beside the verdict.
fn note_verdict(record: &mut LogRecord, verdict: Option<LoggedVerdict>) {
    record.verdict = record.verdict.max(verdict);
}

struct Cursor<'l> {
    rest: &'l [u8],
}

/// A string between its quotes.
struct JsonText<'l> {
    raw: &'l [u8],
    is_escaped: bool,
}

impl<'l> Cursor<'l> {
    #[inline]
    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    #[inline]
    fn string(&mut self) -> Option<JsonText<'l>> {
        self.take(b'"')?;
        let (mut end, mut is_escaped) = (0, false);
        loop {
            end += memchr2(b'"', b'\\', self.rest.get(end..)?)?;
            if self.rest[end] == b'"' {
                break;
            }
            is_escaped = true;
            end += 2;
        }
        let raw = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(JsonText { raw, is_escaped })
    }

    /// A number, or whatever else ends at a comma or a brace.
    #[inline]
    fn number(&mut self) -> Option<&'l [u8]> {
        self.skip_space();
        let end = self.rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' '))?;
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!number.is_empty()).then_some(number)
    }

    fn header(&mut self, name: &[u8], names: &mut HeaderNames, record: &mut LogRecord) -> Option<()> {
        let value = self.string()?;
        if let Some(index) = names.index_of(name) {
            value.with_plain(|plain| record.push_header(index, plain));
        }
        Some(())
    }

    fn headers(&mut self, names: &mut HeaderNames, record: &mut LogRecord) -> Option<()> {
        self.take(b'{')?;
        self.skip_space();
        if let [b'}', rest @ ..] = self.rest {
            self.rest = rest;
            return Some(());
        }
        loop {
            let name = self.string()?.raw;
            self.take(b':')?;
            self.header(name, names, record)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    fn skip_value(&mut self, depth: usize) -> Option<()> {
        self.skip_space();
        let close = match self.rest.first()? {
            b'"' => return self.string().map(|_| ()),
            b'{' => b'}',
            b'[' => b']',
            _ => return self.number().map(|_| ()),
        };
        if depth >= DEPTH_MAX {
            return None;
        }
        self.rest = &self.rest[1..];
        self.skip_space();
        if self.rest.first() == Some(&close) {
            self.rest = &self.rest[1..];
            return Some(());
        }
        loop {
            if close == b'}' {
                self.string()?;
                self.take(b':')?;
            }
            self.skip_value(depth + 1)?;
            match self.next()? {
                b',' => {}
                byte if byte == close => return Some(()),
                _ => return None,
            }
        }
    }
}

impl JsonText<'_> {
    #[inline]
    fn store(&self, record: &mut LogRecord, field: TextField) {
        self.with_plain(|plain| record.set_text(field, plain));
    }

    /// Passes the text without its escapes to `then`.
    #[inline]
    fn with_plain(&self, then: impl FnOnce(&[u8])) {
        if self.is_escaped { then(&unescape(self.raw)) } else { then(self.raw) }
    }
}

/// The text without its escapes; of an unknown one the character stays.
#[cold]
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (plain, len) = match rest.get(1) {
            Some(b'n') => ('\n', 2),
            Some(b't') => ('\t', 2),
            Some(b'r') => ('\r', 2),
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'u') => read_code_point(rest),
            Some(byte) if byte.is_ascii() => (char::from(*byte), 2),
            _ => ('\\', 1),
        };
        out.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[len.min(rest.len())..];
    }
    out.extend_from_slice(rest);
    out
}

/// The character of `\uXXXX`, or of two of them, and the length of its escape.
fn read_code_point(rest: &[u8]) -> (char, usize) {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    };
    let Some(first) = unit(0) else { return (char::REPLACEMENT_CHARACTER, 2) };
    if let (0xd800..0xdc00, Some(second @ 0xdc00..0xe000)) = (first, unit(6)) {
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6)
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
        assert_eq!(record.verdict, Some(LoggedVerdict::Reject));
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
        assert_eq!(unescape(br"a\ud83d\ude00b\ud83d\n\/\q\"), "a😀b\u{fffd}\n/q\\".as_bytes());
    }
}
