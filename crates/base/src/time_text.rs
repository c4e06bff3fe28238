//! Reads the times that logs contain, without allocations.

/// Nanoseconds since 1970, and whether there were decimals.
pub type LogTime = (u64, bool);

/// `2026-11-20T20:22:11.045123Z`, with any number of decimals and `Z` or an offset.
pub fn parse_rfc3339(text: &[u8]) -> Option<LogTime> {
    let (date, time) = (text.get(..10)?, text.get(11..)?);
    if !matches!(text.get(10)?, b'T' | b't' | b' ') || date[4] != b'-' || date[7] != b'-' {
        return None;
    }
    let days = days_since_1970(digits(&date[..4])?, digits(&date[5..7])?, digits(&date[8..])?)?;
    parse_moment(days, time, |zone| if matches!(zone, b"Z" | b"z") { Some(0) } else { parse_offset(zone) })
}

/// `06/Feb/2009:12:14:14.655` or `06/Feb/2009:12:14:14 +0000`, as nginx and HAProxy write it. Without an
/// offset it counts as UTC.
pub fn parse_common(text: &[u8]) -> Option<LogTime> {
    let (date, time) = (text.get(..11)?, text.get(12..)?);
    if date[2] != b'/' || date[6] != b'/' || text[11] != b':' {
        return None;
    }
    let month = MONTHS.iter().position(|month| date[3..6].eq_ignore_ascii_case(*month))? as u64 + 1;
    let days = days_since_1970(digits(&date[7..])?, month, digits(&date[..2])?)?;
    parse_moment(days, time, |zone| match zone {
        [] => Some(0),
        [b' ', offset @ ..] => parse_offset(offset),
        _ => None,
    })
}

/// `1234.567`, seconds with decimals, as nanoseconds.
pub fn parse_seconds(text: &[u8]) -> Option<u64> {
    let end = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let whole = digits(&text[..end])?.checked_mul(SECOND)?;
    let (fraction, rest) = parse_fraction(&text[end..])?;
    if !rest.is_empty() {
        return None;
    }
    whole.checked_add(fraction.unwrap_or(0))
}

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// A number of at most 18 digits.
pub fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
}

/// `hh:mm:ss` as seconds, and the rest of the line.
fn parse_clock(text: &[u8]) -> Option<(u64, &[u8])> {
    let (clock, rest) = text.split_at_checked(8)?;
    if clock[2] != b':' || clock[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (digits(&clock[..2])?, digits(&clock[3..5])?, digits(&clock[6..])?);
    // 60 is a leap second.
    (hour < 24 && minute < 60 && second <= 60).then_some((hour * 3_600 + minute * 60 + second, rest))
}

/// `.045` as nanoseconds, if there is one, and the rest; decimals beyond nanoseconds are cut.
fn parse_fraction(text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let [b'.', decimals @ ..] = text else { return Some((None, text)) };
    let len = decimals.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(decimals.len());
    let kept = len.min(9);
    let value = digits(&decimals[..kept])? * 10_u64.pow(9 - kept as u32);
    Some((Some(value), &decimals[len..]))
}

/// `+0200` or `+02:00`, in seconds.
fn parse_offset(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hour, minute) = match rest.len() {
        4 => (digits(&rest[..2])?, digits(&rest[2..])?),
        5 if rest[2] == b':' => (digits(&rest[..2])?, digits(&rest[3..])?),
        _ => return None,
    };
    Some(sign * (hour * 3_600 + minute * 60) as i64)
}

/// Days from 1970 to a date of the Gregorian calendar (H. Hinnant, "chrono-compatible low-level date algorithms").
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<i64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year as i64 - i64::from(month <= 2);
    let (era, month) = (year.div_euclid(400), month as i64);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day as i64 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// A time of a day, with the offset in seconds that `read_zone` finds behind it.
fn parse_moment(days: i64, time: &[u8], read_zone: fn(&[u8]) -> Option<i64>) -> Option<LogTime> {
    let (second, rest) = parse_clock(time)?;
    let (fraction, zone) = parse_fraction(rest)?;
    let whole = u64::try_from(days * 86_400 + second as i64 - read_zone(zone)?).ok()?;
    Some((whole.checked_mul(SECOND)?.checked_add(fraction.unwrap_or(0))?, fraction.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_forms_are_the_same_moment() {
        let at = 1_763_670_131 * SECOND;
        let exact = |ns| Some((at + ns, true));
        assert_eq!(parse_rfc3339(b"2025-11-20T20:22:11.045Z"), exact(45_000_000));
        assert_eq!(parse_rfc3339(b"2025-11-20T20:22:11.045123Z"), exact(45_123_000));
        assert_eq!(parse_rfc3339(b"2025-11-20T22:22:11.5+02:00"), exact(500_000_000));
        assert_eq!(parse_rfc3339(b"2025-11-20T20:22:11Z"), Some((at, false)));
        assert_eq!(parse_common(b"20/Nov/2025:20:22:11 +0000"), Some((at, false)));
        assert_eq!(parse_common(b"20/Nov/2025:15:22:11 -0500"), Some((at, false)));
        assert_eq!(parse_common(b"20/Nov/2025:20:22:11.655"), exact(655_000_000));
        assert_eq!(parse_seconds(b"1763670131.045"), Some(at + 45_000_000));
        assert_eq!(parse_seconds(b"0.000"), Some(0));
        assert_eq!(parse_seconds(b"7"), Some(7 * SECOND));
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (text, second) in [
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2024-03-01", 1_709_251_200),
            ("9999-12-31", 253_402_214_400),
        ] {
            let ns = parse_rfc3339(format!("{text}T00:00:00Z").as_bytes());
            assert_eq!(
                ns.map(|(ns, _)| ns / SECOND),
                u64::checked_mul(second, SECOND).map(|_| second),
                "{text}"
            );
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "-",
            "2025-11-20",
            "2025-13-20T20:22:11Z",
            "2025-11-20T25:22:11Z",
            "2025-11-20T20:22:11",
            "2025-11-20T20:22:11.Z",
            "20/Foo/2025:20:22:11 +0000",
            "20/Nov/2025:20:22:11 0000",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(parse_rfc3339(text.as_bytes()), None, "{text}");
            assert_eq!(parse_common(text.as_bytes()), None, "{text}");
        }
        for text in ["", "-", "1.", "1.2.3", "1e3", "12345678901234567890", "99999999999999999.0"] {
            assert_eq!(parse_seconds(text.as_bytes()), None, "{text}");
        }
    }
}
