//! Formats of nginx's `log_format`: texts with variables, compiled once.

use std::net::IpAddr;

use memchr::memmem;

use super::record::{HeaderNames, LogRecord, TextField};
use sluicegate_base::time_text as time;
use sluicegate_limit::LimitOutcome;

/// The format that nginx and Apache call `combined`.
pub const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                            \"$http_referer\" \"$http_user_agent\"";
/// Apache's `common`.
pub const COMMON: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";

/// A compiled format.
#[derive(Debug, Clone)]
pub struct LinePattern {
    /// Each variable with the text after it.
    fields: Vec<(LogVariable, Box<[u8]>)>,
    /// The text before the first variable.
    prefix: Box<[u8]>,
    /// Lines may go on after a space: well-known formats are often extended.
    allows_tail: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LogVariable {
    Ip,
    TimeLocal,
    TimeIso,
    Msec,
    RequestTime,
    Request,
    Text(TextField),
    /// The target without its query.
    Path,
    Status,
    LimitStatus,
    Header(Box<str>),
    Other,
}

impl LinePattern {
    /// Compiles a format as nginx writes it.
    ///
    /// # Errors
    /// A sentence about the missing variables, or about two variables with nothing between them.
    pub fn compile(format: &str) -> Result<LinePattern, String> {
        let mut pieces = format.split('$');
        let prefix = pieces.next().unwrap_or_default().as_bytes().into();
        let mut fields = Vec::new();
        for piece in pieces {
            let (name, text) = split_name(piece)
                .ok_or_else(|| format!("the format has a `$` without the name of a variable: `${piece}`"))?;
            fields.push((LogVariable::named(name), text.as_bytes().into()));
        }
        let inner = fields.len().saturating_sub(1);
        if fields[..inner].iter().any(|(_, after): &(_, Box<[u8]>)| after.is_empty()) {
            return Err(
                "two variables of the format have nothing between them, so nobody can tell them apart"
                    .to_owned(),
            );
        }
        let pattern = LinePattern { fields, prefix, allows_tail: false };
        let has = |wanted: &[LogVariable]| pattern.fields.iter().any(|(own, _)| wanted.contains(own));
        if !has(&[LogVariable::Msec, LogVariable::TimeIso, LogVariable::TimeLocal]) {
            return Err("the format has no time: it needs $msec, $time_iso8601 or $time_local".to_owned());
        }
        let target = LogVariable::Text(TextField::Target);
        if !has(&[LogVariable::Request, target, LogVariable::Path]) {
            return Err("the format has no request: it needs $request or $request_uri".to_owned());
        }
        Ok(pattern)
    }

    /// A well-known format, which lines may extend.
    pub fn well_known(format: &str) -> LinePattern {
        // Cannot fail: both well-known formats are valid, which a test compiles.
        let pattern = LinePattern::compile(format).expect("a well-known format is valid");
        LinePattern { allows_tail: true, ..pattern }
    }

