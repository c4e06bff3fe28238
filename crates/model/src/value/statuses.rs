//! Parses lists of statuses to match responses with: `503`, `5xx` and `500-504`.

use super::scalars::Parsed;
use crate::diagnostics::codes;
use crate::diagnostics::problem::ValueError;

/// One item, as its first and last status.
pub fn parse_status_range(text: &str) -> Parsed<(u16, u16)> {
    let wrong = |why: &str| {
        ValueError::new(codes::STATUS, format!("`{text}` {why}")).with_help("write e.g. 503, 5xx or 500-504")
    };
    if let Some(class) = text.strip_suffix("xx") {
        return match class.parse::<u16>() {
            Ok(class @ 1..=5) if text.len() == 3 => Ok((class * 100, class * 100 + 99)),
            _ => Err(wrong("is not a class of status codes")),
        };
    }
    let code = |text: &str| match text.trim().parse::<u16>() {
        Ok(code) if (100..=599).contains(&code) && text.trim().len() == 3 => Ok(code),
        _ => Err(wrong("is neither a status code nor a range of them")),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (code(first)?, code(last)?);
    if range.0 > range.1 {
        return Err(wrong("ends before it begins"));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::StatusRanges;

    #[test]
    fn statuses_are_codes_classes_and_ranges() {
        assert_eq!(parse_status_range("204").unwrap(), (204, 204));
        assert_eq!(parse_status_range("5xx").unwrap(), (500, 599));
        assert_eq!(parse_status_range("1xx").unwrap(), (100, 199));
        assert_eq!(parse_status_range("200-399").unwrap(), (200, 399));
        assert_eq!(parse_status_range("500 - 504").unwrap(), (500, 504));
        for wrong in [
            "", "20", "2000", "399-200", "200-", "ok", "600", "099", "xx", "0xx", "6xx", "50x", "5XX",
            "+5xx", "5xx-6xx",
        ] {
            assert_eq!(parse_status_range(wrong).unwrap_err().code, codes::STATUS, "{wrong}");
        }
    }

    #[test]
    fn a_list_contains_the_statuses_of_its_ranges() {
        let statuses = StatusRanges(vec![(200, 299), (404, 404)]);
        for (status, is_contained) in [(199, false), (200, true), (299, true), (300, false), (404, true)] {
            assert_eq!(statuses.contains(status), is_contained, "{status}");
        }
        assert!(!StatusRanges::default().contains(200));
    }
}
