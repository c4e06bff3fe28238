//! Reads HAProxy's HTTP log (`option httplog`), with or without the prefix of syslog.

use std::net::IpAddr;

use super::line_pattern;
use super::record::LogRecord;
use sluicegate_base::time_text::{self as time, LogTime};

/// Fills `record` from a line. `None`: the line has another format; the record is then undefined.
pub(super) fn parse_line(line: &[u8], record: &mut LogRecord) -> Option<()> {
    let (before, (arrival_ns, is_exact), after) = find_date(line)?;
    record.arrival_ns = arrival_ns;
    record.is_whole_second = !is_exact;
    record.ip = parse_client(before);
    // frontend, backend/server, timers, status, bytes
    let mut words = after.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let timers = words.nth(2)?;
    let status = words.next()?;
    record.status = u16::try_from(time::digits(status)?).ok();
    let mut timers = timers.split(|byte| *byte == b'/');
    let milliseconds = |text: &[u8]| time::digits(text).map(|ms| ms.saturating_mul(1_000_000));
    let (_, waited) = (timers.next()?, timers.next()?);
    let total = timers.next_back()?;
    record.duration_ns = milliseconds(total.strip_prefix(b"+").unwrap_or(total));
    // -1 where the request never came so far.
    record.waited_ns = milliseconds(waited).unwrap_or(0);
    let start = memchr::memchr(b'"', after)?;
    let request = &after[start + 1..];
    let end = memchr::memrchr(b'"', request)?;
    line_pattern::store_request(&request[..end], record);
    Some(())
}

/// The first date in brackets, and the text around it.
fn find_date(line: &[u8]) -> Option<(&[u8], LogTime, &[u8])> {
    memchr::memchr_iter(b'[', line).find_map(|start| {
        let inner = &line[start + 1..];
        let end = memchr::memchr(b']', inner)?;
        Some((&line[..start], time::parse_common(&inner[..end])?, &inner[end + 1..]))
    })
}

/// The address in `prefix 192.0.2.1:33317 `.
fn parse_client(before: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(before).ok()?.trim_end();
    let (address, _port) = text.rsplit(' ').next()?.rsplit_once(':')?;
    address.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::record::TextField;
    use super::*;

    fn parse(line: &str) -> Option<LogRecord> {
        let mut record = LogRecord::default();
        parse_line(line.as_bytes(), &mut record)?;
        Some(record)
    }

    #[test]
    fn other_lines_are_not_read() {
        for line in [
            "",
            "[",
            "x [06/Feb/2009:12:14:14.655]",
            "a:1 [06/Feb/2009:12:14:14.655] f b/s 1/2/3/4/5 200 7",
            "a:1 [06/Feb/2009:12:14:14.655] f b/s 1/2/3/4/5 x 7 \"GET / HTTP/1.1\"",
            "haproxy[1]: Proxy http-in started.",
        ] {
            assert!(parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_line_is_read_with_and_without_the_prefix_of_syslog() {
        let line = "2001:db8::1:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/30/30/69/+109 200 2750 - - \
                    ---- 1/1/1/1/0 0/0 {1wt.eu} {} \"GET /index.html?a=1 HTTP/1.1\"";
        for prefix in ["", "Feb  6 12:14:14 localhost haproxy[14389]: "] {
            let record = parse(&format!("{prefix}{line}")).unwrap();
            assert_eq!((record.arrival_ns, record.is_whole_second), (1_233_922_454_655_000_000, false));
            assert_eq!(record.ip, Some("2001:db8::1".parse().unwrap()));
            assert_eq!((record.duration_ns, record.waited_ns), (Some(109_000_000), 30_000_000));
            assert_eq!(record.status, Some(200));
            assert_eq!(record.text(TextField::Target), Some(&b"/index.html?a=1"[..]));
        }
    }

    #[test]
    fn a_bad_request_has_no_target() {
        let line = "192.0.2.1:5 [06/Feb/2009:12:14:14.655] in in/<NOSRV> -1/-1/-1/-1/0 400 0 - - PR-- 1/1/0/0/0 0/0 \
                    \"<BADREQ>\"";
        assert_eq!(parse(line).unwrap().text(TextField::Target), None);
    }
}
