//! Reads the time for which an upstream wants no requests from the head of a response.
//!
//! `Retry-After` (RFC 9110, section 10.2.3) goes before the fields about rates, as their draft asks. Of those, the
//! forms of all drafts are read (draft-ietf-httpapi-ratelimit-headers), and `X-RateLimit-*`, where a reset can only be
//! seconds or only a time of day. Whatever does not parse is not there; the work is bounded for any value.

use std::time::UNIX_EPOCH;

use http::header::{AsHeaderName, DATE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

const SECOND_NS: u64 = 1_000_000_000;
/// The pause of a refusal that names no time. Clients of many kinds begin with about a second, and the pace after
/// repeated pauses finds the rest.
const UNTIMED_NS: u64 = SECOND_NS;

/// Milliseconds that OpenAI and Azure send beside `Retry-After`, which has no fractions.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const REMAINING_AND_RESET: (HeaderName, HeaderName) =
    (HeaderName::from_static("ratelimit-remaining"), HeaderName::from_static("ratelimit-reset"));
const X_REMAINING_AND_RESET: (HeaderName, HeaderName) =
    (HeaderName::from_static("x-ratelimit-remaining"), HeaderName::from_static("x-ratelimit-reset"));

/// Lines of one field, and bytes of a line, that are read.
const LINES_MAX: usize = 8;
const LINE_MAX: usize = 1024;

/// A reset below this is seconds (11 days) …
const SECONDS_BELOW: u64 = 1_000_000;
/// … and one of these is a time of day, in seconds since 1970.
const UNIX_SECONDS: std::ops::Range<u64> = 1_000_000_000..10_000_000_000;

/// The time of a response that refuses, in nanoseconds and at least 1; `unix_s` is the time of day.
pub(super) fn read_refusal(headers: &HeaderMap, unix_s: u64) -> u64 {
    let time = read_retry_after(headers, unix_s).or_else(|| read_exhausted(headers, unix_s));
    time.unwrap_or(UNTIMED_NS)
}

/// The time until there is something left again, if a response says that there is nothing left now.
pub(super) fn read_exhausted(headers: &HeaderMap, unix_s: u64) -> Option<u64> {
    let seconds = read_ratelimit(headers)
        .or_else(|| read_pair(headers, &REMAINING_AND_RESET).filter(|reset| *reset > 0))
        .or_else(|| match read_pair(headers, &X_REMAINING_AND_RESET)? {
            reset if reset < SECONDS_BELOW => Some(reset),
            reset if UNIX_SECONDS.contains(&reset) => reset.checked_sub(unix_s),
            _ => None,
        });
    seconds.filter(|seconds| *seconds > 0).map(|seconds| seconds.saturating_mul(SECOND_NS))
}

/// True if a head may hold anything that [`read_exhausted`] reads.
pub(super) fn mentions_rates(status: StatusCode, headers: &HeaderMap) -> bool {
    let has = |name: &HeaderName| headers.contains_key(name);
    status != StatusCode::SWITCHING_PROTOCOLS
        && (has(&RATELIMIT) || has(&REMAINING_AND_RESET.0) || has(&X_REMAINING_AND_RESET.0))
}

/// The longest valid time; none that is over, because a refusal holds for the next request as well.
fn read_retry_after(headers: &HeaderMap, unix_s: u64) -> Option<u64> {
    let ms = read_lines(headers, RETRY_AFTER_MS).filter_map(parse_number).max();
    if let Some(ms) = ms.filter(|ms| *ms > 0) {
        return Some(ms.saturating_mul(1_000_000));
    }
    // By the clock of the upstream, if it tells it.
    let today = || read_lines(headers, DATE).find_map(parse_http_date).unwrap_or(unix_s);
    let seconds = |text| {
        parse_number(text).or_else(|| parse_http_date(text).map(|until| until.saturating_sub(today())))
    };
    let longest = read_lines(headers, RETRY_AFTER).filter_map(seconds).max();
    longest.filter(|seconds| *seconds > 0).map(|seconds| seconds.saturating_mul(SECOND_NS))
}

/// `RateLimit` of the newer drafts, `"burst";r=0;t=5, "daily";r=70`, or of draft 07,
/// `limit=10, remaining=0, reset=5`. Of several policies with nothing left, the longest counts.
fn read_ratelimit(headers: &HeaderMap) -> Option<u64> {
    let (mut longest, mut remaining, mut reset) = (None, None, None);
    for line in read_lines(headers, RATELIMIT) {
        for item in split_unquoted(line, ',') {
            let mut parts = split_unquoted(item, ';').map(str::trim);
            match parts.next().and_then(|first| first.split_once('=')) {
                Some(("remaining", value)) => remaining = parse_number(value),
                Some(("reset", value)) => reset = parse_number(value),
                Some(_) => {}
                None => {
                    let (mut left, mut time) = (None, None);
                    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                        match name {
                            "r" => left = parse_number(value),
                            "t" => time = parse_number(value),
                            _ => {}
                        }
                    }
                    longest = longest.max(time.filter(|_| left == Some(0)));
                }
            }
        }
    }
    longest.max(reset.filter(|_| remaining == Some(0)))
}

