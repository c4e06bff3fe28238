//! Tokens that callers send, compared in a time that tells nothing about them.

use aws_lc_rs::constant_time::verify_slices_are_equal;

/// The token behind `Bearer` in the value of `Authorization`.
pub fn bearer_token(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// The position of the secret that was sent. The time that it takes depends only on lengths.
pub fn find_secret<'s>(sent: &[u8], secrets: impl Iterator<Item = &'s [u8]>) -> Option<usize> {
    let equal = secrets.enumerate().filter(|(_, secret)| verify_slices_are_equal(sent, secret).is_ok());
    equal.map(|(position, _)| position).last()
}
