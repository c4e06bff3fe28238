//! Finds the probable meaning of a mistyped rate, e.g. `10r/s` or `10 per minute`, to show the right spelling.

use super::fraction::reduce_fraction;

/// The rate as the file writes it, if the meaning of `text` is clear.
pub fn suggest_rate(text: &str) -> Option<String> {
    let lower = text.trim().to_ascii_lowercase();
    // `zone=one:10m rate=10r/s` of nginx.
    let lower = lower.split_once("rate=").map_or(lower.as_str(), |(_, rate)| rate).to_owned();
    // A rate is short; anything longer is something else.
    if lower.len() > 40 {
        return None;
    }
    let swapped = lower.split_once('/').filter(|(unit, count)| {
        find_unit(unit.trim()).is_some() && count.trim().bytes().all(|byte| byte.is_ascii_digit())
    });
    let lower = swapped.map_or(lower.clone(), |(unit, count)| format!("{}/{}", count.trim(), unit.trim()));
    let (units, decimals, rest) = split_count(&lower)?;
    let (thousands, rest) = match rest.strip_prefix('k') {
        Some(rest) => (1000, rest),
        None => (1, rest),
    };
    let period = parse_period(rest.trim())?;
    let units = units.checked_mul(thousands)?;
    // 0.5/s is 5 in 10 periods, or 1/2s.
    let times = 10_u64.checked_pow(decimals)?;
    let (units, times) = reduce_fraction(units, times);
    let count = times.checked_mul(period.0)?;
    let written = match count {
        1 => format!("{units}/{}", period.1),
        _ => format!("{units}/{count}{}", period.1),
    };
    Some(written)
}

/// The digits at the beginning, those after its point, and the rest.
fn split_count(text: &str) -> Option<(u64, u32, &str)> {
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | ','))).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let digits = digits.replace(['_', ','], "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits.as_str(), ""));
    let fraction = fraction.trim_end_matches('0');
    if whole.len() > 15 || fraction.len() > 3 {
        return None;
    }
    let number = format!("{whole}{fraction}").parse().ok().filter(|number| *number > 0)?;
    Some((number, fraction.len() as u32, rest.trim_start()))
}

/// The count and the unit of a period: `/s`, `r/min`, `rps`, `requests per 5 minutes`.
fn parse_period(text: &str) -> Option<(u64, &'static str)> {
    let rest = ["requests", "request", "reqs", "req", "r"]
        .iter()
        .find_map(|word| text.strip_prefix(word).filter(|rest| !rest.starts_with('e')))
        .unwrap_or(text)
        .trim_start();
    let rest = rest
        .strip_prefix('/')
        .or_else(|| rest.strip_prefix("per"))
        .or_else(|| rest.strip_prefix('p'))?
        .trim();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    let (count, unit) = rest.split_at(end);
    let unit = find_unit(unit.trim())?;
    match count.split_once('.') {
        None if count.is_empty() => Some((1, unit)),
        None => Some((count.parse().ok()?, unit)),
        Some((whole, fraction)) if unit == "s" && fraction.len() <= 3 => {
            Some((format!("{whole}{fraction:0<3}").parse().ok()?, "ms"))
        }
        Some(_) => None,
    }
}

/// The unit that a word in lower case means.
pub(super) fn find_unit(text: &str) -> Option<&'static str> {
    Some(match text {
        "ms" | "millisecond" | "milliseconds" | "msec" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "h" | "hr" | "hour" | "hours" => "h",
        "d" | "day" | "days" => "d",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meaning_of_other_spellings() {
        for (text, rate) in [
            ("10r/s", "10/s"),
            ("10/sec", "10/s"),
            ("10/second", "10/s"),
            ("10/min", "10/m"),
            ("10rps", "10/s"),
            ("10 rpm", "10/m"),
            ("10 per second", "10/s"),
            ("100 requests per 5 minutes", "100/5m"),
            ("1k/s", "1000/s"),
            ("1_000/s", "1000/s"),
            ("0.5/s", "1/2s"),
            ("0.1/s", "1/10s"),
            ("10/1.5s", "10/1500ms"),
            ("s/10", "10/s"),
            ("10/S", "10/s"),
            ("zone=one:10m rate=10r/s", "10/s"),
        ] {
            assert_eq!(suggest_rate(text).as_deref(), Some(rate), "{text}");
        }
        for unclear in
            ["", "10", "10/", "/", "s", "-10/s", "0/s", "x/s", "10/x", "1e9/s", "99999999999999999999/s"]
        {
            assert_eq!(suggest_rate(unclear), None, "{unclear}");
        }
    }
}