/// The reset of a pair of fields, if nothing remains. A field that is given twice is ambiguous.
fn read_pair(headers: &HeaderMap, (remaining, reset): &(HeaderName, HeaderName)) -> Option<u64> {
    let only = |name: &HeaderName| {
        let mut lines = headers.get_all(name).iter();
        lines.next().filter(|_| lines.next().is_none()).and_then(read_line).and_then(parse_number)
    };
    only(reset).filter(|_| only(remaining) == Some(0))
}

fn read_lines(headers: &HeaderMap, name: impl AsHeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).iter().take(LINES_MAX).filter_map(read_line)
}

fn read_line(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().filter(|text| text.len() <= LINE_MAX).map(str::trim)
}

/// The parts between separators outside quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |character: char| {
        if is_escaped {
            is_escaped = false;
        } else if character == '"' {
            is_quoted = !is_quoted;
        } else if is_quoted {
            is_escaped = character == '\\';
        } else {
            return character == separator;
        }
        false
    })
}

/// Seconds since 1970 of a date; `None` also for one before that.
fn parse_http_date(text: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// A number of digits alone; one that is too large is the greatest.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: u64 = 1_800_000_000;

    fn head(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// Milliseconds of a refusal with these lines.
    fn refusal_ms(lines: &[(&'static str, &str)]) -> u64 {
        read_refusal(&head(lines), TODAY) / 1_000_000
    }

    fn exhausted_s(lines: &[(&'static str, &str)]) -> Option<u64> {
        let read = read_exhausted(&head(lines), TODAY);
        assert!(read.is_none() || mentions_rates(StatusCode::OK, &head(lines)));
        read.map(|ns| ns / SECOND_NS)
    }

    #[test]
    fn a_refusal_names_its_time() {
        assert_eq!(refusal_ms(&[("retry-after", "7")]), 7_000);
        assert_eq!(refusal_ms(&[("retry-after", " 7 ")]), 7_000);
        assert_eq!(refusal_ms(&[("retry-after", "1"), ("retry-after-ms", "20")]), 20);
        assert_eq!(refusal_ms(&[("retry-after", "2"), ("ratelimit", "\"a\";r=0;t=9")]), 2_000);
        assert_eq!(refusal_ms(&[("ratelimit", "\"a\";r=0;t=9")]), 9_000);
        // 1,800,000,030 by the clock of the gateway, and by that of an upstream which is 20 s behind.
        let date = "Fri, 15 Jan 2027 08:00:30 GMT";
        for form in [date, "Friday, 15-Jan-27 08:00:30 GMT", "Fri Jan 15 08:00:30 2027"] {
            assert_eq!(refusal_ms(&[("retry-after", form)]), 30_000, "{form}");
        }
        assert_eq!(refusal_ms(&[("retry-after", date), ("date", "Fri, 15 Jan 2027 07:59:40 GMT")]), 50_000);
    }

    #[test]
    fn a_refusal_without_a_usable_time_lasts_a_second() {
        for text in [
            "",
            "-5",
            "+5",
            "1.5",
            "soon",
            "0",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "2027-01-15T08:00:30Z",
            "5 s",
            "5, 6",
            "٥",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            assert_eq!(read_refusal(&headers, TODAY), UNTIMED_NS, "{text}");
        }
        assert_eq!(refusal_ms(&[]), 1_000);
        assert_eq!(refusal_ms(&[("retry-after-ms", "0"), ("retry-after", "3")]), 3_000);
        assert_eq!(refusal_ms(&[("ratelimit", "\"a\";r=0")]), 1_000);
    }

    #[test]
    fn absurd_times_are_long_but_no_error() {
        for text in ["100000000000000000000", "18446744073709551615", &"9".repeat(1_000)] {
            assert_eq!(read_refusal(&head(&[("retry-after", text)]), TODAY), u64::MAX, "{text}");
        }
        assert_eq!(refusal_ms(&[("retry-after", &"9".repeat(2_000))]), 1_000, "too long a line");
        let far = read_refusal(&head(&[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]), TODAY);
        assert_eq!(far, u64::MAX);
        assert_eq!(refusal_ms(&[("retry-after", "2"), ("retry-after", "x"), ("retry-after", "9")]), 9_000);
        let many: Vec<_> = (0..100).map(|_| ("retry-after", "4")).collect();
        assert_eq!(refusal_ms(&many), 4_000);
    }

    #[test]
    fn fields_about_rates_say_when_nothing_is_left() {
        for (name, value, seconds) in [
            ("ratelimit", "\"default\";r=0;t=30", Some(30)),
            ("ratelimit", "\"default\";r=50;t=30", None),
            ("ratelimit", "\"burst\";r=0;t=5, \"day\";r=0;t=90, \"week\";r=9;t=900", Some(90)),
            ("ratelimit", "\"a;r=0;t=7\";r=1;t=7", None),
            ("ratelimit", "\"a\\\",b\";t=7;r=0;pk=:YWI=:", Some(7)),
            ("ratelimit", "default; r=0; t=4", Some(4)),
            ("ratelimit", "limit=10, remaining=0, reset=5", Some(5)),
            ("ratelimit", "limit=10, remaining=1, reset=5", None),
            ("ratelimit", "\"a\";r=0;t=0", None),
            ("ratelimit", "\"a\";r=0", None),
            ("ratelimit", "\"a\";r=-1;t=5", None),
            ("ratelimit", "\"a\";r=0;t=-5", None),
            ("ratelimit", "\"a\";r=00;t=1", Some(1)),
            ("ratelimit", "\"a;r=0;t=5", None),
            ("ratelimit", ";;;===,,,", None),
            ("ratelimit", "", None),
        ] {
            assert_eq!(exhausted_s(&[(name, value)]), seconds, "{value}");
        }
        let older =
            |remaining, reset| exhausted_s(&[("ratelimit-remaining", remaining), ("ratelimit-reset", reset)]);
        assert_eq!((older("0", "50"), older("1", "50"), older("0", "x")), (Some(50), None, None));
        assert_eq!(exhausted_s(&[("ratelimit-remaining", "0")]), None);
    }

    #[test]
    fn an_ambiguous_reset_is_not_obeyed() {
        let x = |reset| exhausted_s(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)]);
        assert_eq!((x("30"), x("1800000030"), x("1799999999")), (Some(30), Some(30), None));
        for reset in ["999999999", "1000000", "1800000030000", "6m0s", "1.5", "2027-01-15T08:00:30Z"] {
            assert_eq!(x(reset), None, "{reset}");
        }
        let twice =
            [("x-ratelimit-remaining", "0"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")];
        assert_eq!(exhausted_s(&twice), None);
    }

    #[test]
    fn hostile_fields_cost_little() {
        let quotes = "\"".repeat(1_000);
        let commas = ",".repeat(1_000);
        for text in [&quotes, &commas, &"\\".repeat(1_000), &"r=0;t=1;".repeat(120)] {
            let many: Vec<_> = (0..50).map(|_| ("ratelimit", text.as_str())).collect();
            let _ = exhausted_s(&many);
        }
    }
}