    /// Fills `record` from a line. `None`: the line has another format; the record is then undefined.
    pub fn parse_line(&self, line: &[u8], names: &mut HeaderNames, record: &mut LogRecord) -> Option<()> {
        let mut rest = line.strip_prefix(&*self.prefix)?;
        let mut moment = LineTime::default();
        for (index, (variable, after)) in self.fields.iter().enumerate() {
            let is_last = index + 1 == self.fields.len();
            let end = match after.is_empty() {
                true => rest.len(),
                false => find_literal(rest, after)?,
            };
            let value = &rest[..end];
            rest = &rest[end + after.len()..];
            if is_last && !rest.is_empty() && !(self.allows_tail && rest[0] == b' ') {
                return None;
            }
            store(variable, value, names, record, &mut moment)?;
        }
        moment.finish(record)
    }
}

/// The times of a line, until all are known.
#[derive(Default)]
struct LineTime {
    /// `$msec` is preferred to the others.
    exact: Option<u64>,
    written: Option<(u64, bool)>,
}

impl LineTime {
    /// A line is written when its request ends.
    fn finish(self, record: &mut LogRecord) -> Option<()> {
        let (end, is_exact) = self.exact.map(|ns| (ns, true)).or(self.written)?;
        record.is_whole_second = !is_exact;
        record.arrival_ns = match record.duration_ns {
            Some(duration) if is_exact => end.checked_sub(duration)?,
            // Whole seconds of a long request are put right as far as they tell.
            Some(duration) => end.checked_sub(duration - duration % time::SECOND)?,
            None => end,
        };
        Some(())
    }
}

fn store(
    variable: &LogVariable,
    value: &[u8],
    names: &mut HeaderNames,
    record: &mut LogRecord,
    moment: &mut LineTime,
) -> Option<()> {
    let is_set = value != b"-" && !value.is_empty();
    match variable {
        LogVariable::Other => {}
        LogVariable::Ip => {
            record.ip = str::from_utf8(value).ok().and_then(|text| text.parse::<IpAddr>().ok());
        }
        LogVariable::TimeLocal => moment.written = Some(time::parse_common(value)?),
        LogVariable::TimeIso => moment.written = Some(time::parse_rfc3339(value)?),
        LogVariable::Msec => moment.exact = Some(time::parse_seconds(value)?),
        LogVariable::RequestTime => record.duration_ns = Some(time::parse_seconds(value)?),
        LogVariable::Status => record.status = u16::try_from(time::digits(value)?).ok(),
        LogVariable::LimitStatus => record.verdict = read_limit_status(value),
        LogVariable::Request => store_request(value, record),
        LogVariable::Path if record.text(TextField::Target).is_some() => {}
        LogVariable::Path => with_plain(value, |plain| record.set_text(TextField::Target, plain)),
        LogVariable::Text(field) if is_set => with_plain(value, |plain| record.set_text(*field, plain)),
        LogVariable::Header(name) if is_set => {
            if let Some(index) = names.index_of(name.as_bytes()) {
                with_plain(value, |plain| record.push_header(index, plain));
            }
        }
        LogVariable::Text(_) | LogVariable::Header(_) => {}
    }
    Some(())
}

/// `GET /path HTTP/1.1`; anything else was no request that could be judged, and leaves the record without a target.
pub(super) fn store_request(value: &[u8], record: &mut LogRecord) {
    with_plain(value, |plain| {
        let mut words = plain.splitn(2, |byte| *byte == b' ');
        let (Some(method), Some(rest)) = (words.next(), words.next()) else { return };
        let end = rest.iter().rposition(|byte| *byte == b' ').unwrap_or(rest.len());
        if !method.is_empty() && end > 0 {
            record.set_text(TextField::Method, method);
            record.set_text(TextField::Target, &rest[..end]);
        }
    });
}

/// The values of nginx's `$limit_req_status`.
fn read_limit_status(value: &[u8]) -> Option<LimitOutcome> {
    match value {
        b"PASSED" => Some(LimitOutcome::Admit),
        b"DELAYED" | b"DELAYED_DRY_RUN" => Some(LimitOutcome::Wait),
        b"REJECTED" | b"REJECTED_DRY_RUN" => Some(LimitOutcome::Reject),
        _ => None,
    }
}

/// The start of `literal` in `rest`. A quote behind a backslash does not end a value.
fn find_literal(rest: &[u8], literal: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from
            + match literal {
                [byte] => memchr::memchr(*byte, rest.get(from..)?)?,
                _ => memmem::find(rest.get(from..)?, literal)?,
            };
        let backslashes = rest[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        if literal[0] != b'"' || backslashes % 2 == 0 {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Passes the value without nginx's `\xHH` and Apache's `\"` to `then`.
fn with_plain(value: &[u8], then: impl FnOnce(&[u8])) {
    if memchr::memchr(b'\\', value).is_none() {
        return then(value);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let hex = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        match after {
            [b'x', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                out.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            [quote @ (b'"' | b'\\' | b'/'), after @ ..] => {
                out.push(*quote);
                rest = after;
            }
            _ => out.push(b'\\'),
        }
    }
    then(&out);
}

/// The name of a variable, with or without braces, and the text after it.
fn split_name(piece: &str) -> Option<(&str, &str)> {
    if let Some(braced) = piece.strip_prefix('{') {
        return braced.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = piece.find(|c| !is_name(c)).unwrap_or(piece.len());
    (end > 0).then(|| piece.split_at(end))
}

impl LogVariable {
    fn named(name: &str) -> LogVariable {
        match name {
            "remote_addr" => LogVariable::Ip,
            "time_local" => LogVariable::TimeLocal,
            "time_iso8601" => LogVariable::TimeIso,
            "msec" => LogVariable::Msec,
            "request_time" => LogVariable::RequestTime,
            "request" => LogVariable::Request,
            "request_method" => LogVariable::Text(TextField::Method),
            "request_uri" => LogVariable::Text(TextField::Target),
            "uri" => LogVariable::Path,
            "args" | "query_string" => LogVariable::Text(TextField::Query),
            "host" | "http_host" => LogVariable::Text(TextField::Host),
            "scheme" => LogVariable::Text(TextField::Scheme),
            "status" => LogVariable::Status,
            "limit_req_status" => LogVariable::LimitStatus,
            _ => match name.strip_prefix("http_") {
                Some(header) => LogVariable::Header(header.replace('_', "-").into()),
                None => LogVariable::Other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: &str, line: &[u8]) -> Option<LogRecord> {
        let pattern = match format {
            COMBINED | COMMON => LinePattern::well_known(format),
            other => LinePattern::compile(other).unwrap(),
        };
        let mut record = LogRecord::default();
        pattern.parse_line(line, &mut HeaderNames::default(), &mut record)?;
        Some(record)
    }

    #[test]
    fn a_wrong_format_says_what_it_lacks() {
        for (format, why) in [
            ("", "no time"),
            ("$status", "no time"),
            ("$msec", "no request"),
            ("$msec$request", "nothing between"),
            ("$msec $ $request", "without the name"),
            ("$msec ${} $request", "without the name"),
        ] {
            let error = LinePattern::compile(format).unwrap_err();
            assert!(error.contains(why), "{format}: {error}");
        }
    }

    #[test]
    fn lines_of_another_format_are_not_read() {
        for line in [
            "",
            "x",
            "192.0.2.1 - - [yesterday] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"",
            "192.0.2.1 - - [20/Nov/2025:20:22:11 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"x",
            "192.0.2.1 - - [20/Nov/2025:20:22:11 +0000] \"GET / HTTP/1.1\" twohundred 5 \"-\" \"-\"",
        ] {
            assert!(parse(COMBINED, line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn combined_knows_the_second_alone() {
        let line = [
            &br#"192.0.2.1 - bob [20/Nov/2025:20:22:11 +0000] "GET /a?b=1 HTTP/1.1" 200 5 "-" "#[..],
            br#""curl \x22x\x22 \" y" "tail""#,
        ]
        .concat();
        let record = parse(COMBINED, &line).unwrap();
        assert_eq!(record.arrival_ns, 1_763_670_131_000_000_000);
        assert!(record.is_whole_second);
        assert_eq!(record.text(TextField::Method), Some(&b"GET"[..]));
        assert_eq!(record.text(TextField::Target), Some(&b"/a?b=1"[..]));
        assert_eq!(record.headers().map(|(_, value)| value).collect::<Vec<_>>(), [&b"curl \"x\" \" y"[..]]);
    }

    #[test]
    fn an_exact_format_tells_the_arrival() {
        let format =
            "$msec $request_time $remote_addr \"$request\" $status ${http_x_account} $limit_req_status";
        let record = parse(
            format,
            b"1763670131.545 0.500 2001:db8::1 \"POST /x y HTTP/2.0\" 503 acme REJECTED_DRY_RUN",
        )
        .unwrap();
        assert_eq!((record.arrival_ns, record.is_whole_second), (1_763_670_131_045_000_000, false));
        assert_eq!(record.duration_ns, Some(500_000_000));
        assert_eq!(record.text(TextField::Target), Some(&b"/x y"[..]));
        assert_eq!(record.verdict, Some(LimitOutcome::Reject));
        assert_eq!(record.status, Some(503));
    }

    #[test]
    fn what_was_no_request_has_no_target() {
        let line = br#"192.0.2.1 - - [20/Nov/2025:20:22:11 +0000] "\x16\x03\x01" 400 5 "-" "-""#;
        assert_eq!(parse(COMBINED, line).unwrap().text(TextField::Target), None);
    }
}
