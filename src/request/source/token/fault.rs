//! The reasons why a token is not accepted; their texts never contain any part of it.

use std::fmt;

use jsonwebtoken::errors::{Error, ErrorKind};

/// Why the claims of a request's token do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFault {
    /// The request has no such header.
    Absent,
    Repeated,
    /// `Authorization` is empty or has another scheme.
    NotBearer,
    TooLong,
    Malformed,
    Critical,
    Algorithm,
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    NoExpiry,
    NoStart,
    Expired,
    Early,
}

impl TokenFault {
    /// Translates an error of the library, for a token with a valid header.
    pub(super) fn from_library(error: &Error) -> TokenFault {
        match error.kind() {
            ErrorKind::InvalidSignature => TokenFault::Signature,
            ErrorKind::InvalidIssuer => TokenFault::Issuer,
            ErrorKind::InvalidAudience => TokenFault::Audience,
            ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
                "iss" => TokenFault::Issuer,
                "aud" => TokenFault::Audience,
                _ => TokenFault::NoExpiry,
            },
            ErrorKind::InvalidAlgorithm => TokenFault::UnknownKey,
            _ => TokenFault::Malformed,
        }
    }
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenFault::Absent => "the request has none",
            TokenFault::Repeated => "the request has its header more than once",
            TokenFault::NotBearer => "its header is not `Bearer` and a token",
            TokenFault::TooLong => "it is longer than 8 KiB",
            TokenFault::Malformed => "it is malformed",
            TokenFault::Critical => "its header has `crit`, and no extension is supported",
            TokenFault::Algorithm => "its algorithm is not among account.jwt.algorithms",
            TokenFault::UnknownKey => "no key of account.jwt fits it",
            TokenFault::Signature => "its signature is invalid",
            TokenFault::Issuer => "its issuer (iss) is not in account.jwt.issuer, or is missing",
            TokenFault::Audience => "its audience (aud) is not in account.jwt.audience, or is missing",
            TokenFault::NoExpiry => "it has no expiry time (exp), which is required",
            TokenFault::NoStart => "its start time (nbf) is not a time",
            TokenFault::Expired => "it has expired (exp)",
            TokenFault::Early => "it is not valid yet (nbf)",
        })
    }
}
