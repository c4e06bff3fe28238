//! Parses statuses to match responses with: `503`, `5xx` and `500-504`, and the status codes of gRPC.

use super::scalars::Parsed;
use crate::diagnostics::codes;
use crate::diagnostics::problem::{ValueError, did_you_mean};

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

/// The names of the codes from 0 on.
const GRPC_CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// A code by its number or its name.
pub fn parse_grpc_code(text: &str) -> Parsed<u8> {
    let number = text.parse::<u8>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let named = || GRPC_CODES.iter().position(|name| *name == text).and_then(|at| u8::try_from(at).ok());
    number.filter(|code| usize::from(*code) < GRPC_CODES.len()).or_else(named).ok_or_else(|| {
        ValueError::new(codes::STATUS, format!("`{text}` is not a status code of gRPC"))
            .with_optional_help(did_you_mean(text, GRPC_CODES))
            .with_default_help("write a number from 0 to 16 or a name, e.g. grpc:RESOURCE_EXHAUSTED")
    })
}

/// The name of a code.
pub fn grpc_code_name(code: u8) -> &'static str {
    GRPC_CODES.get(usize::from(code)).copied().unwrap_or("UNKNOWN")
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

    #[test]
    fn codes_have_numbers_and_names() {
        for (text, code) in
            [("0", 0), ("OK", 0), ("8", 8), ("RESOURCE_EXHAUSTED", 8), ("16", 16), ("UNAUTHENTICATED", 16)]
        {
            assert_eq!(parse_grpc_code(text).unwrap(), code, "{text}");
        }
        for wrong in ["", "17", "-1", "+8", "256", "ok", "NOPE"] {
            assert_eq!(parse_grpc_code(wrong).unwrap_err().code, codes::STATUS, "{wrong}");
        }
        let help = parse_grpc_code("resource_exhausted").unwrap_err().suggestion.unwrap();
        assert_eq!(help, "did you mean `RESOURCE_EXHAUSTED`?");
        assert_eq!(grpc_code_name(16), "UNAUTHENTICATED");
    }
}
