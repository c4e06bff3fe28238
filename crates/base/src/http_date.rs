//! Parses dates of HTTP (RFC 9110, section 5.6.7): the one form in use, and the two obsolete ones.

use crate::time_text::{self, MONTHS};

/// Seconds since 1970 of a date; `None` also for one before that.
pub fn parse_http_date(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(' ')?;
    let words: Vec<&str> = rest.split(' ').filter(|word| !word.is_empty()).take(6).collect();
    let (day, month, year, time) = match words[..] {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [day, month, year, time, "GMT"] if year.len() == 4 => (day, month, parse_digits(year)?, time),
        // Sun Nov  6 08:49:37 1994
        [month, day, time, year] if year.len() == 4 => (day, month, parse_digits(year)?, time),
        // Sunday, 06-Nov-94 08:49:37 GMT
        [date, time, "GMT"] => {
            let mut parts = date.splitn(3, '-');
            let (day, month, year) = (parts.next()?, parts.next()?, parse_digits(parts.next()?)?);
            // Such a date lies at most 50 years ahead; no server writes one that old.
            (day, month, if year < 70 { year + 2_000 } else { year + 1_900 }, time)
        }
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| *name == month.as_bytes())? as u64 + 1;
    let days = time_text::days_since_1970(year, month, parse_digits(day)?)?;
    let mut parts = time.splitn(3, ':');
    let (hours, minutes) = (parse_digits(parts.next()?)?, parse_digits(parts.next()?)?);
    let seconds = parse_digits(parts.next()?)?;
    let is_time = hours < 24 && minutes < 60 && seconds <= 60;
    is_time.then_some(days as u64 * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

fn parse_digits(text: &str) -> Option<u64> {
    time_text::digits(text.as_bytes()).filter(|_| text.len() <= 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_of_a_date() {
        for date in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse_http_date(date), Some(784_111_777), "{date}");
        }
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Thu, 31 Dec 2026 23:59:59 GMT", 1_798_761_599),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ] {
            assert_eq!(parse_http_date(date), Some(seconds), "{date}");
        }
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            " ",
            "120",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 06 Nov 99999 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 8:49 GMT",
            "Sun, 06 Nov 1994 08:+9:37 GMT",
            "Sun, -6 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov 08:49:37 GMT",
            "2026-11-20T20:22:11Z",
        ] {
            assert_eq!(parse_http_date(text), None, "{text}");
        }
    }
}
