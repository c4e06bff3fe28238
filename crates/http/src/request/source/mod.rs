//! Reads one value from a request: a header, a cookie, a query parameter, a claim of its token, or a value in its body.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{COOKIE, HeaderName};
use percent_encoding::percent_decode;

use sluicegate_model::{ValueSource, fold_name};

mod body;
mod body_texts;
mod mcp;
mod token;

pub use body::{BodyForm, BodyPlan, BodyValue, BodyValues, CostFault, ENCODED, NOT_JSON, TOO_LONG};
pub use body_texts::BodyTexts;
pub use mcp::{HeaderMismatch, check_mcp_headers, read_mcp};
pub use token::{FetchedKeys, KeySet, KeySetStatus, Token, TokenFault, TokenVerification, TokenVerifier};

/// The value of a [`ValueSource`] in one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceValue<'a> {
    /// Never empty.
    One(Cow<'a, [u8]>),
    /// Missing, or without a value.
    Absent,
    /// More than once. None of them counts, because the gateway and the upstream might read different ones.
    Repeated,
}

/// The parts of a request that have values.
#[derive(Debug, Clone, Copy)]
pub struct SourceInput<'a> {
    /// The fields of the head, cookies included.
    pub headers: &'a HeaderMap,
    /// The raw text after the `?`.
    pub query: Option<&'a str>,
    /// The token of the request; no token, no claims.
    pub token: Option<&'a Token<'a>>,
    /// `None` = there is no body, or nothing reads it.
    pub body: Option<&'a BodyValues>,
}

/// The value of `source`.
#[inline]
pub fn read_source<'a>(source: &ValueSource, input: &SourceInput<'a>) -> SourceValue<'a> {
    let found = match source {
        ValueSource::Header(name) => return read_header(name, input.headers),
        ValueSource::Cookie(name) => return read_cookie(name.as_bytes(), input.headers),
        ValueSource::Query(name) => {
            return input.query.map_or(SourceValue::Absent, |query| read_parameter(name.as_bytes(), query));
        }
        ValueSource::Jwt(claim) => input.token.and_then(|token| token.claim_value(claim)),
        ValueSource::Json(pointer) => match input.body.map(|body| body.find(pointer)) {
            Some(BodyValue::Repeated) => return SourceValue::Repeated,
            value => value.and_then(BodyValue::key_text),
        },
        // The answer is no part of the request.
        ValueSource::Auth(_) => None,
    };
    found.map_or(SourceValue::Absent, |text| SourceValue::One(Cow::Borrowed(text)))
}

/// HTTP/2 keeps spaces around a value, and whatever reads it over HTTP/1 does not.
fn read_header<'a>(name: &HeaderName, headers: &'a HeaderMap) -> SourceValue<'a> {
    let lines = headers.get_all(name).iter();
    single_value(lines.map(|line| Cow::Borrowed(line.as_bytes().trim_ascii())))
}

/// All lines are one list. Browsers send a name twice that two domains or paths have set. Some servers read the first
/// (nginx, PHP), others the last (Django), so a client could choose a counter by the other one: values must be equal.
fn read_cookie<'a>(name: &[u8], headers: &'a HeaderMap) -> SourceValue<'a> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
    let mut values = pairs.filter(|pair| is_cookie(pair, name)).map(|pair| trim_spaces(split_pair(pair).1));
    let first = values.next();
    if values.any(|other| Some(other) != first) {
        return SourceValue::Repeated;
    }
    single_value(first.map(Cow::Borrowed).into_iter())
}

/// Names and values are compared decoded: `%61=%62` and `a=b` are the same to any application.
fn read_parameter<'a>(name: &[u8], query: &'a str) -> SourceValue<'a> {
    let pairs = query.as_bytes().split(|&byte| byte == b'&');
    single_value(pairs.filter(|pair| is_parameter(pair, name)).map(|pair| form_decoded(split_pair(pair).1)))
}

/// True if a pair of a cookie may be read as that name.
pub(super) fn is_cookie(pair: &[u8], name: &[u8]) -> bool {
    is_read_as(trim_spaces(split_pair(pair).0), name)
}

/// True if a pair of a query may be read as that name.
pub(super) fn is_parameter(pair: &[u8], name: &[u8]) -> bool {
    is_read_as(&form_decoded(split_pair(pair).0), name)
}

/// White space that is no ASCII, in Latin-1 and in UTF-8, the longer forms first.
const WHITE_SPACE: [&[u8]; 21] = [
    b"\xe1\x9a\x80",
    b"\xe2\x80\x80",
    b"\xe2\x80\x81",
    b"\xe2\x80\x82",
    b"\xe2\x80\x83",
    b"\xe2\x80\x84",
    b"\xe2\x80\x85",
    b"\xe2\x80\x86",
    b"\xe2\x80\x87",
    b"\xe2\x80\x88",
    b"\xe2\x80\x89",
    b"\xe2\x80\x8a",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xa9",
    b"\xe2\x80\xaf",
    b"\xe2\x81\x9f",
    b"\xe3\x80\x80",
    b"\xc2\x85",
    b"\xc2\xa0",
    b"\x85",
    b"\xa0",
];

/// The text without the white space of ASCII, Latin-1 and UTF-8 at its ends, which servers in Python and JavaScript
/// remove from the names and values of cookies.
fn trim_spaces(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii();
        let is_plain = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_graphic);
        if is_plain(text.first()) && is_plain(text.last()) {
            return text;
        }
        let ends = |space: &&[u8]| text.strip_prefix(*space).or_else(|| text.strip_suffix(*space));
        match WHITE_SPACE.iter().find_map(ends) {
            Some(rest) => text = rest,
            None => return text,
        }
    }
}

/// True if a server may read the name of a cookie or parameter as that name, by [`fold_name`]. PHP skips spaces in
/// front and stops at a zero; PHP, Rails and parsers for Node take brackets in pairs for a part of the value.
fn is_read_as(found: &[u8], name: &[u8]) -> bool {
    let fold = |byte: &u8| fold_name(*byte);
    let found = found.trim_ascii_start();
    let is_name = |text: &[u8]| text.iter().take_while(|b| **b != 0).map(fold).eq(name.iter().map(fold));
    let bracket = found.iter().position(|byte| *byte == b'[').filter(|at| found[*at..].contains(&b']'));
    is_name(found) || bracket.is_some_and(|at| is_name(&found[..at]))
}

fn single_value<'a>(mut values: impl Iterator<Item = Cow<'a, [u8]>>) -> SourceValue<'a> {
    match (values.next(), values.next()) {
        (_, Some(_)) => SourceValue::Repeated,
        (Some(value), None) if !value.is_empty() => SourceValue::One(value),
        (_, None) => SourceValue::Absent,
    }
}

fn split_pair(pair: &[u8]) -> (&[u8], &[u8]) {
    match pair.iter().position(|&byte| byte == b'=') {
        Some(equals) => (&pair[..equals], &pair[equals + 1..]),
        None => (pair, b""),
    }
}

/// A plus is a space; an invalid escape stays as it is.
fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_decode(text).into();
    }
    let spaced: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests;
