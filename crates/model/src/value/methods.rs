//! Request methods.

use http::Method;

use crate::diagnostics::codes;
use crate::diagnostics::problem::{ValueError, did_you_mean};
use crate::value::scalars::Parsed;

/// The methods of the registry of IANA, and PURGE, which caches know.
const METHODS: &str = "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH QUERY PROPFIND PROPPATCH MKCOL COPY MOVE \
    LOCK UNLOCK REPORT SEARCH PURGE ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT LABEL LINK MERGE \
    MKACTIVITY MKCALENDAR MKREDIRECTREF MKWORKSPACE ORDERPATCH REBIND UNBIND UNCHECKOUT UNLINK \
    UPDATE UPDATEREDIRECTREF VERSION-CONTROL";

/// Parses like [`parse_method`], but accepts only methods that are registered or in `named`.
pub fn parse_known_method<'m>(text: &str, mut named: impl Iterator<Item = &'m Method>) -> Parsed<Method> {
    let method = parse_method(text)?;
    if is_registered(text) || named.any(|named| *named == method) {
        return Ok(method);
    }
    let help = "name it in `methods` of gateway.yaml if the servers know it";
    Err(ValueError::new(codes::METHOD, format!("`{text}` is not a registered request method"))
        .with_help(help))
}

fn is_registered(method: &str) -> bool {
    METHODS.split(' ').any(|registered| registered == method)
}

/// A method, in capitals: methods are case-sensitive, and `get` would never match.
pub fn parse_method(text: &str) -> Parsed<Method> {
    let wrong = || ValueError::new(codes::METHOD, format!("`{text}` is not a request method"));
    if is_registered(text) {
        return Method::from_bytes(text.as_bytes()).map_err(|_| wrong());
    }
    // Rare ones are no likely misspelling of a method of the servers' own.
    if let Some(near) = did_you_mean(text, METHODS.split(' ').take(20)) {
        return Err(wrong().with_help(near));
    }
    let capitals = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    if !capitals {
        return Err(wrong().with_help("write it in capitals, e.g. GET"));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_capitals_and_typos_get_a_suggestion() {
        assert_eq!(parse_method("GET").unwrap(), Method::GET);
        assert_eq!(parse_method("BASELINE-CONTROL").unwrap().as_str(), "BASELINE-CONTROL");
        assert_eq!(parse_method("get").unwrap_err().suggestion.unwrap(), "did you mean `GET`?");
        assert_eq!(parse_method("PSOT").unwrap_err().suggestion.unwrap(), "did you mean `POST`?");
        assert!(parse_method("G T").is_err() && parse_method("").is_err());
    }
}
