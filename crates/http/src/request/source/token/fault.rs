//! The reasons why a token is not accepted; their texts never contain any part of it.

use std::fmt;

use jsonwebtoken::errors::{Error, ErrorKind};

use sluicegate_base::labelled::labelled_enum;

labelled_enum! {
    /// The reason why the claims of a request's token do not count.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TokenFault: text -> &'static str {
        /// The request has no such header.
        Absent = "the request has none",
        Repeated = "the request has its header more than once",
        /// `Authorization` is empty or has another scheme.
        NotBearer = "its header is not `Bearer` and a token",
        TooLong = "it is longer than 8 KiB",
        Malformed = "it is malformed",
        Critical = "its header has `crit`, and no extension is supported",
        Algorithm = "its algorithm is not among account.jwt.algorithms",
        UnknownKey = "no key of account.jwt fits it",
        Signature = "its signature is invalid",
        Issuer = "its issuer (iss) is not in account.jwt.issuer, or is missing",
        Audience = "its audience (aud) is not in account.jwt.audience, or is missing",
        NoExpiry = "it has no expiry time (exp), which is required",
        NoStart = "its start time (nbf) is not a time",
        Expired = "it has expired (exp)",
        Early = "it is not valid yet (nbf)",
    }
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
        f.write_str(self.text())
    }
}
