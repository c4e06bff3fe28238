//! Who is calling: the account that a request names.

use std::borrow::Cow;

use http::HeaderMap;

use crate::config::Source;
use crate::source::{Value, value};

/// The request names its account more than once: a 400, whatever its limits count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateAccount;

impl std::fmt::Display for DuplicateAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the request names its account more than once")
    }
}

impl std::error::Error for DuplicateAccount {}

/// The account, if the configuration says where to look and the request says one. An empty name is none.
#[inline]
pub fn account<'a>(
    from: Option<&Source>,
    headers: &'a HeaderMap,
    query: Option<&'a str>,
) -> Result<Option<Cow<'a, [u8]>>, DuplicateAccount> {
    let Some(source) = from else { return Ok(None) };
    match value(source, headers, query) {
        Value::One(account) => Ok(Some(account)),
        Value::Absent => Ok(None),
        Value::Twice => Err(DuplicateAccount),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-account-id", HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_account_is_the_one_value_of_its_source() {
        let source = Source::Header(http::HeaderName::from_static("x-account-id"));
        let read = |values: &[&'static str]| {
            account(Some(&source), &headers(values), None).map(|account| account.map(Cow::into_owned))
        };
        assert_eq!(read(&["alice"]), Ok(Some(b"alice".to_vec())));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[""]), Ok(None), "an empty name is no name");
        assert_eq!(read(&["alice", "bob"]), Err(DuplicateAccount));
        assert_eq!(read(&["alice", "alice"]), Err(DuplicateAccount), "twice the same is twice");
    }

    #[test]
    fn without_a_source_nobody_looks() {
        assert_eq!(account(None, &headers(&["alice", "bob"]), Some("account=eve")), Ok(None));
    }
}
