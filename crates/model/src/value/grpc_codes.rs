//! The status codes of gRPC by number and by name.

use super::scalars::Parsed;
use crate::diagnostics::codes;
use crate::diagnostics::problem::{ValueError, did_you_mean};

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
